"""What `memory_optimization` did, for programs and for people."""

import dataclasses

from ._options import Options
from ._plan import Plan, in_bytes, within

_STEPS = (
    "level1_gc",
    "level2_spatial_split",
    "level3_temporal_split",
    "level4_greedy_unwrap",
)
_ADVICE = {
    "speed": "The cheapest preset; `prefer='balanced'` saves more.",
    "balanced": "A trade; `budget=` says what must fit, `max_slowdown=` what it costs.",
    "memory": "The smallest peak; `max_slowdown=1.2` would bound what it costs.",
}


@dataclasses.dataclass(frozen=True)
class MemOptSummary:
    """The outcome of `memory_optimization`; counts are of what the new model holds.

    Args:
        plan: the decision itself, with the measured bytes.
        options: presets and limits, resolved.
        compress_x: whether inputs were to be compressed.
        allow_expensive_profiling: as asked for.
        applied_steps, skipped_steps: stages that changed something, and the others.
        optimize_seconds: time spent in planning.
    """

    plan: Plan
    options: Options
    compress_x: bool
    allow_expensive_profiling: bool
    applied_steps: tuple[str, ...]
    skipped_steps: tuple[str, ...]
    optimize_seconds: float

    @property
    def profile(self) -> str | None:
        """The preset, if any."""
        return self.options.profile

    @property
    def prefer(self) -> str | None:
        """The preference, if any."""
        return self.options.prefer

    @property
    def checkpoint_budget(self) -> str | None:
        """The named share of targets, if any."""
        return self.options.checkpoint_budget

    @property
    def device(self) -> str | None:
        """What the bytes are for."""
        return self.plan.device

    @property
    def requested_level(self) -> int | None:
        """Asked for."""
        return self.options.requested_level

    @property
    def applied_level(self) -> int:
        """The highest level that changed something."""
        done = [_STEPS.index(step) + 1 for step in self.applied_steps]
        return max(done, default=0)

    @property
    def gc_candidate_count(self) -> int:
        """Modules that could have become segments."""
        return len(self.plan.candidates)

    @property
    def gc_selected_modules(self) -> tuple[str, ...]:
        """Paths of the targets that did, parts of a split one included."""
        return _selected(self.plan)

    @property
    def gc_selected_count(self) -> int:
        """How many did."""
        return len(self.gc_selected_modules)

    @property
    def gc_selection_policy(self) -> str:
        """How targets were chosen where not all may be segments."""
        if not self.plan.candidates:
            return "no_candidates"
        most = self.options.most_of(self.gc_candidate_count)
        if most == 0:
            return "explicit_zero_budget"
        if most < self.gc_candidate_count:
            return "most_saved_per_second"
        limited = self.options.ratio is not None or self.options.most is not None
        return "budget_covers_all" if limited else "all_candidates"

    @property
    def gc_selection_explanation(self) -> str:
        """The policy in words."""
        return (
            f"{self.gc_selected_count} of {self.gc_candidate_count} targets are "
            f"segments ({self.gc_selection_policy})"
        )

    @property
    def gc_container_count(self) -> int:
        """Segments in the new model."""
        return len(self.plan.segments)

    gc_wrap_count = gc_container_count

    @property
    def tcgc_container_count(self) -> int:
        """Segments in time chunks."""
        return sum(s.cut == "time" for s in self.plan.segments)

    temporal_split_count = tcgc_container_count

    @property
    def bcgc_container_count(self) -> int:
        """Segments in batch chunks."""
        return sum(s.cut == "batch" for s in self.plan.segments)

    @property
    def spatial_split_count(self) -> int:
        """Targets that were split into parts."""
        paths = [s.path for s in self.plan.segments]
        return sum(
            c not in paths and any(within(p, c) for p in paths)
            for c in self.plan.candidates
        )

    @property
    def unwrap_count(self) -> int:
        """Targets that stayed plain although they could have become segments."""
        return _unwrapped(self.plan, self.options)

    @property
    def bit_compressor_count(self) -> int:
        """Segments whose input is kept at one bit a value."""
        return self._count("BitSpikeCompressor")

    @property
    def integer_compressor_count(self) -> int:
        """Segments whose input is kept at a few bits a value."""
        return self._count("IntegerSpikeCompressor")

    @property
    def null_compressor_count(self) -> int:
        """Segments whose input is kept as it is."""
        return self._count("NullSpikeCompressor")

    @property
    def manual_compressor_count(self) -> int:
        """Segments whose compressor the planner would not choose."""
        own = self.bit_compressor_count + self.integer_compressor_count
        return self.gc_container_count - own - self.null_compressor_count

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be done, and why."""
        return self.plan.notes

    @property
    def recommendation(self) -> str:
        """What to try next."""
        names = {"safe": "speed", "exhaustive": "memory"}
        name = self.prefer or self.checkpoint_budget or self.profile or "balanced"
        return _ADVICE[names.get(name, name)]

    @property
    def peak_bytes(self) -> tuple[int | None, int | None]:
        """Peak of a training step, before and after."""
        return self.plan.plain_bytes, self.plan.planned_bytes

    @property
    def residual_bytes(self) -> tuple[int | None, int | None]:
        """Kept from forward to backward, before and after."""
        return self.plan.plain_residual_bytes, self.plan.planned_residual_bytes

    @property
    def slowdown(self) -> float | None:
        """Time of a step over plain's: by `time_repeats`, else an estimate."""
        return self.plan.slowdown

    def log(self) -> str:
        """The search, a line each: the target, what was tried, and the peak."""
        return "\n".join(_lines(self.plan))

    def _count(self, compressor: str) -> int:
        return sum(s.compressor == compressor for s in self.plan.segments)

    def __str__(self) -> str:
        # A module that is split becomes several segments.
        count = self.gc_container_count
        became = "is now a GC segment" if count == 1 else f"are now {count} GC segments"
        made = f"{self.gc_selected_count} of {self.gc_candidate_count} modules {became}"
        return f"{self.plan}\n{made}; took {self.optimize_seconds:.1f} s"


