// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The module: comes and goes with or without the NVIDIA driver, and tells root its state.
 *
 * /sys/module/mpu/parameters/state and .../counters are for the `mpu` command; crates/mpu reads them.
 */
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/rcupdate.h>
#include "mpu.h"
#include "mpu_peer.h"

#ifndef MPU_VERSION
#error "MPU_VERSION comes from Kbuild"
#endif

/* Raised when the text of `state` or `counters` changes in a way that an older `mpu` command would misread. */
#define MPU_STATE_ABI 1

/* Guards the redirects and what is known of the driver: loading, the driver's coming and going, and reading the state. */
static DEFINE_MUTEX(mpu_lock);
static struct mpu_refusal mpu_refusal;
static bool mpu_armed;
/* Another instance has taken over: this one does nothing any more but wait to be unloaded. */
static bool mpu_retired;
/* The driver's coming and going is no news before this. */
static bool mpu_ready;

/* Places the redirects, those that `peer` (or NULL) hands over by taking them. */
static void mpu_arm(struct mpu_peer *peer)
{
	int error;

	mpu_refusal = (struct mpu_refusal){ NULL, 0 };
	error = mpu_hooks_place(&mpu_refusal, peer);
	mpu_armed = !error;
	if (error == -ENOENT && !mpu_hooks_driver_present()) {
		/* Nothing is missing but the driver. */
		mpu_refusal.symbol = NULL;
		return;
	}
	if (error)
		pr_warn("mpu: nothing is redirected: %s: error %d\n", mpu_refusal.symbol, error);
	else
		pr_info("mpu: armed\n");
}

static void mpu_disarm(void)
{
	mpu_hooks_remove();
	mpu_armed = false;
	mpu_refusal.symbol = NULL;
}

static int mpu_hold(struct mpu_peer *peer)
{
	int error;

	mutex_lock(&mpu_lock);
	error = peer->abi != MPU_PEER_ABI || mpu_retired ? -EPROTO : mpu_calls_hold();
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
	bool lost = !handed && mpu_hooks_lost(peer);

	if (handed) {
		mpu_hooks_handed(peer);
		mpu_armed = false;
		mpu_retired = true;
	}
	mpu_calls_release(handed);
	if (lost) {
		pr_warn("mpu: a redirect did not come back; nothing is redirected\n");
		mpu_disarm();
	}
	mutex_unlock(&mpu_lock);
}

const struct mpu_peer_ops mpu_peer_self = { .hold = mpu_hold, .release = mpu_release };

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
		mpu_arm(&peer);
		error = mpu_refusal.symbol ? mpu_refusal.error : 0;
		other()->release(&peer, !error);
	}
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
	else if (state == MODULE_STATE_GOING)
		mpu_disarm();
	mutex_unlock(&mpu_lock);
	return NOTIFY_OK;
}

static struct notifier_block mpu_notifier = { .notifier_call = mpu_driver_changes };

static int mpu_state_text(char *buffer, const struct kernel_param *param)
{
	const char *word, *comma = "";
	enum mpu_hook hook;
	int at;

	mutex_lock(&mpu_lock);
	word = mpu_retired ? "retired" : mpu_armed ? "armed" : mpu_refusal.symbol ? "refused" : "waiting";
	at = scnprintf(buffer, PAGE_SIZE, "version=%s\nabi=%d\nstate=%s\n", MPU_VERSION, MPU_STATE_ABI, word);
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
	at += scnprintf(buffer + at, PAGE_SIZE - at, "\ninside=%u\n", mpu_calls_inside());
	mutex_unlock(&mpu_lock);
	return at;
}

static int mpu_counters_text(char *buffer, const struct kernel_param *param)
{
	u32 counter, length;
	const char *name;
	bool passed;
	int at = 0, cpu;
	u64 sum;

	for (counter = 0; counter < MPU_COUNTERS; counter++) {
		name = mpu_rs_counter_name(counter, &length, &passed);
		if (!name)
			break;
		sum = 0;
		for_each_possible_cpu(cpu)
			sum += READ_ONCE(per_cpu_ptr(mpu_counters, cpu)[counter]);
		at += scnprintf(buffer + at, PAGE_SIZE - at, "%s.%.*s=%llu\n", passed ? "passed" : "translated",
				(int)length, name, sum);
	}
	return at;
}

static const struct kernel_param_ops mpu_state_ops = { .get = mpu_state_text };
static const struct kernel_param_ops mpu_counters_ops = { .get = mpu_counters_text };
module_param_cb(state, &mpu_state_ops, NULL, 0400);
MODULE_PARM_DESC(state, "Whether the NVIDIA driver's functions are redirected, and which (read-only)");
module_param_cb(counters, &mpu_counters_ops, NULL, 0400);
MODULE_PARM_DESC(counters, "Calls translated by control, and passed by reason (read-only)");

static int __init mpu_init(void)
{
	int error = mpu_calls_init();

	if (error)
		return error;
	error = register_module_notifier(&mpu_notifier);
	if (error) {
		mpu_calls_exit();
		return error;
	}
	mutex_lock(&mpu_lock);
	error = mpu_take_over();
	if (error == -ENXIO) {
		mpu_arm(NULL);
		error = 0;
	}
	mpu_ready = !error;
	mutex_unlock(&mpu_lock);
	if (error) {
		unregister_module_notifier(&mpu_notifier);
		mpu_calls_exit();
	}
	return error;
}

static void __exit mpu_exit(void)
{
	unregister_module_notifier(&mpu_notifier);
	mpu_disarm();
	if (mpu_retired) {
		mpu_calls_drain();
		/* And nobody is between the end of a call and its return. */
		synchronize_rcu_tasks();
	}
	mpu_calls_exit();
}

module_init(mpu_init);
module_exit(mpu_exit);
MODULE_DESCRIPTION("Puts the PIDs in the NVIDIA driver's answers into the caller's PID namespace");
MODULE_AUTHOR("The MPU authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(MPU_VERSION);
