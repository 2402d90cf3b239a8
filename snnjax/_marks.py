"""Names in a traced program that vouch for what a function of ours does.

The planner reads traced programs (`memopt/_twin.py`). Loops over the time axis that
write in place look to it as if they could do anything; a `jax.jit` of a known name says
what they do. XLA inlines it: the compiled program is the same.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

# Every result is elementwise in the operands of its shape; smaller operands broadcast.
ELEMENTWISE = "snnjax_elementwise"

# `(*constants, state, x) -> (y, state)`: `x` and `y` are `[time, ...]`, everything else
# is of one time step, and `y[t]` depends on `x[:t + 1]` through the state. Elementwise
# in all axes but time.
CAUSAL = "snnjax_causal"

# `(*constants, x) -> y`: as `CAUSAL`, from a state at rest; the last one is dropped.
FROM_REST = "snnjax_from_rest"

# It does what its own equations say, and so does its derivative.
TRUSTED = "snnjax_trusted"
ALL = (ELEMENTWISE, CAUSAL, FROM_REST, TRUSTED)


def marked(mark: str, **jit: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorates a function so that its traced program carries `mark`."""

    def decorate(f: Callable[..., Any]) -> Any:
        @functools.wraps(f)
        def call(*args: Any) -> Any:
            return f(*args)

        call.__name__ = call.__qualname__ = mark
        return jax.jit(call, **jit)

    return decorate


_carrying = contextvars.ContextVar("snnjax_carrying", default=False)


@contextlib.contextmanager
def carrying_state() -> Iterator[None]:
    """Loops over time are traced with their states, `CAUSAL` and never `FROM_REST`."""
    token = _carrying.set(True)
    try:
        yield
    finally:
        _carrying.reset(token)


def carries_state() -> bool:
    return _carrying.get()
