// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Includes the files that are built without ftrace, because redirected functions call them. mpu_redirects.c includes the others. Kbuild
 * also forbids the compiler to split functions, because NOKPROBE_SYMBOL() would not cover the split part.
 */
#include "mpu_ipmodify.c"
#include "mpu_calls.c"
#include "mpu_contexts.c"
#include "mpu_counts.c"
#include "mpu_argument.c"
#include "mpu_driver_users.c"
#include "mpu_pids.c"
#include "mpu_policy.c"
