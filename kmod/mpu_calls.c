// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A container's ioctl on its way through the driver: the replacements of the driver's functions.
 *
 * A context (mpu_contexts.c) ties them together. It decides nothing about bytes: the core does, by what the driver's own copy of the
 * argument says (mpu_argument.c).
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/ioctl.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pid_namespace.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/wait.h>
#include "mpu.h"

/* The driver's status words (src/common/sdk/nvidia/inc/nvstatuscodes.h). */
#define NV_OK 0u
#define NV_ERR_INVALID_ARGUMENT 0x1fu
#define NV_ERR_OBJECT_NOT_FOUND 0x57u

struct mpu_xfer {
	u32 cmd;
	u32 size;
	u64 ptr;
};

/* Static, because the kernel shows a module's parameters before its first function runs and after its last. */
static DEFINE_PER_CPU(u64, mpu_entered);

u64 mpu_calls_translated(void)
{
	u64 sum = 0;
	u32 counter, end = mpu_rs_reason(0);

	for (counter = 0; counter < end; counter++)
		sum += mpu_counter(counter);
	return sum;
}

u64 mpu_calls_entered(void)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(mpu_entered, cpu));
	return sum;
}

/*
 * The door. It is shut for a moment while another instance takes over: callers wait there in a context, so that the other can tell who is
 * still inside. If it then leads elsewhere, it does so for late callers, too.
 */
enum mpu_door { MPU_LEADS_IN, MPU_SHUT, MPU_LEADS_ELSEWHERE };
static int mpu_door = MPU_LEADS_IN;

/* Whether callers from containers come in. Those who do not are the bare driver's. */
static bool mpu_is_open;

void mpu_calls_open(bool open)
{
	if (open)
		cmpxchg(&mpu_door, MPU_LEADS_ELSEWHERE, MPU_LEADS_IN);
	WRITE_ONCE(mpu_is_open, open);
}

int mpu_calls_drain(unsigned int ms)
{
	unsigned long until = jiffies + msecs_to_jiffies(ms);

	/* A caller that came before the closing has a context by now, or has left. Without memory for one, only the second number counts it. */
	synchronize_rcu_tasks();
	while (mpu_contexts_look(NULL) || atomic_read(&mpu_inside_count)) {
		if (fatal_signal_pending(current))
			return -EINTR;
		if (time_after_eq(jiffies, until))
			return -EBUSY;
		msleep(1);
	}
	return 0;
}

/* Callers that wait at the door; and those that were killed there, ever. */
static atomic_t mpu_held = ATOMIC_INIT(0);
static atomic_t mpu_gave_up = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(mpu_released);

/* Longest time that the door is kept shut while callers leave. */
#define MPU_HOLD_MS 1500

int mpu_calls_hold(void)
{
	unsigned long until = jiffies + msecs_to_jiffies(MPU_HOLD_MS);
	int held, gave_up;

	WRITE_ONCE(mpu_door, MPU_SHUT);
	/* Against mpu_call(): a caller is in its context before it reads the door. It finds the door shut, or is seen here. */
	smp_mb();
	for (;;) {
		gave_up = atomic_read_acquire(&mpu_gave_up);
		held = atomic_read_acquire(&mpu_held);
		/* All held callers stayed meanwhile, so equal numbers mean that no other caller was inside. */
		if (mpu_contexts_are(held) && atomic_read_acquire(&mpu_gave_up) == gave_up)
			return 0;
		if (time_after(jiffies, until) || fatal_signal_pending(current)) {
			mpu_calls_release(false);
			return fatal_signal_pending(current) ? -EINTR : -ETIMEDOUT;
		}
		msleep(1);
	}
}

void mpu_calls_release(bool elsewhere)
{
	smp_store_release(&mpu_door, elsewhere ? MPU_LEADS_ELSEWHERE : MPU_LEADS_IN);
	wake_up_all(&mpu_released);
}

/* Waits at the door, MPU_HOLD_MS or little more. 0, or -EINTR if the caller was killed. */
static noinline int mpu_wait_at_the_door(void)
{
	int error;

	/* A caller is in its context as long as it is in this number, on every processor's view of the two. */
	smp_mb__before_atomic();
	atomic_inc(&mpu_held);
	error = wait_event_killable(mpu_released, smp_load_acquire(&mpu_door) != MPU_SHUT);
	if (error)
		atomic_inc(&mpu_gave_up);
	smp_mb__before_atomic();
	atomic_dec(&mpu_held);
	smp_mb__after_atomic();
	return error ? -EINTR : 0;
}

