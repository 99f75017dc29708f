// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A container's RM control on its way through the driver: the replacements of the driver's functions, and the context that
 * ties them together.
 *
 * The context lives on the stack of the redirected ioctl and is found by task, in a hash. It decides nothing about bytes:
 * the core does. It is there for every RM control from a container, also one that claims no PIDs, because what the caller
 * claims can change before the driver reads it.
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/hash.h>
#include <linux/hashtable.h>
#include <linux/ioctl.h>
#include <linux/mm.h>
#include <linux/pid_namespace.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/sched/task_stack.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/wait.h>
#include "mpu.h"

/* The driver's status words (src/common/sdk/nvidia/inc/nvstatuscodes.h). */
#define NV_OK 0u
#define NV_ERR_INVALID_ARGUMENT 0x1fu
#define NV_ERR_OBJECT_NOT_FOUND 0x57u

/* Requests and arguments, as in crates/mpu-abi/src/ioctl.rs. */
#define NV_ESC_RM_CONTROL 0x2a
#define NV_ESC_IOCTL_XFER_CMD 211

struct mpu_rm_control {
	u32 client;
	u32 object;
	u32 cmd;
	u32 flags;
	u64 params;
	u32 params_size;
	u32 status;
};

/* What of it MPU reads. */
struct mpu_claim {
	u32 cmd;
	u32 params_size;
	u64 params;
};

struct mpu_xfer {
	u32 cmd;
	u32 size;
	u64 ptr;
};

struct mpu_context {
	struct hlist_node node;
	struct task_struct *task;
	struct mpu_view view;
	/* MPU_SEES_*, 0 until it matters. */
	u32 sees;
	/* NULL for a call that claims no PIDs. */
	void *call;
	/* The PIDs that the caller asked about, as it wrote them. */
	u32 *asked;
	u32 questions;
	u32 bits;
};

struct mpu_bucket {
	raw_spinlock_t lock;
	struct hlist_head contexts;
} ____cacheline_aligned_in_smp;

/* Kernels that clear every variable would clear these at each call; each is written before it is read. */
#if __has_attribute(uninitialized)
#define MPU_UNINITIALIZED __attribute__((uninitialized))
#else
#define MPU_UNINITIALIZED
#endif

#define MPU_BUCKET_BITS 8
static struct mpu_bucket mpu_buckets[1 << MPU_BUCKET_BITS];

/*
 * Calls inside that claimed a control whose copies cannot be told by their size. While there is none, which is nearly
 * always, every small copy passes at the first question.
 */
static atomic_t mpu_small_claims = ATOMIC_INIT(0);

u64 __percpu *mpu_counters;

static void mpu_count(u32 counter)
{
	if (counter < MPU_COUNTERS)
		this_cpu_inc(mpu_counters[counter]);
}

static struct mpu_bucket *mpu_bucket_of(struct task_struct *task)
{
	return &mpu_buckets[hash_ptr(task, MPU_BUCKET_BITS)];
}

static __always_inline struct mpu_bucket *mpu_enter(struct mpu_context *context)
{
	struct mpu_bucket *bucket = mpu_bucket_of(current);

	context->task = current;
	raw_spin_lock(&bucket->lock);
	hlist_add_head(&context->node, &bucket->contexts);
	raw_spin_unlock(&bucket->lock);
	return bucket;
}

static __always_inline void mpu_leave(struct mpu_context *context, struct mpu_bucket *bucket)
{
	raw_spin_lock(&bucket->lock);
	__hlist_del(&context->node);
	raw_spin_unlock(&bucket->lock);
}

/*
 * Only the task itself adds and removes its context, so what it finds stays. A context lives on its task's stack: if the
 * first of the bucket lives on ours it is ours, and that is nearly always so; another's is not touched without the lock.
 */
static struct mpu_context *mpu_context_of_current(void)
{
	struct mpu_bucket *bucket = mpu_bucket_of(current);
	struct hlist_node *first = READ_ONCE(bucket->contexts.first);
	struct mpu_context *context, *found = NULL;

	if (!first || !in_task())
		return NULL;
	if (likely(object_is_on_stack(first)))
		return hlist_entry(first, struct mpu_context, node);
	raw_spin_lock(&bucket->lock);
	hlist_for_each_entry(context, &bucket->contexts, node) {
		if (context->task == current) {
			found = context;
			break;
		}
	}
	raw_spin_unlock(&bucket->lock);
	return found;
}

