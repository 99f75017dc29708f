/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Between overrides.c, which knows the kernel's headers, and standins.c, which knows NVIDIA's: plain types only.
 */
#ifndef MADE_UP_OVERRIDES_H
#define MADE_UP_OVERRIDES_H

/* The driver's own functions, by name, as they are found when the module is loaded. */
#define USED(name) extern void *real_##name;
#define OVERRIDE(name, value, is_void, argument, offset, byte, count)
#define STANDIN(name, by)
#include "table.h"
#undef USED
#undef OVERRIDE
#undef STANDIN

/* What the driver was seen to account with; none until it has. */
extern void *seen_accounts;

/* The calling process, as the driver numbers it. */
unsigned int calling_process(void);

/* The process of the sample at this place, and how busy it kept the GPU in percent; 0 when there is no such sample. */
unsigned int sample(unsigned int at, unsigned int *percent);

/* The class to look for instead, given the class asked for. */
unsigned int standin_class(unsigned int asked, unsigned int internal);

#endif
