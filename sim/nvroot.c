// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A caller that needs no GPU: everything that a driver answers by its root client alone, and nonsense. What it asks follows from a seed; what
 * comes back is printed as a line for each call, so that two runs can be compared byte for byte.
 *
 * Prints `KIND NUMBER SIZE ret R status HEX bytes HASH`; the hash is of all memory that the call could reach, whole areas and not only what was
 * asked for. The output names handles that the driver chose by their age, not by their value. Exit 0: every call was made;
 * 2: usage, or no device.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <sys/mman.h>

#include "nvchance.h"
#include "nvrm.h"

#define AREA 16384
#define CLIENTS 4

enum { FREE = 0x29, CONTROL = 0x2a, ALLOC = 0x2b };

/* Memory at fixed places: its addresses are part of what is sent. */
static uint8_t *const argument = (uint8_t *)0x20000000, *const parameters = (uint8_t *)0x21000000, *const beyond = (uint8_t *)0x22000000;
static uint32_t clients[CLIENTS];

static void fill(uint8_t *area)
{
	memset(area, 0, AREA);
	if (below(3)) {
		unsigned i;

		for (i = 0; i < 16; i++)
			memcpy(area + 4 * below(64), &(uint32_t){ below(2) ? below(512) : any() }, 4);
	}
}

/* The driver numbers handles of all callers together: a handle's value says how many came before it. */
static uint64_t hash_of(uint64_t hash, const uint8_t *area)
{
	unsigned i, j;

	for (i = 0; i < AREA; i += 4) {
		uint32_t word = get32(area, i);

		for (j = 0; j < CLIENTS; j++)
			if (clients[j] && word == clients[j])
				word = 0xfeed0000 | j;
		hash = (hash ^ word) * 0x100000001b3;
	}
	return hash;
}

static void tell(const char *kind, uint32_t number, uint32_t size, int rc, uint32_t status)
{
	uint64_t hash = hash_of(hash_of(hash_of(0xcbf29ce484222325, argument), parameters), beyond);

	printf("%s %x %u ret %d status %x bytes %016llx\n", kind, number, size, rc, status, (unsigned long long)hash);
}

/* Sends the first `size` bytes of the argument, directly or by the escape for large ones. */
static int send(int fd, unsigned number, unsigned size)
{
	struct nv_xfer_arg xfer = { number, size, (uintptr_t)argument };
	int rc = size >= 4096 || !below(4) ? ioctl(fd, nv_ioc(211, sizeof(xfer), NULL), &xfer) : ioctl(fd, nv_ioc(number, size, NULL), argument);

	return rc < 0 ? -errno : rc;
}

/* A client is made in the place of another, which is freed. */
static void renew(int fd)
{
	static const uint32_t classes[] = { 0, 1, 0x41 };
	unsigned place = below(CLIENTS);
	struct nv_alloc_arg arg = { .class = classes[below(3)] };
	int rc;

	if (clients[place]) {
		struct nv_free_arg old = { clients[place], clients[place], clients[place], 0 };

		memcpy(argument, &old, sizeof(old));
		rc = send(fd, FREE, sizeof(old));
		tell("free", 0, sizeof(old), rc, get32(argument, 12));
		clients[place] = 0;
		fill(argument);
	}
	memcpy(argument, &arg, sizeof(arg));
	rc = send(fd, ALLOC, sizeof(arg));
	clients[place] = rc || get32(argument, 28) ? 0 : get32(argument, 8);
	tell("alloc", arg.class, sizeof(arg), rc, get32(argument, 28));
}

/* What the root client answers: system, GPUs by their identifiers, events, clients, access, accounting. */
static void control(int fd)
{
	static const uint32_t telling[] = { 4, 8, 12, 16, 24, 32, 72, 128, 132, 516, 2436, 4096, 16012 };
	struct nv_control_arg arg = { .params = (uintptr_t)parameters };
	int rc;

	arg.client = below(32) ? clients[below(CLIENTS)] : any();
	arg.object = arg.client;
	arg.cmd = below(16) ? below(16) << 8 | below(below(4) ? 64 : 256) : any();
	arg.size = below(3) ? telling[below(sizeof(telling) / sizeof(telling[0]))] : below(AREA);
	arg.flags = below(16) ? 0 : any();
	memcpy(argument, &arg, sizeof(arg));
	rc = send(fd, CONTROL, sizeof(arg));
	tell("control", arg.cmd, arg.size, rc, get32(argument, 28));
}

static void escape(int fd)
{
	unsigned number = below(2) ? 200 + below(20) : 0x20 + below(0x60), size = below(4) ? 4 * below(64) : below(AREA - 1);

	/* These keep what they are given, or the file itself: a later answer would depend on who came first. */
	if (number == 201 || number == 206 || number == 0x27 || number == 0x4e || number == 0x54)
		number = 210;
	tell("escape", number, size, send(fd, number, size), 0);
}

int main(int argc, char **argv)
{
	unsigned long left;
	int fd;

	if (argc != 3 || !(chance = strtoull(argv[1], NULL, 0)) || !(left = strtoul(argv[2], NULL, 0))) {
		fprintf(stderr, "usage: nvroot SEED CALLS\n");
		return 2;
	}
	fd = nv_open_minor(255);
	nv_check(fd >= 0, "nvroot: /dev/nvidiactl", -errno);
	if (mmap(argument, AREA, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ||
	    mmap(parameters, AREA, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ||
	    mmap(beyond, AREA, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
		nv_die("nvroot: mmap", -errno);
	for (; left; left--) {
		fill(argument);
		fill(parameters);
		memset(beyond, 0, AREA);
		/* What parameters may point to. */
		if (!below(4)) {
			uint64_t pointer = (uintptr_t)beyond;

			memcpy(parameters + 8 * below(4), &pointer, 8);
		}
		switch (below(8)) {
		case 0: renew(fd); break;
		case 1: escape(fd); break;
		default: control(fd);
		}
	}
	return 0;
}
