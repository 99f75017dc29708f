/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The only ioctl of the simulated driver that the real one lacks: sets the figures of an RM client that a GPU would measure. All else is made by
 * real RM calls. The module and the test programs share this file.
 */
#ifndef SIM_IOCTL_H
#define SIM_IOCTL_H

#include <linux/types.h>

#define SIM_ESC_NR 0x77
#define SIM_IOC_TYPE 'S'

#define SIM_MAX_GPUS 8
#define SIM_ENGINES 6 /* fb, gr, nvenc, nvdec, nvjpg, nvofa */
#define SIM_RING_MAX 100
/* The page of a node at which nothing can be mapped: a read causes SIGBUS, and the mapping holds the open file. */
#define SIM_EMPTY_MAPPING 0x6d70
#define SIM_NO_INSTANCE 0xffffffffu

enum sim_op {
	SIM_OP_LOAD = 1, /* figures of one client on one GPU; the client must belong to this open file */
	SIM_OP_RING = 2, /* hand-made utilisation ring for one GPU (count 0: back to the generated one) */
	SIM_OP_ERROR = 3, /* adds an RC error of this client to the journal */
	SIM_OP_LIMIT = 4, /* each client with memory on this GPU exceeds its soft limit; one other event occurs */
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
	__u32 ring_count; /* SIM_OP_LIMIT: the word of the other event */
	__u32 ring_rotation; /* slot index of the next write; SIM_OP_LIMIT: the other event's index */
};

#endif
