"""The curve of live bytes over a compiled program, and who owns its peak.

Read from XLA's own account: an HloProto, which holds the scheduled module and the
BufferAssignmentProto with the trace of the heap simulation (openxla/xla,
xla/service/hlo.proto). The trace says in schedule order which value takes memory, which
one moves into the memory of another, and which one gives it back. The field numbers
below are those of that file.

Left out: arguments, outputs with memory of their own, and constants, which are there
all along; and instructions whose value takes no memory of the heap.
"""

import collections
import dataclasses
import re
from collections.abc import Mapping

from ._wire import first, message, numbers

_MIB = 2**20
_ALLOC, _FREE, _SHARE_WITH = 0, 1, 2
# PrimitiveType of xla/xla_data.proto.
_TYPES = {
    **{1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32"},
    **{9: "u64", 10: "f16", 11: "f32", 12: "f64", 13: "tuple", 15: "c64", 16: "bf16"},
}
# What jax's transformations and loops add to the names that users give.
_WRAPPED = re.compile(r"(?:jvp|transpose|vmap|checkpoint|remat)\((.*)\)$")
_ADDED = re.compile(
    r"p?jit\(.*\)$|while$|body$|cond$|closed_call$|eval_jaxpr$|checkpoint$|call_exported$"
    r"|rematted_computation$|custom_[jv][vj]p_call.*$|branch_\d+_fun$|$"
)


@dataclasses.dataclass(frozen=True)
class LiveBuffer:
    """One buffer at the peak, and the value in it.

    Args:
        bytes: of the buffer.
        scope: path of `jax.named_scope`s that the value was made in.
        instruction: XLA's name of what made it.
        shape: dtype and shape in XLA's notation, such as "f32[4,8]".
    """

    bytes: int
    scope: str
    instruction: str
    shape: str


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Live bytes of the temporary heap over one compiled program.

    Entry i is the i-th instruction that puts a value in the heap, in schedule order,
    and `live_bytes[i]` is what the heap holds while it runs. The peak of the curve is
    the live data; XLA packs the heap into one block (`temp_bytes`), which is larger by
    the gaps between buffers. A loop's body appears once. A scope is the path of
    `jax.named_scope`s, with " (backward)" or " (recomputed)" where jax's own names say
    so, or "" where XLA kept no name.

    Args:
        instructions: Names of the instructions.
        scopes: Their scopes.
        live_bytes: The curve.
        at_peak: The buffers that are live at the peak, largest first.
    """

    instructions: tuple[str, ...]
    scopes: tuple[str, ...]
    live_bytes: tuple[int, ...]
    at_peak: tuple[LiveBuffer, ...]

    @property
    def peak_bytes(self) -> int:
        """The most that the curve reaches."""
        return max(self.live_bytes, default=0)

    @property
    def peak_index(self) -> int:
        """The first place at which the curve is at its peak."""
        return self.live_bytes.index(self.peak_bytes) if self.live_bytes else 0

    def owners(self) -> dict[str, int]:
        """Bytes at the peak by scope, largest first."""
        owned = collections.Counter[str]()
        for buffer in self.at_peak:
            owned[buffer.scope] += buffer.bytes
        return dict(owned.most_common())

    def owner(self) -> str:
        """The scope that owns most of the peak."""
        return next(iter(self.owners()), "")

    def __str__(self) -> str:
        if not self.live_bytes:
            return "no temporary heap"
        where = f"{self.peak_index + 1} of {len(self.live_bytes)}"
        lines = [f"{self.peak_bytes / _MIB:.1f} MiB live at instruction {where}:"]
        for scope, size in list(self.owners().items())[:8]:
            lines.append(f"  {size / _MIB:9.1f} MiB  {scope or '(no scope)'}")
        return "\n".join(lines)


def read_timeline(hlo: bytes) -> Timeline:
    """The timeline of a compiled program.

    Args:
        hlo: A serialized HloProto with a buffer assignment.

    Returns:
        The curve of the program's largest heap; an empty one if it has none.

    Raises:
        ValueError: `hlo` is not such a message.
    """
    try:
        proto = message(hlo)
        values = _values(proto[1][0])
        assignment = message(proto[3][0])
        sizes = {first(b, 1): first(b, 2) for b in map(message, assignment.get(1, []))}
        traces = [_replay(trace, sizes, values) for trace in assignment.get(4, [])]
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise ValueError(
            f"`hlo` is not an HloProto with a buffer assignment ({error!r})"
        ) from error
    empty = Timeline((), (), (), ())
    return max(traces, key=lambda trace: trace.peak_bytes, default=empty)


def scope_of(op_name: str) -> str:
    """The user's scope in XLA's `op_name` metadata.

    "jit(step)/transpose(jvp(block2))/conv/mul" -> "block2/conv (backward)"

    Args:
        op_name: The path, ending with the name of the operation.

    Returns:
        The path of named scopes, with where it belongs if that is not the forward pass.
    """
    op_name = op_name.split(";")[0]  # XLA joins the names of what it merges
    parts = map(_unwrap, op_name.split("/")[:-1])
    path = "/".join(part for part in parts if not _ADDED.match(part))
    if "rematted_computation" in op_name:
        return f"{path} (recomputed)".lstrip()
    return f"{path} (backward)".lstrip() if "transpose(" in op_name else path


def _unwrap(part: str) -> str:
    while match := _WRAPPED.match(part):
        part = match[1]
    return part


def _replay(trace: bytes, sizes: Mapping[int, int], values: Mapping) -> Timeline:
    # A buffer is known by the value it was made for; values that move into it (in-place
    # updates, loop states) are counted, and the last of them to go frees it. XLA labels
    # a FREE with the value's definition, so only the other events tell the time.
    home: dict[int, int] = {}
    users = collections.Counter[int]()
    live: dict[int, str] = {}
    names: list[str] = []
    curve: list[int] = []
    total, peak, at_peak = 0, -1, {}
    for event in map(message, message(trace)[1]):
        kind, value = first(event, 1), first(event, 2)
        if kind == _FREE:
            users[home[value]] -= 1
            if not users[home[value]]:
                total -= sizes[home[value]]
                del live[home[value]]
            continue
        home[value] = home[first(event, 5)] if kind == _SHARE_WITH else value
        total += 0 if home[value] in live else sizes[home[value]]
        users[home[value]] += 1
        live[home[value]] = name = event[4][0].decode()
        if not names or names[-1] != name:
            names.append(name)
            curve.append(total)
        curve[-1] = total
        if total > peak:
            peak, at_peak = total, dict(live)
    buffers = [LiveBuffer(sizes[b], *values[name]) for b, name in at_peak.items()]
    return Timeline(
        instructions=tuple(names),
        scopes=tuple(values[name][0] for name in names),
        live_bytes=tuple(curve),
        at_peak=tuple(sorted(buffers, key=lambda b: -b.bytes)),
    )


def _values(module: bytes) -> dict[str, tuple[str, str, str]]:
    # (scope, name, shape) of every instruction, by its name.
    computations = [message(c) for c in message(module)[3]]
    instructions = [message(i) for c in computations for i in c[2]]
    by_id = {first(i, 35): i for i in instructions}
    roots = {first(c, 5): first(c, 6) for c in computations}
    found = {}
    for instruction in instructions:
        name = instruction[1][0].decode()
        scope = scope_of(_op_name(instruction, by_id, roots))
        found[name] = (scope, name, _shape(message(instruction[3][0])))
    return found


def _op_name(instruction: dict, by_id: dict, roots: dict, depth: int = 8) -> str:
    # XLA's own copies and fusions carry no name: they take the name of what they
    # compute or, next, of what they are made from.
    metadata = message(instruction[7][0]) if 7 in instruction else {}
    if 2 in metadata:
        return metadata[2][0].decode()
    called = [roots[c] for c in numbers(instruction, 38)]
    for source in [*called, *numbers(instruction, 36)] if depth else []:
        name = _op_name(by_id[source], by_id, roots, depth - 1)
        if "/" in name:
            return name
    return ""


def _shape(shape: dict) -> str:
    if 4 in shape:
        return f"({', '.join(_shape(message(s)) for s in shape[4])})"
    kind = first(shape, 2)
    return f"{_TYPES.get(kind, f'type{kind}')}{numbers(shape, 3)}".replace(" ", "")
