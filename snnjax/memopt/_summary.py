"""What `memory_optimization` did, for programs and for people."""

import dataclasses

from ._plan import Plan


@dataclasses.dataclass(frozen=True)
class MemOptSummary:
    """The outcome of `memory_optimization`; counts are of what the new model holds.

    Args:
        plan: the decision itself, with the measured bytes.
        requested_level, applied_level: asked for and done.
        compress_x: whether inputs were to be compressed.
        applied_steps, skipped_steps: stages that changed something, and the others.
        optimize_seconds: time spent in planning.
    """

    plan: Plan
    requested_level: int
    applied_level: int
    compress_x: bool
    applied_steps: tuple[str, ...]
    skipped_steps: tuple[str, ...]
    optimize_seconds: float

    @property
    def gc_candidate_count(self) -> int:
        """Modules that could have become segments."""
        return len(self.plan.candidates)

    @property
    def gc_selected_modules(self) -> tuple[str, ...]:
        """Paths of those that did."""
        return tuple(s.path for s in self.plan.segments)

    @property
    def gc_selected_count(self) -> int:
        """How many did."""
        return len(self.plan.segments)

    @property
    def gc_container_count(self) -> int:
        """Segments in the new model."""
        return len(self.plan.segments)

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
    def notes(self) -> tuple[str, ...]:
        """What could not be done, and why."""
        return self.plan.notes

    @property
    def peak_bytes(self) -> tuple[int | None, int | None]:
        """Peak of a training step, before and after."""
        return self.plan.plain_bytes, self.plan.planned_bytes

    @property
    def residual_bytes(self) -> tuple[int | None, int | None]:
        """Kept from forward to backward, before and after."""
        return self.plan.plain_residual_bytes, self.plan.planned_residual_bytes

    def _count(self, compressor: str) -> int:
        return sum(s.compressor == compressor for s in self.plan.segments)

    def __str__(self) -> str:
        made = f"{self.gc_container_count} of {self.gc_candidate_count} modules are now"
        return f"{self.plan}\n{made} GC segments; took {self.optimize_seconds:.1f} s"


def summarize(plan: Plan, compress_x: bool, seconds: float) -> MemOptSummary:
    """The summary of a plan at level 0 or 1."""
    step = "level1_gc"
    return MemOptSummary(
        plan=plan,
        requested_level=plan.level,
        applied_level=1 if plan.segments else 0,
        compress_x=compress_x,
        applied_steps=(step,) if plan.segments else (),
        skipped_steps=() if plan.segments else (f"{step}:level_0",),
        optimize_seconds=seconds,
    )
