/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What ftrace patches at a function's entry on x86-64: five bytes, a call or the nop in its place, behind the ENDBR64 that the function may
 * begin with. For another tool's direct call it can be a jump where the kernel lets BPF return to the function's caller by itself
 * (CONFIG_DYNAMIC_FTRACE_WITH_JMP). For mpu_methods.h alone.
 */
#ifndef MPU_SITE_H
#define MPU_SITE_H

#include <linux/string.h>
#include <linux/types.h>
#include <linux/uaccess.h>

/* Bytes of the instruction that ftrace patches. */
#define MPU_PATCHED_BYTES 5

/*
 * Offsets at which a function is looked up (mpu_find_function): an instruction begins at 5 or, after an ENDBR64, at 9 in each function that ftrace
 * knows, and somewhere in this range in any other.
 */
enum { MPU_FIND_FIRST = MPU_PATCHED_BYTES, MPU_FIND_LAST = 15, MPU_FIND_STEP = 1 };

/*
 * Where a function's first instruction is behind the landing pad that it may begin with; 0 if it cannot be read. Where no code takes a
 * function's address, the kernel writes a nop over its ENDBR64 (gen_endbr_poison() of 5.18 to 6.15, and of 6.16 on; asm/ibt.h).
 */
static inline unsigned long mpu_behind_landing_pad(unsigned long begins)
{
	static const u8 pads[][4] = {
		{ 0xf3, 0x0f, 0x1e, 0xfa },
		{ 0x66, 0x0f, 0x1f, 0x00 },
		{ 0x0f, 0x1f, 0x40, 0xd6 },
	};
	u8 code[sizeof(pads[0])];
	unsigned int i;

	if (mpu_copy_from_kernel(code, (void *)begins, sizeof(code)))
		return 0;
	for (i = 0; i < ARRAY_SIZE(pads); i++) {
		if (!memcmp(code, pads[i], sizeof(code)))
			return begins + sizeof(code);
	}
	return begins;
}

/* A breakpoint stands on the first byte while the kernel changes the instruction for another tracer. */
static inline bool mpu_is_changing(u8 code)
{
	return code == 0xcc;
}

/*
 * Where a function goes on behind the instruction that ftrace patches. 0 if there is no such instruction, and if it is certainly not what
 * ftrace left there: ftrace would find that out, too, and switch itself off until the next boot (ftrace_kill). The module cannot see
 * whose a call is: no kernel exports its trampolines to modules. ftrace, which knows its places, refuses a function that begins with a
 * call of its own, or that has a breakpoint on it.
 */
static inline unsigned long mpu_resume_address(unsigned long begins)
{
	/* Up to 5.12 the kernel chooses its nop by the processor (arch/x86/kernel/alternative.c, ideal_nops). */
	static const u8 nops[][MPU_PATCHED_BYTES] = {
		{ 0x0f, 0x1f, 0x44, 0x00, 0x00 },
		{ 0x66, 0x66, 0x66, 0x66, 0x90 },
		{ 0x3e, 0x8d, 0x74, 0x26, 0x00 },
	};
	u8 code[sizeof(nops[0])];
	unsigned int i;
	bool patched;

	begins = mpu_behind_landing_pad(begins);
	if (!begins || mpu_copy_from_kernel(code, (void *)begins, sizeof(code)))
		return 0;
	patched = code[0] == 0xe8 || (IS_ENABLED(CONFIG_DYNAMIC_FTRACE_WITH_JMP) && code[0] == 0xe9) || mpu_is_changing(code[0]);
	for (i = 0; i < ARRAY_SIZE(nops); i++)
		patched |= !memcmp(code, nops[i], sizeof(nops[i]));
	return patched ? begins + sizeof(nops[0]) : 0;
}

/* Whether a call stands before where a function goes on. A jump is another tool's: ours is always a call. */
static inline bool mpu_has_call_before(unsigned long resume)
{
	u8 code;

	return !mpu_copy_from_kernel(&code, (void *)(resume - MPU_PATCHED_BYTES), 1) && (code == 0xe8 || mpu_is_changing(code));
}

#endif
