// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * One control call: checks flags and size, copies the parameters and the buffer behind an embedded pointer, checks the
 * object, runs the handler on the kernel copies, and copies out (embedded buffer first) only on success.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "sim.h"

static const struct rm_control_entry *const rm_tables[] = {
	ctrl_info_table, ctrl_pids_table, ctrl_gpumon_table, ctrl_acct_table, ctrl_session_table,
	ctrl_debug_table,
};

static const struct rm_control_entry *rm_find_control(NvU32 cmd, NvU32 size, NV_STATUS *status)
{
	const struct rm_control_entry *e;
	size_t t;

	*status = NV_ERR_NOT_SUPPORTED;
	for (t = 0; t < ARRAY_SIZE(rm_tables); t++) {
		for (e = rm_tables[t]; e->handler; e++) {
			if (e->cmd != cmd)
				continue;
			if (e->size == size || (e->size == RM_ANY_SIZE && size && size <= SIM_MAX_PARAMS)) {
				*status = NV_OK;
				return e;
			}
			*status = NV_ERR_INVALID_ARGUMENT;
		}
	}
	return NULL;
}

/* A control's upper half is its class. On an object of another class, the control is as unknown as a wrong number. */
static bool rm_class_matches(NvU32 cmd, const struct rm_object *object)
{
	return cmd >> 16 == (object ? object->class : 0);
}

static NV_STATUS rm_run(struct nv_file_private *nvfp, NvU32 h_client, NvU32 h_object,
			const struct rm_control_entry *e, struct rm_call *call)
{
	NV_STATUS status;

	mutex_lock(&rm_lock);
	call->client = rm_find_client(nvfp, h_client);
	if (!call->client) {
		status = NV_ERR_INVALID_CLIENT;
		goto out;
	}
	if (h_object != h_client) {
		call->object = rm_find_object(call->client, h_object);
		if (!call->object) {
			status = NV_ERR_OBJECT_NOT_FOUND;
			goto out;
		}
		call->gpu = call->object->gpu;
	}
	status = rm_class_matches(call->cmd, call->object) ? e->handler(call) : NV_ERR_NOT_SUPPORTED;
out:
	mutex_unlock(&rm_lock);
	return status;
}

static NV_STATUS rm_embedded_in(const struct rm_embedded *d, struct rm_call *call, void **user)
{
	NvU32 count;

	if (!d)
		return NV_OK;
	*user = (void *)(uintptr_t)get64(call->params, d->pointer);
	count = get32(call->params, d->count);
	if (!*user || !count)
		return d->lone && (*user || count) ? NV_ERR_INVALID_ARGUMENT : NV_OK;
	if (count > d->max)
		return NV_ERR_INVALID_ARGUMENT;
	call->embedded_size = count * d->elem;
	call->embedded = kvzalloc(call->embedded_size, GFP_KERNEL);
	if (!call->embedded)
		return NV_ERR_NO_MEMORY;
	return d->copy_in ? os_memcpy_from_user(call->embedded, *user, call->embedded_size) : NV_OK;
}

static NV_STATUS rm_answer(void *user, const void *params, NvU32 size)
{
	if (!sim_bypass)
		return os_memcpy_to_user(user, params, size);
	return copy_to_user((void __user *)user, params, size) ? NV_ERR_INVALID_ADDRESS : NV_OK;
}

static NV_STATUS rm_control_call(struct nv_file_private *nvfp, NvU8 *arg)
{
	NvU32 flags = get32(arg, 12);
	void *user = (void *)(uintptr_t)get64(arg, 16);
	void *embedded_user = NULL;
	const struct rm_control_entry *e;
	struct rm_call call = { .cmd = get32(arg, 8), .size = get32(arg, 24) };
	NV_STATUS status;

	if (flags & 3) /* raised IRQL, lock bypass: not for user space */
		return NV_ERR_INVALID_ARGUMENT;
	if (SIM_ERA >= 1 && (flags & 4)) /* serialised parameters: unpacked since 530.30.02, never for these */
		return NV_ERR_LIB_RM_VERSION_MISMATCH;
	if (!user != !call.size) /* rmapi/control.c, 515.43.04 to 580.95.05 */
		return NV_ERR_INVALID_ARGUMENT;
	e = rm_find_control(call.cmd, call.size, &status);
	if (!e)
		return status;

	call.params = kvzalloc(max_t(NvU32, call.size, 8), GFP_KERNEL);
	if (!call.params)
		return NV_ERR_NO_MEMORY;
	status = call.size ? os_memcpy_from_user(call.params, user, call.size) : NV_OK;
	if (status == NV_OK)
		status = rm_embedded_in(e->embedded, &call, &embedded_user);
	if (status == NV_OK) {
		fault_before(call.cmd);
		status = rm_run(nvfp, get32(arg, 0), get32(arg, 4), e, &call);
	}
	if (status == NV_OK && call.embedded && !e->embedded->copy_out_not)
		status = os_memcpy_to_user(embedded_user, call.embedded, call.embedded_size);
	if (status == NV_OK && call.size)
		status = rm_answer(user, call.params, call.size);
	kvfree(call.embedded);
	kvfree(call.params);
	return status;
}

NV_STATUS rm_control(struct nv_file_private *nvfp, NvU8 *arg, NvU32 size)
{
	NV_STATUS status;

	if (size != 32)
		return NV_ERR_INVALID_ARGUMENT;
	status = rm_control_call(nvfp, arg);
	put32(arg, 28, status);
	if (status && sim_debug)
		pr_info("nvidia: control %08x size %u object %x flags %x: status %x\n", get32(arg, 8), get32(arg, 24),
			get32(arg, 4), get32(arg, 12), status);
	return NV_OK;
}
