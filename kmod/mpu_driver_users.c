// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Whether data that the driver keeps under a PID can belong to the process that has this PID now.
 *
 * The driver keeps listing an ended process while another process (a forked child, or a receiver of the file) has its files open. It also
 * keeps samples of it for some seconds. Meanwhile the kernel can give the PID to another process. So data under a PID belongs to a process
 * only if the process has a file of the driver open, or was seen to have or use one before.
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

/* The open files and descriptors that are searched. A process with more before its first file of the driver counts as a user of it. */
#define MPU_MAX_FILES 1024
#define MPU_MAX_FDS 16384

/*
 * The threads that are searched for one that still has files. A process can keep any number of ended threads by tracing them, and each
 * makes a look-up longer, which runs under RCU. A process whose first MPU_MAX_THREADS threads have ended counts as no user.
 */
#define MPU_MAX_THREADS 64

u64 mpu_driver_users[1 << MPU_DRIVER_USER_BITS];

/* Does not use iterate_fd(), which visits every slot of the table: a container can make a hundred million. */
static bool mpu_files_have_driver(struct files_struct *files)
{
	unsigned int fd, seen = 0;
	const struct module *owner;
	struct fdtable *table;
	struct file *file;
	bool found = false;

	spin_lock(&files->file_lock);
	table = files_fdtable(files);
	for (fd = 0; fd < table->max_fds && !found; fd++) {
		file = rcu_dereference_check_fdtable(files, table->fd[fd]);
		owner = file ? file->f_op->owner : NULL;
		seen += !!file;
		found = (owner && !strcmp(owner->name, "nvidia")) || seen >= MPU_MAX_FILES || fd >= MPU_MAX_FDS;
	}
	spin_unlock(&files->file_lock);
	return found;
}

/* Under RCU. Checks one thread, the first that still has files, because threads nearly always share them. */
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

bool mpu_check_driver_user(struct task_struct *leader, u64 *slot, u64 tag)
{
	if (!mpu_process_has_driver(leader))
		return false;
	WRITE_ONCE(*slot, tag);
	return true;
}

void mpu_note_driver_user(void)
{
	struct pid *pid = task_tgid(current);

	WRITE_ONCE(*mpu_driver_user_slot(pid_nr(pid)), mpu_driver_user_tag(pid, current->group_leader));
}
