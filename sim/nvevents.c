// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Fetches memory-limit events as a hostile or an unlucky caller does: into memory that refuses a copy, with an argument that no other process can
 * read, or while a thread exchanges the descriptor or the address. The simulated driver's private ioctl causes the events.
 * Exit 0; 2: usage or no device, or the kernel cannot do this.
 */
#define _GNU_SOURCE
#include "nvmemory.h"

#define INDEX 200
#define NO_REQUEST 0xff /* no driver has it */

struct event {
	uint32_t object, index, info32, info16;
};

static struct nv_way way;
static struct nv_session session;
static int ctl;

static void usage(FILE *to)
{
	fputs("usage: nvevents [--xfer] COMMAND\n"
	      "  memory                  fetches with event or argument in memory of each kind: `event|argument KIND ret=R status=S got=G left=N`\n"
	      "  swap MODE CALLS         fetches while a thread changes, MODE: dup2 (the descriptor's file), close (the descriptor), where (the\n"
	      "                          event's address), request (the wrapper's request: 0x52 or an invalid one); `calls N accepted M`,\n"
	      "                          then `saw N` for each process that an event named\n"
	      "  secret                  fetches with the argument in memory that no other process can read (memfd_secret): `ret=R status=S`\n"
	      "  poll CALLS              fetches without a waiting event: `ns N` for each call\n",
	      to);
}

static void limits_reached(void)
{
	struct sim_args raise = { .op = SIM_OP_LIMIT, .ring_rotation = 5 };

	nv_must("nvevents: limits", nv_sim(ctl, &raise));
}

static unsigned drain(void)
{
	struct event event;
	unsigned count = 0;

	while (!nv_event_data(ctl, &event, NULL))
		count++;
	return count;
}

static int fetch(int fd, struct nv_event_arg *arg)
{
	return nv_escape(fd, 0x52, arg, sizeof(*arg), &way);
}

/* Across an edge the kernel may or may not write the part before it, so that part is not checked. */
static int cmd_memory(void)
{
	unsigned i;

	for (i = 0; i < KINDS; i++) {
		bool is_whole = kinds[i].second & PROT_WRITE, is_seen = kinds[i].second != PROT_NONE;
		struct event none = { 0 }, event = { 0 }, *at = placed(&kinds[i], &none, sizeof(none), 8);
		struct nv_event_arg arg = { (uintptr_t)at, 0, 0xdead }, *placed_arg;
		int rc;

		if (kinds[i].flags != MAP_PRIVATE || kinds[i].second == GONE || kinds[i].tag)
			continue;
		limits_reached();
		rc = fetch(ctl, &arg);
		printf("event %s ret=%d status=0x%x more=%u got=%d", kinds[i].name, rc, arg.status, arg.more, is_whole && at->index == INDEX);
		printf(" left=%u\n", drain());

		limits_reached();
		arg = (struct nv_event_arg){ (uintptr_t)&event, 0, 0xdead };
		placed_arg = placed(&kinds[i], &arg, sizeof(arg), 8);
		rc = fetch(ctl, placed_arg);
		printf("argument %s ret=%d status=0x%x got=%d", kinds[i].name, rc, is_seen ? placed_arg->status : 0, event.index == INDEX);
		printf(" left=%u\n", drain());
	}
	return 0;
}

static struct {
	volatile struct nv_event_arg arg;
	volatile struct nv_xfer_arg wrapper;
	struct event events[2];
	int fd, other;
	char mode;
	volatile int stop;
} race;

static void *swap_thread(void *unused)
{
	unsigned turn = 0;

	while (!race.stop) {
		bool ours = turn++ & 1;

		if (race.mode == 'd' || (race.mode == 'c' && ours))
			dup2(ours ? ctl : race.other, race.fd);
		else if (race.mode == 'c')
			close(race.fd);
		else if (race.mode == 'r')
			race.wrapper.cmd = ours ? 0x52 : NO_REQUEST;
		else
			race.arg.data = (uintptr_t)&race.events[ours];
	}
	return unused;
}

/* Sends the exchanged request, or a whole call if something else is exchanged. */
static int fetch_raced(void)
{
	return race.mode == 'r' ? ioctl(race.fd, nv_ioc(211, sizeof(race.wrapper), NULL), &race.wrapper) :
				  fetch(race.fd, (struct nv_event_arg *)&race.arg);
}

/* Makes at least `least` calls, and until one is accepted: on a busy machine the other thread can be stopped while the wrong file is in place. */
static int cmd_swap(const char *mode, unsigned long least)
{
	time_t patience = time(NULL) + 60;
	unsigned long calls = 0, accepted = 0;
	pthread_t thread;
	unsigned i;

	race.mode = mode[0];
	race.other = open("/dev/null", O_RDWR);
	race.fd = dup(ctl);
	race.arg.data = (uintptr_t)race.events;
	race.wrapper = (struct nv_xfer_arg){ 0x52, sizeof(race.arg), (uintptr_t)&race.arg };
	if (!strchr("dcwr", race.mode) || race.other < 0 || race.fd < 0 || pthread_create(&thread, NULL, swap_thread, NULL))
		nv_die("nvevents: swap", -EINVAL);
	while (calls < least || (!accepted && time(NULL) < patience)) {
		if (calls++ % 16 == 0)
			limits_reached();
		memset(race.events, 0, sizeof(race.events));
		race.arg.status = 0xdead;
		if (fetch_raced() || race.arg.status)
			continue;
		accepted++;
		for (i = 0; i < 2; i++)
			if (race.events[i].index == INDEX)
				note_seen(race.events[i].info32);
	}
	race.stop = 1;
	pthread_join(thread, NULL);
	printf("calls %lu accepted %lu\n", calls, accepted);
	print_seen();
	return 0;
}

static int cmd_secret(void)
{
	struct nv_event_arg *arg = secret_page();
	struct event event = { 0 };
	int rc;

	limits_reached();
	*arg = (struct nv_event_arg){ (uintptr_t)&event, 0, 0xdead };
	rc = fetch(ctl, arg);
	printf("ret=%d status=0x%x\n", rc, arg->status);
	return 0;
}

static int cmd_poll(unsigned long calls)
{
	struct event event;
	unsigned long i;
	double from;

	drain();
	from = now();
	for (i = 0; i < calls; i++)
		nv_event_data(ctl, &event, &way);
	printf("ns %lu\n", (unsigned long)((now() - from) * 1e9 / (calls ? calls : 1)));
	return 0;
}

int main(int n, char **args)
{
	int rc;

	if (n > 1 && !strcmp(args[1], "--xfer")) {
		way.xfer = 1;
		args++;
		n--;
	}
	ctl = n > 1 ? nv_open_minor(255) : -1;
	if (ctl < 0) {
		usage(stderr);
		return 2;
	}
	nv_open_minor(0);
	rc = nv_session_open(ctl, 0, &session);
	if (!rc)
		rc = nv_subscribe(ctl, session.client, session.subdevice, INDEX);
	nv_must("nvevents: subscription", rc);
	if (!strcmp(args[1], "memory"))
		return cmd_memory();
	if (!strcmp(args[1], "swap") && n == 4)
		return cmd_swap(args[2], strtoul(args[3], NULL, 10));
	if (!strcmp(args[1], "secret"))
		return cmd_secret();
	if (!strcmp(args[1], "poll") && n == 3)
		return cmd_poll(strtoul(args[2], NULL, 10));
	usage(stderr);
	return 2;
}
