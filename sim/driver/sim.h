/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Declarations that the files of the simulated driver share: RM clients, objects, GPUs, and the calls between the layers, which the real
 * driver has too (nv: files and ioctl entry; os: services of Linux for the OS-agnostic RM; rm: the RM itself).
 * Source: NVIDIA's public headers, and the behaviour of the releases in README.md.
 */
#ifndef SIM_H
#define SIM_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>
#include <linux/uidgid.h>

#include "../sim_ioctl.h"

typedef u8 NvU8;
typedef u16 NvU16;
typedef u32 NvU32;
typedef u64 NvU64;
typedef u8 NvBool;
typedef u32 NV_STATUS;

#define NV_ESC_RM_GET_EVENT_DATA 0x52

enum {
	NV_OK = 0x00,
	NV_ERR_INSUFFICIENT_RESOURCES = 0x1a,
	NV_ERR_INSUFFICIENT_PERMISSIONS = 0x1b,
	NV_ERR_INVALID_ADDRESS = 0x1e,
	NV_ERR_INVALID_ARGUMENT = 0x1f,
	NV_ERR_INVALID_CLASS = 0x22,
	NV_ERR_INVALID_CLIENT = 0x23,
	NV_ERR_INVALID_OBJECT_HANDLE = 0x33,
	NV_ERR_INVALID_OBJECT_PARENT = 0x36,
	NV_ERR_NO_MEMORY = 0x51,
	NV_ERR_NOT_SUPPORTED = 0x56,
	NV_ERR_OBJECT_NOT_FOUND = 0x57,
	NV_ERR_STATE_IN_USE = 0x63,
	NV_ERR_LIB_RM_VERSION_MISMATCH = 0x6a,
	NV_ERR_MISSING_TABLE_ENTRY = 0x4a,
	NV_ERR_OPERATING_SYSTEM = 0x59,
};

/* README.md lists the eras and their releases. */
#if SIM_ERA == 0
#define SIM_VERSION "470.256.02"
#elif SIM_ERA == 1 && SIM_FRONTEND_535
#define SIM_VERSION "535.261.03"
#elif SIM_ERA == 1
#define SIM_VERSION "550.163.01"
#elif SIM_ERA == 2
#define SIM_VERSION "565.57.01"
#elif SIM_ERA == 3
#define SIM_VERSION "570.86.15"
#elif SIM_ERA == 4 && SIM_NEWEST
#define SIM_VERSION "615.71.09"
#elif SIM_ERA == 4
#define SIM_VERSION "580.159.04"
#else
#error "ERA must be 0 to 4"
#endif

#define SIM_HAS_FRONTEND (SIM_ERA == 0 || (SIM_ERA == 1 && SIM_FRONTEND_535))
#define SIM_HAS_NS_PID (SIM_ERA >= 1) /* os_find_ns_pid: list of processes converted */
#define SIM_INFO_CONVERTS (SIM_ERA >= 2) /* per-process memory look-up by the caller's number */
#define SIM_HAS_INIT_NS (SIM_ERA >= 3) /* os_is_init_ns: samples and accounting touched */
#define SIM_PID_IS_LEADER (SIM_ERA >= 4) /* before: the thread that made the client */
#define SIM_OPEN_FLAVOUR (SIM_ERA >= 2)
#define SIM_HAS_LIMIT_EVENTS (SIM_ERA == 4 && SIM_NEWEST)
#define SIM_HAS_ACCOUNTING_OF_610 (SIM_ERA == 4 && SIM_NEWEST)

