// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A caller that makes every call it can, senseless ones as well, and looks through every byte that comes back for process ids that occur nowhere
 * by chance, and for kernel addresses. What it does follows from a seed, which it prints.
 *
 * Prints `calls N accepted M rows K of T`, `unanswered NAME` for rows that were never accepted, one line for each kind and place of a
 * find, and `hits H` with how many of each kind. Exit 0: nothing found; 1: something found; 2: usage, or no device.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>

#include "nvallow.h"
#include "nvchance.h"
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

/* Beside those of nvrows.h: what is older, newer, asked by its process alone, or a number without names. */
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

/* --- Chance. --- */

static bool one_in(uint32_t n)
{
	return !below(n);
}

/* No byte of it is one that tainted numbers or kernel addresses have. */
static uint32_t harmless_word(void)
{
	uint32_t word = any() & 0x7f7f7f7f;

	return has_byte(word | 0x0101010100000000, tainted_from >> 16) ? 0x11111111 : word;
}

static uint32_t own[16];
static unsigned own_count;

/* The number of a process to ask about: of the set, an own one, or any. */
static uint32_t some_number(bool no_taint)
{
	if (!no_taint && one_in(2))
		return tainted_from + below(one_in(4) ? tainted_to - tainted_from : 256);
	return own_count && !one_in(4) ? own[below(own_count)] : below(300);
}

/* What a word among parameters might be. */
static uint32_t word_for_parameters(void)
{
	static const uint32_t event_indices[] = {
		0, 1, 2, 3, 72, 200, 201, 256, 257, 512, 513, 949, 950, 951, 3999, 4000, 4001, 0x7fffffff, 0x80000000, 0xffffffff,
	};

	switch (below(4)) {
	case 0: return event_indices[below(sizeof(event_indices) / sizeof(event_indices[0]))];
	case 1: return harmless_word();
	case 2: return below(65536) & 0xd0ff;
	default: return some_number(false);
	}
}

/* --- Memory. --- */

/* What a call is given, what it was before the call, and how much of it is not zero. A page without access comes behind. */
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

static void remember(struct area *area, unsigned used)
{
	area->used = (used > area->size ? area->size : used + 7) & ~7u;
	memcpy(area->before, area->at, area->used);
}

/* The last block of an area is looked at by what is not read beyond it. */
static void look_through(struct area *area)
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
	look_through(&argument);
	look_through(&parameters);
	look_through(&pointed);
}

/* --- Calls. --- */

/* At most so many a second. */
static void wait_for_turn(unsigned rate)
{
	struct timespec pause = { 0, rate ? 1000000000 / (rate + 1) : 0 };

	if (rate)
		nanosleep(&pause, NULL);
}

static int gpu = -1;
static unsigned long accepted;

static struct nv_way some_way(void)
{
	struct nv_way chosen = { 0 };

	chosen.xfer = one_in(4);
	if (one_in(8))
		chosen.type = 1 + below(255);
	if (one_in(8))
		chosen.dir = 1 + below(4);
	return chosen;
}

static struct nv_control_arg *control_of(const struct row *row, uint8_t *p)
{
	struct nv_control_arg *arg = (struct nv_control_arg *)argument.at;

	*arg = (struct nv_control_arg){ session.client, handle(row->object), row->cmd, 0, (uintptr_t)p, row->size, 0xdead };
	return arg;
}

/* Where in an area a call's data begins. */
static uint8_t *begin_at(struct area *area, unsigned offset)
{
	area->phase = offset & 3;
	return area->at + offset;
}

/* Sends what stands in the areas; whether the driver took it. */
static bool send_control(struct nv_control_arg *arg)
{
	struct nv_way chosen = some_way();
	int rc;

	if (!may(CONTROL, arg->cmd))
		return false;
	scan_what = arg->cmd;
	scan_size = arg->size;
	if (!only_allowed && one_in(16))
		arg->flags |= 1u << below(9);
	remember(&argument, sizeof(*arg));
	rc = nv_control_send(ctl, arg, &chosen);
	accepted += rc == 0 && arg->status == 0;
	return rc == 0 && arg->status == 0;
}

/* Figures about a process that the caller may not see are as bad as its number. */
static void look_at_figures(const struct row *row, const uint8_t *p)
{
	unsigned i, questions = row->cmd >> 8 == 0xb ? 1 : foreign_count;

	for (i = 0; row->figures && i < questions; i++) {
		unsigned at = row->figures + i * (row->size - 8) / 200;

		if (is_tainted(foreign[i]) && get64(p + at, 0))
			found_one("figures", "parameters", at, foreign[i]);
	}
}

