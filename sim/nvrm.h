/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The user side of the RM ioctls for the test programs: open, alloc, control, and the simulator's private call.
 * Works for 32-bit callers too (the argument has the same layout).
 */
#ifndef NVRM_H
#define NVRM_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "sim_ioctl.h"

/* Whole pages on every kernel: arm64's are of 4, 16 or 64 KiB. */
#if defined(__x86_64__) || defined(__i386__)
#define PAGE 4096
#else
#define PAGE 65536
#endif

/* A pause instruction for a busy loop. */
static inline void breathe(void)
{
#ifdef __x86_64__
	__asm__ volatile("pause");
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline void nv_die(const char *what, int rc)
{
	if (rc < 0)
		fprintf(stderr, "%s: %s\n", what, strerror(-rc));
	else
		fprintf(stderr, "%s: status 0x%x\n", what, rc);
	exit(2);
}

/* Ends the program if the condition is false. */
#define nv_check(holds, what, rc)          \
	do {                               \
		if (!(holds))              \
			nv_die(what, rc);  \
	} while (0)

static inline void nv_must(const char *what, int rc)
{
	nv_check(!rc, what, rc);
}

static inline uint32_t get32(const uint8_t *p, unsigned off)
{
	uint32_t v;

	memcpy(&v, p + off, 4);
	return v;
}

static inline uint64_t get64(const uint8_t *p, unsigned off)
{
	uint64_t v;

	memcpy(&v, p + off, 8);
	return v;
}

static inline void put32(uint8_t *p, unsigned off, uint32_t v)
{
	memcpy(p + off, &v, 4);
}

static inline void put64(uint8_t *p, unsigned off, uint64_t v)
{
	memcpy(p + off, &v, 8);
}

struct nv_control_arg {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t size, status;
};

struct nv_alloc_arg {
	uint32_t root, parent, handle, class;
	uint64_t params;
	uint32_t params_size, status;
};

struct nv_event_arg {
	uint64_t data;
	uint32_t more, status;
};

struct nv_free_arg {
	uint32_t root, parent, object, status;
};

struct nv_xfer_arg {
	uint32_t cmd, size;
	uint64_t ptr;
};

/* The form in which a control is sent; all zero is the usual form. */
struct nv_way {
	uint32_t flags;
	int type; /* ioctl type byte, 0: 'F' */
	int dir; /* ioctl direction bits plus one, 0: read and write */
	int xfer;
};

static inline unsigned nv_ioc(unsigned nr, unsigned size, const struct nv_way *way)
{
	unsigned type = way && way->type ? way->type : 'F';
	unsigned dir = way && way->dir ? way->dir - 1u : _IOC_READ | _IOC_WRITE;

	return _IOC(dir, type, nr, size);
}

static inline int nv_open_minor(unsigned minor)
{
	char path[64];
	int fd;

	if (minor == 255)
		strcpy(path, "/dev/nvidiactl");
	else
		snprintf(path, sizeof(path), "/dev/nvidia%u", minor);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		if (mknod(path, S_IFCHR | 0666, makedev(195, minor)) == 0)
			chmod(path, 0666);
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	return fd;
}

/* One escape, wrapped if `xfer` is set. Returns the ioctl's result, or a negative errno; the RM's status is in the argument. */
static inline int nv_escape(int fd, unsigned nr, void *arg, unsigned size, const struct nv_way *way)
{
	struct nv_xfer_arg xfer = { nr, size, (uintptr_t)arg };
	bool wrapped = way && way->xfer;
	int rc = ioctl(fd, wrapped ? nv_ioc(211, sizeof(xfer), way) : nv_ioc(nr, size, way), wrapped ? &xfer : arg);

	return rc < 0 ? -errno : rc;
}

static inline int nv_control_send(int fd, struct nv_control_arg *arg, const struct nv_way *way)
{
	return nv_escape(fd, 0x2a, arg, sizeof(*arg), way);
}

static inline int nv_control(int fd, uint32_t client, uint32_t object, uint32_t cmd, void *params, uint32_t size,
			     const struct nv_way *way, uint32_t *status)
{
	struct nv_control_arg arg = { client, object, cmd, way ? way->flags : 0, (uintptr_t)params, size, 0xdead };
	int rc = nv_control_send(fd, &arg, way);

	*status = arg.status;
	return rc;
}

/* Returns an NV_STATUS, or a negative errno; the new handle through *handle. */
static inline int nv_alloc(int fd, uint32_t root, uint32_t parent, uint32_t *handle, uint32_t class, void *params,
			   uint32_t size)
{
	struct nv_alloc_arg arg = { root, parent, *handle, class, (uintptr_t)params, size, 0 };
	int rc = nv_escape(fd, 0x2b, &arg, sizeof(arg), NULL);

	if (rc < 0)
		return rc;
	*handle = arg.handle;
	return arg.status;
}

static inline int nv_free(int fd, uint32_t root, uint32_t object)
{
	struct nv_free_arg arg = { root, root, object, 0 };
	int rc = nv_escape(fd, 0x29, &arg, sizeof(arg), NULL);

	return rc < 0 ? rc : (int)arg.status;
}

static inline int nv_sim(int fd, struct sim_args *args)
{
	if (ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, SIM_IOC_TYPE, SIM_ESC_NR, sizeof(*args)), args) < 0)
		return -errno;
	return args->status;
}

