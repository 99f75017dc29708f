// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Faults on request: the next control with a chosen number oopses or hangs, or unloading is slow. Number 0x52 is the next fetch of an event.
 * No lock is held, so the rest of the driver continues. `oops` and `hang` apply to one call, and are then reset to 0.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>

#include "sim.h"

static unsigned int oops;
module_param(oops, uint, 0644);
MODULE_PARM_DESC(oops, "the next control of this number dereferences NULL");

static unsigned int hang;
module_param(hang, uint, 0644);
MODULE_PARM_DESC(hang, "the next control of this number takes hang_ms");

static unsigned int hang_ms = 100000;
module_param(hang_ms, uint, 0644);
MODULE_PARM_DESC(hang_ms, "how long, in milliseconds; 0 ends it");

static bool hang_killable = true;
module_param(hang_killable, bool, 0644);
MODULE_PARM_DESC(hang_killable, "a signal that kills ends the hang");

static unsigned int exit_ms;
module_param(exit_ms, uint, 0644);
MODULE_PARM_DESC(exit_ms, "how long the driver takes to be unloaded, in milliseconds");

void fault_at_exit(void)
{
	msleep(exit_ms);
}

static bool taken(unsigned int *parameter, NvU32 cmd)
{
	return READ_ONCE(*parameter) == cmd && cmd && cmpxchg(parameter, cmd, 0) == cmd;
}

static void stay(void)
{
	unsigned long from = jiffies;

	while (time_before(jiffies, from + msecs_to_jiffies(READ_ONCE(hang_ms)))) {
		if (!hang_killable)
			schedule_timeout_uninterruptible(HZ / 20);
		else if (schedule_timeout_killable(HZ / 20) && fatal_signal_pending(current))
			return;
	}
}

/* Called after the parameters are copied in and before the handler runs, without the lock that a dead task would keep. */
void fault_before(NvU32 cmd)
{
	if (taken(&oops, cmd)) {
		NvU32 *nowhere = NULL;

		OPTIMIZER_HIDE_VAR(nowhere);
		WRITE_ONCE(*nowhere, cmd);
	}
	if (taken(&hang, cmd))
		stay();
}
