// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The replacements of the driver's functions: they follow a container's ioctl through the driver.
 *
 * The task's context (mpu_contexts.c) connects the calls that belong to one ioctl. The Rust core translates the bytes, by the driver's copy
 * of the argument (mpu_argument.c).
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

/* Static, because the kernel shows the module's parameters before mpu_init() and after mpu_exit(). */
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
 * A gate for callers. It is closed for a moment while another instance takes over. Waiting callers already have a context, so
 * mpu_calls_hold() can count the others. After a take-over the gate forwards callers to the new instance, late ones included.
 */
enum mpu_door { MPU_DOOR_OPEN, MPU_DOOR_CLOSED, MPU_DOOR_FORWARD };
static int mpu_door = MPU_DOOR_OPEN;

static bool mpu_accepting;

void mpu_calls_open(bool open)
{
	if (open)
		cmpxchg(&mpu_door, MPU_DOOR_FORWARD, MPU_DOOR_OPEN);
	WRITE_ONCE(mpu_accepting, open);
}

int mpu_calls_drain(unsigned int ms)
{
	unsigned long until = jiffies + msecs_to_jiffies(ms);

	/*
	 * After this, a caller that came before mpu_calls_open(false) has a context, or has left. A caller whose context could not be
	 * allocated is in mpu_inside_count alone.
	 */
	synchronize_rcu_tasks();
	while (mpu_contexts_scan(NULL) || atomic_read(&mpu_inside_count)) {
		if (fatal_signal_pending(current))
			return -EINTR;
		if (time_after_eq(jiffies, until))
			return -EBUSY;
		msleep(1);
	}
	return 0;
}

/* Callers that wait at the door now; and callers ever killed while they waited. */
static atomic_t mpu_waiting_count = ATOMIC_INIT(0);
static atomic_t mpu_killed_count = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(mpu_door_queue);

/* How long the door stays closed at most while callers leave. */
#define MPU_HOLD_MS 1500

int mpu_calls_hold(void)
{
	unsigned long until = jiffies + msecs_to_jiffies(MPU_HOLD_MS);
	int waiting, killed;

	WRITE_ONCE(mpu_door, MPU_DOOR_CLOSED);
	/* Pairs with mpu_call(), which enters a context before it reads the door: a caller finds the door closed, or is counted here. */
	smp_mb();
	for (;;) {
		killed = atomic_read_acquire(&mpu_killed_count);
		waiting = atomic_read_acquire(&mpu_waiting_count);
		/* If no waiting caller was killed meanwhile, equal numbers mean that all callers inside are waiting at the door. */
		if (mpu_contexts_count_is(waiting) && atomic_read_acquire(&mpu_killed_count) == killed)
			return 0;
		if (time_after(jiffies, until) || fatal_signal_pending(current)) {
			mpu_calls_release(false);
			return fatal_signal_pending(current) ? -EINTR : -ETIMEDOUT;
		}
		msleep(1);
	}
}

void mpu_calls_release(bool forward)
{
	smp_store_release(&mpu_door, forward ? MPU_DOOR_FORWARD : MPU_DOOR_OPEN);
	wake_up_all(&mpu_door_queue);
}

/* Waits at the door, for MPU_HOLD_MS or little longer. Returns 0, or -EINTR if the caller was killed. */
static noinline int mpu_wait_at_the_door(void)
{
	int error;

	/* Every processor must see the caller's context before this increment, and still after the decrement. */
	smp_mb__before_atomic();
	atomic_inc(&mpu_waiting_count);
	error = wait_event_killable(mpu_door_queue, smp_load_acquire(&mpu_door) != MPU_DOOR_CLOSED);
	if (error)
		atomic_inc(&mpu_killed_count);
	smp_mb__before_atomic();
	atomic_dec(&mpu_waiting_count);
	smp_mb__after_atomic();
	return error ? -EINTR : 0;
}

/*
 * --- The checks that mpu_entry.S and mpu_ipmodify.c run before each redirected function. ---
 *
 * They do not sleep. They match only calls that hold a reference to this module, so the module cannot be unloaded while its code is on a
 * stack. On a match they return what the replacement needs.
 */

