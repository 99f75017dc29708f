// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Places and removes the redirects of the driver's functions, by ftrace direct calls: the function's own entry calls
 * mpu_entry.S, and no other function in the system executes one instruction more.
 *
 * Knows which functions a release has and which of them must be there; nothing of what happens inside them.
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

#ifndef CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS
#error "MPU needs a kernel with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS (Linux 5.5 or later, x86-64)"
#endif
#ifndef CONFIG_KPROBES
#error "MPU needs a kernel with CONFIG_KPROBES: it finds the driver's functions by it"
#endif

unsigned long mpu_original[MPU_HOOKS];

struct mpu_redirect {
	/* Names in the order of preference. */
	const char *symbols[2];
	char *enter;
	/* Without this one nothing is redirected. */
	bool needed;
	const char *placed;
	unsigned long ip;
	/* Allocated, because a registration outlives the module that made it when it is handed on. */
	struct ftrace_ops *ops;
};

static struct mpu_redirect mpu_redirects[MPU_HOOKS] = {
	[MPU_GET_PID_INFO] = { { "os_get_pid_info" }, mpu_enter_get_pid_info, false },
	[MPU_FIND_NS_PID] = { { "os_find_ns_pid" }, mpu_enter_find_ns_pid, false },
	[MPU_IS_INIT_NS] = { { "os_is_init_ns" }, mpu_enter_is_init_ns, false },
	[MPU_FROM_USER] = { { "os_memcpy_from_user" }, mpu_enter_from_user, true },
	[MPU_TO_USER] = { { "os_memcpy_to_user" }, mpu_enter_to_user, true },
	/* Up to 535 the 32-bit entry is a function of its own; from 545 both are nvidia_unlocked_ioctl. */
	[MPU_COMPAT] = { { "nvidia_frontend_compat_ioctl" }, mpu_enter_compat, false },
	/* 390 to 450 have an nvidia_unlocked_ioctl, too, which nothing calls: the frontend comes first. */
	[MPU_IOCTL] = { { "nvidia_frontend_unlocked_ioctl", "nvidia_unlocked_ioctl" }, mpu_enter_ioctl, true },
};

/* Where a function of the driver begins, by a probe that is never armed: the kernel exports no other way to ask. */
static int mpu_find(const char *symbol, unsigned long *begins)
{
	char name[64];
	struct kprobe probe = { .symbol_name = name, .flags = KPROBE_FLAG_DISABLED };
	int error;

	snprintf(name, sizeof(name), "nvidia:%s", symbol);
	error = register_kprobe(&probe);
	if (error)
		return error;
	*begins = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	return 0;
}

/*
 * Where a function goes on behind the instruction that ftrace patches: 5 bytes, a call or the nop in its place, after an
 * ENDBR if the driver was built with IBT. 0 if there is no such instruction.
 */
