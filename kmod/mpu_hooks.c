// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Places and removes the redirects of the driver's functions, by ftrace direct calls: the function's own entry calls
 * mpu_entry.S, and no other function in the system executes one instruction more. One registration holds them all where the kernel
 * allows, so that coming, going and handing over take one wait of the kernel's, not one a function.
 *
 * Knows which functions a release has and which of them must be there; nothing of what happens inside them. What the kernel patches at a
 * function's entry is the processor's: mpu_site_x86.h, mpu_site_arm64.h.
 */
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include "mpu.h"
#include "mpu_peer.h"
#ifdef CONFIG_ARM64
#include "mpu_site_arm64.h"
#elif defined(CONFIG_X86_64)
#include "mpu_site_x86.h"
#else
#error "MPU has a way in for x86-64 and for arm64 alone"
#endif

#ifndef CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS
#error "MPU needs a kernel with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS (Linux 5.8 or later on x86-64, 6.4 or later on arm64)"
#endif
#ifndef CONFIG_KPROBES
#error "MPU needs a kernel with CONFIG_KPROBES: it finds the driver's functions by it"
#endif

unsigned long mpu_original[MPU_HOOKS];

struct mpu_redirect {
	/* Names in the order of preference. */
	const char *symbols[2];
	/* Without this one nothing is redirected. */
	bool needed;
	/* Its name once it is found; and its first byte. */
	const char *found;
	unsigned long ip;
};

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

/* Where a function of the driver begins. Not more than MPU_FINDS are found before mpu_search_ends(). */
static int mpu_find(const char *symbol, unsigned long *begins)
{
	struct kprobe *probe = &mpu_search.probe[mpu_search.count];
	char *name = mpu_search.name[mpu_search.count];
	int error;

	snprintf(name, sizeof(mpu_search.name[0]), "nvidia:%s", symbol);
	*probe = (struct kprobe){ .symbol_name = name, .flags = KPROBE_FLAG_DISABLED };
	error = register_kprobe(probe);
	if (error)
		return error;
	*begins = (unsigned long)probe->addr;
	mpu_search.registered[mpu_search.count++] = probe;
	return 0;
}

static void mpu_search_ends(void)
{
	unregister_kprobes(mpu_search.registered, mpu_search.count);
	mpu_search.count = 0;
}

/* Whether the kernel did put its call there: with ftrace switched off it says yes and does nothing. */
static bool mpu_is_patched(enum mpu_hook hook)
{
	return mpu_calls_before(mpu_original[hook]);
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 16, 0)
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
#define mpu_register(ops, to) register_ftrace_direct_multi(ops, to)
#define mpu_unregister(ops, to) unregister_ftrace_direct_multi(ops, to)
#define mpu_modify(ops, to) modify_ftrace_direct_multi(ops, to)
#else
#define mpu_register(ops, to) register_ftrace_direct(ops, to)
#define mpu_unregister(ops, to) unregister_ftrace_direct(ops, to, true)
#define mpu_modify(ops, to) modify_ftrace_direct(ops, to)
#endif

/* Allocated, because a registration outlives the module that made it when it is handed on. */
static struct ftrace_ops *mpu_ops;

/*
 * Redirects the functions from `first` to `last` that were found. A registration is never used twice: ftrace_free_filter() of
 * 6.12 leaves the freed hashes in it, and the next use would free them again. (Seen as a double free when the driver came back.)
 */
static struct ftrace_ops *mpu_redirect(enum mpu_hook first, enum mpu_hook last)
{
	struct ftrace_ops *ops = kzalloc(sizeof(*ops), GFP_KERNEL);
	int error = 0, hook;

	if (!ops)
		return ERR_PTR(-ENOMEM);
	for (hook = first; hook <= (int)last && !error; hook++) {
		if (mpu_redirects[hook].found)
			error = ftrace_set_filter_ip(ops, mpu_redirects[hook].ip, 0, 0);
	}
	if (!error)
		error = mpu_register(ops, (unsigned long)mpu_enter);
	if (error) {
		ftrace_free_filter(ops);
		kfree(ops);
		return ERR_PTR(error);
	}
	/* As long as it stands, nobody switches ftrace off (kernel.ftrace_enabled=0) and the redirects with it. */
	ops->flags |= FTRACE_OPS_FL_PERMANENT;
	return ops;
}

static int mpu_undo(struct ftrace_ops *ops)
{
	int error = mpu_unregister(ops, (unsigned long)mpu_enter);

	if (error)
		return error;
	/* No call looks at it any more: unregistering has waited for those that did. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
	ftrace_free_filter(ops);
#endif
	kfree(ops);
	return 0;
}

/* Which function the kernel would not redirect. */
static void mpu_find_culprit(struct mpu_refusal *refusal)
{
	struct ftrace_ops *ops;
	enum mpu_hook hook;

	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (!mpu_redirects[hook].found)
			continue;
		refusal->symbol = mpu_redirects[hook].found;
		ops = mpu_redirect(hook, hook);
		if (IS_ERR(ops)) {
			refusal->error = PTR_ERR(ops);
			return;
		}
		mpu_undo(ops);
	}
}

static int mpu_attach(struct mpu_refusal *refusal)
{
	struct ftrace_ops *ops = mpu_redirect(0, MPU_HOOKS - 1);

	if (IS_ERR(ops)) {
		refusal->error = PTR_ERR(ops);
		mpu_find_culprit(refusal);
		return refusal->error;
	}
	mpu_ops = ops;
	return 0;
}

