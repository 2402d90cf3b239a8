"""The tutorial's VGG trained by us and by the peers, in one alternating session on CPU.

Every variant is a process of its own, in its peer's own virtual environment (made here,
with pinned versions, and the same jax as ours), that waits for its turn: in each round
every variant runs one training step. A ratio is the median of the rounds' ratios. What
died or hung has an error in its row, and costs nobody else's figures. What is there is
written after the rounds, after the memory and after every chain. Figures:

* seconds: median of the rounds, after one step that warms up. A variant whose first
  step takes more than a minute has that step as its only one, for its memory, too.
* compiled bytes: temp + argument + output - alias, as XLA assigns them; of JAX only.
* resident growth: of a fresh process each; the rule is in `peers/worker.py`.
* chain: compiled peaks of a chain of conv-LIF blocks over time steps and over blocks.
* claims: what the project promises beside the peers, and whether it holds here.

`nnx.remat` saves nothing on a CPU with jax before 0.11.2, so compare on a newer one.

    JAX_PLATFORMS=cpu python benchmarks/peers.py
    JAX_PLATFORMS=cpu python benchmarks/peers.py --small --only ours,chain
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from conditions import cpu
from peers_processes import ROOT, Session, Worker, python_of, versions
from peers_report import BASE, PLAIN, by_name, claims, seconds_over, show

RESULTS = Path(__file__).parent / "results"
STEP = 300.0  # seconds, at most
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library: its worker, what is installed for it, and its variants by turns."""

    script: str
    requirements: tuple[str, ...]
    variants: tuple[str, ...]


def as_here(*packages: str) -> tuple[str, ...]:
    return tuple(f"{name}=={importlib.metadata.version(name)}" for name in packages)


JAX, FLAX = as_here("jax", "jaxlib", "optax"), as_here("flax")
PEERS = {  # in the order of a round; what is compared most stands side by side
    "spikingjelly": Peer(
        "spikingjelly_vgg.py",
        ("spikingjelly==2.0.0", "torch==2.14.1"),
        ("level 1", "base"),
    ),
    "ours": Peer(
        "ours.py",
        (),
        (
            *("plain", "level 1", "nnx.remat", "dots policy", "chunked"),
            *("balanced", "memory", "exhaustive", "300 MiB", "400 MiB"),
        ),
    ),
    "spyx": Peer(
        "spyx_vgg.py",
        ("spyx==1.0.0", *JAX, *FLAX),
        ("layer-wise", "run"),
    ),
    "jaxpike": Peer(
        "jaxpike_vgg.py",
        ("jaxpike==0.1.4", "equinox==0.13.8", *JAX),
        ("unroll", "unroll_checkpointed"),
    ),
}
CHAIN = "chain"

# --- the VGG --------------------------------------------------------------------------


@dataclasses.dataclass
class Entry:
    """A variant in the session: its worker while it runs, and what is known of it."""

    library: str
    variant: str
    facts: Row
    worker: Worker | None = None
    runs: list[float] = dataclasses.field(default_factory=list)