def _selected(plan: Plan) -> tuple[str, ...]:
    """The targets that are segments, or have parts that are."""
    paths = [s.path for s in plan.segments]
    return tuple(c for c in plan.candidates if any(within(p, c) for p in paths))


def _unwrapped(plan: Plan, options: Options) -> int:
    """Targets that stayed plain, of as many as were allowed to be segments."""
    allowed = options.most_of(len(plan.candidates)) if plan.level else 0
    return max(0, allowed - len(_selected(plan)))


def _lines(plan: Plan) -> list[str]:
    lines, before = [], None
    for trial in plan.trials:
        peak = (
            "not compiled" if trial.peak_bytes is None else in_bytes(trial.peak_bytes)
        )
        if trial.changed is not None and before is not None:
            done = "not" if trial.verdict == "no better" else "successfully"
            change = f"{in_bytes(before)} -> {peak}, estimated"
            what = f"{done} {_PAST[trial.stage]}"
            lines.append(f"net's {trial.changed}: {what} ({change})")
        elif trial.measured:
            lines.append(f"candidate: {peak}, {trial.slowdown:.2f}x, {trial.verdict}")
        if not trial.measured and trial.verdict != "no better":
            before = trial.peak_bytes
    return lines


_PAST = {"split": "split", "chunk": "cut into chunks", "restore": "made plain"}


def summarize(
    plan: Plan,
    options: Options,
    compress_x: bool,
    allow_expensive_profiling: bool | None,
    seconds: float,
) -> MemOptSummary:
    """The summary of a plan.

    Args:
        plan: made.
        options: that it was made with.
        compress_x, allow_expensive_profiling: as asked for.
        seconds: that it took.
    """
    applied, reached = _applied(plan, options), _STEPS[: max(plan.level, 1)]
    return MemOptSummary(
        plan=plan,
        options=options,
        compress_x=compress_x,
        allow_expensive_profiling=allow_expensive_profiling is not False,
        applied_steps=applied,
        skipped_steps=tuple(step for step in reached if step not in applied),
        optimize_seconds=seconds,
    )


def _applied(plan: Plan, options: Options) -> tuple[str, ...]:
    """The stages that left something in the plan."""
    paths = [s.path for s in plan.segments]
    some = bool(paths)
    split = any(p not in plan.candidates for p in paths)
    chunks = any(s.cut for s in plan.segments)
    restored = some and plan.level >= 4 and _unwrapped(plan, options) > 0
    flags = some, split, chunks, restored
    return tuple(step for step, done in zip(_STEPS, flags) if done)
