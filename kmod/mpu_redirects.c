// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Includes the files that load the module and place its redirects. Two files are compiled instead of thirteen, because reading the kernel's
 * headers takes longer than compiling ours.
 */
#include "mpu_main.c"
#include "mpu_stuck.c"
#include "mpu_hooks.c"
#include "mpu_registration.c"
#include "mpu_direct.c"
