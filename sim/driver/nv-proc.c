// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * /proc/driver/nvidia: version, whose first line names the release and the flavour; params, which container software replaces; registry; and
 * a folder for each GPU, by its PCI address.
 */
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "sim.h"

#ifdef CONFIG_ARM64
#define NV_PROCESSOR "aarch64"
#else
#define NV_PROCESSOR "x86_64"
#endif

static struct proc_dir_entry *nv_proc_dir;

static int version_show(struct seq_file *m, void *v)
{
	if (SIM_OPEN_FLAVOUR)
		seq_puts(m, "NVRM version: NVIDIA UNIX Open Kernel Module for " NV_PROCESSOR "  " SIM_VERSION "  Release Build  (simulated)\n");
	else
		seq_puts(m, "NVRM version: NVIDIA UNIX " NV_PROCESSOR " Kernel Module  " SIM_VERSION "  (simulated)\n");
	seq_puts(m, "GCC version:  " __VERSION__ "\n");
	return 0;
}

/* ModifyDeviceFiles decides whether user space makes device nodes. The other lines describe those nodes. */
static int params_show(struct seq_file *m, void *v)
{
	seq_puts(m, "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n");
	return 0;
}

static int registry_show(struct seq_file *m, void *v)
{
	seq_puts(m, "Binary: \"\"\n");
	return 0;
}

static int information_show(struct seq_file *m, void *v)
{
	NvU32 gpu = (NvU32)(uintptr_t)m->private;

	seq_puts(m, "Model: \t\t Simulated GPU\n");
	seq_puts(m, "IRQ:   \t\t 0\n");
	seq_printf(m, "GPU UUID: \t GPU-0073696d-0000-0000-0000-0000000000%02x\n", gpu + 1);
	seq_puts(m, "Bus Type: \t PCIe\n");
	seq_printf(m, "Bus Location: \t 0000:%02x:00.0\n", gpu + 1);
	seq_printf(m, "Device Minor: \t %u\n", gpu);
	seq_puts(m, "GPU Excluded:\t No\n");
	return 0;
}

static int nv_proc_gpus(void)
{
	struct proc_dir_entry *gpus = proc_mkdir("gpus", nv_proc_dir);
	char name[24];
	NvU32 gpu;

	for (gpu = 0; gpus && gpu < sim_gpus; gpu++) {
		struct proc_dir_entry *folder;

		snprintf(name, sizeof(name), "0000:%02x:00.0", gpu + 1);
		folder = proc_mkdir(name, gpus);
		if (!folder || !proc_create_single_data("information", 0444, folder, information_show, (void *)(uintptr_t)gpu))
			return -ENOMEM;
	}
	return gpus ? 0 : -ENOMEM;
}

int nv_proc_init(void)
{
	/* The kernel's proc root makes "driver". */
	nv_proc_dir = proc_mkdir("driver/nvidia", NULL);
	if (!nv_proc_dir)
		return -ENOMEM;
	if (!proc_create_single("version", 0444, nv_proc_dir, version_show) ||
	    !proc_create_single("params", 0444, nv_proc_dir, params_show) ||
	    !proc_create_single("registry", 0444, nv_proc_dir, registry_show) || nv_proc_gpus()) {
		proc_remove(nv_proc_dir);
		return -ENOMEM;
	}
	return 0;
}

void nv_proc_exit(void)
{
	proc_remove(nv_proc_dir);
}
