/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Searches memory for kernel addresses, and, at every offset and in both byte orders, for numbers of a set that does not occur by chance.
 * Bytes that were there before the call are no hits. The current time is no hit either, because its low bytes can be anything.
 */
#ifndef NVSCAN_H
#define NVSCAN_H

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvrm.h"

/*
 * The set: the numbers from `tainted_from` to below `tainted_to`. They differ in their lowest byte only, which is never 0: a smaller number that
 * is shifted by a byte is not in the set.
 */
static uint32_t tainted_from, tainted_to;

/*
 * If no PID is larger than 65535, two of its bytes are 0, and neighbouring fields in memory can look like a PID. Then only aligned words count.
 */
static inline bool whole_words_only(void)
{
	return tainted_from < 0x10000;
}

static inline bool is_tainted(uint32_t number)
{
	return number - tainted_from < tainted_to - tainted_from;
}

/* Excludes the end of the address space, where errors and -1 are, and a -1 of 32 bits above another field. */
static inline bool is_kernel_address(uint64_t v)
{
#ifdef __aarch64__
	/*
	 * Addresses have 48 or 52 bits. Less than 1 MiB behind a -1 of 16 bits is another field. Control 0x607 writes the complement of an index
	 * behind the index: as an address of 52 bits, that would be in the linear map beyond 64 GiB.
	 */
	bool complement = v >> 48 != 0xffff && ((v >> 48 ^ v >> 32) & 0xffff) == 0xffff;

	return v >= 0xfff0000000000000 && v < 0xffffffff00000000 && (v & 0xffffffffffff) >= 0x100000 && !complement;
#endif
	return v >= 0xffff800000000000 && v < 0xffffffffff000000 && (v < 0xffffffff00000000 || v >= 0xffffffff80000000);
}

static inline uint64_t wall_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* The time of the start. A clock is within an hour of it, in nanoseconds or microseconds. */
static uint64_t scan_began;
#define HOUR 3600000000000ull

static inline bool is_clock(uint64_t v)
{
	return v - (scan_began - HOUR) < 2 * HOUR || v - (scan_began - HOUR) / 1000 < 2 * HOUR / 1000;
}

/* A hit: each kind and place once, with a count. */
struct hit_place {
	const char *kind, *where;
	uint32_t what;
	unsigned size, offset;
	uint64_t number;
	unsigned long times, call;
};

static struct hit_place hit_places[256];
static unsigned hit_place_count;
static unsigned long hit_count;

/* The hits of each kind, including those for which hit_places had no room. */
static struct {
	const char *kind;
	unsigned long hits;
} kinds[] = { { "number", 0 }, { "swapped", 0 }, { "address", 0 }, { "text", 0 }, { "figures", 0 } };
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* The current call: its index, its control and the size of its parameters. */
static unsigned long scan_call;
static uint32_t scan_what;
static unsigned scan_size;

static inline void record_hit(const char *kind, const char *where, unsigned offset, uint64_t number)
{
	unsigned i;

	__atomic_fetch_add(&hit_count, 1, __ATOMIC_RELAXED);
	for (i = 0; i < KINDS; i++)
		if (!strcmp(kinds[i].kind, kind))
			__atomic_fetch_add(&kinds[i].hits, 1, __ATOMIC_RELAXED);
	for (i = 0; i < hit_place_count; i++) {
		struct hit_place *f = &hit_places[i];

		if (f->kind == kind && f->where == where && f->what == scan_what && f->size == scan_size && f->offset == offset) {
			f->times++;
			return;
		}
	}
	i = __atomic_fetch_add(&hit_place_count, hit_place_count < 255, __ATOMIC_RELAXED);
	hit_places[i] = (struct hit_place){ kind, where, scan_what, scan_size, offset, number, 1, scan_call };
}

