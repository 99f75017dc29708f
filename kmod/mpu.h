/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the glue's files know of each other. */
#ifndef MPU_H
#define MPU_H

#include <linux/compiler.h>
#include <linux/hash.h>
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/pid.h>
#include <linux/spinlock.h>
#include "mpu_core.h"
#include "mpu_older.h"

struct file;
struct pid_namespace;

/* Requests to the driver, as in crates/mpu-abi/src/ioctl.rs. */
#define NV_ESC_RM_ALLOC_MEMORY 0x27
#define NV_ESC_RM_CONTROL 0x2a
#define NV_ESC_RM_ALLOC 0x2b
#define NV_ESC_RM_VID_HEAP_CONTROL 0x4a
#define NV_ESC_RM_GET_EVENT_DATA 0x52
#define NV_ESC_IOCTL_XFER_CMD 211

/* The argument of NV_ESC_RM_CONTROL (NVOS54_PARAMETERS). */
struct mpu_rm_control {
	u32 client;
	u32 object;
	struct mpu_argument argument;
};

/* The argument of NV_ESC_RM_GET_EVENT_DATA (NVOS41_PARAMETERS). */
struct mpu_rm_event {
	u64 data;
	u32 more;
	u32 status;
};

/*
 * A bit beside those of mpu_core.h. The driver allocates: what it asks about processes is for its own books, and nothing of it reaches the
 * caller.
 */
#define MPU_ALLOCATES 16u

/* Whom a caller may see: its PID namespace, and what the policy adds. */
struct mpu_view {
	struct pid_namespace *ns;
	/* The cgroup whose processes it sees besides, 0 for none; and how far below the root that is. */
	u64 group;
	u32 group_depth;
};

/* A container's call on its way through the driver. It lives in the module's memory: a driver that dies leaves it behind. */
struct mpu_context {
	/* Not 0: in use. */
	int busy;
	/* Counts the uses. */
	u32 entry;
	/* Whose it is: NULL while it is being filled, and after. */
	struct task_struct *task;
	/* When that task started: a dead one's memory can be another task by now. */
	u64 born;
	/* Its numbers in the init namespace. */
	pid_t process;
	pid_t thread;
	/* In jiffies. */
	unsigned long entered;
	/* The ioctl's number. */
	u8 request;
	/* The driver's own copy of an RM control's argument was seen. */
	bool argued;
	/* What the argument names; of a call that fetches an event, where that goes to. */
	struct mpu_argument argument;
	struct mpu_view view;
	/* MPU_SEES_*, 0 until it matters. */
	u32 sees;
	/* What mpu_rs_begin() returned, or MPU_EVENT; set by mpu_context_translates(). Or MPU_ALLOCATES. */
	u32 bits;
	/* It is one of mpu_translating_count. */
	bool is_counted;
	/* The PIDs of the caller's query. */
	u32 *requested;
	u32 questions;
	u64 call[MPU_CALL_BYTES / 8];
	/* For those that are not part of a bucket. */
	struct hlist_node node;
	struct rcu_head rcu;
};

/*
 * The driver's functions that are redirected. Their order is that in which mpu_entry.S asks which of them it was: the one that
 * is called most comes first.
 */
enum mpu_hook {
	MPU_FIND_NS_PID,
	MPU_FROM_USER,
	MPU_TO_USER,
	MPU_IOCTL,
	MPU_IS_INIT_NS,
	MPU_GET_PID_INFO,
	MPU_COMPAT,
	MPU_HOOKS,
};

/*
 * Where each redirected function goes on behind its redirected first instruction, 0 for one that is not redirected. This is also
 * what tells mpu_entry.S which function it came from.
 */
extern unsigned long mpu_original[MPU_HOOKS];

/*
 * What another instance's functions called, or its handler: until mpu_hooks_begin() a call that comes to this instance goes on there. 0
 * otherwise.
 */
extern unsigned long mpu_elder;

/* mpu_entry.S: what the driver's functions call first, and how a replacement runs the function it replaces. */
extern char mpu_enter[];
u32 mpu_original_find_ns_pid(void *pid_info, u32 *ns_pid);
u32 mpu_original_from_user(void *to, const void *from, u32 bytes);
u32 mpu_original_to_user(void *to, const void *from, u32 bytes);
long mpu_original_compat(struct file *file, unsigned int cmd, unsigned long arg);
long mpu_original_ioctl(struct file *file, unsigned int cmd, unsigned long arg);

/* mpu_stuck.c: the kernel goes on calling something of this module, or did not say that it does not: it must never be unloaded. */
void mpu_stick(int error);
bool mpu_is_stuck(void);

/* mpu_counts.c */
void mpu_count(u32 counter);
void mpu_count_reason(enum mpu_reason reason);
u64 mpu_counter(u32 counter);

