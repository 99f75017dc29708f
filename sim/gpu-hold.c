// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Uses a simulated GPU: makes RM clients with a compute object, and sets their figures by the simulator's private ioctl. Prints `ready <pid>`,
 * and runs until standard input closes or SIGTERM comes. --help prints the usage.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "nvrm.h"

#define MAX_CLIENTS 256

static struct {
	unsigned gpu, clients, forks, util, enc, fbc, gi, ci, class;
	unsigned long mem;
	int thread, dead_thread, hwpm, acct, leave, errors;
	const char *name;
} opt = { .clients = 1, .mem = 64, .gi = SIM_NO_INSTANCE, .ci = SIM_NO_INSTANCE, .class = 0xc3c0 };

static int ctl = -1, ctl_gpu = -1, simulated;
static struct nv_session sessions[MAX_CLIENTS];

static void usage(FILE *to)
{
	fputs("usage: gpu-hold [--gpu N] [--mem MIB] [--clients N] [--class HEX] [--thread | --dead-thread] [--util PCT]\n"
	      "                [--enc[=N]] [--fbc[=N]] [--hwpm] [--acct] [--mig GI:CI] [--fork N | --leave] [--name COMM]\n"
	      "                [--error]\n"
	      "Holds a simulated GPU until standard input closes or SIGTERM. --mem counts for each client.\n",
	      to);
}

/* NV_MEMORY_ALLOCATION_PARAMS: the size is the u64 at 64. */
static void allocate(struct nv_session *s, uint64_t bytes)
{
	uint8_t params[128] = { 0 };
	uint32_t memory = 0;
	int rc;

	memcpy(params + 64, &bytes, sizeof(bytes));
	rc = nv_alloc(ctl, s->client, s->device, &memory, 0x40, params, sizeof(params));
	nv_must("gpu-hold: memory", rc);
}

static void cause_error(struct nv_session *s)
{
	struct sim_args args = { .op = SIM_OP_ERROR, .client = s->client, .gpu = opt.gpu };

	nv_must("gpu-hold: error report", nv_sim(ctl, &args));
}

/*
 * Without hardware the real driver has no channels (tests/real-driver). An MPS object, which is only an entry in its client, makes the process
 * a compute process. There are no figures.
 */
static void use_made_up_gpu(struct nv_session *s)
{
	nv_object(ctl, s->client, s->client, 0x900e, "gpu-hold: MPS object");
	if (opt.mem)
		allocate(s, (uint64_t)opt.mem << 20);
}

static void make_client(unsigned index)
{
	struct nv_session *s = &sessions[index];
	uint32_t channel;
	struct sim_args args;
	int rc = nv_session_open(ctl, opt.gpu, s);

	nv_must("gpu-hold: client, device and subdevice", rc);
	if (!simulated) {
		use_made_up_gpu(s);
		return;
	}
	channel = nv_object(ctl, s->client, s->device, 0xc36f, "gpu-hold: channel");
	nv_object(ctl, s->client, channel, opt.class, "gpu-hold: engine object");

	memset(&args, 0, sizeof(args));
	args.op = SIM_OP_LOAD;
	args.client = s->client;
	args.gpu = opt.gpu;
	args.load.gi = opt.gi;
	args.load.ci = opt.ci;
	if (index == 0) {
		args.load.util[0] = opt.util * 50; /* memory half as busy as the engine */
		args.load.util[1] = opt.util * 100;
		args.load.util[2] = opt.enc ? opt.util * 20 : 0;
		args.load.enc_sessions = opt.enc;
		args.load.fbc_sessions = opt.fbc;
	}
	rc = nv_sim(ctl, &args);
	nv_must("gpu-hold: load", rc);
	if (opt.mem)
		allocate(s, (uint64_t)opt.mem << 20);
	if (opt.errors && index == 0)
		cause_error(s);
}

static void make_clients(void)
{
	unsigned i;

	for (i = 0; i < opt.clients; i++)
		make_client(i);
}

static void *client_thread(void *unused)
{
	make_clients();
	pthread_mutex_unlock(unused); /* wakes the main thread */
	while (!opt.dead_thread)
		pause();
	return NULL;
}

static void enable_accounting(void)
{
	uint32_t client = 0, status, params[3] = { 0 };
	int rc = nv_alloc(ctl, 0, 0, &client, 0x41, NULL, 0);

	nv_must("gpu-hold: client", rc);
	params[0] = nv_gpu_id(ctl, client, opt.gpu);
	rc = nv_control(ctl, client, client, 0xb01, params, sizeof(params), NULL, &status);
	if (rc || status)
		nv_die("gpu-hold: accounting (needs root)", rc ? rc : (int)status);
	nv_free(ctl, client, client);
}

static void reserve_hwpm(void)
{
	struct nv_session *s = &sessions[0];
	uint32_t profiler = nv_object(ctl, s->client, s->subdevice, 0x90cc, "gpu-hold: profiler object"), status;
	uint8_t ctxsw = 0;
	int rc = nv_control(ctl, s->client, profiler, 0x90cc0101, &ctxsw, 1, NULL, &status);

	if (rc || status)
		nv_die("gpu-hold: profiler reservation", rc ? rc : (int)status);
}

