// SPDX-License-Identifier: GPL-2.0 OR MIT
/* /proc/driver/nvidia/version, whose first line names the release and the flavour. */
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "sim.h"

static struct proc_dir_entry *nv_proc_dir;

static int version_show(struct seq_file *m, void *v)
{
	if (SIM_OPEN_FLAVOUR)
		seq_puts(m, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " SIM_VERSION "  Release Build  (simulated)\n");
	else
		seq_puts(m, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " SIM_VERSION "  (simulated)\n");
	seq_puts(m, "GCC version:  " __VERSION__ "\n");
	return 0;
}

int nv_proc_init(void)
{
	/* "driver" is made by the kernel's proc root; only our folder is ours to make and to remove. */
	nv_proc_dir = proc_mkdir("driver/nvidia", NULL);
	if (!nv_proc_dir)
		return -ENOMEM;
	if (!proc_create_single("version", 0444, nv_proc_dir, version_show)) {
		proc_remove(nv_proc_dir);
		return -ENOMEM;
	}
	return 0;
}

void nv_proc_exit(void)
{
	proc_remove(nv_proc_dir);
}