#define NV_MAJOR 195
#define NV_MINOR_CONTROL 255
#define NV_CLASS_ROOT 0x0000
#define NV_CLASS_ROOT_NON_PRIV 0x0001
#define NV_CLASS_ROOT_CLIENT 0x0041
#define NV_CLASS_MEMORY_LOCAL_USER 0x0040
#define NV_CLASS_OS_EVENT 0x0079
#define NV_CLASS_DEVICE 0x0080
#define NV_CLASS_SUBDEVICE 0x2080
#define NV_CLASS_PROFILER 0x90cc
#define NV_CLASS_DEBUGGER 0x83de
#define NV_CLASS_MPS 0x900e
#define NV_CLASS_CHANNEL 0xc36f
#define NV_CLASS_GRAPHICS 0xc397
#define NV_CLASS_COMPUTE 0xc3c0
#define NV_PID_NONE 0xffffffffu

#define SIM_MAX_CLIENTS_PER_FILE 1100
#define SIM_MAX_CLIENTS 8192
#define SIM_MAX_OBJECT_BYTES (1ull << 40)
#define SIM_MAX_OBJECTS 64
#define SIM_MAX_EVENTS 64
#define SIM_MAX_PARAMS (64 * 1024)
#define SIM_MAX_EMBEDDED (1024 * 1024) /* the releases' own limit for a buffer behind a pointer */

/* An event that has not been fetched yet. */
struct nv_event {
	NvU32 object;
	NvU32 index;
	NvU32 info32;
};

/* One open file of a device node: the owner of RM clients. */
struct nv_file_private {
	NvU32 minor;
	NvU32 clients;
	/* A ring, protected by rm_lock. */
	NvU32 event_first;
	NvU32 event_count;
	struct nv_event events[SIM_MAX_EVENTS];
};

struct rm_object {
	struct list_head node;
	NvU32 handle;
	NvU32 parent;
	NvU32 class;
	NvU32 gpu;
	NvU64 bytes; /* of a memory object */
	NvU32 notify_index; /* of an event object */
	bool accounted; /* a device object that started accounting */
};

struct rm_client {
	struct list_head node;
	struct nv_file_private *owner;
	NvU32 handle;
	NvU32 proc_id; /* thread group id in the init namespace */
	kuid_t euid; /* of its maker */
	void *pid_info; /* struct pid *, referenced; NULL before era 1 */
	struct list_head objects;
	NvU32 object_count;
	struct sim_load load[SIM_MAX_GPUS];
};

/* One control call in flight. Handlers run with rm_lock held and see kernel copies only. */
struct rm_call {
	struct rm_client *client;
	struct rm_object *object; /* NULL: the client itself */
	NvU32 gpu;
	NvU32 cmd;
	NvU8 *params;
	NvU32 size;
	NvU8 *embedded; /* kernel copy of what a pointer inside the parameters points to, or NULL */
	NvU32 embedded_size;
};

/* How to find the buffer behind an embedded pointer. */
struct rm_embedded {
	NvU16 pointer; /* offset of the pointer; 0 with elem 0: none */
	NvU16 count; /* offset of the element count */
	NvU32 elem; /* bytes per element */
	NvU32 max; /* elements at most */
	bool copy_in;
	bool copy_out_not; /* the caller's buffer is only read */
	bool lone; /* a pointer without a count, or a count without a pointer, is refused */
};

struct rm_control_entry {
	NvU32 cmd;
	NvU32 size; /* RM_ANY_SIZE for answers whose size differs by client release */
	NV_STATUS (*handler)(struct rm_call *call);
	const struct rm_embedded *embedded;
};

#define RM_ANY_SIZE 0xffffffffu

static inline NvU32 get32(const NvU8 *p, NvU32 off)
{
	return *(const NvU32 *)(p + off);
}

static inline void put32(NvU8 *p, NvU32 off, NvU32 v)
{
	*(NvU32 *)(p + off) = v;
}

static inline NvU64 get64(const NvU8 *p, NvU32 off)
{
	return *(const NvU64 *)(p + off);
}

static inline void put64(NvU8 *p, NvU32 off, NvU64 v)
{
	*(NvU64 *)(p + off) = v;
}

