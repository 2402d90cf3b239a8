"""Segments that go backward over chunks: the same function, or a reason why not."""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chunks import (
    AXES,
    BATCH,
    FAST,
    IMAGES,
    KEEP,
    LIVELY,
    SAMPLES,
    STEPS,
    TIME,
    WAYS,
    Fed,
    Parts,
    apply,
    assert_close,
    compiled,
    cut,
    data,
    gradient,
    linear,
    neuron,
    norm,
    one,
    vgg,
    weigh,
)
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from models import WIDTH, Block, chain, frames, planned, train, values

import snnjax as snn
from snnjax import memopt
from snnjax.memopt import chunked_segment
from snnjax.neuron import lif


class Sew(nnx.Module):
    """SEW-ResNet's block, with a normalisation in the shortcut as well."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.one = Parts(linear(rngs), norm(rngs), snn.neuron.LIF(**LIVELY))
        self.two = Parts(linear(rngs), norm(rngs), snn.neuron.IF(**LIVELY))
        self.short = Parts(linear(rngs), norm(rngs), snn.neuron.LIF(**LIVELY))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.two(self.one(x)) + self.short(x)


class OwnNorm(nnx.Module):
    """Batch normalisation as a user writes it, with the unbiased variance kept."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.scale = nnx.Param(jnp.ones(WIDTH))
        self.seen = nnx.BatchStat(jnp.ones(WIDTH))

    def __call__(self, x: jax.Array) -> jax.Array:
        n = x.shape[0] * x.shape[1]
        centred = x - x.mean((0, 1)).reshape(1, 1, -1)
        var = (centred * centred).mean((0, 1))
        self.seen[...] = 0.9 * self.seen[...] + 0.1 * lax.stop_gradient(var) * n / (
            n - 1
        )
        return (
            centred
            / jnp.sqrt(var + 1e-3).reshape(1, 1, -1)
            * self.scale[...].reshape(1, 1, -1)
        )


class Adaptive(snn.neuron.ScanNeuron):
    """The user's own: a membrane, a threshold that adapts, a learned leak."""

    def __init__(self, count: bool = False) -> None:
        super().__init__()
        self.leak = nnx.Param(jnp.float32(0.6))
        self.count = count

    def initial_state(self, x):
        state = {"v": jnp.zeros_like(x), "up": jnp.zeros_like(x)}
        return state | ({"t": jnp.float32(0)} if self.count else {})

    def step(self, x, state):
        h = self.leak[...] * state["v"] + x
        s = snn.surrogate.atan(h - 0.4 - state["up"])
        after = {"v": h * (1 - s), "up": 0.8 * state["up"] + 0.1 * s}
        if self.count:
            after["t"] = state["t"] + 1
            s = s / (1 + state["t"])
        return s, after


