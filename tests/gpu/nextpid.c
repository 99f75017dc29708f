// nextpid PID: gives the next process the lowest free PID from PID on, by ns_last_pid. Without that file, it forks until it gets there.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long wanted = argc == 2 ? atol(argv[1]) : 0, forks, pid;
	FILE *last = fopen("/proc/sys/kernel/ns_last_pid", "w");

	if (wanted < 2)
		return 2;
	if (last) {
		fprintf(last, "%ld", wanted - 1);
		if (fclose(last) == 0)
			return 0;
	}
	for (forks = 0; forks < 70000; forks++) {
		pid = vfork();
		if (pid == 0)
			_exit(0);
		if (pid < 0)
			return 1;
		waitpid(pid, NULL, 0);
		// The last stop before it; a busy machine can jump over a few.
		if (pid < wanted && pid >= wanted - 8)
			return 0;
	}
	return 1;
}
