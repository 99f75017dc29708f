/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The ways in which ftrace can redirect a function: by a direct call (mpu_direct.c), or by a handler that changes where the function
 * goes on (mpu_ipmodify.c). Both lead to the same replacements, and both registrations outlive the instance that made them, so that
 * another can take them over.
 */
#ifndef MPU_WAYS_H
#define MPU_WAYS_H

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
	/* Names in the order of preference. */
	const char *symbols[2];
	/* Without this one nothing is redirected. */
	bool needed;
	/* Its name once it is found; and its first byte. */
	const char *found;
	unsigned long ip;
	/* Where it goes on behind its redirected first instruction. */
	unsigned long goes_on;
};

/* Each gets the MPU_HOOKS functions, and means those that were found. */
struct mpu_way {
	const char *name;
	/* What the functions call, or the handler that the kernel calls for them: one of the two. */
	char *enter;
	void *handler;
	/* All functions, or none: then `refusal` names the one that could not be redirected, if the kernel told. */
	int (*attach)(const struct mpu_redirect *redirects, struct mpu_refusal *refusal);
	/* After it, no task is on the way from a function to a replacement. */
	int (*detach)(const struct mpu_redirect *redirects);
	/* Points the functions at this instance: each call meets the other one or this one, never neither. */
	int (*take)(const struct mpu_redirect *redirects, struct mpu_peer *peer);
	/* And points them back after take() == 0. */
	int (*give_back)(const struct mpu_redirect *redirects, struct mpu_peer *peer);
	/* What is left to do when they were taken by another; may be NULL. */
	void (*handed)(void);
};

extern const struct mpu_way mpu_direct, mpu_ipmodify;

/* Whether there is a call at a function's entry: ours, or a tracer's. With ftrace switched off the kernel says yes and puts none there. */
static inline bool mpu_is_patched(const struct mpu_redirect *redirect)
{
	unsigned long goes_on = mpu_goes_on(redirect->ip);

	return goes_on && mpu_calls_before(goes_on);
}

/* mpu_registration.c: one registration for all functions, so that coming, going and handing over take one wait, not one a function. */
struct mpu_kind {
	int (*begin)(struct ftrace_ops *ops);
	int (*end)(struct ftrace_ops *ops);
};

/* Allocated, because a registration outlives the module that made it when it is handed on. */
extern struct ftrace_ops *mpu_registration;

int mpu_registration_place(const struct mpu_kind *kind, const struct mpu_redirect *redirects);
int mpu_registration_remove(const struct mpu_kind *kind);

#endif
