// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What no release does on purpose: the next control of a chosen number dies, hangs, or answers with a count beyond its table.
 * All of it happens with no lock held, so that the rest of the driver goes on. Each parameter serves one control and falls to 0.
 */
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

static unsigned int hang_ms = 10000;
module_param(hang_ms, uint, 0644);
MODULE_PARM_DESC(hang_ms, "how long, in milliseconds");

static bool hang_killable = true;
module_param(hang_killable, bool, 0644);
MODULE_PARM_DESC(hang_killable, "a signal that kills ends the hang");

static unsigned int overcount;
module_param(overcount, uint, 0644);
MODULE_PARM_DESC(overcount, "the next answer of this control counts more rows than its table holds");

/* Where a control keeps its count, and how many rows its table has. */
static const struct {
	NvU32 cmd, count, rows;
} tables[] = {
	{ 0x2080018d, 8, 950 },	   { 0x00800202, 8, 950 }, { 0x2080018e, 0, 200 }, { 0x00800203, 0, 200 },
	{ 0x00000b04, 16008, 4000 }, { 0x208001af, 0, 512 }, { 0x208001a9, 0, 512 }, { 0x2080017c, 0, 256 },
};

static bool taken(unsigned int *parameter, NvU32 cmd)
{
	return READ_ONCE(*parameter) == cmd && cmd && cmpxchg(parameter, cmd, 0) == cmd;
}

/* The parameters have been copied in: a handler's place, but without the lock that a dead one would keep. */
void mishap_before(NvU32 cmd)
{
	if (taken(&oops, cmd)) {
		NvU32 *nowhere = NULL;

		OPTIMIZER_HIDE_VAR(nowhere);
		WRITE_ONCE(*nowhere, cmd);
	}
	if (taken(&hang, cmd)) {
		if (hang_killable)
			schedule_timeout_killable(msecs_to_jiffies(hang_ms));
		else
			schedule_timeout_uninterruptible(msecs_to_jiffies(hang_ms));
	}
}

void mishap_after(struct rm_call *call)
{
	NvU32 i;

	if (!taken(&overcount, call->cmd))
		return;
	for (i = 0; i < ARRAY_SIZE(tables); i++)
		if (tables[i].cmd == call->cmd)
			put32(call->params, tables[i].count, tables[i].rows + 1);
}
