// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The RM clients that there are, and how one of them and its objects are found. Knows nothing of how they come and go.
 * Clients are kept in order of creation, as the real list is, because the duplicate test of the process list depends on that order.
 */
#include <linux/cred.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/uidgid.h>

#include "sim.h"

DEFINE_MUTEX(rm_lock);
LIST_HEAD(rm_clients);

/*
 * A client answers to the open file that made it, and to its maker's effective user or process (osValidateClientTokens of
 * the open sources compares user and process; whether a release compares the file, the token or both varies: here both).
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

/* The number this release reports for a client: the global one, or the caller's view of it where it converts. */
NV_STATUS rm_client_pid(struct rm_client *client, NvU32 *pid)
{
#if SIM_HAS_NS_PID
	return os_find_ns_pid(client->pid_info, pid);
#else
	*pid = client->proc_id;
	return NV_OK;
#endif
}
