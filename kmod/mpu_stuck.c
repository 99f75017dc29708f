// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Whether this module must stay until the next boot, because the kernel may still call into it. Once true, it stays true.
 */
#include <linux/module.h>

#include "mpu.h"

static bool mpu_stuck;

void mpu_set_stuck(int error)
{
	if (mpu_stuck)
		return;
	pr_crit("mpu: the kernel does not take the redirects out (error %d): this module stays until the next boot\n", error);
	__module_get(THIS_MODULE);
	mpu_stuck = true;
}

bool mpu_is_stuck(void)
{
	return mpu_stuck;
}
