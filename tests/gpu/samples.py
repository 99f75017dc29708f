"""Prints NVML's utilisation samples, each with PID, time in microseconds and four percentages: samples.py SECONDS"""

import sys
import time

import pynvml

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
end = time.time() + float(sys.argv[1])
seen = set()
while time.time() < end:
    try:
        for s in pynvml.nvmlDeviceGetProcessUtilization(gpu, 0):
            seen.add((s.pid, s.timeStamp, s.smUtil, s.memUtil, s.encUtil, s.decUtil))
    except pynvml.NVMLError_NotFound:
        pass
    time.sleep(0.02)
for row in sorted(seen):
    print(*row)
