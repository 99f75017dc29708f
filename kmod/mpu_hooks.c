// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Places and removes the redirects of the driver's functions, by ftrace: no other function in the system executes one instruction more.
 *
 * Knows which functions a release has and which of them must be there, and which way to redirect is taken (mpu_ways.h); nothing of
 * what happens inside them. What the kernel patches at a function's entry is the processor's: mpu_site_x86.h, mpu_site_arm64.h.
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
#include "mpu_ways.h"

#if defined(MPU_DIRECT_NONE) && defined(MPU_HANDLER_NONE)
#error "MPU needs a kernel with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, or one whose ftrace handlers can change where a function goes on"
#endif
#ifndef CONFIG_KPROBES
#error "MPU needs a kernel with CONFIG_KPROBES: it finds the driver's functions by it"
#endif

unsigned long mpu_original[MPU_HOOKS];
unsigned long mpu_elder;

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

/* Whether the redirects stand. */
static bool mpu_placed;

/* The kernel's switch for all of ftrace, as a refusal names it. */
static const char mpu_ftrace_switch[] = "kernel.ftrace_enabled";

/*
 * The probes by which functions are found, never armed: the kernel exports no other way to ask. They go together, because each
 * going waits for the whole system. Under mpu_lock.
 */
#define MPU_FINDS (MPU_HOOKS + 1)

static struct {
	struct kprobe probe[MPU_FINDS];
	char name[MPU_FINDS][64];
	struct kprobe *registered[MPU_FINDS];
	int count;
} mpu_search;

/*
 * Where a function of the driver begins. Not more than MPU_FINDS are found before mpu_search_ends().
 *
 * The probe stands behind the instruction that ftrace patches. On it the kernel makes a probe without an instruction slot
 * (arch_prepare_kprobe_ftrace); a breakpoint of ftrace's that a processor meets too late then jumps to address 0 (setup_singlestep;
 * both of arch/x86/kernel/kprobes of 5.10.262).
 */
static int mpu_find(const char *symbol, unsigned long *begins)
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
			*begins = (unsigned long)probe->addr - offset;
			mpu_search.registered[mpu_search.count++] = probe;
			return 0;
		}
		/* Else no instruction begins there. */
		if (error != -EINVAL && error != -EILSEQ)
			break;
	}
	return error;
}

static void mpu_search_ends(void)
{
	unregister_kprobes(mpu_search.registered, mpu_search.count);
	mpu_search.count = 0;
}

/* The ways that this kernel has, best first; and by which of them the functions are redirected, or were last. */
static const struct mpu_way *const mpu_ways[] = {
#ifndef MPU_DIRECT_NONE
	&mpu_direct,
#endif
#ifndef MPU_HANDLER_NONE
	&mpu_ipmodify,
#endif
};
static const struct mpu_way *mpu_way;

/* Which of them may be taken: `auto`, or one's name. */
#ifndef MPU_REDIRECT
#define MPU_REDIRECT "auto"
#endif
static char *mpu_asked = MPU_REDIRECT;
module_param_named(redirect, mpu_asked, charp, 0400);
MODULE_PARM_DESC(redirect, "How the driver's functions are redirected: direct, ipmodify, or auto for the first that can be had");

static bool mpu_may(const struct mpu_way *way)
{
	return !strcmp(mpu_asked, "auto") || !strcmp(mpu_asked, way->name);
}

int mpu_hooks_init(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(mpu_ways); i++) {
		if (mpu_may(mpu_ways[i]))
			return 0;
	}
	pr_err("mpu: redirect=%s: this kernel has no such way to redirect\n", mpu_asked);
	return -EOPNOTSUPP;
}

/* What a refusal names when all functions together were refused, and the kernel does not tell which one it was. */
static const char mpu_all_functions[] = "functions";

/* Another way does not help: there is no memory, or ftrace has switched itself off until the next boot (ftrace_kill). */
static bool mpu_is_final(int error)
{
	return error == -ENOMEM || error == -ENODEV;
}