unsigned int mpu_calls_inside(void)
{
	struct mpu_context *context;
	unsigned int i, inside = 0;

	for (i = 0; i < ARRAY_SIZE(mpu_buckets); i++) {
		raw_spin_lock(&mpu_buckets[i].lock);
		hlist_for_each_entry(context, &mpu_buckets[i].contexts, node)
			inside++;
		raw_spin_unlock(&mpu_buckets[i].lock);
	}
	return inside;
}

/*
 * While another instance takes over: callers wait at the door, in a context, so that unloading waits for them. `handed` is
 * written before `holding` falls, and never falls itself.
 */
static bool mpu_holding;
static bool mpu_handed_over;
static atomic_t mpu_held = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(mpu_released);
#define MPU_DRAIN_MS 5000

void mpu_calls_drain(void)
{
	/* Nobody is between a redirected entry and its context any more, so the contexts are all there are. */
	synchronize_rcu_tasks();
	while (mpu_calls_inside())
		msleep(1);
}

int mpu_calls_hold(void)
{
	unsigned long until = jiffies + msecs_to_jiffies(MPU_DRAIN_MS);
	unsigned int held;

	WRITE_ONCE(mpu_holding, true);
	/* Nobody is between a redirected entry and its context any more; whoever enters now sees `holding`. */
	synchronize_rcu_tasks();
	for (;;) {
		/* In this order: who is held stays, so equal numbers mean that nobody else was inside in between. */
		held = atomic_read_acquire(&mpu_held);
		if (mpu_calls_inside() == held)
			return 0;
		if (time_after(jiffies, until)) {
			mpu_calls_release(false);
			return -ETIMEDOUT;
		}
		msleep(1);
	}
}

void mpu_calls_release(bool handed)
{
	WRITE_ONCE(mpu_handed_over, handed);
	smp_store_release(&mpu_holding, false);
	wake_up_all(&mpu_released);
}

/* Waits at the door. Whether the call belongs to another instance now. */
static noinline bool mpu_wait_at_the_door(void)
{
	atomic_inc(&mpu_held);
	wait_event(mpu_released, !smp_load_acquire(&mpu_holding));
	atomic_dec(&mpu_held);
	return READ_ONCE(mpu_handed_over);
}

/*
 * --- What each redirected function is asked first: see mpu_entry.S. ---
 *
 * None of these sleeps, and each says "yes" only where its replacement stands inside a context, or does not sleep before
 * it is in one: unloading waits for contexts, and for tasks that have not slept since (mpu_hooks_remove()).
 */

bool mpu_wants_get_pid_info(void);
bool mpu_wants_find_ns_pid(void);
bool mpu_wants_is_init_ns(void);
bool mpu_wants_from_user(void *to, const void *from, u32 bytes);
bool mpu_wants_to_user(void *to, const void *from, u32 bytes);
bool mpu_wants_compat(struct file *file, unsigned int cmd, unsigned long arg);
bool mpu_wants_ioctl(struct file *file, unsigned int cmd, unsigned long arg);

static __always_inline bool mpu_wants_copy(u32 bytes)
{
	return (bytes >= MPU_TELLING_SIZE || atomic_read(&mpu_small_claims)) && mpu_context_of_current();
}

bool mpu_wants_get_pid_info(void)
{
	return true;
}

static bool mpu_translates(void)
{
	struct mpu_context *context = mpu_context_of_current();

	return context && (context->bits & MPU_TRANSLATES);
}

bool mpu_wants_find_ns_pid(void)
{
	return mpu_in_container() && mpu_translates();
}

bool mpu_wants_is_init_ns(void)
{
	return mpu_in_container() && mpu_translates();
}

bool mpu_wants_from_user(void *to, const void *from, u32 bytes)
{
	return mpu_in_container() && mpu_wants_copy(bytes);
}

bool mpu_wants_to_user(void *to, const void *from, u32 bytes)
{
	return mpu_in_container() && mpu_wants_copy(bytes);
}

/* The driver looks at a request's number and size, not at its type or direction; so does this. */
bool mpu_wants_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	if (!mpu_in_container())
		return false;
	return (_IOC_NR(cmd) == NV_ESC_RM_CONTROL && _IOC_SIZE(cmd) == sizeof(struct mpu_rm_control)) ||
	       (_IOC_NR(cmd) == NV_ESC_IOCTL_XFER_CMD && _IOC_SIZE(cmd) == sizeof(struct mpu_xfer));
}

bool mpu_wants_compat(struct file *file, unsigned int cmd, unsigned long arg)
{
	return mpu_wants_ioctl(file, cmd, arg);
}

/* --- The replacements. --- */

