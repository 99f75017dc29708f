// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The policy: rules written by root, by which a caller sees more than its own PID namespace. This file stores them, and gets the running
 * task's cgroup in the unified hierarchy. The Rust core parses and matches the rules.
 */
#include <linux/cgroup.h>
#include <linux/kernfs.h>
#include <linux/limits.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>
#include "mpu.h"

struct mpu_rules {
	struct rcu_head rcu;
	/* The places of the rules in the text, so that no call parses it. */
	u32 table[MPU_POLICY_BYTES / sizeof(u32)];
	u32 length;
	char text[];
};

/* NULL if there are none. Written under kernel_param_lock(). */
static struct mpu_rules __rcu *mpu_rules;

bool mpu_policy_is_set(void)
{
	return rcu_access_pointer(mpu_rules);
}

static void mpu_policy_replace(struct mpu_rules *with)
{
	struct mpu_rules *old = rcu_dereference_protected(mpu_rules, true);

	rcu_assign_pointer(mpu_rules, with);
	if (old)
		kfree_rcu(old, rcu);
}

static int mpu_policy_set(const char *text, const struct kernel_param *param)
{
	struct mpu_rules *rules;
	size_t length = strnlen(text, PAGE_SIZE);
	u32 line;

	/* sysfs drops a write of 0 bytes, so an empty line removes the policy. */
	while (length && text[length - 1] == '\n')
		length--;
	if (!length) {
		mpu_policy_replace(NULL);
		return 0;
	}
	rules = kmalloc(struct_size(rules, text, length), GFP_KERNEL);
	if (!rules)
		return -ENOMEM;
	rules->length = length;
	memcpy(rules->text, text, length);
	line = mpu_rs_policy_read(rules->table, (const u8 *)rules->text, length);
	if (line) {
		kfree(rules);
		pr_warn("mpu: line %u of the policy is no rule; the policy stays as it was\n", line);
		return -EINVAL;
	}
	mpu_policy_replace(rules);
	return 0;
}

static int mpu_policy_get(char *buffer, const struct kernel_param *param)
{
	const struct mpu_rules *rules;
	int length = 0;

	/* Hide the rules from a container, whose root can read this file if it is the host's root. */
	if (mpu_in_container())
		return 0;
	rcu_read_lock();
	rules = rcu_dereference(mpu_rules);
	if (rules)
		length = scnprintf(buffer, PAGE_SIZE, "%.*s", (int)rules->length, rules->text);
	rcu_read_unlock();
	return length;
}

/* After unloading, or if loading failed. */
static void mpu_policy_free(void *unused)
{
	mpu_policy_replace(NULL);
}

static const struct kernel_param_ops mpu_policy_ops = {
	.set = mpu_policy_set,
	.get = mpu_policy_get,
	.free = mpu_policy_free,
};
module_param_cb(policy, &mpu_policy_ops, NULL, 0600);
MODULE_PARM_DESC(policy, "Who sees more than its own PID namespace: lines of `own|group|host GLOB` over cgroup paths");

/* The ancestor of a cgroup at this depth, or the cgroup itself; NULL if the cgroup is not so deep. */
static struct cgroup *mpu_ancestor(struct cgroup *cgroup, u32 depth)
{
	while (cgroup && cgroup->level > depth)
		cgroup = cgroup_parent(cgroup);
	return cgroup && cgroup->level == depth ? cgroup : NULL;
}

u32 mpu_policy_of_current(struct mpu_view *view)
{
	char *path = kmalloc(PATH_MAX, GFP_KERNEL);
	const struct mpu_rules *rules;
	u32 sees = MPU_SEES_OWN, depth;
	struct cgroup *cgroup;
	int length;

	if (!path) {
		/* Without memory the caller sees less than the rules may allow, never more. */
		mpu_count_reason(MPU_REASON_NO_MEMORY);
		return MPU_SEES_OWN;
	}
	rcu_read_lock();
	rules = rcu_dereference(mpu_rules);
	cgroup = task_dfl_cgroup(current);
	if (rules) {
		length = kernfs_path(cgroup->kn, path, PATH_MAX);
		if (length > 0 && length < PATH_MAX)
			sees = mpu_rs_policy(rules->table, (const u8 *)rules->text, rules->length, (const u8 *)path,
					     length, &depth);
	}
	if (sees == MPU_SEES_GROUP) {
		cgroup = mpu_ancestor(cgroup, depth);
		if (cgroup) {
			view->group = mpu_cgroup_id(cgroup);
			view->group_depth = depth;
		} else {
			/* The task was moved to another cgroup meanwhile. */
			sees = MPU_SEES_OWN;
		}
	}
	rcu_read_unlock();
	kfree(path);
	return sees;
}

bool mpu_policy_is_in_group(struct pid *pid, const struct mpu_view *view)
{
	struct task_struct *task = pid_task(pid, PIDTYPE_TGID);
	struct cgroup *cgroup = task ? mpu_ancestor(task_dfl_cgroup(task), view->group_depth) : NULL;

	return cgroup && mpu_cgroup_id(cgroup) == view->group;
}
