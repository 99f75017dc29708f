// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The module: comes and goes with or without the NVIDIA driver, and tells root its state.
 *
 * /sys/module/mpu/parameters/state, .../counters and .../retire are for the `mpu` command; crates/mpu reads and writes them.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/rcupdate.h>
#include "mpu.h"
#include "mpu_peer.h"
#include "mpu_probes.h"

#ifndef MPU_VERSION
#error "MPU_VERSION comes from Kbuild"
#endif

/* Raised when the text of `state` or `counters` changes in a way that an older `mpu` command would misread. */
#define MPU_STATE_ABI 2

/* How long callers have to leave an instance that could not take over. */
#define MPU_LEAVE_MS 5000

/* Longest wait that `retire` can be told. */
#define MPU_RETIRE_MOST_MS 60000

/* Guards the redirects and what is known of the driver: loading, the driver's coming and going, and reading the state. */
static DEFINE_MUTEX(mpu_lock);
static struct mpu_refusal mpu_refusal;
static bool mpu_armed;
/* It was told to, or another instance has taken over: this one does nothing any more but wait to be unloaded. */
static bool mpu_retired;
/* The driver's coming and going is no news before this. */
static bool mpu_ready;
/* What the counters said when the redirects were placed. */
static u64 mpu_entered_before;
static u64 mpu_translated_before;

/* Places the redirects, or takes them over from `peer`. */
static void mpu_arm(struct mpu_peer *peer)
{
	int error;

	/* Who comes in while functions are taken over waits at the door. Otherwise nobody comes in before all of them are redirected. */
	mpu_calls_open(peer && peer->count);
	mpu_refusal = (struct mpu_refusal){ NULL, 0 };
	error = mpu_hooks_place(&mpu_refusal, peer);
	mpu_armed = !error;
	if (error == -ENOENT && !mpu_hooks_driver_present()) {
		/* Nothing is missing but the driver. */
		mpu_refusal.symbol = NULL;
		return;
	}
	if (error) {
		pr_warn("mpu: nothing is redirected: %s: error %d\n", mpu_refusal.symbol, error);
		return;
	}
	mpu_refusal.symbol = NULL;
	mpu_entered_before = mpu_calls_entered();
	mpu_translated_before = mpu_calls_translated();
	mpu_calls_open(true);
	pr_info("mpu: placed\n");
}

/* Takes the redirects out. Nobody comes in any more, and nobody is inside: the callers of this say why. */
static int mpu_disarm(void)
{
	int error = mpu_hooks_remove();

	if (error) {
		mpu_stick(error);
		return -EIO;
	}
	mpu_armed = false;
	mpu_refusal.symbol = NULL;
	return 0;
}

/* Stops translating, if those inside leave within `ms`; otherwise all is as before. */
static int mpu_retire(unsigned int ms)
{
	int error;

	mutex_lock(&mpu_lock);
	mpu_calls_open(false);
	error = mpu_calls_drain(ms);
	if (!error)
		error = mpu_disarm();
	else if (mpu_armed && !mpu_is_stuck())
		mpu_calls_open(true);
	if (!error)
		mpu_retired = true;
	mutex_unlock(&mpu_lock);
	return error;
}

static int mpu_hold(struct mpu_peer *peer)
{
	int error;

	mutex_lock(&mpu_lock);
	error = peer->abi != MPU_PEER_ABI || mpu_retired || mpu_is_stuck() ? -EPROTO : mpu_calls_hold();
	if (error) {
		mutex_unlock(&mpu_lock);
		return error;
	}
	mpu_hooks_hand(peer);
	/* Until mpu_release(). */
	return 0;
}

static void mpu_release(struct mpu_peer *peer, bool handed)
{
	if (handed || peer->lost) {
		/* Whoever was on its way in here is at the door by then, and will be told. */
		synchronize_rcu_tasks();
		mpu_hooks_handed();
		mpu_armed = false;
		mpu_retired = handed;
		mpu_calls_open(false);
	}
	if (peer->lost)
		pr_warn("mpu: a redirect did not come back; nothing is redirected\n");
	mpu_calls_release(handed || peer->lost);
	mutex_unlock(&mpu_lock);
}

const struct mpu_peer_ops mpu_peer_self = { .hold = mpu_hold, .release = mpu_release };

