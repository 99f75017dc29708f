#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# What the kernel's headers hold, found out by compiling: which functions there are, and how they are called. A kernel's number does
# not tell: RHEL, SLES and Ubuntu bring functions of newer kernels into older ones.
#
#   sh mpu_probes.sh HEADER COMMAND [RELEASE]   Kbuild calls it; COMMAND is the kernel's own compiler with its own flags
#
# Each question has a list of answers. Each answer is a piece of C that compiles only where it is true; the first that compiles is
# it. There is no answer "none of these": then the build stops, with the compiler's words. So a missing compiler or broken headers are
# never taken for a kernel without a function. What was found goes into HEADER as MPU_QUESTION_ANSWER, into the build's log, and
# into the module (`modinfo -F probes mpu.ko`).
set -u
header=$1
# All that a probe begins with is in one header. It begins with what the kernel's own command includes, which therefore says it no more.
all=$(dirname "$header")/.mpu_probes_all.h
compiler=$(printf '%s\n' "$2" | sed 's/ -include  *[^ ]*//g')
# A probe leaves things unused: a kernel that is built with -Werror must not mind.
compiler="$compiler -g0 -Wno-error -Werror=implicit-function-declaration -Werror=incompatible-pointer-types -Werror=int-conversion \
-DKBUILD_BASENAME='\"mpu_probe\"' -DKBUILD_MODNAME='\"mpu_probe\"'"
# What every probe begins with. A kernel before 5.10 has no objtool.h, and one before 4.17 no xarray.h.
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
	words=
}

answer() {
	[ -z "$answered" ] || return 0
	if compiles "$2"; then
		answered=$1
	else
		words="$words
--- $feature is not $1:
$errors"
	fi
}

# With an argument: what it means that nothing compiles, where that is known.
end() {
	unknown="this kernel's headers answer $feature in no way that this version of MPU knows: update MPU"
	[ -n "$answered" ] || stop "${1:-$unknown}" "$words"
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
# The compiler reads the headers once, and takes what it understood of them for each probe: 1.5 s instead of 4.4 on 6.1. One that makes no
# use of that reads them each time.
eval "$compiler" -x c-header '"$all"' -o '"$all.gch"' 2>/dev/null && compiles '' || rm -f "$all.gch"

# Whether the compiler can tell at all.
compiles 'static int mpu_probe __maybe_unused;' ||
	stop "the compiler does not compile the kernel's own headers: is it the kernel's compiler, and are the headers whole?" "$errors"
compiles 'static int __maybe_unused mpu_probe(void) { return mpu_there_is_no_such_function(); }' &&
	stop "the compiler accepts a function that does not exist, so nothing can be found out with it" "$errors"
compiles 'static int mpu_probe(int number) { return number; }
static int (*mpu_other)(void *) __maybe_unused = mpu_probe;' &&
	stop "the compiler accepts a function of another type, so nothing can be found out with it" "$errors"

# Direct calls: how a function of the driver is made to call ours. By one registration of many functions (6.4), by the same under
# another name with (6.3) and without (5.16) an order to forget the list of functions, or one by one (5.5). A kernel that is configured
# without them has empty ones.
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

# What an ftrace handler is given, and how it reads arguments and says where the function goes on: by functions for a part of the
# registers, which every architecture has (6.2), by all registers within their own structure (5.11), or by all registers (before).
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

# Whether a registration can keep function tracing from being switched off (5.5). The second declares the name itself, which only
# compiles where there is none.
question PERMANENT
answer YES 'enum { MPU_PROBE = FTRACE_OPS_FL_PERMANENT };'
answer NO 'enum { FTRACE_OPS_FL_PERMANENT };'
end

# Whether objtool needs a mark at addresses that are no target of an indirect branch (5.18). The macro for assembly has the name
# of that for C.
question NOENDBR
answer YES '#ifndef ANNOTATE_NOENDBR
#error "no ANNOTATE_NOENDBR"
#endif'
answer NO '#ifdef ANNOTATE_NOENDBR
#error "ANNOTATE_NOENDBR"
#endif'
end

# A process's own place among what a struct pid is for, and a task's way to its own (4.19; RHEL 8 has them in its 4.18). By these the
# module tells a process from a thread: there is nothing to take their place.
question PROCESS
answer TGID 'static struct hlist_node *mpu_probe(struct task_struct *task) __maybe_unused;
static struct hlist_node *mpu_probe(struct task_struct *task)
{
	return task->thread_pid->tasks[PIDTYPE_TGID].first ? &task->pid_links[PIDTYPE_TGID] : NULL;
}'
end 'this kernel is too old: its headers lack PIDTYPE_TGID, which came with 4.19 and with RHEL 8'

# Whether a namespace's numbers stand in an XArray (4.20), whose nodes a reader can go through by the kernel's own inline functions.
question TREE
answer XARRAY 'static void * __maybe_unused mpu_probe(const struct xarray *tree, const struct xa_node *node)
{
	return xa_is_node(tree) || xa_is_internal(tree) ? xa_entry(tree, node, node->shift) : xa_to_node(xa_head(tree));
}
static const struct xarray * __maybe_unused mpu_tree(struct pid_namespace *ns) { return &ns->idr.idr_rt; }'
answer ANY 'static void * __maybe_unused mpu_probe(struct pid_namespace *ns) { return idr_find(&ns->idr, 1); }'
end

# When a task was born: the field got its name in 5.5.
question BORN
answer START_BOOTTIME 'static u64 __maybe_unused mpu_probe(struct task_struct *task) { return task->start_boottime; }'
answer REAL_START_TIME 'static u64 __maybe_unused mpu_probe(struct task_struct *task) { return task->real_start_time; }'
end

# How kernel memory is read that may not be there: the function got its name in 5.8.
question PEEK
answer NOFAULT 'static long __maybe_unused mpu_probe(void *to) { return copy_from_kernel_nofault(to, to, 1); }'
answer PROBE 'static long __maybe_unused mpu_probe(void *to) { return probe_kernel_read(to, to, 1); }'
end

# What tells a cgroup from every other: by a function (5.5), or by the field that it reads, which was a union before.
question GROUP
answer FUNCTION 'static u64 __maybe_unused mpu_probe(struct cgroup *cgroup) { return cgroup_id(cgroup); }'
answer FIELD 'static u64 __maybe_unused mpu_probe(struct cgroup *cgroup) { return cgroup->kn->id.id; }'
end

# Whether synchronize_rcu() waits for those who run with preemption off (4.20), or there is another function that does. The first declares
# the name itself, which only compiles where there is none.
question PREEMPTION
answer RCU 'enum { synchronize_sched };'
answer SCHED 'static void __maybe_unused mpu_probe(void) { synchronize_sched(); }'
end

# How a probe reads a function's argument: by a function (4.20 on x86-64), or by the processor's register.
question ARGUMENT
answer FUNCTION 'static unsigned long __maybe_unused mpu_probe(struct pt_regs *regs) { return regs_get_kernel_argument(regs, 0); }'
answer REGISTER 'static unsigned long __maybe_unused mpu_probe(struct pt_regs *regs) { return regs->di + regs->si + regs->r9; }'
end

cat >"$header" <<END
/* Made by mpu_probes.sh from the headers of the kernel that this module is for${3:+: $3}. */
$defines#define MPU_PROBES "$found"
END
echo "  mpu: this kernel's headers: $found"
