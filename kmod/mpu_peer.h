/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * How one instance of the module hands its redirects to another, so that an upgrade leaves no call untranslated.
 *
 * Two instances can be loaded at once because they have two names, `mpu` and `mpu_next`; each exports its mpu_peer_ops under
 * its own. The newcomer points each redirect at itself and sends every call on to the other instance. When all redirects stand, it
 * holds the other's new callers until no call is inside, and begins: those who wait start their call anew and meet the newcomer. So no
 * caller waits while the kernel changes redirects, nor for a grace period.
 */
#ifndef MPU_PEER_H
#define MPU_PEER_H

#include <linux/types.h>

struct ftrace_ops;

/* Raised when anything here changes its meaning: instances that differ in it do not talk. */
#define MPU_PEER_ABI 3
#define MPU_PEER_MOST 16

/* What the leaving instance has redirected, and where to. */
struct mpu_peer {
	u32 abi;
	u32 count;
	/* Each function's first byte. */
	unsigned long ip[MPU_PEER_MOST];
	/* What they call: the leaving instance's trampoline; 0 if a handler redirects them (mpu_ipmodify.c): then that handler. */
	unsigned long enter;
	void *handler;
	/* Its probe at rm_ioctl is armed. */
	bool probed;
	/*
	 * Their registration, allocated, and from then on the taker's to free; NULL if each function was redirected by itself. Two builds
	 * for one kernel can differ in that, and in what a handler is given: a taker that is of another kind answers -EPROTO.
	 */
	struct ftrace_ops *ops;
	/* Set by the taker: its own probe is armed, too. */
	bool shared;
	/* Set by the taker: it failed, and what it had taken could not be given back. */
	bool lost;
	/* The taker's own: what it could not take out of the kernel goes on calling the other instance, which must stay for ever. */
	bool called;
};

struct mpu_peer_ops {
	/* Fills `peer`; -EPROTO if this instance cannot hand over. Nothing changes for callers. */
	int (*begin)(struct mpu_peer *peer);
	/* Keeps new callers waiting until no other is inside. An error: some do not leave (-ETIMEDOUT), and all go on as before. */
	int (*hold)(void);
	/* After hold() == 0, at once: the callers go to the taker. */
	void (*release)(void);
	/* After begin() == 0, always, and after a grace period: this instance has nothing any more (`handed`), or all as before. */
	void (*end)(struct mpu_peer *peer, bool handed);
};

extern const struct mpu_peer_ops mpu_peer_self;

/* Each instance's own file says these: mpu_name.c or mpu_next_name.c. */
extern const char mpu_peer_other[];

#endif