static void register_process(void)
{
	ctl = nv_open_minor(255);
	nv_check(ctl >= 0, "gpu-hold: /dev/nvidiactl", -errno);
	ctl_gpu = nv_open_minor(opt.gpu);
	nv_check(ctl_gpu >= 0, "gpu-hold: GPU device", -errno);
	simulated = nv_is_simulated(ctl);
	if (opt.acct)
		enable_accounting();
	if (opt.thread || opt.dead_thread) {
		static pthread_mutex_t made = PTHREAD_MUTEX_INITIALIZER;
		pthread_t thread;

		pthread_mutex_lock(&made);
		if (pthread_create(&thread, NULL, client_thread, &made))
			nv_die("gpu-hold: thread", -EAGAIN);
		if (opt.dead_thread)
			pthread_join(thread, NULL);
		else
			pthread_mutex_lock(&made);
	} else {
		make_clients();
	}
	if (opt.hwpm)
		reserve_hwpm();
}

static volatile sig_atomic_t stop;

static void on_term(int sig)
{
	(void)sig;
	stop = 1;
}

static void hold(void)
{
	struct pollfd in = { .fd = 0, .events = POLLIN };
	char junk[256];

	while (!stop) {
		if (poll(&in, 1, 1000) <= 0)
			continue;
		if (read(0, junk, sizeof(junk)) <= 0)
			return;
	}
}

static void child(int ready)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (opt.name)
		prctl(PR_SET_NAME, opt.name);
	register_process();
	if (write(ready, "r", 1) != 1)
		_exit(2);
	while (!stop)
		pause();
	_exit(0);
}

static void hold_with_children(void)
{
	unsigned i, up = 0;
	int ready[2];
	char c;

	nv_check(!pipe(ready), "gpu-hold: pipe", -errno);
	for (i = 0; i < opt.forks; i++) {
		pid_t pid = fork();

		nv_check(pid >= 0, "gpu-hold: fork", -errno);
		if (!pid) {
			close(ready[0]);
			child(ready[1]);
		}
		printf("child %d\n", (int)pid);
	}
	close(ready[1]);
	while (up < opt.forks && read(ready[0], &c, 1) == 1)
		up++;
	if (up != opt.forks) {
		fprintf(stderr, "gpu-hold: only %u of %u children registered\n", up, opt.forks);
		exit(2);
	}
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	hold();
	signal(SIGTERM, SIG_IGN);
	kill(0, SIGTERM);
	while (wait(NULL) > 0)
		;
}

/* This process ends, but its clients stay, because a child keeps the files open. */
static int leave(void)
{
	pid_t pid = fork();

	nv_check(pid >= 0, "gpu-hold: fork", -errno);
	if (pid) {
		printf("ready %d\n", (int)getpid());
		fflush(stdout);
		return 0;
	}
	hold();
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "gpu", 1, NULL, 'g' }, { "mem", 1, NULL, 'm' }, { "clients", 1, NULL, 'c' }, { "class", 1, NULL, 'C' },
		{ "thread", 0, NULL, 't' }, { "dead-thread", 0, NULL, 'd' }, { "util", 1, NULL, 'u' },
		{ "enc", 2, NULL, 'e' }, { "fbc", 2, NULL, 'f' }, { "hwpm", 0, NULL, 'w' }, { "acct", 0, NULL, 'a' },
		{ "mig", 1, NULL, 'i' }, { "fork", 1, NULL, 'F' }, { "name", 1, NULL, 'n' }, { "leave", 0, NULL, 'l' },
		{ "error", 0, NULL, 'E' },
		{ "help", 0, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct sigaction sa = { .sa_handler = on_term };
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 'g': opt.gpu = strtoul(optarg, NULL, 0); break;
		case 'm': opt.mem = strtoul(optarg, NULL, 0); break;
		case 'c': opt.clients = strtoul(optarg, NULL, 0); break;
		case 'C': opt.class = strtoul(optarg, NULL, 16); break;
		case 't': opt.thread = 1; break;
		case 'd': opt.dead_thread = 1; break;
		case 'u': opt.util = strtoul(optarg, NULL, 0); break;
		case 'e': opt.enc = optarg ? strtoul(optarg, NULL, 0) : 1; break;
		case 'f': opt.fbc = optarg ? strtoul(optarg, NULL, 0) : 1; break;
		case 'w': opt.hwpm = 1; break;
		case 'a': opt.acct = 1; break;
		case 'i':
			if (sscanf(optarg, "%u:%u", &opt.gi, &opt.ci) != 2)
				nv_die("gpu-hold: --mig wants GI:CI", -EINVAL);
			break;
		case 'F': opt.forks = strtoul(optarg, NULL, 0); break;
		case 'n': opt.name = optarg; break;
		case 'l': opt.leave = 1; break;
		case 'E': opt.errors = 1; break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	}
	if (optind != argc || !opt.clients || opt.clients > MAX_CLIENTS) {
		usage(stderr);
		return 2;
	}
	sigaction(SIGTERM, &sa, NULL);
	if (opt.name)
		prctl(PR_SET_NAME, opt.name);
	if (opt.forks) {
		setpgid(0, 0); /* so that kill(0) reaches the children and no other process */
		hold_with_children();
		return 0;
	}
	register_process();
	if (opt.leave)
		return leave();
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	hold();
	return 0;
}
