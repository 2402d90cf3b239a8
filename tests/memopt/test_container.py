"""Segments of nnx modules against the same model unsegmented."""

import contextlib
import copy
import dataclasses
import functools
import pickle
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from models import (
    WIDTH,
    Block,
    ConvBlock,
    Residual,
    assert_same,
    chain,
    frames,
    loss,
    planned,
    segmented,
    train,
    values,
)

import snnjax as snn
from snnjax import memopt

COUNTED: list[int] = []  # one entry a trace of `Custom`'s body


class Decay(snn.neuron.ScanNeuron):
    """A neuron of the user's own."""

    def __init__(self, v_threshold):
        super().__init__()
        self.v_threshold = v_threshold

    def initial_state(self, x):
        return jnp.zeros_like(x)

    def step(self, x, state):
        h = 0.7 * state + x
        s = snn.surrogate.atan(h - self.v_threshold)
        return s, h * (1 - s)


class Shared(nnx.Module):
    """One block in two places, and one kernel shared by two blocks."""

    def __init__(self, rngs: nnx.Rngs):
        first, second, third = (Block(rngs) for _ in range(3))
        third.linear.kernel = second.linear.kernel
        self.blocks = nnx.List([first, second, first, third])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def soft_then_learned(rngs_seed: int = 0) -> nnx.Module:
    rngs = nnx.Rngs(rngs_seed)
    soft = functools.partial(snn.neuron.LIF, v_reset=None, detach_reset=True)
    return snn.layer.Sequential(
        Block(rngs, neuron=soft),
        Block(rngs, neuron=snn.neuron.PLIF),
        Block(rngs, neuron=functools.partial(snn.neuron.IF, v_reset=-0.5)),
    )


def kept() -> nnx.Module:
    net = chain()
    snn.neuron.keep_state(net)
    return net


IMAGES = (2, 2, 4, 4, 4)
CASES = {
    "dropout in residual blocks": (lambda: chain(Residual, dropout=0.3), frames()),
    "bf16": (lambda: chain(dtype=jnp.bfloat16), frames(dtype=jnp.bfloat16)),
    "tied": (lambda: Shared(nnx.Rngs(0)), frames()),
    "soft reset, PLIF, IF": (soft_then_learned, frames()),
    "kept states": (kept, frames()),
    "convolution": (lambda: chain(ConvBlock), frames(IMAGES)),
    "own neuron": (lambda: chain(neuron=Decay), frames()),
}


# These must survive compilation as well, where rounding may differ.
COMPILED = ("dropout in residual blocks", "tied", "soft reset, PLIF, IF", "kept states")


@pytest.mark.parametrize("case", CASES)
def test_gradients_loss_and_state_are_equal_bit_for_bit(case):
    """Primitive by primitive, so that no compiler can round differently."""
    make, x = CASES[case]
    plain, seg = make(), segmented(make(), x)
    # Strict mode refuses bfloat16 in `promote_types`; that has a test of its own.
    with jax.disable_jit(), jax.numpy_dtype_promotion("standard"):
        for _ in range(2):  # the second starts from what the first left behind
            expected = nnx.value_and_grad(loss)(plain, x)
            came = nnx.value_and_grad(loss)(seg, x)
            assert float(came[0]) == float(expected[0]) != 0
            assert_same(came[1], expected[1], tolerance=0)
            assert_same(seg, plain, tolerance=0)
    assert all(np.any(g) for g in values(expected[1]).values())


@pytest.mark.parametrize("case", COMPILED)
def test_two_compiled_steps_with_adam_are_those_of_the_plain_model(case):
    make, x = CASES[case]
    expected = train(make(), x)
    # A fresh model: `make` starts from the same seed.
    came = train(segmented(make(), x), x)
    assert_same(came, expected)
    assert len(np.unique(expected["loss"])) == 2


def test_eager_gradients_are_those_of_the_plain_model():
    plain, x = chain(), frames()
    seg = segmented(chain(), x)
    expected, came = (nnx.grad(loss)(net, x) for net in (plain, seg))
    assert_same(came, expected)
    assert_same(seg, plain)


def test_bfloat16_works_where_promotion_is_strict():
    x = frames(dtype=jnp.bfloat16)
    net = segmented(nnx.eval_shape(lambda: chain(dtype=jnp.bfloat16)), x)
    y = nnx.eval_shape(lambda m, x: m(x), net, x)
    assert y.dtype == jnp.bfloat16