/* knobs.c */
extern unsigned int sim_gpus;
extern bool sim_debug;
extern bool sim_client_allocs;
extern bool sim_ghosts;
extern bool sim_bypass;
extern bool sim_overcounts;
extern bool sim_guarded;
extern unsigned int sim_stale;

/* nv-proc.c */
int nv_proc_init(void);
void nv_proc_exit(void);

/* os-interface.c: names of the real driver; the era determines which exist */
NV_STATUS os_memcpy_from_user(void *to, const void *from, NvU32 n);
NV_STATUS os_memcpy_to_user(void *to, const void *from, NvU32 n);
#if SIM_HAS_NS_PID
void *os_get_pid_info(void);
void os_put_pid_info(void *pid_info);
NV_STATUS os_find_ns_pid(void *pid_info, NvU32 *ns_pid);
#endif
#if SIM_HAS_INIT_NS
NvBool os_is_init_ns(void);
#endif

/* rm.c */
NV_STATUS rm_ioctl(void *sp, void *nv, void *nvfp, NvU32 cmd, void *arg, NvU32 size);

/* rm-find.c */
extern struct mutex rm_lock;
extern struct list_head rm_clients; /* in order of creation */
struct rm_client *rm_find_client(struct nv_file_private *nvfp, NvU32 handle);
struct rm_object *rm_find_object(struct rm_client *client, NvU32 handle);
bool rm_client_on_gpu(struct rm_client *client, NvU32 gpu);
NV_STATUS rm_client_pid(struct rm_client *client, NvU32 *pid);

/* rm-client.c */
NV_STATUS rm_alloc(struct nv_file_private *nvfp, NvU8 *arg, NvU32 size);
NV_STATUS rm_free(struct nv_file_private *nvfp, NvU8 *arg, NvU32 size);
void rm_close(struct nv_file_private *nvfp);
NV_STATUS rm_set_load(struct nv_file_private *nvfp, struct sim_args *args);

/* rm-control.c */
NV_STATUS rm_control(struct nv_file_private *nvfp, NvU8 *arg, NvU32 size);

/* ctrl-*.c: handler tables end with a zero cmd entry whose handler is NULL */
extern const struct rm_control_entry ctrl_info_table[];
extern const struct rm_control_entry ctrl_pids_table[];
extern const struct rm_control_entry ctrl_gpumon_table[];
extern const struct rm_control_entry ctrl_acct_table[];
extern const struct rm_control_entry ctrl_session_table[];
extern const struct rm_control_entry ctrl_debug_table[];

NvU32 sim_gpu_id(NvU32 gpu);
bool sim_gpu_from_id(NvU32 id, NvU32 *gpu);

NvU64 pids_client_memory(NvU32 gpu, NvU32 pid, NvU32 *gi, NvU32 *ci);

NV_STATUS gpumon_set_ring(NvU32 gpu, const struct sim_ring_slot *slots, NvU32 count);
void gpumon_client_gone(struct rm_client *client);
void gpumon_exit(void);

void acct_device_opened(struct rm_client *client, struct rm_object *device);
void acct_device_closed(struct rm_client *client, struct rm_object *device);
void acct_engine_used(struct rm_client *client, NvU32 gpu);
void acct_memory_changed(struct rm_client *client, NvU32 gpu);
void acct_utilisation_changed(struct rm_client *client, NvU32 gpu);
void acct_exit(void);

void session_object_gone(struct rm_object *object);
NV_STATUS session_error_happened(struct nv_file_private *nvfp, NvU32 client);

void debug_exit(void);

/* rm-event.c */
void event_limits_reached(NvU32 gpu);
void event_happened(NvU32 gpu, NvU32 index, NvU32 info32);
NV_STATUS event_data(struct nv_file_private *nvfp, NvU8 *arg, NvU32 size);

/* fault.c */
void fault_before(NvU32 cmd); /* a control's number, or NV_ESC_RM_GET_EVENT_DATA */
void fault_at_exit(void);

#endif
