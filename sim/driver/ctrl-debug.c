// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Reading and writing memory through the debugger's object: buffers of the caller's length, at the caller's address, with the
 * caller's own bytes in them. They never contain process ids of the driver.
 * Source: ctrl83dedebug.h and the copying of embedded pointers in the open releases (580.95.05: embedded_param_copy.c).
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "sim.h"

#define VIDMEM_BYTES (1024 * 1024)

/* All objects of a GPU share one memory, so a read returns the bytes of the last write. */
static NvU8 *vidmem[SIM_MAX_GPUS];

void debug_exit(void)
{
	NvU32 gpu;

	for (gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
		vfree(vidmem[gpu]);
}

/* hMemory at 0, length at 4, offset at 8, buffer at 16. */
static NV_STATUS at(struct rm_call *call, NvU8 **memory)
{
	struct rm_object *object = rm_find_object(call->client, get32(call->params, 0));
	NvU64 offset = get64(call->params, 8);

	if (!object || object->class != NV_CLASS_MEMORY_LOCAL_USER)
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	if (!call->embedded || offset > VIDMEM_BYTES || call->embedded_size > VIDMEM_BYTES - offset)
		return NV_ERR_INVALID_ARGUMENT;
	if (!vidmem[call->gpu])
		vidmem[call->gpu] = vzalloc(VIDMEM_BYTES);
	if (!vidmem[call->gpu])
		return NV_ERR_NO_MEMORY;
	*memory = vidmem[call->gpu] + offset;
	return NV_OK;
}

static NV_STATUS read_memory(struct rm_call *call)
{
	NvU8 *memory;
	NV_STATUS status = at(call, &memory);

	if (status == NV_OK)
		memcpy(call->embedded, memory, call->embedded_size);
	return status;
}

static NV_STATUS write_memory(struct rm_call *call)
{
	NvU8 *memory;
	NV_STATUS status = at(call, &memory);

	if (status == NV_OK)
		memcpy(memory, call->embedded, call->embedded_size);
	return status;
}

static const struct rm_embedded read_buffer = { .pointer = 16, .count = 4, .elem = 1, .max = VIDMEM_BYTES, .lone = true };
static const struct rm_embedded write_buffer = {
	.pointer = 16, .count = 4, .elem = 1, .max = VIDMEM_BYTES, .copy_in = true, .copy_out_not = true, .lone = true,
};

const struct rm_control_entry ctrl_debug_table[] = {
	{ 0x83de0315, 24, read_memory, &read_buffer },
	{ 0x83de0316, 24, write_memory, &write_buffer },
	{ 0, 0, NULL },
};