def test_statistics_and_counters_move_exactly_once_a_step():
    x, net = frames(), segmented(chain(dropout=0.5), frames())
    before = values(net)
    nnx.jit(nnx.value_and_grad(loss))(net, x)
    after = values(net)
    y = x @ net.layers[0].linear.kernel[...]
    expected = 0.9 * 0 + 0.1 * np.asarray(y.mean((0, 1)))
    np.testing.assert_allclose(net.layers[0].norm.mean[...], expected, rtol=1e-4)
    counts = [p for p in after if "count" in p]
    assert len(counts) == 2
    for path in counts:
        assert after[path] == before[path] + 1
    changed = {p for p in after if not np.array_equal(before[p], after[p])}
    assert changed == {p for p in after if "mean" in p or "var" in p or "count" in p}


def test_a_module_given_to_jax_checkpoint_loses_its_statistics_and_ours_does_not():
    """The trap that the segment avoids, shown first."""
    x = frames()
    trapped, ours, plain = chain(n=1), segmented(chain(n=1), x), chain(n=1)

    try:
        nnx.grad(lambda m, x: jnp.sum(jax.checkpoint(lambda m, x: m(x))(m, x)))(
            trapped, x
        )
    except Exception:
        lost = True  # or it is refused
    else:
        lost = not np.any(trapped.layers[0].norm.mean[...])
    assert lost
    nnx.grad(loss)(ours, x)
    nnx.grad(loss)(plain, x)
    assert np.any(ours.layers[0].norm.mean[...])
    assert_same(ours, plain, tolerance=0)


def test_kept_states_go_on_where_the_last_call_ended():
    x = frames((4, 2, WIDTH))
    whole, parts = chain(), segmented(kept(), x)
    for net in (whole, parts):
        net.eval()
    expected = whole(x)
    assert_same({"y": np.asarray(parts(x[:1]))}, {"y": np.asarray(expected[:1])})
    rest = nnx.jit(lambda m, x: m(x))(parts, x[1:])
    np.testing.assert_array_equal(rest, expected[1:])


def test_one_trace_serves_many_steps():
    net, x = segmented(chain(Counted), frames()), frames()
    step = nnx.jit(nnx.grad(loss))
    step(net, x)
    COUNTED.clear()
    for i in range(3):
        step(net, x + i)
    assert not COUNTED


class Counted(Block):
    """A block that writes down when its body is traced."""

    def __call__(self, x):
        COUNTED.append(1)
        return super().__call__(x)


# --- arguments and outputs ------------------------------------------------------------


class Custom(nnx.Module):
    """Further arguments of every kind; a dict of outputs."""

    def __init__(self, rngs: nnx.Rngs):
        self.linear = snn.layer.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, mask, *, scale, power=1, name="y", extra=None):
        y = jnp.tanh(self.linear(x)) * mask * scale**power
        if extra is not None:
            y = y + extra["shift"]
        return {name: y, "parts": (y[0], jnp.argmax(y, -1)), "none": None}


def run_custom(module, x, mask, scale, shift):
    out = module(
        x, mask, scale=scale, power=2, name="z", extra={"shift": shift, "n": 3}
    )
    assert set(out) == {"z", "parts", "none"} and out["none"] is None
    assert jnp.issubdtype(out["parts"][1].dtype, jnp.integer)
    y = out["z"]
    return (y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum() + (
        out["parts"][0].sum()
    )


def as_segment(module: nnx.Module, compressor: Any = None) -> nnx.Module:
    """The module itself as a segment, through the public way."""
    cls = type(module)
    plan = memopt.make_plan(module, cls, None)
    name = type(compressor or memopt.NullSpikeCompressor()).__name__
    segments = tuple(dataclasses.replace(s, compressor=name) for s in plan.segments)
    return memopt.apply_plan(module, dataclasses.replace(plan, segments=segments))


@pytest.mark.parametrize("jit", [False, True])
def test_arguments_of_every_kind_get_their_gradients(jit):
    """A mask with time and batch, a scale per channel, a number, keywords, a tree."""
    module, x = Custom(nnx.Rngs(0)), frames()
    mask = (frames((3, 2, 1)) > 0).astype(x.dtype)
    scale = frames((1, 1, WIDTH))
    args = (x, mask, scale, frames((3, 2, WIDTH)))
    wrap = nnx.jit if jit else lambda f: f
    grad = lambda m: wrap(nnx.value_and_grad(run_custom, argnums=(0, 1, 2, 3, 4)))(  # noqa: E731
        m, *args
    )
    with contextlib.nullcontext() if jit else jax.disable_jit():
        expected, came = grad(module), grad(as_segment(module))
    tolerance = 1e-5 if jit else 0
    assert_same(came[1][0], expected[1][0], tolerance=tolerance)
    arrays = lambda v: {str(i): np.asarray(a) for i, a in enumerate((v[0], *v[1][1:]))}  # noqa: E731
    assert_same(arrays(came), arrays(expected), tolerance=tolerance)
    assert np.any(expected[1][2]) and np.any(expected[1][3])


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda m, x: m(np.asarray(x).tolist(), 1.0, scale=1.0), "list came"),
        (lambda m, x: m(None, 1.0, scale=1.0), "NoneType came"),
        (lambda m, x: m(x, nnx.Param(x), scale=1.0), "Param"),
        (lambda m, x: m(x, x, scale=1.0, extra={"m": Block(nnx.Rngs(0))}), "Block"),
    ],
)
def test_what_a_segment_cannot_take_is_refused_by_name(call, words):
    segment = as_segment(Custom(nnx.Rngs(0)))
    with pytest.raises(ValueError, match=words) as error:
        call(segment, frames())
    assert "Custom" in str(error.value)


