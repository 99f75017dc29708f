// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The contexts of containers' calls: found by task, without a lock, in memory that outlives the call's stack.
 *
 * Knows nothing of what a call is about. A task that dies inside the driver (an oops) never leaves; its context is an orphan, found
 * by the next look and given back. A reference to the module goes with each context: the caller holds it already when it
 * takes one (mpu_calls.c), and an orphan's is dropped here, for a dead task comes back to no code of ours.
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

void mpu_goes_out(void)
{
	atomic_dec(&mpu_inside_count);
	module_put(THIS_MODULE);
}

/* Callers that wait for memory, and are in no bucket yet. */
static atomic_t mpu_entering = ATOMIC_INIT(0);
static u32 mpu_orphans;

void mpu_contexts_init(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(mpu_buckets); i++)
		raw_spin_lock_init(&mpu_buckets[i].lock);
}

struct mpu_context *mpu_context_among_more(struct mpu_bucket *bucket)
{
	struct mpu_context *context, *found = NULL;

	rcu_read_lock();
	hlist_for_each_entry_rcu(context, &bucket->more, node) {
		if (mpu_is_mine(context)) {
			found = context;
			break;
		}
	}
	rcu_read_unlock();
	return found;
}
NOKPROBE_SYMBOL(mpu_context_among_more);

/* mpu_look_at() reads some of it meanwhile: that is written at once. */
static __always_inline void mpu_fill(struct mpu_context *context)
{
	/* A caller in a container has one: mpu_in_container(). */
	const struct pid *pid = task_pid(current);

	WRITE_ONCE(context->entry, context->entry + 1);
	/* The use is another one before anything of it can be read. */
	smp_wmb();
	WRITE_ONCE(context->born, mpu_born(current));
	WRITE_ONCE(context->process, task_tgid_nr(current));
	WRITE_ONCE(context->thread, task_pid_nr(current));
	WRITE_ONCE(context->entered, jiffies);
	WRITE_ONCE(context->argued, false);
	WRITE_ONCE(context->argument.cmd, 0);
	context->view.ns = pid->numbers[pid->level].ns;
	context->view.group = 0;
	context->sees = 0;
	context->bits = 0;
	context->is_counted = false;
	context->requested = NULL;
	context->questions = 0;
	WRITE_ONCE(context->request, 0);
	smp_store_release(&context->task, current);
}

static noinline struct mpu_context *mpu_context_more(struct mpu_bucket *bucket)
{
	struct mpu_context *context;

	/* So that mpu_calls_drain() and mpu_calls_hold() wait for this caller, too. */
	atomic_inc(&mpu_entering);
	context = kzalloc(sizeof(*context), GFP_KERNEL);
	if (context) {
		context->busy = 1;
		mpu_fill(context);
		raw_spin_lock(&bucket->lock);
		hlist_add_head_rcu(&context->node, &bucket->more);
		raw_spin_unlock(&bucket->lock);
	}
	/* It is in the bucket before it is in the number no more, and before the caller reads anything else (mpu_calls_hold()). */
	smp_mb__before_atomic();
	atomic_dec(&mpu_entering);
	return context;
}

struct mpu_context *mpu_context_enter(void)
{
	struct mpu_bucket *bucket = mpu_bucket_of_current();
	struct mpu_context *context = &bucket->own;

	/* Where it succeeds it is a full barrier, too. */
	if (unlikely(READ_ONCE(context->busy) || cmpxchg(&context->busy, 0, 1)))
		return mpu_context_more(bucket);
	mpu_fill(context);
	return context;
}

void mpu_context_translates(struct mpu_context *context, u32 bits)
{
	context->bits = bits;
	if (bits && !context->is_counted) {
		context->is_counted = true;
		atomic_inc(&mpu_translating_count);
	}
}
NOKPROBE_SYMBOL(mpu_context_translates);

/* Gives the memory back; `task` is NULL by now. */
static __always_inline void mpu_free(struct mpu_bucket *bucket, struct mpu_context *context)
{
	if (context->is_counted)
		atomic_dec(&mpu_translating_count);
	/* One that is part of a bucket is in no list; a neighbour in a list can come and go meanwhile. */
	if (likely(!READ_ONCE(context->node.pprev))) {
		smp_store_release(&context->busy, 0);
		return;
	}
	raw_spin_lock(&bucket->lock);
	hlist_del_rcu(&context->node);
	raw_spin_unlock(&bucket->lock);
	kfree_rcu(context, rcu);
}

