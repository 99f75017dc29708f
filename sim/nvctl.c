// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The caller of the guest stories: sends one control in any form that the ioctl allows, and prints the answer, one row per line. Also has
 * racing callers (race, swap), a caller that compares each answer (spin), and callers that fetch events as a hostile or an unlucky program
 * does (event-memory, event-swap, event-secret).
 * A control's first line is `ret=<int> status=0x<hex>` (and `count=<n>` for lists). Exit 0: ioctl 0 and status 0; 1: the driver refused, or a
 * check failed; 2: usage or no device.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <getopt.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "nvmemory.h"

#define GET_PIDS 0x2080018d
#define GET_PID_INFO 0x2080018e
#define FB_INFO_V2 0x20801303 /* harmless, of any size here: the cmd racer alternates with it */
#define PIDS_SIZE 3812
#define PIDS_MAX 950

static struct {
	unsigned gpu, size, class;
	struct nv_way way;
	int old, on_thread, brief, wild, error, room;
	uint64_t params;
} opt = { .class = 0xc3c0, .room = 512 };

static int ctl = -1;
static struct nv_session session;
static uint8_t buf[65536];

static void usage(FILE *to)
{
	fputs("usage: nvctl [OPTION...] COMMAND\n"
	      "  pids                    GET_PIDS: `pid N`\n"
	      "  pidinfo PID...          `pid N result R mem BYTES gi G ci C`\n"
	      "  gpumon                  `slot I time NS engine E pid N sub S util U ptr HEX` for engines that are not idle\n"
	      "  gpumon1                 the same with the old control, which has a pointer\n"
	      "  acct-clear              clears the accounting data\n"
	      "  acct-pids               `pid N`\n"
	      "  acct-info PID           `pid N gpu U fb U maxfb BYTES start US end US`\n"
	      "  acct-info2 PID          the same with the control of 610\n"
	      "  enc1|enc2               `pid N sub S session I fps F`\n"
	      "  fbc                     `pid N sub S session I fps F`\n"
	      "  hwpm                    `pid N count C global G`\n"
	      "  rc                      `pid N flags F` of a report of any process; --error causes one first\n"
	      "  limits [WORD]           every client exceeds its memory limit, another event carries WORD: `index N pid P`, `index 5 word W`\n"
	      "  allocs                  `pid N client HEX`\n"
	      "  debug LENGTH [SEED]     writes LENGTH bytes to memory with the debugger's object and reads them again: `changed N first OFFSET`\n"
	      "  nowhere                 a control with its argument at an unmapped address\n"
	      "  elsewhere               a control on descriptors that are not the driver's control device\n"
	      "  memory                  pids, with argument or parameters in memory of each kind, and across its edges\n"
	      "  stall WHAT SECONDS      a call with its argument, params or table on a page that stays missing: `stalls`, then nothing\n"
	      "  raw CMD SIZE [HEX]      `params HEX`; HEX `-` reads bytes from standard input; --object selects the object\n"
	      "  ring [SLOT...]          sets the samples, newest first; SLOT is AGE_MS,PID/UTIL,... with one PID/UTIL per engine,\n"
	      "                          `-` if idle; without SLOT: the generated samples again\n"
	      "  spin SECONDS [PID... [or PID...]...]\n"
	      "                          repeats GET_PIDS; each answer must equal one of these lists of numbers\n"
	      "  starve IDLE BUSY SECONDS\n"
	      "                          IDLE threads at SCHED_IDLE beside BUSY threads that use every processor\n"
	      "  race MODE SECONDS       pids, while threads change the argument; MODE cmd|ptr|size|all|xfer|read: `saw N` for each\n"
	      "                          distinct number that was ever in a result buffer\n"
	      "  swap MODE SECONDS [CALLS]\n"
	      "                          pids, at least CALLS times, while a thread changes, MODE: dup2 (the descriptor's file), close\n"
	      "                          (the descriptor), number (control and size), all (these and the parameters); `saw N` as for race\n"
	      "  secret                  pids, with its argument in memory that no other process can read (memfd_secret)\n"
	      "  event-memory            fetches memory-limit events with event or argument in memory of each kind:\n"
	      "                          `event|argument KIND ret=R status=S got=G left=N`\n"
	      "  event-swap MODE CALLS   fetches events while a thread changes, MODE: dup2, close (as for swap), where (the event's address),\n"
	      "                          request (the wrapper's request: 0x52 or an invalid one); `saw N` for each process in an event\n"
	      "  event-secret            fetches an event with the argument in memory of memfd_secret\n"
	      "  event-poll CALLS        fetches without a waiting event: `ns N` for each call\n"
	      "  x32                     pids, by the x32 number of ioctl\n"
	      "  wide                    makes no call: has the largest possible descriptor table, prints `ready PID`, and runs until\n"
	      "                          standard input closes\n"
	      "  crowd N                 200 lookups of a process, and of one with N ended threads that are still traced:\n"
	      "                          `usual NS crowd NS`, the shortest of ten tries each\n"
	      "options: --gpu N --size N --flags HEX --type HEX --dir 0..3 --xfer --class HEX --old (R418 numbers)\n"
	      "         --object client|device|sub|profiler|HEX --threads N\n"
	      "         --params HEX (the address of the parameters; prints no rows) --on-thread (a second thread makes the call)\n"
	      "         --raced pids|fbc (race: the control) --client HEX (another client's handle)\n"
	      "         --as UID (becomes this user after making client and objects)\n"
	      "         --room N (gpumon1: samples; enc1, enc2: sessions, 0 requests their count)\n"
	      "         --fail-nth N (the call's Nth allocation or copy fails; the first line ends in injected=0 or 1)\n"
	      "         --own-files (a second thread with its own descriptor table opens the driver and makes the call)\n"
	      "         --as-thread UID (only the second thread becomes this user)\n"
	      "         --brief (spin: a new thread makes each call and ends)\n",
	      to);
}

static const char *object_name = NULL;
static unsigned threads = 2, client, fail_nth;
static int user = -1, thread_user = -1, own_files;

static void open_session(void)
{
	int rc;

	ctl = nv_open_minor(255);
	nv_check(ctl >= 0, "nvctl: /dev/nvidiactl", -errno);
	/* The real driver makes a device object only for a process that has the GPU's node open. It stays open. */
	nv_open_minor(opt.gpu);
	rc = nv_session_open(ctl, opt.gpu, &session);
	nv_must("nvctl: client, device and subdevice", rc);
}

/* The kernel fails this task's Nth allocation or copy from here on (Documentation/fault-injection, fail-nth). */
static int inject(void)
{
	int fd = fail_nth ? open("/proc/self/fail-nth", O_RDWR) : -1;

	if (fail_nth && (fd < 0 || dprintf(fd, "%u", fail_nth) < 0))
		nv_die("nvctl: /proc/self/fail-nth", -errno);
	return fd;
}

