// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Makes every call that a caller can make, invalid ones included. Searches every returned byte for kernel addresses, and for process ids that
 * do not occur by chance. The seed, which it prints, determines the calls.
 *
 * Prints `calls N accepted M rows K of T`, `unanswered NAME` for rows that were never accepted, a line for each kind and place of a hit, and
 * `hits H` with the hits of each kind. Exit 0: nothing found; 1: something found; 2: usage, or no device.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>

#include "nvallow.h"
#include "nvrandom.h"
#include "nvrows.h"
#include "nvscan.h"

#define ESCAPE_RM_FREE 0x29
#define ESCAPE_RM_CONTROL 0x2a
#define ESCAPE_RM_ALLOC 0x2b

static void fill_report(uint8_t *p, const struct row *row)
{
	(void)row;
	put32(p, 28, 0xffffffff);
}

static void fill_allocations(uint8_t *p, const struct row *row)
{
	(void)row;
	put32(p, 16, 512);
	put64(p, 24, (uintptr_t)inner);
}

/* Rows that nvrows.h does not have: older and newer ones, reports for the own process only, and numbers without a name. */
static const struct row more[] = {
	{ "samples-legacy", 0x2080a083, 24, SUBDEVICE, fill_samples1, 0 },
	{ "record-610", 0xb06, 64, CLIENT, fill_record, 32 },
	{ "encoder-525", 0x208001a9, 16388, SUBDEVICE, fill_room, 0 },
	{ "encoder-stats", 0x2080016d, 12, SUBDEVICE, fill_nothing, 0 },
	{ "capture-stats", 0x2080017b, 12, SUBDEVICE, fill_nothing, 0 },
	{ "report", 0x607, 2436, CLIENT, fill_report, 0 },
	{ "allocations", 0x20801349, 32, SUBDEVICE, fill_allocations, 0 },
};
#define ALL_ROWS (ROWS + sizeof(more) / sizeof(more[0]))

static unsigned long accepted_of[ALL_ROWS];

static const struct row *row_at(unsigned i)
{
	return i < ROWS ? &rows[i] : &more[i - ROWS];
}

/* --- Random numbers. --- */

static bool one_in(uint32_t n)
{
	return !random_below(n);
}

/* A word without any byte of tainted numbers or kernel addresses. */
static uint32_t harmless_word(void)
{
	uint32_t word = random_u32() & 0x7f7f7f7f;

	return has_byte(word | 0x0101010100000000, tainted_from >> 16) ? 0x11111111 : word;
}

static uint32_t own[16];
static unsigned own_count;

/* A PID for a query: of the set, an own one, or any. */
static uint32_t random_pid(bool no_taint)
{
	if (!no_taint && one_in(2))
		return tainted_from + random_below(one_in(4) ? tainted_to - tainted_from : 256);
	return own_count && !one_in(4) ? own[random_below(own_count)] : random_below(300);
}

/* A value for a word of the parameters. */
static uint32_t random_parameter(void)
{
	static const uint32_t event_indices[] = {
		0, 1, 2, 3, 72, 200, 201, 256, 257, 512, 513, 949, 950, 951, 3999, 4000, 4001, 0x7fffffff, 0x80000000, 0xffffffff,
	};

	switch (random_below(4)) {
	case 0: return event_indices[random_below(sizeof(event_indices) / sizeof(event_indices[0]))];
	case 1: return harmless_word();
	case 2: return random_below(65536) & 0xd0ff;
	default: return random_pid(false);
	}
}

/* --- Memory. --- */

/* Memory for a call, its copy from before the call, and how many of its bytes are used. A page without access follows. */
struct area {
	const char *name;
	uint8_t *at, *before;
	unsigned size, used, phase;
};

static struct area argument = { "argument", NULL, NULL, 2 * PAGE, 0, 0 }, parameters = { "parameters", NULL, NULL, BUFFER, 0, 0 },
		   pointed = { "pointed", NULL, NULL, BUFFER, 0, 0 };

