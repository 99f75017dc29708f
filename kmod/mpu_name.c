// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What only the instance named `mpu` has: its name among instances, and the other's. */
#include <linux/module.h>
#include "mpu_peer.h"

const char mpu_peer_other[] = "mpu_next_peer";

const struct mpu_peer_ops *mpu_peer(void);
const struct mpu_peer_ops *mpu_peer(void)
{
	return &mpu_peer_self;
}
EXPORT_SYMBOL_GPL(mpu_peer);
