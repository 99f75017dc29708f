/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by overrides.c, which includes the kernel's headers, and standins.c, which includes NVIDIA's: plain types only.
 */
#ifndef MADE_UP_OVERRIDES_H
#define MADE_UP_OVERRIDES_H

/* Pointers to the driver's functions, set when the module is loaded. */
#define USED(name) extern void *real_##name;
#define OVERRIDE(name, value, is_void, argument, offset, byte, count)
#define STANDIN(name, by)
#include "table.h"
#undef USED
#undef OVERRIDE
#undef STANDIN

/* What the driver was seen to account with; none until it has. */
extern void *seen_accounts;

/* The calling process's PID, as the driver uses it. */
unsigned int calling_process(void);

/* The process of a sample and its utilisation in percent; 0 if there is no such sample. */
unsigned int sample(unsigned int at, unsigned int *percent);

/* Maps a requested class to the class to look for. */
unsigned int standin_class(unsigned int asked, unsigned int internal);

#endif
