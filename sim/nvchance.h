/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Chance that can be had again: what the callers that ask anything at all ask follows from a seed, which is not 0.
 */
#ifndef NVCHANCE_H
#define NVCHANCE_H

#include <stdint.h>

static uint64_t chance;

static inline uint32_t any(void)
{
	chance ^= chance << 13;
	chance ^= chance >> 7;
	chance ^= chance << 17;
	return chance >> 24;
}

static inline uint32_t below(uint32_t n)
{
	return any() % n;
}

#endif
