"""Prints NVML's processes by pynvml, one query a line. notify.sh checks the output."""

import time

import pynvml

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)


def show(name, ask):
    try:
        print(name, *ask())
    except pynvml.NVMLError as error:
        print(name, "error:", error)


def rows(listed):
    return [f"{row.pid}:{(row.usedGpuMemory or 0) >> 20}MiB" for row in listed]


def utilisation():
    # Samples of the last second: a client's first query can find none.
    for _ in range(20):
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(gpu, 0)
        except pynvml.NVMLError_NotFound:
            samples = []
        if samples:
            break
        time.sleep(0.2)
    return sorted({f"{sample.pid}" for sample in samples})


show("compute", lambda: rows(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)))
show("graphics", lambda: rows(pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)))
show("utilisation", utilisation)
