/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What ftrace patches at a function's entry on x86-64: five bytes, a nop or a call, behind the ENDBR64 that the function may begin with.
 * With CONFIG_DYNAMIC_FTRACE_WITH_JMP it can also be a jump, for a direct call of BPF that returns to the function's caller by itself.
 * For mpu_methods.h alone.
 */
#ifndef MPU_SITE_H
#define MPU_SITE_H

#include <linux/string.h>
#include <linux/types.h>
#include <linux/uaccess.h>

/* Bytes of the instruction that ftrace patches. */
#define MPU_PATCHED_BYTES 5

/*
 * Offsets at which mpu_find_function() tries a probe. In a function that ftrace patches, an instruction begins at 5, or at 9 after an
 * ENDBR64. In any other function, one begins somewhere in this range.
 */
enum { MPU_FIND_FIRST = MPU_PATCHED_BYTES, MPU_FIND_LAST = 15, MPU_FIND_STEP = 1 };

/*
 * The address of a function's first instruction, without the landing pad that it may begin with; 0 if it cannot be read. If no code takes a
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

/* The first byte is a breakpoint while the kernel changes the instruction for another tracer. */
static inline bool mpu_is_changing(u8 code)
{
	return code == 0xcc;
}

/*
 * The address behind the instruction that ftrace patches. 0 if there is no such instruction, or if ftrace cannot have written it: ftrace
 * would notice, and switch itself off until the next boot (ftrace_kill). The module cannot see whose call it is, because no kernel exports
 * its trampolines to modules. ftrace knows its patched places, and refuses a function that begins with another call or a breakpoint.
 */
static inline unsigned long mpu_resume_address(unsigned long begins)
{
	/* Up to 5.12 the kernel's nop depends on the processor (arch/x86/kernel/alternative.c, ideal_nops). */
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

/* Whether the instruction before `resume` is a call. A jump belongs to another tool: ours is always a call. */
static inline bool mpu_has_call_before(unsigned long resume)
{
	u8 code;

	return !mpu_copy_from_kernel(&code, (void *)(resume - MPU_PATCHED_BYTES), 1) && (code == 0xe8 || mpu_is_changing(code));
}

#endif
