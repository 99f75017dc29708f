"""Times 20,000 kernel launches, or 500 training steps, three times: cost.py launches|steps"""

import sys
import time

import torch

x = torch.ones(1024, device="cuda")
w = torch.randn(1024, 1024, device="cuda", requires_grad=True)


def launches():
    for _ in range(20000):
        x.add_(1)


def steps():
    for _ in range(500):
        (w @ w).sum().backward()
        w.grad = None


work = {"launches": launches, "steps": steps}[sys.argv[1]]
work()
torch.cuda.synchronize()
for _ in range(3):
    began = time.time()
    work()
    torch.cuda.synchronize()
    print(f"{time.time() - began:.3f} s", end=" ")
print()
