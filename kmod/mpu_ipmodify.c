// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Redirects by an ftrace handler that changes the instruction pointer: for kernels without direct calls, and for functions whose direct
 * call belongs to another tracer. This is slower than a direct call, because the kernel saves the registers and calls the handler for
 * every call. The replacements, and how they run the original function, are the same.
 *
 * The handler makes the same checks as mpu_entry.S. On a match ftrace restores the arguments and returns into the replacement instead of
 * the function. It cannot pass the context as another argument, so the replacement looks it up again.
 *
 * The handler calls no redirected function, so it cannot recurse and needs no recursion lock.
 */
#include <linux/atomic.h>
#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/ftrace.h>
#include <linux/ptrace.h>
#include <linux/rcupdate.h>
#include "mpu_probes.h"
#include "mpu_methods.h"

#ifndef MPU_HANDLER_NONE
extern atomic_t mpu_inside_count;

#ifdef MPU_HANDLER_ARGS
/* The kernel saves just the arguments. */
#define MPU_SAVE_FLAGS 0
#define mpu_handler_regs ftrace_regs
#define mpu_handler_argument(regs, n) ftrace_regs_get_argument(regs, n)
#define mpu_handler_set_ip(regs, to) ftrace_regs_set_instruction_pointer(regs, (unsigned long)(to))
#else
/* The kernel saves all registers. */
#define MPU_SAVE_FLAGS FTRACE_OPS_FL_SAVE_REGS
#ifdef MPU_HANDLER_FREGS
#define mpu_handler_regs ftrace_regs
#define mpu_handler_pt_regs(regs) ftrace_get_regs(regs)
#else
#define mpu_handler_regs pt_regs
#define mpu_handler_pt_regs(regs) (regs)
#endif
#define mpu_handler_argument(regs, n) mpu_function_argument(mpu_handler_pt_regs(regs), n)
#define mpu_handler_set_ip(regs, to) instruction_pointer_set(mpu_handler_pt_regs(regs), (unsigned long)(to))
#endif

/* The handler found the task's context, and only the task itself releases it. */

static u32 mpu_handler_from_user(void *to, const void *from, u32 bytes)
{
	return mpu_from_user(to, from, bytes, mpu_context_of_current());
}

static u32 mpu_handler_to_user(void *to, const void *from, u32 bytes)
{
	return mpu_to_user(to, from, bytes, mpu_context_of_current());
}

#define mpu_handler_pointer(regs, n) ((void *)mpu_handler_argument(regs, n))

typedef void mpu_handler_function(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct mpu_handler_regs *regs);

/* Before mpu_hooks_activate() the call belongs to the instance that hands over, if there is one. */
static notrace noinline void mpu_call_peer_handler(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
						   struct mpu_handler_regs *regs)
{
	mpu_handler_function *handler = (mpu_handler_function *)READ_ONCE(mpu_peer_entry);

	if (handler)
		handler(ip, parent_ip, ops, regs);
}

/* The replacement for a call, NULL to run the function itself. Compares in the order of mpu_entry.S. */
static __always_inline void *mpu_replacement(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
					     struct mpu_handler_regs *regs)
{
	unsigned long resume = ip + MCOUNT_INSN_SIZE;

	if (resume == mpu_original[MPU_FIND_NS_PID])
		return atomic_read(&mpu_inside_count) ? mpu_find_ns_pid : NULL;
	if (resume == mpu_original[MPU_FROM_USER])
		return atomic_read(&mpu_translating_count) &&
		       mpu_match_from_user(mpu_handler_pointer(regs, 0), mpu_handler_pointer(regs, 1), mpu_handler_argument(regs, 2)) ?
			mpu_handler_from_user : NULL;
	if (resume == mpu_original[MPU_TO_USER])
		return atomic_read(&mpu_translating_count) &&
		       mpu_match_to_user(mpu_handler_pointer(regs, 0), mpu_handler_pointer(regs, 1), mpu_handler_argument(regs, 2)) ?
			mpu_handler_to_user : NULL;
	if (resume == mpu_original[MPU_IOCTL])
		return mpu_match_ioctl(mpu_handler_pointer(regs, 0), mpu_handler_argument(regs, 1), mpu_handler_argument(regs, 2)) ?
			mpu_ioctl : NULL;
	if (resume == mpu_original[MPU_IS_INIT_NS])
		return atomic_read(&mpu_translating_count) && mpu_match_is_init_ns() ? mpu_is_init_ns : NULL;
	if (resume == mpu_original[MPU_GET_PID_INFO])
		return mpu_get_pid_info;
	if (resume == mpu_original[MPU_COMPAT])
		return mpu_match_compat(mpu_handler_pointer(regs, 0), mpu_handler_argument(regs, 1), mpu_handler_argument(regs, 2)) ?
			mpu_compat : NULL;
	mpu_call_peer_handler(ip, parent_ip, ops, regs);
	return NULL;
}

