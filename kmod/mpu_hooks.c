// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Places and removes the redirects of the driver's functions, by ftrace. No other function in the system gets slower.
 *
 * This file lists the driver's functions and chooses the method (mpu_methods.h). mpu_site_x86.h and mpu_site_arm64.h describe what the
 * kernel patches at a function's entry.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/rcupdate.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include "mpu.h"
#include "mpu_peer.h"
#include "mpu_probes.h"
#include "mpu_methods.h"

#if defined(MPU_DIRECT_NONE) && defined(MPU_HANDLER_NONE)
#error "MPU needs a kernel with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, or one whose ftrace handlers can change where a function goes on"
#endif
#ifndef CONFIG_KPROBES
#error "MPU needs a kernel with CONFIG_KPROBES: it finds the driver's functions by it"
#endif

unsigned long mpu_original[MPU_HOOKS];
unsigned long mpu_peer_entry;

static struct mpu_redirect mpu_redirects[MPU_HOOKS] = {
	[MPU_GET_PID_INFO] = { { "os_get_pid_info" }, false },
	[MPU_FIND_NS_PID] = { { "os_find_ns_pid" }, false },
	[MPU_IS_INIT_NS] = { { "os_is_init_ns" }, false },
	[MPU_FROM_USER] = { { "os_memcpy_from_user" }, true },
	[MPU_TO_USER] = { { "os_memcpy_to_user" }, true },
	/* Up to 535 the 32-bit entry is a function of its own; from 545 both are nvidia_unlocked_ioctl. */
	[MPU_COMPAT] = { { "nvidia_frontend_compat_ioctl" }, false },
	/* 390 to 450 have an nvidia_unlocked_ioctl, too, which nothing calls: the frontend comes first. */
	[MPU_IOCTL] = { { "nvidia_frontend_unlocked_ioctl", "nvidia_unlocked_ioctl" }, true },
};

/* Whether the functions are redirected. */
static bool mpu_placed;

/* A refusal names this sysctl if ftrace is switched off. */
static const char mpu_ftrace_switch[] = "kernel.ftrace_enabled";

/*
 * Disabled kprobes that look up functions: the kernel exports no other look-up. They are unregistered together, because each unregistering
 * waits for the whole system. Under mpu_lock.
 */
#define MPU_MAX_SEARCHES (MPU_HOOKS + 1)

static struct {
	struct kprobe probe[MPU_MAX_SEARCHES];
	char name[MPU_MAX_SEARCHES][64];
	struct kprobe *registered[MPU_MAX_SEARCHES];
	int count;
} mpu_search;

/*
 * Finds a function of the driver. At most MPU_MAX_SEARCHES functions before mpu_search_end().
 *
 * The probe is behind the instruction that ftrace patches. A probe on that instruction has no instruction slot
 * (arch_prepare_kprobe_ftrace). If a processor then hits a stale breakpoint of ftrace, it jumps to address 0 (setup_singlestep; both in
 * arch/x86/kernel/kprobes of 5.10.262).
 */
static int mpu_find_function(const char *symbol, unsigned long *address)
{
	struct kprobe *probe = &mpu_search.probe[mpu_search.count];
	char *name = mpu_search.name[mpu_search.count];
	unsigned int offset;
	int error = -ENOENT;

	snprintf(name, sizeof(mpu_search.name[0]), "nvidia:%s", symbol);
	for (offset = MPU_FIND_FIRST; offset <= MPU_FIND_LAST; offset += MPU_FIND_STEP) {
		*probe = (struct kprobe){ .symbol_name = name, .offset = offset, .flags = KPROBE_FLAG_DISABLED };
		error = register_kprobe(probe);
		if (!error) {
			*address = (unsigned long)probe->addr - offset;
			mpu_search.registered[mpu_search.count++] = probe;
			return 0;
		}
		/* -EINVAL, -EILSEQ: no instruction begins at this offset. */
		if (error != -EINVAL && error != -EILSEQ)
			break;
	}
	return error;
}

static void mpu_search_end(void)
{
	unregister_kprobes(mpu_search.registered, mpu_search.count);
	mpu_search.count = 0;
}

/* The methods that this kernel has, best first; and the current or last one. */
static const struct mpu_method *const mpu_methods[] = {
#ifndef MPU_DIRECT_NONE
	&mpu_direct,
#endif
#ifndef MPU_HANDLER_NONE
	&mpu_ipmodify,
#endif
};
static const struct mpu_method *mpu_method;

#ifndef MPU_REDIRECT
#define MPU_REDIRECT "auto"
#endif
static char *mpu_redirect_parameter = MPU_REDIRECT;
module_param_named(redirect, mpu_redirect_parameter, charp, 0400);
MODULE_PARM_DESC(redirect, "How the driver's functions are redirected: direct, ipmodify, or auto for the first that can be had");

static bool mpu_method_is_allowed(const struct mpu_method *method)
{
	return !strcmp(mpu_redirect_parameter, "auto") || !strcmp(mpu_redirect_parameter, method->name);
}