/*
 * --- What each redirected function is asked first: see mpu_entry.S and mpu_ipmodify.c. ---
 *
 * None of these sleeps. Each says "yes" only to a call that holds a reference to this module, so that nothing of it is on a stack that
 * the kernel could unload it under; and hands its context on.
 */

/*
 * The running task's context. An interrupt belongs to no call. A task that was stopped inside the driver and exits has none either:
 * mpu_look_at() takes its context away.
 */
static __always_inline struct mpu_context *mpu_inside_of_current(void)
{
	return in_task() && !(current->flags & PF_EXITING) ? mpu_context_of_current() : NULL;
}

/* The same, if MPU translates this call. */
static __always_inline struct mpu_context *mpu_translated(void)
{
	struct mpu_context *context = mpu_in_container() ? mpu_inside_of_current() : NULL;

	return context && (context->bits & MPU_TRANSLATES) ? context : NULL;
}

struct mpu_context *mpu_wants_is_init_ns(void)
{
	struct mpu_context *context = mpu_translated();

	/* A caller with the host's view gets ended processes, too. */
	return context && (!(context->bits & MPU_HIDES_DEAD) || context->sees == MPU_SEES_HOST) ? context : NULL;
}

struct mpu_context *mpu_wants_from_user(void *to, const void *from, u32 bytes)
{
	struct mpu_context *context = mpu_translated();

	if (!context || (u64)(unsigned long)from != context->argument.params || bytes != context->argument.params_size)
		return NULL;
	return context;
}

struct mpu_context *mpu_wants_to_user(void *to, const void *from, u32 bytes)
{
	struct mpu_context *context = mpu_in_container() ? mpu_inside_of_current() : NULL;

	return context && (context->bits & (MPU_TRANSLATES | MPU_EVENT)) ? context : NULL;
}

/* The driver looks at a request's number and size, not at its type or direction; so does this. */
static __always_inline bool mpu_leads_inside(unsigned int cmd)
{
	if (likely(_IOC_NR(cmd) == NV_ESC_RM_CONTROL))
		return _IOC_SIZE(cmd) == sizeof(struct mpu_rm_control);
	switch (_IOC_NR(cmd)) {
	case NV_ESC_IOCTL_XFER_CMD:
		return _IOC_SIZE(cmd) == sizeof(struct mpu_xfer);
	case NV_ESC_RM_GET_EVENT_DATA:
		return _IOC_SIZE(cmd) == sizeof(struct mpu_rm_event);
	case NV_ESC_RM_ALLOC:
	case NV_ESC_RM_ALLOC_MEMORY:
	case NV_ESC_RM_VID_HEAP_CONTROL:
		return true;
	}
	return false;
}

/* The reference goes back at the end of mpu_call(). While the module goes there is none to be had. */
unsigned long mpu_wants_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	if (!mpu_in_container() || !mpu_leads_inside(cmd) || !READ_ONCE(mpu_is_open) || !try_module_get(THIS_MODULE))
		return 0;
	atomic_inc(&mpu_inside_count);
	return 1;
}

unsigned long mpu_wants_compat(struct file *file, unsigned int cmd, unsigned long arg)
{
	return mpu_wants_ioctl(file, cmd, arg);
}

/* --- The replacements. --- */

/* New clients are recorded by process in every release, as the driver itself does from 570.148.08 and 575.57.08 on. */
void *mpu_get_pid_info(void)
{
	return get_task_pid(current, PIDTYPE_TGID);
}

/*
 * The process's number in the init namespace, as the driver would find it for a host caller. Not for samples: they keep the
 * reference of a client that can be gone (570.86 to 570.144, 575.51: kern_perf_ctrl.c, client.c). Then the driver leaves its own
 * number in the sample, which is what is wanted.
 *
 * The driver asks this for each pair of a process and a client, so no other function asks first: see mpu_entry.S. Neither this nor what
 * it replaces sleeps or takes a lock that may, so a caller needs no reference.
 */
static noinline u32 mpu_find_ns_pid_otherwise(void *pid_info, u32 *ns_pid)
{
	struct mpu_context *context = mpu_inside_of_current();

	if (!context || !(context->bits & (MPU_TRANSLATES | MPU_ALLOCATES)))
		return mpu_original_find_ns_pid(pid_info, ns_pid);
	if (!pid_info || !ns_pid)
		return NV_ERR_INVALID_ARGUMENT;
	if (context->bits & MPU_SAMPLES)
		return NV_ERR_OBJECT_NOT_FOUND;
	*ns_pid = mpu_host_pid_of(pid_info);
	return *ns_pid ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
}

