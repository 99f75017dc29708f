// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Prints the PID of a process whose command line cannot be read, even by root. The process reads a page of a file through
 * /proc/self/mem. The kernel holds its mmap_lock until the file system answers, and this program's FUSE file system never does. A
 * second thread waits to change the memory, and all readers wait behind it. Exits with 77 if the kernel refuses FUSE.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static char *page, byte;
static int wakes[2];
static pid_t reader;

static void *read_page(void *mem)
{
	return (void *)pread((int)(intptr_t)mem, &byte, 1, (uintptr_t)page);
}

static void *wait_for_mmap_lock(void *unused)
{
	read(wakes[0], unused, 1);
	return mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void serve(int fd)
{
	static char in[1 << 20];
	static struct {
		struct fuse_out_header header;
		union {
			struct fuse_init_out init;
			struct fuse_entry_out entry;
			struct fuse_attr_out attr;
			struct fuse_open_out open;
		};
	} out;
	struct fuse_in_header *request = (struct fuse_in_header *)in;

	while (read(fd, in, sizeof(in)) > 0) {
		struct fuse_attr file = { .ino = 2, .mode = S_IFREG | 0400, .nlink = 1, .size = 4096 };
		struct fuse_attr folder = { .ino = 1, .mode = S_IFDIR | 0700, .nlink = 1 };
		uint32_t len = 0;

		memset(&out, 0, sizeof(out));
		switch (request->opcode) {
		case FUSE_INIT:
			out.init = (struct fuse_init_out){ .major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096 };
			len = sizeof(out.init);
			break;
		case FUSE_LOOKUP:
			out.entry = (struct fuse_entry_out){ .nodeid = 2, .entry_valid = 999, .attr_valid = 999, .attr = file };
			len = sizeof(out.entry);
			break;
		case FUSE_GETATTR:
			out.attr = (struct fuse_attr_out){ .attr_valid = 999, .attr = request->nodeid == 2 ? file : folder };
			len = sizeof(out.attr);
			break;
		case FUSE_OPEN:
			len = sizeof(out.open);
			break;
		case FUSE_READ:
			write(wakes[1], "", 1);
			usleep(200000);
			printf("%d\n", (int)reader);
			fflush(stdout);
			continue;
		default:
			out.header.error = -ENOSYS;
		}
		out.header.unique = request->unique;
		out.header.len = sizeof(out.header) + len;
		write(fd, &out, out.header.len);
	}
}

static int block(const char *folder)
{
	char path[4096];
	pthread_t thread;
	int mem = open("/proc/self/mem", O_RDONLY), file;

	snprintf(path, sizeof(path), "%s/file", folder);
	file = open(path, O_RDONLY);
	page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
	if (page == MAP_FAILED || pthread_create(&thread, NULL, wait_for_mmap_lock, path) ||
	    pthread_create(&thread, NULL, read_page, (void *)(intptr_t)mem))
		return 1;
	return pause();
}

int main(int argc, char **argv)
{
	int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char options[64];

	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
	if (argc < 2 || fuse < 0 || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("fuse", argv[1], "fuse", 0, options))
		return 77;
	if (pipe(wakes))
		return 1;
	reader = fork();
	if (reader)
		serve(fuse);
	/* The file system ends with its last descriptor, and then its reader can be killed. */
	close(fuse);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	return block(argv[1]);
}
