/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the glue's files know of each other. */
#ifndef MPU_H
#define MPU_H

#include <linux/compiler.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/pid.h>
#include "mpu_core.h"

struct file;
struct pid_namespace;

/* Whom a caller may see: its PID namespace, and what the policy adds. */
struct mpu_view {
	struct pid_namespace *ns;
	/* The cgroup whose processes it sees besides, 0 for none; and how far below the root that is. */
	u64 group;
	u32 group_depth;
};

/*
 * The driver's functions that are redirected, in the order in which they are placed: the helpers first, the way into the
 * driver last, so that no call is ever translated with only some of them in place.
 */
enum mpu_hook {
	MPU_GET_PID_INFO,
	MPU_FIND_NS_PID,
	MPU_IS_INIT_NS,
	MPU_FROM_USER,
	MPU_TO_USER,
	MPU_COMPAT,
	MPU_IOCTL,
	MPU_HOOKS,
};

/* Where each redirected function goes on behind its redirected first instruction: see mpu_entry.S. */
extern unsigned long mpu_original[MPU_HOOKS];

/* mpu_entry.S: what the driver's functions call first, and how a replacement runs the function it replaces. */
#define MPU_ENTRY(name) extern char mpu_enter_##name[]
MPU_ENTRY(get_pid_info);
MPU_ENTRY(find_ns_pid);
MPU_ENTRY(is_init_ns);
MPU_ENTRY(from_user);
MPU_ENTRY(to_user);
MPU_ENTRY(compat);
MPU_ENTRY(ioctl);
#undef MPU_ENTRY

u32 mpu_original_from_user(void *to, const void *from, u32 bytes);
u32 mpu_original_to_user(void *to, const void *from, u32 bytes);
long mpu_original_compat(struct file *file, unsigned int cmd, unsigned long arg);
long mpu_original_ioctl(struct file *file, unsigned int cmd, unsigned long arg);

/* mpu_calls.c */
extern u64 __percpu *mpu_counters;
int mpu_calls_init(void);
void mpu_calls_exit(void);
/* Callers that are between the redirected entry and its return. */
unsigned int mpu_calls_inside(void);
/* After the ways in are closed: waits until nobody is on the way through this module's calls. */
void mpu_calls_drain(void);
/* Keeps callers that come from now on at the door, and waits until nobody else is inside. -ETIMEDOUT: all go on as before. */
int mpu_calls_hold(void);
/* Lets them go: to whom the redirected function leads by now (`handed`), or in here. */
void mpu_calls_release(bool handed);

/* mpu_pids.c: the process behind one of the driver's references, as the init namespace numbers it; 0 if it is gone. */
u32 mpu_host_pid_of(struct pid *pid);

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
/* Redirects the driver's functions, all that are needed or none. Those that `peer` (or NULL) hands over are taken from it. */
int mpu_hooks_place(struct mpu_refusal *refusal, struct mpu_peer *peer);
/* The leaving side: says what is redirected; lets go of what was taken, and removes the rest. */
void mpu_hooks_hand(struct mpu_peer *peer);
void mpu_hooks_handed(struct mpu_peer *peer);
/* After a taking that failed: forgets what was not given back; whether there was such. */
bool mpu_hooks_lost(const struct mpu_peer *peer);
/* Takes the redirects out and waits until nobody is on the way through one. */
void mpu_hooks_remove(void);
/* Whether a module named nvidia with a way in that MPU knows is loaded, or coming. */
bool mpu_hooks_driver_present(void);
/* The driver's name for a redirected function, NULL if it is not redirected now. */
const char *mpu_hooks_placed(enum mpu_hook hook);

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