/*
 * After taking over failed. The kernel frees an instance that does not begin without a look at who is inside, or at what calls into it:
 * with somebody inside, or redirects that the kernel did not take out, this one begins all the same, refused and retired, until it is
 * unloaded; and mpu_exit() waits until they are out. False: there is neither.
 */
static bool mpu_stays(void)
{
	mpu_calls_open(false);
	mpu_argument_remove();
	mpu_retired = mpu_calls_drain(MPU_LEAVE_MS) || mpu_is_stuck();
	/* Whoever gave its reference back can still be on its way out of here. */
	if (!mpu_retired)
		synchronize_rcu_tasks();
	return mpu_retired;
}

/* Takes over from the other instance. -ENXIO: there is none. */
static int mpu_take_over(void)
{
	const struct mpu_peer_ops *(*other)(void) = __symbol_get(mpu_peer_other);
	struct mpu_peer peer = { .abi = MPU_PEER_ABI };
	int error;

	if (!other)
		return -ENXIO;
	error = other()->hold(&peer);
	if (!error) {
		/* Before all functions are ours some of them are the other's. */
		mpu_calls_keep();
		mpu_arm(&peer);
		/* Its functions may be gone, with the driver, and then they are not ours. */
		if (!mpu_armed)
			error = mpu_refusal.symbol ? mpu_refusal.error : peer.count ? -ENODEV : 0;
		/*
		 * Whoever came in meanwhile must not go on here without the functions. Those on their way in are at the door first: by
		 * where they came from they find out which function it was, and that is about to change.
		 */
		if (error) {
			synchronize_rcu_tasks();
			mpu_hooks_lead_elsewhere();
		}
		mpu_calls_release(error);
		other()->release(&peer, !error);
		if (error && mpu_stays())
			error = 0;
	}
	if (peer.called)
		pr_crit("mpu: the kernel goes on calling the other instance, which stays until the next boot\n");
	else
		__symbol_put(mpu_peer_other);
	return error;
}

static int mpu_driver_changes(struct notifier_block *block, unsigned long state, void *data)
{
	const struct module *module = data;

	if (strcmp(module->name, "nvidia"))
		return NOTIFY_DONE;
	mutex_lock(&mpu_lock);
	if (state == MODULE_STATE_COMING && mpu_ready && !mpu_retired && !mpu_armed)
		mpu_arm(NULL);
	else if (state == MODULE_STATE_GOING && mpu_hooks_way())
		/* Whoever is inside has the driver's device open, and a driver in use does not go. */
		mpu_disarm();
	mutex_unlock(&mpu_lock);
	return NOTIFY_OK;
}

static struct notifier_block mpu_notifier = { .notifier_call = mpu_driver_changes };

static const char *mpu_state_word(void)
{
	if (mpu_is_stuck())
		return "stuck";
	if (mpu_retired)
		return "retired";
	if (mpu_armed)
		return mpu_calls_translated() != mpu_translated_before ? "armed" : "placed";
	return mpu_refusal.symbol ? "refused" : "waiting";
}

/* For mpu_state_text() alone, under mpu_lock: too large for a stack. */
static struct mpu_inside mpu_seen_inside;

static int mpu_holders_text(char *buffer, int size)
{
	const struct mpu_holder *holder;
	char control[12];
	int at = 0;
	u32 i;

	for (i = 0; i < mpu_seen_inside.holders; i++) {
		holder = &mpu_seen_inside.holder[i];
		snprintf(control, sizeof(control), holder->control ? "0x%08x" : "-", holder->cmd);
		at += scnprintf(buffer + at, size - at, "holder=%d %d %s %u\n", holder->process, holder->thread, control,
				holder->ms);
	}
	return at;
}