static inline bool has_byte(uint64_t v, uint8_t byte)
{
	uint64_t other = v ^ (0x0101010101010101ull * byte);

	return (other - 0x0101010101010101ull) & ~other & 0x8080808080808080ull;
}

/*
 * A number whose lowest byte equals its highest reads the same in both byte orders, one byte apart. It is no hit if it was there before.
 */
static inline bool is_palindrome(const uint8_t *now, const uint8_t *before)
{
	uint32_t number = get32(now, 0);

	return number == get32(before, 0) && is_tainted(number) && (number & 0xff) == number >> 16;
}

/*
 * Checks the windows that begin in a changed block or in the three bytes before it. `bytes` has the block with 8 bytes before and 12 behind.
 * Addresses are checked only at `phase` beyond a multiple of four: elsewhere, half of a -1 and its neighbour look like an address. If the caller
 * wrote the upper half, the window is no hit: that half is at another place in the next call.
 */
static inline void scan_block(const char *where, const uint8_t bytes[28], const uint8_t *before, unsigned offset, int first,
			      int phase)
{
	uint8_t seen[28];
	int at;

	memcpy(seen, bytes, sizeof(seen));
	for (at = phase; at <= 20; at += 4)
		if (is_clock(get64(bytes + at, 0)))
			memset(seen + at, 0, 8);
	for (at = phase + (first && offset ? 4 : 8); at < 16; at += 4)
		if (is_kernel_address(get64(seen + at, 0)) && get32(bytes + at + 4, 0) != get32(before + at - 4, 0))
			record_hit("address", where, offset + at - 8, get64(seen + at, 0));
	for (at = 8 + first; at < 16; at++) {
		uint32_t number = get32(seen + at, 0);

		if (at - 8 + (int)offset < 0 || number == get32(before + at - 8, 0) || (whole_words_only() && (at & 3) != phase))
			continue;
		if (is_tainted(number))
			record_hit("number", where, offset + at - 8, number);
		else if (is_tainted(__builtin_bswap32(number)) && !is_palindrome(seen + at + 1, before + at - 7))
			record_hit("swapped", where, offset + at - 8, __builtin_bswap32(number));
	}
}

/*
 * Scans the changed blocks of `length` bytes (a multiple of 8). Both buffers have 8 more bytes at either end.
 */
static inline void scan(const char *where, const uint8_t *now, const uint8_t *before, unsigned length, unsigned phase)
{
	uint8_t mark = tainted_from >> 16;
	bool was_changed = false;
	unsigned i;

	for (i = 0; i < length; i += 8) {
		uint64_t block = get64(now + i, 0), next;
		bool changed = block != get64(before + i, 0);

		if (changed) {
			uint8_t bytes[28] = { 0 };

			/* Behind the last block, only 8 bytes can be read. */
			memcpy(bytes, now + i - 8, i + 8 < length ? sizeof(bytes) : 24);
			next = get64(now + i + 8, 0);
			if (has_byte(block, mark) || has_byte(next, mark) || (!was_changed && has_byte(get64(now + i - 8, 0), mark)) ||
			    has_byte(block, 0xff) || has_byte(next, 0xff))
				scan_block(where, bytes, before + i, i, was_changed ? 0 : -3, phase & 3);
		}
		was_changed = changed;
	}
}

/*
 * The same for memory that others write: aligned words only, and no query may contain a number of the set. `addresses` is false while the
 * driver copies: half of a -1 that is being overwritten looks like an address.
 */
static inline void scan_words(const char *where, const volatile uint64_t *now, unsigned length, bool addresses)
{
	unsigned i;

	for (i = 0; i < length / 8; i++) {
		uint64_t v = now[i];

		if (!v || is_clock(v))
			continue;
		if (is_tainted(v))
			record_hit("number", where, 8 * i, (uint32_t)v);
		if (is_tainted(v >> 32))
			record_hit("number", where, 8 * i + 4, v >> 32);
		if (addresses && is_kernel_address(v))
			record_hit("address", where, 8 * i, v);
	}
}

