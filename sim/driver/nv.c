// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Device files and the ioctl entry of the simulated driver: one symbol path up to 535 (frontend), another from 545.
 * Unwraps the XFER escape, copies the argument in, passes the copy to the RM, and copies the whole argument back. The
 * order matters: an interceptor's races depend on it.
 */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "sim.h"

#define NV_ESC_CARD_INFO 200
#define NV_ESC_REGISTER_FD 201
#define NV_ESC_OLD_STATUS 202
#define NV_ESC_CHECK_VERSION_STR 210
#define NV_ESC_IOCTL_XFER_CMD 211
#define NV_ESC_ATTACH_GPUS_TO_FD 212
#define NV_ESC_SYS_PARAMS 214
#define NV_ESC_NUMA_INFO 215
#define NV_ESC_WAIT_OPEN_COMPLETE 218
#define NV_ABSOLUTE_MAX_IOCTL_SIZE 16384

struct nv_ioctl_xfer {
	NvU32 cmd;
	NvU32 size;
	NvU64 ptr;
};

static int nvidia_open(struct inode *inode, struct file *file)
{
	NvU32 minor = iminor(inode);
	struct nv_file_private *nvfp;

	if (minor != NV_MINOR_CONTROL && minor >= sim_gpus)
		return -ENODEV;
	nvfp = kzalloc(sizeof(*nvfp), GFP_KERNEL);
	if (!nvfp)
		return -ENOMEM;
	nvfp->minor = minor;
	file->private_data = nvfp;
	return 0;
}

static int nvidia_close(struct inode *inode, struct file *file)
{
	struct nv_file_private *nvfp = file->private_data;

	rm_close(nvfp);
	kfree(nvfp);
	return 0;
}

/* An entry has 72 bytes from 460 on and 80 before; the GPU id's offset differs too. */
static int nvidia_read_card_info(NvU8 *arg, size_t size)
{
	size_t entry = size % 72 ? 80 : 72;
	NvU32 id_off = entry == 72 ? 16 : 20;
	NvU32 minor_off = entry == 72 ? 56 : 64;
	NvU32 gpu;

	if (size % entry)
		return -EINVAL;
	memset(arg, 0, size);
	for (gpu = 0; gpu < sim_gpus && (gpu + 1) * entry <= size; gpu++) {
		NvU8 *e = arg + gpu * entry;

		e[0] = 1; /* valid */
		e[8] = gpu + 1; /* bus; domain, slot and function stay 0 */
		*(NvU16 *)(e + 12) = 0x10de;
		*(NvU16 *)(e + 14) = 0x1db1;
		put32(e, id_off, sim_gpu_id(gpu));
		put32(e, minor_off, gpu);
	}
	return 0;
}

static int nvidia_ioctl(struct inode *inode, struct file *file, unsigned int cmd, unsigned long i_arg)
{
	struct nv_file_private *nvfp = file->private_data;
	void __user *arg_ptr = (void __user *)i_arg;
	size_t arg_size = _IOC_SIZE(cmd);
	unsigned int arg_cmd = _IOC_NR(cmd);
	void *arg_copy;
	int status = 0;

	if (arg_cmd == NV_ESC_IOCTL_XFER_CMD) {
		struct nv_ioctl_xfer xfer;

		if (arg_size != sizeof(xfer))
			return -EINVAL;
		if (copy_from_user(&xfer, arg_ptr, sizeof(xfer)))
			return -EFAULT;
		arg_cmd = xfer.cmd;
		arg_size = xfer.size;
		arg_ptr = (void __user *)(uintptr_t)xfer.ptr;
		if (arg_size > NV_ABSOLUTE_MAX_IOCTL_SIZE)
			return -EINVAL;
	}

	arg_copy = kmalloc(arg_size, GFP_KERNEL);
	if (!arg_copy)
		return -ENOMEM;
	if (copy_from_user(arg_copy, arg_ptr, arg_size)) {
		kfree(arg_copy);
		return -EFAULT;
	}

	switch (arg_cmd) {
	case NV_ESC_CARD_INFO:
		status = nvfp->minor == NV_MINOR_CONTROL ? nvidia_read_card_info(arg_copy, arg_size) : -EINVAL;
		break;
	case NV_ESC_CHECK_VERSION_STR: /* any client release; the real driver accepts only its own */
	case NV_ESC_REGISTER_FD:
	case NV_ESC_OLD_STATUS:
	case NV_ESC_ATTACH_GPUS_TO_FD:
	case NV_ESC_SYS_PARAMS:
		break;
	case NV_ESC_NUMA_INFO:
		status = -EINVAL;
		break;
	case NV_ESC_WAIT_OPEN_COMPLETE:
		memset(arg_copy, 0, arg_size);
		break;
	default:
		if (rm_ioctl(NULL, NULL, nvfp, arg_cmd, arg_copy, arg_size) != NV_OK)
			status = -EINVAL;
		break;
	}

	if (copy_to_user(arg_ptr, arg_copy, arg_size))
		status = -EFAULT;
	kfree(arg_copy);
	return status;
}