def test_a_numpy_input_serves_as_it_does_the_plain_model():
    net, x = chain(n=1), frames()
    seg = segmented(chain(n=1), x)
    np.testing.assert_array_equal(seg(np.asarray(x)), net(np.asarray(x)))


class Growing(nnx.Module):
    """A module that makes a variable in its call."""

    def __call__(self, x):
        self.seen = nnx.BatchStat(x[0])
        return x


def test_a_call_that_adds_a_variable_is_refused():
    with pytest.raises(ValueError, match="Growing.*added, removed or changed") as error:
        as_segment(Growing())(frames())
    assert "__init__" in str(error.value)


# --- what is kept ---------------------------------------------------------------------


def test_only_bits_parameters_old_state_and_keys_are_kept():
    net = segmented(chain(Block, n=3, dropout=0.5), frames())

    def total(model, x):
        return model(x).sum()

    shapes = memopt.residual_shapes(total, net, frames())
    kept = sorted((str(s.dtype), s.shape) for s in shapes)
    # The first segment's input is no spike train; the model's own leaves (parameters,
    # statistics, keys, counters) are no residuals of their own.
    bits = [("uint8", (3, 2, 1))] * 2
    assert kept == sorted([("float32", (3, 2, WIDTH)), *bits])


def test_saved_bytes_grow_by_a_bit_a_value_for_every_layer():
    """At most 0.035 activations a layer; a bit is 1/32 = 0.03125."""
    shape = (4, 8, 8, 8, 64)
    activation = 4 * int(np.prod(shape))
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    sizes = {}
    for n in (6, 12, 24):
        net = nnx.eval_shape(lambda n=n: chain(ConvBlock, n=n, features=64))
        net = segmented(net, x)
        total = lambda m, x: m(x).sum()  # noqa: E731
        sizes[n] = memopt.residual_bytes(total, net, x) / activation
    assert (sizes[12] - sizes[6]) / 6 <= 0.035
    assert (sizes[24] - sizes[12]) / 12 <= 0.035
    assert sizes[6] < 1.5


def test_a_compiled_step_repeats_the_convolutions():
    """XLA:CPU merges a recomputation that nothing holds back."""
    x = frames((2, 2, 6, 6, 4))

    def count(net):
        step = nnx.jit(nnx.grad(lambda m, x: m(x).sum()))
        traced = step.lower(net, x).compile()
        text = getattr(traced, "compiled", traced).as_text()
        return text.count("conv_general_dilated") and sum(
            " convolution(" in line or "onednn$conv" in line
            for line in text.splitlines()
        )

    plain, seg = (
        count(chain(ConvBlock, n=3)),
        count(segmented(chain(ConvBlock, n=3), x)),
    )
    assert seg == plain + 3, (plain, seg)


def test_evaluation_packs_nothing():
    net, x = segmented(chain(), frames()), frames()
    net.eval()
    lowered = nnx.jit(lambda m, x: m(x)).lower(net, x)
    assert "ui8" not in lowered.as_text() and "u8[" not in lowered.as_text()
    np.testing.assert_array_equal(net(x), _evaluated(chain())(x))


def test_evaluation_on_another_batch_size_is_silent():
    """A forward pass keeps nothing, so there is nothing to warn of."""
    net, x = _evaluated(segmented(chain(), frames())), frames((5, 3, WIDTH))
    np.testing.assert_array_equal(net(x), _evaluated(chain())(x))


def _evaluated(net):
    net.eval()
    return net


# --- a segmented model is still the model ---------------------------------------------


def test_paths_classes_and_variables_stay():
    net, x = chain(Residual), frames()
    plan = planned(net, x)
    before, printed = values(net), [type(m) for _, m in nnx.iter_graph(net)]
    seg = memopt.apply_plan(net, plan)
    assert list(values(seg)) == list(before)
    assert isinstance(seg.layers[0], Residual)
    assert isinstance(seg.layers[0], memopt.GCContainer)
    assert seg.layers[0].block.linear.kernel is net.layers[0].block.linear.kernel
    assert "GCContainer[Residual]" in repr(seg)
    # The original is as it was.
    assert [type(m) for _, m in nnx.iter_graph(net)] == printed
    assert not hasattr(net.layers[0], "x_compressor")
    assert_same(net, before, tolerance=0)
    assert "GCContainer" not in repr(net)


