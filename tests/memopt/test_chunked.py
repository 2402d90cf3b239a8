"""Segments that go backward over chunks: the same function, or a reason why not."""

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from models import WIDTH, Block, chain, frames, planned, train, values

import snnjax as snn
from snnjax import memopt
from snnjax.memopt import NullSpikeCompressor, chunked_segment
from snnjax.neuron import lif

FAST = {"xla_backend_optimization_level": 0}
LIVELY = {"v_threshold": 0.4}
TIME, BATCH = 0, 1
AXES = pytest.mark.parametrize("axis", [TIME, BATCH], ids=["time", "batch"])
STEPS, SAMPLES = 5, 6
IMAGES = (STEPS, SAMPLES, 4, 4, 2)


# --- models ---------------------------------------------------------------------------


class Parts(nnx.Module):
    """What becomes a segment: modules one after the other."""

    def __init__(self, *parts: Any) -> None:
        self.parts = nnx.List(parts)

    def __call__(self, x: jax.Array) -> jax.Array:
        for part in self.parts:
            x = part(x)
        return x


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


def linear(rngs: nnx.Rngs, **settings: Any) -> nnx.Module:
    return snn.layer.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs, **settings)


def norm(rngs: nnx.Rngs, **settings: Any) -> nnx.Module:
    return snn.layer.BatchNorm(WIDTH, rngs=rngs, **settings)


def one(*makers: Callable[[nnx.Rngs], Any]) -> Callable[[], nnx.Module]:
    """A model of a single segment."""

    def make() -> nnx.Module:
        rngs = nnx.Rngs(0)
        return snn.layer.Sequential(Parts(*(m(rngs) for m in makers)))

    return make


def neuron(kind: Any = snn.neuron.LIF, **settings: Any) -> Callable[[Any], Any]:
    return lambda rngs: kind(**LIVELY | settings)


def vgg(pool: bool) -> Callable[[nnx.Rngs], Any]:
    return lambda rngs: snn.models.VGGBlock(2, 3, pool=pool, rngs=rngs, **LIVELY)


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
# Different ones over the cases and the two axes, so that all are met.
WAYS = ("whole", "sums", "chunks")


def cut(net: nnx.Module, axis: int, count: int, **settings: Any) -> Any:
    """The model with all its segments in chunks; the Variables are shared."""
    plan = memopt.make_plan(net, (Parts, Block, Fed), None)
    return apply(net, plan, axis, count, **settings)


def apply(net: Any, plan: Any, axis: int, count: int, **settings: Any) -> Any:
    chunks = {"batch" if axis == BATCH else "time": count} | settings
    paths = [s.path for s in plan.segments]
    return memopt.apply_plan(net, plan.with_chunks(*paths, **chunks))


def weigh(tree: Any) -> jax.Array:
    """Depends on every floating value, each in its own way."""
    total = jnp.float32(0)
    for a in jax.tree.leaves(tree):
        if jnp.issubdtype(a.dtype, jnp.floating):
            a = a.astype(jnp.float32)
            weights = jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape)
            total += jnp.sum((a + 0.1 * a * a) * weights)
    return total


def scored(net: nnx.Module, *args: Any) -> tuple[jax.Array, Any]:
    y = net(*args)
    return weigh(y), y


def graded(net: nnx.Module, *args: Any) -> tuple[Any, Any, Any]:
    """Results, gradients by the parameters and the input, and the state after it."""
    found = nnx.value_and_grad(scored, argnums=(0, 1), has_aux=True)
    (_, y), (by_net, by_x) = nnx.jit(found)(net, *args)
    return y, {"x": np.asarray(by_x, np.float32)} | values(by_net), values(net)


