// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The module parameters by which a test changes the simulated driver.
 */
#include <linux/module.h>

#include "sim.h"

unsigned int sim_gpus = 1;
module_param_named(gpus, sim_gpus, uint, 0444);
MODULE_PARM_DESC(gpus, "number of GPUs, 1 to 8");

bool sim_debug;
module_param_named(debug, sim_debug, bool, 0644);
MODULE_PARM_DESC(debug, "log refused controls");

bool sim_client_allocs;
module_param_named(client_allocs, sim_client_allocs, bool, 0644);
MODULE_PARM_DESC(client_allocs, "serve control 20801349, which release drivers lack");

bool sim_ghosts;
module_param_named(ghosts, sim_ghosts, bool, 0644);
MODULE_PARM_DESC(ghosts, "keep utilisation samples of processes that ended, as the real ring does");

bool sim_guarded;
module_param_named(guarded, sim_guarded, bool, 0644);
MODULE_PARM_DESC(guarded, "the process list needs CAP_SYS_ADMIN, unlike in any release");

unsigned int sim_stale;
module_param_named(stale, sim_stale, uint, 0644);
MODULE_PARM_DESC(stale, "samples of ended processes name a freed struct pid: 1 simulated by poison, 2 really freed");

bool sim_bypass;
module_param_named(bypass, sim_bypass, bool, 0644);
MODULE_PARM_DESC(bypass, "answer controls without os_memcpy_to_user, unlike any known release");

bool sim_overcounts;
module_param_named(overcounts, sim_overcounts, bool, 0644);
MODULE_PARM_DESC(overcounts, "count more processes than the list holds, unlike any known release");
