// SPDX-License-Identifier: GPL-2.0
/*
 * The one function of drm.ko that NVIDIA's driver links to: it frees a buffer of another graphics driver. No guest calls it, and guests have no
 * drm.ko. The declaration is the kernel's, so that the symbol has the version that the driver was built against.
 */
#include <linux/module.h>
#include <drm/drm_gem.h>

void drm_gem_object_free(struct kref *kref)
{
	WARN(1, "made_up_drm: the driver frees a buffer that does not exist");
}
EXPORT_SYMBOL(drm_gem_object_free);

MODULE_DESCRIPTION("A place holder for drm.ko, for tests");
MODULE_LICENSE("GPL");
