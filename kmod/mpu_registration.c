// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * One registration with ftrace that redirects many functions. Knows nothing of how: mpu_direct.c and mpu_ipmodify.c say that.
 */
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/ftrace.h>
#include <linux/slab.h>
#include <linux/stop_machine.h>
#include "mpu_probes.h"
#include "mpu_ways.h"

struct ftrace_ops *mpu_registration;

/* An empty list takes the place of the one that is freed. ftrace_free_filter() would do, but 5.10 does not export it. */
static void mpu_forget(struct ftrace_ops *ops)
{
	ftrace_set_filter(ops, NULL, 0, 1);
	kfree(ops);
}

/*
 * Waits for processors that walk the kernel's list of registrations, with preemption off; also for one that was traced where RCU does
 * not look, as an idle processor is: it has to run something else.
 */
static int mpu_nothing(void *unused)
{
	return 0;
}

static void mpu_wait_for_walkers(void)
{
	stop_machine(mpu_nothing, NULL, NULL);
}

/*
 * With -ENODEV a registration failed half-way: ftrace found code that is not its own, switched itself off, and takes nothing back
 * (ftrace_startup). What it has changed by then calls us for ever.
 */
static bool mpu_is_half_placed(const struct mpu_redirect *redirects)
{
	enum mpu_hook hook;

	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (redirects[hook].found && mpu_is_patched(&redirects[hook]))
			return true;
	}
	return false;
}

/* Redirects the functions that were found. */
static struct ftrace_ops *mpu_register_once(const struct mpu_kind *kind, const struct mpu_redirect *redirects)
{
	struct ftrace_ops *ops = kzalloc(sizeof(*ops), GFP_KERNEL);
	enum mpu_hook hook;
	int error = 0;

	if (!ops)
		return ERR_PTR(-ENOMEM);
	for (hook = 0; hook < MPU_HOOKS && !error; hook++) {
		/* Before 5.18 the kernel knows a function by the patched instruction only (ftrace_match_addr), which is not arm64's first. */
		if (redirects[hook].found)
			error = ftrace_set_filter_ip(ops, redirects[hook].goes_on - MCOUNT_INSN_SIZE, 0, 0);
	}
	if (!error) {
		error = kind->begin(ops);
		if (error == -ENODEV && mpu_is_half_placed(redirects)) {
			mpu_stick(error);
			return ERR_PTR(error);
		}
		/* A refused registration stood in the kernel's list for a moment. */
		if (error)
			mpu_wait_for_walkers();
	}
	if (error) {
		mpu_forget(ops);
		return ERR_PTR(error);
	}
#ifdef MPU_PERMANENT_YES
	/* While it stands, the kernel refuses to switch ftrace off (kernel.ftrace_enabled=0) and the redirects with it. */
	ops->flags |= FTRACE_OPS_FL_PERMANENT;
#endif
	return ops;
}

/*
 * -EAGAIN asks for another try: BPF, which has a direct call of one of the functions, is changing it just then. Blank ops each time,
 * because some kernels do not take those of a refused try.
 */
#define MPU_TRIES 10
#define MPU_TRIES_APART_MS 10

static struct ftrace_ops *mpu_register(const struct mpu_kind *kind, const struct mpu_redirect *redirects)
{
	struct ftrace_ops *ops = mpu_register_once(kind, redirects);
	int tries;

	for (tries = 1; ops == ERR_PTR(-EAGAIN) && tries < MPU_TRIES; tries++) {
		msleep(MPU_TRIES_APART_MS);
		ops = mpu_register_once(kind, redirects);
	}
	return ops;
}

static int mpu_unregister(const struct mpu_kind *kind, struct ftrace_ops *ops)
{
	int error;

#ifdef MPU_PERMANENT_NO
	/*
	 * Where ftrace can be switched off under a registration, the kernel then frees what the functions called without a wait for those who
	 * are still in it (ftrace_shutdown). No new task comes while it is off. Not handled: an administrator switches it off just now.
	 */
	synchronize_rcu_tasks();
#endif
	error = kind->end(ops);
	/* No call looks at it any more: the end has waited for those that did. */
	if (!error)
		mpu_forget(ops);
	return error;
}

int mpu_registration_place(const struct mpu_kind *kind, const struct mpu_redirect *redirects)
{
	struct ftrace_ops *ops = mpu_register(kind, redirects);

	if (IS_ERR(ops))
		return PTR_ERR(ops);
	mpu_registration = ops;
	return 0;
}

int mpu_registration_remove(const struct mpu_kind *kind)
{
	int error = mpu_unregister(kind, mpu_registration);

	if (!error)
		mpu_registration = NULL;
	return error;
}