def test_the_original_sees_every_update_of_the_new_model():
    net, x = chain(), frames()
    seg = segmented(net, x)
    train(seg, x, steps=1)
    assert_same(net, seg, tolerance=0)
    assert np.any(net.layers[0].norm.mean[...])


def by_split(net):
    return nnx.merge(*nnx.split(net), copy=True)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "clone": nnx.clone,
    "split and merge": by_split,
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_are_segmented_and_stand_alone(way):
    x = frames()
    seg = segmented(chain(), x)
    other = COPIES[way](seg)
    assert all(isinstance(b, memopt.GCContainer) for b in other.layers)
    assert [type(b.x_compressor).__name__ for b in other.layers] == [
        "NullSpikeCompressor",
        "BitSpikeCompressor",
    ]
    assert type(other.layers[0]) is type(seg.layers[0])
    assert_same(other, seg, tolerance=0)
    before = values(seg)
    y = other(x)
    assert_same(seg, before, tolerance=0)
    np.testing.assert_array_equal(y, seg(x))


def test_an_orbax_checkpoint_of_the_plain_model_loads_and_back(tmp_path):
    x = frames()
    plain, seg = chain(seed=1), segmented(chain(seed=2), x)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "plain", nnx.to_pure_dict(nnx.state(plain)))
        checkpointer.wait_until_finished()
        like = nnx.to_pure_dict(nnx.state(seg))
        pure = checkpointer.restore(tmp_path / "plain", like)
        state = nnx.state(seg)
        nnx.replace_by_pure_dict(state, pure)
        nnx.update(seg, state)
        assert_same(seg, plain, tolerance=0)

        seg(x)  # moves the statistics
        checkpointer.save(tmp_path / "segmented", nnx.to_pure_dict(nnx.state(seg)))
        checkpointer.wait_until_finished()
        fresh = chain(seed=3)
        state = nnx.state(fresh)
        pure = checkpointer.restore(tmp_path / "segmented", nnx.to_pure_dict(state))
        nnx.replace_by_pure_dict(state, pure)
        nnx.update(fresh, state)
        assert_same(fresh, seg, tolerance=0)


def test_a_checkpoint_of_the_state_itself_loads_too(tmp_path):
    plain, seg = chain(seed=1), segmented(chain(seed=2), frames())
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(plain))
        checkpointer.wait_until_finished()
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, nnx.state(seg))
        nnx.update(seg, checkpointer.restore(tmp_path / "state", abstract))
    assert_same(seg, plain, tolerance=0)


@dataclasses.dataclass(frozen=True)
class Halved(memopt.BaseSpikeCompressor):
    """The user's own, with a setting: half precision, exact for small integers."""

    dtype: str = "float16"
    holds: ClassVar[memopt.Grid | None] = memopt.Grid(0, 2048)

    def compress(self, x):
        return x.astype(self.dtype)

    def decompress(self, data, shape, dtype):
        return data.astype(dtype)


def test_a_compressor_of_the_users_own_keeps_its_settings():
    net, x = chain(n=2), frames()
    net.layers[1].x_compressor = Halved("bfloat16")
    seg = segmented(net, x)
    assert seg.layers[1].x_compressor == Halved("bfloat16")
    total = lambda m, x: m(x).sum()  # noqa: E731
    kept = {str(s.dtype) for s in memopt.residual_shapes(total, seg, x)}
    assert kept == {"float32", "bfloat16"}
    assert_same(nnx.grad(loss)(seg, x), nnx.grad(loss)(chain(n=2), x))


def test_a_batch_sharded_step_gathers_no_activation():
    """On eight devices: parameters' gradients are reduced, activations stay put."""
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec(None, "batch")
    x = jax.device_put(frames((2, 16, WIDTH)), jax.sharding.NamedSharding(mesh, spec))
    seg = segmented(chain(n=2), x)
    seg_text, plain_text = (_text_of_gradient(net, x) for net in (seg, chain(n=2)))
    assert "all-gather" not in seg_text
    assert "u8[2,2,1]" in seg_text  # bits of a device's share of the batch
    assert "all-gather" not in plain_text


def _text_of_gradient(net, x):
    compiled = nnx.jit(nnx.grad(loss_by_sum)).lower(net, x).compile()
    return getattr(compiled, "compiled", compiled).as_text()


def loss_by_sum(model, x):
    return model(x).sum()
