// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The answers without process ids that NVML and nvidia-smi of 418 to 580 need before they print a table. The GPU is a V100.
 * The call gives the sizes that differ between client releases, so any client release runs on any era.
 */
#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/mm.h>

#include "sim.h"

#define FB_TOTAL_KB (16u * 1024 * 1024)

NvU32 sim_gpu_id(NvU32 gpu)
{
	return (gpu + 1) << 8;
}

bool sim_gpu_from_id(NvU32 id, NvU32 *gpu)
{
	*gpu = (id >> 8) - 1;
	return *gpu < sim_gpus && sim_gpu_id(*gpu) == id;
}

static NV_STATUS nothing(struct rm_call *call)
{
	return NV_OK;
}

/* Lists of GPU ids, unused places all ones; later releases append further lists, which are empty here. */
static NV_STATUS gpu_ids(struct rm_call *call)
{
	NvU32 gpu;

	memset(call->params, 0xff, call->size);
	for (gpu = 0; gpu < sim_gpus && gpu * 4 + 4 <= call->size; gpu++)
		put32(call->params, gpu * 4, sim_gpu_id(gpu));
	return NV_OK;
}

static NV_STATUS id_info(struct rm_call *call)
{
	NvU32 gpu;

	if (!sim_gpu_from_id(get32(call->params, 0), &gpu))
		return NV_ERR_INVALID_ARGUMENT;
	put32(call->params, 4, 0); /* flags */
	put32(call->params, 8, gpu); /* device instance */
	put32(call->params, 12, 0); /* subdevice instance */
	/* The first form has a name pointer in the middle; it stays as the caller set it. */
	put32(call->params, call->size - 8, gpu);
	put32(call->params, call->size - 4, NV_PID_NONE); /* no NUMA node */
	return NV_OK;
}

static NV_STATUS pci_info(struct rm_call *call)
{
	NvU32 gpu;

	if (!sim_gpu_from_id(get32(call->params, 0), &gpu))
		return NV_ERR_INVALID_ARGUMENT;
	put32(call->params, 4, 0); /* domain */
	put32(call->params, 8, gpu + 1); /* bus; slot 0 in the upper half */
	return NV_OK;
}

static NvU32 fb_used_kb(NvU32 gpu)
{
	struct rm_client *client;
	NvU64 used = 0;

	list_for_each_entry(client, &rm_clients, node)
		used += client->load[gpu].mem;
	used >>= 10;
	return used > FB_TOTAL_KB ? FB_TOTAL_KB : used;
}

static NvU32 info_answer(struct rm_call *call, NvU32 index)
{
	/* Of the GPU, 0x11: per-process information is available. Without it, clients do not request the process list. */
	if (call->cmd >> 8 == 0x208001)
		return index == 0x11;
	switch (index) {
	case 0x07: /* RAM */
	case 0x08: /* total RAM */
	case 0x09: /* heap */
	case 0x0a: /* mappable heap */
	case 0x20: /* usable RAM */
		return FB_TOTAL_KB;
	case 0x16: /* heap free */
		return FB_TOTAL_KB - fb_used_kb(call->gpu);
	default:
		return 0;
	}
}

static NV_STATUS info_pairs(struct rm_call *call, NvU8 *pairs, NvU32 count)
{
	NvU32 i;

	for (i = 0; i < count; i++)
		put32(pairs, i * 8 + 4, info_answer(call, get32(pairs, i * 8)));
	return NV_OK;
}

/* Pairs of index and data, behind a pointer. */
static NV_STATUS info_v1(struct rm_call *call)
{
	return call->embedded ? info_pairs(call, call->embedded, call->embedded_size / 8) : NV_ERR_INVALID_ARGUMENT;
}

/* The same behind a count, in the parameters themselves. */
static NV_STATUS info_v2(struct rm_call *call)
{
	NvU32 count = get32(call->params, 0);

	if (call->size < 12 || count > (call->size - 4) / 8)
		return NV_ERR_INVALID_ARGUMENT;
	return info_pairs(call, call->params + 4, count);
}

static const NvU32 classes[] = {
	NV_CLASS_DEVICE, NV_CLASS_SUBDEVICE, NV_CLASS_MPS, NV_CLASS_PROFILER,
	NV_CLASS_CHANNEL, NV_CLASS_GRAPHICS, NV_CLASS_COMPUTE,
};

static NV_STATUS class_list_v1(struct rm_call *call)
{
	if (call->embedded)
		memcpy(call->embedded, classes, min_t(size_t, call->embedded_size, sizeof(classes)));
	put32(call->params, 0, ARRAY_SIZE(classes));
	return NV_OK;
}

