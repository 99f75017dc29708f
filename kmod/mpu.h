/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Declarations shared by the module's C files. */
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
 * Added to the bits of mpu_core.h: the request allocates. The driver then resolves PIDs for its own accounting only, and copies none of
 * them to the caller.
 */
#define MPU_ALLOCATES 16u

/* The processes that a caller may see: those of its PID namespace, and those that the policy adds. */
struct mpu_view {
	struct pid_namespace *ns;
	/* The cgroup that the policy adds, 0 for none; and its depth below the root. */
	u64 group;
	u32 group_depth;
};

/* A container's call inside the driver. It is in the module's memory, not on the caller's stack: an oops in the driver ends the stack. */
struct mpu_context {
	/* Not 0 while in use. */
	int busy;
	/* Incremented at each use. */
	u32 generation;
	/* The owner. NULL until the context is complete, and again after each use. */
	struct task_struct *task;
	/* The task's start time, because the kernel reuses the memory of a dead task. */
	u64 start_time;
	/* PID and thread ID in the init namespace. */
	pid_t process;
	pid_t thread;
	/* In jiffies. */
	unsigned long entered;
	/* _IOC_NR of the ioctl. */
	u8 request;
	/* The probe read the driver's copy of an RM control's argument. */
	bool argument_seen;
	/* From the argument of an RM control. For NV_ESC_RM_GET_EVENT_DATA only `params` is set: the caller's address for the event. */
	struct mpu_argument argument;
	struct mpu_view view;
	/* MPU_SEES_*, 0 until the policy is evaluated. */
	u32 sees;
	/* The result of mpu_rs_begin(), MPU_EVENT or MPU_ALLOCATES. mpu_context_set_bits() sets the first two. */
	u32 bits;
	/* What mpu_rs_begin() counted last; MPU_NOT_COUNTED before. */
	u32 begin_counter;
	/* Counted in mpu_translating_count. */
	bool is_counted;
	/* The PIDs in the caller's query. */
	u32 *requested;
	u32 requested_count;
	u64 call[MPU_CALL_BYTES / 8];
	/* In `overflow` of a bucket; unused in a context that is part of a bucket. */
	struct hlist_node node;
	struct rcu_head rcu;
};

/*
 * The driver's functions that are redirected. mpu_entry.S compares in this order, so the most frequently called function comes first.
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
 * The address behind the patched instruction of each redirected function, 0 if the function is not redirected. mpu_entry.S finds the
 * called function by this address.
 */
extern unsigned long mpu_original[MPU_HOOKS];

/*
 * The trampoline or ftrace handler of the instance that hands over, 0 otherwise. Calls that arrive before mpu_hooks_activate() continue
 * there.
 */
extern unsigned long mpu_peer_entry;

/* mpu_entry.S: the trampoline that redirected functions call, and the entries by which a replacement runs the original function. */
extern char mpu_enter[];
u32 mpu_original_find_ns_pid(void *pid_info, u32 *ns_pid);
u32 mpu_original_from_user(void *to, const void *from, u32 bytes);
u32 mpu_original_to_user(void *to, const void *from, u32 bytes);
long mpu_original_compat(struct file *file, unsigned int cmd, unsigned long arg);
long mpu_original_ioctl(struct file *file, unsigned int cmd, unsigned long arg);

/* mpu_stuck.c: the kernel may still call into this module, so it must never be unloaded. */
void mpu_set_stuck(int error);
bool mpu_is_stuck(void);

/* mpu_counts.c */
void mpu_count(u32 counter);
void mpu_count_reason(enum mpu_reason reason);
u64 mpu_counter(u32 counter);

/* mpu_contexts.c */
/* The first caller in a bucket uses `own`. Concurrent callers get allocated contexts, in `overflow`. */
struct mpu_bucket {
	struct mpu_context own;
	raw_spinlock_t lock;
	struct hlist_head overflow;
} ____cacheline_aligned_in_smp;

#define MPU_BUCKET_BITS 9
extern struct mpu_bucket mpu_buckets[1 << MPU_BUCKET_BITS];

static __always_inline struct mpu_bucket *mpu_bucket_of_current(void)
{
	return &mpu_buckets[hash_ptr(current, MPU_BUCKET_BITS)];
}