/* Redirects the functions by the first way that the kernel grants. The refusal is that of the last one tried. */
static int mpu_attach(struct mpu_refusal *refusal)
{
	unsigned int i;
	int error;

	*refusal = (struct mpu_refusal){ NULL, -EOPNOTSUPP };
	for (i = 0; i < ARRAY_SIZE(mpu_ways); i++) {
		if (!mpu_may(mpu_ways[i]))
			continue;
		*refusal = (struct mpu_refusal){ NULL, 0 };
		error = mpu_ways[i]->attach(mpu_redirects, refusal);
		if (!error) {
			mpu_way = mpu_ways[i];
			return 0;
		}
		refusal->error = error;
		if (!refusal->symbol)
			refusal->symbol = mpu_all_functions;
		pr_info("mpu: not by %s: %s: error %d\n", mpu_ways[i]->name, refusal->symbol, error);
		if (mpu_is_final(error))
			break;
	}
	return refusal->error;
}

/* Points the functions at this instance, by the way they are redirected already: a function has one way at a time. */
static int mpu_take(struct mpu_peer *peer)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(mpu_ways); i++) {
		if (!!mpu_ways[i]->enter != !!peer->enter)
			continue;
		if (mpu_may(mpu_ways[i])) {
			mpu_way = mpu_ways[i];
			WRITE_ONCE(mpu_elder, peer->enter ? peer->enter : (unsigned long)peer->handler);
			/* On every processor, before a call comes here. */
			mpu_wait_for_handlers();
			return mpu_way->take(mpu_redirects, peer);
		}
		pr_warn("mpu: the other instance redirects by %s, and redirect=%s was asked for: unload the other one first\n",
			mpu_ways[i]->name, mpu_asked);
	}
	return -EPROTO;
}

/* Where the probe of mpu_argument.c is to stand, or why there is no place. */
static unsigned long mpu_rm_ioctl;
static int mpu_rm_ioctl_error;

/*
 * Behind the ENDBR64 with which NVIDIA builds rm_ioctl: no kernel makes a jump of a probe that stands on one (twobyte_is_boostable,
 * arch/x86/kernel/kprobes/core.c), and a breakpoint costs some hundred instructions more.
 */
static void mpu_find_rm_ioctl(void)
{
	mpu_rm_ioctl_error = mpu_find("rm_ioctl", &mpu_rm_ioctl);
	if (mpu_rm_ioctl_error)
		return;
	mpu_rm_ioctl = mpu_behind_landing_pad(mpu_rm_ioctl);
	if (!mpu_rm_ioctl)
		mpu_rm_ioctl_error = -EFAULT;
}

/* Finds the functions of this release: those that it must have, and those that it may have. mpu_search_ends() is to follow. */
static int mpu_find_all(struct mpu_refusal *refusal)
{
	struct mpu_redirect *redirect;
	enum mpu_hook hook;
	unsigned int i;
	int error;

	for (hook = 0; hook < MPU_HOOKS; hook++) {
		redirect = &mpu_redirects[hook];
		redirect->found = NULL;
		mpu_original[hook] = 0;
		error = -ENOENT;
		for (i = 0; i < ARRAY_SIZE(redirect->symbols) && redirect->symbols[i] && error == -ENOENT; i++) {
			refusal->symbol = redirect->symbols[i];
			error = mpu_find(redirect->symbols[i], &redirect->ip);
		}
		if (error == -ENOENT && !redirect->needed)
			continue;
		if (!error) {
			redirect->goes_on = mpu_goes_on(redirect->ip);
			error = redirect->goes_on ? 0 : -EOPNOTSUPP;
		}
		if (error) {
			refusal->error = error;
			return error;
		}
		redirect->found = refusal->symbol;
	}
	return 0;
}

/* Whether what another instance has redirected is what this one would. */
static bool mpu_is_the_same(const struct mpu_peer *peer)
{
	enum mpu_hook hook;
	u32 i, found = 0;

	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (!mpu_redirects[hook].found)
			continue;
		for (i = 0; i < peer->count && peer->ip[i] != mpu_redirects[hook].ip; i++)
			;
		if (i == peer->count)
			return false;
		found++;
	}
	return found == peer->count;
}

