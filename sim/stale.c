// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Lets a guest continue after a stale breakpoint: one that the emulator executes although memory no longer has it. QEMU drops the translations of
 * changed code before it stores the change. A processor that translates in between executes the old byte until the page changes again
 * (docs/evidence.md). This module emulates the call, jump or nop that is in memory. The kernel handles a breakpoint that stays in memory, or that
 * another instruction has replaced.
 */
#include <linux/atomic.h>
#include <linux/jiffies.h>
#include <linux/kdebug.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/string.h>
#include <asm/text-patching.h>

/*
 * How often an address is executed again within a second while memory holds a breakpoint: the next change of the code may have begun. The
 * kernel then recognises the breakpoint at the next attempt.
 */
#define STALE_AGAIN 100
#define STALE_PRINTED 10

struct stale_place {
	unsigned long at;
	unsigned long until;
	unsigned int tries;
};

static DEFINE_PER_CPU(struct stale_place, stale_places);
static atomic_t stale_printed = ATOMIC_INIT(0);

static const u8 nop2[] = { 0x66, 0x90 };
static const u8 nop5[][5] = { { 0x0f, 0x1f, 0x44, 0x00, 0x00 }, { 0x66, 0x66, 0x66, 0x66, 0x90 }, { 0x3e, 0x8d, 0x74, 0x26, 0x00 } };

/* Emulates the instruction, if it is one that the kernel patches in. Returns whether it did. */
static bool stale_emulate(struct pt_regs *regs, unsigned long at, const u8 *code)
{
	size_t nop;
	s32 far;

	switch (code[0]) {
	case CALL_INSN_OPCODE:
		memcpy(&far, code + 1, sizeof(far));
		int3_emulate_push(regs, at + CALL_INSN_SIZE);
		int3_emulate_jmp(regs, at + CALL_INSN_SIZE + far);
		return true;
	case JMP32_INSN_OPCODE:
		memcpy(&far, code + 1, sizeof(far));
		int3_emulate_jmp(regs, at + JMP32_INSN_SIZE + far);
		return true;
	case JMP8_INSN_OPCODE:
		int3_emulate_jmp(regs, at + JMP8_INSN_SIZE + (s8)code[1]);
		return true;
	}
	if (!memcmp(code, nop2, sizeof(nop2))) {
		int3_emulate_jmp(regs, at + sizeof(nop2));
		return true;
	}
	for (nop = 0; nop < ARRAY_SIZE(nop5); nop++)
		if (!memcmp(code, nop5[nop], sizeof(nop5[nop]))) {
			int3_emulate_jmp(regs, at + sizeof(nop5[nop]));
			return true;
		}
	return false;
}
NOKPROBE_SYMBOL(stale_emulate);

static int stale_trap(struct notifier_block *block, unsigned long event, void *data)
{
	struct pt_regs *regs = ((struct die_args *)data)->regs;
	struct stale_place *place;
	unsigned long at = regs->ip - INT3_INSN_SIZE;
	u8 code[CALL_INSN_SIZE];

	if (event != DIE_INT3 || user_mode(regs))
		return NOTIFY_DONE;
	/* Other events come with preemption. */
	place = this_cpu_ptr(&stale_places);
	if (place->at != at || time_after(jiffies, place->until))
		*place = (struct stale_place){ .at = at, .until = jiffies + HZ };
	if (place->tries++ == STALE_AGAIN)
		return NOTIFY_DONE;
	/* The next change can write its breakpoint now. Before it writes more, it waits for this processor, whose interrupts are off. */
	code[0] = READ_ONCE(*(u8 *)at);
	if (place->tries == 1 && atomic_inc_return(&stale_printed) <= STALE_PRINTED)
		pr_notice("stale: a breakpoint at %pS, where memory holds %02x\n", (void *)at, code[0]);
	if (code[0] == INT3_INSN_OPCODE) {
		regs->ip = at;
		return NOTIFY_STOP;
	}
	memcpy(code + 1, (u8 *)at + 1, sizeof(code) - 1);
	if (!stale_emulate(regs, at, code))
		return NOTIFY_DONE;
	/* An emulated address has no limit. */
	place->tries = 0;
	return NOTIFY_STOP;
}
NOKPROBE_SYMBOL(stale_trap);

static struct notifier_block stale = { .notifier_call = stale_trap };

static int __init stale_init(void)
{
	return register_die_notifier(&stale);
}

static void __exit stale_exit(void)
{
	unregister_die_notifier(&stale);
}

module_init(stale_init);
module_exit(stale_exit);
MODULE_DESCRIPTION("Passes by breakpoints that the emulator runs and memory does not hold");
MODULE_AUTHOR("The MPU authors");
MODULE_LICENSE("Dual MIT/GPL");
