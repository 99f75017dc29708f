// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Encoder and frame-capture sessions, the profiler's reservation, the error report and the (unreleased) client
 * allocation report: no release converts any of these, so every number here is global.
 */
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/sched.h>

#include "sim.h"

#define ENC_MAX 512
#define FBC_MAX 256

static struct {
	struct rm_object *holder;
	NvU32 pid;
	NvU32 count;
} hwpm[SIM_MAX_GPUS];

void session_object_gone(struct rm_object *object)
{
	if (hwpm[object->gpu].holder == object)
		memset(&hwpm[object->gpu], 0, sizeof(hwpm[0]));
}

/* A kind of session: the words of an entry, before those of its client are put in. The last two are frames per second and latency in us. */
struct sessions {
	NvU32 bytes;
	NvU32 number; /* the word that has the session's number */
	NvU32 step; /* by which the last two words of a client's sessions differ */
	NvU32 words[13];
};

/* H.264 */
static const struct sessions enc = { 32, 2, 1, { 0, 0, 0, 0, 1920, 1080, 30, 1000 } };
/* To system memory, without a vGPU; maximum and real size. */
static const struct sessions fbc = { 52, 3, 0, { 0, 0, 0, 0, 1, 0, 0, 3840, 2160, 1920, 1080, 60, 2000 } };

/* Fills at most cap entries and returns how many sessions there are. */
static NvU32 fill_sessions(const struct sessions *of, NvU32 gpu, NvU8 *out, NvU32 cap)
{
	struct rm_client *client;
	NvU32 n = 0, i;

	list_for_each_entry(client, &rm_clients, node) {
		for (i = 0; i < (of == &enc ? client->load[gpu].enc_sessions : client->load[gpu].fbc_sessions); i++, n++) {
			NvU8 *e = out + n * of->bytes;

			if (n >= cap)
				continue;
			memcpy(e, of->words, of->bytes);
			put32(e, 0, client->proc_id);
			put32(e, 4 * of->number, n + 1);
			put32(e, of->bytes - 8, get32(e, of->bytes - 8) + i * of->step);
			put32(e, of->bytes - 4, get32(e, of->bytes - 4) + i * of->step);
		}
	}
	return n;
}

static NV_STATUS session_stats(struct rm_call *call)
{
	const struct sessions *of = call->cmd == 0x2080016d ? &enc : &fbc;
	NvU32 n = fill_sessions(of, call->gpu, NULL, 0);

	put32(call->params, 0, n);
	put32(call->params, 4, n ? of->words[of->bytes / 4 - 2] : 0);
	put32(call->params, 8, n ? of->words[of->bytes / 4 - 1] : 0);
	return NV_OK;
}

/*
 * Room for 0 sessions requests the count. Once there is a session, the open releases (subdevice_ctrl_gpu_kernel.c) refuse any other room than
 * the whole table's. Older headers document as many sessions as fit, which era 0 returns.
 */
static NV_STATUS enc_info(struct rm_call *call, NvU8 *out, NvU32 room)
{
	NvU32 n = fill_sessions(&enc, call->gpu, NULL, 0);

	if (room && n) {
		if (SIM_ERA >= 1 && room != ENC_MAX)
			return NV_ERR_INVALID_ARGUMENT;
		room = min_t(NvU32, room, ENC_MAX);
		memset(out, 0, room * 32);
		fill_sessions(&enc, call->gpu, out, room);
		n = min(n, room);
	}
	put32(call->params, 0, n);
	return NV_OK;
}

static NV_STATUS enc_info_v1(struct rm_call *call)
{
	return enc_info(call, call->embedded, call->embedded_size / 32);
}

static NV_STATUS enc_info_v2(struct rm_call *call)
{
	return enc_info(call, call->params + 4, get32(call->params, 0));
}

static NV_STATUS fbc_info(struct rm_call *call)
{
	NvU32 n;

	memset(call->params, 0, call->size);
	n = fill_sessions(&fbc, call->gpu, call->params + 4, FBC_MAX);
	put32(call->params, 0, min_t(NvU32, n, FBC_MAX));
	return NV_OK;
}

static NV_STATUS hwpm_reserve(struct rm_call *call)
{
	if (hwpm[call->gpu].holder && hwpm[call->gpu].holder != call->object)
		return NV_ERR_STATE_IN_USE;
	hwpm[call->gpu].holder = call->object;
	hwpm[call->gpu].pid = call->client->proc_id;
	hwpm[call->gpu].count++;
	return NV_OK;
}

static NV_STATUS hwpm_release(struct rm_call *call)
{
	if (hwpm[call->gpu].holder != call->object)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (--hwpm[call->gpu].count == 0)
		session_object_gone(call->object);
	return NV_OK;
}

