/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The list of allowed calls, for a machine whose GPU others need. Without a list every call is allowed.
 *
 * A line is `control|class|escape NUMBER whole|torn REASON`, and # begins a comment. `torn`: only the driver's code on the
 * processor reads the parameters, so any word of them may be wrong. `whole`: the GPU's firmware reads them too, so send only what nvidia-smi
 * would send.
 */
#ifndef NVALLOW_H
#define NVALLOW_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define CONTROL "control"
#define CLASS "class"
#define ESCAPE "escape"

static struct {
	char kind[8];
	uint32_t number;
	bool torn, reported;
} allowances[64];
static unsigned allowance_count;
static bool only_allowed;

/* Returns whether every line of the list is valid. */
static inline bool read_allowances(const char *path)
{
	FILE *list = fopen(path, "r");
	char line[512], how[8];
	bool understood = list != NULL;

	only_allowed = true;
	while (understood && fgets(line, sizeof(line), list)) {
		if (line[0] == '#' || line[0] == '\n')
			continue;
		understood = allowance_count < 64 && sscanf(line, "%7s %x %7s", allowances[allowance_count].kind,
							    &allowances[allowance_count].number, how) == 3 &&
			     (!strcmp(how, "whole") || !strcmp(how, "torn"));
		allowances[allowance_count++ % 64].torn = !strcmp(how, "torn");
	}
	if (list)
		fclose(list);
	return understood && allowance_count;
}

/* Prints each kind before its first call: if the machine hangs, the last line names the call. */
static inline bool may(const char *kind, uint32_t number)
{
	unsigned i;

	for (i = 0; only_allowed && i < allowance_count; i++) {
		if (allowances[i].number != number || strcmp(allowances[i].kind, kind))
			continue;
		if (!allowances[i].reported)
			printf("asks %s 0x%x\n", kind, number);
		fflush(stdout);
		allowances[i].reported = true;
		return true;
	}
	return !only_allowed;
}

static inline bool may_be_torn(uint32_t control)
{
	unsigned i;

	for (i = 0; i < allowance_count; i++)
		if (allowances[i].number == control && !strcmp(allowances[i].kind, CONTROL))
			return allowances[i].torn;
	return !only_allowed;
}

#endif
