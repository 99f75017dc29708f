/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * A reproducible random number generator (xorshift). The seed must not be 0.
 */
#ifndef NVRANDOM_H
#define NVRANDOM_H

#include <stdint.h>

static uint64_t random_state;

static inline uint32_t random_u32(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state >> 24;
}

static inline uint32_t random_below(uint32_t n)
{
	return random_u32() % n;
}

#endif
