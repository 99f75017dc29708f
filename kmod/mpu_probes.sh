#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Finds out by compiling which functions the kernel's headers have, and with which types. A kernel's version is no proof: RHEL, SLES and
# Ubuntu backport functions of newer kernels.
#
#   sh mpu_probes.sh HEADER COMMAND [RELEASE]   Kbuild calls it; COMMAND is the kernel's own compiler with its own flags
#
# Each question has a list of answers. Each answer is a piece of C that compiles only where it is true; the first that compiles counts. If
# none compiles, the build stops with the compiler's messages. So a missing compiler or broken headers are never taken for a kernel without
# a function. The answers go into HEADER as MPU_QUESTION_ANSWER, into the build's log, and into the module (`modinfo -F probes mpu.ko`).
set -u
header=$1
# One header with everything that a probe includes: first the files of the command's -include options, which are removed from the command.
all=$(dirname "$header")/.mpu_probes_all.h
compiler=$(printf '%s\n' "$2" | sed 's/ -include  *[^ ]*//g')
# -Wno-error: probes have unused code, and some kernels are built with -Werror.
compiler="$compiler -g0 -Wno-error -Werror=implicit-function-declaration -Werror=incompatible-pointer-types -Werror=int-conversion \
-DKBUILD_BASENAME='\"mpu_probe\"' -DKBUILD_MODNAME='\"mpu_probe\"'"
# Included by every probe. Kernels before 5.10 have no objtool.h, and those before 4.17 no xarray.h.
includes='#include <linux/types.h>
#include <linux/cgroup.h>
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/ptrace.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#if __has_include(<linux/objtool.h>)
#include <linux/objtool.h>
#endif
#if __has_include(<linux/xarray.h>)
#include <linux/xarray.h>
#endif'
found=
defines=

compiles() {
	errors=$(printf '%s\n' "$1" | eval "$compiler" -include '"$all"' -fsyntax-only -x c - 2>&1)
}

stop() {
	printf '%s\n' "$2" >&2
	echo "mpu_probes.sh: error: $1" >&2
	rm -f "$header"
	exit 1
}

question() {
	feature=$1
	answered=
	messages=
}

answer() {
	[ -z "$answered" ] || return 0
	if compiles "$2"; then
		answered=$1
	else
		messages="$messages
--- $feature is not $1:
$errors"
	fi
}

# end [MESSAGE]: MESSAGE is the error if no answer compiles.
end() {
	unknown="this kernel's headers answer $feature in no way that this version of MPU knows: update MPU"
	[ -n "$answered" ] || stop "${1:-$unknown}" "$messages"
	found="$found${found:+ }$(echo "$feature=$answered" | tr 'A-Z' 'a-z')"
	defines="$defines#define MPU_${feature}_$answered 1
"
}

trap 'rm -f "$all" "$all.gch"' EXIT
{
	printf '%s\n' "$2" | tr -s ' ' '\n' |
		sed -n '/^-include$/{n;s|^[^/]|./&|;s|^\./|'"$(pwd)"'/|;s|.*|#include "&"|;p;}'
	printf '%s\n' "$includes"
} >"$all"
# A precompiled header: 1.5 s instead of 4.4 on 6.1. A compiler that cannot use it reads the headers for each probe.
eval "$compiler" -x c-header '"$all"' -o '"$all.gch"' 2>/dev/null && compiles '' || rm -f "$all.gch"

# Tests the compiler itself: it must compile the first piece, and refuse the other two.
compiles 'static int mpu_probe __maybe_unused;' ||
	stop "the compiler does not compile the kernel's own headers: is it the kernel's compiler, and are the headers whole?" "$errors"
compiles 'static int __maybe_unused mpu_probe(void) { return mpu_there_is_no_such_function(); }' &&
	stop "the compiler accepts a function that does not exist, so nothing can be found out with it" "$errors"
compiles 'static int mpu_probe(int number) { return number; }
static int (*mpu_other)(void *) __maybe_unused = mpu_probe;' &&
	stop "the compiler accepts a function of another type, so nothing can be found out with it" "$errors"

# How ftrace direct calls are registered: many functions at once (6.4); the same under another name, with (6.3) or without (5.16) an
# argument that frees the list of functions; or one by one (5.5). A kernel configured without direct calls has empty functions.
configured='#ifndef CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS
#error "configured without direct calls"
#endif
typedef int mpu_by_list(struct ftrace_ops *, unsigned long);
typedef int mpu_and_forget(struct ftrace_ops *, unsigned long, bool);
typedef int mpu_by_one(unsigned long, unsigned long);
typedef int mpu_change_one(unsigned long, unsigned long, unsigned long);
'
question DIRECT
answer LIST "$configured
static mpu_by_list *mpu_a __maybe_unused = register_ftrace_direct, *mpu_b __maybe_unused = modify_ftrace_direct;
static mpu_and_forget *mpu_c __maybe_unused = unregister_ftrace_direct;"
answer MULTI_FORGET "$configured
static mpu_by_list *mpu_a __maybe_unused = register_ftrace_direct_multi, *mpu_b __maybe_unused = modify_ftrace_direct_multi;
static mpu_and_forget *mpu_c __maybe_unused = unregister_ftrace_direct_multi;"
answer MULTI "$configured
static mpu_by_list *mpu_a __maybe_unused = register_ftrace_direct_multi, *mpu_b __maybe_unused = modify_ftrace_direct_multi,
	*mpu_c __maybe_unused = unregister_ftrace_direct_multi;"
answer ONE "$configured
static mpu_by_one *mpu_a __maybe_unused = register_ftrace_direct, *mpu_b __maybe_unused = unregister_ftrace_direct;
static mpu_change_one *mpu_c __maybe_unused = modify_ftrace_direct;"
answer NONE '#ifdef CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS
#error "configured with direct calls"
#endif'
end

