"""Compiled peaks of a chain of conv-LIF blocks, at one number of time steps and blocks.

Nothing runs: the donated step is compiled on abstract values, for the CPU.
"""

import argparse

import worker
from flax import nnx
from memory import Chain, batch, peak
from ours import in_chunks, make_plan, rematted

BATCH, FEATURES = 8, 32


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--time", type=int, required=True)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--side", type=int, required=True)
    return parser.parse_args()


def peaks(options):
    example = batch(options.time, BATCH, options.side, FEATURES)

    def plain():
        return Chain(options.depth, nnx.Rngs(0))

    def checkpointed():
        net = plain()
        net.blocks = rematted(net.blocks)
        return net

    level1 = make_plan(plain, example, level=1)
    variants = {
        "plain": (plain, None),
        "nnx.remat": (checkpointed, None),
        "level 1": (plain, level1),
        "balanced": (plain, make_plan(plain, example, profile="balanced")),
        "chunked": (plain, in_chunks(level1)),
    }
    return {n: peak(make, plan, example, None) for n, (make, plan) in variants.items()}


if __name__ == "__main__":
    answer = worker.answers()
    answer(peaks(parse()))
