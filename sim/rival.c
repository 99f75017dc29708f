// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Somebody else who leads a function of the driver elsewhere, as a live patch does: an ftrace handler that may change where the function
 * goes on, and never does. The kernel allows one such handler a function.
 */
#include <linux/ftrace.h>
#include <linux/module.h>
#include <linux/string.h>

static char function[] = "os_memcpy_to_user";

/* What it is given last has another type on older kernels, and is not looked at. */
static void rival_handler(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, void *registers)
{
}

static struct ftrace_ops rival = { .flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_SAVE_REGS_IF_SUPPORTED };

static int __init rival_init(void)
{
	int error = ftrace_set_filter(&rival, function, strlen(function), 1);

	rival.func = (void *)rival_handler;
	return error ? error : register_ftrace_function(&rival);
}

static void __exit rival_exit(void)
{
	unregister_ftrace_function(&rival);
}

module_init(rival_init);
module_exit(rival_exit);
MODULE_DESCRIPTION("Keeps a function of the simulated driver to itself");
MODULE_AUTHOR("The MPU authors");
MODULE_LICENSE("Dual MIT/GPL");
