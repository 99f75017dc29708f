// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Redirects by an ftrace handler that changes where the function goes on: for kernels without direct calls, and for functions whose
 * direct call another tracer has. Slower than a direct call, because the kernel saves the registers and calls the handler for every
 * call; the replacements, and how a replacement runs the function it replaces, are the same.
 *
 * The handler asks what mpu_entry.S asks. On "yes" ftrace returns into the replacement instead of the function, whose arguments it
 * restores; the context, which is no argument of the function's, is looked up again.
 *
 * Nothing that the handler calls is redirected, so it never meets itself: it takes no lock against recursion of its own.
 */
#include <linux/atomic.h>
#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/ftrace.h>
#include <linux/ptrace.h>
#include <linux/rcupdate.h>
#include "mpu_probes.h"
#include "mpu_ways.h"

#ifndef MPU_HANDLER_NONE
extern atomic_t mpu_inside_count;

#ifdef MPU_HANDLER_ARGS
/* The kernel saves just the arguments. */
#define MPU_SAVES 0
#define mpu_given ftrace_regs
#define mpu_argument_of(given, n) ftrace_regs_get_argument(given, n)
#define mpu_leads_to(given, to) ftrace_regs_set_instruction_pointer(given, (unsigned long)(to))
#else
/* The kernel saves all registers. */
#define MPU_SAVES FTRACE_OPS_FL_SAVE_REGS
#ifdef MPU_HANDLER_FREGS
#define mpu_given ftrace_regs
#define mpu_registers_of(given) ftrace_get_regs(given)
#else
#define mpu_given pt_regs
#define mpu_registers_of(given) (given)
#endif
#define mpu_argument_of(given, n) mpu_nth(mpu_registers_of(given), n)
#define mpu_leads_to(given, to) instruction_pointer_set(mpu_registers_of(given), (unsigned long)(to))
#endif

/* The handler found that the task has a context, and only the task itself takes it away. */

static u32 mpu_led_from_user(void *to, const void *from, u32 bytes)
{
	return mpu_from_user(to, from, bytes, mpu_context_of_current());
}

static u32 mpu_led_to_user(void *to, const void *from, u32 bytes)
{
	return mpu_to_user(to, from, bytes, mpu_context_of_current());
}

#define mpu_pointer_of(given, n) ((void *)mpu_argument_of(given, n))

typedef void mpu_handles(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct mpu_given *given);

/* Before this instance begins: the call is the other instance's, which hands over; or the function's own. */
static notrace noinline void mpu_elder_handles(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct mpu_given *given)
{
	mpu_handles *elder = (mpu_handles *)READ_ONCE(mpu_elder);

	if (elder)
		elder(ip, parent_ip, ops, given);
}

/* Which replacement a call goes to, NULL for the function itself; by where the function goes on, in the order of mpu_entry.S. */
static __always_inline void *mpu_replacement(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct mpu_given *given)
{
	unsigned long goes_on = ip + MCOUNT_INSN_SIZE;

	if (goes_on == mpu_original[MPU_FIND_NS_PID])
		return atomic_read(&mpu_inside_count) ? mpu_find_ns_pid : NULL;
	if (goes_on == mpu_original[MPU_FROM_USER])
		return atomic_read(&mpu_translating_count) &&
		       mpu_wants_from_user(mpu_pointer_of(given, 0), mpu_pointer_of(given, 1), mpu_argument_of(given, 2)) ?
			mpu_led_from_user : NULL;
	if (goes_on == mpu_original[MPU_TO_USER])
		return atomic_read(&mpu_translating_count) &&
		       mpu_wants_to_user(mpu_pointer_of(given, 0), mpu_pointer_of(given, 1), mpu_argument_of(given, 2)) ?
			mpu_led_to_user : NULL;
	if (goes_on == mpu_original[MPU_IOCTL])
		return mpu_wants_ioctl(mpu_pointer_of(given, 0), mpu_argument_of(given, 1), mpu_argument_of(given, 2)) ?
			mpu_ioctl : NULL;
	if (goes_on == mpu_original[MPU_IS_INIT_NS])
		return atomic_read(&mpu_translating_count) && mpu_wants_is_init_ns() ? mpu_is_init_ns : NULL;
	if (goes_on == mpu_original[MPU_GET_PID_INFO])
		return mpu_get_pid_info;
	if (goes_on == mpu_original[MPU_COMPAT])
		return mpu_wants_compat(mpu_pointer_of(given, 0), mpu_argument_of(given, 1), mpu_argument_of(given, 2)) ?
			mpu_compat : NULL;
	mpu_elder_handles(ip, parent_ip, ops, given);
	return NULL;
}

