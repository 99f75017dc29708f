// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The driver's own copy of an ioctl's argument: a probe at rm_ioctl, which receives it in kernel memory on every release
 * (`rm_ioctl(nvidia_stack_t *, nv_state_t *, nv_file_private_t *, NvU32 Command, void *pData, NvU32 dataSize)`: nv.h of 515.43.04
 * to 595.45.04, and the interface files of 390.157 to 555.58.02).
 *
 * The caller's memory can change between any two looks at it; this copy cannot. It decides which control a call is and where its
 * parameters stand. A host pays nothing for the probe before a container first calls.
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

/* Places of rm_ioctl's parameters. */
enum { MPU_RM_COMMAND = 3, MPU_RM_DATA = 4, MPU_RM_SIZE = 5 };

/* Guards the probe's coming and going, not its use. */
static DEFINE_MUTEX(mpu_probe_lock);
static struct kprobe mpu_probe;
static bool mpu_probe_registered;
bool mpu_probe_armed;
/* Why there is none. */
static int mpu_probe_error;

void mpu_request_is(struct mpu_context *context, unsigned int request)
{
	switch (request) {
	case NV_ESC_RM_ALLOC:
	case NV_ESC_RM_ALLOC_MEMORY:
	case NV_ESC_RM_VID_HEAP_CONTROL:
		context->bits = MPU_ALLOCATES;
	}
}
NOKPROBE_SYMBOL(mpu_request_is);

static noinline void mpu_argument_claims(struct mpu_context *context)
{
	u32 counter;

	mpu_context_translates(context, mpu_rs_begin(context->call, &context->argument, &counter));
	mpu_count(counter);
}
NOKPROBE_SYMBOL(mpu_argument_claims);

void mpu_argument_says(struct mpu_context *context)
{
	WRITE_ONCE(context->argued, true);
	if (mpu_rs_may_claim(context->argument.cmd))
		mpu_argument_claims(context);
}
NOKPROBE_SYMBOL(mpu_argument_says);

/* Reads into the context. What cannot be read whole is of no use to anybody: `argued` and the bits say that there is none. */
static noinline int mpu_read_argument(struct pt_regs *regs)
{
	struct mpu_context *context;
	unsigned int request;
	const void *data;
	u32 size;

	context = mpu_context_of_current();
	if (!context || context->argued)
		return 0;
	/* Undoes what mpu_read_caller_argument() decided by the caller's memory, if the probe was armed during this call. */
	context->bits = 0;
	request = mpu_nth(regs, MPU_RM_COMMAND);
	data = (const void *)mpu_nth(regs, MPU_RM_DATA);
	size = mpu_nth(regs, MPU_RM_SIZE);
	switch (request) {
	case NV_ESC_RM_CONTROL:
		if (size == sizeof(struct mpu_rm_control) &&
		    !mpu_peek(&context->argument, &((const struct mpu_rm_control *)data)->argument, sizeof(context->argument)))
			mpu_argument_says(context);
		break;
	case NV_ESC_RM_GET_EVENT_DATA:
		if (size == sizeof(struct mpu_rm_event) &&
		    !mpu_peek(&context->argument.params, &((const struct mpu_rm_event *)data)->data, sizeof(u64)))
			mpu_context_translates(context, MPU_EVENT);
		break;
	default:
		mpu_request_is(context, request);
	}
	return 0;
}
NOKPROBE_SYMBOL(mpu_read_argument);

/* A host's call goes by in as few instructions as can be: it has nothing on the stack here. */
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
 * Arms the probe. Not in a caller's context: the kernel makes a jump of a probe under kprobe_mutex, and waits for every task of the host
 * meanwhile (kprobe_optimizer).
 */
static void mpu_argument_arm(struct work_struct *work)
{
	mutex_lock(&mpu_probe_lock);
	if (mpu_probe_registered && !mpu_probe_armed && !mpu_probe_error)
		mpu_argument_enable();
	mutex_unlock(&mpu_probe_lock);
}

static DECLARE_WORK(mpu_arming, mpu_argument_arm);

void mpu_argument_place(unsigned long rm_ioctl, int error, bool armed)
{
	mutex_lock(&mpu_probe_lock);
	mpu_probe = (struct kprobe){
		.addr = (kprobe_opcode_t *)rm_ioctl, .pre_handler = mpu_at_rm_ioctl, .flags = KPROBE_FLAG_DISABLED,
	};
	if (!error)
		error = register_kprobe(&mpu_probe);
	/* No driver has an rm_ioctl that can be traced. The probe would have no instruction slot: see mpu_find(). */
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

/* Longest time that the kernel is given to take its jump back. */
#define MPU_SETTLE_MS 1000

/*
 * Disables the probe, and waits until the kernel has taken its jump back, which it does some jiffies later. If a released probe
 * still waits for that while the driver goes, the kernel loses it from its list of work and keeps it for ever: the next one at that
 * address makes it warn and is refused (5.10.262, kill_optimized_kprobe() and reuse_unused_kprobe()). No kernel exports a wait for its
 * optimizer, so the instruction's first bytes say when it has gone.
 */
static void mpu_probe_settles(void)
{
	kprobe_opcode_t code;
	unsigned long end;

	if (!IS_ENABLED(CONFIG_OPTPROBES) || disable_kprobe(&mpu_probe))
		return;
	end = jiffies + msecs_to_jiffies(MPU_SETTLE_MS);
	while (!mpu_peek(&code, mpu_probe.addr, sizeof(code)) && code != mpu_probe.opcode) {
		if (time_after(jiffies, end)) {
			pr_warn("mpu: something still stands where the probe in rm_ioctl was, %u ms after it was disabled\n",
				MPU_SETTLE_MS);
			return;
		}
		msleep(1);
	}
}

void mpu_argument_remove(bool shared)
{
	mutex_lock(&mpu_probe_lock);
	WRITE_ONCE(mpu_probe_armed, false);
	if (mpu_probe_registered && !kprobe_disabled(&mpu_probe) && !shared)
		mpu_probe_settles();
	if (mpu_probe_registered)
		unregister_kprobe(&mpu_probe);
	mpu_probe_registered = false;
	mutex_unlock(&mpu_probe_lock);
}

void mpu_argument_exit(void)
{
	cancel_work_sync(&mpu_arming);
}

bool mpu_argument_asks(void)
{
	if (!READ_ONCE(mpu_probe_error)) {
		mpu_count_reason(MPU_REASON_PROBE_PENDING);
		schedule_work(&mpu_arming);
	}
	return false;
}

void mpu_argument_lost(void)
{
	if (!READ_ONCE(mpu_probe_armed))
		return;
	mpu_count_reason(MPU_REASON_ARGUMENT_NOT_SEEN);
	pr_warn_once("mpu: the probe in rm_ioctl was passed by: are the kernel's probes switched off (debugfs kprobes/enabled)?\n");
	WRITE_ONCE(mpu_probe_error, -EIO);
	WRITE_ONCE(mpu_probe_armed, false);
}

int mpu_argument_error(bool *armed)
{
	*armed = READ_ONCE(mpu_probe_armed);
	return READ_ONCE(mpu_probe_error);
}
