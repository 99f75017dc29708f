// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The symbols that only the instance `mpu_next` has: its export for the other instance, and the name of the other's. */
#include <linux/module.h>
#include "mpu_peer.h"

const char mpu_peer_other[] = "mpu_peer";

const struct mpu_peer_ops *mpu_next_peer(void);
const struct mpu_peer_ops *mpu_next_peer(void)
{
	return &mpu_peer_self;
}
EXPORT_SYMBOL_GPL(mpu_next_peer);
