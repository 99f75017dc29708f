// hold MIB SECONDS [HIDDEN]: allocates memory of the first GPU by CUDA, prints a line, and exits after SECONDS. HIDDEN makes its use of
// the driver hard to find in /proc: with `threads`, another thread uses it and the first one has ended; with `nodes`, the device nodes are
// renamed.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int mebibytes, seconds, renames;

static int allocated(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
	unsigned long long memory;
	int device, wrong;

	if (!cuda) {
		fprintf(stderr, "%s\n", dlerror());
		return 3;
	}
	int (*init)(unsigned int) = dlsym(cuda, "cuInit");
	int (*get)(int *, int) = dlsym(cuda, "cuDeviceGet");
	int (*retain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
	int (*use)(void *) = dlsym(cuda, "cuCtxSetCurrent");
	int (*allocate)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");

	if ((wrong = init(0)) || (wrong = get(&device, 0)) || (wrong = retain(&context, device)) ||
	    (wrong = use(context)) || (wrong = allocate(&memory, (size_t)mebibytes << 20))) {
		fprintf(stderr, "CUDA says %d\n", wrong);
		return 1;
	}
	return 0;
}

static void *hold(void *unused)
{
	static const char *const nodes[] = { "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1" };
	char from[64], to[64];
	int wrong = allocated();
	unsigned int i;

	if (wrong)
		exit(wrong);
	for (i = 0; renames && i < sizeof(nodes) / sizeof(*nodes); i++) {
		snprintf(from, sizeof(from), "/dev/%s", nodes[i]);
		snprintf(to, sizeof(to), "/dev/other-%u", i);
		// There may be no second GPU, and no uvm-tools.
		if (rename(from, to) && (!i || !strcmp(nodes[i], "nvidia0"))) {
			perror(from);
			exit(1);
		}
	}
	printf("process %d\n", getpid());
	fflush(stdout);
	sleep(seconds);
	exit(0);
	return unused;
}

int main(int count, char **words)
{
	const char *hidden = count > 3 ? words[3] : "";
	pthread_t thread;

	if (count < 3) {
		fprintf(stderr, "usage: hold MIB SECONDS [threads|nodes]\n");
		return 3;
	}
	mebibytes = atoi(words[1]);
	seconds = atoi(words[2]);
	renames = !strcmp(hidden, "nodes");
	if (strcmp(hidden, "threads"))
		hold(NULL);
	if (pthread_create(&thread, NULL, hold, NULL))
		return 3;
	pthread_exit(NULL);
}