/* mpu_contexts.c */
/* The first caller of a bucket has its own context; those that come meanwhile are given memory, and a place in `more`. */
struct mpu_bucket {
	struct mpu_context own;
	raw_spinlock_t lock;
	struct hlist_head more;
} ____cacheline_aligned_in_smp;

#define MPU_BUCKET_BITS 9
extern struct mpu_bucket mpu_buckets[1 << MPU_BUCKET_BITS];

static __always_inline struct mpu_bucket *mpu_bucket_of_current(void)
{
	return &mpu_buckets[hash_ptr(current, MPU_BUCKET_BITS)];
}

static __always_inline bool mpu_is_mine(const struct mpu_context *context)
{
	return READ_ONCE(context->task) == current && context->born == mpu_born(current);
}

struct mpu_context *mpu_context_among_more(struct mpu_bucket *bucket);

/*
 * The running task's context, or NULL. Takes no lock, so a probe may ask. Only the task itself says that a context is its own, and that it
 * is no more, so what it finds stays.
 */
static __always_inline struct mpu_context *mpu_context_of_current(void)
{
	struct mpu_bucket *bucket = mpu_bucket_of_current();

	if (likely(mpu_is_mine(&bucket->own)))
		return &bucket->own;
	return likely(hlist_empty(&bucket->more)) ? NULL : mpu_context_among_more(bucket);
}

#define MPU_HOLDERS 16

/* Who is inside. */
struct mpu_inside {
	u32 callers;
	/* Contexts whose task died inside the driver, since the module was loaded. */
	u32 orphans;
	/* Callers of more than MPU_HOLDS_MS, as many as there is room for. */
	u32 holders;
	struct mpu_holder {
		pid_t process;
		pid_t thread;
		u32 cmd;
		u32 ms;
		bool control;
	} holder[MPU_HOLDERS];
};

#define MPU_HOLDS_MS 100

/* Calls in the whole system that MPU translates just now. */
extern atomic_t mpu_translating_count;

/* Callers from containers that are inside: each holds a reference to the module, which mpu_goes_out() gives back. */
extern atomic_t mpu_inside_count;
void mpu_goes_out(void);

void mpu_contexts_init(void);
/* A context for the running task; NULL for want of memory. May sleep. */
struct mpu_context *mpu_context_enter(void);
void mpu_context_leave(struct mpu_context *context);
/* Stores what mpu_rs_begin() returned for the call. A probe may call this. */
void mpu_context_translates(struct mpu_context *context, u32 bits);
/* Who is inside now; frees what dead tasks left. `inside` may be NULL. */
u32 mpu_contexts_look(struct mpu_inside *inside);
/* Whether so many are inside. False as well if another task looks just now: does not wait for it. */
bool mpu_contexts_are(u32 callers);

/* mpu_argument.c: the probe that reads the driver's own copy of the argument: at `rm_ioctl`, or `error` says why there is none. */
void mpu_argument_place(unsigned long rm_ioctl, int error, bool armed);
/* `shared`: another instance's probe stands there, too. */
void mpu_argument_remove(bool shared);
/* Behind mpu_argument_remove() and the last caller. */
void mpu_argument_exit(void);
/* Whether the probe stands. If not, the first call from a container asks for it, and waits for nothing. */
extern bool mpu_probe_armed;
bool mpu_argument_asks(void);

static __always_inline bool mpu_argument_is_seen(void)
{
	return likely(READ_ONCE(mpu_probe_armed)) || mpu_argument_asks();
}

/* The probe stood, and the driver took a control without passing it. */
void mpu_argument_lost(void);
/* 0, or why there is no probe; and whether it is there now. */
int mpu_argument_error(bool *armed);
/* What a call does, by the argument that the context holds, or by its request. Never sleeps. */
void mpu_argument_says(struct mpu_context *context);
void mpu_request_is(struct mpu_context *context, unsigned int request);

/* mpu_calls.c */
/* Callers from containers, and translations, since the module was loaded. */
u64 mpu_calls_entered(void);
u64 mpu_calls_translated(void);
/* From now on callers from containers come in; or none does, and those who would go to the bare driver. */
void mpu_calls_open(bool open);
/* After closing: waits until no caller is inside, `ms` at most. -EBUSY: a caller is; -EINTR: the waiting task was killed. */
int mpu_calls_drain(unsigned int ms);
/* Keeps callers that come from now on at the door, and waits until no other is inside. -ETIMEDOUT, -EINTR: all go on as before. */
int mpu_calls_hold(void);
/* Lets them go to the function's start (`elsewhere`; late callers too, until it is opened anew), or in here. */
void mpu_calls_release(bool elsewhere);

