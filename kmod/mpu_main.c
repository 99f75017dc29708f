// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The module: comes and goes with or without the NVIDIA driver, and tells root its state.
 *
 * /sys/module/mpu/parameters/state, .../counters and .../retire are for the `mpu` command; crates/mpu-engine reads and writes them.
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

/* Longest wait that `retire` accepts. */
#define MPU_RETIRE_MOST_MS 60000

/* Guards the redirects and what is known of the driver: loading, handing over, and the driver's coming and going. */
static DEFINE_MUTEX(mpu_lock);
static struct mpu_refusal mpu_refusal;
static bool mpu_armed;
/* `retire` was written, or another instance has taken over: this one only waits to be unloaded. */
static bool mpu_retired;
/* The driver's coming and going is no news before this. */
static bool mpu_ready;
/* What the counters said when the redirects were placed. */
static u64 mpu_entered_before;
static u64 mpu_translated_before;

/*
 * What `state` shows of all that. A task can hold mpu_lock for a minute, so a reader does not take it: mpu_publish() copies each change
 * here.
 */
static DEFINE_MUTEX(mpu_shown_lock);
static struct mpu_shown {
	struct mpu_refusal refusal;
	bool armed;
	bool retired;
	const char *way;
	const char *hooks[MPU_HOOKS];
	u64 entered_before;
	u64 translated_before;
} mpu_shown;

static void mpu_publish(void)
{
	enum mpu_hook hook;

	mutex_lock(&mpu_shown_lock);
	mpu_shown.entered_before = mpu_entered_before;
	mpu_shown.translated_before = mpu_translated_before;
	mpu_shown.refusal = mpu_refusal;
	mpu_shown.armed = mpu_armed;
	mpu_shown.retired = mpu_retired;
	mpu_shown.way = mpu_hooks_way();
	for (hook = 0; hook < MPU_HOOKS; hook++)
		mpu_shown.hooks[hook] = mpu_hooks_placed(hook);
	mutex_unlock(&mpu_shown_lock);
}

/* Places the redirects, or takes them over from `peer`: then calls go on there until mpu_hooks_begin(). */
static void mpu_arm(struct mpu_peer *peer)
{
	int error;

	/* No caller comes in before all functions are redirected; or, under a peer, before mpu_hooks_begin(). */
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
	if (peer && peer->count)
		return;
	mpu_publish();
	mpu_calls_open(true);
	mpu_hooks_begin();
	pr_info("mpu: placed\n");
}

/* Takes the redirects out. No call is inside or comes in: each place that calls this says why. */
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
	mpu_publish();
	mutex_unlock(&mpu_lock);
	return error;
}

static int mpu_peer_begin(struct mpu_peer *peer)
{
	mutex_lock(&mpu_lock);
	if (peer->abi != MPU_PEER_ABI || mpu_retired || mpu_is_stuck()) {
		mutex_unlock(&mpu_lock);
		return -EPROTO;
	}
	mpu_hooks_hand(peer);
	/* Until mpu_peer_end(). */
	return 0;
}

static void mpu_peer_release(void)
{
	mpu_calls_release(true);
}

static void mpu_peer_end(struct mpu_peer *peer, bool handed)
{
	if (handed || peer->lost) {
		mpu_hooks_handed(peer);
		mpu_armed = false;
		mpu_retired = handed;
		mpu_calls_open(false);
	}
	if (peer->lost) {
		mpu_refusal = (struct mpu_refusal){ "mpu_peer", -EIO };
		pr_warn("mpu: a redirect did not come back; nothing is redirected\n");
	}
	mpu_publish();
	mutex_unlock(&mpu_lock);
}

const struct mpu_peer_ops mpu_peer_self = {
	.begin = mpu_peer_begin, .hold = mpu_calls_hold, .release = mpu_peer_release, .end = mpu_peer_end,
};

/* Takes over from the other instance, which `peer` describes. */
static int mpu_take_over_from(const struct mpu_peer_ops *other, struct mpu_peer *peer)
{
	int error;

	mpu_arm(peer);
	/* Its functions may be gone, with the driver, and then they are not ours. */
	if (!mpu_armed)
		return mpu_refusal.symbol ? mpu_refusal.error : peer->count ? -ENODEV : 0;
	if (!peer->count)
		return 0;
	error = other->hold();
	if (error) {
		int lasting = mpu_hooks_give_back(peer);

		if (lasting)
			mpu_stick(lasting);
		mpu_armed = false;
		return error;
	}
	/* Callers wait: no lock that a reader of the state could hold. */
	mpu_hooks_begin();
	other->release();
	mpu_publish();
	pr_info("mpu: placed\n");
	return 0;
}

/* Takes over from the other instance. -ENXIO: there is none. */
static int mpu_take_over(void)
{
	const struct mpu_peer_ops *(*symbol)(void) = __symbol_get(mpu_peer_other);
	const struct mpu_peer_ops *other;
	struct mpu_peer peer = { .abi = MPU_PEER_ABI };
	int error;

	if (!symbol)
		return -ENXIO;
	other = symbol();
	error = other->begin(&peer);
	if (!error) {
		error = mpu_take_over_from(other, &peer);
		if (mpu_is_stuck()) {
			/* The kernel goes on calling this instance, which goes on calling the other one: both stay. */
			peer.called = true;
			mpu_retired = true;
		} else {
			mpu_hooks_alone();
		}
		other->end(&peer, !error);
	}
	if (peer.called)
		pr_crit("mpu: the kernel goes on calling the other instance, which stays until the next boot\n");
	else
		__symbol_put(mpu_peer_other);
	/* A module that does not begin is freed; one that the kernel calls must not be. */
	return mpu_is_stuck() ? 0 : error;
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
		/* No call is inside: its process would have the driver's device open, and a driver in use does not go. */
		mpu_disarm();
	mpu_publish();
	mutex_unlock(&mpu_lock);
	return NOTIFY_OK;
}