static void ask_about(bool no_taint)
{
	unsigned i;

	foreign_count = 1 + below(one_in(4) ? 64 : 4);
	for (i = 0; i < foreign_count; i++)
		foreign[i] = some_number(no_taint);
}

static void ask_row(unsigned i)
{
	const struct row *row = row_at(i);
	uint8_t *p = begin_at(&parameters, one_in(4) ? 4 * below(16) : one_in(8) ? below(64) : 0);

	ask_about(false);
	inner = begin_at(&pointed, one_in(4) ? below(64) : 0);
	row->fill(p, row);
	/* What has a pointer can have it lead to the parameters themselves. */
	remember(&parameters, row->size <= 32 ? BUFFER : row->size + 256);
	remember(&pointed, row->size <= 32 ? BUFFER : 0);
	if (!send_control(control_of(row, p)))
		return;
	accepted_of[i]++;
	look_at_figures(row, p);
}

static void by_row(void)
{
	ask_row(below(ALL_ROWS));
}

/* A row that something is wrong with. */
static void by_torn_row(void)
{
	const struct row *row = row_at(below(ALL_ROWS)), *other = row_at(below(ALL_ROWS));
	uint8_t *p = begin_at(&parameters, one_in(8) ? BUFFER - row->size : one_in(4) ? below(64) : 0);
	uint32_t objects[] = { session.client, session.device, session.subdevice, profiler, harmless_word() };
	struct nv_control_arg *arg;
	unsigned i, torn = may_be_torn(row->cmd) ? below(4) : 0;

	ask_about(true);
	inner = one_in(4) ? p : begin_at(&pointed, one_in(8) ? BUFFER - below(8192) : 0);
	row->fill(p, row);
	for (i = 0; i < torn; i++)
		put32(p, 4 * below((row->size < 64 ? row->size : 64) / 4), word_for_parameters());
	remember(&parameters, BUFFER);
	remember(&pointed, BUFFER);
	arg = control_of(row, p);
	switch (below(8)) {
	case 0: arg->size = other->size; break;
	case 1: arg->size += 4 * (int)below(5) - 8; break;
	case 2: arg->size = below(BUFFER); break;
	case 3: arg->cmd = other->cmd; break;
	case 4: arg->object = objects[below(5)]; break;
	case 5: arg->client = one_in(2) ? session.client + below(16) - 8 : harmless_word(); break;
	case 6: arg->params = one_in(2) ? 0 : (uintptr_t)inner; break;
	}
	send_control(arg);
}

static void words(uint8_t *p, unsigned bytes)
{
	unsigned i;

	for (i = 0; i + 4 <= bytes; i += 4)
		put32(p, i, one_in(2) ? below(4) : harmless_word());
}

/* Clearing and switching off accounting would leave less to be found. */
static bool spoils(uint32_t cmd)
{
	return cmd == 0xb01 || cmd == 0xb05;
}

/* Any control: those that every client asks, those beside the rows, and numbers that no control has. */
static void by_number(void)
{
	static const uint32_t known_cmds[] = {
		0x101,	    0x201,	0x202,	    0x205,	0x214,	    0x215,	0x21b,	    0x279,	0x289,
		0x00800201, 0x00800292, 0x00800289, 0x20800101, 0x20800102, 0x20800110, 0x2080014a, 0x20800406, 0x20801301,
		0x20801303, 0x20801701, 0x20801801, 0xb02,	0x90cc0101, 0x90cc0102, 0x83de0315, 0x3d05,	0x602,
	};
	static const uint16_t sizes[] = { 0, 1, 4, 8, 12, 16, 24, 32, 40, 48, 68, 72, 128, 132, 264, 268, 2436, 3812, 14408 };
	static const uint32_t classes[] = { 0, 0, 0x80, 0x2080, 0x2080, 0x90cc, 0x83de, 0xc36f };
	uint32_t cmd = one_in(2) ? known_cmds[below(sizeof(known_cmds) / sizeof(known_cmds[0]))] :
				   classes[below(8)] << 16 | (one_in(2) ? below(0x2000) : below(0x10000));
	unsigned size = one_in(3) ? below(512) : sizes[below(sizeof(sizes) / sizeof(sizes[0]))];
	struct nv_control_arg *arg = (struct nv_control_arg *)argument.at;

	if (only_allowed || spoils(cmd))
		return;
	*arg = (struct nv_control_arg){ session.client,
					cmd >> 16 == 0	    ? session.client :
					cmd >> 16 == 0x80   ? session.device :
					cmd >> 16 == 0x90cc ? profiler :
							      session.subdevice,
					cmd, 0, (uintptr_t)parameters.at, size, 0xdead };
	words(parameters.at, size < 64 ? size : 64);
	if (one_in(2))
		put64(parameters.at, 8, (uintptr_t)pointed.at);
	remember(&parameters, size + 4096);
	remember(&pointed, 16384);
	send_control(arg);
}

