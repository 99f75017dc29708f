// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The driver's own copy of an ioctl's argument: a probe at rm_ioctl, which receives it in kernel memory on every release
 * (`rm_ioctl(nvidia_stack_t *, nv_state_t *, nv_file_private_t *, NvU32 Command, void *pData, NvU32 dataSize)`: nv.h of 515.43.04
 * to 595.45.04, and the interface files of 390.157 to 555.58.02).
 *
 * What the caller's memory says can change between any two looks at it; this copy cannot. It decides which control a call is and
 * where its parameters stand. Owns when the probe is there: a host pays nothing for it before a container first calls.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/kprobes.h>
#include <linux/mutex.h>
#include <linux/ptrace.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include "mpu.h"

/* Places of rm_ioctl's parameters. */
enum { MPU_RM_COMMAND = 3, MPU_RM_DATA = 4, MPU_RM_SIZE = 5 };

/* Guards the probe's coming and going, not its use. */
static DEFINE_MUTEX(mpu_probe_lock);
static struct kprobe mpu_probe;
static bool mpu_probe_registered;
static bool mpu_probe_armed;
/* Why there is none. */
static int mpu_probe_error;

void mpu_request_is(struct mpu_context *context, unsigned int request)
{
	switch (request) {
	case NV_ESC_RM_ALLOC:
	case NV_ESC_RM_ALLOC_MEMORY:
	case NV_ESC_RM_VID_HEAP_CONTROL:
		context->allocates = true;
	}
}
NOKPROBE_SYMBOL(mpu_request_is);

void mpu_argument_says(struct mpu_context *context, const struct mpu_rm_control *control)
{
	u32 counter;

	context->argument = (struct mpu_argument){
		.params = control->params, .cmd = control->cmd, .params_size = control->params_size,
	};
	context->argued = true;
	if (!mpu_rs_may_claim(control->cmd))
		return;
	mpu_context_translates(context, mpu_rs_begin(context->call, &context->argument, &counter));
	mpu_count(counter);
}
NOKPROBE_SYMBOL(mpu_argument_says);

void mpu_event_says(struct mpu_context *context, const struct mpu_rm_event *event)
{
	context->argument.params = event->data;
	mpu_context_translates(context, MPU_EVENT);
}
NOKPROBE_SYMBOL(mpu_event_says);

static int mpu_at_rm_ioctl(struct kprobe *probe, struct pt_regs *regs)
{
	struct mpu_context *context;
	struct mpu_rm_control control;
	struct mpu_rm_event event;
	unsigned int request;
	const void *data;
	u32 size;

	if (!mpu_in_container())
		return 0;
	context = mpu_context_of_current();
	if (!context || context->argued)
		return 0;
	request = mpu_nth(regs, MPU_RM_COMMAND);
	data = (const void *)mpu_nth(regs, MPU_RM_DATA);
	size = mpu_nth(regs, MPU_RM_SIZE);
	switch (request) {
	case NV_ESC_RM_CONTROL:
		if (size == sizeof(control) && !mpu_peek(&control, data, sizeof(control)))
			mpu_argument_says(context, &control);
		break;
	case NV_ESC_RM_GET_EVENT_DATA:
		if (size == sizeof(event) && !mpu_peek(&event, data, sizeof(event)))
			mpu_event_says(context, &event);
		break;
	default:
		mpu_request_is(context, request);
	}
	return 0;
}
NOKPROBE_SYMBOL(mpu_at_rm_ioctl);

void mpu_argument_place(unsigned long rm_ioctl, int error)
{
	mutex_lock(&mpu_probe_lock);
	mpu_probe = (struct kprobe){
		.addr = (kprobe_opcode_t *)rm_ioctl, .pre_handler = mpu_at_rm_ioctl, .flags = KPROBE_FLAG_DISABLED,
	};
	mpu_probe_error = error ? error : register_kprobe(&mpu_probe);
	mpu_probe_registered = !mpu_probe_error;
	if (mpu_probe_error)
		pr_warn("mpu: no probe in rm_ioctl (error %d): calls are judged by the caller's own memory\n", mpu_probe_error);
	mutex_unlock(&mpu_probe_lock);
}

/* Whether something of the kernel's stands where the probe was: the jump that it makes of a breakpoint, or the breakpoint (x86-64). */
static bool mpu_probe_stands(void)
{
	u8 code;

	return !mpu_peek(&code, mpu_probe.addr, sizeof(code)) && (code == 0xe9 || code == 0xcc);
}

/*
 * Disables the probe, and waits until the kernel has taken its jump back, which it does some jiffies later. If a probe that nobody has any
 * more still waits for that while the driver goes, the kernel loses it from its list of work and keeps it for ever: the next one at that
 * address makes it warn and is refused (5.10.262, kill_optimized_kprobe() and reuse_unused_kprobe()). No wait where another probe stands
 * there as well, as the other instance's does after a hand-over, nor once the driver is gone; and none without limit.
 */
static void mpu_probe_settles(void)
{
	unsigned long end = jiffies + HZ;

	if (!IS_ENABLED(CONFIG_OPTPROBES) || disable_kprobe(&mpu_probe) || mpu_probe.list.next != mpu_probe.list.prev)
		return;
	while (!kprobe_gone(&mpu_probe) && mpu_probe_stands() && time_before(jiffies, end))
		msleep(1);
}

void mpu_argument_remove(void)
{
	mutex_lock(&mpu_probe_lock);
	WRITE_ONCE(mpu_probe_armed, false);
	if (mpu_probe_registered && !kprobe_disabled(&mpu_probe))
		mpu_probe_settles();
	if (mpu_probe_registered)
		unregister_kprobe(&mpu_probe);
	mpu_probe_registered = false;
	mutex_unlock(&mpu_probe_lock);
}

static noinline bool mpu_argument_arm(void)
{
	mutex_lock(&mpu_probe_lock);
	if (mpu_probe_registered && !mpu_probe_armed && !mpu_probe_error) {
		WRITE_ONCE(mpu_probe_error, enable_kprobe(&mpu_probe));
		WRITE_ONCE(mpu_probe_armed, !mpu_probe_error);
		if (mpu_probe_error)
			pr_warn("mpu: the probe in rm_ioctl cannot be armed: error %d\n", mpu_probe_error);
	}
	mutex_unlock(&mpu_probe_lock);
	return READ_ONCE(mpu_probe_armed);
}

bool mpu_argument_is_seen(void)
{
	if (likely(READ_ONCE(mpu_probe_armed)))
		return true;
	return !READ_ONCE(mpu_probe_error) && mpu_argument_arm();
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