/* Whether the kernel injected the failure. If it did not, the failure hits the read below, or a write, which is repeated. */
static bool injected(int fd)
{
	char left[16] = "1";
	bool happened = pread(fd, left, sizeof(left) - 1, 0) > 0 && atoi(left) == 0;

	while (write(fd, "0", 1) != 1)
		;
	close(fd);
	return happened;
}

/* Sends and prints the first line; list_off: offset of a count to print, or -1. Returns 0 when the driver accepted. */
static int send_and_print(uint32_t object, uint32_t cmd, void *params, uint32_t size, int list_off)
{
	uint32_t status;
	bool failed;
	int rc, fault;

	if (opt.wild)
		params = (void *)(uintptr_t)opt.params;
	fault = inject();
	rc = nv_control(ctl, session.client, object, cmd, params, opt.size ? opt.size : size, &opt.way, &status);
	failed = fault >= 0 && injected(fault);

	printf("ret=%d status=0x%x", rc, status);
	if (list_off >= 0 && !opt.wild)
		printf(" count=%u", rc || status ? 0 : get32(params, list_off));
	if (fault >= 0)
		printf(" injected=%d", failed);
	printf("\n");
	return rc || status;
}

/* An RM control whose argument is at an unmapped address. */
static int cmd_nowhere(void)
{
	int rc = nv_control_send(ctl, (struct nv_control_arg *)(uintptr_t)0x1000, &opt.way);

	printf("ret=%d status=0x0\n", rc);
	return rc != 0;
}

/* Sends a control on descriptors that are not the driver's control device. */
static int cmd_elsewhere(void)
{
	int pipes[2] = { -1, -1 }, pair[2] = { -1, -1 }, closed = dup(0);
	struct {
		const char *name;
		int fd;
	} them[] = {
		{ "null", open("/dev/null", O_RDWR) },	{ "file", open("/proc/self/status", O_RDONLY) },
		{ "folder", open("/", O_RDONLY) },	{ "path", open("/dev/nvidiactl", O_PATH) },
		{ "event", eventfd(0, 0) },		{ "gpu", nv_open_minor(opt.gpu) },
		{ "pipe", -1 },				{ "socket", -1 },
		{ "closed", closed },			{ "none", -1 },
		{ "beyond", 1 << 20 },
	};
	unsigned i;

	if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		nv_die("nvctl: pipe and socket", -errno);
	them[6].fd = pipes[0];
	them[7].fd = pair[0];
	close(closed);
	for (i = 0; i < sizeof(them) / sizeof(them[0]); i++) {
		uint32_t status;
		int rc;

		memset(buf, 0, PIDS_SIZE);
		put32(buf, 4, opt.class);
		rc = nv_control(them[i].fd, session.client, session.subdevice, GET_PIDS, buf, PIDS_SIZE, &opt.way, &status);
		printf("%s ret=%d status=0x%x count=%u\n", them[i].name, rc, status, get32(buf, 8));
	}
	return 0;
}

#define HEAD 16 /* bytes of a block before the page edge, for kinds with an edge */

/* arm64 kernels accept tagged addresses from a process that enabled them; x86 kernels accept none (tagged-address-abi.rst). */
static void take_tags(void)
{
#ifdef __aarch64__
	if (prctl(PR_SET_TAGGED_ADDR_CTRL, PR_TAGGED_ADDR_ENABLE, 0, 0, 0))
		nv_die("nvctl: tagged addresses", -errno);
#endif
}

static uintptr_t tagged(const struct kind *kind, const void *at)
{
	return (uintptr_t)(kind->tag << 56 | (uintptr_t)at);
}

/*
 * Requests the list with its parameters, then its argument, in memory of each kind. Prints the status, and whether anything was written.
 * Across an edge the kernel may or may not write the part before it: such parameters are not checked.
 */
static int cmd_memory(void)
{
	unsigned i;

	take_tags();
	memset(buf, 0, PIDS_SIZE);
	put32(buf, 4, opt.class);
	for (i = 0; i < KINDS; i++) {
		struct nv_control_arg arg = { session.client, session.subdevice, GET_PIDS, opt.way.flags, 0, PIDS_SIZE, 0xdead };
		unsigned char params[PIDS_SIZE], *at = placed(&kinds[i], buf, PIDS_SIZE, HEAD);
		int rc;

		arg.params = tagged(&kinds[i], at);
		rc = nv_control_send(ctl, &arg, &opt.way);
		printf("params %s ret=%d status=0x%x written=%d\n", kinds[i].name, rc, arg.status,
		       !kinds[i].at_edge && kinds[i].first != PROT_NONE && get32(at, 8) != 0);

		memcpy(params, buf, PIDS_SIZE);
		arg.params = (uintptr_t)params;
		arg.status = 0xdead;
		at = placed(&kinds[i], &arg, sizeof(arg), HEAD);
		rc = nv_control_send(ctl, (struct nv_control_arg *)tagged(&kinds[i], at), &opt.way);
		printf("argument %s ret=%d status=0x%x written=%d\n", kinds[i].name, rc,
		       kinds[i].second == GONE || kinds[i].second == PROT_NONE ? 0 : get32(at, 28), get32(params, 8) != 0);
	}
	return 0;
}

static int cmd_stall(int n, char **args)
{
	uint32_t status, params[4] = { 0 };
	uint64_t pointer;
	void *page;
	int unused;

	nv_check(n == 2, "nvctl: stall wants WHAT SECONDS", -EINVAL);
	/* It stays missing for every task that touches it, until this process ends. */
	page = missing_memory(65536, 65536, &unused);
	pointer = (uintptr_t)page;
	alarm(strtoul(args[1], NULL, 0));
	printf("stalls\n");
	fflush(stdout);
	if (!strcmp(args[0], "argument"))
		return nv_control_send(ctl, page, &opt.way);
	if (!strcmp(args[0], "params"))
		return nv_control(ctl, session.client, session.subdevice, GET_PIDS, page, PIDS_SIZE, &opt.way, &status);
	if (strcmp(args[0], "table"))
		nv_die("nvctl: WHAT is argument, params or table", -EINVAL);
	params[0] = 512;
	memcpy(params + 2, &pointer, sizeof(pointer));
	return nv_control(ctl, session.client, session.subdevice, 0x2080016e, params, sizeof(params), &opt.way, &status);
}

static void print_list(unsigned n, unsigned first, unsigned most)
{
	unsigned i;

	for (i = 0; i < n && i < most; i++)
		printf("pid %u\n", get32(buf, first + 4 * i));
}

static int cmd_pids(void)
{
	put32(buf, 4, opt.class);
	if (send_and_print(opt.old ? session.device : session.subdevice, opt.old ? 0x00800202 : GET_PIDS, buf, PIDS_SIZE, 8))
		return 1;
	print_list(get32(buf, 8), 12, PIDS_MAX);
	return 0;
}

