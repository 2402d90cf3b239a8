"""Bytes of a compiled program from XLA's buffer assignment, which is there early.

XLA assigns buffers once its passes over the program are done, and makes machine code
after that, which takes five times as long and changes no byte of them. The fields are
those of HloProto and BufferAllocationProto (openxla/xla, xla/service/hlo.proto), and
the sums those of its CompiledMemoryStats.
"""

from collections.abc import Callable

from ._wire import Fields, first, message

_ASSIGNMENT, _ALLOCATIONS = 3, 3
_SIZE, _THREAD_LOCAL, _PARAMETER, _LIVE_OUT, _CONSTANT = 2, 3, 5, 7, 12


def buffer_figures(hlo: bytes) -> dict[str, int] | None:
    """What `memory_analysis` says of the program, or None.

    Args:
        hlo: A serialized HloProto; None is returned for one that is not complete, or
            has no buffer assignment.
    """
    try:
        (assignment,) = message(hlo).get(_ASSIGNMENT, [])
        buffers = [message(a) for a in message(assignment).get(_ALLOCATIONS, [])]
    except (IndexError, KeyError, ValueError):
        return None

    def total(counts: Callable[[Fields], bool]) -> int:
        return sum(first(b, _SIZE) for b in buffers if counts(b))

    def has(buffer: Fields, *fields: int) -> bool:
        return any(first(buffer, field) for field in fields)

    return {
        "temp": total(
            lambda b: not has(b, _THREAD_LOCAL, _PARAMETER, _LIVE_OUT, _CONSTANT)
        ),
        "argument": total(lambda b: has(b, _PARAMETER)),
        "output": total(lambda b: has(b, _LIVE_OUT)),
        "alias": total(lambda b: has(b, _PARAMETER) and has(b, _LIVE_OUT)),
    }