static NV_STATUS class_list_v2(struct rm_call *call)
{
	if (call->size < 4 + sizeof(classes))
		return NV_ERR_INVALID_ARGUMENT;
	memset(call->params, 0, call->size);
	memcpy(call->params + 4, classes, sizeof(classes));
	put32(call->params, 0, ARRAY_SIZE(classes));
	return NV_OK;
}

static NV_STATUS arch_info(struct rm_call *call)
{
	put32(call->params, 0, 0x140); /* GV100 */
	put32(call->params, 4, 0);
	put32(call->params, 8, 0xa1);
	put32(call->params, 12, 0);
	return NV_OK;
}

static NV_STATUS bus_pci_info(struct rm_call *call)
{
	put32(call->params, 0, 0x1db110de);
	put32(call->params, 4, 0x121210de);
	put32(call->params, 8, 0xa1);
	put32(call->params, 12, 0x1db1);
	return NV_OK;
}

static NV_STATUS name_string(struct rm_call *call)
{
	if (call->size < 68 || get32(call->params, 0) != 0) /* ASCII only */
		return NV_ERR_NOT_SUPPORTED;
	snprintf(call->params + 4, 64, "Simulated V100 #%u", call->gpu);
	return NV_OK;
}

static NV_STATUS gid_info(struct rm_call *call)
{
	NvU8 *data = call->params + 12;

	memset(data, 0, 256);
	if (get32(call->params, 4) & 2) { /* binary */
		put32(data, 0, 0x6d697300);
		data[15] = call->gpu + 1;
		put32(call->params, 8, 16);
	} else {
		NvU32 n = snprintf(data, 64, "GPU-0073696d-0000-0000-0000-0000000000%02x", call->gpu + 1);

		put32(call->params, 8, n + 1);
	}
	return NV_OK;
}

/* Pairs of CPU time (us) and GPU time (ns); the simulated GPU clock is the real-time clock, as on the recorded H200. */
static NV_STATUS time_correlation(struct rm_call *call)
{
	NvU32 i, n = min_t(NvU32, call->params[1], 16);

	for (i = 0; i < n; i++) {
		NvU64 now = ktime_get_real_ns();

		put64(call->params, 8 + i * 16, ktime_to_us(ns_to_ktime(now)));
		put64(call->params, 16 + i * 16, now);
	}
	return NV_OK;
}

/* The real parameters have three buffers. Clients show only the first, the driver's version. */
static NV_STATUS build_version(struct rm_call *call)
{
	if (call->embedded)
		snprintf(call->embedded, call->embedded_size, "%s", SIM_VERSION);
	put32(call->params, 32, 0); /* changelist */
	put32(call->params, 36, 0);
	return NV_OK;
}

static NV_STATUS virtualization_mode(struct rm_call *call)
{
	memset(call->params, 0, call->size); /* none */
	return NV_OK;
}

static const struct rm_embedded pair_list = { .pointer = 8, .count = 0, .elem = 8, .max = 512, .copy_in = true };
static const struct rm_embedded class_list = { .pointer = 8, .count = 0, .elem = 4, .max = 512 };

static const struct rm_embedded version_buffer = { .pointer = 8, .count = 0, .elem = 1, .max = 4096 };

const struct rm_control_entry ctrl_info_table[] = {
	{ 0x00000101, 40, build_version, &version_buffer },
	{ 0x00000201, 128, gpu_ids },
	{ 0x00000202, 40, id_info },
	{ 0x00000205, 32, id_info },
	{ 0x00000214, RM_ANY_SIZE, gpu_ids },
	{ 0x00000215, 132, nothing },
	{ 0x0000021b, 12, pci_info },
	{ 0x00000279, 12, nothing },
	{ 0x00000289, 4, nothing },
	{ 0x00800201, 16, class_list_v1, &class_list },
	{ 0x00800292, RM_ANY_SIZE, class_list_v2 },
	{ 0x00800289, RM_ANY_SIZE, virtualization_mode },
	{ 0x20800101, 16, info_v1, &pair_list },
	{ 0x20800102, RM_ANY_SIZE, info_v2 },
	{ 0x20800110, RM_ANY_SIZE, name_string },
	{ 0x2080014a, 268, gid_info },
	{ 0x20800406, 264, time_correlation },
	{ 0x20801301, 16, info_v1, &pair_list },
	{ 0x20801303, RM_ANY_SIZE, info_v2 },
	{ 0x20801701, 16, arch_info },
	{ 0x20801801, 16, bus_pci_info },
	{ 0, 0, NULL },
};
