// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Reads the driver's copy of an ioctl's argument, by a probe at rm_ioctl. On every release rm_ioctl receives the argument in kernel memory
 * (`rm_ioctl(nvidia_stack_t *, nv_state_t *, nv_file_private_t *, NvU32 Command, void *pData, NvU32 dataSize)`: nv.h of 515.43.04
 * to 595.45.04, and the interface files of 390.157 to 555.58.02).
 *
 * The caller can change its memory at any time, but not this copy. So this copy determines the control and the address of its parameters.
 * The probe is armed at the first call from a container, so that a host without containers does not pay for it.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/kprobes.h>
#include <linux/mutex.h>
#include <linux/ptrace.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>
#include "mpu.h"

/* Indexes of rm_ioctl's parameters. */
enum { MPU_RM_COMMAND = 3, MPU_RM_DATA = 4, MPU_RM_SIZE = 5 };

/* Serialises registering, arming and unregistering. The handler runs without it. */
static DEFINE_MUTEX(mpu_probe_lock);
static struct kprobe mpu_probe;
static bool mpu_probe_registered;
bool mpu_probe_armed;
/* Why the probe is not armed; 0 if nothing failed. */
static int mpu_probe_error;

void mpu_classify_request(struct mpu_context *context, unsigned int request)
{
	switch (request) {
	case NV_ESC_RM_ALLOC:
	case NV_ESC_RM_ALLOC_MEMORY:
	case NV_ESC_RM_VID_HEAP_CONTROL:
		context->bits = MPU_ALLOCATES;
	}
}
NOKPROBE_SYMBOL(mpu_classify_request);

static noinline void mpu_begin_translation(struct mpu_context *context)
{
	u32 counter;

	mpu_context_set_bits(context, mpu_rs_begin(context->call, &context->argument, &counter));
	/* A call begins twice if the probe was armed during it. */
	if (counter != context->begin_counter)
		mpu_count(counter);
	context->begin_counter = counter;
}
NOKPROBE_SYMBOL(mpu_begin_translation);

void mpu_classify_control(struct mpu_context *context)
{
	WRITE_ONCE(context->argument_seen, true);
	if (mpu_rs_may_carry_pids(context->argument.cmd))
		mpu_begin_translation(context);
}
NOKPROBE_SYMBOL(mpu_classify_control);

/*
 * Reads the argument into the context. On a read error `argument` may be incomplete, but nothing uses it: `argument_seen` and the bits stay
 * clear.
 */
static noinline int mpu_read_argument(struct pt_regs *regs)
{
	struct mpu_context *context;
	unsigned int request;
	const void *data;
	u32 size;

	context = mpu_context_of_current();
	if (!context || context->argument_seen)
		return 0;
	/* If the probe was armed during this call, mpu_read_caller_argument() has already set bits by the caller's memory. Discard them. */
	context->bits = 0;
	request = mpu_function_argument(regs, MPU_RM_COMMAND);
	data = (const void *)mpu_function_argument(regs, MPU_RM_DATA);
	size = mpu_function_argument(regs, MPU_RM_SIZE);
	switch (request) {
	case NV_ESC_RM_CONTROL:
		if (size == sizeof(struct mpu_rm_control) &&
		    !mpu_copy_from_kernel(&context->argument, &((const struct mpu_rm_control *)data)->argument, sizeof(context->argument)))
			mpu_classify_control(context);
		break;
	case NV_ESC_RM_GET_EVENT_DATA:
		if (size == sizeof(struct mpu_rm_event) &&
		    !mpu_copy_from_kernel(&context->argument.params, &((const struct mpu_rm_event *)data)->data, sizeof(u64)))
			mpu_context_set_bits(context, MPU_EVENT);
		break;
	default:
		mpu_classify_request(context, request);
	}
	return 0;
}
NOKPROBE_SYMBOL(mpu_read_argument);

/* Small, and without a stack frame, because every call of a host process passes here too. */
static int mpu_at_rm_ioctl(struct kprobe *probe, struct pt_regs *regs)
{
	return mpu_in_container() ? mpu_read_argument(regs) : 0;
}
NOKPROBE_SYMBOL(mpu_at_rm_ioctl);

/* Under mpu_probe_lock. */
static void mpu_argument_enable(void)
{
	WRITE_ONCE(mpu_probe_error, enable_kprobe(&mpu_probe));
	WRITE_ONCE(mpu_probe_armed, !mpu_probe_error);
	if (mpu_probe_error)
		pr_warn("mpu: the probe in rm_ioctl cannot be armed: error %d\n", mpu_probe_error);
}