/*
 * The running task's context. NULL in an interrupt, which belongs to no call. Also NULL in a task that exits because it died inside the
 * driver: mpu_scan_context() can free its context at any time.
 */
static __always_inline struct mpu_context *mpu_active_context(void)
{
	return in_task() && !(current->flags & PF_EXITING) ? mpu_context_of_current() : NULL;
}

/* The running task's context, if MPU translates this call. */
static __always_inline struct mpu_context *mpu_translated_context(void)
{
	struct mpu_context *context = mpu_in_container() ? mpu_active_context() : NULL;

	return context && (context->bits & MPU_TRANSLATES) ? context : NULL;
}

struct mpu_context *mpu_match_is_init_ns(void)
{
	struct mpu_context *context = mpu_translated_context();

	/* A caller with the host's view also gets the records of ended processes. */
	return context && (!(context->bits & MPU_HIDES_DEAD) || context->sees == MPU_SEES_HOST) ? context : NULL;
}

struct mpu_context *mpu_match_from_user(void *to, const void *from, u32 bytes)
{
	struct mpu_context *context = mpu_translated_context();

	if (!context || (u64)(unsigned long)from != context->argument.params || bytes != context->argument.params_size)
		return NULL;
	return context;
}

struct mpu_context *mpu_match_to_user(void *to, const void *from, u32 bytes)
{
	struct mpu_context *context = mpu_in_container() ? mpu_active_context() : NULL;

	return context && (context->bits & (MPU_TRANSLATES | MPU_EVENT)) ? context : NULL;
}

/* Whether a request can carry PIDs or allocate. Like the driver, this checks number and size, but not type and direction. */
static __always_inline bool mpu_is_tracked_request(unsigned int cmd)
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

/* mpu_call() drops the reference at its end. While the module is being unloaded, try_module_get() fails. */
unsigned long mpu_match_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	if (!mpu_in_container() || !mpu_is_tracked_request(cmd) || !READ_ONCE(mpu_accepting) || !try_module_get(THIS_MODULE))
		return 0;
	atomic_inc(&mpu_inside_count);
	return 1;
}

unsigned long mpu_match_compat(struct file *file, unsigned int cmd, unsigned long arg)
{
	return mpu_match_ioctl(file, cmd, arg);
}

/* --- The replacements. --- */

/* Records a new client's process, as the driver itself does from 570.148.08 and 575.57.08 on. Earlier releases record the thread. */
void *mpu_get_pid_info(void)
{
	return get_task_pid(current, PIDTYPE_TGID);
}

/*
 * Returns the process's PID in the init namespace, as the driver would for a host caller. Samples are different: they keep the pid_info of
 * a client that may be freed by now (570.86 to 570.144, 575.51: kern_perf_ctrl.c, client.c). So for samples this fails, and the driver
 * leaves the host PID in the sample.
 *
 * The driver calls this for each pair of a process and a client, so there is no separate check before it: see mpu_entry.S. Neither this
 * nor the original function sleeps or takes a lock that may sleep, so the caller needs no reference to the module.
 */
static noinline u32 mpu_find_ns_pid_slow(void *pid_info, u32 *ns_pid)
{
	struct mpu_context *context = mpu_active_context();

	if (!context || !(context->bits & (MPU_TRANSLATES | MPU_ALLOCATES)))
		return mpu_original_find_ns_pid(pid_info, ns_pid);
	if (!pid_info || !ns_pid)
		return NV_ERR_INVALID_ARGUMENT;
	if (context->bits & MPU_SAMPLES)
		return NV_ERR_OBJECT_NOT_FOUND;
	*ns_pid = mpu_host_pid_of(pid_info);
	return *ns_pid ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
}

/* The frequent case alone, without a function call. */
u32 mpu_find_ns_pid(void *pid_info, u32 *ns_pid)
{
	const struct mpu_context *context = &mpu_bucket_of_current()->own;
	const struct pid *pid = pid_info;

	if (likely(in_task() && !(current->flags & PF_EXITING) && mpu_context_is_current(context) &&
		   (context->bits & (MPU_TRANSLATES | MPU_SAMPLES)) == MPU_TRANSLATES && pid && ns_pid &&
		   !hlist_empty(&pid->tasks[PIDTYPE_TGID]))) {
		*ns_pid = pid->numbers[0].nr;
		return NV_OK;
	}
	return mpu_find_ns_pid_slow(pid_info, ns_pid);
}

