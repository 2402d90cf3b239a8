"""The plan: a decision about every segment, as frozen data that can be saved.

A plan holds names and numbers, no arrays and no functions. It remembers the model that
it was made for, so that it is refused for another; the file carries a checksum, so that
one cut short or edited is refused as well.
"""

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._files import write_whole
from ._checks import check_one_of, check_whole

SCHEMA = 1
_FORWARD_IN_WORDS = {
    "whole": "",
    "sums": ", forward too",
    "chunks": ", forward and sums too",
}
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class PlannedSegment:
    """One module that becomes a GC segment.

    Args:
        path: of the module in the model, such as "features.layers.1".
        compressor: class name of what keeps its input.
        boundary: what its input can hold and why, in words.
        settings: (name, value) of the compressor's own arguments.
        unchecked: whether the user vouches for the compressor.
        currents: whether results of convolutions and matrix products are kept too.
        cut: "batch" or "time", what its backward pass takes in chunks; None is nothing.
        chunks: how many.
        shards, forward_by: as for `chunked_segment`.
        kept_bytes, seconds: estimated, of its saved input and of its part of a step;
            None without a search.
        chunk_statistics: "exact", or "per_chunk": batch norm then sees the moments of
            each chunk, which is another function.
    """

    path: str
    compressor: str
    boundary: str
    settings: tuple[tuple[str, Any], ...] = ()
    unchecked: bool = False
    currents: bool = False
    cut: str | None = None
    chunks: int = 1
    shards: int = 1
    forward_by: str = "whole"
    chunk_statistics: str = "exact"
    kept_bytes: int | None = None
    seconds: float | None = None

    @property
    def kind(self) -> str:
        """What becomes of the module, in words."""
        if self.cut is None:
            return "GC, currents kept" if self.currents else "GC"
        forward = _FORWARD_IN_WORDS[self.forward_by]
        inexact = "" if self.chunk_statistics == "exact" else ", their own statistics"
        return f"GC, {self.chunks} {self.cut} chunks{forward}{inexact}"

    @property
    def keeps(self) -> str:
        """The compressor as one would write it."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.settings)
        return self.compressor + (f"({arguments})" if arguments else "")


@dataclasses.dataclass(frozen=True)
class Trial:
    """A plan that the search looked at.

    Args:
        stage: of the search, such as "split" or "candidate".
        changed: path of the target that was changed; None is several.
        choices: what became of each target, in words.
        peak_bytes: of a whole step; None where it did not compile.
        slowdown: estimated time over plain's.
        measured: whether XLA says so; otherwise it is an estimate.
        verdict: why it was taken, or why not.
    """

    stage: str
    changed: str | None
    choices: tuple[str, ...]
    peak_bytes: int | None
    slowdown: float
    measured: bool
    verdict: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """What happens to a model, and the figures that this was decided on.

    Args:
        level: of optimisation, as in `memory_optimization`.
        segments: in the order in which the forward pass meets them.
        candidates: paths of all modules that could have become segments, in that order.
        fingerprint: of the model: (path, description) of variables and modules.
        input_range: (lo, hi) of the whole numbers that the model's first input is
            declared to hold, and checked to at every call; None is anything.
        device: that the bytes are for; None where nothing was measured.
        plain_bytes, planned_bytes: peak of a whole training step, before and after.
        plain_residual_bytes, planned_residual_bytes: kept from forward to backward.
        slowdown: time of a step over plain's: estimated by a roofline, or measured, as
            `timed` says; None without.
        timed: whether `slowdown` was measured.
        trials: what the search looked at.
        front: (estimated bytes, estimated slowdown) of every best trade.
        versions: (package, version) that the figures come from.
        notes: what the planner could not do, and why.

    Example:
        >>> from snnjax import memopt
        >>> block = memopt.PlannedSegment("blocks.0", "BitSpikeCompressor", "0 or 1")
        >>> plan = memopt.Plan(1, (block,), ("blocks.0",), ())
        >>> plan = plan.with_chunks("blocks.0", batch=4)
        >>> memopt.Plan.from_json(plan.to_json()).segments[0].kind
        'GC, 4 batch chunks'
    """

    level: int
    segments: tuple[PlannedSegment, ...]
    candidates: tuple[str, ...]
    fingerprint: tuple[tuple[str, str], ...]
    input_range: tuple[int, int] | None = None
    device: str | None = None
    plain_bytes: int | None = None
    planned_bytes: int | None = None
    plain_residual_bytes: int | None = None
    planned_residual_bytes: int | None = None
    slowdown: float | None = None
    timed: bool = False
    trials: tuple[Trial, ...] = ()
    front: tuple[tuple[int, float], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def with_chunks(
        self,
        *paths: str,
        batch: int | None = None,
        time: int | None = None,
        shards: int = 1,
        forward_by: str = "whole",
        chunk_statistics: str = "exact",
    ) -> Self:
        """The plan with some segments' backward passes in chunks; unmeasured.

        Args:
            *paths: of segments of this plan.
            batch: chunks of the batch, at least 2.
            time: or of the time steps.
            shards, forward_by: as for `chunked_segment`.
            chunk_statistics: as for `PlannedSegment`.

        Raises:
            ValueError: no such segment, or no such number.
        """
        _check_chunks(batch, time)
        _check_shards(shards, time)
        check_one_of("forward_by", forward_by, _FORWARD_IN_WORDS)
        check_one_of("chunk_statistics", chunk_statistics, ("exact", "per_chunk"))
        _check_per_chunk(chunk_statistics, shards, forward_by)
        self._check_paths(paths)
        cut = {
            "currents": False,
            "kept_bytes": None,
            "seconds": None,
            "cut": "batch" if time is None else "time",
            "chunks": batch or time,
            "shards": shards,
            "forward_by": forward_by,
            "chunk_statistics": chunk_statistics,
        }
        segments = (
            dataclasses.replace(s, **cut) if s.path in paths else s
            for s in self.segments
        )
        return self._changed(tuple(segments))

    def without(self, *paths: str) -> Self:
        """The plan with some segments left as they were; unmeasured.

        Args:
            *paths: of segments of this plan.

        Raises:
            ValueError: no such segment.
        """
        self._check_paths(paths)
        return self._changed(tuple(s for s in self.segments if s.path not in paths))

    def first(self, count: int) -> Self:
        """The plan with its first `count` segments only; unmeasured.

        Raises:
            ValueError: `count` is no whole number from 0.
        """
        check_whole("count", count, 0, "Say how many segments stay.")
        return self._changed(self.segments[:count])

    def _check_paths(self, paths: tuple[str, ...]) -> None:
        missing = [p for p in paths if p not in (s.path for s in self.segments)]
        if missing or not paths:
            raise ValueError(
                f"`paths` are {', '.join(map(repr, missing)) or 'none'}; allowed are "
                f"this plan's segments, {', '.join(s.path for s in self.segments)}."
            )

    def _changed(self, segments: tuple[PlannedSegment, ...]) -> Self:
        names = ("planned_bytes", "planned_residual_bytes", "slowdown")
        figures: dict[str, Any] = dict.fromkeys(names) | {"timed": False}
        return dataclasses.replace(self, segments=segments, **figures)

    def pareto(self) -> tuple[tuple[int, float], ...]:
        """(bytes, slowdown) of every best trade that the search saw, estimates.

        The fastest first; `snnjax.plot.pareto` draws it with what was measured.
        """
        return self.front

    def to_json(self) -> str:
        """JSON with schema version and checksum."""
        body = dataclasses.asdict(self)
        head = {"schema": SCHEMA, "sha256": _checksum(body)}
        return json.dumps(head | {"plan": body}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that `to_json` wrote; ValueError if the text is anything else."""
        body = _checked_body(text)
        try:
            return cls(**_tuples(body))
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(
                f"this is not a plan of schema {SCHEMA}: {error}; make the plan again."
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a file, whole or not at all."""
        write_whole(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The plan in a file; ValueError if the file was cut short or edited."""
        try:
            return cls.from_json(Path(path).read_text())
        except ValueError as error:
            raise ValueError(f"`path` is {os.fspath(path)!r}: {error}") from error

    def __str__(self) -> str:
        out = io.StringIO()
        # Plain text wherever it is asked for: in a notebook rich would show it itself.
        console = Console(
            file=out, width=1000, force_jupyter=False, force_terminal=False
        )
        console.print(_table(self))  # as wide as its paths are long
        for line in (*_figures(self), *(f"note: {n}" for n in self.notes)):
            console.print(line, highlight=False, markup=False, width=100)
        return out.getvalue().rstrip()


def _check_chunks(batch: Any, time: Any) -> None:
    given = [n for n in (batch, time) if n is not None]
    if len(given) != 1 or type(given[0]) is not int or given[0] < 2:
        raise ValueError(
            f"`batch` is {batch!r} and `time` {time!r}; allowed is one of them, a "
            "number of chunks from 2 up."
        )


def _check_shards(shards: Any, time: Any) -> None:
    if type(shards) is not int or shards < 1 or (time is not None and shards > 1):
        raise ValueError(
            f"`shards` is {shards!r}; allowed is the number of devices that share the "
            "batch, and 1 for time chunks."
        )


def _check_per_chunk(chunk_statistics: str, shards: int, forward_by: str) -> None:
    if chunk_statistics == "per_chunk" and (shards > 1 or forward_by != "whole"):
        raise ValueError(
            f"`chunk_statistics` is 'per_chunk' with `shards` {shards} and "
            f"`forward_by` {forward_by!r}; allowed with it are 1 and 'whole', since "
            "each chunk is a call of its own. Leave them out, or use 'exact'."
        )


def difference(
    expected: tuple[tuple[str, str], ...], came: tuple[tuple[str, str], ...]
) -> list[str]:
    """What tells two fingerprints apart, a line each."""
    old, new = dict(expected), dict(came)
    lines = []
    for path in [*old, *(p for p in new if p not in old)]:
        if old.get(path) != new.get(path):
            was, now = (d.get(path, "nothing") for d in (old, new))
            lines.append(f"{path}: {was} in the plan, {now} in the model")
    return lines


def _checksum(body: Any) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _checked_body(text: str) -> dict[str, Any]:
    try:
        whole = json.loads(text)
        schema, checksum, body = whole["schema"], whole["sha256"], whole["plan"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            "this is not a whole plan, perhaps a file cut short; make the plan again."
        ) from error
    if schema != SCHEMA:
        raise ValueError(
            f"the plan's schema is {schema!r}; this version of snnjax reads {SCHEMA}; "
            "make the plan again."
        )
    if checksum != _checksum(body):
        raise ValueError(
            "the plan was changed after it was saved: its checksum does not match; "
            "make the plan again."
        )
    return body


def _tuples(body: dict[str, Any]) -> dict[str, Any]:
    segments = tuple(
        PlannedSegment(**s | {"settings": _pairs(s["settings"])})
        for s in body["segments"]
    )
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in body.items()}
    for pairs in ("fingerprint", "versions", "front"):
        fields[pairs] = _pairs(body.get(pairs, []))
    trials = tuple(
        Trial(**t | {"choices": tuple(t["choices"])}) for t in body.get("trials", [])
    )
    return fields | {"segments": segments, "trials": trials}


