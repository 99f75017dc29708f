// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The policy: who in a PID namespace of its own sees more than that. Holds the rules that root wrote, and finds out which
 * of them is for the running task, by its cgroup in the unified hierarchy. What a rule means is the core's.
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
	/* Where the rules lie in the text: a call matches them, and does not look for them. */
	u32 table[MPU_POLICY_BYTES / sizeof(u32)];
	u32 length;
	char text[];
};

/* NULL while there are none. Written under the kernel's lock of parameters. */
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

	/* A file of sysfs cannot be written empty: a line without a rule takes the policy away. */
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

	/* Whose rule is which is the host's business: a container can have this file, where its root is the host's. */
	if (mpu_in_container())
		return 0;
	rcu_read_lock();
	rules = rcu_dereference(mpu_rules);
	if (rules)
		length = scnprintf(buffer, PAGE_SIZE, "%.*s", (int)rules->length, rules->text);
	rcu_read_unlock();
	return length;
}

/* When the module goes, or did not come. */
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

/* The cgroup that lies `depth` names below the root on the way to this one. */
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
		/* Less than the rules may allow, never more. */
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
			/* It was moved meanwhile. */
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
