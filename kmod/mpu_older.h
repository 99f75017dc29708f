/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What older kernels call by another name, or lack: mpu_probes.sh says which of the two a kernel has. Everything else is written for the
 * newer ones alone.
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

/* When a task was born, in nanoseconds since the host booted. */
static __always_inline u64 mpu_born(const struct task_struct *task)
{
#ifdef MPU_BORN_START_BOOTTIME
	return task->start_boottime;
#else
	return task->real_start_time;
#endif
}

/* Reads kernel memory that may not be there; 0 if it is. */
static __always_inline long mpu_peek(void *to, const void *from, size_t bytes)
{
#ifdef MPU_PEEK_NOFAULT
	return copy_from_kernel_nofault(to, from, bytes);
#else
	return probe_kernel_read(to, from, bytes);
#endif
}

/* What no other cgroup has, nor had. */
static __always_inline u64 mpu_group_id(struct cgroup *cgroup)
{
#ifdef MPU_GROUP_FUNCTION
	return cgroup_id(cgroup);
#else
	return cgroup->kn->id.id;
#endif
}

/* Waits for everybody who runs with preemption off, such as ftrace's handlers. Where there are two functions, the other one may not. */
static inline void mpu_wait_for_handlers(void)
{
#ifdef MPU_PREEMPTION_SCHED
	synchronize_sched();
#else
	synchronize_rcu();
#endif
}

/* A function's argument at its entry, counted from 0. */
static __always_inline unsigned long mpu_nth(struct pt_regs *regs, unsigned int n)
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
