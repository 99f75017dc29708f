// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Makes calls that need no GPU: those that a driver answers for a root client alone, and invalid ones. A seed determines the calls. nvroot
 * prints a line for each, so that two runs can be compared byte for byte.
 *
 * Prints `KIND NUMBER SIZE ret R status HEX bytes HASH`. The hash is of all memory that the call could reach, in whole areas. Handles that the
 * driver chose appear by age, not by value. Exit 0: every call was made; 2: usage, or no device.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <sys/mman.h>

#include "nvrandom.h"
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
	if (random_below(3)) {
		unsigned i;

		for (i = 0; i < 16; i++)
			memcpy(area + 4 * random_below(64), &(uint32_t){ random_below(2) ? random_below(512) : random_u32() }, 4);
	}
}

/* The driver numbers the handles of all callers together, so a handle's value depends on other callers. */
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

static void print_call(const char *kind, uint32_t number, uint32_t size, int rc, uint32_t status)
{
	uint64_t hash = hash_of(hash_of(hash_of(0xcbf29ce484222325, argument), parameters), beyond);

	printf("%s %x %u ret %d status %x bytes %016llx\n", kind, number, size, rc, status, (unsigned long long)hash);
}

/* Sends the first `size` bytes of the argument, directly or by the escape for large ones. */
static int send(int fd, unsigned number, unsigned size)
{
	struct nv_xfer_arg xfer = { number, size, (uintptr_t)argument };
	int rc = size >= 4096 || !random_below(4) ? ioctl(fd, nv_ioc(211, sizeof(xfer), NULL), &xfer) :
						   ioctl(fd, nv_ioc(number, size, NULL), argument);

	return rc < 0 ? -errno : rc;
}

/* Frees a client, and makes another in its place. */
static void renew_client(int fd)
{
	static const uint32_t classes[] = { 0, 1, 0x41 };
	unsigned place = random_below(CLIENTS);
	struct nv_alloc_arg arg = { .class = classes[random_below(3)] };
	int rc;

	if (clients[place]) {
		struct nv_free_arg old = { clients[place], clients[place], clients[place], 0 };

		memcpy(argument, &old, sizeof(old));
		rc = send(fd, FREE, sizeof(old));
		print_call("free", 0, sizeof(old), rc, get32(argument, 12));
		clients[place] = 0;
		fill(argument);
	}
	memcpy(argument, &arg, sizeof(arg));
	rc = send(fd, ALLOC, sizeof(arg));
	clients[place] = rc || get32(argument, 28) ? 0 : get32(argument, 8);
	print_call("alloc", arg.class, sizeof(arg), rc, get32(argument, 28));
}

/* What the root client answers: system, GPUs by their identifiers, events, clients, access, accounting. */
static void control(int fd)
{
	static const uint32_t telling[] = { 4, 8, 12, 16, 24, 32, 72, 128, 132, 516, 2436, 4096, 16012 };
	struct nv_control_arg arg = { .params = (uintptr_t)parameters };
	int rc;

	arg.client = random_below(32) ? clients[random_below(CLIENTS)] : random_u32();
	arg.object = arg.client;
	arg.cmd = random_below(16) ? random_below(16) << 8 | random_below(random_below(4) ? 64 : 256) : random_u32();
	arg.size = random_below(3) ? telling[random_below(sizeof(telling) / sizeof(telling[0]))] : random_below(AREA);
	arg.flags = random_below(16) ? 0 : random_u32();
	memcpy(argument, &arg, sizeof(arg));
	rc = send(fd, CONTROL, sizeof(arg));
	print_call("control", arg.cmd, arg.size, rc, get32(argument, 28));
}

static void escape(int fd)
{
	unsigned number = random_below(2) ? 200 + random_below(20) : 0x20 + random_below(0x60);
	unsigned size = random_below(4) ? 4 * random_below(64) : random_below(AREA - 1);

	/* These requests change the driver's state, so later answers would depend on the order of callers. */
	if (number == 201 || number == 206 || number == 0x27 || number == 0x4e || number == 0x54)
		number = 210;
	print_call("escape", number, size, send(fd, number, size), 0);
}

int main(int argc, char **argv)
{
	unsigned long left;
	int fd;

	if (argc != 3 || !(random_state = strtoull(argv[1], NULL, 0)) || !(left = strtoul(argv[2], NULL, 0))) {
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
		if (!random_below(4)) {
			uint64_t pointer = (uintptr_t)beyond;

			memcpy(parameters + 8 * random_below(4), &pointer, 8);
		}
		switch (random_below(8)) {
		case 0: renew_client(fd); break;
		case 1: escape(fd); break;
		default: control(fd);
		}
	}
	return 0;
}