static __always_inline bool mpu_context_is_current(const struct mpu_context *context)
{
	return READ_ONCE(context->task) == current && context->start_time == mpu_start_time(current);
}

struct mpu_context *mpu_context_find_overflow(struct mpu_bucket *bucket);

/*
 * The running task's context, or NULL. Takes no lock, so a probe may call it. Only the task itself sets and clears `task`, and
 * mpu_scan_context() if the task died inside. So the result stays valid for a task that lives.
 */
static __always_inline struct mpu_context *mpu_context_of_current(void)
{
	struct mpu_bucket *bucket = mpu_bucket_of_current();

	if (likely(mpu_context_is_current(&bucket->own)))
		return &bucket->own;
	return likely(hlist_empty(&bucket->overflow)) ? NULL : mpu_context_find_overflow(bucket);
}

#define MPU_MAX_HOLDERS 16

/* Callers that are inside the driver. */
struct mpu_caller_stats {
	u32 callers;
	/* Contexts whose task died inside the driver, since the module was loaded. */
	u32 orphans;
	/* Callers that have been inside for MPU_HOLDER_MIN_MS or longer, at most MPU_MAX_HOLDERS. */
	u32 holders;
	struct mpu_holder {
		pid_t process;
		pid_t thread;
		u32 cmd;
		u32 ms;
		bool control;
	} holder[MPU_MAX_HOLDERS];
};

#define MPU_HOLDER_MIN_MS 100

/* Calls in the whole system that are being translated. */
extern atomic_t mpu_translating_count;

/* Callers from containers inside the driver. Each holds a reference to the module, which mpu_release_caller() drops. */
extern atomic_t mpu_inside_count;
void mpu_release_caller(void);

void mpu_contexts_init(void);
/* Gives the running task a context; NULL if there is no memory. May sleep. */
struct mpu_context *mpu_context_enter(void);
void mpu_context_leave(struct mpu_context *context);
/* Sets `bits`, and counts the call if any is set. A probe may call this. */
void mpu_context_set_bits(struct mpu_context *context, u32 bits);
/* Counts the callers inside, and frees the contexts of dead tasks. `stats` may be NULL. */
u32 mpu_contexts_scan(struct mpu_caller_stats *stats);
/* Whether exactly `callers` are inside. Also false while another task scans: does not wait for it. */
bool mpu_contexts_count_is(u32 callers);

/* mpu_argument.c: registers the probe at address `rm_ioctl`. `error`: the address was not found. `armed`: arm the probe at once. */
void mpu_argument_register(unsigned long rm_ioctl, int error, bool armed);
/* `shared`: another instance's probe is armed at the same address. */
void mpu_argument_unregister(bool shared);
/* After mpu_argument_unregister() and the last caller. */
void mpu_argument_exit(void);
/* False until a container calls for the first time: that call schedules the arming, and does not wait for it. */
extern bool mpu_probe_armed;
void mpu_argument_schedule_arm(void);

static __always_inline bool mpu_argument_is_seen(void)
{
	if (likely(READ_ONCE(mpu_probe_armed)))
		return true;
	mpu_argument_schedule_arm();
	return false;
}

/* The probe was armed, but the driver handled a request without hitting it. */
void mpu_argument_probe_missed(void);
/* Returns 0, or why there is no probe; sets whether the probe is armed. */
int mpu_argument_status(bool *armed);
/* Set the context's bits, by its argument or by the request. Never sleep. */
void mpu_classify_control(struct mpu_context *context);
void mpu_classify_request(struct mpu_context *context, unsigned int request);

/* mpu_calls.c */
/* Callers from containers, and translations, since the module was loaded. */
u64 mpu_calls_entered(void);
u64 mpu_calls_translated(void);
/* Whether calls from containers are handled. If not, they go to the driver untranslated. */
void mpu_calls_open(bool open);
/* After mpu_calls_open(false): waits at most `ms` until no caller is inside. -EBUSY: one still is; -EINTR: this task was killed. */
int mpu_calls_drain(unsigned int ms);
/* Stops new callers at the door, and waits until no other caller is inside. -ETIMEDOUT, -EINTR: the door is open again. */
int mpu_calls_hold(void);
/* Releases the stopped callers. `forward`: they, and later callers until mpu_calls_open(true), call the driver's function again. */
void mpu_calls_release(bool forward);