class Twice(nnx.Module):
    """One normalisation used twice."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear, self.norm = linear(rngs), norm(rngs)
        self.neuron = snn.neuron.LIF(**LIVELY)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.neuron(self.norm(self.linear(jnp.tanh(self.norm(self.linear(x))))))


def with_two_sharing() -> nnx.Module:
    """One normalisation in two segments."""
    rngs = nnx.Rngs(0)
    shared = norm(rngs)
    return snn.layer.Sequential(
        *(Parts(linear(rngs), shared, snn.neuron.LIF(**LIVELY)) for _ in range(2))
    )


def evaluated() -> nnx.Module:
    net = one(linear, norm, neuron())()
    net.eval()
    return net


CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "vgg": (one(vgg(False)), IMAGES),
    "vgg with pool": (one(vgg(True)), IMAGES),
    "sew": (one(Sew), None),
    "flax's norm, soft reset": (
        one(linear, lambda r: nnx.BatchNorm(WIDTH, rngs=r), neuron(v_reset=None)),
        None,
    ),
    "own norm, own neuron": (one(linear, OwnNorm, lambda r: Adaptive()), None),
    "dropout, PLIF, IF": (
        one(
            linear,
            norm,
            lambda r: snn.layer.Dropout(0.4, rngs=r),
            neuron(snn.neuron.PLIF),
            linear,
            neuron(snn.neuron.IF, v_reset=-0.5, detach_reset=True),
        ),
        None,
    ),
    "dropout shared by all steps": (
        one(linear, lambda r: nnx.Dropout(0.4, broadcast_dims=(0,), rngs=r), neuron()),
        None,
    ),
    "evaluation": (evaluated, None),
    "frozen norm": (
        one(linear, lambda r: nnx.BatchNorm(WIDTH, use_running_average=True, rngs=r)),
        None,
    ),
    "one norm twice": (one(Twice), None),
    "one norm in two segments": (with_two_sharing, None),
    "layer norm, RMS norm": (
        one(
            linear,
            lambda r: nnx.LayerNorm(WIDTH, rngs=r),
            lambda r: nnx.RMSNorm(WIDTH, rngs=r),
            neuron(),
        ),
        None,
    ),
    # Flax's takes the first axis for the batch: sums over samples and not over time.
    "group norm": (
        one(linear, lambda r: nnx.GroupNorm(WIDTH, num_groups=2, rngs=r), neuron()),
        None,
    ),
}


def scored(net: nnx.Module, *args: Any) -> tuple[jax.Array, Any]:
    y = net(*args)
    return weigh(y), y


def graded(net: nnx.Module, *args: Any) -> tuple[Any, Any, Any]:
    """Results, gradients by the parameters and the input, and the state after it."""
    found = nnx.value_and_grad(scored, argnums=(0, 1), has_aux=True)
    (_, y), (by_net, by_x) = nnx.jit(found)(net, *args)
    return y, {"x": np.asarray(by_x, np.float32)} | values(by_net), values(net)


def assert_bits(came: Any, expected: Any) -> None:
    assert jax.tree.structure(came) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(came), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@functools.cache
def expected_of(case: str) -> Any:
    make, shape = CASES[case]
    return graded(make(), current(shape))


def current(shape: Any = None) -> jax.Array:
    return frames(shape or (STEPS, SAMPLES, WIDTH))


@pytest.mark.parametrize("case", [*CASES])
@AXES
def test_gradients_values_and_states_are_those_of_the_model(case, axis):
    """Values and states bit for bit, unless the sums are over chunks as well."""
    make, shape = CASES[case]
    number = list(CASES).index(case)
    count, way = (2, 3, 5)[(number + axis) % 3], WAYS[(number + 2 * axis) % 3]
    seg = cut(make(), axis, count, forward_by=way)
    y, gradients, state = graded(seg, current(shape))
    want, wanted_gradients, wanted_state = expected_of(case)
    assert_close(gradients, wanted_gradients)
    if way == "chunks":
        assert_close(y, want)
        assert_close(state, wanted_state)
    else:
        assert_bits(y, want)
        # Compiled by jax 0.12, two programs that say the same may sum in another order.
        same = assert_bits if jax.__version_info__ < (0, 11) else assert_close
        same(state, wanted_state)
    assert np.any(gradients["x"])


def test_bfloat16_is_as_close_as_its_rounding():
    x = frames((STEPS, SAMPLES, WIDTH), jnp.bfloat16)
    want = graded(chain(n=1, dtype=jnp.bfloat16), x)
    came = graded(cut(chain(n=1, dtype=jnp.bfloat16), BATCH, 3), x)
    assert came[0].dtype == jnp.bfloat16
    assert_bits(came[0], want[0])
    assert_close(came[1], want[1], 2**-6)
    assert_bits(came[2], want[2])


@pytest.mark.parametrize("axis, count", [(TIME, True), (BATCH, False), (BATCH, True)])
def test_kept_states_go_on_and_their_gradients_go_back(axis, count):
    """The second call starts where the first ended; its loss reaches back."""

    def make() -> nnx.Module:
        net = one(linear, neuron(v_reset=None), linear, lambda r: Adaptive(count))()
        snn.neuron.keep_state(net)
        return net

    def both(net: nnx.Module, x: jax.Array, more: jax.Array) -> tuple[jax.Array, Any]:
        y = net(x), net(more)
        return weigh(y[1]), y

    def run(net: nnx.Module) -> Any:
        found = nnx.value_and_grad(both, argnums=(0, 1, 2), has_aux=True)
        x = current()
        (_, y), gradients = nnx.jit(found)(net, x, x[:3] * 0.7)
        return y, (values(gradients[0]), *gradients[1:]), values(net)

    want, came = run(make()), run(cut(make(), axis, 3))
    assert_bits(came[0], want[0])
    assert_close(came[1], want[1])
    assert_bits(came[2], want[2])
    assert np.any(want[1][1]) and any("kept" in path for path in want[2])


class Simply(Fed):
    """The same as one writes it."""

    def __call__(self, x, full, sample, step, feature, scale, labels, keep, *, power=1):
        y = jnp.tanh(self.linear(x)) * full
        y = y + sample[None, :, None] * step[:, None, None]
        y = y * feature[None, None] * scale**power + self.table[...][labels][None]
        y = jnp.where(keep[..., None], y, 0.5 * y)
        return y, labels + 1, keep.sum(), {"mean": y.mean(), "last": sample * 2}


@AXES
@pytest.mark.parametrize("kind", [Fed, Simply])
@pytest.mark.parametrize("samples", [SAMPLES, WIDTH], ids=["", "as many as features"])
def test_arguments_are_cut_as_they_are_used(axis, kind, samples):
    steps = samples if samples == WIDTH else STEPS
    x = frames((steps, samples, WIDTH))
    args = (
        x,
        jnp.sin(x),
        jnp.linspace(-1.0, 1, samples),
        jnp.linspace(1.0, 2, steps),
        jnp.linspace(0.5, 3, WIDTH),
        jnp.float32(1.5),
        jnp.arange(samples) % 3,
        x[..., 0] > 0,
    )

    def run(net: nnx.Module) -> Any:
        numbers = tuple(range(7))  # the model and six arrays of floats
        found = nnx.value_and_grad(scored, argnums=numbers, has_aux=True)
        (_, y), gradients = nnx.jit(found)(net, *args)
        return y, (values(gradients[0]), *gradients[1:])

    want = run(Fed(nnx.Rngs(0)))
    came = run(cut(kind(nnx.Rngs(0)), axis, 3))
    assert_close(came[0], want[0])
    assert_close(came[1], want[1])


def normal_lif(x: jax.Array, w: jax.Array) -> Any:
    """Two normalisations, a neuron with its last state, and a sum."""

    def normal(y: jax.Array) -> jax.Array:
        mean = y.mean((0, 1), keepdims=True)
        var = jnp.square(y - mean).mean((0, 1), keepdims=True)
        return (y - mean) * lax.rsqrt(var + 1e-3)

    y, v = lif(normal(x @ w) + x, tau=jnp.exp(w[0]) + 1.5, v_threshold=0.3)
    return normal(jnp.tanh(y @ w) + x), v, (y > 0).sum((0, 1))


@pytest.mark.parametrize(
    "axis, way, counts",
    [
        (TIME, "whole", (2, 3, 5, 8)),
        (BATCH, "whole", (2, 3, 5, 8)),
        (TIME, "chunks", (3,)),
        (BATCH, "sums", (5,)),
    ],
)
def test_any_number_of_chunks_even_or_not(axis, way, counts):
    x, w = data(9, 11)
    cuts = [chunked_segment(normal_lif, KEEP, axis, k, forward_by=way) for k in counts]
    want, *came = compiled([normal_lif, *cuts])(x, w)
    for got in came:
        assert_close(got[1], want[1])
        assert_close(got[0], want[0])


@AXES
@pytest.mark.parametrize("length, count", [(3, 8), (1, 2)])
def test_more_chunks_than_there_are_warn_once_a_call(axis, length, count):
    x, w = data(**{"steps" if axis == TIME else "samples": length})
    seg = chunked_segment(one_norm, KEEP, axis, count)
    (want,) = compiled([one_norm])(x, w)
    with pytest.warns(UserWarning, match=f"there will be {length}") as warned:
        (came,) = compiled([seg])(x, w)
    assert len(warned) == 1
    assert_close(came[1], want[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seg(x, w)  # a forward pass has no chunks


def test_the_planned_model_warns_once_a_segment_and_is_right():
    x = frames((3, 1, WIDTH))
    want = graded(chain(n=1), x)
    seg = cut(chain(n=1), BATCH, 2)
    with pytest.warns(UserWarning, match="there will be 1") as warned:
        came = graded(seg, x)
    assert len(warned) == 1
    assert_close(came[1], want[1])
    assert_bits(came[2], want[2])


def test_without_compilation_all_is_right_too():
    """Primitive by primitive, no compiler can round the values differently."""
    x, w = data()
    with jax.disable_jit():
        want = gradient(one_norm)(x, w)
        seg = chunked_segment(one_norm, KEEP, BATCH, 3)
        came = gradient(seg)(x, w)
    assert_bits(came[0], want[0])
    assert_close(came[1], want[1])


def test_an_eager_gradient_of_a_planned_model():
    x = current()
    plain, net = chain(n=1), cut(chain(n=1), BATCH, 2)
    want = nnx.jit(nnx.grad(lambda m, x: weigh(m(x))))(plain, x)
    came = nnx.grad(lambda m: weigh(m(x)))(net)
    assert_close(values(came), values(want))
    assert_close(values(net), values(plain))


@dataclasses.dataclass(frozen=True)
class Turned(memopt.BaseSpikeCompressor):
    """Keeps everything the other way round: no chunk of it is a chunk of the input."""

    holds = None

    def compress(self, x: Any) -> Any:
        return {"turned": jnp.moveaxis(x, 1, 0)[::-1]}

    def decompress(self, data: Any, shape: Any, dtype: Any) -> Any:
        return jnp.moveaxis(data["turned"][::-1], 0, 1).reshape(shape)


PACKED = {
    "bool": memopt.BooleanSpikeCompressor(),
    "uint8": memopt.Uint8SpikeCompressor(),
    "bit": memopt.BitSpikeCompressor(),
    "integer": memopt.IntegerSpikeCompressor(3, -1, 1.0),
    "sparse": memopt.SparseSpikeCompressor(11),
    "turned": Turned(),
}


def one_norm(x: jax.Array, w: jax.Array) -> jax.Array:
    y = x @ w
    return jnp.tanh(y * lax.rsqrt(jnp.square(y).mean((0, 1)).reshape(1, 1, -1)))


@AXES
def test_every_compressor_gives_its_chunks(axis):
    x, w = data(4, 6, 11)
    x = (x > 0).astype(x.dtype)
    by = enumerate(PACKED.values())
    cuts = [
        chunked_segment(one_norm, c, axis, 3 - i % 2, forward_by=WAYS[i % 3])
        for i, c in by
    ]
    want, *came = compiled([one_norm, *cuts])(x, w)
    for got in came:
        assert_close(got, want)


@pytest.mark.parametrize("shards, count", [(2, 3), (4, 2)])
def test_shares_of_devices_are_cut_each_for_itself(shards, count):
    x, w = data(3, 12)
    cuts = [
        chunked_segment(one_norm, c, BATCH, count, shards=shards, forward_by=way)
        for c, way in ((KEEP, "whole"), (Turned(), "chunks"))
    ]
    want, *came = compiled([one_norm, *cuts])(x, w)
    for got in came:
        assert_close(got, want)


def mesh() -> Any:
    return jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))


@pytest.mark.parametrize("way", ["whole", "sums"])
def test_a_batch_over_eight_devices_is_not_gathered(way):
    x = jax.device_put(
        frames((2, 32, WIDTH)), NamedSharding(mesh(), PartitionSpec(None, "batch"))
    )
    net, seg = chain(n=2), chain(n=2)
    seg = apply(seg, planned(seg, x), BATCH, 2, shards=8, forward_by=way)
    found = nnx.jit(nnx.grad(lambda m, x: weigh(m(x))))
    lowered = found.lower(seg, x).compile()
    text = getattr(lowered, "compiled", lowered).as_text()
    gathers = [line for line in text.splitlines() if "all-gather" in line]
    assert not gathers, gathers[:3]
    assert "all-to-all" not in text
    if way == "whole":
        assert_close(values(found(seg, x)), values(found(net, x)))


def test_inside_shard_map_each_device_cuts_its_own():
    x, w = data(3, 16)
    spec = PartitionSpec(None, "batch")

    def run(f: Any) -> Any:
        def local(x: jax.Array, w: jax.Array) -> Any:
            pull = jax.grad(lambda x: jnp.sum(jnp.square(lif(f(x, w))[0] - x)))
            return pull(x)

        in_specs = spec, PartitionSpec()
        # The plain neuron does not pass this check, either.
        settings = {"mesh": mesh(), "out_specs": spec, "check_vma": False}
        mapped = jax.shard_map(local, in_specs=in_specs, **settings)
        lowered = jax.jit(mapped).lower(x, w).compile(FAST)
        assert "all-gather" not in lowered.as_text()
        return lowered(*jax.device_put((x, w), lowered.input_shardings[0]))

    seg = chunked_segment(lambda x, w: lif(jnp.tanh(x @ w))[0], KEEP, BATCH, 2)
    plain = run(lambda x, w: lif(jnp.tanh(x @ w))[0])
    assert_close(run(seg), plain)


def test_two_training_steps_with_several_losses():
    def loss(net, x):
        y = net(x)
        kernel = net.layers[0].linear.kernel[...]
        return weigh(y) + jnp.mean(y) ** 2 + weigh(net(0.5 * x)) + 1e-2 * weigh(kernel)

    x = current()
    plan = planned(chain(n=2), x)
    first, second = (s.path for s in plan.segments)
    assert [s.compressor for s in plan.segments][1] == "BitSpikeCompressor"
    plan = plan.with_chunks(first, batch=3).with_chunks(second, time=2)
    net = memopt.apply_plan(chain(n=2), plan)
    came, want = train(net, x, loss=loss), train(chain(n=2), x, loss=loss)
    assert came.keys() == want.keys()
    for path in want:
        assert_close(came[path], want[path], 2e-5)


def test_a_plan_with_chunks_survives_its_file(tmp_path):
    net, x = chain(n=2), current()
    plan = planned(net, x).with_chunks("layers.1", time=2, forward_by="sums")
    plan.save(tmp_path / "plan.json")
    loaded = memopt.Plan.load(tmp_path / "plan.json")
    assert loaded == plan and "2 time chunks" in str(loaded)
    seg = memopt.apply_plan(net, loaded)
    assert type(seg.layers[1]).__name__ == "TCGCContainer[Block]"
    assert isinstance(seg.layers[1], memopt.TCGCContainer)
    assert not isinstance(seg.layers[0], memopt.TCGCContainer | memopt.BCGCContainer)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"batch": 2, "time": 2}, "`batch` is 2 and `time` 2"),
        ({"batch": 1}, "`batch` is 1"),
        ({"time": True}, "`time` True"),
        ({"batch": 2.0}, "`batch` is 2.0"),
        ({}, "from 2 up"),
        ({"batch": 2, "forward_by": "halves"}, "`forward_by` is 'halves'"),
        ({"time": 2, "shards": 2}, "shards"),
        ({"batch": 2, "shards": 0}, "shards"),
        (
            {"batch": 2, "shards": 2, "chunk_statistics": "per_chunk"},
            "'per_chunk' with",
        ),
        (
            {"batch": 2, "forward_by": "chunks", "chunk_statistics": "per_chunk"},
            "'per_chunk' with `shards` 1 and `forward_by` 'chunks'",
        ),
    ],
)
def test_chunks_that_make_no_sense_are_refused(settings, words):
    plan = memopt.make_plan(chain(n=1), Block, None)
    with pytest.raises(ValueError, match=words):
        plan.with_chunks("layers.0", **settings)


def test_time_chunks_over_devices_are_refused():
    """A device's own steps are not the next ones: loops would go in disorder."""
    x, w = data()
    seg = chunked_segment(normal_lif, KEEP, TIME, 2, shards=2)
    with pytest.raises(ValueError, match="shards"):
        jax.eval_shape(gradient(seg), x, w)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((2, 2), "`axis` is 2; allowed are 0"),
        ((TIME, 0), "`count` is 0"),
        ((TIME, True), "`count` is True"),
        ((BATCH, 2, {"forward_by": "sum"}), "`forward_by` is 'sum'.*'sums'"),
    ],
)
def test_a_cut_that_makes_no_sense_is_refused_at_once(arguments, words):
    axis, count, *settings = arguments
    with pytest.raises(ValueError, match=words):
        chunked_segment(normal_lif, KEEP, axis, count, **dict(*settings))


@pytest.mark.parametrize("axes", [(2,), (-2,), (1, 1), (), (True,)])
def test_axes_that_do_not_fit_are_refused(axes):
    """Axis 2 has another length than the batch: a chunk would be of other samples."""
    x, w = jnp.ones((2, 4, 3)), jnp.ones((2, 4, 3))
    seg = chunked_segment(lambda x, w: x * w, KEEP, BATCH, 2, in_axes=axes)
    with pytest.raises(ValueError, match=r"`in_axes` is .* length 4.*\(2, 4, 3\)"):
        jax.eval_shape(gradient(seg), x, w)


@pytest.mark.parametrize("compressor", ["bit", type(KEEP), None])
def test_what_is_no_compressor_is_refused_at_once(compressor):
    with pytest.raises(ValueError, match="`compressor` is .*Make one"):
        chunked_segment(normal_lif, compressor, BATCH, 2)
    with pytest.raises(ValueError, match="`compressor` is .*Make one"):
        memopt.gc_segment(normal_lif, compressor)
