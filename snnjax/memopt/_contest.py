"""Compiles candidates of a search, and lets the measured figures decide.

The table of costs ranks; XLA's own figure of the whole step is what counts. Where the
two differ, the table is scaled by what was measured, and asked again.
"""

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable

from ._measure import MeasureError
from ._table import Choices, Table, estimate

# The peak of a step, or what finds it and may run in another thread.
Measure = Callable[[Choices], int | Callable[[], int]]
# XLA shares buffers that the table counts apart: measured on the tutorial's VGG.
_PRIOR = 0.7
_INFINITE = 2**62


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A plan that was compiled.

    Args:
        choices: for each row of the table.
        peak: measured bytes; None where it did not compile.
        slowdown: estimated time over plain's.
        why: it did not compile; "" where it did.
    """

    choices: Choices
    peak: int | None
    slowdown: float
    why: str = ""


class Contest:
    """Measures candidates, each once, and several side by side where cores allow.

    Args:
        table: of costs.
        measure: the peak of a whole step under some choices.
        plain_seconds: estimated, to which a slowdown relates.
        compiles: that may be made.
    """

    def __init__(
        self, table: Table, measure: Measure, plain_seconds: float, compiles: int
    ) -> None:
        self.table, self.left = table, compiles
        self._measure, self.plain_seconds = measure, plain_seconds
        self.tried: dict[Choices, Candidate] = {}
        self.interrupted = False

    def run(self, proposals: list[Choices]) -> list[Candidate]:
        """Measures what was not measured, as many as may be, in this order."""
        new = [c for c in dict.fromkeys(proposals) if c not in self.tried]
        new = new[: max(self.left, 0)]
        self.left -= len(new)
        pool = concurrent.futures.ThreadPoolExecutor(max(1, os.cpu_count() or 1))
        futures = {}
        try:
            for choices in new:
                futures[choices] = pool.submit(self._one, choices, self._begun(choices))
            for choices, future in futures.items():
                self.tried[choices] = future.result()
        except KeyboardInterrupt:  # the best so far is what one gets
            self.interrupted, self.left = True, 0
            done = {c: f for c, f in futures.items() if f.done() and not f.exception()}
            self.tried |= {choices: f.result() for choices, f in done.items()}
            if not any(c.peak for c in self.tried.values()):
                raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return [self.tried[c] for c in dict.fromkeys(proposals) if c in self.tried]

    def _begun(self, choices: Choices) -> Callable[[], int]:
        """What is to be done in another thread: to trace is not, to compile is."""
        try:
            peak = self._measure(choices)
        except ImportError:  # no candidate can compile
            raise
        except Exception as error:
            reason = error  # `error` is gone by the time that this is called

            def fail() -> int:
                raise reason

            return fail
        return peak if callable(peak) else lambda: peak

    def _one(self, choices: Choices, measure: Callable[[], int]) -> Candidate:
        slowdown = self.slowdown(estimate(self.table, choices).seconds)
        try:
            return Candidate(choices, measure(), slowdown)
        except ImportError:  # no candidate can compile
            raise
        except Exception as error:  # counts as infinitely large; the search goes on
            return Candidate(choices, None, slowdown, f"not compiled: {error}")

    def slowdown(self, seconds: float) -> float:
        """Seconds over plain's."""
        return seconds / self.plain_seconds if self.plain_seconds else 1.0

    @property
    def scale(self) -> float:
        """What the table's moving part is to be multiplied by, from what is known."""
        known = [(c.choices, c.peak) for c in self.tried.values() if c.peak]
        if not known:
            return _PRIOR
        choices, peak = known[-1]
        moving = estimate(self.table, choices).peak - self.table.fixed
        return max(peak - self.table.fixed, 1) / max(moving, 1)

    def scaled(self, budget: int) -> int:
        """A budget of measured bytes in the table's own."""
        return self.table.fixed + int((budget - self.table.fixed) / self.scale)

    def smallest(
        self, but: Choices | None = None, slack: float = 0.0
    ) -> Candidate | None:
        """Of the measured, the one of least peak; of equals the fastest.

        Args:
            but: choices that are left out.
            slack: by which share of the least peak the fastest may be above it.
        """
        tried = [c for c in self.tried.values() if c.choices != but]
        known = [(c.peak, c) for c in tried if c.peak is not None]
        if not known:
            return None
        least = min(peak for peak, _ in known) * (1 + slack)
        near = [c for peak, c in known if peak <= least]
        return min(near, key=lambda c: (c.slowdown, c.peak))

    def failure(self) -> Exception:
        """Why nothing was measured."""
        reasons = dict.fromkeys(c.why for c in self.tried.values())
        return MeasureError("no candidate compiles: " + "; ".join(reasons))

    def fastest_within(self, budget: int) -> Candidate | None:
        """Of those that fit, the fastest; of equals the smallest."""
        known = [c for c in self.tried.values() if (c.peak or _INFINITE) <= budget]
        return min(known, key=lambda c: (c.slowdown, c.peak), default=None)
