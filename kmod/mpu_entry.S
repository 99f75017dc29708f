/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The way from the driver's functions into MPU and back.
 *
 * A redirected function's first instruction calls mpu_enter_NAME (an ftrace direct call). There, one cheap question in C,
 * mpu_wants_NAME, decides: "no" returns into the function as if nothing had been; "yes" puts the replacement's address in
 * the place of the way back, so that the return enters mpu_NAME, whose own return goes to the function's caller.
 * A replacement calls the function it replaces through mpu_original_NAME: known by its return address, that call passes.
 *
 * The functions take three arguments at most, so rdi, rsi and rdx are all there is to keep; at a function's entry its
 * caller expects none of the other caller-saved registers to survive.
 */
#include <linux/linkage.h>
#include <linux/version.h>
#include <asm/nospec-branch.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 18, 0)
#include <linux/objtool.h>
#endif

/*
 * With IBT, objtool wants to know of every address taken that is no target of an indirect branch. These are none: ftrace
 * calls them directly, and returns are not branches in its sense.
 */
.macro MPU_NO_TARGET
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 18, 0)
	ANNOTATE_NOENDBR
#endif
.endm

/* Places in mpu_original[], as enum mpu_hook has them: asserted in mpu_hooks.c. */
#define MPU_FIND_NS_PID 1
#define MPU_IS_INIT_NS 2
#define MPU_FROM_USER 3
#define MPU_TO_USER 4
#define MPU_COMPAT 5
#define MPU_IOCTL 6

.macro MPU_ENTER name
SYM_FUNC_START(mpu_enter_\name)
	MPU_NO_TARGET
	pushq	%rdi
	pushq	%rsi
	pushq	%rdx
	call	mpu_wants_\name
	popq	%rdx
	popq	%rsi
	popq	%rdi
	testb	%al, %al
	jne	1f
	RET
1:	leaq	mpu_\name(%rip), %rax
	movq	%rax, (%rsp)
	RET
SYM_FUNC_END(mpu_enter_\name)
.endm

.macro MPU_ENTER_AND_ORIGINAL name index
SYM_FUNC_START(mpu_enter_\name)
	MPU_NO_TARGET
	leaq	.Loriginal_returns_\name(%rip), %rax
	cmpq	%rax, 8(%rsp)
	je	2f
	pushq	%rdi
	pushq	%rsi
	pushq	%rdx
	call	mpu_wants_\name
	popq	%rdx
	popq	%rsi
	popq	%rdi
	testb	%al, %al
	jne	1f
2:	RET
1:	leaq	mpu_\name(%rip), %rax
	movq	%rax, (%rsp)
	RET
SYM_FUNC_END(mpu_enter_\name)

SYM_FUNC_START(mpu_original_\name)
	movq	(mpu_original + 8 * \index)(%rip), %rax
	subq	$8, %rsp
	CALL_NOSPEC rax
.Loriginal_returns_\name:
	MPU_NO_TARGET
	addq	$8, %rsp
	RET
SYM_FUNC_END(mpu_original_\name)
.endm

	MPU_ENTER get_pid_info
	MPU_ENTER_AND_ORIGINAL find_ns_pid MPU_FIND_NS_PID
	MPU_ENTER_AND_ORIGINAL is_init_ns MPU_IS_INIT_NS
	MPU_ENTER_AND_ORIGINAL from_user MPU_FROM_USER
	MPU_ENTER_AND_ORIGINAL to_user MPU_TO_USER
	MPU_ENTER_AND_ORIGINAL compat MPU_COMPAT
	MPU_ENTER_AND_ORIGINAL ioctl MPU_IOCTL

	.section .note.GNU-stack, "", @progbits
