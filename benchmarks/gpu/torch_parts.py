"""SpikingJelly's LIF node and VGG, on the same shapes."""

import statistics
import time

import child
import torch
from spikingjelly.activation_based import memopt, neuron, surrogate
from torch_vgg import Block, torch_vgg
from workload import DTYPES, RATE, sizes


def spikingjelly_neuron(options):
    """Its LIF node, on the same shapes and floors."""
    device = torch_device(options)
    shape, repeats = sizes(options)["neuron"], sizes(options)["repeats"]
    surrogate_function = surrogate.ATan()
    node = neuron.LIFNode(step_mode="m", surrogate_function=surrogate_function)
    node = node.to(device)
    rows = []
    for dtype in DTYPES:
        x = torch.randn(shape, device=device, dtype=getattr(torch, dtype))
        x.requires_grad_(True)
        ds = torch.ones_like(x)

        def forward(x=x):
            node.reset()
            return node(x)

        def both(x=x, ds=ds):
            forward(x).backward(ds)

        with torch.no_grad():
            alone = torch_seconds(forward, repeats, device)
        together = torch_seconds(both, repeats, device)
        for what, seconds in (("forward", alone), ("backward", together - alone)):
            row = {"pass": what, "way": "spikingjelly", "dtype": dtype}
            rows.append(row | {"seconds": seconds})
    return {"rows": rows}


def torch_device(options):
    """Where 2.0.0 chooses its kernels by itself."""
    return "cpu" if options.small else "cuda"


def torch_seconds(f, repeats, device):
    def wait():
        torch.cuda.synchronize() if device == "cuda" else None

    f()
    found = []
    for _ in range(5):
        wait()
        start = time.perf_counter()
        for _ in range(repeats):
            f()
        wait()
        found.append((time.perf_counter() - start) / repeats)
    return statistics.median(found)


def spikingjelly_vgg(options):
    """The tutorial's VGG as the tutorial has it, plain or at its level 1."""
    device = torch_device(options)
    time_steps, batch, side, _, _ = sizes(options)["vgg"]
    net = torch_vgg(options).to(device)
    frames = (torch.rand(batch, time_steps, 2, side, side, device=device) < 0.1).float()
    if options.level:
        net = memopt.optimize_memory(
            net, Block, lambda net: net(frames), level=options.level
        )
    labels = torch.arange(batch, device=device) % 10
    optimizer = torch.optim.SGD(net.parameters(), RATE)

    def run():
        optimizer.zero_grad(set_to_none=True)
        scores = net(frames).mean(0)
        torch.nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()

    on_gpu = device == "cuda"
    seconds = torch_seconds(run, sizes(options)["steps"] // 5 or 1, device)
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    return {"seconds": seconds, "allocator_bytes": peak}


if __name__ == "__main__":
    child.main(spikingjelly_neuron, spikingjelly_vgg)