# What an ftrace handler gets, to read arguments and to change the instruction pointer: a part of the registers, with functions that every
# architecture has (6.2); all registers in a structure of their own (5.11); or pt_regs (before).
question HANDLER
answer ARGS '#ifndef CONFIG_DYNAMIC_FTRACE_WITH_ARGS
#error "configured without arguments for handlers"
#endif
static void mpu_handler(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct ftrace_regs *regs)
{
	ftrace_regs_set_instruction_pointer(regs, ftrace_regs_get_argument(regs, 0));
}
static ftrace_func_t mpu_a __maybe_unused = mpu_handler;'
answer FREGS '#ifndef CONFIG_DYNAMIC_FTRACE_WITH_REGS
#error "configured without registers for handlers"
#endif
static void mpu_handler(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct ftrace_regs *regs)
{
	instruction_pointer_set(ftrace_get_regs(regs), 0);
}
static ftrace_func_t mpu_a __maybe_unused = mpu_handler;'
answer REGS '#ifndef CONFIG_DYNAMIC_FTRACE_WITH_REGS
#error "configured without registers for handlers"
#endif
static void mpu_handler(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct pt_regs *regs)
{
	instruction_pointer_set(regs, 0);
}
static ftrace_func_t mpu_a __maybe_unused = mpu_handler;'
answer NONE '#if defined(CONFIG_DYNAMIC_FTRACE_WITH_REGS) || defined(CONFIG_DYNAMIC_FTRACE_WITH_ARGS)
#error "configured with registers for handlers"
#endif'
end

# Whether a registration can prevent that function tracing is switched off (5.5). The second answer declares the name itself, which compiles
# only where the kernel has none.
question PERMANENT
answer YES 'enum { MPU_PROBE = FTRACE_OPS_FL_PERMANENT };'
answer NO 'enum { FTRACE_OPS_FL_PERMANENT };'
end

# Whether objtool needs a mark at addresses that are no target of an indirect branch (5.18). The macro has the same name in assembly and C.
question NOENDBR
answer YES '#ifndef ANNOTATE_NOENDBR
#error "no ANNOTATE_NOENDBR"
#endif'
answer NO '#ifdef ANNOTATE_NOENDBR
#error "ANNOTATE_NOENDBR"
#endif'
end

# PIDTYPE_TGID in struct pid and task_struct (4.19; RHEL 8 has it in its 4.18). The module distinguishes processes from threads by it, and
# there is no substitute.
question PROCESS
answer TGID 'static struct hlist_node *mpu_probe(struct task_struct *task) __maybe_unused;
static struct hlist_node *mpu_probe(struct task_struct *task)
{
	return task->thread_pid->tasks[PIDTYPE_TGID].first ? &task->pid_links[PIDTYPE_TGID] : NULL;
}'
end 'this kernel is too old: its headers lack PIDTYPE_TGID, which came with 4.19 and with RHEL 8'

# Whether a namespace's PIDs are in an XArray (4.20), which the kernel's inline functions can walk.
question TREE
answer XARRAY 'static void * __maybe_unused mpu_probe(const struct xarray *tree, const struct xa_node *node)
{
	return xa_is_node(tree) || xa_is_internal(tree) ? xa_entry(tree, node, node->shift) : xa_to_node(xa_head(tree));
}
static const struct xarray * __maybe_unused mpu_tree(struct pid_namespace *ns) { return &ns->idr.idr_rt; }'
answer ANY 'static void * __maybe_unused mpu_probe(struct pid_namespace *ns) { return idr_find(&ns->idr, 1); }'
end

# The field of a task's start time, renamed in 5.5.
question BORN
answer START_BOOTTIME 'static u64 __maybe_unused mpu_probe(struct task_struct *task) { return task->start_boottime; }'
answer REAL_START_TIME 'static u64 __maybe_unused mpu_probe(struct task_struct *task) { return task->real_start_time; }'
end

# The function that reads kernel memory that may not be mapped, renamed in 5.8.
question PEEK
answer NOFAULT 'static long __maybe_unused mpu_probe(void *to) { return copy_from_kernel_nofault(to, to, 1); }'
answer PROBE 'static long __maybe_unused mpu_probe(void *to) { return probe_kernel_read(to, to, 1); }'
end

# A cgroup's ID: by a function (5.5), or by the field that it reads, which was a union before.
question GROUP
answer FUNCTION 'static u64 __maybe_unused mpu_probe(struct cgroup *cgroup) { return cgroup_id(cgroup); }'
answer FIELD 'static u64 __maybe_unused mpu_probe(struct cgroup *cgroup) { return cgroup->kn->id.id; }'
end

# Whether synchronize_rcu() waits for code that runs with preemption off (4.20), or synchronize_sched() does. The first answer declares that
# name itself, which compiles only where the kernel has none.
question PREEMPTION
answer RCU 'enum { synchronize_sched };'
answer SCHED 'static void __maybe_unused mpu_probe(void) { synchronize_sched(); }'
end

# How a kprobe reads a function's argument: by a function (4.20 on x86-64), or from the register.
question ARGUMENT
answer FUNCTION 'static unsigned long __maybe_unused mpu_probe(struct pt_regs *regs) { return regs_get_kernel_argument(regs, 0); }'
answer REGISTER 'static unsigned long __maybe_unused mpu_probe(struct pt_regs *regs) { return regs->di + regs->si + regs->r9; }'
end

cat >"$header" <<END
/* Made by mpu_probes.sh from the headers of the kernel that this module is for${3:+: $3}. */
$defines#define MPU_PROBES "$found"
END
echo "  mpu: this kernel's headers: $found"
