"""A GPU process that prints its PID and trains until a signal: train.py SECONDS MIB."""

import os
import sys
import time

import torch

seconds, mib = float(sys.argv[1]), int(sys.argv[2])
held = torch.ones(mib << 18, device="cuda")
weights = torch.randn(2048, 2048, device="cuda", requires_grad=True)
steps, end = 0, None
while end is None or time.time() < end:
    loss = (weights @ weights).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        weights -= 1e-6 * weights.grad
        weights.grad = None
    torch.cuda.synchronize()
    steps += 1
    if end is None:
        print("process", os.getpid(), flush=True)
        end = time.time() + seconds
print("steps", steps, "finite", bool(torch.isfinite(weights).all()), flush=True)