/* Whether a call of a redirected function is for MPU: 0, or the replacement's last argument. Then the replacements. */
struct mpu_context *mpu_match_is_init_ns(void);
struct mpu_context *mpu_match_from_user(void *to, const void *from, u32 bytes);
struct mpu_context *mpu_match_to_user(void *to, const void *from, u32 bytes);
unsigned long mpu_match_compat(struct file *file, unsigned int cmd, unsigned long arg);
unsigned long mpu_match_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
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
	/* The driver holds a reference to `pid`, so a process's number can be read from it. */
	return likely(!hlist_empty(&pid->tasks[PIDTYPE_TGID])) ? pid_nr(pid) : mpu_process_of_thread(pid);
}

/* mpu_driver_users.c */
/*
 * Processes that use the driver, in a table indexed by PID. An entry is a tag that no other process has, made of the address of the
 * process's struct pid and its start time. If two processes share a slot, their open files are searched again now and then.
 */
#define MPU_DRIVER_USER_BITS 12
extern u64 mpu_driver_users[1 << MPU_DRIVER_USER_BITS];

static __always_inline u64 *mpu_driver_user_slot(u32 host)
{
	return &mpu_driver_users[host & (ARRAY_SIZE(mpu_driver_users) - 1)];
}

static __always_inline u64 mpu_driver_user_tag(const struct pid *pid, const struct task_struct *leader)
{
	return (u64)(unsigned long)pid + mpu_start_time(leader) * 0x9e3779b97f4a7c15ull;
}

/* Searches the process's open files for one of the driver, and enters the process if there is one. Under RCU. */
bool mpu_check_driver_user(struct task_struct *leader, u64 *slot, u64 tag);
/* Enters the running task's process. */
void mpu_note_driver_user(void);

/* mpu_policy.c */
bool mpu_policy_is_set(void);
/* MPU_SEES_OWN, _GROUP (stores the group in `view`) or _HOST. May sleep. */
u32 mpu_policy_of_current(struct mpu_view *view);
/* Whether a process is in the view's cgroup or below it. Under RCU. */
bool mpu_policy_is_in_group(struct pid *pid, const struct mpu_view *view);

/* mpu_hooks.c */
struct mpu_refusal {
	const char *symbol;
	int error;
};
struct mpu_peer;
/* To be called first. Fails if this kernel has no method to redirect that the parameter `redirect` allows. */
int mpu_hooks_init(void);
/*
 * Redirects the driver's functions: all that are required, or none. Calls still run the driver's own code until mpu_hooks_activate().
 * If `peer` is not NULL, the functions are taken over from it, and calls continue there until then.
 */
int mpu_hooks_place(struct mpu_refusal *refusal, struct mpu_peer *peer);
/* Starts handling calls in this instance. No caller may be inside the other instance. */
void mpu_hooks_activate(void);
/* After mpu_hooks_activate(), or a failed take-over: waits until no task in the system is on its way from here to the other instance. */
void mpu_hooks_detach_peer(void);
/* Instead of mpu_hooks_activate(): redirects the functions to the other instance again. An error: the kernel refused. */
int mpu_hooks_give_back(struct mpu_peer *peer);
/* In the instance that hands over: describes its redirects; and gives up their ownership. */
void mpu_hooks_describe(struct mpu_peer *peer);
void mpu_hooks_handed_over(const struct mpu_peer *peer);
/* The address of a redirected function. A call of it passes the redirect. */
unsigned long mpu_hooks_address(enum mpu_hook hook);
/*
 * Removes the redirects, and waits until no task is on its way through one. An error: the kernel refused. The driver then still calls
 * into this module, which must never be unloaded.
 */
int mpu_hooks_remove(void);
/* Whether a module `nvidia` with an ioctl entry that MPU knows is loaded or being loaded. */
bool mpu_hooks_driver_present(void);
/* The driver's name for a redirected function, NULL if it is not redirected now. */
const char *mpu_hooks_symbol(enum mpu_hook hook);
/* The method by which the functions are redirected, NULL if they are not. */
const char *mpu_hooks_method(void);

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