static noinline void mpu_context_leave_memory(struct mpu_context *context)
{
	kfree(context->requested);
	WRITE_ONCE(context->task, NULL);
	mpu_free(mpu_bucket_of_current(), context);
}

void mpu_context_leave(struct mpu_context *context)
{
	if (unlikely(context->requested || READ_ONCE(context->node.pprev))) {
		mpu_context_leave_memory(context);
		return;
	}
	WRITE_ONCE(context->task, NULL);
	if (context->is_counted)
		atomic_dec(&mpu_translating_count);
	smp_store_release(&context->busy, 0);
}

/* Whether the task that entered will ever come back. Under RCU. One that exits does not: it was stopped in the driver. */
static bool mpu_comes_back(const struct task_struct *entered, u64 born, pid_t thread)
{
	struct task_struct *task = pid_task(find_pid_ns(thread, &init_pid_ns), PIDTYPE_PID);

	return task == entered && mpu_born(task) == born && !(READ_ONCE(task->flags) & PF_EXITING);
}

static void mpu_note_holder(struct mpu_inside *inside, const struct mpu_holder *holder)
{
	if (holder->ms >= MPU_HOLDS_MS && inside->holders < MPU_HOLDERS)
		inside->holder[inside->holders++] = *holder;
}

/* Whether a caller is inside with this context. Under RCU. */
static bool mpu_look_at(struct mpu_bucket *bucket, struct mpu_context *context, struct mpu_inside *inside)
{
	struct task_struct *task = smp_load_acquire(&context->task);
	u32 entry = READ_ONCE(context->entry);
	struct mpu_holder holder;
	u64 born;

	if (!task)
		return READ_ONCE(context->busy);
	born = READ_ONCE(context->born);
	holder.process = READ_ONCE(context->process);
	holder.thread = READ_ONCE(context->thread);
	holder.ms = jiffies_to_msecs(jiffies - READ_ONCE(context->entered));
	/* Shown, and nothing else: the probe writes it as the kernel's mpu_peek() does. */
	holder.cmd = READ_ONCE(context->argument.cmd);
	holder.control = READ_ONCE(context->request) == NV_ESC_RM_CONTROL || holder.cmd;
	/* All of that is of one use, or it left meanwhile. */
	smp_rmb();
	if (READ_ONCE(context->task) != task)
		return READ_ONCE(context->busy);
	smp_rmb();
	if (READ_ONCE(context->entry) != entry)
		return true;
	if (mpu_comes_back(task, born, holder.thread)) {
		if (inside)
			mpu_note_holder(inside, &holder);
		return true;
	}
	/* It may have left before it ended, and another be here by now: only what it did not leave is an orphan. */
	smp_rmb();
	if (READ_ONCE(context->task) != task || READ_ONCE(context->entry) != entry)
		return READ_ONCE(context->busy);
	/* No other task writes to a dead task's context. */
	mpu_orphans++;
	kfree(context->requested);
	WRITE_ONCE(context->task, NULL);
	mpu_free(bucket, context);
	mpu_goes_out();
	return false;
}

/* Two looks at once would both give an orphan back. */
static DEFINE_MUTEX(mpu_look_lock);

static u32 mpu_look(struct mpu_inside *inside)
{
	struct mpu_context *context;
	unsigned int i;
	u32 callers;

	callers = atomic_read(&mpu_entering);
	if (inside)
		inside->holders = 0;
	/* A caller that was entering is in a bucket, or in the number. */
	smp_rmb();
	for (i = 0; i < ARRAY_SIZE(mpu_buckets); i++) {
		rcu_read_lock();
		callers += mpu_look_at(&mpu_buckets[i], &mpu_buckets[i].own, inside);
		hlist_for_each_entry_rcu(context, &mpu_buckets[i].more, node)
			callers += mpu_look_at(&mpu_buckets[i], context, inside);
		rcu_read_unlock();
	}
	if (inside) {
		inside->callers = callers;
		inside->orphans = mpu_orphans;
	}
	return callers;
}

u32 mpu_contexts_look(struct mpu_inside *inside)
{
	u32 callers;

	mutex_lock(&mpu_look_lock);
	callers = mpu_look(inside);
	mutex_unlock(&mpu_look_lock);
	return callers;
}

bool mpu_contexts_are(u32 callers)
{
	bool are;

	if (!mutex_trylock(&mpu_look_lock))
		return false;
	are = mpu_look(NULL) == callers;
	mutex_unlock(&mpu_look_lock);
	return are;
}
