/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What ftrace patches at a function's entry on arm64 (arch/arm64/kernel/ftrace.c). The function may begin with `bti c`. Then come
 * `mov x9, lr`, which ftrace does not change, and a nop, which ftrace replaces by a `bl`. For mpu_methods.h alone.
 */
#ifndef MPU_SITE_H
#define MPU_SITE_H

#include <linux/types.h>
#include <linux/uaccess.h>

#define MPU_BTI_C 0xd503245fu
#define MPU_NOP 0xd503201fu
#define MPU_MOV_X9_LR 0xaa1e03e9u

/* Offsets at which mpu_find_function() tries a probe: behind the longest patched entry. */
enum { MPU_FIND_FIRST = 12, MPU_FIND_LAST = 24, MPU_FIND_STEP = 4 };

static inline bool mpu_is_bl(u32 code)
{
	return (code & 0xfc000000u) == 0x94000000u;
}

/* Another tool's kprobe. The kernel allows none on the `bl` itself, but on the instruction before it. */
static inline bool mpu_is_brk(u32 code)
{
	return (code & 0xffe0001fu) == 0xd4200000u;
}

/* The address of a function's first instruction, without the `bti c` that it may begin with; 0 if it cannot be read. */
static inline unsigned long mpu_behind_landing_pad(unsigned long begins)
{
	u32 code;

	if (mpu_copy_from_kernel(&code, (void *)begins, sizeof(code)))
		return 0;
	return code == MPU_BTI_C ? begins + sizeof(code) : begins;
}

/* The address behind the instruction that ftrace patches. 0 if there is no such instruction. */
static inline unsigned long mpu_resume_address(unsigned long begins)
{
	u32 code[3];
	int i;

	if (mpu_copy_from_kernel(code, (void *)begins, sizeof(code)))
		return 0;
	for (i = 0; i < 2; i++) {
		if ((code[i] == MPU_MOV_X9_LR || mpu_is_brk(code[i])) && (code[i + 1] == MPU_NOP || mpu_is_bl(code[i + 1])))
			return begins + (i + 2) * sizeof(code[0]);
	}
	return 0;
}

/* Whether the instruction before `resume` is a call. The kernel changes it by one write. */
static inline bool mpu_has_call_before(unsigned long resume)
{
	u32 code;

	return !mpu_copy_from_kernel(&code, (void *)(resume - sizeof(code)), sizeof(code)) && mpu_is_bl(code);
}

#endif