void *mpu_get_pid_info(void);
u32 mpu_find_ns_pid(void *pid_info, u32 *ns_pid);
u8 mpu_is_init_ns(void);
u32 mpu_from_user(void *to, const void *from, u32 bytes);
u32 mpu_to_user(void *to, const void *from, u32 bytes);
long mpu_compat(struct file *file, unsigned int cmd, unsigned long arg);
long mpu_ioctl(struct file *file, unsigned int cmd, unsigned long arg);

/* New clients are recorded by process in every release, as the driver itself does from 570.148.08 and 575.57.08 on. */
void *mpu_get_pid_info(void)
{
	return get_task_pid(current, PIDTYPE_TGID);
}

/* The process's number in the init namespace, as the driver would find it for a host caller. */
u32 mpu_find_ns_pid(void *pid_info, u32 *ns_pid)
{
	if (!pid_info || !ns_pid)
		return NV_ERR_INVALID_ARGUMENT;
	*ns_pid = mpu_host_pid_of(pid_info);
	return *ns_pid ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
}

u8 mpu_is_init_ns(void)
{
	return 1;
}

/*
 * Whether the policy shows this caller the host's view: then the driver's bytes go by as they are. Asked once for each call,
 * so that a policy that changes meanwhile is for the next.
 */
static bool mpu_is_exempt(struct mpu_context *context)
{
	if (!context->sees) {
		context->sees = unlikely(mpu_policy_is_set()) ? mpu_policy_of_current(&context->view) : MPU_SEES_OWN;
		if (context->sees == MPU_SEES_HOST)
			mpu_count(mpu_rs_exempt());
	}
	return context->sees == MPU_SEES_HOST;
}

/*
 * Makes room for the PIDs that the caller asks about. Without it the call goes by as if MPU were not there: the driver has
 * not looked at the parameters yet.
 */
static void mpu_keep_questions(struct mpu_context *context, const void *params, u32 bytes)
{
	u32 questions = mpu_rs_questions(context->call, params, bytes);

	if (!questions)
		return;
	context->asked = kmalloc_array(questions, sizeof(*context->asked), GFP_KERNEL);
	if (context->asked) {
		context->questions = questions;
	} else {
		mpu_count(mpu_rs_pass(context->call));
		context->bits &= ~MPU_TRANSLATES;
	}
}

u32 mpu_from_user(void *to, const void *from, u32 bytes)
{
	u32 status = mpu_original_from_user(to, from, bytes);
	struct mpu_context *context = mpu_context_of_current();

	if (WARN_ON_ONCE(!context) || status != NV_OK || mpu_is_exempt(context))
		return status;
	if (context->call && !context->asked)
		mpu_keep_questions(context, to, bytes);
	rcu_read_lock();
	mpu_rs_copied_in(context->call, to, bytes, context->asked, context->questions, &context->view);
	rcu_read_unlock();
	return status;
}

static void mpu_copying_out(struct mpu_context *context, u64 address, void *bytes, u32 length)
{
	u32 counter;

	rcu_read_lock();
	counter = mpu_rs_copying_out(context->call, address, bytes, length, context->asked, context->questions,
				     &context->view);
	rcu_read_unlock();
	mpu_count(counter);
}

/* `from` is the driver's own copy of the parameters, made for this call and dropped after it. */
u32 mpu_to_user(void *to, const void *from, u32 bytes)
{
	struct mpu_context *context = mpu_context_of_current();

	if (!WARN_ON_ONCE(!context) && !mpu_is_exempt(context))
		mpu_copying_out(context, (u64)(unsigned long)to, (void *)from, bytes);
	return mpu_original_to_user(to, from, bytes);
}

/*
 * Reads the RM control that the argument claims to be, each field once; the driver will read it again, so nothing here is
 * believed where it matters.
 */
static __always_inline bool mpu_read_claim(unsigned long where, struct mpu_claim *claim)
{
	const struct mpu_rm_control __user *argument = (const void __user *)where;

	if (!user_access_begin(argument, sizeof(*argument)))
		return false;
	unsafe_get_user(claim->cmd, &argument->cmd, unreadable);
	unsafe_get_user(claim->params, &argument->params, unreadable);
	unsafe_get_user(claim->params_size, &argument->params_size, unreadable);
	user_access_end();
	return true;
unreadable:
	user_access_end();
	return false;
}

/* Where the RM control's argument is: behind the XFER wrapping, if there is one. 0 if it wraps something else. */
static bool mpu_unwrap(unsigned long arg, unsigned long *where)
{
	struct mpu_xfer xfer;

	if (copy_from_user(&xfer, (void __user *)arg, sizeof(xfer)))
		return false;
	*where = xfer.cmd == NV_ESC_RM_CONTROL && xfer.size == sizeof(struct mpu_rm_control) ? xfer.ptr : 0;
	return true;
}

