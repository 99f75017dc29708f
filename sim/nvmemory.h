/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Shared by the hostile callers: memory at which a copy fails or that no other process can read, threads, time, and the set of seen numbers.
 */
#ifndef NVMEMORY_H
#define NVMEMORY_H

#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "nvrm.h"

#define GONE -1
#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

/* Kinds of memory: two pages, and what becomes of either once the block is in place. */
static const struct kind {
	const char *name;
	int flags, first, second;
	bool at_edge;
	uint64_t tag; /* in the address's top byte */
} kinds[] = {
	{ "private", MAP_PRIVATE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, false },
	{ "shared", MAP_SHARED, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, false },
	{ "over-an-edge", MAP_PRIVATE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, true },
	{ "readonly", MAP_PRIVATE, PROT_READ, PROT_READ, false },
	{ "shared-readonly", MAP_SHARED, PROT_READ, PROT_READ, false },
	{ "none", MAP_PRIVATE, PROT_NONE, PROT_NONE, false },
	{ "into-readonly", MAP_PRIVATE, PROT_READ | PROT_WRITE, PROT_READ, true },
	{ "into-none", MAP_PRIVATE, PROT_READ | PROT_WRITE, PROT_NONE, true },
	{ "into-nothing", MAP_PRIVATE, PROT_READ | PROT_WRITE, GONE, true },
#ifdef __LP64__
	{ "tagged", MAP_PRIVATE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, false, 0x05 },
	{ "tagged-high", MAP_PRIVATE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, false, 0xb7 },
	{ "tagged-over-an-edge", MAP_PRIVATE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, true, 0x0f },
	{ "tagged-readonly", MAP_PRIVATE, PROT_READ, PROT_READ, false, 0x05 },
#endif
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* Copies bytes into memory of a kind. If the kind has an edge, `head` bytes are before the edge of the page. */
static inline void *placed(const struct kind *kind, const void *bytes, size_t size, unsigned head)
{
	uint8_t *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, kind->flags | MAP_ANONYMOUS, -1, 0);
	uint8_t *at = pages + (kind->at_edge ? PAGE - head : 0);

	nv_check(pages != MAP_FAILED, "mmap", -errno);
	memcpy(at, bytes, size);
	if (mprotect(pages, PAGE, kind->first) ||
	    (kind->second == GONE ? munmap(pages + PAGE, PAGE) : mprotect(pages + PAGE, PAGE, kind->second)))
		nv_die("mprotect", -errno);
	return at;
}

/* A page that only this process can read (memfd_secret). */
static inline void *secret_page(void)
{
	int fd = syscall(SYS_memfd_secret, 0);
	void *page;

	nv_check(fd >= 0 && !ftruncate(fd, PAGE), "memfd_secret", -errno);
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	nv_check(page != MAP_FAILED, "mmap", -errno);
	return page;
}

/* Memory whose first bytes are missing until they are supplied through `fd` (userfaultfd). */
static inline void *missing_memory(size_t size, size_t missing, int *fd)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	*fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	reg.range.start = (uintptr_t)memory;
	reg.range.len = missing;
	if (memory == MAP_FAILED || *fd < 0 || ioctl(*fd, UFFDIO_API, &api) || ioctl(*fd, UFFDIO_REGISTER, &reg))
		nv_die("userfaultfd", -errno);
	return memory;
}

static inline pthread_t nv_thread(void *(*work)(void *), void *with)
{
	pthread_t thread;

	nv_check(!pthread_create(&thread, NULL, work, with), "a thread", -EAGAIN);
	return thread;
}

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static uint8_t seen[1 << 19]; /* one bit per possible process id (22 bits) */

static inline void note_seen(uint32_t v)
{
	if (v < 1u << 22)
		__atomic_fetch_or(&seen[v >> 3], 1 << (v & 7), __ATOMIC_RELAXED);
}

/* `saw N` for each number but 0. */
static inline void print_seen(void)
{
	unsigned i;

	for (i = 1; i < 1u << 22; i++)
		if (seen[i >> 3] & (1 << (i & 7)))
			printf("saw %u\n", i);
}

#endif