static uint8_t *pages(unsigned size)
{
	uint8_t *all = mmap(NULL, size + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (all == MAP_FAILED || mprotect(all + PAGE + size, PAGE, PROT_NONE))
		nv_die("nvtaint: mmap", -errno);
	return all + PAGE;
}

static void make(struct area *area)
{
	area->at = pages(area->size);
	area->before = pages(area->size);
}

static void clear(struct area *area)
{
	memset(area->at, 0, area->used);
	area->used = area->phase = 0;
}

static void save_area(struct area *area, unsigned used)
{
	area->used = (used > area->size ? area->size : used + 7) & ~7u;
	memcpy(area->before, area->at, area->used);
}

/* scan() reads 8 bytes beyond a block, so the last block of an area is only read as the next one. */
static void scan_area(struct area *area)
{
	scan(area->name, area->at, area->before, area->used > area->size - 8 ? area->size - 8 : area->used, area->phase);
}

static void begin_call(void)
{
	scan_call++;
	clear(&argument);
	clear(&parameters);
	clear(&pointed);
}

static void end_call(void)
{
	scan_area(&argument);
	scan_area(&parameters);
	scan_area(&pointed);
}

/* --- Calls. --- */

/* Limits the calls to `rate` a second. */
static void limit_rate(unsigned rate)
{
	struct timespec pause = { 0, rate ? 1000000000 / (rate + 1) : 0 };

	if (rate)
		nanosleep(&pause, NULL);
}

static int gpu = -1;
static unsigned long accepted;

static struct nv_way random_way(void)
{
	struct nv_way chosen = { 0 };

	chosen.xfer = one_in(4);
	if (one_in(8))
		chosen.type = 1 + random_below(255);
	if (one_in(8))
		chosen.dir = 1 + random_below(4);
	return chosen;
}

static struct nv_control_arg *control_of(const struct row *row, uint8_t *p)
{
	struct nv_control_arg *arg = (struct nv_control_arg *)argument.at;

	*arg = (struct nv_control_arg){ session.client, handle(row->object), row->cmd, 0, (uintptr_t)p, row->size, 0xdead };
	return arg;
}

/* Begins a call's data at an offset of an area. */
static uint8_t *begin_at(struct area *area, unsigned offset)
{
	area->phase = offset & 3;
	return area->at + offset;
}

/* Sends the areas. Returns whether the driver accepted. */
static bool send_control(struct nv_control_arg *arg)
{
	struct nv_way chosen = random_way();
	int rc;

	if (!may(CONTROL, arg->cmd))
		return false;
	scan_what = arg->cmd;
	scan_size = arg->size;
	if (!only_allowed && one_in(16))
		arg->flags |= 1u << random_below(9);
	save_area(&argument, sizeof(*arg));
	rc = nv_control_send(ctl, arg, &chosen);
	accepted += rc == 0 && arg->status == 0;
	return rc == 0 && arg->status == 0;
}

/* Figures of a process that the caller may not see are a hit, too. */
static void check_figures(const struct row *row, const uint8_t *p)
{
	unsigned i, questions = row->cmd >> 8 == 0xb ? 1 : foreign_count;

	for (i = 0; row->figures && i < questions; i++) {
		unsigned at = row->figures + i * (row->size - 8) / 200;

		if (is_tainted(foreign[i]) && get64(p + at, 0))
			record_hit("figures", "parameters", at, foreign[i]);
	}
}

static void choose_pids(bool no_taint)
{
	unsigned i;

	foreign_count = 1 + random_below(one_in(4) ? 64 : 4);
	for (i = 0; i < foreign_count; i++)
		foreign[i] = random_pid(no_taint);
}

static void send_row(unsigned i)
{
	const struct row *row = row_at(i);
	uint8_t *p = begin_at(&parameters, one_in(4) ? 4 * random_below(16) : one_in(8) ? random_below(64) : 0);

	choose_pids(false);
	inner = begin_at(&pointed, one_in(4) ? random_below(64) : 0);
	row->fill(p, row);
	/* A pointer in the parameters may point to the parameters themselves. */
	save_area(&parameters, row->size <= 32 ? BUFFER : row->size + 256);
	save_area(&pointed, row->size <= 32 ? BUFFER : 0);
	if (!send_control(control_of(row, p)))
		return;
	accepted_of[i]++;
	check_figures(row, p);
}

static void send_any_row(void)
{
	send_row(random_below(ALL_ROWS));
}

/* Sends a row with an error in it. */
static void send_broken_row(void)
{
	const struct row *row = row_at(random_below(ALL_ROWS)), *other = row_at(random_below(ALL_ROWS));
	uint8_t *p = begin_at(&parameters, one_in(8) ? BUFFER - row->size : one_in(4) ? random_below(64) : 0);
	uint32_t objects[] = { session.client, session.device, session.subdevice, profiler, harmless_word() };
	struct nv_control_arg *arg;
	unsigned i, torn = may_be_torn(row->cmd) ? random_below(4) : 0;

	choose_pids(true);
	inner = one_in(4) ? p : begin_at(&pointed, one_in(8) ? BUFFER - random_below(8192) : 0);
	row->fill(p, row);
	for (i = 0; i < torn; i++)
		put32(p, 4 * random_below((row->size < 64 ? row->size : 64) / 4), random_parameter());
	save_area(&parameters, BUFFER);
	save_area(&pointed, BUFFER);
	arg = control_of(row, p);
	switch (random_below(8)) {
	case 0: arg->size = other->size; break;
	case 1: arg->size += 4 * (int)random_below(5) - 8; break;
	case 2: arg->size = random_below(BUFFER); break;
	case 3: arg->cmd = other->cmd; break;
	case 4: arg->object = objects[random_below(5)]; break;
	case 5: arg->client = one_in(2) ? session.client + random_below(16) - 8 : harmless_word(); break;
	case 6: arg->params = one_in(2) ? 0 : (uintptr_t)inner; break;
	}
	send_control(arg);
}

static void fill_words(uint8_t *p, unsigned bytes)
{
	unsigned i;

	for (i = 0; i + 4 <= bytes; i += 4)
		put32(p, i, one_in(2) ? random_below(4) : harmless_word());
}

/* Controls that clear or disable accounting, so that fewer records would be left to find. */
static bool deletes_records(uint32_t cmd)
{
	return cmd == 0xb01 || cmd == 0xb05;
}

/* Sends any control: usual ones, neighbours of the rows, and numbers without a control. */
static void send_any_control(void)
{
	static const uint32_t known_cmds[] = {
		0x101,	    0x201,	0x202,	    0x205,	0x214,	    0x215,	0x21b,	    0x279,	0x289,
		0x00800201, 0x00800292, 0x00800289, 0x20800101, 0x20800102, 0x20800110, 0x2080014a, 0x20800406, 0x20801301,
		0x20801303, 0x20801701, 0x20801801, 0xb02,	0x90cc0101, 0x90cc0102, 0x83de0315, 0x3d05,	0x602,
	};
	static const uint16_t sizes[] = { 0, 1, 4, 8, 12, 16, 24, 32, 40, 48, 68, 72, 128, 132, 264, 268, 2436, 3812, 14408 };
	static const uint32_t classes[] = { 0, 0, 0x80, 0x2080, 0x2080, 0x90cc, 0x83de, 0xc36f };
	uint32_t cmd = one_in(2) ? known_cmds[random_below(sizeof(known_cmds) / sizeof(known_cmds[0]))] :
				   classes[random_below(8)] << 16 | (one_in(2) ? random_below(0x2000) : random_below(0x10000));
	unsigned size = one_in(3) ? random_below(512) : sizes[random_below(sizeof(sizes) / sizeof(sizes[0]))];
	struct nv_control_arg *arg = (struct nv_control_arg *)argument.at;

	if (only_allowed || deletes_records(cmd))
		return;
	*arg = (struct nv_control_arg){ session.client,
					cmd >> 16 == 0	    ? session.client :
					cmd >> 16 == 0x80   ? session.device :
					cmd >> 16 == 0x90cc ? profiler :
							      session.subdevice,
					cmd, 0, (uintptr_t)parameters.at, size, 0xdead };
	fill_words(parameters.at, size < 64 ? size : 64);
	if (one_in(2))
		put64(parameters.at, 8, (uintptr_t)pointed.at);
	save_area(&parameters, size + 4096);
	save_area(&pointed, 16384);
	send_control(arg);
}

static void send_alloc(void)
{
	static const uint32_t classes[] = { 0, 1, 0x41, 5, 0x79, 0x7d, 0x40, 0x80, 0x2080, 0x90cc, 0x83de, 0x900e, 0xc36f, 0xc397, 0xc3c0, 0xde };
	struct nv_alloc_arg *arg = (struct nv_alloc_arg *)argument.at;
	uint32_t parents[] = { session.client, session.device, session.subdevice };
	uint32_t class = !only_allowed && one_in(8) ? random_below(0x10000) : classes[random_below(sizeof(classes) / sizeof(classes[0]))];
	bool is_root = class < 2 || class == 0x41;
	struct nv_way chosen = random_way();
	int rc;

	*arg = (struct nv_alloc_arg){ is_root ? 0 : session.client, is_root ? 0 : parents[random_below(3)], 0, class,
				      one_in(4) ? 0 : (uintptr_t)parameters.at, 0, 0xdead };
	if (!may(CLASS, class))
		return;
	if (!only_allowed)
		fill_words(parameters.at, 64);
	put32(parameters.at, 0, class == 0x80 ? session.instance : 0);
	scan_what = ESCAPE_RM_ALLOC;
	scan_size = class;
	save_area(&parameters, 4096);
	save_area(&argument, sizeof(*arg));
	rc = ioctl(ctl, nv_ioc(ESCAPE_RM_ALLOC, sizeof(*arg), &chosen), arg);
	if (rc == 0 && arg->status == 0) {
		accepted++;
		nv_free(ctl, is_root ? arg->handle : session.client, arg->handle);
	}
}

/* Sends any escape. The simulated driver has a private number, which no real driver has. */
static void send_escape(void)
{
	unsigned nr = one_in(2) ? 200 + random_below(20) : random_below(256), size = one_in(4) ? random_below(8000) : 8 * random_below(16);
	struct nv_way chosen = random_way();

	if (only_allowed || nr == SIM_ESC_NR || nr == ESCAPE_RM_FREE || nr == ESCAPE_RM_CONTROL || nr == ESCAPE_RM_ALLOC)
		return;
	fill_words(argument.at, size < 64 ? size : 64);
	if (one_in(2))
		put64(argument.at, 8, (uintptr_t)parameters.at);
	fill_words(parameters.at, 64);
	scan_what = nr;
	scan_size = size;
	save_area(&argument, size);
	save_area(&parameters, 4096);
	chosen.xfer = 0;
	accepted += ioctl(one_in(4) ? gpu : ctl, nv_ioc(nr, size, &chosen), argument.at) == 0;
}

/* Fetches a memory-limit event: every subscriber gets the process over its limit. */
static void fetch_event(void)
{
	struct nv_way chosen = random_way();
	struct sim_args raise = { .op = SIM_OP_LIMIT, .ring_rotation = 5, .ring_count = random_below(300) };

	if (!may(ESCAPE, 0x52))
		return;
	if (!only_allowed && one_in(16))
		nv_sim(ctl, &raise);
	scan_what = 0x52;
	scan_size = 16;
	save_area(&parameters, 4096);
	accepted += nv_event_data(ctl, begin_at(&parameters, one_in(4) ? random_below(64) : 0), &chosen) == 0;
}

/* Searches a file or node, by reading and by mapping. */
static void read_file(const char *path)
{
	static char text[65536 + 8];
	int fd = open(path, O_RDONLY | O_NONBLOCK);
	struct pollfd poller = { fd, POLLIN | POLLPRI, 0 };
	unsigned offset;
	ssize_t length;

	if (fd < 0)
		return;
	scan_what = scan_size = 0;
	length = read(fd, text, sizeof(text) - 8);
	if (length > 0)
		scan_text(strdup(path), text, length);
	if (!strncmp(path, "/dev/", 5)) {
		for (offset = 0; offset < 4; offset++) {
			void *at = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, offset * PAGE);

			if (at != MAP_FAILED)
				scan_words("mapping", at, PAGE, true);
		}
		poll(&poller, 1, 0);
	}
	close(fd);
}