int mpu_hooks_init(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(mpu_methods); i++) {
		if (mpu_method_is_allowed(mpu_methods[i]))
			return 0;
	}
	pr_err("mpu: redirect=%s: this kernel has no such way to redirect\n", mpu_redirect_parameter);
	return -EOPNOTSUPP;
}

/* A refusal names this if the kernel refused the functions together, and does not report which one was the cause. */
static const char mpu_all_functions[] = "functions";

/* Another method would fail, too: there is no memory, or ftrace has switched itself off until the next boot (ftrace_kill). */
static bool mpu_is_final_error(int error)
{
	return error == -ENOMEM || error == -ENODEV;
}

/* Redirects the functions by the first method that works. The refusal is that of the last method tried. */
static int mpu_attach(struct mpu_refusal *refusal)
{
	unsigned int i;
	int error;

	*refusal = (struct mpu_refusal){ NULL, -EOPNOTSUPP };
	for (i = 0; i < ARRAY_SIZE(mpu_methods); i++) {
		if (!mpu_method_is_allowed(mpu_methods[i]))
			continue;
		*refusal = (struct mpu_refusal){ NULL, 0 };
		error = mpu_methods[i]->attach(mpu_redirects, refusal);
		if (!error) {
			mpu_method = mpu_methods[i];
			return 0;
		}
		refusal->error = error;
		if (!refusal->symbol)
			refusal->symbol = mpu_all_functions;
		pr_info("mpu: not by %s: %s: error %d\n", mpu_methods[i]->name, refusal->symbol, error);
		if (mpu_is_final_error(error))
			break;
	}
	return refusal->error;
}

/* Points the functions at this instance, by the other instance's method: a function can have only one at a time. */
static int mpu_take_redirects(struct mpu_peer *peer)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(mpu_methods); i++) {
		if (!!mpu_methods[i]->enter != !!peer->enter)
			continue;
		if (mpu_method_is_allowed(mpu_methods[i])) {
			mpu_method = mpu_methods[i];
			WRITE_ONCE(mpu_peer_entry, peer->enter ? peer->enter : (unsigned long)peer->handler);
			/* Every processor sees it before a call arrives here. */
			mpu_wait_for_handlers();
			return mpu_method->take(mpu_redirects, peer);
		}
		pr_warn("mpu: the other instance redirects by %s, and redirect=%s was asked for: unload the other one first\n",
			mpu_methods[i]->name, mpu_redirect_parameter);
	}
	return -EPROTO;
}

/* The address for the probe of mpu_argument.c, or why there is none. */
static unsigned long mpu_rm_ioctl;
static int mpu_rm_ioctl_error;

/*
 * The probe is behind the ENDBR64 with which NVIDIA builds rm_ioctl. No kernel optimises a probe on an ENDBR64 into a jump
 * (twobyte_is_boostable, arch/x86/kernel/kprobes/core.c), and a breakpoint costs some hundred instructions more.
 */
static void mpu_find_rm_ioctl(void)
{
	mpu_rm_ioctl_error = mpu_find_function("rm_ioctl", &mpu_rm_ioctl);
	if (mpu_rm_ioctl_error)
		return;
	mpu_rm_ioctl = mpu_behind_landing_pad(mpu_rm_ioctl);
	if (!mpu_rm_ioctl)
		mpu_rm_ioctl_error = -EFAULT;
}

/* Finds the functions of this release, required and optional ones. The caller calls mpu_search_end() afterwards. */
static int mpu_find_all(struct mpu_refusal *refusal)
{
	struct mpu_redirect *redirect;
	enum mpu_hook hook;
	unsigned int i;
	int error;

	for (hook = 0; hook < MPU_HOOKS; hook++) {
		redirect = &mpu_redirects[hook];
		redirect->symbol = NULL;
		mpu_original[hook] = 0;
		error = -ENOENT;
		for (i = 0; i < ARRAY_SIZE(redirect->candidates) && redirect->candidates[i] && error == -ENOENT; i++) {
			refusal->symbol = redirect->candidates[i];
			error = mpu_find_function(redirect->candidates[i], &redirect->ip);
		}
		if (error == -ENOENT && !redirect->required)
			continue;
		if (!error) {
			redirect->resume = mpu_resume_address(redirect->ip);
			error = redirect->resume ? 0 : -EOPNOTSUPP;
		}
		if (error) {
			refusal->error = error;
			return error;
		}
		redirect->symbol = refusal->symbol;
	}
	return 0;
}

/* Whether the other instance has redirected the same functions that this one would. */
static bool mpu_peer_matches(const struct mpu_peer *peer)
{
	enum mpu_hook hook;
	u32 i, matches = 0;

	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (!mpu_redirects[hook].symbol)
			continue;
		for (i = 0; i < peer->count && peer->ip[i] != mpu_redirects[hook].ip; i++)
			;
		if (i == peer->count)
			return false;
		matches++;
	}
	return matches == peer->count;
}

