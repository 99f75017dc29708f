// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What one ioctl costs, in a guest whose clock counts instructions (QEMU, -icount shift=0: a nanosecond is an instruction).
 *
 * usage: ioctl_cost          an ioctl on another device, and an RM control without PIDs
 *        ioctl_cost ROWS     GET_PIDS and GET_PID_INFO, while exactly ROWS processes hold the GPU
 * Prints `WHAT N`, N the least of many runs in instructions; for lists also `RIGHT/ROWS`: how many of the listed PIDs exist for
 * the caller, and how many of the processes asked for have memory. Knows nothing of engines: it says what it is told.
 * Exits 1 if the list has another length than ROWS: such figures would compare unlike things.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <time.h>

#include "../sim/nvrm.h"

#define GET_PIDS 0x2080018d
#define GET_PID_INFO 0x2080018e
#define GET_ARCH_INFO 0x20801701
#define LIST_ENTRIES 950
#define INFO_ENTRIES 200 /* that one look-up takes at most; for more rows it is called again */
#define INFO_STRIDE 72
#define INFO_MEMORY 16
#define CHUNKS ((LIST_ENTRIES + INFO_ENTRIES - 1) / INFO_ENTRIES)

struct list {
	uint32_t kind, class, count, pid[LIST_ENTRIES];
};

struct info {
	uint32_t count, unused;
	uint8_t entry[INFO_ENTRIES][INFO_STRIDE];
};

static int device;
static struct nv_session session;
static struct list list;
static struct info info[CHUNKS];

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void control(uint32_t cmd, void *params, uint32_t size)
{
	uint32_t status;
	int rc = nv_control(device, session.client, session.subdevice, cmd, params, size, NULL, &status);

	nv_must("a control", rc ? rc : (int)status);
}

/* Least of 200 runs, or of fewer once they have taken 300 million instructions, but of no fewer than 5. */
#define LEAST(call) ({ \
	uint64_t least = UINT64_MAX, all = 0, began, took; \
	for (int run = 0; run < 200 && (run < 5 || all < 300000000); run++) { \
		began = now(); \
		call; \
		took = now() - began; \
		all += took; \
		if (took < least) \
			least = took; \
	} \
	least; \
})

static uint64_t clock_cost;

static unsigned long long net(uint64_t cost)
{
	return cost - clock_cost;
}

static void look_up(uint32_t rows)
{
	for (uint32_t chunk = 0; chunk * INFO_ENTRIES < rows; chunk++)
		control(GET_PID_INFO, &info[chunk], sizeof(info[chunk]));
}

static uint32_t existing(uint32_t rows)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < rows; i++)
		found += list.pid[i] && (kill(list.pid[i], 0) == 0 || errno == EPERM);
	return found;
}

static uint32_t answered(uint32_t rows)
{
	uint32_t found = 0;
	uint64_t memory;

	for (uint32_t i = 0; i < rows; i++) {
		memcpy(&memory, &info[i / INFO_ENTRIES].entry[i % INFO_ENTRIES][INFO_MEMORY], sizeof(memory));
		found += memory != 0;
	}
	return found;
}

static void without_pids(void)
{
	static uint8_t arch[16];
	int null = open("/dev/null", O_RDWR);

	nv_check(null >= 0, "/dev/null", -errno);
	printf("other_device %llu\n", net(LEAST(ioctl(null, 0x1234, 0))));
	printf("no_pids %llu\n", net(LEAST(control(GET_ARCH_INFO, arch, sizeof(arch)))));
}

static void with_rows(uint32_t rows)
{
	unsigned long long cost;

	list.class = 0xc3c0;
	cost = net(LEAST(control(GET_PIDS, &list, sizeof(list))));
	if (list.count != rows) {
		fprintf(stderr, "%u processes listed instead of %u\n", list.count, rows);
		exit(1);
	}
	printf("get_pids_%u %llu %u/%u\n", rows, cost, existing(rows), rows);
	for (uint32_t i = 0; i < rows; i++) {
		memcpy(info[i / INFO_ENTRIES].entry[i % INFO_ENTRIES], &list.pid[i], sizeof(list.pid[i]));
		info[i / INFO_ENTRIES].count = i % INFO_ENTRIES + 1;
	}
	cost = net(LEAST(look_up(rows)));
	printf("get_pid_info_%u %llu %u/%u\n", rows, cost, answered(rows), rows);
}

int main(int argc, char **argv)
{
	uint32_t rows = argc > 1 ? atoi(argv[1]) : 0;

	if (argc > 2 || rows > LIST_ENTRIES || (argc == 2 && !rows)) {
		fprintf(stderr, "usage: ioctl_cost [ROWS], 1 to %u: the driver lists no more\n", LIST_ENTRIES);
		return 2;
	}
	device = nv_open_minor(255);
	nv_check(device >= 0, "/dev/nvidiactl", -errno);
	nv_must("client, device and subdevice", nv_session_open(device, 0, &session));
	clock_cost = LEAST((void)0);
	if (rows)
		with_rows(rows);
	else
		without_pids();
	return 0;
}
