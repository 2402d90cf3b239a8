"""The curve of live bytes: a heap trace by hand, and compiled programs."""

import jax
import jax.numpy as jnp
import pytest

from snnjax.memopt._measure import measure
from snnjax.memopt._timeline import LiveBuffer, Timeline, read_timeline, scope_of

MIB = 2**20


@pytest.fixture(params=[None, "h200"])
def device(request) -> str | None:
    if request.param is not None:
        request.getfixturevalue("cuda_wheels")
    return request.param


# --- by hand --------------------------------------------------------------------------


def varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def proto(*fields: tuple[int, int | str | bytes]) -> bytes:
    data = b""
    for number, value in fields:
        if isinstance(value, int):
            data += varint(number << 3) + varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            data += varint(number << 3 | 2) + varint(len(raw)) + raw
    return data


def instruction(number: int, name: str, dims: bytes, op_name: str, *operands: int):
    shape = proto((2, 11), (3, dims))
    named = [(7, proto((2, op_name)))] if op_name else []
    operand_ids = b"".join(map(varint, operands))
    return proto((1, name), (3, shape), *named, (35, number), (36, operand_ids))


MODULE = proto(
    (
        3,
        proto(
            (1, "main"),
            (2, instruction(1, "a", b"\x19", "jit(f)/block1/mul")),
            (2, instruction(2, "b", b"\x04\x03", "jit(f)/transpose(jvp(block2))/add")),
            (2, instruction(3, "c", b"\x04\x03", "", 1)),
            (2, instruction(4, "d", b"", "sub")),
            (5, 7),
            (6, 4),
        ),
    )
)
ALLOC, FREE, SHARE = 0, 1, 2
# (kind, value, label, home): c moves into b's memory, so b is freed with c.
EVENTS = [
    (ALLOC, 10, "a", 0),
    (ALLOC, 11, "b", 0),
    (FREE, 10, "a", 0),
    (SHARE, 12, "c", 11),
    (FREE, 11, "b", 0),
    (ALLOC, 13, "d", 0),
    (FREE, 12, "c", 0),
    (FREE, 13, "d", 0),
]
SIZES = {10: 100, 11: 48, 12: 48, 13: 4}


def hand_made() -> bytes:
    buffers = [(1, proto((1, b), (2, size))) for b, size in SIZES.items()]
    events = [
        (1, proto((1, k), (2, b), (3, "main"), (4, name), (5, home)))
        for k, b, name, home in EVENTS
    ]
    assignment = proto(*buffers, (4, proto(*events, (2, 1))))
    return proto((1, MODULE), (3, assignment))


def test_heap_trace_by_hand():
    assert read_timeline(hand_made()) == Timeline(
        instructions=("a", "b", "c", "d"),
        scopes=("block1", "block2 (backward)", "block1", ""),
        live_bytes=(100, 148, 48, 52),
        at_peak=(
            LiveBuffer(100, "block1", "a", "f32[25]"),
            LiveBuffer(48, "block2 (backward)", "b", "f32[4,3]"),
        ),
    )


def test_peak_by_hand():
    timeline = read_timeline(hand_made())
    assert (timeline.peak_bytes, timeline.peak_index) == (148, 1)
    assert timeline.owners() == {"block1": 100, "block2 (backward)": 48}
    assert timeline.owner() == "block1"


def test_program_without_a_heap():
    timeline = read_timeline(proto((1, MODULE), (3, b"")) + b"")
    assert timeline == Timeline((), (), (), ())
    assert (timeline.peak_bytes, timeline.peak_index, timeline.owner()) == (0, 0, "")
    assert str(timeline) == "no temporary heap"


@pytest.mark.parametrize("data", [b"", b"\x00" * 9, b"garbage", hand_made()[:-20]])
def test_garbage(data):
    with pytest.raises(ValueError, match="`hlo` is not an HloProto"):
        read_timeline(data)


@pytest.mark.parametrize(
    ("op_name", "scope"),
    [
        ("jit(step)/jvp(block0)/inner/mul", "block0/inner"),
        ("jit(step)/transpose(jvp(block0))/mul", "block0 (backward)"),
        (
            "jit(step)/transpose(jvp(jvp()))/checkpoint/rematted_computation/b/add",
            "b (recomputed)",
        ),
        ("jit(f)/jvp(block1)/jit(_uniform)/while/body/closed_call/add", "block1"),
        ("jit(f)/vmap(jvp(a))/b/dot;jit(f)/c/add", "a/b"),
        ("jit(f)/transpose(jvp())/mul", "(backward)"),
        ("jit(f)/mul", ""),
        ("reduce_sum", ""),
        ("", ""),
    ],
)
def test_scope_of(op_name, scope):
    assert scope_of(op_name) == scope


# --- compiled programs ----------------------------------------------------------------


def chain(ws, x):
    """Layers of which the second is by far the widest, and its gradient."""

    def loss(ws):
        y = x
        for name in WIDTHS:
            with jax.named_scope(name):
                y = jnp.tanh(y @ ws[name])
        return jnp.square(y).mean()

    return jax.tree.map(lambda w, g: w - g, ws, jax.grad(loss)(ws))


WIDTHS = {"narrow": (64, 64), "wide": (64, 2048), "last": (2048, 32)}
WS = {name: jax.ShapeDtypeStruct(s, jnp.float32) for name, s in WIDTHS.items()}
X = jax.ShapeDtypeStruct((1024, 64), jnp.float32)


def test_curve_agrees_with_the_figures(device):
    report = measure(chain, WS, X, device=device, donate_argnums=0, timeline=True)
    curve = report.timeline
    assert 0.75 * report.temp_bytes <= curve.peak_bytes <= report.temp_bytes
    assert len(curve.instructions) == len(curve.scopes) == len(curve.live_bytes)
    assert curve.live_bytes[curve.peak_index] == curve.peak_bytes
    assert min(curve.live_bytes) >= 0
    assert sum(b.bytes for b in curve.at_peak) == curve.peak_bytes
    sizes = [b.bytes for b in curve.at_peak]
    assert sizes == sorted(sizes, reverse=True)


def test_owner_of_the_peak(device):
    report = measure(chain, WS, X, device=device, donate_argnums=0, timeline=True)
    curve = report.timeline
    assert curve.owner() in ("wide", "wide (backward)", "last (backward)")
    assert curve.at_peak[0].shape == "f32[1024,2048]"
    assert curve.at_peak[0].bytes == 4 * 1024 * 2048
    assert {"narrow", "wide"} <= {scope.split(" ")[0] for scope in curve.scopes}
    assert f"{curve.peak_bytes / MIB:.1f} MiB live" in str(report)


def test_timeline_changes_no_figure():
    plain = measure(chain, WS, X)
    assert plain.timeline is None
    watched = measure(chain, WS, X, timeline=True)
    assert watched.temp_bytes == plain.temp_bytes
    assert watched.peak_bytes == plain.peak_bytes
