// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The contexts of containers' calls: found by task, without a lock, in memory that outlives the caller's stack.
 *
 * A task that dies inside the driver (an oops) never leaves its context. The next scan frees such an orphan. Each caller holds a reference
 * to the module (mpu_calls.c). For an orphan the scan drops it, because the dead task never returns to this module.
 */
#include <linux/atomic.h>
#include <linux/jiffies.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pid_namespace.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include "mpu.h"

struct mpu_bucket mpu_buckets[1 << MPU_BUCKET_BITS];

/* mpu_entry.S reads it. */
atomic_t mpu_translating_count = ATOMIC_INIT(0);
atomic_t mpu_inside_count = ATOMIC_INIT(0);

void mpu_release_caller(void)
{
	atomic_dec(&mpu_inside_count);
	module_put(THIS_MODULE);
}

/* Callers that allocate a context, and are in no bucket yet. */
static atomic_t mpu_entering = ATOMIC_INIT(0);
static u32 mpu_orphans;

void mpu_contexts_init(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(mpu_buckets); i++)
		raw_spin_lock_init(&mpu_buckets[i].lock);
}

struct mpu_context *mpu_context_find_overflow(struct mpu_bucket *bucket)
{
	struct mpu_context *context, *found = NULL;

	rcu_read_lock();
	hlist_for_each_entry_rcu(context, &bucket->overflow, node) {
		if (mpu_context_is_current(context)) {
			found = context;
			break;
		}
	}
	rcu_read_unlock();
	return found;
}
NOKPROBE_SYMBOL(mpu_context_find_overflow);

/* mpu_scan_context() reads some fields concurrently: these are written by WRITE_ONCE(). */
static __always_inline void mpu_context_init(struct mpu_context *context)
{
	/* Not NULL: mpu_in_container() has checked it. */
	const struct pid *pid = task_pid(current);

	WRITE_ONCE(context->generation, context->generation + 1);
	/* A reader sees the new generation before any new field. */
	smp_wmb();
	WRITE_ONCE(context->start_time, mpu_start_time(current));
	WRITE_ONCE(context->process, task_tgid_nr(current));
	WRITE_ONCE(context->thread, task_pid_nr(current));
	WRITE_ONCE(context->entered, jiffies);
	WRITE_ONCE(context->argument_seen, false);
	WRITE_ONCE(context->argument.cmd, 0);
	context->view.ns = pid->numbers[pid->level].ns;
	context->view.group = 0;
	context->sees = 0;
	context->bits = 0;
	context->begin_counter = MPU_NOT_COUNTED;
	context->is_counted = false;
	context->requested = NULL;
	context->requested_count = 0;
	WRITE_ONCE(context->request, 0);
	smp_store_release(&context->task, current);
}

static noinline struct mpu_context *mpu_context_alloc(struct mpu_bucket *bucket)
{
	struct mpu_context *context;

	/* Makes mpu_calls_drain() and mpu_calls_hold() wait for this caller, too. */
	atomic_inc(&mpu_entering);
	context = kzalloc(sizeof(*context), GFP_KERNEL);
	if (context) {
		context->busy = 1;
		mpu_context_init(context);
		raw_spin_lock(&bucket->lock);
		hlist_add_head_rcu(&context->node, &bucket->overflow);
		raw_spin_unlock(&bucket->lock);
	}
	/* The context must be in the bucket before this decrement, and before the caller reads the door (mpu_calls_hold()). */
	smp_mb__before_atomic();
	atomic_dec(&mpu_entering);
	return context;
}

struct mpu_context *mpu_context_enter(void)
{
	struct mpu_bucket *bucket = mpu_bucket_of_current();
	struct mpu_context *context = &bucket->own;

	/* A successful cmpxchg() is also the full barrier that mpu_call() needs. */
	if (unlikely(READ_ONCE(context->busy) || cmpxchg(&context->busy, 0, 1)))
		return mpu_context_alloc(bucket);
	mpu_context_init(context);
	return context;
}

void mpu_context_set_bits(struct mpu_context *context, u32 bits)
{
	context->bits = bits;
	if (bits && !context->is_counted) {
		context->is_counted = true;
		atomic_inc(&mpu_translating_count);
	}
}
NOKPROBE_SYMBOL(mpu_context_set_bits);

/* `task` is NULL already. */
static __always_inline void mpu_context_free(struct mpu_bucket *bucket, struct mpu_context *context)
{
	if (context->is_counted)
		atomic_dec(&mpu_translating_count);
	/* A context that is part of a bucket is in no list. READ_ONCE(), because neighbours in a list change `pprev` concurrently. */
	if (likely(!READ_ONCE(context->node.pprev))) {
		smp_store_release(&context->busy, 0);
		return;
	}
	raw_spin_lock(&bucket->lock);
	hlist_del_rcu(&context->node);
	raw_spin_unlock(&bucket->lock);
	kfree_rcu(context, rcu);
}

