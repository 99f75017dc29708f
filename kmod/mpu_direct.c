// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Redirects by ftrace direct calls: the function's own entry calls mpu_entry.S, and nothing of the kernel's runs in between.
 */
#include <linux/errno.h>
#include <linux/ftrace.h>
#include "mpu_probes.h"
#include "mpu_ways.h"

#ifndef MPU_DIRECT_NONE
#ifndef MPU_DIRECT_ONE
static int mpu_direct_begin(struct ftrace_ops *ops)
{
#ifdef MPU_DIRECT_LIST
	return register_ftrace_direct(ops, (unsigned long)mpu_enter);
#else
	return register_ftrace_direct_multi(ops, (unsigned long)mpu_enter);
#endif
}

static int mpu_direct_end(struct ftrace_ops *ops)
{
#ifdef MPU_DIRECT_LIST
	return unregister_ftrace_direct(ops, (unsigned long)mpu_enter, false);
#elif defined(MPU_DIRECT_MULTI_FORGET)
	return unregister_ftrace_direct_multi(ops, (unsigned long)mpu_enter, false);
#else
	return unregister_ftrace_direct_multi(ops, (unsigned long)mpu_enter);
#endif
}

static const struct mpu_kind mpu_direct_kind = { .begin = mpu_direct_begin, .end = mpu_direct_end };

static int mpu_direct_attach(const struct mpu_redirect *redirects, struct mpu_refusal *refusal)
{
	return mpu_registration_place(&mpu_direct_kind, redirects);
}

static int mpu_direct_detach(const struct mpu_redirect *redirects)
{
	return mpu_registration_remove(&mpu_direct_kind);
}

static int mpu_direct_change(struct ftrace_ops *ops, unsigned long enter)
{
#ifdef MPU_DIRECT_LIST
	return modify_ftrace_direct(ops, enter);
#else
	return modify_ftrace_direct_multi(ops, enter);
#endif
}

static int mpu_direct_take(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	int error;

	/* Made one by one, by a build for other headers. */
	if (!peer->ops)
		return -EPROTO;
	error = mpu_direct_change(peer->ops, (unsigned long)mpu_enter);
	if (!error)
		mpu_registration = peer->ops;
	return error;
}

static int mpu_direct_give_back(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	int error = mpu_direct_change(peer->ops, peer->enter);

	if (!error)
		mpu_registration = NULL;
	return error;
}

#define mpu_direct_handed NULL
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
#ifdef MPU_HANDLER_REGS
			     struct pt_regs *regs)
#else
			     struct ftrace_regs *regs)
#endif
{
}

static struct ftrace_ops mpu_guard = {
	.func = mpu_never_called,
	.flags = FTRACE_OPS_FL_PERMANENT,
};

/* It stands in the kernel's list. */
static bool mpu_guard_stands;

/*
 * Lets go of a function. One that failed for want of memory has left the kernel's list all the same (unregister_ftrace_direct), and the
 * next try finds none: then what stands at the function's entry tells.
 */
static int mpu_let_go(const struct mpu_redirect *redirects, enum mpu_hook hook, char *enter)
{
	int error = unregister_ftrace_direct(redirects[hook].ip, (unsigned long)enter);

	return error == -ENODEV && !mpu_is_patched(&redirects[hook]) ? 0 : error;
}

/* Lets go of the functions before `end`; the first error. */
static int mpu_detach_before(const struct mpu_redirect *redirects, enum mpu_hook end)
{
	int error, first = 0;
	enum mpu_hook hook;

	for (hook = 0; hook < end; hook++) {
		if (!redirects[hook].found)
			continue;
		error = mpu_let_go(redirects, hook, mpu_enter);
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
	if (!error)
		error = register_ftrace_function(&mpu_guard);
	mpu_guard_stands = !error;
	return error;
}

static int mpu_guard_remove(void)
{
	int error = mpu_guard_stands ? unregister_ftrace_function(&mpu_guard) : 0;

	mpu_guard_stands &= !!error;
	return error;
}

/* Behind the functions, or what was left of letting go of them: the guard. What cannot be taken out keeps this module. */
static void mpu_give_back(int error)
{
	if (!error)
		error = mpu_guard_remove();
	if (error)
		mpu_stick(error);
}

static int mpu_direct_attach(const struct mpu_redirect *redirects, struct mpu_refusal *refusal)
{
	enum mpu_hook hook;
	int error = mpu_guard_place();

	if (error) {
		*refusal = (struct mpu_refusal){ "kernel.ftrace_enabled", error };
		return error;
	}
	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (!redirects[hook].found)
			continue;
		error = register_ftrace_direct(redirects[hook].ip, (unsigned long)mpu_enter);
		if (error) {
			*refusal = (struct mpu_refusal){ redirects[hook].found, error };
			mpu_give_back(mpu_detach_before(redirects, hook));
			return error;
		}
	}
	return 0;
}

static int mpu_direct_detach(const struct mpu_redirect *redirects)
{
	int error = mpu_guard_remove(), first = mpu_detach_before(redirects, MPU_HOOKS);

	return first ? first : error;
}

/* Points the functions before `end` at the other instance again. That can fail only for want of memory. */
static void mpu_direct_back(const struct mpu_redirect *redirects, struct mpu_peer *peer, int end)
{
	int hook, failed = 0;

	for (hook = end - 1; hook >= 0; hook--) {
		if (redirects[hook].found &&
		    modify_ftrace_direct(redirects[hook].ip, (unsigned long)mpu_enter, peer->enter)) {
			failed |= mpu_let_go(redirects, hook, mpu_enter);
			peer->lost = true;
		}
	}
	mpu_give_back(failed);
	/* One that is out takes the others along: an instance has all of them, or none. */
	for (hook = 0; peer->lost && hook < MPU_HOOKS; hook++) {
		if (redirects[hook].found && mpu_let_go(redirects, hook, (char *)peer->enter))
			peer->called = true;
	}
}

/* Points the functions at this instance. A failure gives back what was taken. */
static int mpu_direct_take(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	int error, hook;

	/* Made by one registration, by a build for other headers. */
	if (peer->ops)
		return -EPROTO;
	error = mpu_guard_place();
	if (error)
		return error;
	for (hook = 0; hook < MPU_HOOKS && !error; hook++) {
		if (redirects[hook].found)
			error = modify_ftrace_direct(redirects[hook].ip, peer->enter, (unsigned long)mpu_enter);
	}
	if (error)
		mpu_direct_back(redirects, peer, hook - 1);
	return error;
}

static int mpu_direct_give_back(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	mpu_direct_back(redirects, peer, MPU_HOOKS);
	return 0;
}

static void mpu_direct_handed(void)
{
	mpu_give_back(0);
}
#endif

const struct mpu_way mpu_direct = {
	.name = "direct",
	.enter = mpu_enter,
	.attach = mpu_direct_attach,
	.detach = mpu_direct_detach,
	.take = mpu_direct_take,
	.give_back = mpu_direct_give_back,
	.handed = mpu_direct_handed,
};
#endif
