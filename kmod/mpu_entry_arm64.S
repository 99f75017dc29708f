/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The way from the driver's functions into MPU and back, on arm64. What mpu_entry.S says of it holds here, too.
 *
 * A redirected function begins with `mov x9, lr; bl mpu_enter`, or the kernel's own ftrace_caller comes here by a branch when another tracer
 * traces the function, too. Either way x30 is where the function goes on, and x9 is the way back to its caller, which x30 has to be
 * again wherever this leads. The function signs its way back behind that, if it does at all.
 *
 * Of what is live at a function's entry (x0 to x8, x18 to x30) there are the arguments, three at most, and x29 to keep: C keeps the rest.
 * The middle of a function has no landing pad, so it is gone there by `ret` and never by `br`, for kernels with BTI; SYM_FUNC_START
 * begins with one.
 */
#include <linux/linkage.h>

/* Places in mpu_original[], as enum mpu_hook has them: asserted in mpu_hooks.c. */
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

/* Into the function, as if nothing had been. */
.macro MPU_BACK
	mov	x10, x30
	mov	x30, x9
	ret	x10
.endm

/* Two records of frames, so that a trace of the stack shows the function and its caller. */
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
	bl	mpu_wants_\name
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

/* Before this instance begins, no function is found: the call is the other instance's, which hands over; or the function's own. */
SYM_FUNC_START(mpu_enter)
	MPU_IS	find_ns_pid MPU_FIND_NS_PID
	MPU_IS	from_user MPU_FROM_USER
	MPU_IS	to_user MPU_TO_USER
	MPU_IS	ioctl MPU_IOCTL
	MPU_IS	is_init_ns MPU_IS_INIT_NS
	MPU_IS	get_pid_info MPU_GET_PID_INFO
	MPU_IS	compat MPU_COMPAT
	MPU_LOAD x10, x10, mpu_elder
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

/* MPU records new clients of every process. */
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
