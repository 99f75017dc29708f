/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Functions and fields that older kernels lack, or have under another name. mpu_probes.sh finds out which of them a kernel has. All other
 * code is written for newer kernels.
 */
#ifndef MPU_OLDER_H
#define MPU_OLDER_H

#include <linux/cgroup.h>
#include <linux/kernel.h>
#include <linux/ptrace.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/types.h>
#include <linux/uaccess.h>
#include "mpu_probes.h"

/* A task's start time, in nanoseconds since boot. */
static __always_inline u64 mpu_start_time(const struct task_struct *task)
{
#ifdef MPU_BORN_START_BOOTTIME
	return task->start_boottime;
#else
	return task->real_start_time;
#endif
}

/* Copies kernel memory that may not be mapped. Returns 0 on success. */
static __always_inline long mpu_copy_from_kernel(void *to, const void *from, size_t bytes)
{
#ifdef MPU_PEEK_NOFAULT
	return copy_from_kernel_nofault(to, from, bytes);
#else
	return probe_kernel_read(to, from, bytes);
#endif
}

/* An ID that no other cgroup has or had. */
static __always_inline u64 mpu_cgroup_id(struct cgroup *cgroup)
{
#ifdef MPU_GROUP_FUNCTION
	return cgroup_id(cgroup);
#else
	return cgroup->kn->id.id;
#endif
}

/* Waits for code that runs with preemption off, such as ftrace's handlers. Where synchronize_sched() exists, synchronize_rcu() may not. */
static inline void mpu_wait_for_handlers(void)
{
#ifdef MPU_PREEMPTION_SCHED
	synchronize_sched();
#else
	synchronize_rcu();
#endif
}

/* A function's argument at its entry; `n` counts from 0. */
static __always_inline unsigned long mpu_function_argument(struct pt_regs *regs, unsigned int n)
{
#ifdef MPU_ARGUMENT_FUNCTION
	return regs_get_kernel_argument(regs, n);
#else
	/* The order of the System V ABI for x86-64, which the kernel follows. */
	const unsigned long in[] = { regs->di, regs->si, regs->dx, regs->cx, regs->r8, regs->r9 };

	return n < ARRAY_SIZE(in) ? in[n] : 0;
#endif
}

#endif
