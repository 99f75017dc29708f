// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Does in a guest's kernel what memory holds where the emulator ran a breakpoint that memory no longer holds. QEMU drops the translations of
 * changed code first and stores afterwards: a processor that translates in between runs the old byte until the page changes again
 * (docs/limits.md). A breakpoint that stays in memory is the kernel's.
 */
#include <linux/atomic.h>
#include <linux/kdebug.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/ptrace.h>
#include <linux/string.h>
#include <asm/text-patching.h>

/* How often a breakpoint that is in memory again may be run once more, in all: a change of code may have begun meanwhile. */
#define STALE_AGAIN 1000
#define STALE_PRINTED 10

static atomic_t stale_again = ATOMIC_INIT(0);
static atomic_t stale_met = ATOMIC_INIT(0);

static const u8 nop2[] = { 0x66, 0x90 };
static const u8 nop5[][5] = { { 0x0f, 0x1f, 0x44, 0x00, 0x00 }, { 0x66, 0x66, 0x66, 0x66, 0x90 }, { 0x3e, 0x8d, 0x74, 0x26, 0x00 } };

/* Whether the instruction is one that the kernel writes over others, and was done. */
static bool stale_done(struct pt_regs *regs, unsigned long at, const u8 *code)
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
NOKPROBE_SYMBOL(stale_done);

static int stale_trap(struct notifier_block *block, unsigned long event, void *data)
{
	struct pt_regs *regs = ((struct die_args *)data)->regs;
	const u8 *at = (const u8 *)regs->ip - INT3_INSN_SIZE;
	u8 code[CALL_INSN_SIZE];

	if (event != DIE_INT3 || user_mode(regs))
		return NOTIFY_DONE;
	/* The next change can write its breakpoint at any time. Before it writes more, it waits for this processor, whose interrupts are off. */
	code[0] = READ_ONCE(at[0]);
	barrier();
	memcpy(code + 1, at + 1, sizeof(code) - 1);
	if (code[0] == INT3_INSN_OPCODE) {
		if (atomic_inc_return(&stale_again) > STALE_AGAIN)
			return NOTIFY_DONE;
		regs->ip = (unsigned long)at;
		return NOTIFY_STOP;
	}
	if (!stale_done(regs, (unsigned long)at, code))
		return NOTIFY_DONE;
	if (atomic_inc_return(&stale_met) <= STALE_PRINTED)
		pr_err("stale: the emulator ran a breakpoint at %pS, where memory holds %5ph\n", at, code);
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