int mpu_hooks_place(struct mpu_refusal *refusal, struct mpu_peer *peer)
{
	enum mpu_hook hook;
	int error;

	/* mpu_entry.S has these numbers, too. */
	BUILD_BUG_ON(MPU_FIND_NS_PID != 0 || MPU_FROM_USER != 1 || MPU_TO_USER != 2 || MPU_IOCTL != 3 || MPU_IS_INIT_NS != 4 ||
		     MPU_GET_PID_INFO != 5 || MPU_COMPAT != 6 || MPU_HOOKS != 7);
	BUILD_BUG_ON(MPU_HOOKS > MPU_PEER_MOST);
	error = mpu_find_all(refusal);
	mpu_find_rm_ioctl();
	mpu_search_ends();
	if (!error && peer && peer->count) {
		refusal->symbol = "mpu_peer";
		error = refusal->error = mpu_is_the_same(peer) ? mpu_take(peer) : -EPROTO;
	} else if (!error) {
		error = mpu_attach(refusal);
	}
	if (error)
		return error;
	mpu_placed = true;
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (!mpu_redirects[hook].found || mpu_is_patched(&mpu_redirects[hook]))
			continue;
		*refusal = (struct mpu_refusal){ mpu_ftrace_switch, -EBUSY };
		/* After this, a redirect that the other instance had is gone; or still ours, if the kernel does not take it out. */
		error = mpu_hooks_remove();
		if (error)
			mpu_stick(error);
		if (peer)
			peer->lost = true;
		return -EBUSY;
	}
	mpu_argument_place(mpu_rm_ioctl, mpu_rm_ioctl_error, peer && peer->probed);
	if (peer)
		mpu_argument_error(&peer->shared);
	return 0;
}

void mpu_hooks_begin(void)
{
	int hook;

	/* The ways in come last: a call that begins here finds all the rest here. */
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (hook != MPU_IOCTL && hook != MPU_COMPAT && mpu_redirects[hook].found)
			WRITE_ONCE(mpu_original[hook], mpu_redirects[hook].goes_on);
	}
	smp_wmb();
	if (mpu_redirects[MPU_COMPAT].found)
		WRITE_ONCE(mpu_original[MPU_COMPAT], mpu_redirects[MPU_COMPAT].goes_on);
	WRITE_ONCE(mpu_original[MPU_IOCTL], mpu_redirects[MPU_IOCTL].goes_on);
}

void mpu_hooks_alone(void)
{
	/* A call that found no function here before mpu_hooks_begin() may be on the way to the other instance: it must still get there. */
	synchronize_rcu_tasks();
	mpu_wait_for_handlers();
	WRITE_ONCE(mpu_elder, 0);
}

int mpu_hooks_give_back(struct mpu_peer *peer)
{
	int error;

	if (!mpu_placed)
		return 0;
	mpu_argument_remove(peer->probed);
	error = mpu_way->give_back(mpu_redirects, peer);
	/* The registration is the other instance's, also if it goes on calling this one. */
	mpu_registration = NULL;
	mpu_placed = false;
	return error;
}

void mpu_hooks_hand(struct mpu_peer *peer)
{
	enum mpu_hook hook;

	peer->count = 0;
	for (hook = 0; mpu_placed && hook < MPU_HOOKS; hook++) {
		if (mpu_redirects[hook].found)
			peer->ip[peer->count++] = mpu_redirects[hook].ip;
	}
	peer->enter = mpu_placed ? (unsigned long)mpu_way->enter : 0;
	peer->handler = mpu_placed ? mpu_way->handler : NULL;
	peer->ops = mpu_registration;
	mpu_argument_error(&peer->probed);
}

unsigned long mpu_hooks_start(enum mpu_hook hook)
{
	return mpu_redirects[hook].ip;
}

void mpu_hooks_handed(const struct mpu_peer *peer)
{
	if (!mpu_placed)
		return;
	mpu_placed = false;
	mpu_registration = NULL;
	if (mpu_way->handed)
		mpu_way->handed();
	mpu_argument_remove(peer->shared);
}

int mpu_hooks_remove(void)
{
	int error;

	if (!mpu_placed)
		return 0;
	error = mpu_way->detach(mpu_redirects);
	if (error)
		return error;
	mpu_placed = false;
	mpu_argument_remove(false);
	return 0;
}

bool mpu_hooks_driver_present(void)
{
	const struct mpu_redirect *way_in = &mpu_redirects[MPU_IOCTL];
	unsigned long begins;
	bool present = false;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(way_in->symbols) && !present; i++)
		present = mpu_find(way_in->symbols[i], &begins) != -ENOENT;
	mpu_search_ends();
	return present;
}

const char *mpu_hooks_placed(enum mpu_hook hook)
{
	return mpu_placed ? mpu_redirects[hook].found : NULL;
}

const char *mpu_hooks_way(void)
{
	return mpu_placed ? mpu_way->name : NULL;
}
