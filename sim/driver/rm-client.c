// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Makes and frees RM clients and their objects. They end with the open file. Reports changes to accounting and sessions.
 * Source: the alloc and free escapes of the public headers.
 */
#include <linux/cred.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uidgid.h>

#include "sim.h"

static NvU32 rm_client_count;
static NvU32 rm_next_client = 0xc1d00001;
static NvU32 rm_next_object = 0xcaf00001;

static void rm_drop_object(struct rm_client *client, struct rm_object *object)
{
	if (object->accounted)
		acct_device_closed(client, object);
	session_object_gone(object);
	client->load[object->gpu].mem -= object->bytes;
	list_del(&object->node);
	client->object_count--;
	kfree(object);
}

/* Children first: the list is in order of creation, and a child is always younger than its parent. */
static void rm_drop_tree(struct rm_client *client, NvU32 handle)
{
	struct rm_object *object, *next;
	bool again = true;

	while (again) {
		again = false;
		list_for_each_entry_safe_reverse(object, next, &client->objects, node) {
			if (object->parent != handle)
				continue;
			rm_drop_tree(client, object->handle);
			again = true;
			break;
		}
	}
	object = rm_find_object(client, handle);
	if (object)
		rm_drop_object(client, object);
}

static void rm_drop_client(struct rm_client *client)
{
	gpumon_client_gone(client);
	while (!list_empty(&client->objects))
		rm_drop_object(client, list_last_entry(&client->objects, struct rm_object, node));
	list_del(&client->node);
	client->owner->clients--;
	rm_client_count--;
#if SIM_HAS_NS_PID
	os_put_pid_info(client->pid_info);
#endif
	kfree(client);
}

void rm_close(struct nv_file_private *nvfp)
{
	struct rm_client *client, *next;

	mutex_lock(&rm_lock);
	list_for_each_entry_safe(client, next, &rm_clients, node)
		if (client->owner == nvfp)
			rm_drop_client(client);
	mutex_unlock(&rm_lock);
}

static bool rm_handle_taken(NvU32 handle)
{
	struct rm_client *client;

	list_for_each_entry(client, &rm_clients, node)
		if (client->handle == handle)
			return true;
	return false;
}

