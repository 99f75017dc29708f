// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Utilisation samples: a ring per GPU, one busy process per sample, a sample every 200 ms, wrapped as the real ring is.
 * Every client with a load takes its turn, then one idle sample. Era 3 converts for every caller and era 4 for callers
 * outside the init namespace; a sample that is not converted keeps the global number and the kernel address of its struct pid.
 */
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/poison.h>
#include <linux/slab.h>

#include "sim.h"

#define PERIOD_NS (200 * NSEC_PER_MSEC)
#define NEWEST_SLOTS 72
#define GHOSTS 64

/* The four layouts. The size of the parameters determines the layout. */
struct layout {
	NvU32 slots;
	NvU32 stride;
	NvU32 engines;
	NvU32 engine_size;
};

/* Of 460, 515, 550 and 570. */
static const struct layout layouts[] = { { 100, 472, 4, 116 }, { 72, 472, 4, 116 }, { 72, 704, 6, 116 }, { 72, 776, 6, 128 } };

struct ghost {
	NvU32 gpu;
	NvU32 proc_id;
	void *pid_info;
	NvU32 util[SIM_ENGINES];
	NvU64 until;
	bool borrowed; /* pid_info is not referenced */
};

static struct ghost ghosts[GHOSTS];
static NvU32 next_ghost;
static struct sim_ring_slot *hand_made[SIM_MAX_GPUS];
static NvU32 hand_made_count[SIM_MAX_GPUS];

static bool load_is_busy(const NvU32 *util)
{
	NvU32 i;

	for (i = 0; i < SIM_ENGINES; i++)
		if (util[i])
			return true;
	return false;
}

#if SIM_HAS_NS_PID
/*
 * Contents that the memory of a freed struct pid can have: no process, no namespace, and invalid thread pointers. os_find_ns_pid does not
 * follow these pointers, and finds nothing; deeper functions crash.
 */
static void *poisoned_pid(void)
{
	static struct {
		struct pid pid;
		struct upid more[MAX_PID_NS_LEVEL];
	} gone;

	gone.pid.tasks[PIDTYPE_PID].first = LIST_POISON1;
	return &gone.pid;
}
#endif

static void forget_ghost(struct ghost *g)
{
#if SIM_HAS_NS_PID
	if (!g->borrowed)
		os_put_pid_info(g->pid_info);
#endif
	memset(g, 0, sizeof(*g));
}

void gpumon_client_gone(struct rm_client *client)
{
	NvU32 gpu;

	for (gpu = 0; sim_ghosts && gpu < sim_gpus; gpu++) {
		struct ghost *g;

		if (!load_is_busy(client->load[gpu].util))
			continue;
		g = &ghosts[next_ghost++ % GHOSTS];
		forget_ghost(g);
		g->gpu = gpu;
		g->proc_id = client->proc_id;
#if SIM_HAS_NS_PID
		/* The real ring keeps the address without a reference. Here it stays valid, unless a test sets `stale`. */
		g->borrowed = SIM_HAS_INIT_NS && sim_stale;
		g->pid_info = !g->borrowed ? get_pid(client->pid_info) : sim_stale == 1 ? poisoned_pid() : client->pid_info;
#endif
		memcpy(g->util, client->load[gpu].util, sizeof(g->util));
		g->until = ktime_get_real_ns() + NEWEST_SLOTS * PERIOD_NS;
	}
}

NV_STATUS gpumon_set_ring(NvU32 gpu, const struct sim_ring_slot *slots, NvU32 count)
{
	struct sim_ring_slot *copy = NULL;

	if (count) {
		copy = kmemdup(slots, count * sizeof(*slots), GFP_KERNEL);
		if (!copy)
			return NV_ERR_NO_MEMORY;
	}
	kfree(hand_made[gpu]);
	hand_made[gpu] = copy;
	hand_made_count[gpu] = count;
	return NV_OK;
}

void gpumon_exit(void)
{
	NvU32 i;

	for (i = 0; i < GHOSTS; i++)
		forget_ghost(&ghosts[i]);
	for (i = 0; i < SIM_MAX_GPUS; i++)
		kfree(hand_made[i]);
}

static void *pid_info_of(NvU32 proc_id)
{
	struct rm_client *client;

	list_for_each_entry(client, &rm_clients, node)
		if (client->proc_id == proc_id)
			return client->pid_info;
	return NULL;
}

static void put_engine(NvU8 *e, const struct layout *l, NvU32 util, NvU32 proc_id, NvU32 sub, void *pid_info)
{
	put32(e, 0, util);
	put32(e, 4, 1); /* scale */
#if SIM_HAS_INIT_NS
	{
		NvU32 seen;

		if (pid_info && (SIM_ERA == 3 || !os_is_init_ns()) && os_find_ns_pid(pid_info, &seen) == NV_OK) {
			proc_id = seen;
			pid_info = NULL;
		}
	}
#else
	pid_info = NULL; /* these releases keep no pointer */
#endif
	put32(e, 8, proc_id);
	put32(e, 12, sub);
	if (l->engine_size == 128)
		put64(e, 120, (uintptr_t)pid_info);
}

static NvU8 *slot_at(NvU8 *out, const struct layout *l, NvU32 index, NvU64 time)
{
	NvU8 *s = out + index * l->stride;

	put64(s, 0, time);
	return s;
}