static void notrace mpu_handler(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct mpu_handler_regs *regs)
{
	void *to = mpu_replacement(ip, parent_ip, ops, regs);

	if (to)
		mpu_handler_set_ip(regs, to);
}

/*
 * With FTRACE_OPS_FL_RCU the kernel calls the handler through ftrace_ops_assist_func(), which reads `func` for each call. So another
 * instance can store its own handler there, and each call reaches one of the two. (Without the flag, the address is part of a
 * trampoline's code. arm64 with CALL_OPS reads `func` for each call in both cases.)
 */
static int mpu_ipmodify_register(struct ftrace_ops *ops)
{
	ops->func = mpu_handler;
	ops->flags |= FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RCU | MPU_SAVE_FLAGS;
	return register_ftrace_function(ops);
}

/*
 * Unregistering waits for a task that was preempted between the handler and the replacement: it is in the registration's trampoline.
 * mpu_exit() waits for a task at the replacement's first instruction, as after a direct call.
 */
static int mpu_ipmodify_unregister(struct ftrace_ops *ops)
{
	return unregister_ftrace_function(ops);
}

static const struct mpu_registration_type mpu_ipmodify_type = { .add = mpu_ipmodify_register, .remove = mpu_ipmodify_unregister };

static int mpu_ipmodify_attach(const struct mpu_redirect *redirects, struct mpu_refusal *refusal)
{
	return mpu_registration_place(&mpu_ipmodify_type, redirects);
}

static int mpu_ipmodify_detach(const struct mpu_redirect *redirects)
{
	return mpu_registration_remove(&mpu_ipmodify_type);
}

/* A registration can be taken over only if these of its flags are as mpu_ipmodify_register() sets them. */
#define MPU_EXCHANGE_FLAGS (FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RCU | FTRACE_OPS_FL_SAVE_REGS)

/*
 * Unregistering copies `saved_func` to `func` while calls still arrive (__unregister_ftrace_function). So both must be replaced before the
 * old instance may be unloaded, `saved_func` first. The kernel runs handlers with preemption off, so after the wait no task is in the old
 * handler. On arm64 with CALL_OPS preemption stays on: there mpu_hooks_detach_peer() and mpu_exit() wait for a task preempted in it.
 */
static void mpu_ipmodify_set_handler(struct ftrace_ops *ops, mpu_handler_function *handler)
{
	WRITE_ONCE(ops->saved_func, handler);
	smp_store_release(&ops->func, handler);
	mpu_wait_for_handlers();
}

static int mpu_ipmodify_take(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	struct ftrace_ops *ops = peer->ops;

	/* A build for other headers may have the kernel save other registers than this handler reads. */
	if (!ops || (ops->flags & MPU_EXCHANGE_FLAGS) != (FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RCU | MPU_SAVE_FLAGS))
		return -EPROTO;
	mpu_ipmodify_set_handler(ops, mpu_handler);
	mpu_registration = ops;
	return 0;
}

static int mpu_ipmodify_give_back(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	mpu_ipmodify_set_handler(peer->ops, peer->handler);
	mpu_registration = NULL;
	return 0;
}

const struct mpu_method mpu_ipmodify = {
	.name = "ipmodify",
	.handler = mpu_handler,
	.attach = mpu_ipmodify_attach,
	.detach = mpu_ipmodify_detach,
	.take = mpu_ipmodify_take,
	.give_back = mpu_ipmodify_give_back,
};
#endif