def assert_close(came: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Up to the largest entry of all."""
    a, b = (jax.tree.leaves(t) for t in (came, expected))
    assert jax.tree.structure(came) == jax.tree.structure(expected)
    floats = [v for v in b if jnp.issubdtype(v.dtype, jnp.floating)]
    size = max(
        (np.abs(np.asarray(v, np.float64)).max(initial=0) for v in floats), default=0
    )
    for got, want in zip(a, b, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        got, want = (np.asarray(v, np.float64) for v in (got, want))
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * size)


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


# --- further arguments ----------------------------------------------------------------


class Fed(nnx.Module):
    """Arguments of a sample, of a step, of both, of neither."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = linear(rngs)
        self.table = nnx.Param(jnp.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH))

    def __call__(self, x, full, sample, step, feature, scale, labels, keep, *, power=1):
        def along(a, i):
            return jnp.broadcast_to(lax.broadcast_in_dim(a, x.shape, (i,)), x.shape)

        y = jnp.tanh(self.linear(x)) * full + along(sample, 1) * along(step, 0)
        y = y * along(feature, 2) * scale**power
        y = y + lax.broadcast_in_dim(self.table[...][labels], x.shape, (1, 2))
        y = jnp.where(lax.broadcast_in_dim(keep, x.shape, (0, 1)), y, 0.5 * y)
        return y, labels + 1, keep.sum(), {"mean": y.mean(), "last": sample * 2}


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


# --- pure functions -------------------------------------------------------------------


def data(steps: int = 4, samples: int = 5, features: int = 3) -> tuple[Any, Any]:
    x = jax.random.normal(jax.random.key(samples), (steps, samples, features))
    w = jax.random.normal(jax.random.key(features), (features, features))
    return x, w


def gradient(f: Any) -> Any:
    def loss(x, w):
        y = f(x, w)
        return weigh(y), y

    return jax.value_and_grad(loss, (0, 1), has_aux=True)


def compiled(fs: list[Any]) -> Any:
    """Values and gradients of some functions in one program."""
    run = lambda x, w: [gradient(f)(x, w) for f in fs]  # noqa: E731
    return jax.jit(run, compiler_options=FAST)


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


KEEP = NullSpikeCompressor()


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


# --- programs that mix ----------------------------------------------------------------


def scanned(step: Any, **settings: Any) -> Any:
    """A loop of one's own over time, from zeros."""

    def f(x: jax.Array, w: jax.Array) -> Any:
        start = jnp.zeros(x.shape[1:])
        return lax.scan(lambda c, r: step(x, w, c, r), start, x, **settings)

    return f


def charge(x, w, c, r):
    return 0.5 * c + jnp.tanh(r @ w), jnp.sin(c)


def shaped(x: jax.Array, axis: int) -> list[int]:
    return [-1 if i == axis else 1 for i in range(x.ndim)]


def attention(axis: int) -> str:
    return "tbf,sbf->tbs" if axis == TIME else "tbf,tcf->tbc"


def slid(x: jax.Array, w: jax.Array) -> jax.Array:
    kernel = jnp.stack([w, w, w])
    numbers = ("NWC", "WIO", "NWC")
    y = lax.conv_general_dilated(
        jnp.moveaxis(x, 0, 1), kernel, (1,), "SAME", dimension_numbers=numbers
    )
    return jnp.moveaxis(y, 1, 0)


