"""The tutorial's VGG in torch, of SpikingJelly's layers.

A block is conv, batch norm and LIF; a pool stands before a convolution, as there.
"""

import torch
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from workload import DROPOUT, TAU, WIDTHS, sizes


class Block(torch.nn.Module):
    def __init__(self, inputs, outputs, pool):
        super().__init__()
        parts = [layer.AvgPool2d(2)] if pool else []
        parts.append(layer.Conv2d(inputs, outputs, 3, 1, 1))
        self.current = torch.nn.Sequential(*parts, layer.BatchNorm2d(outputs))
        self.neuron = neuron.LIFNode(
            tau=TAU,
            decay_input=False,
            detach_reset=True,
            surrogate_function=surrogate.ATan(),
            step_mode="m",
        )

    def forward(self, x):
        return self.neuron(self.current(x))


class Net(torch.nn.Module):
    def __init__(self, layout, side):
        super().__init__()
        blocks = [Block(*row) for row in layout]
        self.features = torch.nn.Sequential(*blocks, layer.AvgPool2d(2))
        last = layout[-1][1] * (side // 2 ** (1 + sum(r[2] for r in layout))) ** 2
        self.classifier = torch.nn.Sequential(
            torch.nn.Dropout(DROPOUT), torch.nn.Linear(last, 10)
        )
        functional.set_step_mode(self, "m")

    def forward(self, x):
        functional.reset_net(self)
        x = self.features(x.transpose(0, 1).contiguous())
        return self.classifier(x.flatten(2))


def torch_vgg(options):
    """The network, and the class of its blocks."""
    side = sizes(options)["vgg"][2]
    if options.small:
        return Net([(2, 8, False), (8, 10, True)], side)
    pools = (False, False, True, False, True, False, True, False)
    return Net([*zip(WIDTHS, WIDTHS[1:], pools)], side)
