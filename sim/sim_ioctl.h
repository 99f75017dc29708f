/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The one ioctl the simulated driver has and the real one has not: it gives an RM client the figures that
 * a GPU would have measured. Everything else a process must earn by real RM calls.
 * Shared by the module and the test programs; it knows nothing of RM controls.
 */
#ifndef SIM_IOCTL_H
#define SIM_IOCTL_H

#include <linux/types.h>

#define SIM_ESC_NR 0x77
#define SIM_IOC_TYPE 'S'

#define SIM_MAX_GPUS 8
#define SIM_ENGINES 6 /* fb, gr, nvenc, nvdec, nvjpg, nvofa */
#define SIM_RING_MAX 100
/* The page of a node at which nothing can be mapped: reading it is SIGBUS, and the mapping keeps the open file. */
#define SIM_EMPTY_MAPPING 0x6d70
#define SIM_NO_INSTANCE 0xffffffffu

enum sim_op {
	SIM_OP_LOAD = 1, /* figures of one client on one GPU; the client must belong to this open file */
	SIM_OP_RING = 2, /* hand-made utilisation ring for one GPU (count 0: back to the generated one) */
	SIM_OP_ERROR = 3, /* an RC error that this client caused goes into the journal */
	SIM_OP_LIMIT = 4, /* every client that holds memory on this GPU goes over its soft limit; one other event happens */
};

struct sim_load {
	__u64 mem; /* bytes of video memory the client holds */
	__u32 util[SIM_ENGINES]; /* hundredths of a percent, as in the driver's samples */
	__u32 enc_sessions;
	__u32 fbc_sessions;
	__u32 gi; /* MIG GPU instance, or SIM_NO_INSTANCE */
	__u32 ci; /* MIG compute instance, or SIM_NO_INSTANCE */
};

struct sim_ring_slot {
	__u64 age_us;
	struct {
		__u32 util;
		__u32 pid; /* global process id, 0xffffffff: idle */
	} engine[SIM_ENGINES];
};

struct sim_args {
	__u32 op;
	__u32 client;
	__u32 gpu;
	__u32 status; /* out: an NV_STATUS */
	struct sim_load load;
	__u64 ring; /* user pointer to struct sim_ring_slot, newest first */
	__u32 ring_count; /* SIM_OP_LIMIT: what the other event says */
	__u32 ring_rotation; /* slot index of the next write; SIM_OP_LIMIT: the other event's index */
};

#endif
