/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The trampoline between the driver's functions and their replacements, on arm64. It works as described in mpu_entry.S.
 *
 * A redirected function begins with `mov x9, lr; bl mpu_enter`. If another tracer traces it too, the kernel's ftrace_caller branches here.
 * In both cases x30 is the address where the function continues, and x9 is its return address. x30 must be the return address again, in the
 * function and in a replacement. A function that signs its return address does so behind these instructions.
 *
 * x0 to x8 and x18 to x30 are live at a function's entry. Only the arguments, at most three, and x29 must be saved here: C code preserves
 * the rest. The middle of a function has no landing pad, so for kernels with BTI this continues there by `ret`, never by `br`.
 * SYM_FUNC_START begins with a landing pad.
 */
#include <linux/linkage.h>

/* Indexes of mpu_original[], as in enum mpu_hook. mpu_hooks.c asserts them. */
#define MPU_FIND_NS_PID 0
#define MPU_FROM_USER 1
#define MPU_TO_USER 2
#define MPU_IOCTL 3
#define MPU_IS_INIT_NS 4
#define MPU_GET_PID_INFO 5
#define MPU_COMPAT 6

.macro MPU_LOAD register, page, symbol
	adrp	\page, \symbol
	ldr	\register, [\page, :lo12:\symbol]
.endm

.macro MPU_IS name index
	MPU_LOAD x10, x10, (mpu_original + 8 * \index)
	cmp	x30, x10
	b.eq	mpu_enter_\name
.endm

/* Continues in the original function. */
.macro MPU_BACK
	mov	x10, x30
	mov	x30, x9
	ret	x10
.endm

/* Makes two frame records, so that a stack trace shows the function and its caller. */
.macro MPU_ENTER name last count
SYM_FUNC_START_LOCAL(mpu_enter_\name)
.ifnb \count
	MPU_LOAD w10, x10, \count
	cbnz	w10, 2f
	MPU_BACK
2:
.endif
	sub	sp, sp, #64
	stp	x29, x9, [sp, #16]
	add	x29, sp, #16
	stp	x29, x30, [sp]
	mov	x29, sp
	stp	x0, x1, [sp, #32]
	str	x2, [sp, #48]
	bl	mpu_match_\name
	mov	x10, x0
	ldr	x2, [sp, #48]
	ldp	x0, x1, [sp, #32]
	ldr	x11, [sp, #8]
	ldp	x29, x30, [sp, #16]
	add	sp, sp, #64
	cbnz	x10, 1f
	ret	x11
1:	mov	\last, x10
	b	mpu_\name
SYM_FUNC_END(mpu_enter_\name)
.endm

.macro MPU_ORIGINAL name index
SYM_FUNC_START(mpu_original_\name)
	MPU_LOAD x10, x10, (mpu_original + 8 * \index)
	ret	x10
SYM_FUNC_END(mpu_original_\name)
.endm

/* Before mpu_hooks_activate() no function matches. The call then belongs to the instance that hands over, if there is one. */
SYM_FUNC_START(mpu_enter)
	MPU_IS	find_ns_pid MPU_FIND_NS_PID
	MPU_IS	from_user MPU_FROM_USER
	MPU_IS	to_user MPU_TO_USER
	MPU_IS	ioctl MPU_IOCTL
	MPU_IS	is_init_ns MPU_IS_INIT_NS
	MPU_IS	get_pid_info MPU_GET_PID_INFO
	MPU_IS	compat MPU_COMPAT
	MPU_LOAD x10, x10, mpu_peer_entry
	cbnz	x10, 1f
	MPU_BACK
1:	ret	x10
SYM_FUNC_END(mpu_enter)

SYM_FUNC_START_LOCAL(mpu_enter_find_ns_pid)
	MPU_LOAD w10, x10, mpu_inside_count
	cbnz	w10, 1f
	MPU_BACK
1:	mov	x30, x9
	b	mpu_find_ns_pid
SYM_FUNC_END(mpu_enter_find_ns_pid)

/* Replaced for every process, not only for containers. */
SYM_FUNC_START_LOCAL(mpu_enter_get_pid_info)
	mov	x30, x9
	b	mpu_get_pid_info
SYM_FUNC_END(mpu_enter_get_pid_info)

	MPU_ENTER is_init_ns x0 mpu_translating_count
	MPU_ENTER from_user x3 mpu_translating_count
	MPU_ENTER to_user x3 mpu_translating_count
	MPU_ENTER compat x3
	MPU_ENTER ioctl x3

	MPU_ORIGINAL find_ns_pid MPU_FIND_NS_PID
	MPU_ORIGINAL from_user MPU_FROM_USER
	MPU_ORIGINAL to_user MPU_TO_USER
	MPU_ORIGINAL compat MPU_COMPAT
	MPU_ORIGINAL ioctl MPU_IOCTL

	.section .note.GNU-stack, "", @progbits
