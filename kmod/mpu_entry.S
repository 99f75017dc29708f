/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The trampoline between the driver's functions and their replacements.
 *
 * The first instruction of a redirected function calls mpu_enter (an ftrace direct call). mpu_enter finds the function by its return
 * address, and calls the check mpu_match_NAME. If that returns 0, mpu_enter returns into the function. Any other value is the last argument
 * of the replacement mpu_NAME. mpu_enter then replaces its return address by mpu_NAME, which returns to the function's caller.
 *
 * Most calls are not for MPU. So some checks are skipped while a counter shows that no task in the system can need them.
 * The driver calls find_ns_pid for each pair of a process and a client, so check and replacement are one function there.
 *
 * A replacement runs the original function by mpu_original_NAME, which continues behind the patched instruction. So the call does not come
 * here again, even if another tracer traces the function. It continues by a return, because on kernels with IBT the middle of a function is
 * no target of an indirect branch.
 *
 * The functions take at most three arguments, so only rdi, rsi and rdx must be saved: at a function's entry the caller expects no other
 * caller-saved register to survive.
 */
#include <linux/linkage.h>
#include <asm/unwind_hints.h>
#include "mpu_probes.h"
#ifdef MPU_NOENDBR_YES
#include <linux/objtool.h>
#endif

/* Up to 5.4 these macros have other names (include/linux/linkage.h), and no mitigation needs another return instruction. */
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

/* Indexes of mpu_original[], as in enum mpu_hook. mpu_hooks.c asserts them. */
#define MPU_FIND_NS_PID 0
#define MPU_FROM_USER 1
#define MPU_TO_USER 2
#define MPU_IOCTL 3
#define MPU_IS_INIT_NS 4
#define MPU_GET_PID_INFO 5
#define MPU_COMPAT 6

/* With IBT, objtool needs this mark where an address is taken that is no target of an indirect branch: ftrace calls it directly. */
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
	call	mpu_match_\name
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

/* SYM_CODE, because as a function objtool up to 5.4 would reject the hint for a return to a pushed address. */
.macro MPU_ORIGINAL name index
SYM_CODE_START(mpu_original_\name)
	UNWIND_HINT_FUNC
	pushq	(mpu_original + 8 * \index)(%rip)
	UNWIND_HINT_FUNC
	RET
SYM_CODE_END(mpu_original_\name)
.endm

/* Before mpu_hooks_activate() no function matches. The call then belongs to the instance that hands over, if there is one. */
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
	movq	mpu_peer_entry(%rip), %rax
	testq	%rax, %rax
	jne	mpu_enter_peer
	RET
SYM_FUNC_END(mpu_enter)

SYM_CODE_START(mpu_enter_peer)
	UNWIND_HINT_FUNC
	pushq	%rax
	UNWIND_HINT_FUNC
	RET
SYM_CODE_END(mpu_enter_peer)

/* A return, not a jump: processors predict returns by pairing them with calls, and a missing return spoils all later predictions. */
SYM_FUNC_START_LOCAL(mpu_enter_find_ns_pid)
	MPU_NO_TARGET
	cmpl	$0, mpu_inside_count(%rip)
	jne	1f
	RET
1:	leaq	mpu_find_ns_pid(%rip), %rax
	movq	%rax, (%rsp)
	RET
SYM_FUNC_END(mpu_enter_find_ns_pid)

/* Replaced for every process, not only for containers. */
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
/* The Rust core returns through this thunk. A kernel without return thunks does not export it. */
SYM_CODE_START(__x86_return_thunk)
	UNWIND_HINT_FUNC
	ret
	/* As behind the kernel's own returns. Only with SLS, because objtool up to 5.4 reports unreachable code. */
#if defined(CONFIG_SLS) || defined(CONFIG_MITIGATION_SLS)
	int3
#endif
SYM_CODE_END(__x86_return_thunk)
#endif

	.section .note.GNU-stack, "", @progbits
