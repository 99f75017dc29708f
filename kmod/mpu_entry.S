/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The way from the driver's functions into MPU and back.
 *
 * A redirected function's first instruction calls mpu_enter (an ftrace direct call), which tells by the way back which
 * function it was. For each, one cheap question in C, mpu_wants_NAME, decides: 0 returns into the function as if nothing had
 * been; anything else is the replacement's last argument, and the replacement's address takes the place of the way back, so
 * that the return enters mpu_NAME, whose own return goes to the function's caller.
 * Most calls are not MPU's: nothing is asked in C while a count says that no task in the whole system is in a call that it could be for.
 * The driver asks find_ns_pid once for each pair of a process and a client: the question and the replacement are one function there.
 * A replacement runs the function it replaces through mpu_original_NAME, which goes on behind that first instruction: it
 * does not pass here again, even if another tracer traces the function. It goes there by a return, because nothing in a function's
 * middle is a target for an indirect branch on kernels with IBT.
 *
 * The functions take three arguments at most, so rdi, rsi and rdx are all there is to keep; at a function's entry its
 * caller expects none of the other caller-saved registers to survive.
 */
#include <linux/linkage.h>
#include <asm/unwind_hints.h>
#include "mpu_probes.h"
#ifdef MPU_NOENDBR_YES
#include <linux/objtool.h>
#endif

/* Up to 5.4 functions begin and end by other names (include/linux/linkage.h), and no mitigation wants another way to return. */
#ifndef SYM_FUNC_START
#define SYM_FUNC_START(name) ENTRY(name)
#define SYM_FUNC_START_LOCAL(name) ALIGN ASM_NL name:
#define SYM_FUNC_END(name) ENDPROC(name)
#define SYM_CODE_START(name) ENTRY(name)
#define SYM_CODE_END(name) END(name)
#endif
#ifndef RET
#define RET ret
#endif

/* Places in mpu_original[], as enum mpu_hook has them: asserted in mpu_hooks.c. */
#define MPU_FIND_NS_PID 0
#define MPU_FROM_USER 1
#define MPU_TO_USER 2
#define MPU_IOCTL 3
#define MPU_IS_INIT_NS 4
#define MPU_GET_PID_INFO 5
#define MPU_COMPAT 6

/* With IBT, objtool wants to know of every address taken that is no target of an indirect branch: ftrace calls these directly. */
.macro MPU_NO_TARGET
#ifdef MPU_NOENDBR_YES
	ANNOTATE_NOENDBR
#endif
.endm

.macro MPU_IS name index
	cmpq	(mpu_original + 8 * \index)(%rip), %rax
	je	mpu_enter_\name
.endm

.macro MPU_ENTER name last count
SYM_FUNC_START_LOCAL(mpu_enter_\name)
	MPU_NO_TARGET
.ifnb \count
	cmpl	$0, \count(%rip)
	jne	2f
	RET
2:
.endif
	pushq	%rdi
	pushq	%rsi
	pushq	%rdx
	call	mpu_wants_\name
	popq	%rdx
	popq	%rsi
	popq	%rdi
	testq	%rax, %rax
	jne	1f
	RET
1:	movq	%rax, \last
	leaq	mpu_\name(%rip), %rax
	movq	%rax, (%rsp)
	RET
SYM_FUNC_END(mpu_enter_\name)
.endm

/* No function to objtool: up to 5.4 it would not believe the hint that the return finds what was pushed. */
.macro MPU_ORIGINAL name index
SYM_CODE_START(mpu_original_\name)
	UNWIND_HINT_FUNC
	pushq	(mpu_original + 8 * \index)(%rip)
	UNWIND_HINT_FUNC
	RET
SYM_CODE_END(mpu_original_\name)
.endm

/* Before this instance begins, no function is found: the call is the other instance's, which hands over; or the function's own. */
SYM_FUNC_START(mpu_enter)
	MPU_NO_TARGET
	movq	(%rsp), %rax
	MPU_IS	find_ns_pid MPU_FIND_NS_PID
	MPU_IS	from_user MPU_FROM_USER
	MPU_IS	to_user MPU_TO_USER
	MPU_IS	ioctl MPU_IOCTL
	MPU_IS	is_init_ns MPU_IS_INIT_NS
	MPU_IS	get_pid_info MPU_GET_PID_INFO
	MPU_IS	compat MPU_COMPAT
	movq	mpu_elder(%rip), %rax
	testq	%rax, %rax
	jne	mpu_enter_elder
	RET
SYM_FUNC_END(mpu_enter)

SYM_CODE_START(mpu_enter_elder)
	UNWIND_HINT_FUNC
	pushq	%rax
	UNWIND_HINT_FUNC
	RET
SYM_CODE_END(mpu_enter_elder)

/* By a return and no jump: processors predict returns by counting calls, and one too few would be wrong for every caller's caller. */
SYM_FUNC_START_LOCAL(mpu_enter_find_ns_pid)
	MPU_NO_TARGET
	cmpl	$0, mpu_inside_count(%rip)
	jne	1f
	RET
1:	leaq	mpu_find_ns_pid(%rip), %rax
	movq	%rax, (%rsp)
	RET
SYM_FUNC_END(mpu_enter_find_ns_pid)

/* MPU records new clients of every process. */
SYM_FUNC_START_LOCAL(mpu_enter_get_pid_info)
	MPU_NO_TARGET
	leaq	mpu_get_pid_info(%rip), %rax
	movq	%rax, (%rsp)
	RET
SYM_FUNC_END(mpu_enter_get_pid_info)

	MPU_ENTER is_init_ns %rdi mpu_translating_count
	MPU_ENTER from_user %rcx mpu_translating_count
	MPU_ENTER to_user %rcx mpu_translating_count
	MPU_ENTER compat %rcx
	MPU_ENTER ioctl %rcx

	MPU_ORIGINAL find_ns_pid MPU_FIND_NS_PID
	MPU_ORIGINAL from_user MPU_FROM_USER
	MPU_ORIGINAL to_user MPU_TO_USER
	MPU_ORIGINAL compat MPU_COMPAT
	MPU_ORIGINAL ioctl MPU_IOCTL

#if defined(MPU_OWN_RETURN_THUNK) || !(defined(CONFIG_RETHUNK) || defined(CONFIG_MITIGATION_RETHUNK))
/* The Rust core returns by this, as kernels want that have it; one that has none exports none. */
SYM_CODE_START(__x86_return_thunk)
	UNWIND_HINT_FUNC
	ret
	/* As the kernel's own returns have it; objtool up to 5.4 takes what is never reached for a mistake. */
#if defined(CONFIG_SLS) || defined(CONFIG_MITIGATION_SLS)
	int3
#endif
SYM_CODE_END(__x86_return_thunk)
#endif

	.section .note.GNU-stack, "", @progbits
