"""SpikingJelly's VGG in torch, as it is or at level 1 of its own optimization."""

import os

import torch
import worker
from spikingjelly.activation_based import memopt
from torch_vgg import Block, torch_vgg
from workload import RATE, batch

LEVELS = {"base": 0, "level 1": 1}


def build(options):
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    frames, labels = map(torch.from_numpy, batch(options))
    frames = frames.permute(1, 0, 4, 2, 3).contiguous()
    net = torch_vgg(options)
    if level := LEVELS[options.variant]:
        net = memopt.optimize_memory(net, Block, lambda net: net(frames), level=level)
    optimizer = torch.optim.SGD(net.parameters(), RATE)

    def step():
        optimizer.zero_grad(set_to_none=True)
        scores = net(frames).mean(0)
        loss = torch.nn.functional.cross_entropy(scores, labels.long())
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step, {}


if __name__ == "__main__":
    worker.main(build)