/* The usual question alone, which makes no call; all others are behind the jump. */
u32 mpu_find_ns_pid(void *pid_info, u32 *ns_pid)
{
	const struct mpu_context *context = &mpu_bucket_of_current()->own;
	const struct pid *pid = pid_info;

	if (likely(in_task() && !(current->flags & PF_EXITING) && mpu_is_mine(context) &&
		   (context->bits & (MPU_TRANSLATES | MPU_SAMPLES)) == MPU_TRANSLATES && pid && ns_pid &&
		   !hlist_empty(&pid->tasks[PIDTYPE_TGID]))) {
		*ns_pid = pid->numbers[0].nr;
		return NV_OK;
	}
	return mpu_find_ns_pid_otherwise(pid_info, ns_pid);
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
			mpu_count_reason(MPU_REASON_EXEMPT);
	}
	return context->sees == MPU_SEES_HOST;
}

/*
 * Makes room for the PIDs that the caller asks about. Without it the call goes by as if MPU were not there: the driver has
 * not looked at the parameters yet.
 */
static bool mpu_keeps_questions(struct mpu_context *context, const void *params, u32 bytes)
{
	u32 questions = mpu_rs_questions(context->call, context->argument.params, params, bytes);

	if (!questions || context->requested)
		return true;
	context->requested = kmalloc_array(questions, sizeof(*context->requested), GFP_KERNEL);
	if (!context->requested) {
		mpu_count_reason(MPU_REASON_NO_MEMORY);
		context->bits = 0;
		return false;
	}
	context->questions = questions;
	return true;
}

u32 mpu_from_user(void *to, const void *from, u32 bytes, struct mpu_context *context)
{
	u32 status = mpu_original_from_user(to, from, bytes);

	if (status != NV_OK || mpu_is_exempt(context) || !mpu_keeps_questions(context, to, bytes))
		return status;
	rcu_read_lock();
	mpu_rs_copied_in(context->call, context->argument.params, to, bytes, context->requested, context->questions, &context->view);
	rcu_read_unlock();
	return status;
}

static void mpu_copying_out(struct mpu_context *context, u64 address, void *bytes, u32 length, struct mpu_copy *copy)
{
	u32 counter;

	rcu_read_lock();
	counter = mpu_rs_copying_out(context->call, address, bytes, length, context->requested, context->questions,
				     &context->view, copy);
	rcu_read_unlock();
	mpu_count(counter);
}

static void mpu_event_out(struct mpu_context *context, u64 address, void *bytes, u32 length)
{
	u32 counter;

	if (address != context->argument.params)
		return;
	rcu_read_lock();
	counter = mpu_rs_event(bytes, length, &context->view);
	rcu_read_unlock();
	mpu_count(counter);
}

/* `from` is the driver's own copy of the parameters, or of an event, made for this call and dropped after it. */
u32 mpu_to_user(void *to, const void *from, u32 bytes, struct mpu_context *context)
{
	struct mpu_copy copy = { .bytes = bytes };

	if (!mpu_is_exempt(context)) {
		if (context->bits & MPU_EVENT)
			mpu_event_out(context, (u64)(unsigned long)to, (void *)from, bytes);
		else
			mpu_copying_out(context, (u64)(unsigned long)to, (void *)from, bytes, &copy);
	}
	if (copy.refused)
		return NV_ERR_OBJECT_NOT_FOUND;
	return copy.bytes || !bytes ? mpu_original_to_user(to, from, copy.bytes) : NV_OK;
}

/* The request, and where its argument is: behind the XFER wrapping, if there is one. 0 if that cannot be read, or the size is another's. */
static u32 mpu_unwrap(unsigned int cmd, unsigned long arg, unsigned long *where)
{
	struct mpu_xfer xfer = { _IOC_NR(cmd), _IOC_SIZE(cmd), arg };

	if (xfer.cmd == NV_ESC_IOCTL_XFER_CMD && copy_from_user(&xfer, (void __user *)arg, sizeof(xfer)))
		return 0;
	*where = xfer.ptr;
	if (xfer.cmd == NV_ESC_RM_CONTROL)
		return xfer.size == sizeof(struct mpu_rm_control) ? xfer.cmd : 0;
	return xfer.cmd == NV_ESC_RM_GET_EVENT_DATA && xfer.size == sizeof(struct mpu_rm_event) ? xfer.cmd : 0;
}

/*
 * Where the driver's own copy cannot be seen: the caller's memory says what the call is. Another thread of it can change that
 * before the driver looks: it then gets what the bare driver shows. `argument` of the module's state says that it is so.
 */
