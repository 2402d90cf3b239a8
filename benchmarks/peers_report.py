"""What `peers.py` shows: claims with their figures, and tables that say who loses."""

import statistics
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

MIB = 2**20
Row = dict[str, Any]

BASE = "spikingjelly/base"
THEIRS = "spikingjelly/level 1"
PLAIN = "ours/plain"
REMAT = "ours/nnx.remat"
DOTS = "ours/dots policy"

# Which of our variants stands beside another's.
BESIDE = {
    BASE: "plain",
    THEIRS: "level 1",
    REMAT: "level 1",
    DOTS: "level 1",
    "spyx/layer-wise": "plain",
    "spyx/run": "plain",
    "jaxpike/unroll": "plain",
    "jaxpike/unroll_checkpointed": "chunked",
}


def name_of(row: Row) -> str:
    return f"{row['library']}/{row['variant']}"


def by_name(rows: list[Row]) -> dict[str, Row]:
    """Those that have figures."""
    return {name_of(row): row for row in rows if "error" not in row}


def over(runs: list[float], others: list[float]) -> float:
    """Median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(runs, others, strict=True))


def seconds_over(found: dict[str, Row], a: str, b: str) -> float | None:
    """None where one of the two has no figures."""
    if a not in found or b not in found:
        return None
    return over(found[a]["runs"], found[b]["runs"])


def growth_over(found: dict[str, Row], a: str, b: str) -> float | None:
    sizes = [found.get(name, {}).get("resident_growth_bytes") for name in (a, b)]
    return sizes[0] / sizes[1] if all(sizes) else None


def claims(rows: list[Row]) -> list[Row]:
    """What is promised beside the peers: the figure, and whether it holds.

    Both are None where a figure is missing.
    """
    found = by_name(rows)
    plain, level1 = seconds_over(found, PLAIN, BASE), "ours/level 1"
    searched = seconds_over(found, level1, THEIRS)
    grown = growth_over(found, "ours/chunked", THEIRS)
    fastest, ratio = beside_remat(found)
    best = claim("our fastest plan of no more bytes than nnx.remat", 1.05, ratio, REMAT)
    return [
        claim("seconds of our plain step", 1.0, plain, BASE),
        claim("seconds of our level 1", 0.8, searched, THEIRS),
        claim("resident growth of our chunked plan", 0.45, grown, THEIRS),
        best | {"variant": fastest},
    ]


def claim(what: str, limit: float, measured: float | None, beside: str) -> Row:
    holds = None if measured is None else measured <= limit
    text = f"{what}, over {beside}"
    return {"claim": text, "at_most": limit, "measured": measured, "holds": holds}


def beside_remat(found: dict[str, Row]) -> tuple[str | None, float | None]:
    """The fastest plan of no more compiled bytes, and its seconds over remat's."""
    if REMAT not in found:
        return None, None
    bound = found[REMAT]["compiled_bytes"]
    ratios = {
        name: over(row["runs"], found[REMAT]["runs"])
        for name, row in found.items()
        if row["library"] == "ours" and name not in (PLAIN, REMAT, DOTS)
        if row["compiled_bytes"] <= bound
    }
    return min(ratios.items(), key=lambda item: item[1], default=(None, None))


def beside(row: Row, found: dict[str, Row]) -> str:
    """In words: what our variant takes of another's, and where we lose."""
    name = name_of(row)
    ours = f"ours/{BESIDE.get(name)}"
    ratios = {
        "time": seconds_over(found, ours, name),
        "memory": growth_over(found, ours, name),
    }
    return words(BESIDE.get(name), ratios)


def words(ours: str | None, ratios: dict[str, float | None]) -> str:
    known = {what: ratio for what, ratio in ratios.items() if ratio is not None}
    if not known:
        return ""
    text = ", ".join(
        f"{in_figures(ratio)} of its {what}" for what, ratio in known.items()
    )
    lost = " and ".join(what for what, ratio in known.items() if ratio > 1)
    return f"our {ours}: {text}" + (f"; we lose in {lost}" if lost else "")


def in_figures(ratio: float) -> str:
    """Two places, or where these say nothing, one figure."""
    return f"{ratio:.2f}" if ratio >= 0.095 else f"{ratio:.1g}"


def vgg_table(rows: list[Row]) -> Table:
    found, table = by_name(rows), Table(title="VGG, one training step on the CPU")
    table.add_column("library")
    table.add_column("variant")
    heads = ("s", "over plain", "over base", "compiled MiB", "grown MiB", "loss")
    for head in heads:
        table.add_column(head, justify="right")
    table.add_column("beside ours")
    for row in rows:
        if "error" in row:
            rest = *[""] * len(heads), f"error: {row['error'].splitlines()[-1]}"
        else:
            rest = *cells(row), beside(row, found)
        table.add_row(row["library"], row["variant"], *rest)
    return table


def cells(row: Row) -> Iterator[str]:
    for name in ("seconds", "over_plain", "over_base"):
        yield "" if row[name] is None else f"{row[name]:.2f}"
    for name in ("compiled_bytes", "resident_growth_bytes"):
        yield "" if row[name] is None else f"{row[name] / MIB:.0f}"
    yield f"{row['loss']:.4f}"


def claim_table(rows: list[Row]) -> Table:
    table = Table("claim", "at most", "measured", "holds", title="claims")
    said = {True: "yes", False: "no: we lose", None: "not measured"}
    for row in rows:
        measured = "" if row["measured"] is None else f"{row['measured']:.3f}"
        table.add_row(row["claim"], f"{row['at_most']}", measured, said[row["holds"]])
    return table


def chain_table(rows: list[Row]) -> Table:
    table, points = Table(title="chain of conv-LIF blocks, compiled peak, MiB"), {}
    for row in rows:
        point = points.setdefault((row["time"], row["depth"]), {})
        point[row["variant"]] = row
    names = dict.fromkeys(row["variant"] for row in rows if "error" not in row)
    for head in ("T", "blocks", *names):
        table.add_column(head, justify="right")
    table.add_column("beside ours")
    for (time, depth), point in points.items():
        sizes = [point.get(name, {}).get("peak_bytes") for name in names]
        figures = ["" if size is None else f"{size / MIB:.1f}" for size in sizes]
        table.add_row(str(time), str(depth), *figures, chain_words(point))
    return table


def chain_words(point: dict[str, Row]) -> str:
    errors = [row["error"] for row in point.values() if "error" in row]
    if errors:
        return f"error: {errors[0].splitlines()[-1]}"
    ratio = point["level 1"]["peak_bytes"] / point["nnx.remat"]["peak_bytes"]
    lost = "; we lose" if ratio > 1 else ""
    return f"our level 1: {ratio:.2f} of nnx.remat's{lost}"


def show(result: Row) -> None:
    console = Console(width=180)
    if result["vgg"]:
        console.print(vgg_table(result["vgg"]))
        console.print(claim_table(result["claims"]))
    for row in result["vgg"]:
        if "note" in row:
            console.print(f"{name_of(row)}: {row['note']}")
    if result["chain"]:
        console.print(chain_table(result["chain"]))