static void notrace mpu_handler(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct mpu_given *given)
{
	void *to = mpu_replacement(ip, parent_ip, ops, given);

	if (to)
		mpu_leads_to(given, to);
}

/*
 * With _RCU set the kernel calls a handler through ftrace_ops_assist_func(), which reads `func` for each call: so another instance can
 * put its own there, and no call meets neither. (Without it the address stands in a trampoline's code; arm64 with CALL_OPS reads `func`
 * for each call either way.)
 */
static int mpu_ipmodify_begin(struct ftrace_ops *ops)
{
	ops->func = mpu_handler;
	ops->flags |= FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RCU | MPU_SAVES;
	return register_ftrace_function(ops);
}

/*
 * A task that was preempted between the handler and the replacement stands in the registration's trampoline, and unregistering waits for
 * it. mpu_exit() waits for a task that is at the replacement's first instruction by then, as after a direct call.
 */
static int mpu_ipmodify_end(struct ftrace_ops *ops)
{
	return unregister_ftrace_function(ops);
}

static const struct mpu_kind mpu_ipmodify_kind = { .begin = mpu_ipmodify_begin, .end = mpu_ipmodify_end };

static int mpu_ipmodify_attach(const struct mpu_redirect *redirects, struct mpu_refusal *refusal)
{
	return mpu_registration_place(&mpu_ipmodify_kind, redirects);
}

static int mpu_ipmodify_detach(const struct mpu_redirect *redirects)
{
	return mpu_registration_remove(&mpu_ipmodify_kind);
}

/* What a registration must be like whose handler can be exchanged for this one. */
#define MPU_EXCHANGED (FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RCU | FTRACE_OPS_FL_SAVE_REGS)

/*
 * Unregistering puts `saved_func` into `func` while calls still come (__unregister_ftrace_function). It is the new one before `func` is,
 * so that the old one is in neither once its instance may go. The kernel runs handlers with preemption off: no task is in the old one then.
 * On arm64 with CALL_OPS preemption stays on: there mpu_hooks_alone() and mpu_exit() wait for a task that was preempted in it.
 */
static void mpu_ipmodify_exchange(struct ftrace_ops *ops, mpu_handles *handler)
{
	WRITE_ONCE(ops->saved_func, handler);
	smp_store_release(&ops->func, handler);
	mpu_wait_for_handlers();
}

static int mpu_ipmodify_take(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	struct ftrace_ops *ops = peer->ops;

	/* A build for other headers may have had other registers saved than this handler reads. */
	if (!ops || (ops->flags & MPU_EXCHANGED) != (FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RCU | MPU_SAVES))
		return -EPROTO;
	mpu_ipmodify_exchange(ops, mpu_handler);
	mpu_registration = ops;
	return 0;
}

static int mpu_ipmodify_give_back(const struct mpu_redirect *redirects, struct mpu_peer *peer)
{
	mpu_ipmodify_exchange(peer->ops, peer->handler);
	mpu_registration = NULL;
	return 0;
}

const struct mpu_way mpu_ipmodify = {
	.name = "ipmodify",
	.handler = mpu_handler,
	.attach = mpu_ipmodify_attach,
	.detach = mpu_ipmodify_detach,
	.take = mpu_ipmodify_take,
	.give_back = mpu_ipmodify_give_back,
};
#endif