/* Searches text for decimal numbers and hexadecimal addresses. */
static inline void scan_text(const char *where, const char *text, unsigned length)
{
	unsigned i = 0, began;
	unsigned long number;
	char *end;

	while (i < length) {
		if (!isxdigit((unsigned char)text[i])) {
			i++;
			continue;
		}
		for (began = i; i < length && isxdigit((unsigned char)text[i]); i++)
			;
		number = strtoul(text + began, &end, 10);
		if (end == text + i && number <= UINT32_MAX && is_tainted(number))
			record_hit("text", where, began, number);
		if (i - began == 16 && is_kernel_address(strtoull(text + began, NULL, 16)))
			record_hit("address", where, began, strtoull(text + began, NULL, 16));
	}
}

/* Tests the search itself: whether it finds one hit of each kind. */
static inline bool scan_works(void)
{
	static const char text[] = "pid 3141121, ffff888012345678 314112";
	static uint8_t now[96], before[96];
	uint32_t number = tainted_from + 1, swapped = __builtin_bswap32(number), index = 3 | ~3u << 16;
	uint32_t palindrome = (tainted_from & ~0xffu) | tainted_from >> 16;
	uint64_t address = 0xffff888012345678, clock = wall_ns() - number;
	/* A clock in microseconds, whose lower half and the zeros before it look like an address. */
	uint64_t late = ((scan_began / 1000) & ~0xffffffffull) | 0xffff9123;
	unsigned i, aligned = whole_words_only() ? ~3u : ~0u;
	bool works;

	memcpy(now + 8 + (5 & aligned), &number, 4);
	memcpy(now + 8 + (18 & aligned), &swapped, 4);
	memcpy(now + 8 + 28, &address, 8);
	memcpy(now + 8 + 40, &clock, 8);
	memcpy(now + 8 + 76, &index, 4);
	memcpy(now + 8 + (62 & aligned), &number, 4);
	memcpy(before + 8 + (62 & aligned), &number, 4);
	memcpy(now + 8 + 53, &palindrome, 4);
	memcpy(before + 8 + 53, &palindrome, 4);
	before[8 + 52] = 0x11;
	scan("", now + 8, before + 8, 80, 0);
	works = hit_place_count == 3 && hit_count == 3;
	memset(now, 0, sizeof(now));
	memcpy(now + 8 + (62 & aligned), &number, 4);
	memcpy(now + 8 + (70 & aligned), &number, 4);
	scan("", now + 8, before + 8, 80, 0);
	scan_text("", text, sizeof(text) - 1);
	works = works && hit_count == (is_tainted(3141121) ? 6u : 5u);
	memset(now, 0, sizeof(now));
	memset(before, 0, sizeof(before));
	now[8] = 0x11;
	late -= is_clock(late) ? 0 : 1ull << 32;
	memcpy(now + 8 + 11, &late, 8);
	scan("", now + 8, before + 8, 80, 3);
	works = works && hit_count == (is_tainted(3141121) ? 6u : 5u);
	hit_place_count = hit_count = 0;
	for (i = 0; i < KINDS; i++)
		kinds[i].hits = 0;
	memset(hit_places, 0, sizeof(hit_places));
	return works;
}

static inline void print_hits(void)
{
	unsigned i;

	for (i = 0; i < hit_place_count; i++) {
		const struct hit_place *f = &hit_places[i];

		printf("hit %s 0x%llx decimal %llu control 0x%x size %u in %s at %u times %lu first-call %lu\n", f->kind,
		       (unsigned long long)f->number, (unsigned long long)f->number, f->what, f->size, f->where, f->offset,
		       f->times, f->call);
	}
	printf("hits %lu", hit_count);
	for (i = 0; i < KINDS; i++)
		printf(" %s %lu", kinds[i].kind, kinds[i].hits);
	printf("\n");
}

#endif