static void by_alloc(void)
{
	static const uint32_t classes[] = { 0, 1, 0x41, 5, 0x79, 0x7d, 0x40, 0x80, 0x2080, 0x90cc, 0x83de, 0x900e, 0xc36f, 0xc397, 0xc3c0, 0xde };
	struct nv_alloc_arg *arg = (struct nv_alloc_arg *)argument.at;
	uint32_t parents[] = { session.client, session.device, session.subdevice };
	uint32_t class = !only_allowed && one_in(8) ? below(0x10000) : classes[below(sizeof(classes) / sizeof(classes[0]))];
	bool is_root = class < 2 || class == 0x41;
	struct nv_way chosen = some_way();
	int rc;

	*arg = (struct nv_alloc_arg){ is_root ? 0 : session.client, is_root ? 0 : parents[below(3)], 0, class,
				      one_in(4) ? 0 : (uintptr_t)parameters.at, 0, 0xdead };
	if (!may(CLASS, class))
		return;
	if (!only_allowed)
		words(parameters.at, 64);
	put32(parameters.at, 0, class == 0x80 ? session.instance : 0);
	scan_what = ESCAPE_RM_ALLOC;
	scan_size = class;
	remember(&parameters, 4096);
	remember(&argument, sizeof(*arg));
	rc = ioctl(ctl, nv_ioc(ESCAPE_RM_ALLOC, sizeof(*arg), &chosen), arg);
	if (rc == 0 && arg->status == 0) {
		accepted++;
		nv_free(ctl, is_root ? arg->handle : session.client, arg->handle);
	}
}

/* Any escape of the driver's. The simulated one has a number of its own, which no real one has. */
static void by_escape(void)
{
	unsigned nr = one_in(2) ? 200 + below(20) : below(256), size = one_in(4) ? below(8000) : 8 * below(16);
	struct nv_way chosen = some_way();

	if (only_allowed || nr == SIM_ESC_NR || nr == ESCAPE_RM_FREE || nr == ESCAPE_RM_CONTROL || nr == ESCAPE_RM_ALLOC)
		return;
	words(argument.at, size < 64 ? size : 64);
	if (one_in(2))
		put64(argument.at, 8, (uintptr_t)parameters.at);
	words(parameters.at, 64);
	scan_what = nr;
	scan_size = size;
	remember(&argument, size);
	remember(&parameters, 4096);
	chosen.xfer = 0;
	accepted += ioctl(one_in(4) ? gpu : ctl, nv_ioc(nr, size, &chosen), argument.at) == 0;
}

/* Events of the memory limit: every subscriber gets the process that is over it. */
static void by_event(void)
{
	struct nv_way chosen = some_way();
	struct sim_args raise = { .op = SIM_OP_LIMIT, .ring_rotation = 5, .ring_count = below(300) };

	if (!may(ESCAPE, 0x52))
		return;
	if (!only_allowed && one_in(16))
		nv_sim(ctl, &raise);
	scan_what = 0x52;
	scan_size = 16;
	remember(&parameters, 4096);
	accepted += nv_event_data(ctl, begin_at(&parameters, one_in(4) ? below(64) : 0), &chosen) == 0;
}

/* Everything that the nodes and files give: by reading, and by mapping. */
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
				glance("mapping", at, PAGE, true);
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

/* --- Threads that change the argument and the buffers, and one that reads them, while a call runs. --- */

static struct {
	volatile bool stop, argument;
	const struct row *volatile row, *volatile other;
} raced;

static void *changer(void *unused)
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
		/* A pointer that the kernel reads half old and half new leads to whole words. */
		if (!only_allowed && turn & 256)
			word[turn >> 16 & 7] = turn >> 32 & 0x3fc;
		for (i = 0; i < (turn >> 10) % 61; i++)
			breathe();
	}
	return unused;
}

