// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * One registration with ftrace that redirects many functions. mpu_direct.c and mpu_ipmodify.c define its type.
 */
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/ftrace.h>
#include <linux/slab.h>
#include <linux/stop_machine.h>
#include "mpu_probes.h"
#include "mpu_methods.h"

struct ftrace_ops *mpu_registration;

/* Replaces the filter by an empty one, which frees it. ftrace_free_filter() would do this, but 5.10 does not export it. */
static void mpu_free_ops(struct ftrace_ops *ops)
{
	ftrace_set_filter(ops, NULL, 0, 1);
	kfree(ops);
}

/*
 * Waits for processors that walk the kernel's list of registrations with preemption off. stop_machine() also waits for a processor that was
 * traced where RCU does not watch, such as in the idle loop.
 */
static int mpu_do_nothing(void *unused)
{
	return 0;
}

static void mpu_wait_for_walkers(void)
{
	stop_machine(mpu_do_nothing, NULL, NULL);
}

/*
 * After -ENODEV a registration can be half done: ftrace found code that it did not write, switched itself off, and undoes nothing
 * (ftrace_startup). A function that it has already patched calls this module until the next boot.
 */
static bool mpu_is_partly_patched(const struct mpu_redirect *redirects)
{
	enum mpu_hook hook;

	for (hook = 0; hook < MPU_HOOKS; hook++) {
		if (redirects[hook].symbol && mpu_is_patched(&redirects[hook]))
			return true;
	}
	return false;
}

/* Redirects the functions that were found. */
static struct ftrace_ops *mpu_register_once(const struct mpu_registration_type *type, const struct mpu_redirect *redirects)
{
	struct ftrace_ops *ops = kzalloc(sizeof(*ops), GFP_KERNEL);
	enum mpu_hook hook;
	int error = 0;

	if (!ops)
		return ERR_PTR(-ENOMEM);
	for (hook = 0; hook < MPU_HOOKS && !error; hook++) {
		/* Before 5.18 the kernel matches the patched instruction only (ftrace_match_addr); on arm64 that is not the first one. */
		if (redirects[hook].symbol)
			error = ftrace_set_filter_ip(ops, redirects[hook].resume - MCOUNT_INSN_SIZE, 0, 0);
	}
	if (!error) {
		error = type->add(ops);
		if (error == -ENODEV && mpu_is_partly_patched(redirects)) {
			mpu_set_stuck(error);
			return ERR_PTR(error);
		}
		/* A refused registration was in the kernel's list for a moment. */
		if (error)
			mpu_wait_for_walkers();
	}
	if (error) {
		mpu_free_ops(ops);
		return ERR_PTR(error);
	}
#ifdef MPU_PERMANENT_YES
	/* While it is registered, the kernel refuses kernel.ftrace_enabled=0, which would switch the redirects off. */
	ops->flags |= FTRACE_OPS_FL_PERMANENT;
#endif
	return ops;
}

/*
 * -EAGAIN: BPF has a direct call of one of the functions, and is changing it at the moment. Each try gets new ops, because some kernels
 * refuse ops that they have refused before.
 */
#define MPU_TRIES 10
#define MPU_RETRY_MS 10

static struct ftrace_ops *mpu_register(const struct mpu_registration_type *type, const struct mpu_redirect *redirects)
{
	struct ftrace_ops *ops = mpu_register_once(type, redirects);
	int tries;

	for (tries = 1; ops == ERR_PTR(-EAGAIN) && tries < MPU_TRIES; tries++) {
		msleep(MPU_RETRY_MS);
		ops = mpu_register_once(type, redirects);
	}
	return ops;
}

static int mpu_unregister(const struct mpu_registration_type *type, struct ftrace_ops *ops)
{
	int error;

#ifdef MPU_PERMANENT_NO
	/*
	 * These kernels can switch ftrace off while a registration exists. They then free its trampoline without waiting for tasks that are
	 * still in it (ftrace_shutdown), so wait here. No new task enters while ftrace is off. Not handled: ftrace is switched off between
	 * this wait and the removal.
	 */
	synchronize_rcu_tasks();
#endif
	error = type->remove(ops);
	/* No call uses it any more: remove() has waited for them. */
	if (!error)
		mpu_free_ops(ops);
	return error;
}

int mpu_registration_place(const struct mpu_registration_type *type, const struct mpu_redirect *redirects)
{
	struct ftrace_ops *ops = mpu_register(type, redirects);

	if (IS_ERR(ops))
		return PTR_ERR(ops);
	mpu_registration = ops;
	return 0;
}

int mpu_registration_remove(const struct mpu_registration_type *type)
{
	int error = mpu_unregister(type, mpu_registration);

	if (!error)
		mpu_registration = NULL;
	return error;
}
