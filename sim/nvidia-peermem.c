// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A module that uses the driver, as the one of this name does: it calls a function of the driver's, so that the driver cannot be unloaded
 * before it.
 */
#include <linux/module.h>

void nvidia_p2p_free_page_table(void *page_table);

static int __init peermem_init(void)
{
	nvidia_p2p_free_page_table(NULL);
	return 0;
}

static void __exit peermem_exit(void)
{
}

module_init(peermem_init);
module_exit(peermem_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("a user of the simulated NVIDIA driver, for tests only");