u8 mpu_is_init_ns(void)
{
	return 1;
}

/*
 * Whether the policy gives this caller the host's view: then nothing is translated. The policy is evaluated once a call, so a change
 * applies from the next call on.
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
 * Allocates memory for the PIDs in the caller's query. If that fails, the whole call stays untranslated: the driver has not used the
 * parameters yet.
 */
static bool mpu_alloc_requested(struct mpu_context *context, const void *params, u32 bytes)
{
	u32 requested_count = mpu_rs_requested_count(context->call, context->argument.params, params, bytes);

	if (!requested_count || context->requested)
		return true;
	context->requested = kmalloc_array(requested_count, sizeof(*context->requested), GFP_KERNEL);
	if (!context->requested) {
		mpu_count_reason(MPU_REASON_NO_MEMORY);
		context->bits = 0;
		return false;
	}
	context->requested_count = requested_count;
	return true;
}

u32 mpu_from_user(void *to, const void *from, u32 bytes, struct mpu_context *context)
{
	u32 status = mpu_original_from_user(to, from, bytes);

	if (status != NV_OK || mpu_is_exempt(context) || !mpu_alloc_requested(context, to, bytes))
		return status;
	rcu_read_lock();
	mpu_rs_copied_in(context->call, context->argument.params, to, bytes, context->requested, context->requested_count,
			 &context->view);
	rcu_read_unlock();
	return status;
}

static void mpu_translate_copy_out(struct mpu_context *context, u64 address, void *bytes, u32 length, struct mpu_copy *copy)
{
	u32 counter;

	rcu_read_lock();
	counter = mpu_rs_copying_out(context->call, address, bytes, length, context->requested, context->requested_count,
				     &context->view, copy);
	rcu_read_unlock();
	mpu_count(counter);
}

static void mpu_translate_event(struct mpu_context *context, u64 address, void *bytes, u32 length)
{
	u32 counter;

	if (address != context->argument.params)
		return;
	rcu_read_lock();
	counter = mpu_rs_event(bytes, length, &context->view);
	rcu_read_unlock();
	mpu_count(counter);
}

/* `from` is the driver's copy of the parameters or of an event. The driver makes it for this call, so it may be changed in place. */
u32 mpu_to_user(void *to, const void *from, u32 bytes, struct mpu_context *context)
{
	struct mpu_copy copy = { .bytes = bytes };

	if (!mpu_is_exempt(context)) {
		if (context->bits & MPU_EVENT)
			mpu_translate_event(context, (u64)(unsigned long)to, (void *)from, bytes);
		else
			mpu_translate_copy_out(context, (u64)(unsigned long)to, (void *)from, bytes, &copy);
	}
	if (copy.refused)
		return NV_ERR_OBJECT_NOT_FOUND;
	return copy.bytes || !bytes ? mpu_original_to_user(to, from, copy.bytes) : NV_OK;
}

/* Returns the request and stores its argument's address, for a wrapped request (XFER) too. 0 if it cannot be read or has another size. */
static u32 mpu_unwrap_request(unsigned int cmd, unsigned long arg, unsigned long *address)
{
	struct mpu_xfer xfer = { _IOC_NR(cmd), _IOC_SIZE(cmd), arg };

	if (xfer.cmd == NV_ESC_IOCTL_XFER_CMD && copy_from_user(&xfer, (void __user *)arg, sizeof(xfer)))
		return 0;
	*address = xfer.ptr;
	if (xfer.cmd == NV_ESC_RM_CONTROL)
		return xfer.size == sizeof(struct mpu_rm_control) ? xfer.cmd : 0;
	return xfer.cmd == NV_ESC_RM_GET_EVENT_DATA && xfer.size == sizeof(struct mpu_rm_event) ? xfer.cmd : 0;
}

