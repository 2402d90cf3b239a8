"""The child's half of `gpu.py`: one part, whose result is a file.

Children import this first: it finds the package, the workload and the tests' oracles.
"""

import argparse
import json
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent
ROOT = BENCHMARKS.parent
sys.path += [str(BENCHMARKS), str(ROOT), str(ROOT / "tests")]


def main(*parts):
    """Runs the one of these functions that is asked for."""
    named = {part.__name__: part for part in parts}
    options = parse(named)
    options.out.write_text(json.dumps(named[options.part](options)))


def parse(named):
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=named)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--level", type=int, default=0)
    return parser.parse_args()