static void *reader(void *unused)
{
	while (!raced.stop) {
		glance("parameters", (const volatile uint64_t *)parameters.at, BUFFER, false);
		glance("pointed", (const volatile uint64_t *)pointed.at, BUFFER, false);
	}
	return unused;
}

static const char *left_out;

/* Whether it came to a call. */
static bool race_once(void)
{
	const struct row *row = row_at(below(ALL_ROWS)), *other = row_at(below(ALL_ROWS));
	struct nv_control_arg *arg;
	int rc;

	scan_call++;
	if (left_out && (!strcmp(row->name, left_out) || !strcmp(other->name, left_out)))
		return false;
	/* What one row's parameters hold is no other's: drivers of era 3 and 4 follow addresses in those of samples. */
	if (only_allowed && (row->object != SUBDEVICE || !may(CONTROL, row->cmd) || !may(CONTROL, HARMLESS)))
		return false;
	scan_what = row->cmd;
	scan_size = row->size;
	ask_about(true);
	inner = pointed.at;
	memset(parameters.at, 0, BUFFER);
	memset(pointed.at, 0, BUFFER);
	row->fill(parameters.at, row);
	arg = control_of(row, parameters.at);
	raced.row = row;
	raced.other = other->object == row->object && !only_allowed ? other : row;
	rc = nv_control_send(ctl, arg, &(struct nv_way){ .xfer = one_in(4) });
	accepted += rc == 0 && ((volatile struct nv_control_arg *)arg)->status == 0;
	glance("parameters", (const volatile uint64_t *)parameters.at, BUFFER, true);
	glance("pointed", (const volatile uint64_t *)pointed.at, BUFFER, true);
	return true;
}

static void race(unsigned long calls, const char *what, unsigned rate, uint64_t until)
{
	pthread_t thread[2];
	unsigned i;

	raced.argument = !strcmp(what, "argument");
	raced.row = raced.other = &rows[0];
	if (pthread_create(&thread[0], NULL, changer, NULL) || pthread_create(&thread[1], NULL, reader, NULL))
		nv_die("nvtaint: thread", -EAGAIN);
	while (calls && wall_ns() < until)
		if (race_once()) {
			calls--;
			wait_for_turn(rate);
		}
	raced.stop = true;
	for (i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
}

/* --- */

/* Every row once as nvidia-smi would ask it, before anything that is wrong. */
static void each_row(void)
{
	unsigned i;

	for (i = 0; i < ALL_ROWS; i++) {
		begin_call();
		ask_row(i);
		end_call();
	}
}

static void one_call(void)
{
	begin_call();
	switch (below(16)) {
	default: by_row(); break;
	case 0:
	case 1:
	case 2: by_torn_row(); break;
	case 3:
	case 4: by_number(); break;
	case 5: by_alloc(); break;
	case 6: by_escape(); break;
	case 7: by_event(); break;
	}
	end_call();
}

/* What a session is made of. */
static const struct {
	const char *kind;
	uint32_t number;
} needed[] = { { CLASS, 0x41 }, { CONTROL, 0x201 }, { CONTROL, 0x215 }, { CLASS, 0x80 }, { CLASS, 0x2080 } };

static void usage(FILE *to)
{
	fputs("usage: nvtaint [--seed N] [--calls N] [--seconds N] [--rate N] [--allowed LIST] [--raced argument|buffers [--leave-out ROW]]\n"
	      "               [--own PID]... [--read PATH]... FROM TO\n"
	      "  Asks the driver everything, and looks for the numbers from FROM to below TO, and for kernel addresses, in all that comes back.\n"
	      "  --seconds  ends after so long, whatever --calls says\n"
	      "  --rate   at most so many calls a second\n"
	      "  --allowed  asks nothing that this file does not list (sim/nvallow.h), each row as it should be before anything is wrong\n"
	      "  --raced  threads change the argument and the buffers, or the buffers alone, and read them while calls run\n"
	      "           except on one row; what they find is not always of the call that is named beside it\n"
	      "  --own    a number of this container's that may be asked about\n"
	      "  --read   a file or folder that is looked through as well\n",
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
	print_finds();
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
				nv_die("nvtaint: a list of what may be asked", -EINVAL);
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
	chance = seed * 0x9e3779b97f4a7c15ull | 1;
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
		wait_for_turn(rate);
	}
	print_results();
	return hit_count != 0;
}
