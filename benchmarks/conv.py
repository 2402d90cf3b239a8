"""Weight and input gradients of a 3x3 convolution on CPU: XLA's own against ours.

Each program is compiled alone. The four runs of one kind of gradient (XLA's and ours,
outside a loop and in a `lax.scan` over four equal parts of the images) alternate in one
process, so that other work on the machine slows them all alike; the table gives the
median of `--repeats` runs as GFLOP/s of useful work, and the compiled temporary bytes.
XLA's own gradient in a loop can take minutes, so in the scan both see `--loop-images`
images only. Compare the two forms at one place, not the scan with the outside: the
scan's temporary bytes include its slices of the inputs, and its parts are small.

    JAX_PLATFORMS=cpu python benchmarks/conv.py
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
from conditions import conditions
from jax import lax

from snnjax._conv import conv_general_dilated

SHAPES = [
    ((80, 48, 48, 64), 128),
    ((80, 24, 24, 256), 256),
    ((80, 12, 12, 512), 512),
    ((80, 6, 6, 512), 512),
    ((80, 48, 48, 2), 64),
]
NUMBERS = ("NHWC", "HWIO", "NHWC")
CONVS = {"xla": lax.conv_general_dilated, "ours": conv_general_dilated}
PARTS = 4
OUT = Path(__file__).parent / "results" / "conv.json"


def gradient(conv, argument):
    """Give the gradient in the input (0) or the weights (1), of (x, w, g)."""

    def one(x, w, g):
        def out(a):
            args = (a, w) if argument == 0 else (x, a)
            return conv(*args, (1, 1), "SAME", dimension_numbers=NUMBERS)

        return jax.vjp(out, (x, w)[argument])[1](g)[0]

    return one


def in_scan(one):
    """Run a gradient on equal parts of the images, in a scan."""

    def looped(x, w, g):
        cut = [a.reshape(PARTS, -1, *a.shape[1:]) for a in (x, g)]
        return lax.map(lambda part: one(part[0], w, part[1]), cut)

    return looped


def programs(argument, arrays, loop_arrays):
    """Compile the four programs and pair each with its arguments."""
    made = {}
    for name, conv in CONVS.items():
        one = gradient(conv, argument)
        for where, f, args in (
            ("outside", one, arrays),
            ("scan", in_scan(one), loop_arrays),
        ):
            made[name, where] = jax.jit(f).lower(*args).compile(), args
    return made


def seconds(made, repeats):
    """Run the programs in turn; give each one's median time."""
    times = {key: [] for key in made}
    for turn in range(repeats + 1):
        for key, (program, args) in made.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*args))
            if turn:  # the first turn warms up
                times[key].append(time.perf_counter() - start)
    return {key: statistics.median(t) for key, t in times.items()}


def measure(shape, features, repeats, loop_images):
    """Measure both gradients at one shape; give one row a program."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], shape)
    w = jax.random.normal(keys[1], (3, 3, shape[-1], features))
    g = jax.random.normal(keys[2], (*shape[:-1], features))
    few = x[:loop_images], w, g[:loop_images]
    for argument, name in enumerate(("input", "weight")):
        made = programs(argument, (x, w, g), few)
        for key, median in seconds(made, repeats).items():
            program, args = made[key]
            work = 2 * 9 * args[0].size * features
            yield {
                "shape": [*shape, features],
                "gradient": name,
                "form": key[0],
                "where": key[1],
                "images": len(args[0]),
                "seconds": median,
                "gflops": work / median / 1e9,
                "temp_bytes": program.memory_analysis().temp_size_in_bytes,
            }


def line(row):
    """Format one row of the table."""
    names = "{shape!s:26s} {gradient:8s} {form:5s} {where:8s}".format_map(row)
    return f"{names} {row['gflops']:7.1f} {row['temp_bytes'] / 2**20:9.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loop-images", type=int, default=8)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    settings = {key: v for key, v in vars(options).items() if key != "out"}
    what = {"dtype": "float32", "kernel": [3, 3], "shapes": SHAPES}
    result = {"conditions": conditions(**what, **settings), "rows": []}
    print(f"{'shape':26s} gradient form  where    GFLOP/s  temp MiB")
    for shape, features in SHAPES:
        for row in measure(shape, features, options.repeats, options.loop_images):
            result["rows"].append(row)
            print(line(row), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