/*
 * Runs in a worker, not in a caller: kprobe_optimizer() holds kprobe_mutex while it waits for every task of the host, and arming takes the
 * same mutex.
 */
static void mpu_argument_arm(struct work_struct *work)
{
	mutex_lock(&mpu_probe_lock);
	if (mpu_probe_registered && !mpu_probe_armed && !mpu_probe_error)
		mpu_argument_enable();
	mutex_unlock(&mpu_probe_lock);
}

static DECLARE_WORK(mpu_arm_work, mpu_argument_arm);

void mpu_argument_register(unsigned long rm_ioctl, int error, bool armed)
{
	mutex_lock(&mpu_probe_lock);
	mpu_probe = (struct kprobe){
		.addr = (kprobe_opcode_t *)rm_ioctl, .pre_handler = mpu_at_rm_ioctl, .flags = KPROBE_FLAG_DISABLED,
	};
	if (!error)
		error = register_kprobe(&mpu_probe);
	/* Not known of any driver. A probe on an instruction that ftrace patches has no instruction slot: see mpu_find_function(). */
	if (!error && (mpu_probe.flags & KPROBE_FLAG_FTRACE)) {
		unregister_kprobe(&mpu_probe);
		error = -EOPNOTSUPP;
	}
	mpu_probe_registered = !error;
	WRITE_ONCE(mpu_probe_error, error);
	if (error)
		pr_warn("mpu: no probe in rm_ioctl (error %d): calls are judged by the caller's own memory\n", error);
	else if (armed)
		mpu_argument_enable();
	mutex_unlock(&mpu_probe_lock);
}

/* How long to wait until the kernel removes its jump. */
#define MPU_UNOPTIMIZE_MS 1000

/*
 * Disables the probe, and waits until the kernel has removed its jump, some jiffies later. If the driver is unloaded before that, the
 * kernel drops the unregistered probe from its work list, but keeps the probe for ever. It then warns about the next probe there, and
 * refuses it (5.10.262, kill_optimized_kprobe() and reuse_unused_kprobe()). No kernel exports a wait for its optimizer, so this polls
 * the first bytes of the instruction.
 */
static void mpu_disable_probe_and_wait(void)
{
	kprobe_opcode_t code;
	unsigned long end;

	if (!IS_ENABLED(CONFIG_OPTPROBES) || disable_kprobe(&mpu_probe))
		return;
	end = jiffies + msecs_to_jiffies(MPU_UNOPTIMIZE_MS);
	while (!mpu_copy_from_kernel(&code, mpu_probe.addr, sizeof(code)) && code != mpu_probe.opcode) {
		if (time_after(jiffies, end)) {
			pr_warn("mpu: something still stands where the probe in rm_ioctl was, %u ms after it was disabled\n",
				MPU_UNOPTIMIZE_MS);
			return;
		}
		msleep(1);
	}
}

void mpu_argument_unregister(bool shared)
{
	mutex_lock(&mpu_probe_lock);
	WRITE_ONCE(mpu_probe_armed, false);
	if (mpu_probe_registered && !kprobe_disabled(&mpu_probe) && !shared)
		mpu_disable_probe_and_wait();
	if (mpu_probe_registered)
		unregister_kprobe(&mpu_probe);
	mpu_probe_registered = false;
	mutex_unlock(&mpu_probe_lock);
}

void mpu_argument_exit(void)
{
	cancel_work_sync(&mpu_arm_work);
}

void mpu_argument_schedule_arm(void)
{
	if (!READ_ONCE(mpu_probe_error)) {
		mpu_count_reason(MPU_REASON_PROBE_PENDING);
		schedule_work(&mpu_arm_work);
	}
}

void mpu_argument_probe_missed(void)
{
	if (!READ_ONCE(mpu_probe_armed))
		return;
	mpu_count_reason(MPU_REASON_ARGUMENT_NOT_SEEN);
	pr_warn_once("mpu: the probe in rm_ioctl was passed by: are the kernel's probes switched off (debugfs kprobes/enabled)?\n");
	WRITE_ONCE(mpu_probe_error, -EIO);
	WRITE_ONCE(mpu_probe_armed, false);
}

int mpu_argument_status(bool *armed)
{
	*armed = READ_ONCE(mpu_probe_armed);
	return READ_ONCE(mpu_probe_error);
}
