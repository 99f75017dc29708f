// SPDX-License-Identifier: GPL-2.0
/*
 * Overrides functions of nvidia.ko with kprobes, by the rows of overrides.toml (table.h): some return at once, others run a function of ours.
 *
 * This file has the probes. standins.c has the functions that use NVIDIA's structures.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>

#include "overrides.h"

/* A function that returns at once. */
struct override {
	const char *name;
	unsigned long value;
	bool is_void;
	u8 argument, byte;
	u16 offset, count;
	struct kprobe probe;
};

#define USED(name)
#define STANDIN(name, by)
#define OVERRIDE(name, value, is_void, argument, offset, byte, count) { #name, value, is_void, argument, byte, offset, count },
static struct override overrides[] = {
#include "table.h"
};
#undef OVERRIDE
#undef STANDIN

/* A function that is replaced by another. */
struct standin {
	const char *name;
	void (*by)(void);
	struct kprobe probe;
};

#define OVERRIDE(name, value, is_void, argument, offset, byte, count)
#define STANDIN(name, by) void by(void);
#include "table.h"
#undef STANDIN
#define STANDIN(name, by) { #name, by },
static struct standin standins[] = {
#include "table.h"
};
#undef STANDIN
#undef USED

#define STANDIN(name, by)
#define USED(name) void *real_##name;
#include "table.h"
#undef USED
#define USED(name) { #name, &real_##name },
static const struct {
	const char *name;
	void **at;
} used[] = {
#include "table.h"
};
#undef USED

static unsigned int samples[32];
static int samples_count;
module_param_array(samples, uint, &samples_count, 0644);
MODULE_PARM_DESC(samples, "processes, as the host numbers them, and percent, in turn: who keeps the GPU how busy");

void *seen_accounts;

unsigned int calling_process(void)
{
	return task_tgid_nr(current);
}

unsigned int sample(unsigned int at, unsigned int *percent)
{
	if (2 * at + 1 >= samples_count)
		return 0;
	*percent = samples[2 * at + 1];
	return samples[2 * at];
}

static void *argument(struct pt_regs *regs, int number)
{
	return (void *)regs_get_kernel_argument(regs, number - 1);
}

static int return_at_once(struct kprobe *probe, struct pt_regs *regs)
{
	const struct override *override = container_of(probe, struct override, probe);

	if (override->count)
		memset(argument(regs, override->argument) + override->offset, override->byte, override->count);
	if (!override->is_void)
		regs->ax = override->value;
	regs->ip = *(unsigned long *)regs->sp;
	regs->sp += sizeof(long);
	return 1;
}

static int run_standin(struct kprobe *probe, struct pt_regs *regs)
{
	regs->ip = (unsigned long)container_of(probe, struct standin, probe)->by;
	return 1;
}

/* With a post handler the kernel never optimizes a probe into a jump, from which a handler cannot change the instruction pointer. */
static void keep_probe_unoptimized(struct kprobe *probe, struct pt_regs *regs, unsigned long flags)
{
}

static int see_accounts(struct kprobe *probe, struct pt_regs *regs)
{
	seen_accounts = argument(regs, 1);
	return 0;
}

static int change_class(struct kprobe *probe, struct pt_regs *regs)
{
	regs->dx = standin_class(regs->si, regs->dx);
	return 0;
}

static struct kprobe accounts = { .symbol_name = "gpuacctStartGpuAccounting_IMPL", .pre_handler = see_accounts };
static struct kprobe classes = { .symbol_name = "gpuGetProcWithObject_IMPL", .pre_handler = change_class, .post_handler = keep_probe_unoptimized };

static int register_probe(struct kprobe *probe, const char *name, kprobe_pre_handler_t handler)
{
	int error;

	probe->symbol_name = name;
	probe->pre_handler = handler;
	probe->post_handler = keep_probe_unoptimized;
	error = register_kprobe(probe);
	if (error) {
		pr_err("made_up_overrides: nvidia.ko has no %s (%d)\n", name, error);
		/* Marks the probe as not registered. */
		probe->addr = NULL;
	}
	return error;
}

static void remove_probe(struct kprobe *probe)
{
	if (probe->addr)
		unregister_kprobe(probe);
	probe->addr = NULL;
}

/* A module can look up a function's address only with a kprobe. */
static int find_function(const char *name, void **at)
{
	struct kprobe probe = { .symbol_name = name };
	int error = register_kprobe(&probe);

	if (error) {
		pr_err("made_up_overrides: nvidia.ko has no %s (%d)\n", name, error);
		return error;
	}
	*at = probe.addr;
	unregister_kprobe(&probe);
	return 0;
}

static void remove_all(void)
{
	int i;

	remove_probe(&classes);
	remove_probe(&accounts);
	for (i = 0; i < ARRAY_SIZE(standins); i++)
		remove_probe(&standins[i].probe);
	for (i = 0; i < ARRAY_SIZE(overrides); i++)
		remove_probe(&overrides[i].probe);
}

static int register_all(void)
{
	int i, error = 0;

	for (i = 0; !error && i < ARRAY_SIZE(used); i++)
		error = find_function(used[i].name, used[i].at);
	for (i = 0; !error && i < ARRAY_SIZE(overrides); i++)
		error = register_probe(&overrides[i].probe, overrides[i].name, return_at_once);
	for (i = 0; !error && i < ARRAY_SIZE(standins); i++)
		error = register_probe(&standins[i].probe, standins[i].name, run_standin);
	if (!error)
		error = register_kprobe(&accounts);
	if (!error)
		error = register_kprobe(&classes);
	return error;
}

static int __init overrides_init(void)
{
	int error = register_all();

	if (error)
		remove_all();
	return error;
}

static void __exit overrides_exit(void)
{
	remove_all();
}

module_init(overrides_init);
module_exit(overrides_exit);
MODULE_DESCRIPTION("Lets NVIDIA's driver take a made-up GPU for a started one, for tests");
MODULE_LICENSE("GPL");
