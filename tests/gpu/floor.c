// Runs a program under a minimal supervisor, which lets each RM control continue: the lower bound of a supervisor's cost.
//
//	floor [--read] PROGRAM [ARGUMENT...]     --read: it also reads the call's argument, and checks that the caller still waits
#define _GNU_SOURCE
#include <err.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

// Linux 6.6.
#define SET_FLAGS _IOW('!', 4, unsigned long long)
#define SYNC_WAKE_UP 1ull

// A listener for the RM controls (0xc020462a) of this process.
static int listen_to_controls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xc020462a, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

// Until no process is left that could call.
static void let_continue(int listener, int reads)
{
	struct pollfd polled = { listener, POLLIN, 0 };

	// Before Linux 6.11 the end of the last process wakes poll(2) alone.
	while (poll(&polled, 1, -1) < 0 || polled.revents & POLLIN) {
		struct seccomp_notif call = { 0 };

		// A caller may have been killed meanwhile.
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call))
			continue;
		if (reads) {
			char argument[32];
			struct iovec here = { argument, sizeof(argument) }, there = { (void *)call.data.args[2], sizeof(argument) };

			process_vm_readv(call.pid, &here, 1, &there, 1, 0);
			ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call.id);
		}
		struct seccomp_notif_resp answer = { .id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };

		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
	}
}

int main(int count, char **args)
{
	int reads = count > 1 && !strcmp(args[1], "--read"), listener, status, pair[2];

	if (count < 2 + reads)
		errx(2, "usage: floor [--read] PROGRAM [ARGUMENT...]");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		err(3, "socketpair");
	pid_t program = fork();

	if (!program) {
		close(pair[0]);
		listener = listen_to_controls();
		// Running the program closes it, so we must have it before.
		if (listener < 0 || write(pair[1], &listener, sizeof(listener)) < 0)
			err(3, "no listener");
		if (read(pair[1], &status, sizeof(status)) <= 0)
			return 3;
		execvp(args[1 + reads], args + 1 + reads);
		err(3, "%s", args[1 + reads]);
	}
	close(pair[1]);
	if (read(pair[0], &listener, sizeof(listener)) != sizeof(listener))
		return 3;
	listener = syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, program, 0), listener, 0);
	if (listener < 0 || ioctl(listener, SET_FLAGS, SYNC_WAKE_UP) || write(pair[0], &reads, sizeof(reads)) < 0)
		err(3, "no listener with synchronous wake-ups");
	let_continue(listener, reads);
	waitpid(program, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
