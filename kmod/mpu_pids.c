// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Process ids between PID namespaces, by the kernel's own functions.
 *
 * Only processes have an answer here: a number that names nothing, or only a thread, is nobody's. So a number that was
 * freed and given to somebody's thread cannot be taken for a process.
 */
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include "mpu.h"

static bool mpu_is_process(struct pid *pid)
{
	return pid && !hlist_empty(&pid->tasks[PIDTYPE_TGID]);
}

/* Both under RCU, which the caller of the core holds: one lock for a whole table. */

u32 mpu_c_view_of(const void *view, u32 host)
{
	struct pid *pid = find_pid_ns((int)host, &init_pid_ns);

	return mpu_is_process(pid) ? pid_nr_ns(pid, (struct pid_namespace *)view) : 0;
}

u32 mpu_c_host_of(const void *view, u32 number)
{
	struct pid *pid = find_pid_ns((int)number, (struct pid_namespace *)view);

	return mpu_is_process(pid) ? pid_nr(pid) : 0;
}

u32 mpu_host_pid_of(struct pid *pid)
{
	struct task_struct *task;
	u32 found;

	/* The driver holds the reference; a process's number stands in it. */
	if (mpu_is_process(pid))
		return pid_nr(pid);
	/* Drivers 535.113 to 570.144 keep the thread that made the client: its process is meant. */
	rcu_read_lock();
	task = pid_task(pid, PIDTYPE_PID);
	found = task ? task_tgid_nr(task) : 0;
	rcu_read_unlock();
	return found;
}
