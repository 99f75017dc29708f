// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Loading, unloading and hand-over of the module, and its parameters. The NVIDIA driver can be loaded before or after it.
 *
 * /sys/module/mpu/parameters/state, .../counters and .../retire are for the `mpu` command (crates/mpu-engine).
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

/* To be raised when `state` or `counters` changes in a way that an older `mpu` command would misread. */
#define MPU_STATE_ABI 2

/* Longest wait that `retire` accepts. */
#define MPU_RETIRE_MAX_MS 60000

/* Protects the redirects and the variables below: during loading, hand-over, and loading and unloading of the driver. */
static DEFINE_MUTEX(mpu_lock);
static struct mpu_refusal mpu_refusal;
static bool mpu_armed;
/* After a write to `retire`, or a hand-over: this instance only waits to be unloaded. */
static bool mpu_retired;
/* mpu_init() succeeded. Before that, mpu_module_event() ignores a driver that is being loaded. */
static bool mpu_ready;
/* The counters when the redirects were placed. */
static u64 mpu_entered_before;
static u64 mpu_translated_before;

/*
 * A copy of these variables for readers of `state`. They cannot take mpu_lock, which a task can hold for a minute. mpu_publish() updates
 * the copy after each change.
 */
static DEFINE_MUTEX(mpu_published_lock);
static struct mpu_published {
	struct mpu_refusal refusal;
	bool armed;
	bool retired;
	const char *way;
	const char *hooks[MPU_HOOKS];
	u64 entered_before;
	u64 translated_before;
} mpu_published;

static void mpu_publish(void)
{
	enum mpu_hook hook;

	mutex_lock(&mpu_published_lock);
	mpu_published.entered_before = mpu_entered_before;
	mpu_published.translated_before = mpu_translated_before;
	mpu_published.refusal = mpu_refusal;
	mpu_published.armed = mpu_armed;
	mpu_published.retired = mpu_retired;
	mpu_published.way = mpu_hooks_method();
	for (hook = 0; hook < MPU_HOOKS; hook++)
		mpu_published.hooks[hook] = mpu_hooks_symbol(hook);
	mutex_unlock(&mpu_published_lock);
}

/* Places the redirects, or takes them over from `peer`. Then calls continue there until mpu_hooks_activate(). */
static void mpu_arm(struct mpu_peer *peer)
{
	int error;

	/* Without a peer, accept calls only after all functions are redirected. With a peer, none arrives before mpu_hooks_activate(). */
	mpu_calls_open(peer && peer->count);
	mpu_refusal = (struct mpu_refusal){ NULL, 0 };
	error = mpu_hooks_place(&mpu_refusal, peer);
	mpu_armed = !error;
	if (error == -ENOENT && !mpu_hooks_driver_present()) {
		/* The driver is not loaded: that is no refusal. */
		mpu_refusal.symbol = NULL;
		return;
	}
	if (error) {
		if (peer && peer->count && !peer->redirects_lost)
			pr_warn("mpu: not taken over: %s: error %d; the other instance continues\n", mpu_refusal.symbol, error);
		else
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
	mpu_hooks_activate();
	pr_info("mpu: placed\n");
}

/* Removes the redirects. The caller ensures that no call is inside, and that none can begin. */
static int mpu_disarm(void)
{
	int error = mpu_hooks_remove();

	if (error) {
		mpu_set_stuck(error);
		return -EIO;
	}
	mpu_armed = false;
	mpu_refusal.symbol = NULL;
	return 0;
}

/* Stops translating, if all callers leave within `ms`. Otherwise nothing changes. */
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
	mpu_hooks_describe(peer);
	/* mpu_peer_end() releases the lock. */
	return 0;
}

static void mpu_peer_release(void)
{
	mpu_calls_release(true);
}

static void mpu_peer_end(struct mpu_peer *peer, bool handed_over)
{
	if (handed_over || peer->redirects_lost) {
		mpu_hooks_handed_over(peer);
		mpu_armed = false;
		mpu_retired = handed_over;
		mpu_calls_open(false);
	}
	if (peer->redirects_lost) {
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
	/* The driver may be gone, and the other instance's redirects with it. */
	if (!mpu_armed)
		return mpu_refusal.symbol ? mpu_refusal.error : peer->count ? -ENODEV : 0;
	if (!peer->count)
		return 0;
	error = other->hold();
	if (error) {
		int give_back_error = mpu_hooks_give_back(peer);

		if (give_back_error)
			mpu_set_stuck(give_back_error);
		mpu_armed = false;
		return error;
	}
	/* Callers are waiting, so mpu_publish(), whose lock a reader of `state` can hold, comes after release(). */
	mpu_hooks_activate();
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
			/* The kernel still calls this instance, which still calls the other one: both must stay. */
			peer.must_stay = true;
			mpu_retired = true;
		} else {
			mpu_hooks_detach_peer();
		}
		other->end(&peer, !error);
	}
	if (peer.must_stay)
		pr_crit("mpu: the kernel goes on calling the other instance, which stays until the next boot\n");
	else
		__symbol_put(mpu_peer_other);
	/* If mpu_init() fails, the kernel frees this module. That must not happen while the kernel still calls it. */
	return mpu_is_stuck() ? 0 : error;
}

static int mpu_module_event(struct notifier_block *block, unsigned long state, void *data)
{
	const struct module *module = data;

	if (strcmp(module->name, "nvidia"))
		return NOTIFY_DONE;
	mutex_lock(&mpu_lock);
	if (state == MODULE_STATE_COMING && mpu_ready && !mpu_retired && !mpu_armed)
		mpu_arm(NULL);
	else if (state == MODULE_STATE_GOING && mpu_hooks_method())
		/* No call is inside, because a caller has a device of the driver open, and the kernel does not unload a module in use. */
		mpu_disarm();
	mpu_publish();
	mutex_unlock(&mpu_lock);
	return NOTIFY_OK;
}

