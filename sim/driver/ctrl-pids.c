// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The process list and the per-process memory look-up, with each release's faults.
 * GET_PIDS: from era 1 the list is converted while the duplicate test still compares the client's global number with
 * the converted list: a process with several clients is listed once per client, and a process whose global number
 * equals a number already listed is lost. GET_PID_INFO compares global numbers until era 2.
 */
#include <linux/capability.h>

#include "sim.h"

#define PIDS_MAX 950
#define INFO_MAX 200

static bool client_has_class(struct rm_client *client, NvU32 class, NvU32 gpu)
{
	struct rm_object *object;

	if (!rm_client_on_gpu(client, gpu))
		return false;
	list_for_each_entry(object, &client->objects, node)
		if (object->class == class && object->gpu == gpu)
			return true;
	return false;
}

static bool saved_already(NvU32 pid, const NvU32 *table, NvU32 count)
{
	NvU32 i;

	for (i = 0; i < count; i++)
		if (table[i] == pid)
			return true;
	return false;
}

static NV_STATUS get_pids(struct rm_call *call)
{
	NvU32 class = get32(call->params, 4);
	NvU32 *table = (NvU32 *)(call->params + 12);
	struct rm_client *client;
	NvU32 count = 0;

	if (sim_guarded && !capable(CAP_SYS_ADMIN))
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	if (get32(call->params, 0) > 1)
		return NV_ERR_INVALID_ARGUMENT;
	if (get32(call->params, 0) == 0) {
		list_for_each_entry(client, &rm_clients, node) {
			if (saved_already(client->proc_id, table, count))
				continue;
			if (!client_has_class(client, class, call->gpu))
				continue;
			if (rm_client_pid(client, &table[count]) == NV_OK)
				count++;
			if (count == PIDS_MAX)
				break;
		}
	}
	put32(call->params, 8, sim_overcounts ? PIDS_MAX + 1 : count);
	return NV_OK;
}

static bool client_matches(struct rm_client *client, NvU32 pid)
{
	NvU32 number = client->proc_id;

	if (SIM_INFO_CONVERTS && rm_client_pid(client, &number) != NV_OK)
		return false;
	return number == pid;
}

NvU64 pids_client_memory(NvU32 gpu, NvU32 pid, NvU32 *gi, NvU32 *ci)
{
	struct rm_client *client;
	NvU64 mem = 0;

	*gi = *ci = SIM_NO_INSTANCE;
	list_for_each_entry(client, &rm_clients, node) {
		if (!rm_client_on_gpu(client, gpu) || !client_matches(client, pid))
			continue;
		mem += client->load[gpu].mem;
		if (client->load[gpu].gi != SIM_NO_INSTANCE) {
			*gi = client->load[gpu].gi;
			*ci = client->load[gpu].ci;
		}
	}
	return mem;
}

/* Entries are 40, 48 or 72 bytes: memory from 16; the last 8 (not in the first) are the compute and GPU instance. */
static NV_STATUS get_pid_info(struct rm_call *call)
{
	NvU32 stride = (call->size - 8) / INFO_MAX;
	NvU32 count = get32(call->params, 0);
	NvU32 i;

	if (count > INFO_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < count; i++) {
		NvU8 *e = call->params + 8 + i * stride;
		NvU32 pid = get32(e, 0), gi, ci;

		if (get32(e, 4) != 0 || pid == 0) { /* index 0 is video memory, the only one */
			put32(e, 8, NV_ERR_INVALID_ARGUMENT);
			continue;
		}
		memset(e + 16, 0, stride - 16);
		put64(e, 16, pids_client_memory(call->gpu, pid, &gi, &ci));
		if (stride > 40) {
			put32(e, stride - 8, ci);
			put32(e, stride - 4, gi);
		}
		put32(e, 8, NV_OK);
	}
	if (sim_overcounts)
		put32(call->params, 0, INFO_MAX + 1);
	return NV_OK;
}

const struct rm_control_entry ctrl_pids_table[] = {
	{ 0x2080018d, 3812, get_pids },
	{ 0x00800202, 3812, get_pids },
	{ 0x2080018e, 8008, get_pid_info },
	{ 0x2080018e, 9608, get_pid_info },
	{ 0x2080018e, 14408, get_pid_info },
	{ 0x00800203, 8008, get_pid_info },
	{ 0x00800203, 9608, get_pid_info },
	{ 0x00800203, 14408, get_pid_info },
	{ 0, 0, NULL },
};