/*
 * Reads the argument from the caller's memory, if the probe is not armed. Another thread of the caller can change that memory before the
 * driver reads it: then the answer stays untranslated. The state's `argument=claimed` reports that the probe failed, and
 * MPU_REASON_PROBE_PENDING counts the calls before it is armed.
 */
static noinline void mpu_read_caller_argument(struct mpu_context *context, unsigned int cmd, unsigned long arg)
{
	struct mpu_argument argument;
	unsigned long address;
	bool is_read = true;
	u64 data;

	mpu_classify_request(context, _IOC_NR(cmd));
	if (context->bits)
		return;
	switch (mpu_unwrap_request(cmd, arg, &address)) {
	case NV_ESC_RM_CONTROL:
		is_read = !copy_from_user(&argument, &((struct mpu_rm_control __user *)address)->argument, sizeof(argument));
		if (is_read) {
			context->argument.params = argument.params;
			context->argument.params_size = argument.params_size;
			WRITE_ONCE(context->argument.cmd, argument.cmd);
			mpu_classify_control(context);
			/* If the probe is armed before the driver reads the argument, the probe decides. */
			WRITE_ONCE(context->argument_seen, false);
		}
		break;
	case NV_ESC_RM_GET_EVENT_DATA:
		is_read = !get_user(data, &((struct mpu_rm_event __user *)address)->data);
		if (is_read) {
			context->argument.params = data;
			mpu_context_set_bits(context, MPU_EVENT);
		}
	}
	if (!is_read)
		mpu_count_reason(MPU_REASON_UNREADABLE);
}

/* Counts an answer that did not pass the driver's copy functions: the caller got the untranslated answer. */
static noinline void mpu_check_missing_copy(unsigned int cmd, unsigned long arg)
{
	unsigned long address;
	u32 status;

	if (mpu_unwrap_request(cmd, arg, &address) == NV_ESC_RM_CONTROL &&
	    !get_user(status, &((struct mpu_rm_control __user *)address)->argument.status) && status == NV_OK)
		mpu_count_reason(MPU_REASON_COPY_NOT_SEEN);
}

/* Whether the probe should have read an argument for this request. The caller has checked that `argument_seen` is false. */
static noinline bool mpu_needs_argument(const struct mpu_context *context)
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
	bool is_armed;
	long result;
	int door;

	this_cpu_inc(mpu_entered);
	if (unlikely(!context)) {
		mpu_count_reason(MPU_REASON_NO_MEMORY);
		result = original(file, cmd, arg);
		goto out;
	}
	WRITE_ONCE(context->request, _IOC_NR(cmd));
	/*
	 * mpu_context_enter() has a full barrier after `busy`, or after the insertion into `overflow`: every processor sees the context in
	 * use before this reads the door (mpu_calls_hold()).
	 */
	while (unlikely((door = smp_load_acquire(&mpu_door)) != MPU_DOOR_OPEN)) {
		if (door == MPU_DOOR_FORWARD) {
			/* The other instance's probe reads the argument; this one must not. */
			WRITE_ONCE(context->argument_seen, true);
			result = ((mpu_ioctl_function *)mpu_hooks_address(hook))(file, cmd, arg);
			goto leave;
		}
		if (mpu_wait_at_the_door()) {
			/* No program gets this value, because the caller was killed. */
			result = -EINTR;
			goto leave;
		}
	}
	if (context->request == NV_ESC_RM_ALLOC)
		mpu_note_driver_user();
	is_armed = mpu_argument_is_seen();
	if (unlikely(!is_armed))
		mpu_read_caller_argument(context, cmd, arg);
	result = original(file, cmd, arg);
	if (context->bits & MPU_TRANSLATES) {
		if (unlikely(result == 0 && mpu_rs_copy_missing(context->call)) && !mpu_is_exempt(context))
			mpu_check_missing_copy(cmd, arg);
	} else if (unlikely(is_armed && result == 0 && !context->argument_seen && mpu_needs_argument(context))) {
		mpu_argument_probe_missed();
	}
leave:
	mpu_context_leave(context);
out:
	mpu_release_caller();
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