static unsigned long mpu_goes_on(unsigned long begins)
{
	static const u8 endbr64[] = { 0xf3, 0x0f, 0x1e, 0xfa };
	/* Up to 5.12 the kernel chooses its nop by the processor (arch/x86/kernel/alternative.c, ideal_nops). */
	static const u8 nops[][5] = {
		{ 0x0f, 0x1f, 0x44, 0x00, 0x00 },
		{ 0x66, 0x66, 0x66, 0x66, 0x90 },
		{ 0x3e, 0x8d, 0x74, 0x26, 0x00 },
	};
	u8 code[sizeof(endbr64) + sizeof(nops[0])];
	unsigned int at = 0, i;
	bool patched;

	if (copy_from_kernel_nofault(code, (void *)begins, sizeof(code)))
		return 0;
	if (!memcmp(code, endbr64, sizeof(endbr64)))
		at = sizeof(endbr64);
	patched = code[at] == 0xe8;
	for (i = 0; i < ARRAY_SIZE(nops); i++)
		patched |= !memcmp(code + at, nops[i], sizeof(nops[i]));
	return patched ? begins + at + sizeof(nops[0]) : 0;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
/*
 * A registration is never used twice: ftrace_free_filter() of 6.12 leaves the freed hashes in it, and the next use would
 * free them again. (Seen as a double free when the driver came back.)
 */
static int mpu_attach(struct mpu_redirect *redirect)
{
	struct ftrace_ops *ops = kzalloc(sizeof(*ops), GFP_KERNEL);
	int error;

	if (!ops)
		return -ENOMEM;
	error = ftrace_set_filter_ip(ops, redirect->ip, 0, 0);
	if (!error)
		error = register_ftrace_direct(ops, (unsigned long)redirect->enter);
	if (error) {
		ftrace_free_filter(ops);
		kfree(ops);
		return error;
	}
	redirect->ops = ops;
	return 0;
}

static void mpu_detach(struct mpu_redirect *redirect)
{
	unregister_ftrace_direct(redirect->ops, (unsigned long)redirect->enter, true);
	/* No call looks at it any more: unregistering has waited for those that did. */
	kfree(redirect->ops);
	redirect->ops = NULL;
}

static int mpu_point(struct ftrace_ops *ops, unsigned long ip, unsigned long from, unsigned long to)
{
	return modify_ftrace_direct(ops, to);
}
#else
static int mpu_attach(struct mpu_redirect *redirect)
{
	return register_ftrace_direct(redirect->ip, (unsigned long)redirect->enter);
}

static void mpu_detach(struct mpu_redirect *redirect)
{
	unregister_ftrace_direct(redirect->ip, (unsigned long)redirect->enter);
}

static int mpu_point(struct ftrace_ops *ops, unsigned long ip, unsigned long from, unsigned long to)
{
	return modify_ftrace_direct(ip, from, to);
}
#endif

static struct mpu_handed *mpu_handed_at(struct mpu_peer *peer, unsigned long ip)
{
	u32 i;

	for (i = 0; peer && i < peer->count; i++) {
		if (peer->handed[i].ip == ip)
			return &peer->handed[i];
	}
	return NULL;
}

/* Points a function that calls another instance at this one. Each call meets the one or the other, never neither. */
static int mpu_take(struct mpu_redirect *redirect, struct mpu_handed *handed)
{
	int error = mpu_point(handed->ops, handed->ip, handed->enter, (unsigned long)redirect->enter);

	if (error)
		return error;
	redirect->ops = handed->ops;
	handed->taken = true;
	return 0;
}

/* Undoes mpu_take(). It can fail only for want of memory; then the function calls this instance, which stays loaded. */
static int mpu_give_back(struct mpu_redirect *redirect, struct mpu_handed *handed)
{
	int error = mpu_point(handed->ops, handed->ip, (unsigned long)redirect->enter, handed->enter);

	if (error)
		return error;
	redirect->ops = NULL;
	handed->taken = false;
	return 0;
}

static int mpu_place(enum mpu_hook hook, struct mpu_refusal *refusal, struct mpu_peer *peer)
{
	struct mpu_redirect *redirect = &mpu_redirects[hook];
	struct mpu_handed *handed;
	int error = -ENOENT;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(redirect->symbols) && redirect->symbols[i] && error == -ENOENT; i++) {
		refusal->symbol = redirect->symbols[i];
		error = mpu_find(redirect->symbols[i], &redirect->ip);
	}
	if (error == -ENOENT && !redirect->needed)
		return 0;
	if (!error) {
		mpu_original[hook] = mpu_goes_on(redirect->ip);
		handed = mpu_handed_at(peer, redirect->ip);
		if (!mpu_original[hook])
			error = -EOPNOTSUPP;
		else
			error = handed ? mpu_take(redirect, handed) : mpu_attach(redirect);
	}
	if (error) {
		refusal->error = error;
		return error;
	}
	redirect->placed = refusal->symbol;
	return 0;
}

/* Gives back what was taken so far: the other instance goes on. */
static void mpu_return_all(struct mpu_peer *peer)
{
	struct mpu_redirect *redirect;
	struct mpu_handed *handed;
	enum mpu_hook hook;

	for (hook = 0; hook < MPU_HOOKS; hook++) {
		redirect = &mpu_redirects[hook];
		handed = redirect->placed ? mpu_handed_at(peer, redirect->ip) : NULL;
		if (handed && handed->taken && !mpu_give_back(redirect, handed))
			redirect->placed = NULL;
	}
}

