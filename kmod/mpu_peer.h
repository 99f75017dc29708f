/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * How one instance of the module hands its redirects to another, so that an upgrade leaves no call untranslated.
 *
 * Two instances can be loaded at once because they have two names, `mpu` and `mpu_next`; each exports its mpu_peer_ops under
 * its own. The one that comes holds the other's new callers, waits until none is inside, points each redirect at itself,
 * and lets the callers go: they begin their call anew and meet the new instance.
 */
#ifndef MPU_PEER_H
#define MPU_PEER_H

#include <linux/types.h>

struct ftrace_ops;

/* Raised when anything here changes its meaning: instances that differ in it do not talk. */
#define MPU_PEER_ABI 2
#define MPU_PEER_MOST 16

/* What the leaving instance has redirected, and where to. */
struct mpu_peer {
	u32 abi;
	u32 count;
	/* Each function's first byte. */
	unsigned long ip[MPU_PEER_MOST];
	/* What they call: the leaving instance's trampoline; 0 if a handler redirects them (mpu_ipmodify.c). */
	unsigned long enter;
	/*
	 * Their registration, allocated, and from then on the taker's to free; NULL if each function was redirected by itself. Two builds
	 * for one kernel can differ in that, and in what a handler is given: a taker that is of another kind answers -EPROTO.
	 */
	struct ftrace_ops *ops;
	/* Set by the taker: it failed, and what it had taken could not be given back. */
	bool lost;
	/* The taker's own: what it could not take out of the kernel goes on calling the other instance, which must stay for ever. */
	bool called;
};

struct mpu_peer_ops {
	/* Fills `peer`, and from now on keeps callers waiting at the door; -ETIMEDOUT if some do not leave, -EPROTO if it cannot. */
	int (*hold)(struct mpu_peer *peer);
	/* After hold() == 0, always: lets callers go, to the taker (`handed`) or into this instance as before. */
	void (*release)(struct mpu_peer *peer, bool handed);
};

extern const struct mpu_peer_ops mpu_peer_self;

/* Each instance's own file says these: mpu_name.c or mpu_next_name.c. */
extern const char mpu_peer_other[];

#endif
