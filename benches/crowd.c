// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Fills a guest with processes that have nothing to do with a GPU, spread over PID namespaces, to see whether a cost depends on them.
 *
 * usage: crowd NAMESPACES PROCESSES   makes so many of each, prints `ready N` (N processes made) and stays. Ending it does not end
 * its namespaces; powering the guest off does.
 * They share one address space: to the kernel's PID tables that is no difference, and the guest's memory holds ten times as many.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define STACK 4096

static char *stacks;
static unsigned each;
static volatile unsigned made;

static int sleeper(void *unused)
{
	for (;;)
		pause();
	return *(int *)unused;
}

static void start(int (*body)(void *), unsigned slot, int flags)
{
	if (clone(body, stacks + (slot + 1ul) * STACK, CLONE_VM | flags, (void *)(unsigned long)slot) < 0) {
		perror("crowd: clone");
		exit(1);
	}
	made++;
}

/* Process 1 of a namespace: the kernel ends the others with it. */
static int first(void *slot)
{
	for (unsigned i = 1; i < each; i++)
		start(sleeper, (unsigned long)slot + i, 0);
	return sleeper(NULL);
}

int main(int argc, char **argv)
{
	unsigned namespaces = argc == 3 ? atoi(argv[1]) : 0, processes = argc == 3 ? atoi(argv[2]) : 0;

	if (!namespaces || processes < namespaces) {
		fputs("usage: crowd NAMESPACES PROCESSES\n", stderr);
		return 2;
	}
	each = processes / namespaces;
	stacks = mmap(NULL, (unsigned long)namespaces * each * STACK, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (stacks == MAP_FAILED) {
		perror("crowd: stacks");
		return 1;
	}
	for (unsigned i = 0; i < namespaces; i++) {
		unsigned before = made;

		start(first, i * each, CLONE_NEWPID | SIGCHLD);
		while (made < before + each)
			usleep(1000); /* one namespace at a time: its processes count in `made`, too */
	}
	printf("ready %u\n", made);
	fflush(stdout);
	pause();
	return 0;
}