static int mpu_detach(void)
{
	int error = mpu_undo(mpu_ops);

	if (!error)
		mpu_ops = NULL;
	return error;
}

/* Points the functions at this instance: each call meets the other one or this one, never neither. */
static int mpu_take(struct mpu_peer *peer)
{
	int error = mpu_modify(peer->ops, (unsigned long)mpu_enter);

	if (!error)
		mpu_ops = peer->ops;
	return error;
}
#else
/*
 * These kernels have one registration of their own for every direct call. This one of ours says whether ftrace is switched off, and
 * keeps it from being: it is placed before any redirect.
 */
static noinline void mpu_anchor(void)
{
	barrier();
}

static void mpu_never_called(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 11, 0)
			     struct ftrace_regs *regs)
#else
			     struct pt_regs *regs)
#endif
{
}

static struct ftrace_ops mpu_guard = {
	.func = mpu_never_called,
	.flags = FTRACE_OPS_FL_PERMANENT,
};

/* Lets go of the functions before `end`; the first error. */
static int mpu_detach_before(enum mpu_hook end)
{
	int error, first = 0;
	enum mpu_hook hook;

	for (hook = 0; hook < end; hook++) {
		if (!mpu_redirects[hook].found)
			continue;
		error = unregister_ftrace_direct(mpu_redirects[hook].ip, (unsigned long)mpu_enter);
		if (error && !first)
			first = error;
	}
	return first;
}

static int mpu_guard_place(void)
{
	int error;

	mpu_anchor();
	error = ftrace_set_filter_ip(&mpu_guard, (unsigned long)mpu_anchor, 0, 1);
	return error ? error : register_ftrace_function(&mpu_guard);
}

static int mpu_attach(struct mpu_refusal *refusal)
{
	enum mpu_hook hook;
	int error = mpu_guard_place();

	if (error) {
		*refusal = (struct mpu_refusal){ mpu_ftrace_switch, error };
		return error;
	}
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (!mpu_redirects[hook].found)
			continue;
		error = register_ftrace_direct(mpu_redirects[hook].ip, (unsigned long)mpu_enter);
		if (error) {
			*refusal = (struct mpu_refusal){ mpu_redirects[hook].found, error };
			mpu_detach_before(hook);
			unregister_ftrace_function(&mpu_guard);
			return error;
		}
	}
	return 0;
}

static int mpu_detach(void)
{
	unregister_ftrace_function(&mpu_guard);
	return mpu_detach_before(MPU_HOOKS);
}

/* Points the functions at this instance. A failure gives back what was taken; that can fail only for want of memory. */
static int mpu_take(struct mpu_peer *peer)
{
	int error = mpu_guard_place(), hook, back;

	if (error)
		return error;
	for (hook = 0; hook < MPU_HOOKS && !error; hook++) {
		if (mpu_redirects[hook].found)
			error = modify_ftrace_direct(mpu_redirects[hook].ip, peer->enter, (unsigned long)mpu_enter);
	}
	if (!error)
		return 0;
	unregister_ftrace_function(&mpu_guard);
	for (back = hook - 2; back >= 0; back--) {
		if (mpu_redirects[back].found &&
		    modify_ftrace_direct(mpu_redirects[back].ip, (unsigned long)mpu_enter, peer->enter)) {
			unregister_ftrace_direct(mpu_redirects[back].ip, (unsigned long)mpu_enter);
			peer->lost = true;
		}
	}
	/* One that is out takes the others along: an instance has all of them, or none. */
	for (hook = 0; peer->lost && hook < MPU_HOOKS; hook++) {
		if (mpu_redirects[hook].found)
			unregister_ftrace_direct(mpu_redirects[hook].ip, peer->enter);
	}
	return error;
}
#endif

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
			mpu_original[hook] = mpu_goes_on(redirect->ip);
			error = mpu_original[hook] ? 0 : -EOPNOTSUPP;
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
		if (!mpu_redirects[hook].found || mpu_is_patched(hook))
			continue;
		*refusal = (struct mpu_refusal){ mpu_ftrace_switch, -EBUSY };
		/* What was the other's until now is nobody's any more. */
		if (!mpu_hooks_remove() && peer)
			peer->lost = true;
		return -EBUSY;
	}
	mpu_argument_place(mpu_rm_ioctl, mpu_rm_ioctl_error);
	return 0;
}

void mpu_hooks_hand(struct mpu_peer *peer)
{
	enum mpu_hook hook;

	peer->count = 0;
	for (hook = 0; mpu_placed && hook < MPU_HOOKS; hook++) {
		if (mpu_redirects[hook].found)
			peer->ip[peer->count++] = mpu_redirects[hook].ip;
	}
	peer->enter = (unsigned long)mpu_enter;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 16, 0)
	peer->ops = mpu_ops;
#endif
}

void mpu_hooks_handed(void)
{
	enum mpu_hook hook;

	if (!mpu_placed)
		return;
	mpu_placed = false;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 16, 0)
	mpu_ops = NULL;
#else
	unregister_ftrace_function(&mpu_guard);
#endif
	/* Whoever waits here begins the function anew, from its redirected first instruction. */
	for (hook = 0; hook < MPU_HOOKS; hook++)
		mpu_original[hook] = mpu_redirects[hook].ip;
	mpu_argument_remove();
}

int mpu_hooks_remove(void)
{
	int error;

	if (!mpu_placed)
		return 0;
	error = mpu_detach();
	if (error)
		return error;
	mpu_placed = false;
	mpu_argument_remove();
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
