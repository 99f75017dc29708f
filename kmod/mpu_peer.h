/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The interface by which one instance of the module hands its redirects to another, so that no call stays untranslated during an upgrade.
 *
 * Two instances can be loaded at once, because they have two names, `mpu` and `mpu_next`. Each exports its mpu_peer_ops under its own name.
 *
 * 1. The taker points each redirect at itself, and forwards every call to the other instance.
 * 2. It makes the other instance stop new callers, and waits until no other call is inside.
 * 3. It starts handling calls. The stopped callers call the driver's function again, and reach the taker.
 *
 * So no caller waits while the kernel changes redirects, or for a grace period.
 */
#ifndef MPU_PEER_H
#define MPU_PEER_H

#include <linux/types.h>

struct ftrace_ops;

/* To be raised when anything here changes its meaning. Instances with different numbers do not hand over. */
#define MPU_PEER_ABI 3
#define MPU_PEER_MAX_HOOKS 16

/* The redirects of the instance that hands over. */
struct mpu_peer {
	u32 abi;
	u32 count;
	/* The address of each redirected function. */
	unsigned long ip[MPU_PEER_MAX_HOOKS];
	/* The trampoline that they call; or 0, and the ftrace handler (mpu_ipmodify.c). */
	unsigned long enter;
	void *handler;
	/* The probe of the instance that hands over is armed at rm_ioctl. */
	bool probe_armed;
	/*
	 * The registration of the redirects, which the taker owns from then on; NULL if each function was redirected by itself. Two builds
	 * for one kernel can differ in this, and in the registers that a handler gets. A taker that differs fails with -EPROTO.
	 */
	struct ftrace_ops *ops;
	/* Set by the taker: its own probe is armed, too. */
	bool taker_probe_armed;
	/* Set by the taker: it failed, and not all redirects were given back. */
	bool redirects_lost;
	/* For the taker alone: the kernel still calls the other instance, directly or through the taker. It must stay until the next boot. */
	bool must_stay;
};

struct mpu_peer_ops {
	/* Fills `peer`; -EPROTO if this instance cannot hand over. Nothing changes for callers. */
	int (*begin)(struct mpu_peer *peer);
	/* Stops new callers, and waits until no other is inside. -ETIMEDOUT: some did not leave, and all callers continue as before. */
	int (*hold)(void);
	/* After hold() == 0, without delay: the stopped callers go to the taker. */
	void (*release)(void);
	/* Always after begin() == 0, and after a grace period unless the taker is stuck. `handed_over`: this instance owns no redirect any more. */
	void (*end)(struct mpu_peer *peer, bool handed_over);
};

extern const struct mpu_peer_ops mpu_peer_self;

/* The symbol that the other instance exports. Defined in mpu_name.c or mpu_next_name.c. */
extern const char mpu_peer_other[];

#endif