def run_vgg(session: Session, options: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows with times; then those with memory, too."""
    entries = [start(session, options, *pair) for pair in chosen(options.only)]
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for entry in entries:
            take_turn(entry)
    for entry in entries:
        if entry.worker is not None:
            entry.worker.stop()
    yield rows_of(entries)
    if not options.skip_resident:
        for entry in entries:
            entry.facts |= resident(session, options, entry)
        yield rows_of(entries)


def chosen(only: str | None) -> Iterator[tuple[str, str]]:
    names = None if only is None else only.split(",")
    for library, peer in PEERS.items():
        for variant in peer.variants:
            if names is None or library in names or f"{library}/{variant}" in names:
                yield library, variant


def interpreter(options: argparse.Namespace, library: str) -> Path:
    requirements = PEERS[library].requirements
    if not requirements:
        return Path(sys.executable)
    return python_of(library, requirements, options.envs)


def launch(
    session: Session,
    options: argparse.Namespace,
    library: str,
    variant: str,
    *arguments: str,
) -> Worker:
    print(f"{library}/{variant} {' '.join(arguments)}", flush=True)
    what = "--variant", variant, "--folder", str(session.folder)
    small = ["--small"] * options.small
    python, script = interpreter(options, library), PEERS[library].script
    return session.start(python, script, *what, *small, *arguments)


def start(
    session: Session, options: argparse.Namespace, library: str, variant: str
) -> Entry:
    """One after the other, so that no compiler slows another one's first step."""
    try:
        worker = launch(session, options, library, variant)
    except RuntimeError as failed:
        return Entry(library, variant, {"error": str(failed)})
    facts = worker.answer(options.limit)
    if "error" in facts:
        return Entry(library, variant, facts)
    entry = Entry(library, variant, facts, worker)
    slow, growth = facts.pop("slow"), facts.pop("first_growth_bytes")
    if slow:
        take_one(entry, growth, options.rounds)
    return entry


def take_one(entry: Entry, growth: int, rounds: int) -> None:
    """A slow one's first step stands for all: for the rounds, and for its memory."""
    entry.worker.stop()
    entry.worker, entry.runs = None, [entry.facts["seconds"]] * rounds
    notes = "one step, in the process that compiled it", entry.facts.get("note")
    entry.facts |= {"note": "; ".join(filter(None, notes))}
    entry.facts |= {"resident_growth_bytes": growth}


def take_turn(entry: Entry) -> None:
    if entry.worker is None:
        return
    found = entry.worker.ask(STEP)
    if "error" in found:
        entry.worker, entry.facts = None, found
        return
    entry.runs.append(found["seconds"])
    entry.facts["last_loss"] = found["loss"]


def resident(session: Session, options: argparse.Namespace, entry: Entry) -> Row:
    """The growth, or why there is none; nothing of a variant that failed or is slow."""
    if "error" in entry.facts or "resident_growth_bytes" in entry.facts:
        return {}
    worker = launch(session, options, entry.library, entry.variant, "--resident")
    found = worker.answer(options.limit)
    if "error" in found:
        return {"resident_error": found["error"]}
    worker.stop()
    return found


def rows_of(entries: list[Entry]) -> list[Row]:
    rows = [row_of(entry) for entry in entries]
    found = by_name(rows)
    for name, row in found.items():
        row["over_plain"] = seconds_over(found, name, PLAIN)
        row["over_base"] = seconds_over(found, name, BASE)
    return rows


def row_of(entry: Entry) -> Row:
    row = {"library": entry.library, "variant": entry.variant}
    if "error" in entry.facts:
        return row | entry.facts
    sizes = dict.fromkeys(("compiled_bytes", "resident_growth_bytes"))
    seconds = {"seconds": statistics.median(entry.runs), "runs": entry.runs}
    return row | sizes | entry.facts | seconds


# --- the chain ------------------------------------------------------------------------


def run_chain(session: Session, options: argparse.Namespace) -> Iterator[list[Row]]:
    """Over time steps, and over blocks; the rows that there are so far."""
    times, depths, fixed = (4, 8, 16, 32, 64), (6, 12, 24), (8, 6)
    if options.small:
        times, depths, fixed = (2, 4), (2, 3), (2, 2)
    by_time = [(time, fixed[1]) for time in times]
    by_depth = [(fixed[0], depth) for depth in depths]
    rows = []
    for point in dict.fromkeys(by_time + by_depth):
        rows += chain_rows(session, options, *point)
        yield rows


def chain_rows(
    session: Session, options: argparse.Namespace, time: int, depth: int
) -> Iterator[Row]:
    print(f"chain, T={time}, {depth} blocks", flush=True)
    size, side = {"time": time, "depth": depth}, 8 if options.small else 16
    arguments = [f"--{name}={n}" for name, n in (size | {"side": side}).items()]
    worker = session.start(Path(sys.executable), "chain.py", *arguments)
    peaks = worker.answer(options.limit)
    if "error" in peaks:
        yield {"variant": "all", **size, **peaks}
        return
    worker.stop()
    for variant, peak in peaks.items():
        yield {"variant": variant, **size, "peak_bytes": peak}


# --- the conditions -------------------------------------------------------------------


def conditions(options: argparse.Namespace, libraries: Iterable[str]) -> Row:
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {library: installed(options, library) for library in libraries},
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu(),
        "load": os.getloadavg(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "small": options.small,
        "rounds": options.rounds,
        "step": "VGG, T=10, N=8, 48x48x2, sgd 0.01, donated, float32",
        "chain": "N=8, 16x16, 32 channels",
    }


def installed(options: argparse.Namespace, library: str) -> Row:
    requirements = PEERS[library].requirements or (*JAX, *FLAX, "snnjax")
    packages = [requirement.split("==")[0] for requirement in requirements]
    try:
        return versions(interpreter(options, library), packages)
    except RuntimeError as failed:
        return {"error": str(failed)}


# --- starting -------------------------------------------------------------------------


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="such as ours,spyx/run,chain; all without it")
    parser.add_argument("--skip-resident", action="store_true")
    parser.add_argument(
        "--limit", type=float, default=900.0, help="seconds until a first step is done"
    )
    parser.add_argument("--small", action="store_true", help="a smoke test, tiny sizes")
    parser.add_argument("--envs", type=Path, default=ROOT / ".peers")
    parser.add_argument("--out", type=Path, default=RESULTS / "peers.json")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"`--rounds` is {options.rounds}; it must be 1 or more.")
    known = {CHAIN, *PEERS, *(f"{a}/{b}" for a, b in chosen(None))}
    unknown = sorted(set((options.only or CHAIN).split(",")) - known)
    if unknown:
        parser.error(
            f"`--only` has {', '.join(map(repr, unknown))}; allowed are "
            f"{', '.join(sorted(known))}."
        )
    return options


def run(session: Session, options: argparse.Namespace) -> Iterator[Row]:
    """What is known, as soon as a part of it has come: the times, memory, the chain."""
    libraries = dict.fromkeys(["ours", *(pair[0] for pair in chosen(options.only))])
    where = conditions(options, libraries)
    if any(chosen(options.only)):
        for rows in run_vgg(session, options):
            where["load_after"] = os.getloadavg()
            yield {"conditions": where, "vgg": rows, "claims": claims(rows)}
    if options.only is None or CHAIN in options.only.split(","):
        for rows in run_chain(session, options):
            yield {"chain_conditions": where, "chain": rows}


def earlier(file: Path) -> Row:
    """A result whose parts stay where this run has none."""
    parts = {"conditions": {}, "vgg": [], "claims": claims([]), "chain": []}
    return parts | (json.loads(file.read_text()) if file.exists() else {})


def save(result: Row, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    # Ended from outside, it ends its workers, too, and takes its folder away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = parse()
    result = earlier(options.out)
    with tempfile.TemporaryDirectory(prefix="snnjax-peers-") as folder:
        with Session(Path(folder)) as session:
            for part in run(session, options):
                result |= part
                save(result, options.out)
    show(result)


if __name__ == "__main__":
    main()
