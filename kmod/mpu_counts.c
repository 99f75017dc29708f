// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What is counted: translations and reasons, by the numbers that the core gives them.
 *
 * Knows nothing of calls; other files report here.
 */
#include <linux/kprobes.h>
#include <linux/percpu.h>
#include "mpu.h"

/* Static, because the kernel shows a module's parameters before its first function runs and after its last. */
static DEFINE_PER_CPU(u64 [MPU_COUNTERS], mpu_counters);

void mpu_count(u32 counter)
{
	if (counter < MPU_COUNTERS)
		this_cpu_inc(mpu_counters[counter]);
}
NOKPROBE_SYMBOL(mpu_count);

void mpu_count_reason(enum mpu_reason reason)
{
	mpu_count(mpu_rs_reason(reason));
}

u64 mpu_counter(u32 counter)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(mpu_counters, cpu)[counter]);
	return sum;
}