static NV_STATUS rm_new_client(struct nv_file_private *nvfp, NvU32 *handle)
{
	struct rm_client *client;
	NvU32 gpu;

	if (nvfp->clients >= SIM_MAX_CLIENTS_PER_FILE || rm_client_count >= SIM_MAX_CLIENTS)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	if (*handle && rm_handle_taken(*handle))
		return NV_ERR_STATE_IN_USE;
	client = kzalloc(sizeof(*client), GFP_KERNEL);
	if (!client)
		return NV_ERR_NO_MEMORY;
	if (!*handle)
		*handle = rm_next_client++;
	client->handle = *handle;
	client->owner = nvfp;
	client->proc_id = task_tgid_nr(current);
	client->euid = current_euid();
#if SIM_HAS_NS_PID
	client->pid_info = os_get_pid_info();
#endif
	INIT_LIST_HEAD(&client->objects);
	for (gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
		client->load[gpu].gi = client->load[gpu].ci = SIM_NO_INSTANCE;
	list_add_tail(&client->node, &rm_clients);
	nvfp->clients++;
	rm_client_count++;
	return NV_OK;
}

static bool rm_class_uses_engine(NvU32 class)
{
	return class == NV_CLASS_COMPUTE || class == NV_CLASS_GRAPHICS || class == NV_CLASS_MPS;
}

static bool rm_class_known(NvU32 class)
{
	switch (class) {
	case NV_CLASS_DEVICE:
	case NV_CLASS_SUBDEVICE:
	case NV_CLASS_CHANNEL:
	case NV_CLASS_PROFILER:
	case NV_CLASS_DEBUGGER:
	case NV_CLASS_OS_EVENT:
	case NV_CLASS_MEMORY_LOCAL_USER:
		return true;
	default:
		return rm_class_uses_engine(class);
	}
}

static NV_STATUS rm_new_object(struct rm_client *client, NvU32 parent, NvU32 *handle, NvU32 class, NvU32 word,
			       NvU64 bytes)
{
	struct rm_object *object, *above = NULL;

	if (!rm_class_known(class))
		return NV_ERR_INVALID_CLASS;
	if (client->object_count >= SIM_MAX_OBJECTS)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	if (*handle && (*handle == client->handle || rm_find_object(client, *handle)))
		return NV_ERR_STATE_IN_USE;
	if (parent != client->handle) {
		above = rm_find_object(client, parent);
		if (!above)
			return NV_ERR_INVALID_OBJECT_PARENT;
	}
	if ((class == NV_CLASS_DEVICE) != !above)
		return NV_ERR_INVALID_OBJECT_PARENT;
	if (!above && word >= sim_gpus)
		return NV_ERR_INVALID_ARGUMENT;
	object = kzalloc(sizeof(*object), GFP_KERNEL);
	if (!object)
		return NV_ERR_NO_MEMORY;
	if (!*handle)
		*handle = rm_next_object++;
	object->handle = *handle;
	object->parent = parent;
	object->class = class;
	object->gpu = above ? above->gpu : word;
	object->notify_index = class == NV_CLASS_OS_EVENT ? word & 0xffff : 0;
	object->bytes = bytes;
	client->load[object->gpu].mem += bytes;
	list_add_tail(&object->node, &client->objects);
	client->object_count++;
	if (class == NV_CLASS_DEVICE)
		acct_device_opened(client, object);
	if (rm_class_uses_engine(class))
		acct_engine_used(client, object->gpu);
	if (class == NV_CLASS_MEMORY_LOCAL_USER)
		acct_memory_changed(client, object->gpu);
	return NV_OK;
}

/*
 * The argument has three sizes. In the short one, 535 put a size at 24 and moved the status from 24 to 28. The caller's
 * release is unknown, so both fields get the status (a returned size of 0 disturbs no client).
 */
static void rm_alloc_status(NvU8 *arg, NvU32 size, NV_STATUS status)
{
	if (size == 32) {
		put32(arg, 24, status);
		put32(arg, 28, status);
	} else if (size == 40) {
		put32(arg, 32, status);
		put32(arg, 36, status);
	} else {
		put32(arg, 40, status);
	}
}

NV_STATUS rm_alloc(struct nv_file_private *nvfp, NvU8 *arg, NvU32 size)
{
	NvU32 root, parent, handle, class, word = 0;
	NvU64 bytes = 0;
	void *user;
	NV_STATUS status = NV_OK;

	if (size != 32 && size != 40 && size != 48)
		return NV_ERR_INVALID_ARGUMENT;
	root = get32(arg, 0);
	parent = get32(arg, 4);
	handle = get32(arg, 8);
	class = get32(arg, 12);
	user = (void *)(uintptr_t)get64(arg, 16);

	if (class == NV_CLASS_DEVICE && user)
		status = os_memcpy_from_user(&word, user, sizeof(word));
	/* NV0005_ALLOC_PARAMETERS: the event's index is at 12. */
	if (class == NV_CLASS_OS_EVENT)
		status = user ? os_memcpy_from_user(&word, (NvU8 *)user + 12, sizeof(word)) : NV_ERR_INVALID_ARGUMENT;
	/* NV_MEMORY_ALLOCATION_PARAMS: the size is the u64 at 64. */
	if (class == NV_CLASS_MEMORY_LOCAL_USER)
		status = user ? os_memcpy_from_user(&bytes, (NvU8 *)user + 64, sizeof(bytes)) : NV_ERR_INVALID_ARGUMENT;
	if (bytes > SIM_MAX_OBJECT_BYTES)
		return NV_ERR_INVALID_ARGUMENT;
	if (status == NV_OK) {
		mutex_lock(&rm_lock);
		if (class == NV_CLASS_ROOT || class == NV_CLASS_ROOT_NON_PRIV || class == NV_CLASS_ROOT_CLIENT) {
			status = rm_new_client(nvfp, &handle);
		} else {
			struct rm_client *client = rm_find_client(nvfp, root);

			status = client ? rm_new_object(client, parent, &handle, class, word, bytes) :
					  NV_ERR_INVALID_CLIENT;
			user = NULL;
		}
		mutex_unlock(&rm_lock);
	}
	if (status == NV_OK) {
		put32(arg, 8, handle);
		/* The parameter of a root client is its handle. */
		if (user)
			status = os_memcpy_to_user(user, &handle, sizeof(handle));
	}
	rm_alloc_status(arg, size, status);
	if (status && sim_debug)
		pr_info("nvidia: alloc class %x parent %x: status %x\n", class, parent, status);
	return NV_OK;
}

NV_STATUS rm_free(struct nv_file_private *nvfp, NvU8 *arg, NvU32 size)
{
	struct rm_client *client;
	NvU32 handle;
	NV_STATUS status = NV_OK;

	if (size != 16)
		return NV_ERR_INVALID_ARGUMENT;
	handle = get32(arg, 8);
	mutex_lock(&rm_lock);
	client = rm_find_client(nvfp, get32(arg, 0));
	if (!client)
		status = NV_ERR_INVALID_CLIENT;
	else if (handle == client->handle)
		rm_drop_client(client);
	else if (rm_find_object(client, handle))
		rm_drop_tree(client, handle);
	else
		status = NV_ERR_INVALID_OBJECT_HANDLE;
	mutex_unlock(&rm_lock);
	put32(arg, 12, status);
	return NV_OK;
}

NV_STATUS rm_set_load(struct nv_file_private *nvfp, struct sim_args *args)
{
	struct rm_client *client;
	NV_STATUS status = NV_ERR_INVALID_CLIENT;

	if (args->gpu >= sim_gpus || args->load.enc_sessions > 512 || args->load.fbc_sessions > 256)
		return NV_ERR_INVALID_ARGUMENT;
	mutex_lock(&rm_lock);
	client = rm_find_client(nvfp, args->client);
	if (client && rm_client_on_gpu(client, args->gpu)) {
		client->load[args->gpu] = args->load;
		acct_utilisation_changed(client, args->gpu);
		status = NV_OK;
	}
	mutex_unlock(&rm_lock);
	return status;
}
