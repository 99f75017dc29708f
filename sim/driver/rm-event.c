// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Events of the memory soft limit, which 615 added: each subscriber of a GPU gets the global PID of each client that is over its limit. An open
 * file keeps its events until they are fetched.
 * Source: osapi.c and nv.c of 595.45.04 for the path of an event's data; memacct.c of 615 for its contents.
 */
#include <linux/kernel.h>

#include "sim.h"

struct unix_event {
	NvU32 object;
	NvU32 index;
	NvU32 info32;
	NvU16 info16;
};

static void post(struct nv_file_private *nvfp, const struct rm_object *event, NvU32 info32)
{
	if (nvfp->event_count == SIM_MAX_EVENTS)
		return;
	nvfp->events[(nvfp->event_first + nvfp->event_count++) % SIM_MAX_EVENTS] =
		(struct nv_event){ event->handle, event->notify_index, info32 };
}

/* Treats each client with memory as over its limit; no release does. */
void event_limits_reached(NvU32 gpu)
{
	struct rm_client *over, *subscriber;
	struct rm_object *object;

	list_for_each_entry(over, &rm_clients, node) {
		if (!over->load[gpu].mem)
			continue;
		list_for_each_entry(subscriber, &rm_clients, node)
			list_for_each_entry(object, &subscriber->objects, node)
				if (object->class == NV_CLASS_OS_EVENT && object->gpu == gpu &&
				    (object->notify_index == 200 || object->notify_index == 201))
					post(subscriber->owner, object, over->proc_id);
	}
}

/* An event of another kind, whose word is no PID. */
void event_happened(NvU32 gpu, NvU32 index, NvU32 info32)
{
	struct rm_client *subscriber;
	struct rm_object *object;

	list_for_each_entry(subscriber, &rm_clients, node)
		list_for_each_entry(object, &subscriber->objects, node)
			if (object->class == NV_CLASS_OS_EVENT && object->gpu == gpu && object->notify_index == index)
				post(subscriber->owner, object, info32);
}

/* NVOS41: destination at 0, whether more events wait at 8, status at 12. */
NV_STATUS event_data(struct nv_file_private *nvfp, NvU8 *arg, NvU32 size)
{
	struct unix_event event = { 0 };
	NV_STATUS status = NV_ERR_OPERATING_SYSTEM;

	if (size != 16)
		return NV_ERR_INVALID_ARGUMENT;
	fault_before(NV_ESC_RM_GET_EVENT_DATA);
	mutex_lock(&rm_lock);
	if (nvfp->event_count) {
		const struct nv_event *first = &nvfp->events[nvfp->event_first++ % SIM_MAX_EVENTS];

		event = (struct unix_event){ first->object, first->index, first->info32 };
		put32(arg, 8, --nvfp->event_count != 0);
		status = NV_OK;
	}
	mutex_unlock(&rm_lock);
	if (status == NV_OK)
		status = os_memcpy_to_user((void *)(uintptr_t)get64(arg, 0), &event, sizeof(event));
	put32(arg, 12, status);
	return NV_OK;
}
