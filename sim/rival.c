// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Another module that redirects a function of the driver. By default like a live patch: an ftrace handler with FTRACE_OPS_FL_IPMODIFY, of which
 * the kernel allows one for each function. It never changes the instruction pointer. With `jump`, like a hot-patching tool that bypasses
 * ftrace: a jump over the instruction that ftrace patches, here to the next one.
 */
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/stop_machine.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

static char *function = "os_memcpy_to_user";
module_param(function, charp, 0444);
MODULE_PARM_DESC(function, "the driver's function to redirect");

static bool jump;
module_param(jump, bool, 0444);
MODULE_PARM_DESC(jump, "write a jump into the function instead of an ftrace handler (x86-64)");

#ifdef CONFIG_X86_64
#define RIVAL_BYTES 5

static u8 rival_before[RIVAL_BYTES];
/* A writable mapping of the instruction. */
static u8 *rival_window;

static int rival_write(void *code)
{
	memcpy(rival_window, code, RIVAL_BYTES);
	return 0;
}

static int rival_jumps(void)
{
	static const u8 endbr64[] = { 0xf3, 0x0f, 0x1e, 0xfa };
	static u8 jump_on[RIVAL_BYTES] = { 0xe9 };
	struct kprobe probe = { .symbol_name = function, .flags = KPROBE_FLAG_DISABLED };
	int error = register_kprobe(&probe);
	struct page *page;
	u8 *begins;
	void *window;

	if (error)
		return error;
	begins = (u8 *)probe.addr;
	unregister_kprobe(&probe);
	if (!memcmp(begins, endbr64, sizeof(endbr64)))
		begins += sizeof(endbr64);
	if (begins[0] != 0x0f && begins[0] != 0x66 && begins[0] != 0x3e)
		return -EBUSY;
	page = vmalloc_to_page(begins);
	window = page ? vmap(&page, 1, VM_MAP, PAGE_KERNEL) : NULL;
	if (!window)
		return -ENOMEM;
	rival_window = (u8 *)window + offset_in_page(begins);
	memcpy(rival_before, rival_window, RIVAL_BYTES);
	return stop_machine(rival_write, jump_on, NULL);
}

static void rival_jumps_no_more(void)
{
	stop_machine(rival_write, rival_before, NULL);
	vunmap((void *)((unsigned long)rival_window & PAGE_MASK));
}
#else
static int rival_jumps(void)
{
	return -EOPNOTSUPP;
}

static void rival_jumps_no_more(void)
{
}
#endif

/* The last parameter has another type on older kernels. It is unused. */
static void rival_handler(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, void *registers)
{
}

static struct ftrace_ops rival = { .flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_SAVE_REGS_IF_SUPPORTED };

static int __init rival_init(void)
{
	int error;

	if (jump)
		return rival_jumps();
	error = ftrace_set_filter(&rival, function, strlen(function), 1);
	rival.func = (void *)rival_handler;
	return error ? error : register_ftrace_function(&rival);
}

static void __exit rival_exit(void)
{
	if (jump)
		rival_jumps_no_more();
	else
		unregister_ftrace_function(&rival);
}

module_init(rival_init);
module_exit(rival_exit);
MODULE_DESCRIPTION("Redirects a function of the simulated driver");
MODULE_AUTHOR("The MPU authors");
MODULE_LICENSE("Dual MIT/GPL");
