// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Resembles the module of the older MPU: its name and version, and no parameters. It does nothing. */
#include <linux/module.h>

static int __init foreign_init(void)
{
	return 0;
}

static void __exit foreign_exit(void)
{
}

module_init(foreign_init);
module_exit(foreign_exit);
MODULE_DESCRIPTION("Another project's module of our name");
MODULE_AUTHOR("Another project");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("0.1-pre");
