// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Includes the files that must not be traced, as mpu_redirects.c does the others: redirected functions call them, and ftrace would enter
 * them again. The compiler must not split what no probe may stand in (NOKPROBE_SYMBOL): see Kbuild.
 */
#include "mpu_ipmodify.c"
#include "mpu_calls.c"
#include "mpu_contexts.c"
#include "mpu_counts.c"
#include "mpu_argument.c"
#include "mpu_makers.c"
#include "mpu_pids.c"
#include "mpu_policy.c"
