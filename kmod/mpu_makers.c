// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Whether a process can have made what the driver keeps under its number.
 *
 * The driver goes on listing a process that has ended for as long as somebody else holds its files open (a forked child, whoever was
 * sent them), and keeps samples of it for seconds. The kernel gives the number to another process meanwhile. What is kept under a
 * number belongs to a process only if that process has, or was seen to use, a file of the driver's.
 */
#include <linux/fdtable.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/string.h>
#include "mpu.h"

/* Descriptors that are looked at. A process that has more before its first of the driver is taken for a maker. */
#define MPU_MOST_FILES 1024

u64 mpu_makers[1 << MPU_MAKERS_BITS];

struct mpu_walk {
	unsigned int files;
};

/* Not 0 ends the walk. */
static int mpu_is_the_drivers(const void *opaque, struct file *file, unsigned int number)
{
	struct mpu_walk *walk = (struct mpu_walk *)opaque;
	const struct module *owner = file->f_op->owner;

	return (owner && !strcmp(owner->name, "nvidia")) || ++walk->files >= MPU_MOST_FILES;
}

/* Under RCU. Threads share their files nearly always; the first that still has some speaks for all. */
static bool mpu_holds_the_driver(struct task_struct *leader)
{
	struct mpu_walk walk = { 0 };
	struct task_struct *thread;
	bool found = false, any = false;

	for_each_thread(leader, thread) {
		task_lock(thread);
		if (thread->files) {
			any = true;
			found = iterate_fd(thread->files, 0, mpu_is_the_drivers, &walk);
		}
		task_unlock(thread);
		if (any)
			break;
	}
	return found;
}

bool mpu_finds_maker(struct task_struct *leader, u64 *place, u64 word)
{
	if (!mpu_holds_the_driver(leader))
		return false;
	WRITE_ONCE(*place, word);
	return true;
}

void mpu_note_maker(void)
{
	struct pid *pid = task_tgid(current);

	WRITE_ONCE(*mpu_maker_at(pid_nr(pid)), mpu_maker_word(pid, current->group_leader));
}