static int cmd_pidinfo(int n, char **pids)
{
	unsigned size = opt.size ? opt.size : 14408, stride = (size - 8) / 200;
	int i;

	if (n < 1 || n > 200 || stride < 40 || stride > 72)
		nv_die("nvctl: pidinfo wants 1 to 200 pids and a size of 8008, 9608 or 14408", -EINVAL);
	put32(buf, 0, n);
	for (i = 0; i < n; i++)
		put32(buf, 8 + i * stride, strtoul(pids[i], NULL, 0));
	if (send_and_print(opt.old ? session.device : session.subdevice, opt.old ? 0x00800203 : GET_PID_INFO, buf, size, 0))
		return 1;
	for (i = 0; i < n; i++) {
		uint8_t *e = buf + 8 + i * stride;

		printf("pid %u result 0x%x mem %llu gi %d ci %d\n", get32(e, 0), get32(e, 8), (unsigned long long)get64(e, 16),
		       stride > 40 ? (int)get32(e, stride - 4) : -1, stride > 40 ? (int)get32(e, stride - 8) : -1);
	}
	return 0;
}

static void print_samples(const uint8_t *s, unsigned slots, unsigned stride, unsigned engines, unsigned size)
{
	static const char *const names[] = { "fb", "gr", "nvenc", "nvdec", "nvjpg", "nvofa" };
	unsigned i, e;

	for (i = 0; i < slots; i++) {
		for (e = 0; e < engines; e++) {
			const uint8_t *p = s + i * stride + 8 + e * size;

			if (get32(p, 8) == 0xffffffff)
				continue;
			printf("slot %u time %llu engine %s pid %u sub %u util %u ptr %llx\n", i,
			       (unsigned long long)get64(s, i * stride), names[e], get32(p, 8), get32(p, 12), get32(p, 0),
			       size == 128 ? (unsigned long long)get64(p, 120) : 0ull);
		}
	}
}