/* Only one offset can be mapped; a mapping of a node's first pages fails. */
static const struct vm_operations_struct nvidia_vm_ops = {};

static int nvidia_mmap(struct file *file, struct vm_area_struct *vma)
{
	if (vma->vm_pgoff != SIM_EMPTY_MAPPING)
		return -EINVAL;
	vma->vm_ops = &nvidia_vm_ops;
	return 0;
}

/* nvidia-peermem calls it. */
void nvidia_p2p_free_page_table(void *page_table);

void nvidia_p2p_free_page_table(void *page_table)
{
	kfree(page_table);
}
EXPORT_SYMBOL(nvidia_p2p_free_page_table);

#if SIM_HAS_FRONTEND || SIM_DECOY
/* The entry up to 535. With SIM_DECOY, later eras have it, too, uncalled; releases 390 to 450 have the later symbol uncalled. */
static noinline __used long nvidia_frontend_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long i_arg)
{
	return nvidia_ioctl(file_inode(file), file, cmd, i_arg);
}

static noinline __used long nvidia_frontend_compat_ioctl(struct file *file, unsigned int cmd, unsigned long i_arg)
{
	return nvidia_ioctl(file_inode(file), file, cmd, i_arg);
}
#endif

#if !SIM_HAS_FRONTEND
static long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long i_arg)
{
	return nvidia_ioctl(file_inode(file), file, cmd, i_arg);
}
#endif

static const struct file_operations nvidia_fops = {
	.owner = THIS_MODULE,
	.open = nvidia_open,
	.release = nvidia_close,
#if SIM_HAS_FRONTEND
	.unlocked_ioctl = nvidia_frontend_unlocked_ioctl,
	.compat_ioctl = nvidia_frontend_compat_ioctl,
#else
	.unlocked_ioctl = nvidia_unlocked_ioctl,
	.compat_ioctl = nvidia_unlocked_ioctl,
#endif
	.mmap = nvidia_mmap,
};

static const struct {
	NvU32 minor;
	NvU32 count;
	const char *name;
} nv_regions[] = {
#if SIM_HAS_FRONTEND
	{ 0, 256, "nvidia-frontend" },
#else
	{ 0, 248, "nvidia" },
	{ NV_MINOR_CONTROL, 1, "nvidiactl" },
#endif
};

static struct cdev nv_cdevs[ARRAY_SIZE(nv_regions)];

static void nv_chrdev_remove(NvU32 count)
{
	while (count--) {
		cdev_del(&nv_cdevs[count]);
		unregister_chrdev_region(MKDEV(NV_MAJOR, nv_regions[count].minor), nv_regions[count].count);
	}
}

static int nv_chrdev_init(void)
{
	NvU32 i;

	for (i = 0; i < ARRAY_SIZE(nv_regions); i++) {
		dev_t first = MKDEV(NV_MAJOR, nv_regions[i].minor);
		int rc = register_chrdev_region(first, nv_regions[i].count, nv_regions[i].name);

		if (!rc) {
			cdev_init(&nv_cdevs[i], &nvidia_fops);
			nv_cdevs[i].owner = THIS_MODULE;
			rc = cdev_add(&nv_cdevs[i], first, nv_regions[i].count);
			if (rc)
				unregister_chrdev_region(first, nv_regions[i].count);
		}
		if (rc) {
			nv_chrdev_remove(i);
			return rc;
		}
	}
	return 0;
}

static void nv_chrdev_exit(void)
{
	nv_chrdev_remove(ARRAY_SIZE(nv_regions));
}

/* MIG capabilities have a major number of their own (nv-caps.c). They can only be opened. */
static const struct file_operations caps_fops = { .owner = THIS_MODULE };
static int caps_major;

static int __init nvidia_init_module(void)
{
	int rc;

	if (sim_gpus < 1 || sim_gpus > SIM_MAX_GPUS)
		return -EINVAL;
	rc = nv_proc_init();
	if (rc)
		return rc;
	rc = nv_chrdev_init();
	if (rc)
		goto proc;
	caps_major = register_chrdev(0, "nvidia-caps", &caps_fops);
	if (caps_major > 0)
		return 0;
	rc = caps_major;
	nv_chrdev_exit();
proc:
	nv_proc_exit();
	return rc;
}

static void __exit nvidia_exit_module(void)
{
	fault_at_exit();
	unregister_chrdev(caps_major, "nvidia-caps");
	nv_chrdev_exit();
	nv_proc_exit();
	gpumon_exit();
	acct_exit();
	debug_exit();
}

module_init(nvidia_init_module);
module_exit(nvidia_exit_module);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(SIM_VERSION);
MODULE_DESCRIPTION("simulated NVIDIA driver, for tests only: no GPU is touched");