static void read_below(const char *path)
{
	DIR *folder = opendir(path);
	struct dirent *entry;
	char below_it[512];

	if (!folder) {
		read_file(path);
		return;
	}
	while ((entry = readdir(folder))) {
		snprintf(below_it, sizeof(below_it), "%s/%s", path, entry->d_name);
		if (entry->d_name[0] != '.' && entry->d_type != DT_LNK)
			read_below(below_it);
	}
	closedir(folder);
}

/* --- While a call runs, one thread changes the argument and the buffers, and another reads the buffers. --- */

static struct {
	volatile bool stop, argument;
	const struct row *volatile row, *volatile other;
} raced;

static void *change_thread(void *unused)
{
	volatile struct nv_control_arg *arg = (struct nv_control_arg *)argument.at;
	uint64_t turn = 88172645463325252ull;

	while (!raced.stop) {
		const struct row *row = raced.row, *other = raced.other;
		volatile uint32_t *word = (volatile uint32_t *)(turn & 8 ? pointed.at : parameters.at);
		unsigned i;

		turn ^= turn << 13;
		turn ^= turn >> 7;
		turn ^= turn << 17;
		if (raced.argument) {
			arg->cmd = turn & 16 ? row->cmd : turn & 32 ? other->cmd : harmless(row->object);
			arg->size = turn & 64 ? row->size : other->size;
			if (!only_allowed)
				arg->params = (uintptr_t)(turn & 128 ? parameters.at : pointed.at);
		}
		/* Multiples of four, so that a pointer that is read half old and half new stays aligned. */
		if (!only_allowed && turn & 256)
			word[turn >> 16 & 7] = turn >> 32 & 0x3fc;
		for (i = 0; i < (turn >> 10) % 61; i++)
			breathe();
	}
	return unused;
}

