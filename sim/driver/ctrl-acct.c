// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Accounting: an entry per process and GPU, live while the process has a device object, then dead.
 * The list is global in eras 0 to 2; from era 3 dead entries are hidden outside the init namespace; live entries are
 * converted in era 3 and global again in era 4. The per-process look-up of eras 3 and 4 takes the caller's number if
 * any client has it, otherwise takes it for a global one, and writes the global number back.
 */
#include <linux/capability.h>
#include <linux/ktime.h>
#include <linux/pid.h>
#include <linux/slab.h>

#include "sim.h"

#define ACCT_MAX_PIDS 4000
#define ACCT_ENABLED 0
#define ACCT_DISABLED 1

struct acct_entry {
	struct list_head node;
	NvU32 gpu;
	NvU32 pid;
	void *pid_info;
	NvU32 refs;
	bool gpu_user; /* made an engine object or allocated memory */
	bool dead;
	NvU32 gpu_util;
	NvU32 fb_util;
	NvU64 max_fb;
	NvU64 start_us;
	NvU64 end_us;
};

static LIST_HEAD(acct_entries);
static NvU32 acct_count;
static bool acct_on[SIM_MAX_GPUS];

static NvU64 now_us(void)
{
	return ktime_to_us(ktime_get_real());
}

static struct acct_entry *acct_find(NvU32 gpu, NvU32 pid, bool dead)
{
	struct acct_entry *e;

	list_for_each_entry(e, &acct_entries, node)
		if (e->gpu == gpu && e->pid == pid && e->dead == dead)
			return e;
	return NULL;
}

static void acct_drop(struct acct_entry *e)
{
#if SIM_HAS_NS_PID
	os_put_pid_info(e->pid_info);
#endif
	list_del(&e->node);
	acct_count--;
	kfree(e);
}

/* A full table drops its oldest dead entry, as the real ring of dead processes does. */
static bool acct_make_room(void)
{
	struct acct_entry *e;

	if (acct_count < ACCT_MAX_PIDS)
		return true;
	list_for_each_entry(e, &acct_entries, node) {
		if (e->dead) {
			acct_drop(e);
			return true;
		}
	}
	return false;
}

void acct_device_opened(struct rm_client *client, struct rm_object *device)
{
	struct acct_entry *e;

	if (!acct_on[device->gpu])
		return;
	e = acct_find(device->gpu, client->proc_id, false);
	if (!e) {
		if (!acct_make_room())
			return;
		e = kzalloc(sizeof(*e), GFP_KERNEL);
		if (!e)
			return;
		e->gpu = device->gpu;
		e->pid = client->proc_id;
#if SIM_HAS_NS_PID
		e->pid_info = get_pid(client->pid_info);
#endif
		e->start_us = now_us();
		list_add_tail(&e->node, &acct_entries);
		acct_count++;
	}
	e->refs++;
	device->accounted = true;
}

void acct_device_closed(struct rm_client *client, struct rm_object *device)
{
	struct acct_entry *e = acct_find(device->gpu, client->proc_id, false);
	struct acct_entry *old;

	device->accounted = false;
	if (!e || --e->refs)
		return;
	if (!e->gpu_user) {
		acct_drop(e);
		return;
	}
	old = acct_find(device->gpu, client->proc_id, true);
	if (old)
		acct_drop(old);
	e->end_us = now_us();
	e->dead = true;
}

void acct_engine_used(struct rm_client *client, NvU32 gpu)
{
	struct acct_entry *e = acct_find(gpu, client->proc_id, false);

	if (e)
		e->gpu_user = true;
}

/*
 * Called when NV_ESC_RM_ALLOC allocates memory: no control is in flight (video_mem.c). The release's memory look-up measures the peak,
 * by the global number. From era 2 on that look-up compares the caller's numbers, so a containerised process records 0 or another process's
 * memory.
 */
void acct_memory_changed(struct rm_client *client, NvU32 gpu)
{
	struct acct_entry *e = acct_find(gpu, client->proc_id, false);
	NvU32 gi, ci;
	NvU64 mem;

	if (!e)
		return;
	mem = pids_client_memory(gpu, client->proc_id, &gi, &ci);
	if (mem > e->max_fb)
		e->max_fb = mem;
	e->gpu_user = true;
}

void acct_utilisation_changed(struct rm_client *client, NvU32 gpu)
{
	struct acct_entry *e = acct_find(gpu, client->proc_id, false);

	if (!e)
		return;
	e->gpu_util = client->load[gpu].util[1] / 100;
	e->fb_util = client->load[gpu].util[0] / 100;
}

void acct_exit(void)
{
	while (!list_empty(&acct_entries))
		acct_drop(list_first_entry(&acct_entries, struct acct_entry, node));
}

static void acct_clear(NvU32 gpu, bool live_too)
{
	struct acct_entry *e, *next;

	list_for_each_entry_safe(e, next, &acct_entries, node)
		if (e->gpu == gpu && (e->dead || live_too))
			acct_drop(e);
}

