"""The planner's knobs: presets, limits, and what a user really wants, resolved.

`profile` and `prefer` are presets; whatever is given beside them wins. A preset's
search is the exact one of `_optimum.py` within a slowdown; `level` alone climbs one
move at a time, as the tutorial of SpikingJelly does.
"""

import dataclasses
import math
import numbers
import re
from typing import Any, TypedDict

from ._climb import Limits

_LEVELS = range(5)
# By level: what may become of a target.
_KINDS = (
    ("plain",),
    ("gc",),
    ("gc", "split"),
    ("gc", "split", "batch", "time"),
    ("plain", "gc", "currents", "split", "batch", "time"),
)


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named search.

    Args:
        level: of the moves that it tries.
        max_slowdown: of the estimated time; None is none.
        compiles: whole steps that it compiles beside the plain one.
    """

    level: int
    max_slowdown: float | None
    compiles: int


PROFILES = {
    "safe": Preset(1, None, 1),
    "balanced": Preset(4, 1.3, 1),
    "memory": Preset(4, None, 3),
    "exhaustive": Preset(4, 1.35, 6),
}
PREFER = {
    "speed": ("safe", "speed"),
    "balanced": ("balanced", "balanced"),
    "memory": ("memory", "memory"),
}
BUDGETS = {"speed": 0.5, "balanced": 0.75, "memory": 1.0}


class Search(TypedDict, total=False):
    """Arguments of `make_plan` that say what to look for."""

    level: int | None
    profile: str | None
    prefer: str | None
    checkpoint_budget: str | None
    max_gc_wrapped_modules: int | None
    gc_target_budget_ratio: float | None
    max_split_rounds: int | None
    max_candidates_per_round: int | None
    allow_expensive_profiling: bool | None
    temporal_split_factor: int | None
    budget: str | int | float | None
    max_slowdown: float | None


@dataclasses.dataclass(frozen=True)
class Options:
    """What the planner is to do.

    Args:
        profile, prefer, checkpoint_budget: as asked for.
        requested_level, level: asked for, and done.
        climbs: whether to go by the tutorial's levels; the exact search otherwise.
        budget: bytes that the peak must fit in.
        max_slowdown: of the estimated time over plain's.
        compiles: whole steps to compile beside the plain one.
        ratio, most: share and number of targets that may become segments; None is all.
        lenient: whether `max_slowdown` is a preset's, kept where it can be.
        rounds, candidates: limits of a stage of the climb.
        factor: by which numbers of chunks grow.
        notes: what was not done as asked, and why.
    """

    profile: str | None = None
    prefer: str | None = None
    checkpoint_budget: str | None = None
    requested_level: int | None = None
    level: int = 0
    climbs: bool = True
    budget: int | None = None
    max_slowdown: float | None = None
    lenient: bool = False
    compiles: int = 1
    ratio: float | None = None
    most: int | None = None
    rounds: int | None = None
    candidates: int | None = None
    factor: int = 2
    notes: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """What may become of a target."""
        return _KINDS[self.level]

    @property
    def limits(self) -> Limits:
        """Of a stage of the climb."""
        return Limits(self.rounds, self.candidates)

    def most_of(self, targets: int) -> int:
        """How many of so many targets may become segments."""
        most = targets if self.most is None else min(self.most, targets)
        if self.ratio is None:
            return most
        if self.ratio == 0:
            return 0
        share = math.ceil(round(targets * self.ratio, 9))  # 0.07 of 100 is 7
        return min(most, max(1, share))

    @property
    def searches(self) -> bool:
        """Whether there is anything to choose."""
        limited = self.most is not None or self.ratio is not None
        asks_for_time = self.max_slowdown is not None and not self.lenient
        wants = self.budget is not None or asks_for_time
        return self.level > 1 or wants or (self.level == 1 and limited)


def resolve(
    *,
    has_batch: bool,
    device_bytes: int | None,
    level: Any = None,
    profile: Any = None,
    prefer: Any = None,
    checkpoint_budget: Any = None,
    max_gc_wrapped_modules: Any = None,
    gc_target_budget_ratio: Any = None,
    max_split_rounds: Any = None,
    max_candidates_per_round: Any = None,
    allow_expensive_profiling: Any = None,
    temporal_split_factor: Any = 2,
    budget: Any = None,
    max_slowdown: Any = None,
) -> Options:
    """The options of a call.

    Args:
        has_batch: whether there is an example batch to measure on.
        device_bytes: memory of the device, for a `budget` that is a share of it.
        level, ...: as for `make_plan`.

    Raises:
        ValueError: an argument is out of range, or two contradict each other.
    """
    _one_of("profile", profile, PROFILES)
    _one_of("prefer", prefer, PREFER)
    _one_of("checkpoint_budget", checkpoint_budget, BUDGETS)
    _check_level(level)
    _flag("allow_expensive_profiling", allow_expensive_profiling)
    _whole("max_gc_wrapped_modules", max_gc_wrapped_modules, 0)
    _whole("max_split_rounds", max_split_rounds, 0)
    _whole("max_candidates_per_round", max_candidates_per_round, 0)
    _whole("temporal_split_factor", temporal_split_factor, 2)
    _number("gc_target_budget_ratio", gc_target_budget_ratio, 0.0)
    _number("max_slowdown", max_slowdown, 1.0)
    named, share = PREFER[prefer] if prefer is not None else (None, None)
    profile, share = profile or named, checkpoint_budget or share
    preset = PROFILES.get(profile) if profile else None
    wishes = {"budget": budget, "max_slowdown": max_slowdown}
    wants = any(wish is not None for wish in wishes.values())
    asked = _asked(level, preset, wants)
    done, notes = asked, ()
    if not has_batch:
        done, notes = _without_batch(asked, wishes | {"level": level})
    climbs = preset is None and not wants
    compiles, more = _effort(
        preset,
        climbs,
        max_candidates_per_round,
        max_split_rounds,
        allow_expensive_profiling,
    )
    knobs = max_gc_wrapped_modules is None and gc_target_budget_ratio is None
    return Options(
        profile=profile,
        prefer=prefer,
        checkpoint_budget=share,
        requested_level=asked,
        level=done,
        climbs=climbs,
        budget=_bytes(budget, device_bytes),
        max_slowdown=preset.max_slowdown if preset and not wants else max_slowdown,
        lenient=max_slowdown is None,
        compiles=compiles,
        ratio=BUDGETS[share] if share and knobs else gc_target_budget_ratio,
        most=max_gc_wrapped_modules,
        rounds=max_split_rounds,
        candidates=max_candidates_per_round,
        factor=temporal_split_factor or 2,
        notes=notes + more,
    )


def _asked(level: int | None, preset: Preset | None, wants: bool) -> int:
    """The level that is asked for, by itself or by what goes with it."""
    if level is not None:
        return level
    return preset.level if preset else 4 if wants else 1


def _effort(
    preset: Preset | None,
    climbs: bool,
    candidates: int | None,
    rounds: int | None,
    expensive: bool | None,
) -> tuple[int, tuple[str, ...]]:
    """Whole steps to compile, and what a search that does not climb makes of limits."""
    compiles, notes = preset.compiles if preset else 2 if climbs else 4, []
    if not climbs and candidates is not None:
        compiles = candidates
    if expensive is False:
        compiles = 1
    if not climbs and candidates is not None:
        notes.append(
            f"`max_candidates_per_round`: {compiles} whole steps at most were compiled"
            + "; `allow_expensive_profiling` allows no more" * (compiles < candidates)
        )
    if not climbs and rounds is not None:
        notes.append(
            "`max_split_rounds` is of the climb by `level` alone; with a profile, a "
            "budget or a slowdown the search is exact and has no rounds"
        )
    return compiles, tuple(notes)


def _without_batch(asked: int, wishes: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    """The level that can be done; an error where that is not what was wished for."""
    for name, wish in wishes.items():
        if wish is not None and (name != "level" or wish > 1):
            raise ValueError(
                f"`{name}` is {wish!r} and `dummy_input` is None (`make_plan`'s "
                "`batch`); levels above 1, a `budget` and a `max_slowdown` compare "
                "candidates. Give a batch, or `level=1` alone."
            )
    if asked <= 1:
        return asked, ()
    return 1, (
        "without an example batch there is nothing to compare candidates by, so every "
        "target became a segment: level 1",
    )


def _one_of(name: str, value: Any, allowed: Any) -> None:
    if value is not None and (not isinstance(value, str) or value not in allowed):
        names = ", ".join(map(repr, allowed))
        raise ValueError(f"`{name}` is {value!r}; allowed are {names} and None.")


def _check_level(level: Any) -> None:
    if level is not None and (type(level) is not int or level not in _LEVELS):
        raise ValueError(f"`level` is {level!r}; allowed are 0, 1, 2, 3 and 4.")


def _whole(name: str, value: Any, least: int) -> None:
    if value is not None and (type(value) is not int or value < least):
        raise ValueError(
            f"`{name}` is {value!r}; allowed are whole numbers from {least}, and None."
        )


def _flag(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"`{name}` is {value!r}; allowed are True, False and None.")


def _number(name: str, value: Any, least: float) -> None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (real and least <= value < math.inf):
        raise ValueError(
            f"`{name}` is {value!r}; allowed are numbers from {least:g}, and None."
        )


_UNITS = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def _bytes(budget: Any, device_bytes: int | None) -> int | None:
    """A budget as bytes: "6GiB", a number of bytes, or a share of the device."""
    if budget is None:
        return None
    size = 0
    if isinstance(budget, str):
        size = _in_words(budget)
    elif isinstance(budget, float) and 0 < budget <= 1 and device_bytes:
        size = int(budget * device_bytes)
    elif isinstance(budget, numbers.Integral) and not isinstance(budget, bool):
        size = int(budget)
    if size < 1:
        raise ValueError(
            f'`budget` is {budget!r}; allowed are "6GiB" or "300 MB", a whole number '
            "of bytes, or a share of the memory of a described `device`, 0.5."
        )
    return size


def _in_words(size: str) -> int:
    """Bytes of "6GiB"; 0 if it is not of that form."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*", size.lower())
    return int(float(found[1]) * _UNITS.get(found[2], 0)) if found else 0
