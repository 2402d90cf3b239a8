"""The child's half of `peers.py`: a training step for every line on stdin.

A worker builds its network, runs one step, says what it knows as a line of JSON, and
then answers each line with the seconds and the loss of a step. With `--resident` it
answers once, with the growth of its resident memory, by one rule for JAX and for torch:

    growth = high-water mark over the first 2 steps - resident size before them

Before: network, optimizer, batch and, for JAX, the compiled program are there, no step
has run, and what malloc holds free has gone back to the system. The mark is set back
first (5 to `/proc/self/clear_refs`). XLA's compiler takes memory of its own, so JAX
loads the program from the compilation cache that the timed worker filled.
"""

import argparse
import ctypes
import gc
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent.parent
sys.path.append(str(BENCHMARKS))  # for the workload, and the VGG in torch

STEPS = 2
SLOW = 60.0  # seconds; the first step is then the only one, for time and for memory
Step = Callable[[], float]
Answer = Callable[[dict[str, Any]], None]


def main(build: Callable[[argparse.Namespace], tuple[Step, dict[str, Any]]]) -> None:
    """`build` gives a step, which returns its loss, and what is known of it."""
    answer, options = answers(), parse()
    step, facts = build(options)
    if options.resident:
        answer({"resident_growth_bytes": growth(step, STEPS)})
        return
    first = {}
    grown = growth(lambda: first.update(timed(step)), 1)
    slow = first["seconds"] > SLOW
    answer(facts | first | {"slow": slow, "first_growth_bytes": grown})
    for _ in sys.stdin:
        answer(timed(step))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--resident", action="store_true")
    parser.add_argument(
        "--folder", type=Path, help="of plans, made by whom comes first"
    )
    return parser.parse_args()


def answers() -> Answer:
    """Lines of JSON on stdout, to which nobody else writes from here on."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lambda what: print(json.dumps(what), file=out, flush=True)


def timed(step: Step) -> dict[str, float]:
    start = time.perf_counter()
    loss = step()
    return {"seconds": time.perf_counter() - start, "loss": loss}


def growth(step: Callable[[], Any], steps: int) -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    for _ in range(steps):
        step()
    return status("VmHWM") - before


def status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) * 1024