static void *read_thread(void *unused)
{
	while (!raced.stop) {
		scan_words("parameters", (const volatile uint64_t *)parameters.at, BUFFER, false);
		scan_words("pointed", (const volatile uint64_t *)pointed.at, BUFFER, false);
	}
	return unused;
}

static const char *left_out;

/* Returns whether a call was made. */
static bool race_once(void)
{
	const struct row *row = row_at(random_below(ALL_ROWS)), *other = row_at(random_below(ALL_ROWS));
	struct nv_control_arg *arg;
	int rc;

	scan_call++;
	if (left_out && (!strcmp(row->name, left_out) || !strcmp(other->name, left_out)))
		return false;
	/* With a list, only the harmless control is exchanged: drivers of eras 3 and 4 follow addresses in the parameters of samples. */
	if (only_allowed && (row->object != SUBDEVICE || !may(CONTROL, row->cmd) || !may(CONTROL, HARMLESS)))
		return false;
	scan_what = row->cmd;
	scan_size = row->size;
	choose_pids(true);
	inner = pointed.at;
	memset(parameters.at, 0, BUFFER);
	memset(pointed.at, 0, BUFFER);
	row->fill(parameters.at, row);
	arg = control_of(row, parameters.at);
	raced.row = row;
	raced.other = other->object == row->object && !only_allowed ? other : row;
	rc = nv_control_send(ctl, arg, &(struct nv_way){ .xfer = one_in(4) });
	accepted += rc == 0 && ((volatile struct nv_control_arg *)arg)->status == 0;
	scan_words("parameters", (const volatile uint64_t *)parameters.at, BUFFER, true);
	scan_words("pointed", (const volatile uint64_t *)pointed.at, BUFFER, true);
	return true;
}