def _pairs(rows: list[list[Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _frozen(value)) for name, value in rows)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _table(plan: Plan) -> Table:
    table = Table(title=f"plan, level {plan.level}", box=box.SIMPLE)
    searched = any(s.seconds is not None for s in plan.segments)
    table.add_column("segment", no_wrap=True)
    for name, most in ("kind", 20), ("input kept by", 28), ("input can hold", 24):
        table.add_column(name, max_width=most, overflow="fold")
    for name in ("kept", "time") if searched else ():
        table.add_column(name, justify="right", no_wrap=True)
    for path, segment in _by_target(plan):
        cells = ("plain", "", "")
        if segment is not None:
            keeps = segment.keeps.replace("(", "\n(", 1)  # so that no name is broken
            cells = (segment.kind, keeps, segment.boundary)
            cells += _estimates(segment) if searched else ()
        table.add_row(*map(Text, (path or "(the model)", *cells)))
    return table


def _by_target(plan: Plan) -> Iterator[tuple[str, PlannedSegment | None]]:
    """Each target that is plain, and each segment: where its target is, or last."""
    shown = set()
    for target in plan.candidates:
        made = [s for s in plan.segments if within(s.path, target)]
        yield from ((s.path, s) for s in made)
        shown |= {s.path for s in made}
        if not made:
            yield target, None
    yield from ((s.path, s) for s in plan.segments if s.path not in shown)


def within(path: str, target: str) -> bool:
    """Whether a module is the one at `target`, or inside of it."""
    return not target or path == target or path.startswith(f"{target}.")


def _estimates(segment: PlannedSegment) -> tuple[str, ...]:
    if segment.kept_bytes is None or segment.seconds is None:
        return "", ""
    return in_bytes(segment.kept_bytes), f"{segment.seconds * 1e3:.3g} ms"


def _figures(plan: Plan) -> list[str]:
    lines = []
    for name, plain, planned in (
        (
            f"peak of a training step on {plan.device}",
            plan.plain_bytes,
            plan.planned_bytes,
        ),
        (
            "kept from forward to backward",
            plan.plain_residual_bytes,
            plan.planned_residual_bytes,
        ),
    ):
        if plain is not None and planned is not None:
            sizes = f"{in_bytes(plain)} -> {in_bytes(planned)}"
            lines.append(f"{name}: {sizes} ({_ratio(plain, planned)})")
    if plan.slowdown is not None:
        how = "measured" if plan.timed else "estimated"
        lines.append(f"{how} time of a step: {plan.slowdown:.2f}x plain's")
    return lines


def in_bytes(n: int) -> str:
    """A number of bytes in words."""
    return f"{n / _MIB:.1f} MiB" if n >= _MIB else f"{n / 1024:.1f} KiB"


def _ratio(plain: int, planned: int) -> str:
    return f"{plain / planned:.2f}x less" if 0 < planned < plain else "no less"