static NV_STATUS hwpm_info(struct rm_call *call)
{
	put32(call->params, 0, hwpm[call->gpu].count);
	put32(call->params, 4, hwpm[call->gpu].pid);
	put32(call->params, 8, 0);
	return NV_OK;
}

/* The journal of error reports: each has the process that caused it, and only that process gets it (journal.c, client_resource.c). */
static struct {
	NvU32 pid;
	NvU64 time_s;
} reports[64];
static NvU32 report_count;

NV_STATUS session_error_happened(struct nv_file_private *nvfp, NvU32 handle)
{
	struct rm_client *client;
	NV_STATUS status = NV_ERR_INVALID_CLIENT;

	mutex_lock(&rm_lock);
	client = rm_find_client(nvfp, handle);
	if (client) {
		reports[report_count % ARRAY_SIZE(reports)].pid = client->proc_id;
		reports[report_count++ % ARRAY_SIZE(reports)].time_s = ktime_get_real_seconds();
		status = NV_OK;
	}
	mutex_unlock(&rm_lock);
	return status;
}

/* reqIdx 0, rptIdx 2, GPUTag 4, rptTime 8, startIdx 12, endIdx 14, rptType 16, flags 20, rptCount 24, owner 28, processId 32, report 36. */
static NV_STATUS rc_report(struct rm_call *call)
{
	NvU32 pid = task_tgid_nr(current), oldest, i, first = 0, last = 0;
	NvU16 wanted = *(NvU16 *)call->params;
	bool any = false;

	*(NvU16 *)(call->params + 2) = ~wanted;
	put32(call->params, 20, 0);
	put32(call->params, 32, pid);
	if (get32(call->params, 28) == 0)
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	oldest = report_count > ARRAY_SIZE(reports) ? report_count - ARRAY_SIZE(reports) : 0;
	for (i = oldest; i < report_count; i++) {
		if (reports[i % ARRAY_SIZE(reports)].pid != pid)
			continue;
		first = any ? first : i;
		last = i;
		any = true;
	}
	if (!any)
		return NV_ERR_MISSING_TABLE_ENTRY;
	*(NvU16 *)(call->params + 12) = first;
	*(NvU16 *)(call->params + 14) = last;
	put32(call->params, 20, 4); /* the range is valid */
	if (wanted < oldest || wanted >= report_count || reports[wanted % ARRAY_SIZE(reports)].pid != pid)
		return NV_OK;
	memset(call->params + 36, 0, call->size - 36);
	put32(call->params, 4, 1);
	put32(call->params, 8, reports[wanted % ARRAY_SIZE(reports)].time_s);
	*(NvU16 *)(call->params + 2) = wanted;
	*(NvU16 *)(call->params + 16) = 4; /* an RC error */
	*(NvU16 *)(call->params + 24) = 1;
	put32(call->params, 36, 0x10); /* one register: tag, value, attribute */
	put32(call->params, 40, wanted);
	put32(call->params, 20, 4 | 8 | 3); /* range and data are valid; first and last of its report */
	return NV_OK;
}

static NV_STATUS client_allocations(struct rm_call *call)
{
	struct rm_client *client;
	NvU32 n = 0, cap = call->embedded_size / 112;

	if (!sim_client_allocs)
		return NV_ERR_NOT_SUPPORTED;
	list_for_each_entry(client, &rm_clients, node) {
		if (!rm_client_on_gpu(client, call->gpu))
			continue;
		if (n < cap) {
			put32(call->embedded, n * 112, client->handle);
			put32(call->embedded, n * 112 + 4, client->proc_id);
		}
		n++;
	}
	put64(call->params, 0, 0);
	put64(call->params, 16, n);
	return NV_OK;
}

static const struct rm_embedded enc_v1_table = {
	.pointer = 8, .count = 0, .elem = 32, .max = SIM_MAX_EMBEDDED / 32, .lone = true,
};
static const struct rm_embedded client_alloc_table = { .pointer = 24, .count = 16, .elem = 112, .max = 1024 };

const struct rm_control_entry ctrl_session_table[] = {
	{ 0x2080016d, 12, session_stats },
	{ 0x2080016e, 16, enc_info_v1, &enc_v1_table },
	{ 0x208001a9, 16388, enc_info_v2 },
	{ 0x208001af, 16388, enc_info_v2 },
	{ 0x2080017b, 12, session_stats },
	{ 0x2080017c, 13316, fbc_info },
	{ 0x90cc0101, 1, hwpm_reserve },
	{ 0x90cc0102, 0, hwpm_release },
	{ 0x90cc0103, 12, hwpm_info },
	{ 0x00000607, 2436, rc_report },
	{ 0x20801349, 32, client_allocations, &client_alloc_table },
	{ 0, 0, NULL },
};
