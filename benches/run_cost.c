// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What it costs to run a program, from fork to its end, by the guest's clock (see ioctl_cost.c).
 *
 * usage: run_cost RUNS PROGRAM [ARGUMENT...]   prints `LEAST MOST`; the program's own output goes to /dev/null.
 * Exits 1 when the program does not end well.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t run(char **words)
{
	uint64_t began = now();
	int status;
	pid_t child = fork();

	if (child < 0)
		perror("fork"), exit(1);
	if (child == 0) {
		dup2(open("/dev/null", O_RDWR), 1);
		execvp(words[0], words);
		perror(words[0]);
		_exit(127);
	}
	if (waitpid(child, &status, 0) != child || status) {
		fprintf(stderr, "%s ended with wait status %#x\n", words[0], status);
		exit(1);
	}
	return now() - began;
}

int main(int argc, char **argv)
{
	uint64_t least = UINT64_MAX, most = 0, took;

	if (argc < 3 || atoi(argv[1]) < 1) {
		fputs("usage: run_cost RUNS PROGRAM [ARGUMENT...]\n", stderr);
		return 2;
	}
	for (int left = atoi(argv[1]); left > 0; left--) {
		took = run(argv + 2);
		least = took < least ? took : least;
		most = took > most ? took : most;
	}
	printf("%llu %llu\n", (unsigned long long)least, (unsigned long long)most);
	return 0;
}
