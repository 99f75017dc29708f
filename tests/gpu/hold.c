// hold MIB SECONDS: a process that has so much memory of the first GPU for so long, by CUDA. It tells when it has it.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
	unsigned long long memory;
	int device, wrong;

	if (!cuda || count != 3) {
		fprintf(stderr, "%s\n", cuda ? "usage: hold MIB SECONDS" : dlerror());
		return 3;
	}
	int (*init)(unsigned int) = dlsym(cuda, "cuInit");
	int (*get)(int *, int) = dlsym(cuda, "cuDeviceGet");
	int (*retain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
	int (*use)(void *) = dlsym(cuda, "cuCtxSetCurrent");
	int (*allocate)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");

	if ((wrong = init(0)) || (wrong = get(&device, 0)) || (wrong = retain(&context, device)) ||
	    (wrong = use(context)) || (wrong = allocate(&memory, (size_t)atoi(words[1]) << 20))) {
		fprintf(stderr, "CUDA says %d\n", wrong);
		return 1;
	}
	printf("process %d\n", getpid());
	fflush(stdout);
	sleep(atoi(words[2]));
	return 0;
}