static noinline void mpu_read_caller_argument(struct mpu_context *context, unsigned int cmd, unsigned long arg)
{
	struct mpu_argument argument;
	unsigned long where;
	bool is_read = true;
	u64 data;

	mpu_request_is(context, _IOC_NR(cmd));
	if (context->bits)
		return;
	switch (mpu_unwrap(cmd, arg, &where)) {
	case NV_ESC_RM_CONTROL:
		is_read = !copy_from_user(&argument, &((struct mpu_rm_control __user *)where)->argument, sizeof(argument));
		if (is_read) {
			context->argument.params = argument.params;
			context->argument.params_size = argument.params_size;
			WRITE_ONCE(context->argument.cmd, argument.cmd);
			mpu_argument_says(context);
			/* If the probe is armed before the driver reads the argument, the probe decides. */
			WRITE_ONCE(context->argued, false);
		}
		break;
	case NV_ESC_RM_GET_EVENT_DATA:
		is_read = !get_user(data, &((struct mpu_rm_event __user *)where)->data);
		if (is_read) {
			context->argument.params = data;
			mpu_context_translates(context, MPU_EVENT);
		}
	}
	if (!is_read)
		mpu_count_reason(MPU_REASON_UNREADABLE);
}

/* The driver answered without passing its copy functions: the caller has the answer that the host would get. */
static noinline void mpu_note_uncopied(unsigned int cmd, unsigned long arg)
{
	unsigned long where;
	u32 status;

	if (mpu_unwrap(cmd, arg, &where) == NV_ESC_RM_CONTROL &&
	    !get_user(status, &((struct mpu_rm_control __user *)where)->argument.status) && status == NV_OK)
		mpu_count_reason(MPU_REASON_COPY_NOT_SEEN);
}

/* Whether the driver took an argument that names something. The caller of this knows that the probe did not report one. */
static noinline bool mpu_is_untold(const struct mpu_context *context)
{
	switch (context->request) {
	case NV_ESC_RM_CONTROL:
		return true;
	case NV_ESC_RM_GET_EVENT_DATA:
		return !(context->bits & MPU_EVENT);
	}
	return false;
}

typedef long mpu_ioctl_function(struct file *file, unsigned int cmd, unsigned long arg);

static __always_inline long mpu_call(struct file *file, unsigned int cmd, unsigned long arg, mpu_ioctl_function *original,
				     enum mpu_hook hook)
{
	struct mpu_context *context = mpu_context_enter();
	bool is_seen;
	long result;
	int door;

	this_cpu_inc(mpu_entered);
	if (unlikely(!context)) {
		mpu_count_reason(MPU_REASON_NO_MEMORY);
		result = original(file, cmd, arg);
		goto out;
	}
	WRITE_ONCE(context->request, _IOC_NR(cmd));
	/* Behind the context, in this order on every processor: mpu_context_enter() ends with a full barrier. */
	while (unlikely((door = smp_load_acquire(&mpu_door)) != MPU_LEADS_IN)) {
		if (door == MPU_LEADS_ELSEWHERE) {
			/* It is the other instance's probe that reads the argument. */
			WRITE_ONCE(context->argued, true);
			result = ((mpu_ioctl_function *)mpu_hooks_start(hook))(file, cmd, arg);
			goto leave;
		}
		if (mpu_wait_at_the_door()) {
			/* No program gets this value: the caller does not come back to user space. */
			result = -EINTR;
			goto leave;
		}
	}
	if (context->request == NV_ESC_RM_ALLOC)
		mpu_note_maker();
	is_seen = mpu_argument_is_seen();
	if (unlikely(!is_seen))
		mpu_read_caller_argument(context, cmd, arg);
	result = original(file, cmd, arg);
	if (context->bits & MPU_TRANSLATES) {
		if (unlikely(result == 0 && mpu_rs_copy_missing(context->call)) && !mpu_is_exempt(context))
			mpu_note_uncopied(cmd, arg);
	} else if (unlikely(is_seen && result == 0 && !context->argued && mpu_is_untold(context))) {
		mpu_argument_lost();
	}
leave:
	mpu_context_leave(context);
out:
	mpu_goes_out();
	return result;
}

long mpu_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return mpu_call(file, cmd, arg, mpu_original_ioctl, MPU_IOCTL);
}

long mpu_compat(struct file *file, unsigned int cmd, unsigned long arg)
{
	return mpu_call(file, cmd, arg, mpu_original_compat, MPU_COMPAT);
}
