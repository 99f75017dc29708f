"""The exporter's busy time beside NVML's, of containers that work for parts of the time: busy.py SECONDS PORT SHARE...

Each container is one process in a control group named as Docker names them, and repeats a piece of work. Its own count is the number of
pieces multiplied by the time of one piece alone on the GPU. All counts are shares of the same wall time. Ends with 1 if the exporter's sum
differs by more than 0.05 from the containers' own or, for one container, from NVML's.
"""

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

TOLERANCE, WARM_UP = 0.05, 10
# No multiple of the driver's time between two samples, some 0.2 s.
PIECE_SECONDS = 0.07
GROUPS = Path("/sys/fs/cgroup")


def load(share):
    import torch

    matrix = torch.rand(4096, 4096, device="cuda")

    def work(products):
        began = time.monotonic()
        for _ in range(products):
            matrix @ matrix
        torch.cuda.synchronize()
        return time.monotonic() - began

    # The clock of the GPU rises under work.
    products = 10
    for _ in range(10):
        products = max(1, round(products * PIECE_SECONDS / work(products)))
    alone = min(work(products) for _ in range(20))
    print("alone", alone, flush=True)
    sys.stdin.readline()
    done = 0
    while True:
        work(products)
        done += 1
        print(time.monotonic(), done * alone, flush=True)
        time.sleep(alone * (1 - share) / share)


class Container:
    def __init__(self, number, share):
        self.id = f"{number:x}" * 64
        self.group = GROUPS / f"docker-{self.id}.scope"
        self.group.mkdir(exist_ok=True)
        self.log = open(f"busy-{number}.log", "w+")
        self.child = subprocess.Popen(
            [sys.executable, __file__, "load", str(share)],
            stdin=subprocess.PIPE,
            stdout=self.log,
            preexec_fn=lambda: (self.group / "cgroup.procs").write_text(str(os.getpid())),
        )
        while not Path(self.log.name).read_text().startswith("alone"):
            if self.child.poll() is not None:
                sys.exit(f"the load ended: {self.child.returncode}")
            time.sleep(0.1)
        self.shares = []

    def end(self):
        self.child.kill()
        self.child.wait()
        self.group.rmdir()

    def own_share(self, start, end):
        lines = Path(self.log.name).read_text().splitlines()[1:]
        rows = [tuple(map(float, line.split())) for line in lines if line.count(" ") == 1]
        inside = [row for row in rows if start <= row[0] <= end]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def counted(port):
    """The exporter's seconds by container."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    rows = [line for line in page.splitlines() if line.startswith("mpu_gpu_sm_seconds_total{") and 'gpu="0"' in line]
    seconds = {}
    for row in rows:
        container = row.split('container="')[1].split('"')[0]
        seconds[container] = seconds.get(container, 0) + float(row.rsplit(" ", 1)[1])
    return time.monotonic(), seconds


def main(seconds, port, wanted):
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    containers = []
    try:
        # One after the other: each takes its measure alone.
        for number, share in enumerate(wanted, 1):
            containers.append(Container(number, share))
        for container in containers:
            container.child.stdin.write(b"\n")
            container.child.stdin.flush()
        for _ in range(WARM_UP):
            time.sleep(1)
            counted(port)
        start, before = counted(port)
        end, after, last, rates, turns = start, before, 0, [], 0
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
                for container in containers:
                    used = [sample.smUtil / 100 for sample in samples if sample.pid == container.child.pid]
                    container.shares.append(sum(used) / len(used) if used else 0)
            if turns % 25 == 0:
                end, after = counted(port)
    finally:
        for container in containers:
            container.end()
    wall = end - start
    own, exported, sampled = [], [], []
    for container, share in zip(containers, wanted):
        own.append(container.own_share(start, end))
        exported.append((after.get(container.id, 0) - before.get(container.id, 0)) / wall)
        sampled.append(sum(container.shares) / len(container.shares))
        print(f"asked for {share:.2f}: own {own[-1]:.3f}, exporter {exported[-1]:.3f}, NVML {sampled[-1]:.3f}")
    print(f"sum: own {sum(own):.3f}, exporter {sum(exported):.3f}, NVML {sum(sampled):.3f} of {wall:.1f} s")
    print(f"nvmlDeviceGetUtilizationRates: {sum(rates) / len(rates):.3f}")
    others = [sum(own)] + (sampled if len(containers) == 1 else [])
    sys.exit(0 if all(abs(sum(exported) - other) <= TOLERANCE for other in others) else 1)


if sys.argv[1] == "load":
    load(float(sys.argv[2]))
else:
    main(float(sys.argv[1]), int(sys.argv[2]), [float(share) for share in sys.argv[3:]])