static int cmd_gpumon(void)
{
	static const struct layout {
		unsigned size, slots, stride, engines, entry;
	} layouts[] = {
		{ 55888, 72, 776, 6, 128 }, { 50704, 72, 704, 6, 116 }, { 47216, 100, 472, 4, 116 }, { 34000, 72, 472, 4, 116 },
	};
	unsigned size = opt.size ? opt.size : 55888, i;
	const struct layout *layout = layouts;

	put32(buf, 0, 2);
	put32(buf, 4, size - 16);
	if (send_and_print(session.subdevice, 0x20802096, buf, size, -1))
		return 1;
	for (i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
		if (!i || layouts[i].size == size)
			layout = &layouts[i];
	print_samples(buf + 16, layout->slots, layout->stride, layout->engines, layout->entry);
	return 0;
}

static int cmd_gpumon1(void)
{
	uint8_t params[24] = { 2 }, *samples;
	unsigned slots = opt.room == 512 ? 100 : opt.room;

	samples = calloc(slots + 1, 472);
	nv_check(samples, "nvctl: samples", -ENOMEM);
	put32(params, 4, slots * 472);
	put64(params, 16, (uintptr_t)samples);
	if (send_and_print(session.subdevice, 0x20802083, params, sizeof(params), -1))
		return 1;
	print_samples(samples, slots, 472, 4, 116);
	return 0;
}

static int cmd_acct(const char *what, int n, char **args)
{
	put32(buf, 0, nv_gpu_id(ctl, session.client, opt.gpu));
	if (!strcmp(what, "acct-clear"))
		return send_and_print(session.client, 0xb05, buf, 8, -1);
	if (!strcmp(what, "acct-pids")) {
		if (send_and_print(session.client, 0xb04, buf, 16012, 16008))
			return 1;
		print_list(get32(buf, 16008), 8, 4000);
		return 0;
	}
	nv_check(n == 1, "nvctl: acct-info wants one pid", -EINVAL);
	put32(buf, 4, strtoul(args[0], NULL, 0));
	if (strcmp(what, "acct-info2") ? send_and_print(session.client, 0xb03, buf, 48, -1) : send_and_print(session.client, 0xb06, buf, 64, -1))
		return 1;
	printf("pid %u gpu %u fb %u maxfb %llu start %llu end %llu\n", get32(buf, 4), get32(buf, 12), get32(buf, 16),
	       (unsigned long long)get64(buf, 24), (unsigned long long)get64(buf, 32), (unsigned long long)get64(buf, 40));
	return 0;
}

static void print_sessions(const uint8_t *p, unsigned n, unsigned stride, unsigned id, unsigned fps)
{
	unsigned i;

	for (i = 0; i < n; i++, p += stride)
		printf("pid %u sub %u session %u fps %u\n", get32(p, 0), get32(p, 4), get32(p, id), get32(p, fps));
}

static int cmd_enc1(void)
{
	uint8_t params[16] = { 0 };

	put32(params, 0, opt.room);
	put64(params, 8, opt.room ? (uintptr_t)buf : 0);
	if (send_and_print(session.subdevice, 0x2080016e, params, sizeof(params), 0))
		return 1;
	print_sessions(buf, opt.room ? get32(params, 0) : 0, 32, 8, 24);
	return 0;
}

static int cmd_enc2(void)
{
	put32(buf, 0, opt.room);
	if (send_and_print(session.subdevice, 0x208001af, buf, 16388, 0))
		return 1;
	print_sessions(buf + 4, opt.room ? get32(buf, 0) : 0, 32, 8, 24);
	return 0;
}

static int cmd_fbc(void)
{
	if (send_and_print(session.subdevice, 0x2080017c, buf, 13316, 0))
		return 1;
	print_sessions(buf + 4, get32(buf, 0), 52, 12, 44);
	return 0;
}

static uint32_t profiler(void)
{
	return nv_object(ctl, session.client, session.subdevice, 0x90cc, "nvctl: profiler object");
}

static int cmd_hwpm(void)
{
	if (send_and_print(profiler(), 0x90cc0103, buf, 12, -1))
		return 1;
	printf("pid %u count %u global %u\n", get32(buf, 4), get32(buf, 0), buf[8]);
	return 0;
}

#define LIMIT 200 /* the event of a client that exceeds its memory limit */
#define FETCH 0x52
#define NO_REQUEST 0xff /* no driver has it */

struct event {
	uint32_t object, index, info32, info16;
};

static void subscribe(uint32_t index)
{
	nv_must("nvctl: subscription", nv_subscribe(ctl, session.client, session.subdevice, index));
}

/* Each client exceeds its memory limit, and an event of another kind carries the given number. */
static void limits_reached(uint32_t word)
{
	struct sim_args raise = { .op = SIM_OP_LIMIT, .gpu = opt.gpu, .ring_rotation = 5, .ring_count = word };

	nv_must("nvctl: events", nv_sim(ctl, &raise));
}

static int cmd_limits(int n, char **args)
{
	struct event events[64];
	unsigned i, count = 0;

	subscribe(LIMIT);
	subscribe(201);
	subscribe(5);
	limits_reached(n ? strtoul(args[0], NULL, 0) : 0);
	while (count < 64 && !nv_event_data(ctl, &events[count], &opt.way))
		count++;
	printf("ret=0 status=0x0 count=%u\n", count);
	for (i = 0; i < count; i++)
		printf("index %u %s %u\n", events[i].index, events[i].index == 5 ? "word" : "pid", events[i].info32);
	return 0;
}

static int fetch(int fd, struct nv_event_arg *arg)
{
	return nv_escape(fd, FETCH, arg, sizeof(*arg), &opt.way);
}

static unsigned drain(void)
{
	struct event event;
	unsigned count = 0;

	while (!nv_event_data(ctl, &event, NULL))
		count++;
	return count;
}

/* Across an edge the kernel may or may not write the part before it, so that part is not checked. */
static int cmd_event_memory(void)
{
	unsigned i;

	subscribe(LIMIT);
	for (i = 0; i < KINDS; i++) {
		bool is_whole = kinds[i].second & PROT_WRITE, is_seen = kinds[i].second != PROT_NONE;
		struct event none = { 0 }, event = { 0 }, *at = placed(&kinds[i], &none, sizeof(none), 8);
		struct nv_event_arg arg = { (uintptr_t)at, 0, 0xdead }, *placed_arg;
		int rc;

		if (kinds[i].flags != MAP_PRIVATE || kinds[i].second == GONE || kinds[i].tag)
			continue;
		limits_reached(0);
		rc = fetch(ctl, &arg);
		printf("event %s ret=%d status=0x%x more=%u got=%d", kinds[i].name, rc, arg.status, arg.more, is_whole && at->index == LIMIT);
		printf(" left=%u\n", drain());

		limits_reached(0);
		arg = (struct nv_event_arg){ (uintptr_t)&event, 0, 0xdead };
		placed_arg = placed(&kinds[i], &arg, sizeof(arg), 8);
		rc = fetch(ctl, placed_arg);
		printf("argument %s ret=%d status=0x%x got=%d", kinds[i].name, rc, is_seen ? placed_arg->status : 0, event.index == LIMIT);
		printf(" left=%u\n", drain());
	}
	return 0;
}

static int cmd_event_secret(void)
{
	struct nv_event_arg *arg = secret_page();
	struct event event = { 0 };
	int rc;

	subscribe(LIMIT);
	limits_reached(0);
	*arg = (struct nv_event_arg){ (uintptr_t)&event, 0, 0xdead };
	rc = fetch(ctl, arg);
	printf("ret=%d status=0x%x\n", rc, arg->status);
	return 0;
}

static int cmd_event_poll(int n, char **args)
{
	unsigned long calls = n ? strtoul(args[0], NULL, 10) : 0, i;
	struct event event;
	double from;

	nv_check(calls, "nvctl: event-poll wants CALLS", -EINVAL);
	subscribe(LIMIT);
	from = now();
	for (i = 0; i < calls; i++)
		nv_event_data(ctl, &event, &opt.way);
	printf("ns %lu\n", (unsigned long)((now() - from) * 1e9 / calls));
	return 0;
}

static int cmd_rc(void)
{
	if (opt.error) {
		struct sim_args args = { .op = SIM_OP_ERROR, .client = session.client };
		nv_must("nvctl: error report", nv_sim(ctl, &args));
	}
	put32(buf, 28, 0xffffffff);
	if (send_and_print(session.client, 0x607, buf, 2436, -1))
		return 1;
	printf("pid %u flags %u\n", get32(buf, 32), get32(buf, 20));
	return 0;
}

static int cmd_allocs(void)
{
	uint8_t params[32] = { 0 };
	unsigned i, n;

	put64(params, 16, 500);
	put64(params, 24, (uintptr_t)buf);
	if (send_and_print(session.subdevice, 0x20801349, params, sizeof(params), 16))
		return 1;
	n = get32(params, 16);
	for (i = 0; i < n && i < 500; i++)
		printf("pid %u client %x\n", get32(buf, i * 112 + 4), get32(buf, i * 112));
	return 0;
}

/* Writes words that could be process ids, counts and offsets. A translator that recognised tables by size would change them. */
static int cmd_debug(int n, char **args)
{
	uint32_t debugger = 0, memory = 0, length, seed, i, changed = 0, first = 0;
	uint8_t size[128] = { 0 }, params[24] = { 0 };
	uint32_t *written, *read;
	int rc;

	nv_check(n >= 1, "nvctl: debug wants LENGTH", -EINVAL);
	length = strtoul(args[0], NULL, 0);
	seed = n > 1 ? strtoul(args[1], NULL, 0) : 1;
	written = calloc(1, length + 4);
	read = calloc(1, length + 4);
	if (!written || !read)
		nv_die("nvctl: buffers", -ENOMEM);
	put64(size, 64, 1 << 20);
	rc = nv_alloc(ctl, session.client, session.device, &memory, 0x40, size, sizeof(size));
	if (!rc)
		rc = nv_alloc(ctl, session.client, session.subdevice, &debugger, 0x83de, NULL, 0);
	nv_must("nvctl: memory and debugger", rc);
	for (i = 0; i < length / 4; i++)
		written[i] = 1 + (i * seed) % 199;
	put32(params, 0, memory);
	put32(params, 4, length);
	put64(params, 16, (uintptr_t)written);
	if (send_and_print(debugger, 0x83de0316, params, sizeof(params), -1))
		return 1;
	for (i = 0; i < length / 4; i++) {
		if (written[i] == 1 + (i * seed) % 199)
			continue;
		nv_die("nvctl: the bytes to write were changed where they lie", -EIO);
	}
	put64(params, 16, (uintptr_t)read);
	if (send_and_print(debugger, 0x83de0315, params, sizeof(params), -1))
		return 1;
	for (i = 0; i < length / 4; i++) {
		if (read[i] == written[i])
			continue;
		first = changed ? first : i * 4;
		changed++;
	}
	printf("changed %u first %u\n", changed, first);
	return changed != 0;
}

static uint32_t named_object(void)
{
	if (!object_name || !strcmp(object_name, "sub"))
		return session.subdevice;
	if (!strcmp(object_name, "client"))
		return session.client;
	if (!strcmp(object_name, "device"))
		return session.device;
	if (!strcmp(object_name, "profiler"))
		return profiler();
	return strtoul(object_name, NULL, 16);
}

static void read_hex(const char *hex, uint8_t *to, unsigned max)
{
	unsigned n = 0, v;

	if (!strcmp(hex, "-")) {
		if (!fread(to, 1, max, stdin))
			nv_die("nvctl: no bytes on standard input", -EINVAL);
		return;
	}
	while (n < max && isxdigit((unsigned char)hex[0]) && isxdigit((unsigned char)hex[1]) && sscanf(hex, "%2x", &v) == 1) {
		to[n++] = v;
		hex += 2;
	}
	if (*hex)
		nv_die("nvctl: HEX is not whole bytes within SIZE", -EINVAL);
}

static int cmd_raw(int n, char **args)
{
	uint32_t cmd, size, i;
	int rc;

	nv_check(n >= 2, "nvctl: raw wants CMD SIZE [HEX]", -EINVAL);
	cmd = strtoul(args[0], NULL, 16);
	size = strtoul(args[1], NULL, 0);
	nv_check(size <= sizeof(buf), "nvctl: SIZE", -EINVAL);
	if (n > 2)
		read_hex(args[2], buf, size);
	if (!object_name && cmd >> 16 == 0)
		object_name = "client";
	if (!object_name && cmd >> 16 == 0x80)
		object_name = "device";
	if (!object_name && cmd >> 16 == 0x90cc)
		object_name = "profiler";
	rc = send_and_print(named_object(), cmd, buf, size, -1);
	printf("params ");
	for (i = 0; i < size; i++)
		printf("%02x", buf[i]);
	printf("\n");
	return rc;
}

static int cmd_ring(int n, char **slots)
{
	struct sim_ring_slot ring[SIM_RING_MAX];
	struct sim_args args;
	int i, e, rc;

	nv_check(n <= SIM_RING_MAX, "nvctl: at most 100 slots", -EINVAL);
	for (i = 0; i < n; i++) {
		char *p = strtok(slots[i], ",");

		ring[i].age_us = p ? strtoull(p, NULL, 0) * 1000 : 0;
		for (e = 0; e < SIM_ENGINES; e++) {
			p = strtok(NULL, ",");
			ring[i].engine[e].pid = 0xffffffff;
			ring[i].engine[e].util = 0;
			if (p && *p != '-')
				ring[i].engine[e].pid = strtoul(p, &p, 0);
			if (p && (p = strchr(p, '/')))
				ring[i].engine[e].util = strtoul(p + 1, NULL, 0);
		}
	}
	memset(&args, 0, sizeof(args));
	args.op = SIM_OP_RING;
	args.gpu = opt.gpu;
	args.ring = (uintptr_t)ring;
	args.ring_count = n;
	rc = nv_sim(ctl, &args);
	printf("ret=%d status=0x%x count=%d\n", rc < 0 ? rc : 0, rc > 0 ? rc : 0, n);
	return rc != 0;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

#define SPIN_LISTS 4

static void *starve_once(void *is_idle)
{
	struct sched_param none = { 0 };

	if (is_idle && sched_setscheduler(0, SCHED_IDLE, &none))
		nv_die("nvctl: SCHED_IDLE", -errno);
	for (;;)
		;
	return NULL;
}

/* Runs busy threads, and SCHED_IDLE threads that hardly get a processor: RCU-tasks waits long for each of these. */
static int cmd_starve(int n, char **args)
{
	long long idle = n > 1 ? atoll(args[0]) : 0, busy = n > 1 ? atoll(args[1]) : 0, i;
	pthread_attr_t small;
	pthread_t thread;

	nv_check(n == 3, "nvctl: starve wants IDLE BUSY SECONDS", -EINVAL);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	for (i = 0; i < idle + busy; i++) {
		if (pthread_create(&thread, &small, starve_once, i < idle ? (void *)1 : NULL))
			nv_die("nvctl: a thread", -EAGAIN);
	}
	puts("starving");
	fflush(stdout);
	sleep(atoi(args[2]));
	return 0;
}

/* The result of spin's last call. */
static struct {
	uint32_t status;
	int rc;
} spun;

static void *spin_once(void *unused)
{
	memset(buf, 0, PIDS_SIZE);
	put32(buf, 4, opt.class);
	spun.rc = nv_control(ctl, session.client, session.subdevice, GET_PIDS, buf, PIDS_SIZE, &opt.way, &spun.status);
	return unused;
}

/* In a thread that ends with the call, so that readers of the module's state meet ending threads. */
static void spin_briefly(void)
{
	pthread_join(nv_thread(spin_once, NULL), NULL);
}

static int cmd_spin(int n, char **args)
{
	static uint32_t want[SPIN_LISTS][PIDS_MAX];
	unsigned long calls = 0, matched[SPIN_LISTS] = { 0 };
	int i, l, lists = 1, wanted[SPIN_LISTS] = { 0 };
	double end;

	nv_check(n >= 1, "nvctl: spin wants SECONDS", -EINVAL);
	end = now() + strtod(args[0], NULL);
	for (i = 1; i < n; i++) {
		if (!strcmp(args[i], "or"))
			lists++;
		if (lists > SPIN_LISTS || wanted[lists - 1] == PIDS_MAX)
			nv_die("nvctl: spin takes at most 4 lists of 950 pids", -EINVAL);
		if (strcmp(args[i], "or"))
			want[lists - 1][wanted[lists - 1]++] = strtoul(args[i], NULL, 0);
	}
	for (l = 0; l < lists; l++)
		qsort(want[l], wanted[l], 4, by_number);
	do {
		uint32_t count;

		if (opt.brief)
			spin_briefly();
		else
			spin_once(NULL);
		calls++;
		count = get32(buf, 8);
		qsort(buf + 12, count <= PIDS_MAX ? count : 0, 4, by_number);
		for (l = 0; l < lists; l++)
			if (!spun.rc && !spun.status && count == (uint32_t)wanted[l] && !memcmp(buf + 12, want[l], 4 * wanted[l]))
				break;
		if (l == lists) {
			printf("wrong call=%lu ret=%d status=0x%x count=%u", calls, spun.rc, spun.status, count);
			for (i = 0; i < (int)count && i < PIDS_MAX; i++)
				printf(" %u", get32(buf, 12 + 4 * i));
			printf("\n");
			return 1;
		}
		matched[l]++;
	} while (now() < end);
	printf("calls %lu\n", calls);
	for (l = 0; l < lists; l++)
		printf("list %d matched %lu\n", l, matched[l]);
	return 0;
}

/* Shared by the racing threads, which rewrite the argument while the driver or the engine reads it. */
static struct {
	volatile struct nv_control_arg arg;
	volatile struct nv_xfer_arg xfer;
	struct nv_control_arg decoy; /* the other target of the XFER racer */
	volatile int stop;
	int flip_cmd, flip_ptr, flip_size, flip_xfer;
	volatile uint32_t *result[2];
} race;

/* The raced controls, with the places of the PIDs in their results, in words. */
static const struct raced {
	const char *name;
	uint32_t cmd, size;
	unsigned first, stride, rows;
} raced_controls[] = {
	{ "pids", GET_PIDS, PIDS_SIZE, 3, 1, PIDS_MAX },
	{ "fbc", 0x2080017c, 13316, 1, 13, 256 },
};

static const struct raced *raced = raced_controls;

static uint32_t odd[64]; /* numbers that cannot be process ids */
static volatile unsigned odd_count;

static void note_results(unsigned b)
{
	unsigned i;

	for (i = 0; i < raced->rows; i++) {
		uint32_t v = race.result[b][raced->first + i * raced->stride];

		note_seen(v);
		if (v >= 1u << 22 && v != 0xffffffff && odd_count < 64)
			odd[odd_count++] = v;
	}
}

static void *flip_thread(void *unused)
{
	unsigned turn = 0;

	(void)unused;
	while (!race.stop) {
		turn++;
		if (race.flip_cmd)
			race.arg.cmd = turn & 1 ? raced->cmd : FB_INFO_V2;
		if (race.flip_ptr)
			race.arg.params = (uintptr_t)race.result[(turn >> race.flip_cmd) & 1];
		if (race.flip_size)
			race.arg.size = turn & 1 ? raced->size : raced->size + 4;
		if (race.flip_xfer)
			race.xfer.ptr = turn & 1 ? (uintptr_t)&race.arg : (uintptr_t)&race.decoy;
	}
	return NULL;
}

static void *reader(void *unused)
{
	while (!race.stop) {
		note_results(0);
		note_results(1);
	}
	return unused;
}

#define RACE_LEAST 3 /* accepted calls */
#define RACE_PATIENCE 60 /* additional seconds for RACE_LEAST */

static int cmd_race(int n, char **args)
{
	unsigned long calls = 0, accepted = 0;
	pthread_t thread[16];
	const char *mode;
	unsigned i, b;
	double end;

	nv_check(n == 2, "nvctl: race wants MODE SECONDS", -EINVAL);
	mode = args[0];
	race.flip_cmd = !strcmp(mode, "cmd") || !strcmp(mode, "all");
	race.flip_ptr = !strcmp(mode, "ptr") || !strcmp(mode, "all");
	race.flip_size = !strcmp(mode, "size") || !strcmp(mode, "all");
	race.flip_xfer = !strcmp(mode, "xfer");
	if (!race.flip_cmd && !race.flip_ptr && !race.flip_size && !race.flip_xfer && strcmp(mode, "read"))
		nv_die("nvctl: MODE is cmd, ptr, size, all, xfer or read", -EINVAL);
	/*
	 * A kernel may copy byte by byte, and read an argument that is half old and half new. The two addresses differ in one byte
	 * only, so that each mixture is one of them. Otherwise rows would seem displaced.
	 */
	race.result[0] = aligned_alloc(2 * sizeof(buf), 2 * sizeof(buf));
	if (!race.result[0])
		nv_die("nvctl: result buffers", -ENOMEM);
	memset((void *)race.result[0], 0, 2 * sizeof(buf));
	race.result[1] = race.result[0] + sizeof(buf) / 4;
	end = now() + strtod(args[1], NULL);
	if (threads > 16)
		threads = 16;
	race.decoy = (struct nv_control_arg){ session.client, session.subdevice, FB_INFO_V2, 0, (uintptr_t)race.result[0],
					      raced->size, 0 };
	race.arg.client = session.client;
	race.arg.object = session.subdevice;
	race.arg.cmd = raced->cmd;
	race.arg.params = (uintptr_t)race.result[0];
	race.arg.size = raced->size;
	race.xfer.cmd = 0x2a;
	race.xfer.size = sizeof(race.arg);
	race.xfer.ptr = (uintptr_t)&race.arg;
	for (i = 0; i < threads; i++)
		thread[i] = nv_thread(i == 0 && strcmp(mode, "read") ? flip_thread : reader, NULL);
	do {
		int rc;

		for (b = 0; b < 2; b++) {
			/* idType 0 and the class; the harmless control reads a list of 0 pairs */
			race.result[b][0] = 0;
			race.result[b][1] = raced->cmd == GET_PIDS ? opt.class : 0;
			memset((void *)(race.result[b] + 2), 0, raced->size - 8);
		}
		race.arg.status = 0xdead;
		if (opt.way.xfer || race.flip_xfer)
			rc = ioctl(ctl, nv_ioc(211, sizeof(race.xfer), &opt.way), &race.xfer);
		else
			rc = ioctl(ctl, nv_ioc(0x2a, sizeof(race.arg), &opt.way), &race.arg);
		calls++;
		accepted += rc == 0 && race.arg.status == 0;
		note_results(0);
		note_results(1);
		/* On a busy machine the driver may accept hardly any call; such a race proves nothing. */
	} while (now() < end || (accepted < RACE_LEAST && now() < end + RACE_PATIENCE));
	race.stop = 1;
	for (i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	printf("calls %lu accepted %lu\n", calls, accepted);
	print_seen();
	for (i = 0; i < odd_count; i++)
		printf("saw 0x%x\n", odd[i]);
	return 0;
}

static int swap_fd = -1, swap_other = -1, swap_mode;
static uint8_t swap_buf[sizeof(buf)];

static void start_swapping(char mode)
{
	swap_mode = mode;
	swap_other = open("/dev/null", O_RDWR);
	swap_fd = dup(ctl);
	nv_check(swap_other >= 0 && swap_fd >= 0, "nvctl: swap", -errno);
}

/* Puts the driver's file at the descriptor, or takes it away: another file comes there (dup2), or none. */
static void swap_file(bool ours, bool by_dup2)
{
	if (ours || by_dup2)
		dup2(ours ? ctl : swap_other, swap_fd);
	else
		close(swap_fd);
}

static void *swap_thread(void *unused)
{
	unsigned turn = 0;

	(void)unused;
	while (!race.stop) {
		turn++;
		if (strchr("dc", swap_mode) || (swap_mode == 'a' && turn % 3 != 2))
			swap_file(!(turn & 1), swap_mode == 'd' || (swap_mode == 'a' && turn % 3 == 0));
		if (swap_mode == 'a')
			race.arg.params = (uintptr_t)(turn & 4 ? buf : swap_buf);
		if (strchr("na", swap_mode)) {
			/* Each mixture of these numbers and sizes lies within the buffer. */
			race.arg.cmd = turn & 1 ? GET_PIDS : 0x2080017c;
			race.arg.size = turn & 2 ? PIDS_SIZE : 13316;
		}
	}
	return NULL;
}

static int cmd_swap(int n, char **args)
{
	unsigned long calls = 0, accepted = 0, least = n == 3 ? strtoul(args[2], NULL, 10) : 0;
	uint8_t *bufs[] = { buf, swap_buf };
	pthread_t thread;
	unsigned i, b;
	double end;

	if (n < 2 || n > 3 || !strchr("dcna", args[0][0]))
		nv_die("nvctl: swap wants dup2, close, number or all, and SECONDS", -EINVAL);
	start_swapping(args[0][0]);
	race.arg = (struct nv_control_arg){ session.client, session.subdevice, GET_PIDS, 0, (uintptr_t)buf, PIDS_SIZE, 0 };
	end = now() + strtod(args[1], NULL);
	thread = nv_thread(swap_thread, NULL);
	do {
		int rc;

		for (b = 0; b < 2; b++) {
			memset(bufs[b], 0, 16384); /* longer than any result */
			put32(bufs[b], 4, opt.class);
		}
		race.arg.status = 0xdead;
		rc = ioctl(swap_fd, nv_ioc(0x2a, sizeof(race.arg), &opt.way), &race.arg);
		calls++;
		if (rc || race.arg.status)
			continue;
		accepted++;
		/* A list has its class and count before the PIDs. Sessions have a count before entries of 52 bytes. */
		for (b = 0; b < 2; b++)
			if (get32(bufs[b], 4) == opt.class && get32(bufs[b], 8) <= PIDS_MAX)
				for (i = 0; i < get32(bufs[b], 8); i++)
					note_seen(get32(bufs[b], 12 + 4 * i));
			else
				for (i = 0; i < get32(bufs[b], 0) && i < 256; i++)
					note_seen(get32(bufs[b], 4 + 52 * i));
	} while (now() < end || calls < least);
	race.stop = 1;
	pthread_join(thread, NULL);
	printf("calls %lu accepted %lu\n", calls, accepted);
	print_seen();
	return 0;
}

/* A fetch of an event, whose parts a thread exchanges. */
static struct {
	volatile struct nv_event_arg arg;
	struct event events[2];
} raced_fetch;

static void *event_swap_thread(void *unused)
{
	unsigned turn = 0;

	while (!race.stop) {
		bool ours = turn++ & 1;

		if (strchr("dc", swap_mode))
			swap_file(ours, swap_mode == 'd');
		else if (swap_mode == 'r')
			race.xfer.cmd = ours ? FETCH : NO_REQUEST;
		else
			raced_fetch.arg.data = (uintptr_t)&raced_fetch.events[ours];
	}
	return unused;
}

/* Makes at least CALLS calls, and until one is accepted: on a busy machine the other thread can be stopped while the wrong file is in place. */
static int cmd_event_swap(int n, char **args)
{
	unsigned long calls = 0, accepted = 0, least = n == 2 ? strtoul(args[1], NULL, 10) : 0;
	struct nv_event_arg *arg = (struct nv_event_arg *)&raced_fetch.arg;
	double end = now() + RACE_PATIENCE;
	pthread_t thread;
	unsigned i;

	if (n != 2 || !strchr("dcwr", args[0][0]))
		nv_die("nvctl: event-swap wants dup2, close, where or request, and CALLS", -EINVAL);
	subscribe(LIMIT);
	start_swapping(args[0][0]);
	raced_fetch.arg.data = (uintptr_t)raced_fetch.events;
	race.xfer.cmd = FETCH;
	race.xfer.size = sizeof(*arg);
	race.xfer.ptr = (uintptr_t)arg;
	thread = nv_thread(event_swap_thread, NULL);
	while (calls < least || (!accepted && now() < end)) {
		if (calls++ % 16 == 0)
			limits_reached(0);
		memset(raced_fetch.events, 0, sizeof(raced_fetch.events));
		raced_fetch.arg.status = 0xdead;
		if (swap_mode == 'r' ? ioctl(swap_fd, nv_ioc(211, sizeof(race.xfer), NULL), &race.xfer) : fetch(swap_fd, arg))
			continue;
		if (raced_fetch.arg.status)
			continue;
		accepted++;
		for (i = 0; i < 2; i++)
			if (raced_fetch.events[i].index == LIMIT)
				note_seen(raced_fetch.events[i].info32);
	}
	race.stop = 1;
	pthread_join(thread, NULL);
	printf("calls %lu accepted %lu\n", calls, accepted);
	print_seen();
	return 0;
}

static int print_pids(int rc, uint32_t status)
{
	unsigned count = rc || status ? 0 : get32(buf, 8);

	printf("ret=%d status=0x%x count=%u\n", rc, status, count);
	print_list(count, 12, PIDS_MAX);
	return rc || status;
}

static int cmd_secret(void)
{
	struct nv_control_arg *arg = secret_page();

	put32(buf, 4, opt.class);
	*arg = (struct nv_control_arg){ session.client, session.subdevice, GET_PIDS, 0, (uintptr_t)buf, PIDS_SIZE, 0 };
	return print_pids(nv_control_send(ctl, arg, &opt.way), arg->status);
}

static int cmd_x32(void)
{
	struct nv_control_arg arg = { session.client, session.subdevice, GET_PIDS, 0, (uintptr_t)buf, PIDS_SIZE, 0 };
	long rc;

	put32(buf, 4, opt.class);
	rc = syscall(0x40000000 + 514, ctl, nv_ioc(0x2a, sizeof(arg), &opt.way), &arg);
	return print_pids(rc < 0 ? -errno : (int)rc, arg.status);
}

static const char *what;
static char **rest;
static int rest_count, thread_rc;

static int cmd_acct_by_name(int n, char **args)
{
	return cmd_acct(what, n, args);
}

static const struct command {
	const char *name;
	int (*plain)(void), (*with)(int, char **);
} commands[] = {
	{ "pids", cmd_pids },	      { "pidinfo", NULL, cmd_pidinfo },	       { "gpumon", cmd_gpumon },
	{ "gpumon1", cmd_gpumon1 },   { "enc1", cmd_enc1 },		       { "acct-clear", NULL, cmd_acct_by_name },
	{ "enc2", cmd_enc2 },	      { "acct-pids", NULL, cmd_acct_by_name },	{ "acct-info", NULL, cmd_acct_by_name },
	{ "fbc", cmd_fbc },	      { "acct-info2", NULL, cmd_acct_by_name }, { "hwpm", cmd_hwpm },
	{ "limits", NULL, cmd_limits }, { "rc", cmd_rc },		       { "debug", NULL, cmd_debug },
	{ "allocs", cmd_allocs },     { "nowhere", cmd_nowhere },	       { "elsewhere", cmd_elsewhere },
	{ "memory", cmd_memory },     { "stall", NULL, cmd_stall },	       { "raw", NULL, cmd_raw },
	{ "ring", NULL, cmd_ring },   { "starve", NULL, cmd_starve },	       { "spin", NULL, cmd_spin },
	{ "race", NULL, cmd_race },   { "swap", NULL, cmd_swap },	       { "secret", cmd_secret },
	{ "x32", cmd_x32 },	      { "event-memory", cmd_event_memory },    { "event-secret", cmd_event_secret },
	{ "event-poll", NULL, cmd_event_poll }, { "event-swap", NULL, cmd_event_swap },
};

static int perform(void)
{
	unsigned i;

	for (i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(what, commands[i].name))
			return commands[i].plain ? commands[i].plain() : commands[i].with(rest_count, rest);
	usage(stderr);
	return 2;
}

/* The largest descriptor table that the kernel allows, almost empty. */
static int cmd_wide(void)
{
	unsigned long most = 0;
	struct rlimit limit;
	FILE *file = fopen("/proc/sys/fs/nr_open", "r");
	char byte;

	if (!file || fscanf(file, "%lu", &most) != 1)
		nv_die("nvctl: nr_open", -errno);
	fclose(file);
	limit.rlim_cur = limit.rlim_max = most;
	if (setrlimit(RLIMIT_NOFILE, &limit) || dup2(2, most - 1) < 0)
		nv_die("nvctl: wide", -errno);
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}

static int crowd_ends[2];

/* Ends by raw system calls: the C library would notify its other threads. */
static void *crowd_member(void *unused)
{
	char byte;

	syscall(SYS_read, crowd_ends[0], &byte, 1);
	syscall(SYS_exit, 0);
	return unused;
}

static void crowd(int number, int up)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int i;

	close(crowd_ends[1]);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN);
	for (i = 0; i < number; i++) {
		if (pthread_create(&thread, &attributes, crowd_member, NULL))
			nv_die("nvctl: crowd: a thread", -errno);
	}
	if (write(up, "", 1) == 1)
		crowd_member(NULL);
}

/* The shortest of ten tries, in nanoseconds; 0 if the driver refuses. */
static unsigned long long shortest_lookup(uint32_t pid)
{
	unsigned long long least = ~0ull, took;
	struct timespec began, ended;
	uint32_t status;
	int i, try;

	for (try = 0; try < 10; try++) {
		memset(buf, 0, 14408);
		put32(buf, 0, 200);
		for (i = 0; i < 200; i++)
			put32(buf, 8 + i * 72, pid);
		clock_gettime(CLOCK_MONOTONIC, &began);
		if (nv_control(ctl, session.client, session.subdevice, GET_PID_INFO, buf, 14408, &opt.way, &status) || status)
			return 0;
		clock_gettime(CLOCK_MONOTONIC, &ended);
		took = (ended.tv_sec - began.tv_sec) * 1000000000ull + ended.tv_nsec - began.tv_nsec;
		if (took < least)
			least = took;
	}
	return least;
}

/* A traced thread that has ended stays as a zombie, without its files, until its tracer waits for it. */
static int cmd_crowd(int number)
{
	unsigned long long usual, slow;
	int up[2], seized = 0;
	pid_t plain;
	char byte, path[32];
	siginfo_t ended;
	struct dirent *entry;
	pid_t process;
	DIR *threads;

	if (pipe(crowd_ends) || pipe(up))
		nv_die("nvctl: crowd: a pipe", -errno);
	process = fork();
	if (!process)
		crowd(number, up[1]);
	close(up[1]);
	if (process < 0 || read(up[0], &byte, 1) != 1)
		nv_die("nvctl: crowd: a process", -errno);
	snprintf(path, sizeof(path), "/proc/%d/task", process);
	threads = opendir(path);
	while (threads && (entry = readdir(threads))) {
		pid_t thread = atoi(entry->d_name);

		if (thread > 0 && thread != process)
			seized += !ptrace(PTRACE_SEIZE, thread, NULL, NULL);
	}
	if (seized != number)
		nv_die("nvctl: crowd: not all of it is traced", -errno);
	closedir(threads);
	close(crowd_ends[0]);
	close(crowd_ends[1]);
	/* Waits for the end of each thread, and leaves the zombies. */
	for (threads = opendir(path); (entry = readdir(threads));) {
		pid_t thread = atoi(entry->d_name);

		if (thread > 0 && thread != process && waitid(P_PID, thread, &ended, WEXITED | WNOWAIT | __WALL))
			nv_die("nvctl: crowd: a thread does not end", -errno);
	}
	closedir(threads);
	plain = fork();
	if (!plain) {
		pause();
		_exit(0);
	}
	open_session();
	usual = shortest_lookup(plain);
	slow = shortest_lookup(process);
	kill(plain, SIGKILL);
	printf("ret=0 status=0x0\nusual %llu crowd %llu\n", usual, slow);
	return !usual || !slow;
}

static void *perform_on_thread(void *unused)
{
	if (own_files) {
		nv_check(!unshare(CLONE_FILES), "nvctl: --own-files", -errno);
		open_session();
	}
	/* The C library's call changes the user of every thread. */
	if (thread_user >= 0 && syscall(SYS_setresuid, thread_user, thread_user, thread_user))
		nv_die("nvctl: --as-thread", -errno);
	thread_rc = perform();
	return unused;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "gpu", 1, NULL, 'g' }, { "size", 1, NULL, 's' }, { "flags", 1, NULL, 'f' }, { "type", 1, NULL, 't' },
		{ "dir", 1, NULL, 'd' }, { "xfer", 0, NULL, 'x' }, { "class", 1, NULL, 'c' }, { "old", 0, NULL, 'o' },
		{ "object", 1, NULL, 'O' }, { "threads", 1, NULL, 'T' },
		{ "params", 1, NULL, 'p' }, { "on-thread", 0, NULL, 'n' }, { "brief", 0, NULL, 'B' },
		{ "raced", 1, NULL, 'R' }, { "client", 1, NULL, 'C' }, { "as", 1, NULL, 'a' },
		{ "error", 0, NULL, 'E' }, { "room", 1, NULL, 'm' },
		{ "fail-nth", 1, NULL, 'N' }, { "own-files", 0, NULL, 'F' },
		{ "as-thread", 1, NULL, 'A' }, { "help", 0, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int o;

	while ((o = getopt_long(argc, argv, "+", options, NULL)) != -1) {
		switch (o) {
		case 'g': opt.gpu = strtoul(optarg, NULL, 0); break;
		case 's': opt.size = strtoul(optarg, NULL, 0); break;
		case 'f': opt.way.flags = strtoul(optarg, NULL, 16); break;
		case 't': opt.way.type = strtoul(optarg, NULL, 16); break;
		case 'd': opt.way.dir = strtoul(optarg, NULL, 0) % 4 + 1; break;
		case 'x': opt.way.xfer = 1; break;
		case 'c': opt.class = strtoul(optarg, NULL, 16); break;
		case 'o': opt.old = 1; break;
		case 'O': object_name = optarg; break;
		case 'T': threads = strtoul(optarg, NULL, 0); break;
		case 'p': opt.params = strtoull(optarg, NULL, 16); opt.wild = 1; break;
		case 'n': opt.on_thread = 1; break;
		case 'B': opt.brief = 1; break;
		case 'E': opt.error = 1; break;
		case 'm': opt.room = strtoul(optarg, NULL, 0); break;
		case 'R': {
			unsigned i;

			for (i = 0; i < sizeof(raced_controls) / sizeof(raced_controls[0]); i++)
				if (!strcmp(optarg, raced_controls[i].name))
					raced = &raced_controls[i];
			if (strcmp(optarg, raced->name))
				nv_die("nvctl: --raced is pids or fbc", -EINVAL);
			break;
		}
		case 'C': client = strtoul(optarg, NULL, 16); break;
		case 'a': user = strtol(optarg, NULL, 0); break;
		case 'N': fail_nth = strtoul(optarg, NULL, 0); break;
		case 'F': own_files = opt.on_thread = 1; break;
		case 'A': thread_user = strtol(optarg, NULL, 0); opt.on_thread = 1; break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	}
	if (optind == argc) {
		usage(stderr);
		return 2;
	}
	what = argv[optind];
	rest = argv + optind + 1;
	rest_count = argc - optind - 1;
	if (!strcmp(what, "wide"))
		return cmd_wide();
	if (!strcmp(what, "crowd") && rest_count == 1)
		return cmd_crowd(atoi(rest[0]));
	open_session();
	if (client)
		session.client = client;
	if (user >= 0 && (setresgid(user, user, user) || setresuid(user, user, user)))
		nv_die("nvctl: --as", -errno);
	if (opt.on_thread) {
		pthread_join(nv_thread(perform_on_thread, NULL), NULL);
		return thread_rc;
	}
	return perform();
}
