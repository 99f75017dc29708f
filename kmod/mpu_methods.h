/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The methods by which ftrace can redirect a function: a direct call (mpu_direct.c), or a handler that changes the instruction pointer
 * (mpu_ipmodify.c). Both lead to the same replacements. Both registrations can outlive the instance that made them, so that another
 * instance can take them over.
 */
#ifndef MPU_METHODS_H
#define MPU_METHODS_H

#include "mpu.h"
#include "mpu_peer.h"
#ifdef CONFIG_ARM64
#include "mpu_site_arm64.h"
#elif defined(CONFIG_X86_64)
#include "mpu_site_x86.h"
#else
#error "MPU has a way in for x86-64 and for arm64 alone"
#endif

/* A function of the driver. */
struct mpu_redirect {
	/* Possible names, the preferred one first. */
	const char *candidates[2];
	/* If it is missing, nothing is redirected. */
	bool required;
	/* Its name, NULL if the driver has none of the candidates; and its address. */
	const char *symbol;
	unsigned long ip;
	/* The address behind the patched instruction. */
	unsigned long resume;
};

/* Each function gets all MPU_HOOKS redirects, and skips those without a symbol. */
struct mpu_method {
	const char *name;
	/* The trampoline that functions call, or the ftrace handler. The other one is NULL. */
	char *enter;
	void *handler;
	/* Redirects all functions or none. On an error `refusal` names the refused function, if the kernel reports it. */
	int (*attach)(const struct mpu_redirect *redirects, struct mpu_refusal *refusal);
	/* On success, no task is on its way from a function to a replacement. */
	int (*detach)(const struct mpu_redirect *redirects);
	/* Points the functions at this instance. Meanwhile each call reaches one of the two instances. */
	int (*take)(const struct mpu_redirect *redirects, struct mpu_peer *peer);
	/* Points them back, after take() == 0. */
	int (*give_back)(const struct mpu_redirect *redirects, struct mpu_peer *peer);
	/* Clean-up after another instance took the functions; may be NULL. */
	void (*handed_over)(void);
};

extern const struct mpu_method mpu_direct, mpu_ipmodify;

/*
 * Whether there is a call at a function's entry: ours, or a tracer's. With ftrace switched off, a registration succeeds, but the kernel
 * patches nothing.
 */
static inline bool mpu_is_patched(const struct mpu_redirect *redirect)
{
	unsigned long resume = mpu_resume_address(redirect->ip);

	return resume && mpu_has_call_before(resume);
}

/* mpu_registration.c: one registration for all functions, so that each change waits once, not once for each function. */
struct mpu_registration_type {
	int (*add)(struct ftrace_ops *ops);
	int (*remove)(struct ftrace_ops *ops);
};

/* Allocated, because it outlives this module if another instance takes it over. */
extern struct ftrace_ops *mpu_registration;

int mpu_registration_place(const struct mpu_registration_type *type, const struct mpu_redirect *redirects);
int mpu_registration_remove(const struct mpu_registration_type *type);

#endif
