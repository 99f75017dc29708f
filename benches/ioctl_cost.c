// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What one ioctl costs, in a guest whose clock counts instructions (QEMU, -icount shift=0: a nanosecond is an instruction).
 *
 * usage: ioctl_cost LABEL [ROWS]   prints `cost LABEL WHAT N`, N the least of many runs, in instructions.
 * Without ROWS: an ioctl on another device and RM controls without PIDs. With ROWS: GET_PIDS and GET_PID_INFO, after
 * checking that the list has exactly ROWS entries, and with the look-up asking for all of them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define RM_CONTROL _IOWR('F', 0x2a, struct rm_control)
#define RM_ALLOC _IOWR('F', 0x2b, struct rm_alloc)
#define GET_PIDS 0x2080018d
#define GET_PID_INFO 0x2080018e
#define GET_ARCH_INFO 0x20801701
#define INFO_ENTRIES 200
#define INFO_STRIDE 72

struct rm_control {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t size, status;
};

struct rm_alloc {
	uint32_t root, parent, object, class;
	uint64_t params;
	uint32_t params_size, status;
};

static int device;
static uint32_t client;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint32_t alloc(uint32_t parent, uint32_t object, uint32_t class, void *params, uint32_t size)
{
	struct rm_alloc a = { client, parent, object, class, (uintptr_t)params, size, 0 };

	if (ioctl(device, RM_ALLOC, &a) || a.status) {
		fprintf(stderr, "alloc of class %#x: status %#x\n", class, a.status);
		exit(1);
	}
	return a.object;
}

static void control(uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
	struct rm_control c = { client, object, cmd, 0, (uintptr_t)params, size, 0 };

	if (ioctl(device, RM_CONTROL, &c) || c.status) {
		fprintf(stderr, "control %#x: status %#x\n", cmd, c.status);
		exit(1);
	}
}

#define LEAST(runs, call) ({ \
	uint64_t least = UINT64_MAX, began, took; \
	for (int run = 0; run < (runs); run++) { \
		began = now(); \
		call; \
		took = now() - began; \
		if (took < least) \
			least = took; \
	} \
	least; \
})

static void report(const char *label, const char *what, uint64_t cost)
{
	static uint64_t clock_cost;

	if (!clock_cost)
		clock_cost = LEAST(200, (void)0);
	printf("cost %s %s %llu\n", label, what, (unsigned long long)(cost - clock_cost));
}

int main(int argc, char **argv)
{
	static uint8_t pids[3812], info[8 + INFO_ENTRIES * INFO_STRIDE], arch[16];
	uint32_t device_params[14] = { 0 }, sub_params[1] = { 0 };
	uint32_t rm_device, subdevice, rows, listed, entry;
	char what[32];
	int null;

	if (argc < 2)
		return 2;
	device = open("/dev/nvidiactl", O_RDWR);
	null = open("/dev/null", O_RDWR);
	if (device < 0 || null < 0)
		fail("open");
	client = alloc(0, 0, 0, NULL, 0);
	rm_device = alloc(client, 0xcaf00001, 0x80, device_params, sizeof(device_params));
	subdevice = alloc(rm_device, 0xcaf00002, 0x2080, sub_params, sizeof(sub_params));
	if (argc == 2) {
		report(argv[1], "other_device", LEAST(2000, ioctl(null, 0x1234, 0)));
		report(argv[1], "no_pids", LEAST(2000, control(subdevice, GET_ARCH_INFO, arch, sizeof(arch))));
		return 0;
	}
	rows = strtoul(argv[2], NULL, 0);
	memset(pids, 0, sizeof(pids));
	*(uint32_t *)pids = 0;
	*(uint32_t *)(pids + 4) = 0xc3c0;
	control(subdevice, GET_PIDS, pids, sizeof(pids));
	listed = *(uint32_t *)(pids + 8);
	if (listed != rows) {
		fprintf(stderr, "%u processes listed instead of %u\n", listed, rows);
		return 1;
	}
	snprintf(what, sizeof(what), "get_pids_%u", rows);
	report(argv[1], what, LEAST(200, control(subdevice, GET_PIDS, pids, sizeof(pids))));
	if (rows > INFO_ENTRIES)
		return 0;
	memset(info, 0, sizeof(info));
	*(uint32_t *)info = rows;
	for (entry = 0; entry < rows; entry++)
		memcpy(info + 8 + entry * INFO_STRIDE, pids + 12 + entry * 4, 4);
	snprintf(what, sizeof(what), "get_pid_info_%u", rows);
	report(argv[1], what, LEAST(200, control(subdevice, GET_PID_INFO, info, sizeof(info))));
	return 0;
}