static struct notifier_block mpu_notifier = { .notifier_call = mpu_module_event };

static const char *mpu_state_name(void)
{
	if (mpu_is_stuck())
		return "stuck";
	if (mpu_published.retired)
		return "retired";
	if (mpu_published.armed)
		return mpu_calls_translated() != mpu_published.translated_before ? "armed" : "placed";
	return mpu_published.refusal.symbol ? "refused" : "waiting";
}

/* For mpu_state_get() alone, under mpu_published_lock. Static, because it is too large for the stack. */
static struct mpu_caller_stats mpu_state_callers;

static int mpu_holders_get(char *buffer, int size)
{
	const struct mpu_holder *holder;
	char control[12];
	int at = 0;
	u32 i;

	for (i = 0; i < mpu_state_callers.holders; i++) {
		holder = &mpu_state_callers.holder[i];
		snprintf(control, sizeof(control), holder->control ? "0x%08x" : "-", holder->cmd);
		at += scnprintf(buffer + at, size - at, "holder=%d %d %s %u\n", holder->process, holder->thread, control,
				holder->ms);
	}
	return at;
}

static int mpu_state_get(char *buffer, const struct kernel_param *param)
{
	const char *word, *comma = "";
	enum mpu_hook hook;
	bool probe_armed;
	int at, error;

	mutex_lock(&mpu_published_lock);
	at = scnprintf(buffer, PAGE_SIZE, "version=%s\nabi=%d\nprobes=%s\nstate=%s\n", MPU_VERSION, MPU_STATE_ABI,
		       MPU_PROBES, mpu_state_name());
	if (mpu_published.refusal.symbol && !mpu_published.armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "refused=%s:%d\n", mpu_published.refusal.symbol, -mpu_published.refusal.error);
	at += scnprintf(buffer + at, PAGE_SIZE - at, "hooks=");
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		word = mpu_published.hooks[hook];
		if (!word)
			continue;
		at += scnprintf(buffer + at, PAGE_SIZE - at, "%s%s", comma, word);
		comma = ",";
	}
	error = mpu_argument_status(&probe_armed);
	at += scnprintf(buffer + at, PAGE_SIZE - at, mpu_published.armed && probe_armed ? ",rm_ioctl\n" : "\n");
	if (mpu_published.armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "redirect=%s\n", mpu_published.way);
	if (mpu_published.armed && error)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "argument=claimed:%d\n", -error);
	else if (mpu_published.armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "argument=driver\n");
	if (mpu_published.armed)
		at += scnprintf(buffer + at, PAGE_SIZE - at, "entered=%llu\ntranslated=%llu\n",
				mpu_calls_entered() - mpu_published.entered_before,
				mpu_calls_translated() - mpu_published.translated_before);
	mpu_contexts_scan(&mpu_state_callers);
	at += scnprintf(buffer + at, PAGE_SIZE - at, "inside=%u\norphans=%u\n", mpu_state_callers.callers,
			mpu_state_callers.orphans);
	/* Hide PIDs of the init namespace from a container, whose root can read this file if it is the host's root. */
	if (!mpu_in_container())
		at += mpu_holders_get(buffer + at, PAGE_SIZE - at);
	mutex_unlock(&mpu_published_lock);
	return at;
}

static int mpu_counters_get(char *buffer, const struct kernel_param *param)
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
	if (ms > MPU_RETIRE_MAX_MS)
		return -ERANGE;
	/* A parameter of insmod is set before mpu_init(), which would then place redirects in a retired module. */
	if (!READ_ONCE(mpu_ready))
		return -EAGAIN;
	/* The kernel holds this lock during the write. Release it, because readers of `state` need it. */
	kernel_param_unlock(THIS_MODULE);
	error = mpu_retire(ms);
	kernel_param_lock(THIS_MODULE);
	return error;
}

static const struct kernel_param_ops mpu_retire_ops = { .set = mpu_retire_set };
static const struct kernel_param_ops mpu_state_ops = { .get = mpu_state_get };
static const struct kernel_param_ops mpu_counters_ops = { .get = mpu_counters_get };
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

/* No call is inside or can begin: each call needs a reference to the module, and try_module_get() fails before the kernel calls this. */
static void __exit mpu_exit(void)
{
	int error;

	for (;;) {
		mutex_lock(&mpu_lock);
		/* From now on mpu_module_event() ignores a driver that is loaded, but not one that is unloaded while redirects remain. */
		mpu_retired = true;
		error = mpu_disarm();
		mpu_publish();
		mutex_unlock(&mpu_lock);
		if (!error)
			break;
		/* The driver still calls this module, so it must not be freed, and this function cannot fail. So `rmmod` never returns. */
		schedule_timeout_idle(60 * HZ);
	}
	unregister_module_notifier(&mpu_notifier);
	/* Waits for tasks between the last module_put() and the return from this module. */
	synchronize_rcu_tasks();
	mpu_argument_exit();
}

module_init(mpu_init);
module_exit(mpu_exit);
MODULE_DESCRIPTION("Puts the PIDs in the NVIDIA driver's answers into the caller's PID namespace");
MODULE_AUTHOR("The MPU authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(MPU_VERSION);
/* The findings of mpu_probes.sh at build time. */
MODULE_INFO(probes, MPU_PROBES);
