// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Whether a process can have made what the driver keeps under its number.
 *
 * The driver goes on listing a process that has ended for as long as another process holds its files open (a forked child, or a
 * receiver of the files), and keeps samples of it for seconds. The kernel gives the number to another process meanwhile. What is kept under a
 * number belongs to a process only if that process has, or was seen to use, a file of the driver's.
 */
#include <linux/fdtable.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include "mpu.h"

/* Open files that are looked at, and places for some: a process that has more before its first of the driver is taken for a maker. */
#define MPU_MAX_FILES 1024
#define MPU_MAX_FDS 16384

/* Threads that are looked at for one that still has files. Those that ended go, but for the traced ones: of these a process can have as many as
 * it likes, and each of them makes a question longer that the whole table is asked under RCU. A process that has so many holds nothing. */
#define MPU_MAX_THREADS 64

u64 mpu_driver_users[1 << MPU_DRIVER_USER_BITS];

/* Not by iterate_fd(): that looks at every place that a table has, of which a container can make a hundred million. */
static bool mpu_files_have_driver(struct files_struct *files)
{
	unsigned int place, seen = 0;
	const struct module *owner;
	struct fdtable *table;
	struct file *file;
	bool found = false;

	spin_lock(&files->file_lock);
	table = files_fdtable(files);
	for (place = 0; place < table->max_fds && !found; place++) {
		file = rcu_dereference_check_fdtable(files, table->fd[place]);
		owner = file ? file->f_op->owner : NULL;
		seen += !!file;
		found = (owner && !strcmp(owner->name, "nvidia")) || seen >= MPU_MAX_FILES || place >= MPU_MAX_FDS;
	}
	spin_unlock(&files->file_lock);
	return found;
}

/* Under RCU. Threads share their files nearly always; the first that still has some speaks for all. */
static bool mpu_process_has_driver(struct task_struct *leader)
{
	struct task_struct *thread;
	bool found = false, any = false;
	unsigned int seen = 0;

	for_each_thread(leader, thread) {
		if (seen++ == MPU_MAX_THREADS)
			break;
		task_lock(thread);
		if (thread->files) {
			any = true;
			found = mpu_files_have_driver(thread->files);
		}
		task_unlock(thread);
		if (any)
			break;
	}
	return found;
}

bool mpu_check_driver_user(struct task_struct *leader, u64 *place, u64 word)
{
	if (!mpu_process_has_driver(leader))
		return false;
	WRITE_ONCE(*place, word);
	return true;
}

void mpu_note_driver_user(void)
{
	struct pid *pid = task_tgid(current);

	WRITE_ONCE(*mpu_driver_user_slot(pid_nr(pid)), mpu_driver_user_tag(pid, current->group_leader));
}
