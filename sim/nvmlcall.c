// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Calls NVML's process queries, as a monitoring program does, and prints one row per line. LD_LIBRARY_PATH selects the
 * release of libnvidia-ml.so.1.
 * Structures are those of NVIDIA's public NVML API.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void *device_t;

struct util_sample {
	unsigned pid;
	unsigned long long time;
	unsigned sm, mem, enc, dec;
};

struct process_v2 {
	unsigned pid;
	unsigned long long mem;
	unsigned gi, ci;
};

struct process_v1 {
	unsigned pid;
	unsigned long long mem;
};

struct acct_stats {
	unsigned gpu, mem;
	unsigned long long max_mem, time, start;
	unsigned running, reserved[5];
};

/* Words of an encoder session and of a capture session; each begins with its id and its PID. */
#define ENC_SESSION 8
#define FBC_SESSION 12

static void *lib;
static device_t device;

static void *need(const char *name)
{
	void *f = dlsym(lib, name);

	if (!f) {
		fprintf(stderr, "nvmlcall: this library has no %s\n", name);
		exit(2);
	}
	return f;
}

static int done(const char *what, int rc, unsigned count)
{
	printf("%s rc=%d count=%u\n", what, rc, rc ? 0 : count);
	return rc != 0;
}

static unsigned long long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static int util(unsigned long long since)
{
	int (*f)(device_t, struct util_sample *, unsigned *, unsigned long long) = need("nvmlDeviceGetProcessUtilization");
	static struct util_sample s[1024];
	unsigned n = 0, i;
	int rc = f(device, NULL, &n, since);

	if (rc == 7) /* insufficient size: n is the number of samples */
		rc = f(device, s, &n, since);
	done("util", rc, n);
	for (i = 0; !rc && i < n; i++)
		printf("pid %u time %llu sm %u mem %u enc %u dec %u\n", s[i].pid, s[i].time, s[i].sm, s[i].mem, s[i].enc, s[i].dec);
	return rc;
}

static int procs(const char *kind)
{
	char name[80];
	unsigned n = 1024, i;
	int rc, version;

	for (version = 3; version > 1; version--) {
		static struct process_v2 p[1024];
		int (*f)(device_t, unsigned *, struct process_v2 *);

		snprintf(name, sizeof(name), "nvmlDeviceGet%sRunningProcesses_v%d", kind, version);
		f = dlsym(lib, name);
		if (!f)
			continue;
		rc = f(device, &n, p);
		done(name, rc, n);
		for (i = 0; !rc && i < n; i++)
			printf("pid %u mem %llu gi %d ci %d\n", p[i].pid, p[i].mem, (int)p[i].gi, (int)p[i].ci);
		return rc;
	}
	{
		static struct process_v1 p[1024];
		int (*f)(device_t, unsigned *, struct process_v1 *);

		snprintf(name, sizeof(name), "nvmlDeviceGet%sRunningProcesses", kind);
		f = need(name);
		rc = f(device, &n, p);
		done(name, rc, n);
		for (i = 0; !rc && i < n; i++)
			printf("pid %u mem %llu\n", p[i].pid, p[i].mem);
	}
	return rc;
}

static int acct(void)
{
	int (*pids)(device_t, unsigned *, unsigned *) = need("nvmlDeviceGetAccountingPids");
	int (*stats)(device_t, unsigned, struct acct_stats *) = need("nvmlDeviceGetAccountingStats");
	static unsigned p[4000];
	unsigned n = 4000, i;
	int rc = pids(device, &n, p);

	done("acct", rc, n);
	for (i = 0; !rc && i < n; i++) {
		struct acct_stats s;
		int r;

		memset(&s, 0, sizeof(s));
		r = stats(device, p[i], &s);
		printf("pid %u rc %d gpu %d maxmem %lld running %u\n", p[i], r, r ? -1 : (int)s.gpu, r ? -1ll : (long long)s.max_mem,
		       s.running);
	}
	return rc;
}

static int sessions(const char *what, const char *name, unsigned words)
{
	int (*f)(device_t, unsigned *, void *) = need(name);
	static unsigned s[512 * FBC_SESSION];
	unsigned n = 512, i;
	int rc = f(device, &n, s);

	done(what, rc, n);
	for (i = 0; !rc && i < n; i++)
		printf("pid %u session %u\n", s[i * words + 1], s[i * words]);
	return rc;
}

/* Runs one query. Returns whether it failed. */
static int query(const char *word)
{
	if (!strcmp(word, "compute"))
		return procs("Compute") != 0;
	if (!strcmp(word, "graphics"))
		return procs("Graphics") != 0;
	if (!strcmp(word, "mps"))
		return procs("MPSCompute") != 0;
	if (!strcmp(word, "util"))
		return util(0) != 0;
	if (!strncmp(word, "util=-", 6))
		return util(now_us() - strtoull(word + 6, NULL, 0) * 1000) != 0;
	if (!strncmp(word, "util=", 5))
		return util(strtoull(word + 5, NULL, 0)) != 0;
	if (!strcmp(word, "acct"))
		return acct() != 0;
	if (!strcmp(word, "enc"))
		return sessions("enc", "nvmlDeviceGetEncoderSessions", ENC_SESSION) != 0;
	if (!strcmp(word, "fbc"))
		return sessions("fbc", "nvmlDeviceGetFBCSessions", FBC_SESSION) != 0;
	fprintf(stderr, "nvmlcall: no query %s\n", word);
	exit(2);
}

int main(int argc, char **argv)
{
	int (*init)(void), (*get)(unsigned, device_t *);
	unsigned gpu = 0;
	int i, rc, bad = 0;

	if (argc > 2 && !strcmp(argv[1], "--gpu")) {
		gpu = strtoul(argv[2], NULL, 0);
		argv += 2;
		argc -= 2;
	}
	if (argc < 2) {
		fprintf(stderr, "usage: nvmlcall [--gpu N] compute|graphics|mps|util|util=SINCE_US|util=-LAST_MS|acct|enc|fbc...\n");
		return 2;
	}
	lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "nvmlcall: %s\n", dlerror());
		return 2;
	}
	init = need("nvmlInit_v2");
	get = need("nvmlDeviceGetHandleByIndex_v2");
	rc = init();
	if (!rc)
		rc = get(gpu, &device);
	if (rc) {
		printf("init rc=%d count=0\n", rc);
		return 1;
	}
	for (i = 1; i < argc; i++)
		bad |= query(argv[i]);
	return bad;
}
