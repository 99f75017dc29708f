"""The exporter's busy time beside NVML's, of a process that works half of the time: busy.py SECONDS PORT

The load counts the time of its own kernels. All three are shares of the same wall time. Ends with 1 if they differ by more than 0.05.
"""

import subprocess
import sys
import time
import urllib.request

TOLERANCE, WARM_UP = 0.05, 10


def load():
    import torch

    def work():
        began = time.monotonic()
        torch.cuda._sleep(cycles)
        torch.cuda.synchronize()
        return time.monotonic() - began

    cycles = 1_000_000
    work()
    # A period that is no multiple of the driver's between two samples, some 0.2 s.
    cycles = int(cycles * 0.07 / work())
    total = 0
    while True:
        took = work()
        total += took
        print(time.monotonic(), total, flush=True)
        time.sleep(took)


def counted(port):
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    rows = [line for line in page.splitlines() if line.startswith("mpu_gpu_sm_seconds_total{") and 'gpu="0"' in line]
    return time.monotonic(), sum(float(row.rsplit(" ", 1)[1]) for row in rows)


def main(seconds, port):
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    log = open("busy.log", "w+")
    child = subprocess.Popen([sys.executable, __file__, "load"], stdout=log)
    try:
        for _ in range(WARM_UP):
            time.sleep(1)
            counted(port)
        start, before = counted(port)
        end, after, last, shares, rates, turns = start, before, 0, [], [], 0
        while end - start < seconds:
            time.sleep(0.2)
            turns += 1
            rates.append(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)
            if turns % 5 == 0:
                try:
                    samples = pynvml.nvmlDeviceGetProcessUtilization(gpu, last)
                except pynvml.NVMLError_NotFound:
                    samples = []
                last = max([last] + [sample.timeStamp for sample in samples])
                used = [sample.smUtil / 100 for sample in samples if sample.pid == child.pid]
                shares.append(sum(used) / len(used) if used else 0)
            if turns % 25 == 0:
                end, after = counted(port)
    finally:
        child.kill()
    log.seek(0)
    rows = [tuple(map(float, line.split())) for line in log if line.count(" ") == 1 and line.endswith("\n")]
    inside = [row for row in rows if start <= row[0] <= end]
    wall = end - start
    counts = (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
    exported, sampled = (after - before) / wall, sum(shares) / len(shares)
    found = {
        "the load's own count": counts,
        "mpu_gpu_sm_seconds_total": exported,
        "nvmlDeviceGetProcessUtilization": sampled,
        "nvmlDeviceGetUtilizationRates": sum(rates) / len(rates),
    }
    for name, share in found.items():
        print(f"{name}: {share:.3f} of {wall:.1f} s")
    sys.exit(0 if all(abs(exported - other) <= TOLERANCE for other in (counts, sampled)) else 1)


if sys.argv[1] == "load":
    load()
else:
    main(float(sys.argv[1]), int(sys.argv[2]))
