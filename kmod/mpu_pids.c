// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Translates PIDs between PID namespaces.
 *
 * Only processes are translated, never threads. So a PID that was freed and reused by a thread is not taken for a process.
 */
#include <linux/idr.h>
#include <linux/math64.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/timekeeping.h>
#include "mpu.h"
#ifdef MPU_TREE_XARRAY
#include <linux/xarray.h>
#endif

/*
 * An inline find_pid_ns(), because a table needs one look-up for each row. The kernel's own walk (__radix_tree_lookup) takes more than
 * twice as many instructions for each level. This falls back to it where it must not follow an entry: a node that is being removed.
 */
static __always_inline struct pid *mpu_find_pid(u32 nr, struct pid_namespace *ns)
{
#ifdef MPU_TREE_XARRAY
	unsigned long index = (unsigned long)nr - ns->idr.idr_base;
	const struct xarray *tree = &ns->idr.idr_rt;
	const struct xa_node *node;
	void *entry = xa_head(tree);

	if (!xa_is_node(entry) || index >> xa_to_node(entry)->shift >= XA_CHUNK_SIZE)
		return idr_find(&ns->idr, nr);
	do {
		node = xa_to_node(entry);
		entry = xa_entry(tree, node, (index >> node->shift) & XA_CHUNK_MASK);
	} while (xa_is_node(entry));
	if (likely(!xa_is_internal(entry)))
		return entry;
#endif
	return idr_find(&ns->idr, nr);
}

/* The leader of the process with this pid; NULL if it is no process. Under RCU. */
static __always_inline struct task_struct *mpu_leader_of(struct pid *pid)
{
	struct hlist_node *first = pid ? READ_ONCE(pid->tasks[PIDTYPE_TGID].first) : NULL;

	return first ? hlist_entry(first, struct task_struct, pid_links[PIDTYPE_TGID]) : NULL;
}

/* Whether data that the driver keeps under this process's PID can belong to it: mpu_driver_users.c. */
static __always_inline bool mpu_may_own_driver_data(const struct pid *pid, struct task_struct *leader, u32 host)
{
	u64 tag = mpu_driver_user_tag(pid, leader), *slot = mpu_driver_user_slot(host);

	return likely(READ_ONCE(*slot) == tag) || mpu_check_driver_user(leader, slot, tag);
}

/* An inline pid_nr_ns(), because a table needs it for each row. */
static __always_inline u32 mpu_pid_nr_in(const struct pid *pid, const struct pid_namespace *ns)
{
	const struct upid *upid;

	if (ns->level > pid->level)
		return 0;
	upid = &pid->numbers[ns->level];
	return upid->ns == ns ? upid->nr : 0;
}

/* These run under RCU. The caller of the core takes it once for a whole table. */

u32 mpu_c_view_of(const void *opaque, u32 host)
{
	const struct mpu_view *view = opaque;
	struct pid *pid = mpu_find_pid(host, &init_pid_ns);
	struct task_struct *leader = mpu_leader_of(pid);
	u32 number;

	if (!leader)
		return 0;
	number = mpu_pid_nr_in(pid, view->ns);
	if (unlikely(!number && view->group)) {
		/* A process of the group without a PID in this namespace gets its host PID, unless another process here has that PID. */
		number = mpu_policy_is_in_group(pid, view) && !mpu_find_pid(host, view->ns) ? host : 0;
	}
	return number && mpu_may_own_driver_data(pid, leader, host) ? number : 0;
}

u32 mpu_c_host_of(const void *opaque, u32 number)
{
	const struct mpu_view *view = opaque;
	struct pid *pid = mpu_find_pid(number, view->ns);
	struct task_struct *leader;
	u32 host;

	if (unlikely(!pid && view->group)) {
		pid = mpu_find_pid(number, &init_pid_ns);
		if (!mpu_leader_of(pid) || mpu_pid_nr_in(pid, view->ns) || !mpu_policy_is_in_group(pid, view))
			return 0;
	}
	leader = mpu_leader_of(pid);
	if (!leader)
		return 0;
	host = pid_nr(pid);
	return mpu_may_own_driver_data(pid, leader, host) ? host : 0;
}

u64 mpu_c_started(u32 host)
{
	struct task_struct *task = mpu_leader_of(mpu_find_pid(host, &init_pid_ns));
	/* The time of boot by the wall clock. It changes only if the clock is set. */
	s64 booted = ktime_to_ns(ktime_mono_to_any(0, TK_OFFS_REAL)) - ktime_to_ns(ktime_mono_to_any(0, TK_OFFS_BOOT));

	return task ? div_u64(booted + mpu_start_time(task), NSEC_PER_USEC) : 0;
}

/* Drivers 535.113 to 570.144, and 575.51, keep the thread that made the client. */
u32 mpu_process_of_thread(struct pid *pid)
{
	struct task_struct *task;
	u32 found;

	rcu_read_lock();
	task = pid_task(pid, PIDTYPE_PID);
	found = task ? task_tgid_nr(task) : 0;
	rcu_read_unlock();
	return found;
}
