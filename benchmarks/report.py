"""Writes the measured tables of README and docs from `benchmarks/results/*.json`.

A table stands between `<!-- table: name -->` and `<!-- end -->`, with every sentence
that has a measured figure in it. `--check` changes nothing and fails where a file
differs from what the results give; a test does the same.

    python benchmarks/report.py
    python benchmarks/report.py --check
"""

import argparse
import json
import re
import sys
from pathlib import Path

from peers_report import beside as beside_ours
from peers_report import by_name

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MIB = 2**20
VERSIONS = "jax", "spikingjelly", "torch", "spyx", "jaxpike"  # those that are told
DEVICES = {
    "cpu": "CPU",
    "rtx4090": "RTX 4090 (compiled without one)",
    "h200": "H200 (compiled without one)",
}


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def markdown(head, rows):
    """A table; the first column is text, the others are figures."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *rows])


def mib(size):
    return f"{size / MIB:.0f}"


def over(ratio):
    return "" if ratio is None else f"{ratio:.2f}"


# --- the tables, by name --------------------------------------------------------------


def memory():
    """The tutorial's VGG under four plans."""
    found = result("memory")
    plans = ["plain", "level 1", "batch 8", "batch 8 +"]
    head = ["", "plain", "level 1", "8 batch chunks", "forward in chunks too"]
    rows = [
        [name, *(mib(found["vgg"][key][plan]) for plan in plans)]
        for key, name in DEVICES.items()
    ]
    kept = found["vgg_residual"]
    return (
        f"Peak of one training step in MiB, jax {found['conditions']['jax']}:\n\n"
        f"{markdown(head, rows)}\n"
        f"Kept from the forward to the backward pass: {mib(kept['plain'])} MiB plain, "
        f"{mib(kept['level 1'])} MiB at level 1.\n"
    )


def long():
    """A long sequence of one sample, in time chunks."""
    rows = result("memory")["long"]
    head = ["", "plain", "level 1", "16 time chunks"]
    keys = "plain", "level 1", "time 16 +"
    body = [[name, *(mib(rows[key][k]) for k in keys)] for key, name in DEVICES.items()]
    return markdown(head, body)


ASKED = {
    "safe": '`profile="safe"`',
    "balanced": '`profile="balanced"`',
    "memory": '`profile="memory"`',
    "exhaustive": '`profile="exhaustive"`',
    "300 MiB": '`budget="300MiB"`',
    "400 MiB": '`budget="400MiB"`',
    "500 MiB": '`budget="500MiB"`',
    "600 MiB": '`budget="600MiB"`',
    "1.2x": "`max_slowdown=1.2`",
}


def search():
    """What each request to the planner gives, and how long it takes."""
    rows = result("search")["searches"]
    body = [[asked, *searched(rows[key])] for key, asked in ASKED.items()]
    plain, deep = rows["safe"]["plain"], rows["24 blocks"]
    title = f'24 SEW blocks, `"balanced"`, from {mib(deep["plain"])} MiB'
    body = [["nothing", "", "", mib(plain), "1"], *body, [title, *searched(deep)]]
    head = ["asked for", "seconds", "steps compiled", "peak, MiB", "time of a step"]
    return markdown(head, body)


def searched(row):
    seconds, compiled = f"{row['seconds']:.0f}", str(row["compiled"])
    return seconds, compiled, mib(row["planned"]), over(row["slowdown"])


def networks():
    """Networks for ImageNet, as the `memory` profile plans them."""
    rows = result("networks")["networks"]
    head = [
        *("", "plain, MiB", "of it parameters and batch", "planned, MiB", "less"),
        "time of a step, estimated",
    ]
    return markdown(head, [[name, *planned(row)] for name, row in rows.items()])


def planned(row):
    held = mib(row["parameters"] + row["batch"])
    less = f"{row['plain'] / row['planned']:.1f}x"
    return mib(row["plain"]), held, mib(row["planned"]), less, over(row["slowdown"])


def tutorial():
    """The tutorial's tables and log, ours beside theirs."""
    head = [
        *("", "SpikingJelly, MiB", "ours, MiB", "its step over plain"),
        *("ours, estimated", "its search, s", "ours, s"),
    ]
    rows = result("tutorial")["cases"]
    return markdown(head, [[name, *beside(row)] for name, row in rows.items()])


def beside(row):
    ours, theirs = row["ours"], row["theirs"]
    optimize = theirs["optimize_ms"]
    return (
        f"{theirs['plain_peak']:.0f} → {theirs['peak']:.0f}",
        f"{mib(ours['plain'])} → {mib(ours['planned'])}",
        over(theirs["slowdown"]),
        over(ours["slowdown"]),
        "" if optimize is None else f"{optimize / 1000:.0f}",
        f"{ours['seconds']:.0f}",
    )


def peers():
    """The VGG as it trains here, beside the peers, on this machine's CPU."""
    found = result("peers")
    rows = by_name(found["vgg"])
    head = [
        *("", "seconds a step", "over our plain", "compiled peak, MiB"),
        *("resident growth, MiB", "beside ours"),
    ]
    body = [[named(row), *trained(row), in_words(row, rows)] for row in found["vgg"]]
    notes = [f"* {named(row)}: {why(row)}.\n" for row in found["vgg"] if why(row)]
    where = found["conditions"]
    known = {k: v for row in where["versions"].values() for k, v in row.items()}
    about = ", ".join(f"{name} {known[name]}" for name in VERSIONS if name in known)
    tail = f"Measured with {about}, on {where['cores']} cores of {where['cpu']}.\n"
    return f"{markdown(head, body)}\n{''.join(notes)}\n{tail}"


def in_words(row, rows):
    return "" if row.get("error") else beside_ours(row, rows)


def named(row):
    return f"{row['library']}, {row['variant']}"


def why(row):
    """What a reader has to know of a row: why it failed, or where it differs."""
    return " ".join((row.get("error") or row.get("note") or "").split()).rstrip(".")


def trained(row):
    if row.get("error"):
        return "failed", "", "", ""
    sizes = (row.get(key) for key in ("compiled_bytes", "resident_growth_bytes"))
    texts = ("" if size is None else mib(size) for size in sizes)
    return f"{row['seconds']:.2f}", over(row.get("over_plain")), *texts


TABLES = {f.__name__: f for f in (memory, long, search, networks, tutorial, peers)}


# --- the files ------------------------------------------------------------------------


def files():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rendered(text):
    """The text with every table as the results give it."""

    def table(match):
        begin, name, end = match.groups()
        if name not in TABLES:
            known = ", ".join(TABLES)
            sys.exit(f"no table is called {name!r}; there are {known}.")
        return f"{begin}\n{TABLES[name]()}\n{end}"

    return BLOCK.sub(table, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    stale = [f for f in files() if rendered(f.read_text()) != f.read_text()]
    for file in stale:
        print(file.relative_to(ROOT))
        if not arguments.check:
            file.write_text(rendered(file.read_text()))
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
