// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The escape dispatcher of the RM. In the real driver this is in the OS-agnostic object, which is built without
 * the compiler's tracing calls; hence notrace.
 */
#include <linux/slab.h>

#include "sim.h"

#define NV_ESC_RM_FREE 0x29
#define NV_ESC_RM_CONTROL 0x2a
#define NV_ESC_RM_ALLOC 0x2b

static NV_STATUS rm_sim(struct nv_file_private *nvfp, struct sim_args *args)
{
	struct sim_ring_slot *slots = NULL;
	NV_STATUS status;

	switch (args->op) {
	case SIM_OP_LOAD:
		return rm_set_load(nvfp, args);
	case SIM_OP_RING:
		if (args->ring_count > SIM_RING_MAX || args->gpu >= sim_gpus)
			return NV_ERR_INVALID_ARGUMENT;
		slots = kcalloc(SIM_RING_MAX, sizeof(*slots), GFP_KERNEL);
		if (!slots)
			return NV_ERR_NO_MEMORY;
		status = os_memcpy_from_user(slots, (void *)(uintptr_t)args->ring, args->ring_count * sizeof(*slots));
		if (status == NV_OK) {
			mutex_lock(&rm_lock);
			status = gpumon_set_ring(args->gpu, slots, args->ring_count);
			mutex_unlock(&rm_lock);
		}
		kfree(slots);
		return status;
	case SIM_OP_LIMIT:
		if (!SIM_HAS_LIMIT_EVENTS || args->gpu >= sim_gpus)
			return NV_ERR_NOT_SUPPORTED;
		mutex_lock(&rm_lock);
		event_limits_reached(args->gpu);
		event_happened(args->gpu, args->ring_rotation, args->ring_count);
		mutex_unlock(&rm_lock);
		return NV_OK;
	case SIM_OP_ERROR:
		return session_error_happened(nvfp, args->client);
	default:
		return NV_ERR_INVALID_ARGUMENT;
	}
}

noinline notrace NV_STATUS rm_ioctl(void *sp, void *nv, void *nvfp, NvU32 cmd, void *arg, NvU32 size)
{
	struct nv_file_private *file = nvfp;

	if (file->minor != NV_MINOR_CONTROL)
		return NV_ERR_INVALID_ARGUMENT;
	switch (cmd) {
	case NV_ESC_RM_ALLOC:
		return rm_alloc(file, arg, size);
	case NV_ESC_RM_FREE:
		return rm_free(file, arg, size);
	case NV_ESC_RM_CONTROL:
		return rm_control(file, arg, size);
	case NV_ESC_RM_GET_EVENT_DATA:
		return event_data(file, arg, size);
	case SIM_ESC_NR:
		if (size != sizeof(struct sim_args))
			return NV_ERR_INVALID_ARGUMENT;
		((struct sim_args *)arg)->status = rm_sim(file, arg);
		return NV_OK;
	default:
		return NV_ERR_NOT_SUPPORTED;
	}
}
