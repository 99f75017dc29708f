"""Makes one tensor on the GPU."""

import torch

torch.ones(1).cuda()