static void race(unsigned long calls, const char *what, unsigned rate, uint64_t until)
{
	pthread_t thread[2];
	unsigned i;

	raced.argument = !strcmp(what, "argument");
	raced.row = raced.other = &rows[0];
	if (pthread_create(&thread[0], NULL, change_thread, NULL) || pthread_create(&thread[1], NULL, read_thread, NULL))
		nv_die("nvtaint: thread", -EAGAIN);
	while (calls && wall_ns() < until)
		if (race_once()) {
			calls--;
			limit_rate(rate);
		}
	raced.stop = true;
	for (i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
}

/* --- */

/* Sends every row once as nvidia-smi would, before any invalid call. */
static void each_row(void)
{
	unsigned i;

	for (i = 0; i < ALL_ROWS; i++) {
		begin_call();
		send_row(i);
		end_call();
	}
}

static void one_call(void)
{
	begin_call();
	switch (random_below(16)) {
	default: send_any_row(); break;
	case 0:
	case 1:
	case 2: send_broken_row(); break;
	case 3:
	case 4: send_any_control(); break;
	case 5: send_alloc(); break;
	case 6: send_escape(); break;
	case 7: fetch_event(); break;
	}
	end_call();
}

/* The objects of a session. */
static const struct {
	const char *kind;
	uint32_t number;
} needed[] = { { CLASS, 0x41 }, { CONTROL, 0x201 }, { CONTROL, 0x215 }, { CLASS, 0x80 }, { CLASS, 0x2080 } };

static void usage(FILE *to)
{
	fputs("usage: nvtaint [--seed N] [--calls N] [--seconds N] [--rate N] [--allowed LIST] [--raced argument|buffers [--leave-out ROW]]\n"
	      "               [--own PID]... [--read PATH]... FROM TO\n"
	      "  Makes all kinds of calls, and searches all answers for the numbers from FROM to below TO, and for kernel addresses.\n"
	      "  --seconds  ends after N seconds, even before --calls\n"
	      "  --rate     makes at most N calls a second\n"
	      "  --allowed  makes only the calls in this file (sim/nvallow.h), and each row's correct call before any wrong one\n"
	      "  --raced    threads change and read the argument and the buffers, or the buffers alone, while calls run, except those\n"
	      "             of ROW; a hit can belong to another call than the printed one\n"
	      "  --own      a PID of this container: calls may name it\n"
	      "  --read     searches this file or folder, too\n",
	      to);
}

static void print_results(void)
{
	unsigned i, answered = 0;

	for (i = 0; i < ALL_ROWS; i++)
		answered += accepted_of[i] != 0;
	printf("calls %lu accepted %lu rows %u of %zu\n", scan_call, accepted, answered, ALL_ROWS);
	for (i = 0; i < ALL_ROWS; i++)
		if (!accepted_of[i])
			printf("unanswered %s\n", row_at(i)->name);
	print_hits();
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "seed", 1, NULL, 's' }, { "calls", 1, NULL, 'c' }, { "raced", 1, NULL, 'r' }, { "own", 1, NULL, 'o' },
		{ "read", 1, NULL, 'f' }, { "leave-out", 1, NULL, 'l' }, { "help", 0, NULL, 'h' }, { "seconds", 1, NULL, 't' },
		{ "rate", 1, NULL, 'e' }, { "allowed", 1, NULL, 'a' }, { NULL, 0, NULL, 0 },
	};
	uint64_t seed = wall_ns() / 1000, until = UINT64_MAX;
	unsigned long calls = 1000;
	unsigned rate = 0;
	const char *how = NULL, *files[16];
	struct sim_args error = { .op = SIM_OP_ERROR };
	unsigned file_count = 0, i;
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 's': seed = strtoull(optarg, NULL, 0); break;
		case 'c': calls = strtoul(optarg, NULL, 0); break;
		case 'r': how = optarg; break;
		case 'o': own[own_count++ % 16] = strtoul(optarg, NULL, 0); break;
		case 'l': left_out = optarg; break;
		case 't': until = wall_ns() + strtoul(optarg, NULL, 0) * 1000000000ull; break;
		case 'e': rate = strtoul(optarg, NULL, 0); break;
		case 'a':
			if (!read_allowances(optarg))
				nv_die("nvtaint: --allowed", -EINVAL);
			break;
		case 'f': files[file_count++ % 16] = optarg; break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	}
	if (argc - optind != 2 || own_count > 16 || file_count > 16 || (how && strcmp(how, "argument") && strcmp(how, "buffers"))) {
		usage(stderr);
		return 2;
	}
	tainted_from = strtoul(argv[optind], NULL, 0);
	tainted_to = strtoul(argv[optind + 1], NULL, 0);
	scan_began = wall_ns();
	if (tainted_from >= tainted_to || tainted_from >> 8 != (tainted_to - 1) >> 8 || !scan_works())
		nv_die("nvtaint: numbers that differ in one byte", -EINVAL);
	printf("seed %llu\n", (unsigned long long)seed);
	random_state = seed * 0x9e3779b97f4a7c15ull | 1;
	make(&argument);
	make(&parameters);
	make(&pointed);
	inner = pointed.at;
	/* A real driver makes objects on a GPU only while a process has it open. */
	gpu = nv_open_minor(0);
	for (i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		if (!may(needed[i].kind, needed[i].number))
			nv_die("nvtaint: the list does not allow a client with its objects", -EPERM);
	open_rows("nvtaint: /dev/nvidiactl, client and objects", may(CLASS, 0x90cc));
	error.client = session.client;
	if (!only_allowed)
		nv_sim(ctl, &error);
	for (i = 199; i < 202 && may(CLASS, 0x79); i++)
		nv_subscribe(ctl, session.client, session.subdevice, i);
	for (i = 0; i < file_count; i++)
		read_below(files[i]);
	if (how)
		race(calls, how, rate, until);
	else if (only_allowed)
		each_row();
	for (; !how && calls && wall_ns() < until; calls--) {
		one_call();
		limit_rate(rate);
	}
	print_results();
	return hit_count != 0;
}
