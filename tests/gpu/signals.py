"""Uses CUDA and NVML while signals arrive every 0.3 ms. Their handler is installed without SA_RESTART."""

import signal

count = 0


def handler(*_):
    global count
    count += 1


signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)

import pynvml  # noqa: E402
import torch  # noqa: E402

total = sum(float(torch.ones(1 << 10, device="cuda").sum()) for _ in range(200))
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
errors = set()
for _ in range(5000):
    try:
        pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    except pynvml.NVMLError as error:
        errors.add(str(error))
signal.setitimer(signal.ITIMER_REAL, 0)
print(f"{total:.0f} computed, 5000 lists, errors: {sorted(errors) or 'none'}, under {'many' if count > 1000 else count} signals")