static struct notifier_block mpu_notifier = { .notifier_call = mpu_driver_changes };

static const char *mpu_state_word(void)
{
	if (mpu_is_stuck())
		return "stuck";
	if (mpu_shown.retired)
		return "retired";
	if (mpu_shown.armed)
		return mpu_calls_translated() != mpu_shown.translated_before ? "armed" : "placed";
	return mpu_shown.refusal.symbol ? "refused" : "waiting";
}

/* For mpu_state_text() alone, under mpu_shown_lock: too large for a stack. */
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

	mutex_lock(&mpu_shown_lock);
	at = scnprintf(buffer, PAGE_SIZE, "version=%s\nabi=%d\nprobes=%s\nstate=%s\n", MPU_VERSION, MPU_STATE_ABI,
		       MPU_PROBES, mpu_state_word());
	if (mpu_shown.refusal.symbol && !mpu_shown.armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "refused=%s:%d\n", mpu_shown.refusal.symbol, -mpu_shown.refusal.error);
	at += scnprintf(buffer + at, PAGE_SIZE - at, "hooks=");
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		word = mpu_shown.hooks[hook];
		if (!word)
			continue;
		at += scnprintf(buffer + at, PAGE_SIZE - at, "%s%s", comma, word);
		comma = ",";
	}
	error = mpu_argument_error(&probed);
	at += scnprintf(buffer + at, PAGE_SIZE - at, mpu_shown.armed && probed ? ",rm_ioctl\n" : "\n");
	if (mpu_shown.armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "redirect=%s\n", mpu_shown.way);
	if (mpu_shown.armed && error)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "argument=claimed:%d\n", -error);
	else if (mpu_shown.armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "argument=driver\n");
	if (mpu_shown.armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "entered=%llu\ntranslated=%llu\n",
				mpu_calls_entered() - mpu_shown.entered_before, mpu_calls_translated() - mpu_shown.translated_before);
	mpu_contexts_look(&mpu_seen_inside);
	at += scnprintf(buffer + at, PAGE_SIZE - at, "inside=%u\norphans=%u\n", mpu_seen_inside.callers,
			mpu_seen_inside.orphans);
	/* Numbers of the init namespace: a container can have this file, where its root is the host's. */
	if (!mpu_in_container())
		at += mpu_holders_text(buffer + at, PAGE_SIZE - at);
	mutex_unlock(&mpu_shown_lock);
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
	if (ms > MPU_RETIRE_MOST_MS)
		return -ERANGE;
	/* insmod takes parameters, too, and then mpu_init() would place redirects in a retired module. */
	if (!READ_ONCE(mpu_ready))
		return -EAGAIN;
	/* The kernel holds this for as long as a parameter is written, and wants it of those who read `state`. */
	kernel_param_unlock(THIS_MODULE);
	error = mpu_retire(ms);
	kernel_param_lock(THIS_MODULE);
	return error;
}

static const struct kernel_param_ops mpu_retire_ops = { .set = mpu_retire_set };
static const struct kernel_param_ops mpu_state_ops = { .get = mpu_state_text };
static const struct kernel_param_ops mpu_counters_ops = { .get = mpu_counters_text };
module_param_cb(state, &mpu_state_ops, NULL, 0400);
MODULE_PARM_DESC(state, "Whether the NVIDIA driver's functions are redirected, and which (read-only)");
module_param_cb(counters, &mpu_counters_ops, NULL, 0400);
MODULE_PARM_DESC(counters, "Calls translated by control, and passed by reason (read-only)");
module_param_cb(retire, &mpu_retire_ops, NULL, 0200);
MODULE_PARM_DESC(retire, "Stop translating once no call is inside, waiting so many milliseconds at most (write-only)");

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
	WRITE_ONCE(mpu_ready, !error);
	mpu_publish();
	mutex_unlock(&mpu_lock);
	if (error)
		unregister_module_notifier(&mpu_notifier);
	return error;
}

/* No call is inside or comes in: a call needs a reference to the module, and the kernel has given none since before this. */
static void __exit mpu_exit(void)
{
	int error;

	for (;;) {
		mutex_lock(&mpu_lock);
		/* The driver's coming is no news any more; its going is, until the redirects are out. */
		mpu_retired = true;
		error = mpu_disarm();
		mpu_publish();
		mutex_unlock(&mpu_lock);
		if (!error)
			break;
		/* What the driver still calls must not be freed, and there is no way back: `rmmod` stays here, the host goes on. */
		schedule_timeout_idle(60 * HZ);
	}
	unregister_module_notifier(&mpu_notifier);
	/* After it, no task is between the end of a call and its return. */
	synchronize_rcu_tasks();
	mpu_argument_exit();
}

module_init(mpu_init);
module_exit(mpu_exit);
MODULE_DESCRIPTION("Puts the PIDs in the NVIDIA driver's answers into the caller's PID namespace");
MODULE_AUTHOR("The MPU authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(MPU_VERSION);
/* What the headers held that it was built with: mpu_probes.sh. */
MODULE_INFO(probes, MPU_PROBES);
