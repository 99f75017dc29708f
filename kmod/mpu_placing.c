// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * All that loads the module, places its redirects and takes them away, compiled at once: the kernel's headers take longer to read than
 * these files do, above all on a node that builds the module.
 */
#include "mpu_main.c"
#include "mpu_stuck.c"
#include "mpu_hooks.c"
#include "mpu_registration.c"
#include "mpu_direct.c"