def slid_over_samples(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.swapaxes(slid(jnp.swapaxes(x, 0, 1), w), 0, 1)


def by_hand(axis: int) -> Any:
    def f(x, w):
        state, rows = 0.0, []
        for i in range(x.shape[axis]):
            state = 0.5 * state + lax.index_in_dim(x, i, axis, keepdims=False) @ w
            rows.append(state)
        return jnp.stack(rows, axis)

    return f


REFUSED: dict[str, Any] = {
    "softmax": lambda n: lambda x, w: jax.nn.softmax(x @ w, n),
    "sort": lambda n: lambda x, w: jnp.sort(x @ w, n),
    "flip": lambda n: lambda x, w: jnp.flip(x @ w, n),
    "cumsum": lambda n: lambda x, w: jnp.cumsum(x @ w, n),
    "roll": lambda n: lambda x, w: jnp.roll(x @ w, 1, n),
    "maximum": lambda n: lambda x, w: x - (x @ w).max(n, keepdims=True),
    "attention": lambda n: lambda x, w: jnp.einsum(attention(n), x, x @ w),
    "convolution": lambda n: (slid, slid_over_samples)[n],
    "python loop": by_hand,
    "python branch": lambda n: (
        lambda x, w: jnp.tanh(x @ w) if x.shape[n] > 3 else jnp.sin(x @ w)
    ),
    "first": lambda n: lambda x, w: (x @ w) * lax.slice_in_dim(x, 0, 1, axis=n),
    "condition of one": lambda n: (
        lambda x, w: lax.cond(x[0, 0, 0] > 0, jnp.sin, jnp.cos, x @ w)
    ),
    "loop until all": lambda n: (
        lambda x, w: (
            lax.stop_gradient(
                lax.while_loop(lambda s: jnp.any(s > 1), lambda s: s / 2, x)
            )
            @ w
        )
    ),
    "loop until a sum": lambda n: (
        lambda x, w: (
            lax.stop_gradient(lax.while_loop(lambda s: s.sum() > 1, lambda s: s / 2, x))
            @ w
        )
    ),
    "median": lambda n: lambda x, w: x * jnp.median(x @ w, n, keepdims=True),
    "shuffle": lambda n: (
        lambda x, w: jnp.take(
            x @ w, jax.random.permutation(jax.random.key(0), 4), n, mode="clip"
        )
    ),
    "scan over it": lambda n: (
        lambda x, w: jnp.moveaxis(
            scanned(charge, reverse=n == TIME)(jnp.moveaxis(x, n, 0), w)[1], 0, n
        )
    ),
    "scatter": lambda n: lambda x, w: (x @ w).at[0].add(x[1]).at[:, 0].add(x[:, 1]),
    # What fails at a chunk's size has to be told as well, and not as a puzzle.
    "fixed size": lambda n: (
        lambda x, w: (x @ w).reshape(5, 4, 3) * w[0].reshape(1, 1, 3)
    ),
    "constant of its length": lambda n: (
        lambda x, w: (x @ w) * jnp.linspace(0, 1, (4, 5)[n]).reshape(shaped(x, n))
    ),
}


def reason(f: Any, axis: int, count: int = 3, **settings: Any) -> str | None:
    """Why it is refused, from a trace of the gradient; None if it is not."""
    x, w = data()
    try:
        seg = chunked_segment(f, KEEP, axis, count, **settings)
        jax.eval_shape(gradient(seg), x, w)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("case", REFUSED)
@AXES
def test_what_mixes_is_refused_and_said(case, axis):
    f = REFUSED[case](axis)
    seg = chunked_segment(f, KEEP, axis, 2)
    jax.eval_shape(seg, *data())  # a forward pass does not care
    said = reason(f, axis) or "accepted"
    name = "time steps" if axis == TIME else "samples"
    assert f"{name} cannot be kept apart" in said, said


def ruled(forward: Any, backward: Any) -> Any:
    """An identity with a gradient of one's own."""
    f = jax.custom_vjp(lambda x: 2 * x)
    f.defvjp(lambda x: (2 * x, forward(x)), backward)
    return lambda x, w: f(jnp.tanh(x @ w))


def by_jvp(rule: Any) -> Any:
    f = jax.custom_jvp(lambda x: 2 * x)
    f.defjvp(lambda p, t: (2 * p[0], t[0] * rule(p[0])))
    return lambda x, w: f(jnp.tanh(x @ w))


def uniform_in_rule(x: jax.Array, w: jax.Array) -> jax.Array:
    @jax.custom_jvp
    def f(x):
        return x / jnp.ones_like(x).sum()

    f.defjvp(lambda p, t: (f(p[0]), t[0] / jnp.ones_like(p[0]).sum()))
    return f(jnp.tanh(x @ w))


def uniform_in_loop(x, w):
    return lax.fori_loop(0, 2, lambda i, y: jnp.sin(y @ w) / jnp.ones_like(y).sum(), x)


def uniform_in_branch(x, w):
    count = lambda y: y / jnp.ones_like(y).sum()  # noqa: E731
    return lax.cond(w[0, 0] > 9, jnp.sin, count, x @ w)


def uniform_product_in_loop(x, w):
    def step(i, y):
        u = jnp.ones((x.shape[0], x.shape[1]))
        return jnp.sin(y @ w) / jnp.vdot(u, u)

    return lax.fori_loop(0, 2, step, x)


def positions_twice(x, w):
    """Steps numbered: one at a time in the loop, and all of them beside it."""
    p = jnp.arange(x.shape[0], dtype=x.dtype)

    def step(c, row):
        return 0.5 * c + jnp.tanh(row[0] @ w) * row[1], c / (1 + p.sum())

    return lax.scan(step, jnp.zeros(x.shape[1:]), (x, p))[1]


def ones_beside(n):
    def f(x, w):
        o = jnp.ones(x.shape[n])
        return scanned(lambda x, w, c, r: (0.5 * c + jnp.tanh(r @ w), c / o.sum()))(
            x, w
        )

    return f


def rewired(n):
    def f(x, w):
        a, b = jnp.tanh(x @ w), jnp.sin(x)
        return (a * b if x.shape[n] > 3 else a * a) + b

    return f


def last_beside(x, w):
    state, rows = scanned(charge)(x, w)
    return rows + state[None]


def masked(x, w, n):
    shape = [size if i == n else 1 for i, size in enumerate(x.shape)]
    return jnp.where(
        jax.random.bernoulli(jax.random.key(1), 0.6, shape), x @ w, 0.1 * x
    )


# Each is either right or refused; what the analysis might take for what it is not.
DOUBTFUL: dict[str, Any] = {
    "divided by their number": lambda n: lambda x, w: jnp.tanh(x @ w) / x.shape[n],
    "to the power of it": lambda n: lambda x, w: jnp.tanh(x @ w) ** x.shape[n],
    "full of it": lambda n: lambda x, w: x @ w * jnp.full(x.shape, float(x.shape[n])),
    "full of it, in a total": lambda n: (
        lambda x, w: x @ w * jnp.full(x.shape, float(x.shape[n])).sum()
    ),
    "branch by it, one literal": lambda n: (
        lambda x, w: jnp.tanh(x @ w) * (2.0 if x.shape[n] > 3 else 3.0)
    ),
    "branch by it, one operand": rewired,
    "branch by it, literal or operand": lambda n: (
        lambda x, w: jnp.tanh(x @ w) * (w[0, 0] if x.shape[n] > 3 else 3.0)
    ),
    "clipped at it": lambda n: lambda x, w: jnp.clip(x @ w * 9, 0, x.shape[n]),
    "a loop of as many turns": lambda n: (
        lambda x, w: lax.fori_loop(0, x.shape[n], lambda i, y: jnp.sin(y @ w), x)
    ),
    "a scan of as many turns": lambda n: (
        lambda x, w: lax.scan(
            lambda y, _: (jnp.sin(y @ w), None), x, length=x.shape[n]
        )[0]
    ),
    "its number in a loop": lambda n: scanned(
        lambda x, w, c, r: (0.5 * c + jnp.tanh(r @ w) / x.shape[n], c)
    ),
    "its number in a branch": lambda n: (
        lambda x, w: lax.cond(w[0, 0] > 9, jnp.sin, lambda y: y / x.shape[n], x @ w)
    ),
    "ones beside a loop": ones_beside,
    "positions twice in a loop": lambda n: positions_twice,
    "gradient normalised": lambda n: ruled(
        lambda x: None, lambda _, g: (g / jnp.sqrt(jnp.square(g).sum()),)
    ),
    "gradient of a statistic": lambda n: ruled(
        lambda x: x.max((0, 1)), lambda r, g: (g * r.reshape(1, 1, -1),)
    ),
    "gradient turned": lambda n: ruled(lambda x: None, lambda _, g: (jnp.flip(g, n),)),
    "tangent of a statistic": lambda n: by_jvp(lambda x: x.sum()),
    "tangent by their number": lambda n: by_jvp(lambda x: 1 / x.shape[n]),
    "ones summed in a rule": lambda n: uniform_in_rule,
    "ones summed in a loop": lambda n: uniform_in_loop,
    "ones multiplied in a loop": lambda n: uniform_product_in_loop,
    "ones summed in a branch": lambda n: uniform_in_branch,
    "the last state beside": lambda n: last_beside,
    "positions": lambda n: (
        lambda x, w: x @ w * jnp.arange(x.shape[n], dtype=x.dtype).reshape(shaped(x, n))
    ),
    "a mask of each": lambda n: lambda x, w: masked(x, w, n),
    "a barrier over positions": lambda n: (
        lambda x, w: (lambda a, b: a / b.sum())(
            *lax.optimization_barrier((x @ w, jnp.arange(x.shape[n], dtype=x.dtype)))
        )
    ),
    "ones looked up": lambda n: (
        lambda x, w: x @ w * jnp.ones(x.shape[n])[jnp.argmax(x, -1) + 1][..., None]
    ),
    "positions looked up backwards": lambda n: (
        lambda x, w: (
            x
            @ w
            * jnp.sin(jnp.arange(1.0, 1 + x.shape[n]))[-1 - jnp.argmax(x, -1)][
                ..., None
            ]
        )
    ),
    "one-hot of their number": lambda n: (
        lambda x, w: jnp.sum(jax.nn.one_hot(jnp.argmax(x, -1), x.shape[n]), -1)
    ),
    "identity matrix": lambda n: (
        lambda x, w: jnp.einsum(
            ("tbf,tc->cbf", "tbf,bc->tcf")[n], x @ w, jnp.eye(x.shape[n])
        )
    ),
    "first state a total": lambda n: (
        lambda x, w: lax.scan(
            lambda c, r: (0.5 * c + jnp.tanh(r @ w), c),
            jnp.zeros(x.shape[1:]) + x.sum(),
            x,
        )
    ),
    "neuron from a total": lambda n: (
        lambda x, w: lif(x @ w, jnp.zeros(x.shape[1:]) + jnp.tanh(x.sum()))
    ),
}


@pytest.mark.parametrize("case", DOUBTFUL)
@AXES
def test_what_looks_harmless_is_right_or_refused(case, axis):
    right_or_refused(DOUBTFUL[case](axis), axis, 3)


@pytest.mark.parametrize(
    "case", [c for c in DOUBTFUL if "position" in c or "each" in c]
)
@AXES
def test_chunks_of_one_do_not_broadcast(case, axis):
    right_or_refused(DOUBTFUL[case](axis), axis, data()[0].shape[axis])


def right_or_refused(f: Any, axis: int, count: int) -> None:
    said = reason(f, axis, count)
    if said is not None:
        assert "cannot be kept apart" in said, said
        return
    came, want = compiled([chunked_segment(f, KEEP, axis, count), f])(*data())
    assert_close(came, want)


def dot_of_all(x, w):
    return x @ jnp.tanh(0.03 * jnp.einsum("tbf,tbg->fg", x, x @ w))


def chain_of_sums(x, w):
    y = x @ w
    for _ in range(3):
        y = jnp.tanh(y * y.mean((0, 1)).reshape(1, 1, -1))
    return y, y.sum(0), y.sum(1), jnp.swapaxes(y, 0, 1)


def folded(x, w):
    y = (x.reshape(-1, x.shape[-1]) @ w).reshape(*x.shape[:2], -1)
    return jnp.transpose(y, (2, 0, 1)).reshape(y.shape[2], -1)


def frozen_moments(x, w):
    y = x @ w
    return y * lax.stop_gradient(y.mean((0, 1))).reshape(1, 1, -1)


def integers(x, w):
    fires = (x > 0).sum((0, 1))
    return x @ w * fires.astype(x.dtype).reshape(1, 1, -1), fires, x > 0


def looked_up(x, w):
    return w[jnp.argmax(x, -1)] * x, jnp.argmax(x, -1)


def one_number_for_all(x, w):
    drawn = jax.random.normal(jax.random.key(2), (1, 1, x.shape[2]))
    return x @ w * drawn, jnp.where(
        jax.random.bernoulli(jax.random.key(3), 0.5, x.shape), x, w[0, 0]
    )


def branched(x, w):
    y = x @ w
    return lax.cond(y.sum() > 0, jnp.sin, jnp.cos, y), jnp.where(y.mean() > 0, y, x)


def after_the_loop(x, w):
    state, rows = scanned(charge)(x, w)
    return jnp.tanh(state @ w), rows * jnp.mean(rows, (0, 1)).reshape(1, 1, -1)


def from_an_argument(x, w):
    start = jnp.broadcast_to(jnp.tanh(w.sum(0)).reshape(1, -1), x.shape[1:])
    spikes, v = lif(x @ w, start, tau=1.5)
    return spikes, lif(spikes + x, None, v_reset=None)[0], v


def nothing_left(x, w):
    return jnp.zeros(3), jnp.tanh(x), w * 2


EXACT = [dot_of_all, chain_of_sums, folded, frozen_moments, integers, looked_up]
EXACT += [one_number_for_all, branched, after_the_loop, from_an_argument, nothing_left]


@pytest.mark.parametrize(
    "axis, sizes", [(TIME, (4, 4, 4)), (BATCH, (4, 5, 3))], ids=["time", "batch"]
)
def test_what_is_a_sum_or_apart_is_exact(axis, sizes):
    """Total sums by any primitive, look-ups, branches by sums, states at both ends."""
    count = 2  # of 5 samples a rest of two: of one, `broadcast_to` would be nothing
    ways = [WAYS[(i + axis) % 3] for i in range(len(EXACT))]
    refused = {f.__name__: reason(f, axis, count) for f in EXACT}
    kept = [(f, way) for f, way in zip(EXACT, ways) if refused[f.__name__] is None]
    plain = [f for f, _ in kept]
    cuts = [chunked_segment(f, KEEP, axis, count, forward_by=way) for f, way in kept]
    found = compiled([*plain, *cuts])(*data(*sizes))
    for f, want, came in zip(plain, found, found[len(plain) :]):
        try:
            assert_close(came[0][1], want[0][1])
            assert_close(came[1], want[1])
        except AssertionError as error:
            raise AssertionError(f"{f.__name__}: {error}") from error
    assert not {name: said for name, said in refused.items() if said}


def test_a_result_of_integers_alone_has_no_gradient():
    x, w = data()
    seg = chunked_segment(lambda x, w: (x @ w > 0).sum(-1), KEEP, BATCH, 2)
    loss = lambda w: w.sum() * seg(x, w).sum().astype(w.dtype)  # noqa: E731
    n = float((x @ w > 0).sum())
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(w), jnp.full(w.shape, n))


# --- what the compiler makes of it ----------------------------------------------------


def test_the_program_does_not_grow_with_the_number_of_chunks():
    def instructions(count: int) -> int:
        net = one(vgg(True))()
        x = jax.ShapeDtypeStruct((3, 8, 4, 4, 2), jnp.float32)
        step = nnx.jit(nnx.grad(lambda m, x: weigh(m(x))))
        made = step.lower(cut(net, BATCH, count), x).compile()
        text = getattr(made, "compiled", made).as_text()
        return len(re.findall(r"^\s+(?:ROOT )?%?[\w.-]+ = ", text, re.MULTILINE))

    two, eight = instructions(2), instructions(8)
    assert two > 100
    assert abs(eight - two) < 0.05 * two, (two, eight)
