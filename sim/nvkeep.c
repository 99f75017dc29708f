// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Keeps a node of the driver open in a chosen way, and makes no client. Prints `ready <pid>`, and runs until standard input closes or it is
 * killed. --help prints the usage.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "nvrm.h"

static const char *node = "/dev/nvidiactl";
static int access_mode = O_RDWR;

static int open_node(void)
{
	int fd = open(node, access_mode | O_CLOEXEC);

	nv_check(fd >= 0, node, -errno);
	return fd;
}

static void hold(void)
{
	char junk[256];

	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	while (read(0, junk, sizeof(junk)) > 0)
		;
	_exit(0);
}

/* Keeps the node open in the file table of a second thread alone. */
static void *thread(void *first)
{
	if (first)
		pthread_join(*(pthread_t *)first, NULL);
	nv_check(!unshare(CLONE_FILES), "nvkeep: unshare", -errno);
	open_node();
	hold();
	return NULL;
}

static void by_thread(bool first_ends)
{
	static pthread_t first;
	pthread_t second;

	first = pthread_self();
	if (pthread_create(&second, NULL, thread, first_ends ? &first : NULL))
		nv_die("nvkeep: thread", -EAGAIN);
	if (first_ends)
		pthread_exit(NULL);
	pthread_join(second, NULL);
}

/* Keeps it open by a mapping, with the descriptor closed. */
static void by_mapping(void)
{
	long page = sysconf(_SC_PAGESIZE);
	int fd = open_node();

	nv_check(mmap(NULL, page, PROT_READ, MAP_SHARED, fd, SIM_EMPTY_MAPPING * page) != MAP_FAILED, "nvkeep: mmap", -errno);
	close(fd);
	hold();
}

/* Keeps it open in a child, after the parent that opened it has ended. */
static void by_child(void)
{
	pid_t parent = getpid(), pid;

	open_node();
	pid = fork();
	nv_check(pid >= 0, "nvkeep: fork", -errno);
	if (!pid) {
		while (getppid() == parent)
			usleep(1000);
		hold();
	}
	_exit(0);
}

/* Keeps it open in flight: sent to a socket of this process, and in no file table. */
static void by_socket(void)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec byte = { .iov_base = "x", .iov_len = 1 };
	struct msghdr message = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int pair[2], fd = open_node();

	nv_check(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "nvkeep: socketpair", -errno);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	nv_check(sendmsg(pair[0], &message, 0) == 1, "nvkeep: sendmsg", -errno);
	close(fd);
	hold();
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";

	if (argc > 2)
		node = argv[2];
	/* Access mode 3: for ioctl(2) alone, neither reading nor writing. */
	if (!strcmp(way, "ioctl"))
		access_mode = O_ACCMODE;
	if (!strcmp(way, "open") || !strcmp(way, "ioctl")) {
		open_node();
		hold();
	} else if (!strcmp(way, "thread")) {
		by_thread(false);
	} else if (!strcmp(way, "leader")) {
		by_thread(true);
	} else if (!strcmp(way, "mapping")) {
		by_mapping();
	} else if (!strcmp(way, "child")) {
		by_child();
	} else if (!strcmp(way, "socket")) {
		by_socket();
	}
	fputs("usage: nvkeep open|ioctl|thread|leader|mapping|child|socket [NODE]\n"
	      "Keeps a node of the driver open (/dev/nvidiactl) until standard input closes.\n",
	      stderr);
	return 2;
}
