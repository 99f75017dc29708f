// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * All that runs on the way through a redirected function, compiled at once as in mpu_placing.c. Kbuild compiles it without the calls that
 * let ftrace trace it: the way would lead through itself.
 */
#include "mpu_ipmodify.c"
#include "mpu_calls.c"
#include "mpu_contexts.c"
#include "mpu_counts.c"
#include "mpu_argument.c"
#include "mpu_makers.c"
#include "mpu_pids.c"
#include "mpu_policy.c"