static NV_STATUS acct_set_state(struct rm_call *call)
{
	NvU32 gpu;

	if (!capable(CAP_SYS_ADMIN))
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	if (!sim_gpu_from_id(get32(call->params, 0), &gpu) || get32(call->params, 8) > ACCT_DISABLED)
		return NV_ERR_INVALID_ARGUMENT;
	acct_on[gpu] = get32(call->params, 8) == ACCT_ENABLED;
	if (!acct_on[gpu])
		acct_clear(gpu, true);
	return NV_OK;
}

static NV_STATUS acct_get_state(struct rm_call *call)
{
	NvU32 gpu;

	if (!sim_gpu_from_id(get32(call->params, 0), &gpu))
		return NV_ERR_INVALID_ARGUMENT;
	put32(call->params, 8, acct_on[gpu] ? ACCT_ENABLED : ACCT_DISABLED);
	return NV_OK;
}

static NV_STATUS acct_clear_data(struct rm_call *call)
{
	NvU32 gpu;

	if (!capable(CAP_SYS_ADMIN))
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	if (!sim_gpu_from_id(get32(call->params, 0), &gpu))
		return NV_ERR_INVALID_ARGUMENT;
	acct_clear(gpu, false);
	return NV_OK;
}

static bool dead_hidden(void)
{
#if SIM_HAS_INIT_NS
	return !os_is_init_ns();
#else
	return false;
#endif
}

static bool live_number(struct acct_entry *e, NvU32 *pid)
{
	*pid = e->pid;
#if SIM_ERA == 3
	return os_find_ns_pid(e->pid_info, pid) == NV_OK;
#else
	return true;
#endif
}

static NV_STATUS acct_get_pids(struct rm_call *call)
{
	NvU32 *table = (NvU32 *)(call->params + 8);
	struct acct_entry *e;
	NvU32 gpu, count = 0;

	if (!sim_gpu_from_id(get32(call->params, 0), &gpu))
		return NV_ERR_INVALID_ARGUMENT;
	if (!dead_hidden())
		list_for_each_entry(e, &acct_entries, node)
			if (e->gpu == gpu && e->dead)
				table[count++] = e->pid;
	list_for_each_entry(e, &acct_entries, node)
		if (e->gpu == gpu && !e->dead && e->gpu_user && live_number(e, &table[count]))
			count++;
	put32(call->params, 16008, count);
	return NV_OK;
}

static NvU32 lookup_pid(NvU32 pid)
{
#if SIM_HAS_INIT_NS
	struct rm_client *client;
	NvU32 seen;

	list_for_each_entry(client, &rm_clients, node)
		if (os_find_ns_pid(client->pid_info, &seen) == NV_OK && seen == pid)
			return client->proc_id;
#endif
	return pid;
}

static NV_STATUS acct_get_info(struct rm_call *call)
{
	struct acct_entry *e;
	NvU32 gpu, pid = get32(call->params, 4);

	if (!sim_gpu_from_id(get32(call->params, 0), &gpu))
		return NV_ERR_INVALID_ARGUMENT;
	if (get32(call->params, 8) == 0)
		pid = lookup_pid(pid);
	put32(call->params, 4, pid);
	e = acct_find(gpu, pid, true);
	if (!e)
		e = acct_find(gpu, pid, false);
	if (!e || !e->gpu_user)
		return NV_ERR_OBJECT_NOT_FOUND;
	put32(call->params, 12, e->gpu_util);
	put32(call->params, 16, e->fb_util);
	put64(call->params, 24, e->max_fb);
	put64(call->params, 32, e->start_us);
	put64(call->params, 40, e->end_us);
	return NV_OK;
}

#if SIM_HAS_ACCOUNTING_OF_610
/* NV0000_CTRL_GPUACCT_GET_PROC_ACCOUNTING_INFO_V2_PARAMS: the same fields at the same offsets, with sample count and sums. */
static NV_STATUS acct_get_info_v2(struct rm_call *call)
{
	NV_STATUS status = acct_get_info(call);

	if (status != NV_OK)
		return status;
	put32(call->params, 20, 1);
	put64(call->params, 48, get32(call->params, 12) * 100);
	put64(call->params, 56, get32(call->params, 16) * 100);
	return NV_OK;
}
#endif

const struct rm_control_entry ctrl_acct_table[] = {
	{ 0x00000b01, 12, acct_set_state },
	{ 0x00000b02, 12, acct_get_state },
	{ 0x00000b03, 48, acct_get_info },
	{ 0x00000b04, 16012, acct_get_pids },
	{ 0x00000b05, 8, acct_clear_data },
#if SIM_HAS_ACCOUNTING_OF_610
	{ 0x00000b06, 64, acct_get_info_v2 },
#endif
	{ 0, 0, NULL },
};