int mpu_hooks_place(struct mpu_refusal *refusal, struct mpu_peer *peer)
{
	enum mpu_hook hook;
	int error;

	/* mpu_entry.S has these numbers, too. */
	BUILD_BUG_ON(MPU_FROM_USER != 3 || MPU_TO_USER != 4 || MPU_COMPAT != 5 || MPU_IOCTL != 6);
	/* And mpu_hooks_remove() takes them for the ways in. */
	BUILD_BUG_ON(MPU_COMPAT + 1 != MPU_IOCTL || MPU_IOCTL + 1 != MPU_HOOKS);
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		error = mpu_place(hook, refusal, peer);
		if (error) {
			mpu_return_all(peer);
			mpu_hooks_remove();
			return error;
		}
	}
	return 0;
}

void mpu_hooks_hand(struct mpu_peer *peer)
{
	enum mpu_hook hook;

	BUILD_BUG_ON(MPU_HOOKS > MPU_PEER_MOST);
	peer->count = 0;
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		const struct mpu_redirect *redirect = &mpu_redirects[hook];

		if (redirect->placed)
			peer->handed[peer->count++] = (struct mpu_handed){
				.ip = redirect->ip, .enter = (unsigned long)redirect->enter, .ops = redirect->ops,
			};
	}
}

bool mpu_hooks_lost(const struct mpu_peer *peer)
{
	struct mpu_redirect *redirect;
	bool lost = false;
	u32 i, hook;

	for (i = 0; i < peer->count; i++) {
		for (hook = 0; peer->handed[i].taken && hook < MPU_HOOKS; hook++) {
			redirect = &mpu_redirects[hook];
			if (!redirect->placed || redirect->ip != peer->handed[i].ip)
				continue;
			redirect->placed = NULL;
			redirect->ops = NULL;
			lost = true;
		}
	}
	return lost;
}

void mpu_hooks_handed(struct mpu_peer *peer)
{
	struct mpu_redirect *redirect;
	struct mpu_handed *handed;
	enum mpu_hook hook;

	for (hook = 0; hook < MPU_HOOKS; hook++) {
		redirect = &mpu_redirects[hook];
		if (!redirect->placed)
			continue;
		handed = mpu_handed_at(peer, redirect->ip);
		if (handed && handed->taken)
			redirect->ops = NULL;
		else
			mpu_detach(redirect);
		redirect->placed = NULL;
		/* Whoever waits here begins the function anew, from its redirected first instruction. */
		mpu_original[hook] = redirect->ip;
	}
}

/* Takes out the redirects from `last` down to `first`; whether there were any. */
static bool mpu_take_out(enum mpu_hook first, enum mpu_hook last)
{
	bool removed = false;
	int hook;

	for (hook = last; hook >= (int)first; hook--) {
		if (!mpu_redirects[hook].placed)
			continue;
		mpu_detach(&mpu_redirects[hook]);
		mpu_redirects[hook].placed = NULL;
		removed = true;
	}
	return removed;
}

void mpu_hooks_remove(void)
{
	/* Every way in goes first, and those inside get out before the helpers go. */
	if (mpu_take_out(MPU_COMPAT, MPU_IOCTL))
		mpu_calls_drain();
	/* And then nobody is between a redirected function, or the end of a replacement, and its return. */
	if (mpu_take_out(MPU_GET_PID_INFO, MPU_TO_USER))
		synchronize_rcu_tasks();
}

bool mpu_hooks_driver_present(void)
{
	const struct mpu_redirect *way_in = &mpu_redirects[MPU_IOCTL];
	unsigned long begins;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(way_in->symbols); i++) {
		if (mpu_find(way_in->symbols[i], &begins) != -ENOENT)
			return true;
	}
	return false;
}

const char *mpu_hooks_placed(enum mpu_hook hook)
{
	return mpu_redirects[hook].placed;
}