static int mpu_state_text(char *buffer, const struct kernel_param *param)
{
	const char *word, *comma = "";
	enum mpu_hook hook;
	bool probed;
	int at, error;

	mutex_lock(&mpu_lock);
	at = scnprintf(buffer, PAGE_SIZE, "version=%s\nabi=%d\nprobes=%s\nstate=%s\n", MPU_VERSION, MPU_STATE_ABI,
		       MPU_PROBES, mpu_state_word());
	if (mpu_refusal.symbol && !mpu_armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "refused=%s:%d\n", mpu_refusal.symbol, -mpu_refusal.error);
	at += scnprintf(buffer + at, PAGE_SIZE - at, "hooks=");
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		word = mpu_hooks_placed(hook);
		if (!word)
			continue;
		at += scnprintf(buffer + at, PAGE_SIZE - at, "%s%s", comma, word);
		comma = ",";
	}
	error = mpu_argument_error(&probed);
	at += scnprintf(buffer + at, PAGE_SIZE - at, mpu_armed && probed ? ",rm_ioctl\n" : "\n");
	if (mpu_armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "redirect=%s\n", mpu_hooks_way());
	if (mpu_armed && error)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "argument=claimed:%d\n", -error);
	else if (mpu_armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "argument=driver\n");
	if (mpu_armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "entered=%llu\ntranslated=%llu\n",
				mpu_calls_entered() - mpu_entered_before, mpu_calls_translated() - mpu_translated_before);
	mpu_contexts_look(&mpu_seen_inside);
	at += scnprintf(buffer + at, PAGE_SIZE - at, "inside=%u\norphans=%u\n", mpu_seen_inside.callers,
			mpu_seen_inside.orphans);
	/* Numbers of the init namespace: a container can have this file, where its root is the host's. */
	if (!mpu_in_container())
		at += mpu_holders_text(buffer + at, PAGE_SIZE - at);
	mutex_unlock(&mpu_lock);
	return at;
}

static int mpu_counters_text(char *buffer, const struct kernel_param *param)
{
	u32 counter, length;
	const char *name;
	bool passed;
	int at = 0;

	for (counter = 0; counter < MPU_COUNTERS; counter++) {
		name = mpu_rs_counter_name(counter, &length, &passed);
		if (!name)
			break;
		at += scnprintf(buffer + at, PAGE_SIZE - at, "%s.%.*s=%llu\n", passed ? "passed" : "translated",
				(int)length, name, mpu_counter(counter));
	}
	return at;
}

static int mpu_retire_set(const char *text, const struct kernel_param *param)
{
	unsigned int ms;
	int error = kstrtouint(text, 10, &ms);

	if (error)
		return error;
	return ms > MPU_RETIRE_MOST_MS ? -ERANGE : mpu_retire(ms);
}

static const struct kernel_param_ops mpu_retire_ops = { .set = mpu_retire_set };
static const struct kernel_param_ops mpu_state_ops = { .get = mpu_state_text };
static const struct kernel_param_ops mpu_counters_ops = { .get = mpu_counters_text };
module_param_cb(state, &mpu_state_ops, NULL, 0400);
MODULE_PARM_DESC(state, "Whether the NVIDIA driver's functions are redirected, and which (read-only)");
module_param_cb(counters, &mpu_counters_ops, NULL, 0400);
MODULE_PARM_DESC(counters, "Calls translated by control, and passed by reason (read-only)");
module_param_cb(retire, &mpu_retire_ops, NULL, 0200);
MODULE_PARM_DESC(retire, "Stop translating once nobody is inside, waiting so many milliseconds at most (write-only)");

static int __init mpu_init(void)
{
	int error = mpu_hooks_init();

	if (error)
		return error;
	mpu_contexts_init();
	error = register_module_notifier(&mpu_notifier);
	if (error)
		return error;
	mutex_lock(&mpu_lock);
	error = mpu_take_over();
	if (error == -ENXIO) {
		mpu_arm(NULL);
		error = 0;
	}
	mpu_ready = !error;
	mutex_unlock(&mpu_lock);
	if (error)
		unregister_module_notifier(&mpu_notifier);
	return error;
}

/* Nobody is inside, and nobody comes in: that takes a reference, which the kernel has let nobody have since before it came here. */
static void __exit mpu_exit(void)
{
	int error;

	for (;;) {
		mutex_lock(&mpu_lock);
		/* The driver's coming is no news any more; its going is, until the redirects are out. */
		mpu_retired = true;
		error = mpu_disarm();
		mutex_unlock(&mpu_lock);
		if (!error)
			break;
		/* What the driver still calls must not be freed, and there is no way back: `rmmod` stays here, the host goes on. */
		schedule_timeout_idle(60 * HZ);
	}
	unregister_module_notifier(&mpu_notifier);
	/* And nobody is between the end of a call and its return. */
	synchronize_rcu_tasks();
}

module_init(mpu_init);
module_exit(mpu_exit);
MODULE_DESCRIPTION("Puts the PIDs in the NVIDIA driver's answers into the caller's PID namespace");
MODULE_AUTHOR("The MPU authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(MPU_VERSION);
/* What the headers held that it was built with: mpu_probes.sh. */
MODULE_INFO(probes, MPU_PROBES);