static void put_sample(NvU8 *s, const struct layout *l, const NvU32 *util, NvU32 proc_id, void *pid_info)
{
	NvU32 e;

	for (e = 0; e < l->engines; e++) {
		NvU8 *at = s + 8 + e * l->engine_size;

		if (util && util[e])
			put_engine(at, l, util[e], proc_id, 0, pid_info);
		else /* the recording has sub id 0 on the first two engines when idle */
			put_engine(at, l, 0, NV_PID_NONE, e < 2 ? 0 : NV_PID_NONE, NULL);
	}
}

/*
 * The caller gives its slots newest first; in the ring, times ascend as in the real ring.
 * The rest of the ring is idle and older than any hand-made slot should be. The write position is 0.
 */
static void fill_hand_made(NvU8 *out, const struct layout *l, NvU32 gpu, NvU64 now)
{
	NvU32 i, e;

	for (i = 0; i < l->slots; i++) {
		const struct sim_ring_slot *from = &hand_made[gpu][i];
		NvU32 at = l->slots - 1 - i;
		NvU8 *s;

		if (i >= hand_made_count[gpu]) {
			put_sample(slot_at(out, l, at, now - 20 * NSEC_PER_SEC - i * PERIOD_NS), l, NULL, 0, NULL);
			continue;
		}
		s = slot_at(out, l, at, now - from->age_us * NSEC_PER_USEC);
		for (e = 0; e < l->engines; e++)
			put_engine(s + 8 + e * l->engine_size, l, from->engine[e].util, from->engine[e].pid,
				   from->engine[e].pid == NV_PID_NONE && e >= 2 ? NV_PID_NONE : 0,
				   pid_info_of(from->engine[e].pid));
	}
}

/* Busy sources in a fixed order: clients as created, then ghosts. Returns false past the last one. */
static bool source_at(NvU32 gpu, NvU32 index, NvU64 now, const NvU32 **util, NvU32 *proc_id, void **pid_info)
{
	struct rm_client *client;
	NvU32 i;

	list_for_each_entry(client, &rm_clients, node) {
		if (!load_is_busy(client->load[gpu].util) || index--)
			continue;
		*util = client->load[gpu].util;
		*proc_id = client->proc_id;
		*pid_info = client->pid_info;
		return true;
	}
	for (i = 0; sim_ghosts && i < GHOSTS; i++) {
		if (!ghosts[i].proc_id || ghosts[i].gpu != gpu || ghosts[i].until < now || index--)
			continue;
		*util = ghosts[i].util;
		*proc_id = ghosts[i].proc_id;
		*pid_info = ghosts[i].pid_info;
		return true;
	}
	return false;
}

static NvU32 fill_generated(NvU8 *out, const struct layout *l, NvU32 gpu, NvU64 now)
{
	NvU64 tick = div64_u64(now, PERIOD_NS);
	const NvU32 *util;
	NvU32 sources = 0, i, proc_id;
	void *pid_info;

	while (source_at(gpu, sources, now, &util, &proc_id, &pid_info))
		sources++;
	for (i = 0; i < l->slots; i++) {
		NvU64 t = tick - i;
		NvU32 at = t - div64_u64(t, l->slots) * l->slots;
		NvU32 turn = t - div64_u64(t, sources + 1) * (sources + 1);
		NvU8 *s = slot_at(out, l, at, t * PERIOD_NS);

		if (turn < sources && source_at(gpu, turn, now, &util, &proc_id, &pid_info))
			put_sample(s, l, util, proc_id, pid_info);
		else
			put_sample(s, l, NULL, 0, NULL);
	}
	return (tick + 1 - div64_u64(tick + 1, l->slots) * l->slots) * l->stride;
}

static NV_STATUS fill(struct rm_call *call, NvU8 *out, const struct layout *l)
{
	NvU64 now = ktime_get_real_ns();

	if (get32(call->params, 4) != l->slots * l->stride)
		return NV_ERR_INVALID_ARGUMENT;
	memset(out, 0, l->slots * l->stride);
	put32(call->params, 8, 0);
	put32(call->params, 12, 0);
	if (hand_made_count[call->gpu])
		fill_hand_made(out, l, call->gpu, now);
	else
		put32(call->params, 12, fill_generated(out, l, call->gpu, now));
	return NV_OK;
}

static NV_STATUS gpumon_v2(struct rm_call *call)
{
	const struct layout *l = layouts;

	while (call->size != 16 + l->slots * l->stride)
		l++;
	return fill(call, call->params + 16, l);
}

static NV_STATUS gpumon_v1(struct rm_call *call)
{
	struct layout l = layouts[0];

	if (!call->embedded || call->embedded_size < l.stride)
		return NV_ERR_INVALID_ARGUMENT;
	l.slots = call->embedded_size / l.stride;
	return fill(call, call->embedded, &l);
}

/*
 * Version 1 passes a byte count and a pointer to the same samples. Only closed releases serve it. Its size is unknown but for the limit of
 * every buffer behind a pointer, so any whole number of samples up to that is served.
 */
static const struct rm_embedded gpumon_v1_buffer = {
	.pointer = 16, .count = 4, .elem = 1, .max = SIM_MAX_EMBEDDED, .lone = true,
};

const struct rm_control_entry ctrl_gpumon_table[] = {
	{ 0x20802096, 47216, gpumon_v2 },
	{ 0x20802096, 34000, gpumon_v2 },
	{ 0x20802096, 50704, gpumon_v2 },
	{ 0x20802096, 55888, gpumon_v2 },
	{ 0x20802083, 24, gpumon_v1, &gpumon_v1_buffer },
	{ 0x2080a083, 24, gpumon_v1, &gpumon_v1_buffer },
	{ 0, 0, NULL },
};