/* Fetches the next event into `data`. Returns an NV_STATUS, or a negative errno. */
static inline int nv_event_data(int fd, void *data, const struct nv_way *way)
{
	struct nv_event_arg arg = { (uintptr_t)data, 0, 0xdead };
	int rc = nv_escape(fd, 0x52, &arg, sizeof(arg), way);

	return rc < 0 ? rc : (int)arg.status;
}

/* Makes an event object beneath a subdevice: the driver keeps the subdevice's events of this index for this open file. */
static inline int nv_subscribe(int fd, uint32_t root, uint32_t subdevice, uint32_t index)
{
	uint32_t params[6] = { root, subdevice, 0x79, index }, handle = 0;

	return nv_alloc(fd, root, subdevice, &handle, 0x79, params, sizeof(params));
}

/* The driver's ID of a GPU, for controls of the client object. 0 if there is no such GPU. */
static inline uint32_t nv_gpu_id(int fd, uint32_t client, unsigned gpu)
{
	uint32_t ids[32] = { 0 }, status;
	int rc = nv_control(fd, client, client, 0x201, ids, sizeof(ids), NULL, &status);

	return rc || status || gpu >= 32 || ids[gpu] == 0xffffffff ? 0 : ids[gpu];
}

/* Whether the driver is the simulated one, which has a call that the real one refuses. */
static inline int nv_is_simulated(int fd)
{
	struct sim_args args = { 0 };

	return nv_sim(fd, &args) >= 0;
}

/* A new object of a client, whose class needs no parameters. */
static inline uint32_t nv_object(int fd, uint32_t root, uint32_t parent, uint32_t class, const char *what)
{
	uint32_t handle = 0;

	nv_must(what, nv_alloc(fd, root, parent, &handle, class, NULL, 0));
	return handle;
}

/* One client with a device and a subdevice on one GPU, as every user of the driver has. */
struct nv_session {
	uint32_t client, device, subdevice, instance;
};

#define MOST_GPUS 32

static inline int nv_session_open(int fd, unsigned gpu, struct nv_session *s)
{
	struct {
		uint32_t device_id, rest[15];
	} device = { gpu, { 0 } };
	uint32_t sub[1] = { 0 };
	int rc;

	memset(s, 0, sizeof(*s));
	rc = nv_alloc(fd, 0, 0, &s->client, 0x41, NULL, 0);
	if (!rc) {
		uint32_t id[33] = { nv_gpu_id(fd, s->client, gpu) };
		uint32_t status;
		int i;

		for (i = 1; i < 32; i++)
			id[i] = 0xffffffff;
		nv_control(fd, s->client, s->client, 0x215, id, sizeof(id), NULL, &status);
		rc = nv_alloc(fd, s->client, s->client, &s->device, 0x80, &device, sizeof(device));
		/* The first GPU's number may not be 0: a GPU may have failed or belong to another container. */
		while (rc > 0 && !gpu && ++device.device_id < MOST_GPUS) {
			s->device = 0;
			rc = nv_alloc(fd, s->client, s->client, &s->device, 0x80, &device, sizeof(device));
		}
		s->instance = device.device_id;
	}
	if (!rc)
		rc = nv_alloc(fd, s->client, s->device, &s->subdevice, 0x2080, sub, sizeof(sub));
	return rc;
}

#endif