static noinline void mpu_context_leave_slow(struct mpu_context *context)
{
	kfree(context->requested);
	WRITE_ONCE(context->task, NULL);
	mpu_context_free(mpu_bucket_of_current(), context);
}

void mpu_context_leave(struct mpu_context *context)
{
	if (unlikely(context->requested || READ_ONCE(context->node.pprev))) {
		mpu_context_leave_slow(context);
		return;
	}
	WRITE_ONCE(context->task, NULL);
	if (context->is_counted)
		atomic_dec(&mpu_translating_count);
	smp_store_release(&context->busy, 0);
}

/* Whether the task will return from the driver. Under RCU. A task that exits while it is inside does not: it died there. */
static bool mpu_task_will_return(const struct task_struct *entered, u64 start_time, pid_t thread)
{
	struct task_struct *task = pid_task(find_pid_ns(thread, &init_pid_ns), PIDTYPE_PID);

	return task == entered && mpu_start_time(task) == start_time && !(READ_ONCE(task->flags) & PF_EXITING);
}

static void mpu_add_holder(struct mpu_caller_stats *stats, const struct mpu_holder *holder)
{
	if (holder->ms >= MPU_HOLDER_MIN_MS && stats->holders < MPU_MAX_HOLDERS)
		stats->holder[stats->holders++] = *holder;
}

/* Whether a caller is inside with this context. Frees an orphan. Under RCU. */
static bool mpu_scan_context(struct mpu_bucket *bucket, struct mpu_context *context, struct mpu_caller_stats *stats)
{
	struct task_struct *task = smp_load_acquire(&context->task);
	u32 generation = READ_ONCE(context->generation);
	struct mpu_holder holder;
	u64 start_time;

	if (!task)
		return READ_ONCE(context->busy);
	start_time = READ_ONCE(context->start_time);
	holder.process = READ_ONCE(context->process);
	holder.thread = READ_ONCE(context->thread);
	holder.ms = jiffies_to_msecs(jiffies - READ_ONCE(context->entered));
	/* For display only: the probe writes `cmd` by mpu_copy_from_kernel(), which is not atomic. */
	holder.cmd = READ_ONCE(context->argument.cmd);
	holder.control = READ_ONCE(context->request) == NV_ESC_RM_CONTROL || holder.cmd;
	/* If task and generation are unchanged below, all fields above belong to one use. */
	smp_rmb();
	if (READ_ONCE(context->task) != task)
		return READ_ONCE(context->busy);
	smp_rmb();
	if (READ_ONCE(context->generation) != generation)
		return true;
	if (mpu_task_will_return(task, start_time, holder.thread)) {
		if (stats)
			mpu_add_holder(stats, &holder);
		return true;
	}
	/* The task may have left normally and ended since, and another caller may use the context now. Then it is no orphan. */
	smp_rmb();
	if (READ_ONCE(context->task) != task || READ_ONCE(context->generation) != generation)
		return READ_ONCE(context->busy);
	/* No other task writes to a dead task's context. */
	mpu_orphans++;
	kfree(context->requested);
	WRITE_ONCE(context->task, NULL);
	mpu_context_free(bucket, context);
	mpu_release_caller();
	return false;
}

/* Concurrent scans would free an orphan twice. */
static DEFINE_MUTEX(mpu_scan_lock);

static u32 mpu_scan_contexts(struct mpu_caller_stats *stats)
{
	struct mpu_context *context;
	unsigned int i;
	u32 callers;

	callers = atomic_read(&mpu_entering);
	if (stats)
		stats->holders = 0;
	/* A caller that is allocating a context is counted above, or is in a bucket by now. */
	smp_rmb();
	for (i = 0; i < ARRAY_SIZE(mpu_buckets); i++) {
		rcu_read_lock();
		callers += mpu_scan_context(&mpu_buckets[i], &mpu_buckets[i].own, stats);
		hlist_for_each_entry_rcu(context, &mpu_buckets[i].overflow, node)
			callers += mpu_scan_context(&mpu_buckets[i], context, stats);
		rcu_read_unlock();
	}
	if (stats) {
		stats->callers = callers;
		stats->orphans = mpu_orphans;
	}
	return callers;
}

u32 mpu_contexts_scan(struct mpu_caller_stats *stats)
{
	u32 callers;

	mutex_lock(&mpu_scan_lock);
	callers = mpu_scan_contexts(stats);
	mutex_unlock(&mpu_scan_lock);
	return callers;
}

bool mpu_contexts_count_is(u32 callers)
{
	bool is_equal;

	if (!mutex_trylock(&mpu_scan_lock))
		return false;
	is_equal = mpu_scan_contexts(NULL) == callers;
	mutex_unlock(&mpu_scan_lock);
	return is_equal;
}