/* Whether a call of a redirected function is for MPU: 0, or what the replacement is given; and the replacements. */
struct mpu_context *mpu_wants_is_init_ns(void);
struct mpu_context *mpu_wants_from_user(void *to, const void *from, u32 bytes);
struct mpu_context *mpu_wants_to_user(void *to, const void *from, u32 bytes);
unsigned long mpu_wants_compat(struct file *file, unsigned int cmd, unsigned long arg);
unsigned long mpu_wants_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
void *mpu_get_pid_info(void);
u32 mpu_find_ns_pid(void *pid_info, u32 *ns_pid);
u8 mpu_is_init_ns(void);
u32 mpu_from_user(void *to, const void *from, u32 bytes, struct mpu_context *context);
u32 mpu_to_user(void *to, const void *from, u32 bytes, struct mpu_context *context);
long mpu_compat(struct file *file, unsigned int cmd, unsigned long arg);
long mpu_ioctl(struct file *file, unsigned int cmd, unsigned long arg);

/* mpu_pids.c: the process of a thread that made a client, as the init namespace numbers it; 0 if it is gone. */
u32 mpu_process_of_thread(struct pid *pid);

/* The process behind one of the driver's references, as the init namespace numbers it; 0 if it is gone. */
static __always_inline u32 mpu_host_pid_of(struct pid *pid)
{
	/* The driver holds the reference; a process's number stands in it. */
	return likely(!hlist_empty(&pid->tasks[PIDTYPE_TGID])) ? pid_nr(pid) : mpu_process_of_thread(pid);
}

/* mpu_makers.c */
/*
 * Processes that were found to have the driver, each in the place of its number: a word that no other process has, made of the
 * address of its struct pid and the time of its birth. A place that two processes share costs a walk now and then.
 */
#define MPU_MAKERS_BITS 12
extern u64 mpu_makers[1 << MPU_MAKERS_BITS];

static __always_inline u64 *mpu_maker_at(u32 host)
{
	return &mpu_makers[host & (ARRAY_SIZE(mpu_makers) - 1)];
}

static __always_inline u64 mpu_maker_word(const struct pid *pid, const struct task_struct *leader)
{
	return (u64)(unsigned long)pid + mpu_born(leader) * 0x9e3779b97f4a7c15ull;
}

/* Looks into its files. Under RCU. */
bool mpu_finds_maker(struct task_struct *leader, u64 *place, u64 word);
/* The running task's process makes something in the driver. */
void mpu_note_maker(void);

/* mpu_policy.c */
bool mpu_policy_is_set(void);
/* MPU_SEES_OWN, _GROUP (then `view` says which) or _HOST. May sleep. */
u32 mpu_policy_of_current(struct mpu_view *view);
/* Whether a process is beneath the view's group. Under RCU. */
bool mpu_policy_same_group(struct pid *pid, const struct mpu_view *view);

/* mpu_hooks.c */
struct mpu_refusal {
	const char *symbol;
	int error;
};
struct mpu_peer;
/* First of all: whether this kernel has a way to redirect that root allows. */
int mpu_hooks_init(void);
/*
 * Redirects the driver's functions, all that are needed or none, to nothing yet. If `peer` is not NULL they are taken over from it: calls
 * go on there.
 */
int mpu_hooks_place(struct mpu_refusal *refusal, struct mpu_peer *peer);
/* Calls are for this instance from now on. No caller is inside the other one. */
void mpu_hooks_begin(void);
/* After it, or after a failure: waits, for the whole system, until no task is on the way from here to the other instance. */
void mpu_hooks_alone(void);
/* Instead of mpu_hooks_begin(): the functions are the other instance's again. An error: the kernel would not. */
int mpu_hooks_give_back(struct mpu_peer *peer);
/* The leaving side: says what is redirected; and lets go of it. */
void mpu_hooks_hand(struct mpu_peer *peer);
void mpu_hooks_handed(const struct mpu_peer *peer);
/* A redirected function's first byte: a call of that passes the redirect. */
unsigned long mpu_hooks_start(enum mpu_hook hook);
/*
 * Takes the redirects out and waits until no task is on the way through one. An error: the kernel would not, so the driver goes on
 * calling into this module, which must never be unloaded.
 */
int mpu_hooks_remove(void);
/* Whether a module named nvidia with a way in that MPU knows is loaded, or coming. */
bool mpu_hooks_driver_present(void);
/* The driver's name for a redirected function, NULL if it is not redirected now. */
const char *mpu_hooks_placed(enum mpu_hook hook);
/* By which way they are redirected, NULL if they are not. */
const char *mpu_hooks_way(void);

/*
 * Whether the running task is outside the init PID namespace. A struct pid's level is its namespace's depth, and only the
 * init namespace is at depth 0.
 */
static __always_inline bool mpu_in_container(void)
{
	struct pid *pid = READ_ONCE(current->thread_pid);

	return pid && pid->level != 0;
}

#endif
