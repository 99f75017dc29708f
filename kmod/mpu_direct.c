// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Redirects by ftrace direct calls: the function's entry calls mpu_entry.S, without kernel code in between.
 */
#include <linux/errno.h>
#include <linux/ftrace.h>
#include "mpu_probes.h"
#include "mpu_methods.h"

#ifndef MPU_DIRECT_NONE
#ifndef MPU_DIRECT_ONE
static int mpu_direct_register(struct ftrace_ops *ops)
{
#ifdef MPU_DIRECT_LIST
	return register_ftrace_direct(ops, (unsigned long)mpu_enter);
#else
	return register_ftrace_direct_multi(ops, (unsigned long)mpu_enter);
#endif
}

static int mpu_direct_unregister(struct ftrace_ops *ops)
{
#ifdef MPU_DIRECT_LIST
	return unregister_ftrace_direct(ops, (unsigned long)mpu_enter, false);
#elif defined(MPU_DIRECT_MULTI_FORGET)
	return unregister_ftrace_direct_multi(ops, (unsigned long)mpu_enter, false);
#else
	return unregister_ftrace_direct_multi(ops, (unsigned long)mpu_enter);
#endif
}

static const struct mpu_registration_type mpu_direct_type = { .add = mpu_direct_register, .remove = mpu_direct_unregister };

static int mpu_direct_attach(const struct mpu_redirect *redirects, struct mpu_refusal *refusal)
{
	return mpu_registration_place(&mpu_direct_type, redirects);
}

static int mpu_direct_detach(const struct mpu_redirect *redirects)
{
	return mpu_registration_remove(&mpu_direct_type);
}

static int mpu_direct_modify(struct ftrace_ops *ops, unsigned long enter)
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

	/* The other instance, a build for other headers, redirected each function by itself. */
	if (!peer->ops)
		return -EPROTO;
	error = mpu_direct_modify(peer->ops, (unsigned long)mpu_enter);
	if (!error)
		mpu_registration = peer->ops;
	return error;
}

static int mpu_direct_give_back(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	int error = mpu_direct_modify(peer->ops, peer->enter);

	if (!error)
		mpu_registration = NULL;
	return error;
}

#define mpu_direct_handed_over NULL
#else
/*
 * These kernels keep all direct calls in one registration of their own. This guard is a registration of ours, made before any redirect: it
 * fails if ftrace is switched off, and prevents that later.
 */
static noinline void mpu_anchor(void)
{
	barrier();
}

static void mpu_guard_callback(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
#ifdef MPU_HANDLER_REGS
			     struct pt_regs *regs)
#else
			     struct ftrace_regs *regs)
#endif
{
}

static struct ftrace_ops mpu_guard = {
	.func = mpu_guard_callback,
	.flags = FTRACE_OPS_FL_PERMANENT,
};

static bool mpu_guard_registered;

/*
 * Removes one direct call. If it failed for lack of memory before, the kernel has dropped it from its list all the same
 * (unregister_ftrace_direct), and now returns -ENODEV. Then the function's entry shows whether the call is gone.
 */
static int mpu_unregister_one(const struct mpu_redirect *redirects, enum mpu_hook hook, char *enter)
{
	int error = unregister_ftrace_direct(redirects[hook].ip, (unsigned long)enter);

	return error == -ENODEV && !mpu_is_patched(&redirects[hook]) ? 0 : error;
}

/* Removes the direct calls of the functions before `end`. Returns the first error. */
static int mpu_unregister_before(const struct mpu_redirect *redirects, enum mpu_hook end)
{
	int error, first = 0;
	enum mpu_hook hook;

	for (hook = 0; hook < end; hook++) {
		if (!redirects[hook].symbol)
			continue;
		error = mpu_unregister_one(redirects, hook, mpu_enter);
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
	mpu_guard_registered = !error;
	return error;
}

static int mpu_guard_remove(void)
{
	int error = mpu_guard_registered ? unregister_ftrace_function(&mpu_guard) : 0;

	mpu_guard_registered &= !!error;
	return error;
}

/* Removes the guard after the functions. If anything could not be removed (`error`, or the guard), the module must stay. */
static void mpu_remove_guard_or_stick(int error)
{
	if (!error)
		error = mpu_guard_remove();
	if (error)
		mpu_set_stuck(error);
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
		if (!redirects[hook].symbol)
			continue;
		error = register_ftrace_direct(redirects[hook].ip, (unsigned long)mpu_enter);
		if (error) {
			*refusal = (struct mpu_refusal){ redirects[hook].symbol, error };
			mpu_remove_guard_or_stick(mpu_unregister_before(redirects, hook));
			return error;
		}
	}
	return 0;
}

static int mpu_direct_detach(const struct mpu_redirect *redirects)
{
	int error = mpu_guard_remove(), first = mpu_unregister_before(redirects, MPU_HOOKS);

	return first ? first : error;
}

/* Points the functions before `end` at the other instance again. This fails only for lack of memory. */
static void mpu_direct_return(const struct mpu_redirect *redirects, struct mpu_peer *peer, int end)
{
	int hook, failed = 0;

	for (hook = end - 1; hook >= 0; hook--) {
		if (redirects[hook].symbol &&
		    modify_ftrace_direct(redirects[hook].ip, (unsigned long)mpu_enter, peer->enter)) {
			failed |= mpu_unregister_one(redirects, hook, mpu_enter);
			peer->redirects_lost = true;
		}
	}
	mpu_remove_guard_or_stick(failed);
	/* If one function was lost, remove the others as well: an instance has all functions, or none. */
	for (hook = 0; peer->redirects_lost && hook < MPU_HOOKS; hook++) {
		if (redirects[hook].symbol && mpu_unregister_one(redirects, hook, (char *)peer->enter))
			peer->must_stay = true;
	}
}

/* Points the functions at this instance. On a failure, gives back those that it took. */
static int mpu_direct_take(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	int error, hook;

	/* The other instance, a build for other headers, redirected all functions by one registration. */
	if (peer->ops)
		return -EPROTO;
	error = mpu_guard_place();
	if (error)
		return error;
	for (hook = 0; hook < MPU_HOOKS && !error; hook++) {
		if (redirects[hook].symbol)
			error = modify_ftrace_direct(redirects[hook].ip, peer->enter, (unsigned long)mpu_enter);
	}
	if (error)
		mpu_direct_return(redirects, peer, hook - 1);
	return error;
}

static int mpu_direct_give_back(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	mpu_direct_return(redirects, peer, MPU_HOOKS);
	return 0;
}

static void mpu_direct_handed_over(void)
{
	mpu_remove_guard_or_stick(0);
}
#endif

const struct mpu_method mpu_direct = {
	.name = "direct",
	.enter = mpu_enter,
	.attach = mpu_direct_attach,
	.detach = mpu_direct_detach,
	.take = mpu_direct_take,
	.give_back = mpu_direct_give_back,
	.handed_over = mpu_direct_handed_over,
};
#endif