int mpu_hooks_place(struct mpu_refusal *refusal, struct mpu_peer *peer)
{
	enum mpu_hook hook;
	int error;

	/* mpu_entry.S and mpu_entry_arm64.S define the same numbers. */
	BUILD_BUG_ON(MPU_FIND_NS_PID != 0 || MPU_FROM_USER != 1 || MPU_TO_USER != 2 || MPU_IOCTL != 3 || MPU_IS_INIT_NS != 4 ||
		     MPU_GET_PID_INFO != 5 || MPU_COMPAT != 6 || MPU_HOOKS != 7);
	BUILD_BUG_ON(MPU_HOOKS > MPU_PEER_MAX_HOOKS);
	error = mpu_find_all(refusal);
	mpu_find_rm_ioctl();
	mpu_search_end();
	if (!error && peer && peer->count) {
		refusal->symbol = "mpu_peer";
		error = refusal->error = mpu_peer_matches(peer) ? mpu_take_redirects(peer) : -EPROTO;
	} else if (!error) {
		error = mpu_attach(refusal);
	}
	if (error)
		return error;
	mpu_placed = true;
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (!mpu_redirects[hook].symbol || mpu_is_patched(&mpu_redirects[hook]))
			continue;
		*refusal = (struct mpu_refusal){ mpu_ftrace_switch, -EBUSY };
		/* This also removes redirects taken from the other instance. If the kernel refuses, they stay ours. */
		error = mpu_hooks_remove();
		if (error)
			mpu_set_stuck(error);
		if (peer)
			peer->redirects_lost = true;
		return -EBUSY;
	}
	mpu_argument_register(mpu_rm_ioctl, mpu_rm_ioctl_error, peer && peer->probe_armed);
	if (peer)
		mpu_argument_status(&peer->taker_probe_armed);
	return 0;
}

void mpu_hooks_activate(void)
{
	int hook;

	/* The ioctl entries come last, so that a call that this instance handles finds all other functions ready. */
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (hook != MPU_IOCTL && hook != MPU_COMPAT && mpu_redirects[hook].symbol)
			WRITE_ONCE(mpu_original[hook], mpu_redirects[hook].resume);
	}
	smp_wmb();
	if (mpu_redirects[MPU_COMPAT].symbol)
		WRITE_ONCE(mpu_original[MPU_COMPAT], mpu_redirects[MPU_COMPAT].resume);
	WRITE_ONCE(mpu_original[MPU_IOCTL], mpu_redirects[MPU_IOCTL].resume);
}

void mpu_hooks_detach_peer(void)
{
	/* A call that arrived before mpu_hooks_activate() may still be on its way to mpu_peer_entry. */
	synchronize_rcu_tasks();
	mpu_wait_for_handlers();
	WRITE_ONCE(mpu_peer_entry, 0);
}

int mpu_hooks_give_back(struct mpu_peer *peer)
{
	int error;

	if (!mpu_placed)
		return 0;
	mpu_argument_unregister(peer->probe_armed);
	error = mpu_method->give_back(mpu_redirects, peer);
	/* The registration belongs to the other instance, even if it still calls this one. */
	mpu_registration = NULL;
	mpu_placed = false;
	return error;
}

void mpu_hooks_describe(struct mpu_peer *peer)
{
	enum mpu_hook hook;

	peer->count = 0;
	for (hook = 0; mpu_placed && hook < MPU_HOOKS; hook++) {
		if (mpu_redirects[hook].symbol)
			peer->ip[peer->count++] = mpu_redirects[hook].ip;
	}
	peer->enter = mpu_placed ? (unsigned long)mpu_method->enter : 0;
	peer->handler = mpu_placed ? mpu_method->handler : NULL;
	peer->ops = mpu_registration;
	mpu_argument_status(&peer->probe_armed);
}

unsigned long mpu_hooks_address(enum mpu_hook hook)
{
	return mpu_redirects[hook].ip;
}

void mpu_hooks_handed_over(const struct mpu_peer *peer)
{
	if (!mpu_placed)
		return;
	mpu_placed = false;
	mpu_registration = NULL;
	if (mpu_method->handed_over)
		mpu_method->handed_over();
	mpu_argument_unregister(peer->taker_probe_armed);
}

int mpu_hooks_remove(void)
{
	int error;

	if (!mpu_placed)
		return 0;
	error = mpu_method->detach(mpu_redirects);
	if (error)
		return error;
	mpu_placed = false;
	mpu_argument_unregister(false);
	return 0;
}

bool mpu_hooks_driver_present(void)
{
	const struct mpu_redirect *entry = &mpu_redirects[MPU_IOCTL];
	unsigned long address;
	bool present = false;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(entry->candidates) && !present; i++)
		present = mpu_find_function(entry->candidates[i], &address) != -ENOENT;
	mpu_search_end();
	return present;
}

const char *mpu_hooks_symbol(enum mpu_hook hook)
{
	return mpu_placed ? mpu_redirects[hook].symbol : NULL;
}

const char *mpu_hooks_method(void)
{
	return mpu_placed ? mpu_method->name : NULL;
}
