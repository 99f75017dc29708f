// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Finds RM clients and their objects. Clients are in order of creation, as in the real list: the duplicate test of the process list depends
 * on that order.
 */
#include <linux/cred.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/uidgid.h>

#include "sim.h"

DEFINE_MUTEX(rm_lock);
LIST_HEAD(rm_clients);

/*
 * Only the open file that made a client may use it, and only its maker's effective user or process. osValidateClientTokens of the open
 * sources compares user and process. Releases compare the file, the token or both; here both.
 */
static bool rm_client_is_callers(struct rm_client *client, struct nv_file_private *nvfp)
{
	return client->owner == nvfp &&
	       (uid_eq(client->euid, current_euid()) || client->proc_id == task_tgid_nr(current));
}

struct rm_client *rm_find_client(struct nv_file_private *nvfp, NvU32 handle)
{
	struct rm_client *client;

	list_for_each_entry(client, &rm_clients, node)
		if (client->handle == handle && rm_client_is_callers(client, nvfp))
			return client;
	return NULL;
}

struct rm_object *rm_find_object(struct rm_client *client, NvU32 handle)
{
	struct rm_object *object;

	list_for_each_entry(object, &client->objects, node)
		if (object->handle == handle)
			return object;
	return NULL;
}

bool rm_client_on_gpu(struct rm_client *client, NvU32 gpu)
{
	struct rm_object *object;

	list_for_each_entry(object, &client->objects, node)
		if (object->class == NV_CLASS_DEVICE && object->gpu == gpu)
			return true;
	return false;
}

/* The PID that this release reports for a client: the global one, or the caller's view if the release converts. */
NV_STATUS rm_client_pid(struct rm_client *client, NvU32 *pid)
{
#if SIM_HAS_NS_PID
	return os_find_ns_pid(client->pid_info, pid);
#else
	*pid = client->proc_id;
	return NV_OK;
#endif
}