/*
 * The driver answered without passing its copy functions: the answer stands in the caller's memory already. Better late
 * than never; another thread of the caller can have seen it.
 */
static void mpu_translate_late(struct mpu_context *context, const struct mpu_claim *claim, unsigned long where)
{
	struct mpu_rm_control __user *argument = (void __user *)where;
	void __user *params = (void __user *)(unsigned long)claim->params;
	void *bytes;
	u32 status;

	if (get_user(status, &argument->status) || status != NV_OK)
		return;
	mpu_count(mpu_rs_copy_not_seen());
	bytes = kvmalloc(claim->params_size, GFP_KERNEL);
	if (!bytes)
		return;
	if (!copy_from_user(bytes, params, claim->params_size)) {
		mpu_copying_out(context, claim->params, bytes, claim->params_size);
		if (copy_to_user(params, bytes, claim->params_size))
			mpu_count(mpu_rs_unreadable());
	}
	kvfree(bytes);
}

static noinline void mpu_begin(struct mpu_context *context, void *call, const struct mpu_claim *claim)
{
	u32 counter;

	context->bits = mpu_rs_begin(call, claim->cmd, claim->params_size, &counter);
	mpu_count(counter);
	if (!context->bits)
		return;
	context->call = call;
	if (context->bits & MPU_SMALL)
		atomic_inc(&mpu_small_claims);
}

static noinline void mpu_end(struct mpu_context *context, const struct mpu_claim *claim, unsigned long where, long result)
{
	if ((context->bits & MPU_TRANSLATES) && result == 0 && mpu_rs_copy_missing(context->call) && !mpu_is_exempt(context))
		mpu_translate_late(context, claim, where);
	if (context->bits & MPU_SMALL)
		atomic_dec(&mpu_small_claims);
	kfree(context->asked);
}

static __always_inline long mpu_call(struct file *file, unsigned int cmd, unsigned long arg,
				     long (*original)(struct file *, unsigned int, unsigned long))
{
	u64 call[MPU_CALL_BYTES / 8] MPU_UNINITIALIZED;
	struct mpu_context context MPU_UNINITIALIZED;
	struct mpu_claim claim = { 0 };
	struct mpu_bucket *bucket;
	unsigned long where = arg;
	long result;

	context.view.ns = ns_of_pid(task_pid(current));
	context.view.group = 0;
	context.sees = 0;
	context.call = NULL;
	context.asked = NULL;
	context.questions = 0;
	context.bits = 0;
	/* Before anything that can sleep. */
	bucket = mpu_enter(&context);
	if (unlikely(READ_ONCE(mpu_holding)) && mpu_wait_at_the_door()) {
		/* mpu_hooks_handed() made the original the function's very start: the other instance translates. */
		result = original(file, cmd, arg);
		mpu_leave(&context, bucket);
		return result;
	}
	if (unlikely(_IOC_NR(cmd) == NV_ESC_IOCTL_XFER_CMD && !mpu_unwrap(arg, &where)) ||
	    unlikely(where && !mpu_read_claim(where, &claim))) {
		/* The driver will find so, too; if not, the sizes of its copies still tell. */
		mpu_count(mpu_rs_unreadable());
		claim.cmd = 0;
	}
	if (mpu_rs_may_claim(claim.cmd))
		mpu_begin(&context, call, &claim);
	result = original(file, cmd, arg);
	if (context.call)
		mpu_end(&context, &claim, where, result);
	mpu_leave(&context, bucket);
	return result;
}

long mpu_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return mpu_call(file, cmd, arg, mpu_original_ioctl);
}

long mpu_compat(struct file *file, unsigned int cmd, unsigned long arg)
{
	return mpu_call(file, cmd, arg, mpu_original_compat);
}

int mpu_calls_init(void)
{
	unsigned int i;

	BUILD_BUG_ON(sizeof(struct mpu_rm_control) != 32);
	BUILD_BUG_ON(sizeof(struct mpu_xfer) != 16);
	for (i = 0; i < ARRAY_SIZE(mpu_buckets); i++) {
		raw_spin_lock_init(&mpu_buckets[i].lock);
		INIT_HLIST_HEAD(&mpu_buckets[i].contexts);
	}
	mpu_counters = __alloc_percpu(MPU_COUNTERS * sizeof(u64), sizeof(u64));
	return mpu_counters ? 0 : -ENOMEM;
}

void mpu_calls_exit(void)
{
	free_percpu(mpu_counters);
}
