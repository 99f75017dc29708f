// SPDX-License-Identifier: GPL-2.0
/*
 * Replacements of NVIDIA's functions that need a GPU. Compiled with the headers and the flags of one release. Calls the driver's functions by
 * the addresses that overrides.c found.
 */
#include "gpu/mem_mgr/mem_desc.h"
#include "gpu/mem_mgr/heap.h"
#include "gpu/mem_mgr/mem_mgr.h"
#include "mem_mgr/video_mem.h"
#include "diagnostics/gpu_acct.h"
#include "gpu/device/device.h"
#include "gpu/gpu.h"
#include "kernel/gpu/mig_mgr/kernel_mig_manager.h"
#include "compute/mps_api.h"
#include "class/cl0040.h"
#include "class/cl900e.h"
#include "ctrl/ctrl2080/ctrl2080gpu.h"
#include "ctrl/ctrl2080/ctrl2080perf.h"

#include "overrides.h"

/* An address that is never read; 0 would mean no address. */
#define SOMEWHERE 0x1000000

/* No process, in a sample. */
#define NO_PROCESS 0xffffffff

/* The time of the samples, in microseconds: later than any that clients remember. */
#define SAMPLE_TIME 1795306161000000ULL

NV_STATUS standin_memory_construct(VideoMemory *video, CALL_CONTEXT *context, RS_RES_ALLOC_PARAMS_INTERNAL *params);
void standin_memory_destruct(VideoMemory *video);
NV_STATUS standin_control(void *rpc, NvHandle client, NvHandle object, NvU32 command, void *params, NvU32 size);

/* Measures the process's memory and updates its peak, as the driver does after an allocation. */
static void account(OBJGPU *gpu)
{
	__typeof__(&gpuFindClientInfoWithPidIterator_IMPL) measure = real_gpuFindClientInfoWithPidIterator_IMPL;
	__typeof__(&gpuacctUpdateProcPeakFbUsage_IMPL) update = real_gpuacctUpdateProcPeakFbUsage_IMPL;
	NV2080_CTRL_SMC_SUBSCRIPTION_INFO instance = { 0 };
	NV2080_CTRL_GPU_PID_INFO_DATA held = { 0 };
	MIG_INSTANCE_REF whole = { 0 };
	NvU32 pid = calling_process();

	if (!seen_accounts || !gpu->getProperty(gpu, PDB_PROP_GPU_ACCOUNTING_ON))
		return;
	instance.computeInstanceId = PARTITIONID_INVALID;
	instance.gpuInstanceId = PARTITIONID_INVALID;
	measure(gpu, pid, 0, classId(Memory), &held, &instance, &whole, NV_TRUE);
	update(seen_accounts, gpu->gpuInstance, pid, 0, held.vidMemUsage.memPrivate + held.vidMemUsage.memSharedOwned);
}

NV_STATUS standin_memory_construct(VideoMemory *video, CALL_CONTEXT *context, RS_RES_ALLOC_PARAMS_INTERNAL *params)
{
	__typeof__(&memConstructCommon_IMPL) construct = real_memConstructCommon_IMPL;
	__typeof__(&memdescCreate) create = real_memdescCreate;
	NV_MEMORY_ALLOCATION_PARAMS *wanted = params->pAllocParams;
	Memory *memory = staticCast(video, Memory);
	MEMORY_DESCRIPTOR *description = NULL;
	NV_STATUS status;

	if (RS_IS_COPY_CTOR(params) || !wanted)
		return NV_ERR_NOT_SUPPORTED;
	status = create(&description, memory->pGpu, wanted->size, 0, NV_TRUE, ADDR_FBMEM, NV_MEMORY_UNCACHED, 0);
	if (status != NV_OK)
		return status;
	description->_pteArray[0] = SOMEWHERE;
	status = construct(memory, NV01_MEMORY_LOCAL_USER, wanted->flags, description, wanted->owner, NULL, wanted->attr, wanted->attr2, 0,
			   wanted->type, 0, NULL);
	if (status == NV_OK)
		account(memory->pGpu);
	return status;
}

void standin_memory_destruct(VideoMemory *video)
{
	__typeof__(&memDestructCommon_IMPL) destruct = real_memDestructCommon_IMPL;
	__typeof__(&memdescDestroy) destroy = real_memdescDestroy;
	Memory *memory = staticCast(video, Memory);
	MEMORY_DESCRIPTOR *description = memory->pMemDesc;

	destruct(memory);
	if (description)
		destroy(description);
}

/* Fills in the utilisation samples in place of the firmware: one of each process that the test names, the others without a process. */
static void fill_samples(NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS *params)
{
	NvU32 at, engine, pid, percent;

	params->count = NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL;
	params->tracker = 0;
	for (at = 0; at < NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL; at++) {
		NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE *to = &params->samples[at];
		/* The number of engines differs between releases; each engine has the same fields. */
		NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE *engines = &to->fb;

		for (engine = 0; (char *)(engines + engine) < (char *)(to + 1); engine++)
			engines[engine].procId = NO_PROCESS;
		pid = sample(at, &percent);
		to->base.timeStamp = pid ? SAMPLE_TIME + 1000 * at : 0;
		if (!pid)
			continue;
		to->fb.procId = to->gr.procId = pid;
		to->fb.util = 50 * percent;
		to->gr.util = 100 * percent;
	}
}

NV_STATUS standin_control(void *rpc, NvHandle client, NvHandle object, NvU32 command, void *params, NvU32 size)
{
	NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS *samples = params;

	if (command != NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2)
		return NV_OK;
	/* As the firmware of an H100 with 580.159.04 answers to any other length. */
	if (samples->bufSize != sizeof(samples->samples))
		return NV_ERR_INVALID_ARGUMENT;
	fill_samples(samples);
	return NV_OK;
}

/*
 * A compute object has a number that ends in c0, whatever the chip. A process cannot make one without a channel. An MPS object, which is
 * nothing but a row in its client, stands in for it. For MPS clients, the driver looks for a class that no object has.
 */
unsigned int standin_class(unsigned int asked, unsigned int internal)
{
	if (asked == MPS_COMPUTE)
		return classId(OBJGPU);
	return (asked & 0xff) == 0xc0 ? classId(MpsApi) : internal;
}
