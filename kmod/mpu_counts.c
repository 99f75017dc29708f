// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Counters of translations and reasons. The Rust core numbers them.
 */
#include <linux/kprobes.h>
#include <linux/percpu.h>
#include "mpu.h"

/* Static, because the kernel shows the module's parameters before mpu_init() and after mpu_exit(). */
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
