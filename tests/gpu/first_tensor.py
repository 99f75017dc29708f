"""A first tensor on the GPU, and nothing else."""

import torch

torch.ones(1).cuda()
