"""The checked mode: what a plan's compressors give back, against the data itself."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import WIDTH, Block, Residual, assert_same, chain, frames, planned, values

import snnjax as snn
from snnjax import memopt

# jax's own for a failed callback; by its fast path it comes as a ValueError.
FAILED = (jax.errors.JaxRuntimeError, ValueError)


class Relay(nnx.Module):
    """A segment that hands on what comes."""

    def __init__(self) -> None:
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, x: Any) -> Any:
        return x * self.scale[...].astype(x.dtype)


def sums() -> nnx.Module:
    """Spikes arrive at layer 1, sums of two at layer 2."""
    return snn.layer.Sequential(Block(nnx.Rngs(0)), *chain(Residual).layers)


def daring(net: nnx.Module, x: Any, path: str, compressor: Any) -> memopt.Plan:
    """A plan that keeps what arrives at `path` by `compressor`, proof or not."""
    module = net.layers[int(path.split(".")[1])]
    module.x_compressor = compressor
    plan = planned(net, x, targets=(Block, Residual, Relay), unchecked=True)
    assert {s.path: s.unchecked for s in plan.segments}[path]
    return plan


def relay(x: Any, compressor: Any) -> tuple[nnx.Module, memopt.Plan]:
    net = snn.layer.Sequential(Relay())
    return net, daring(net, x, "layers.0", compressor)


def test_a_plan_that_is_exact_passes():
    net, x = sums(), frames()
    plan = planned(net, x)
    names = [s.compressor for s in plan.segments]
    assert names == [f"{n}SpikeCompressor" for n in ("Null", "Bit", "Integer")]
    assert memopt.verify(net, plan, (x,)) is None
    assert memopt.verify(net, dataclasses.replace(plan, segments=()), (x,)) is None


def test_an_unchecked_compressor_that_fits_this_data_passes():
    net, x = sums(), (frames() > 0).astype(jnp.float32)
    memopt.verify(net, daring(net, x, "layers.0", "BitSpikeCompressor"), (x,))


def test_a_two_in_a_bit_is_found_with_segment_index_and_values():
    net, x = sums(), frames()
    plan = daring(net, x, "layers.2", "BitSpikeCompressor")
    before = nnx.clone(net)
    arriving = np.asarray(before.layers[1](before.layers[0](x)))
    assert arriving.max() == 2
    first = tuple(int(i) for i in np.argwhere(arriving == 2)[0])
    with pytest.raises(ValueError) as error:
        memopt.verify(net, plan, (x,))
    for words in ("BitSpikeCompressor", "'layers.2'", f"at {first}", "was 2", "as 1"):
        assert words in str(error.value)


@pytest.mark.parametrize(
    "dtype, value, words",
    [("float32", -0.0, ("was -0", "as 0")), ("float32", np.nan, ("was nan", "as 1"))]
    + [("float32", 0.5, ("was 0.5", "as 1")), ("float32", np.inf, ("was inf", "as 1"))]
    + [("bfloat16", 2.0, ("was 2", "as 1")), ("bfloat16", -0.0, ("was -0", "as 0"))]
    + [("float16", -3.0, ("was -3", "as 1"))],
)
def test_every_value_that_is_no_spike_is_found(dtype, value, words):
    x = np.zeros((2, 2, 5), jnp.dtype(dtype))
    x[1, 0, 3:] = value
    net, plan = relay(jnp.asarray(x), "BitSpikeCompressor")
    with pytest.raises(ValueError, match=r"at \(1, 0, 3\)") as error:
        memopt.verify(net, plan, (jnp.asarray(x),))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_null_is_exact_on_nan_and_negative_zero(dtype):
    x = jnp.asarray([[[np.nan, -0.0, np.inf, -np.inf, 1e-40, 3.5]]], dtype)
    net = snn.layer.Sequential(Relay())
    plan = planned(net, x, targets=(Relay,))
    assert plan.segments[0].compressor == "NullSpikeCompressor"
    memopt.verify(net, plan, (x,))


@dataclasses.dataclass(frozen=True)
class AbsoluteCompressor(memopt.BaseSpikeCompressor):
    """The user's own: forgets the sign of numbers, and keeps NaN."""

    holds: ClassVar[memopt.Grid | None] = memopt.Grid(0, 9)

    def compress(self, x):
        return jnp.where(jnp.isnan(x), x, jnp.abs(x))

    def decompress(self, data, shape, dtype):
        return data


def test_a_nan_that_comes_back_is_not_taken_for_the_error_behind_it():
    x = jnp.asarray([[[1.0, np.nan, -2.0]]])
    net, plan = relay(x, "AbsoluteCompressor")
    with pytest.raises(ValueError, match=r"at \(0, 0, 2\) it was -2 and came back as"):
        memopt.verify(net, plan, (x,))


@dataclasses.dataclass(frozen=True)
class CutCompressor(memopt.BaseSpikeCompressor):
    """The user's own: loses the last feature."""

    holds: ClassVar[memopt.Grid | None] = memopt.Grid(0, 9)

    def compress(self, x):
        return x[..., :-1]

    def decompress(self, data, shape, dtype):
        return data


def test_another_shape_is_found_and_the_segment_named():
    x = jnp.ones((2, 2, 5))
    net, plan = relay(x, "CutCompressor")
    with pytest.raises(ValueError, match="layers.0") as error:
        memopt.verify(net, plan, (x,))
    assert "CutCompressor" in str(error.value)


def test_an_overflow_of_sparse_is_found():
    x = jnp.ones((2, 2, 5))
    net, plan = relay(x, memopt.SparseSpikeCompressor(4))
    with pytest.raises(FAILED, match="has 5 spikes"):
        memopt.verify(net, plan, (x,))
    memopt.verify(net, plan, (x.at[..., 2].set(0.0),))


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_stays_as_it_is(fails):
    """Batch statistics, random counters and all."""
    rngs = nnx.Rngs(0)
    net = snn.layer.Sequential(
        Block(rngs, dropout=0.5), *(Residual(rngs, dropout=0.5) for _ in range(2))
    )
    x = frames((8, 4, WIDTH))
    plan = planned(net, x)
    if fails:
        plan = daring(net, x, "layers.2", "BitSpikeCompressor")
    before, classes = values(net), [type(m) for _, m in nnx.iter_graph(net)]
    try:
        memopt.verify(net, plan, (x,))
    except ValueError:
        assert fails
    else:
        assert not fails
    assert_same(net, before, tolerance=0)
    assert [type(m) for _, m in nnx.iter_graph(net)] == classes
    assert any("count" in path for path in before)


def test_with_a_loss_that_takes_more_than_the_model():
    net, x = sums(), frames()
    seen = []

    def loss(model, x, labels):
        seen.append(labels)
        return (model(x) - labels).sum()

    labels = jnp.ones((3, 2, WIDTH))
    plan = planned(net, x, labels, loss=loss)
    seen.clear()
    memopt.verify(net, plan, (x, labels), loss=loss)
    assert len(seen) == 1 and seen[0] is labels
    net.layers[2].x_compressor = "BitSpikeCompressor"
    plan = planned(net, x, labels, loss=loss, unchecked=True)
    with pytest.raises(ValueError, match="layers.2"):
        memopt.verify(net, plan, (x, labels), loss=loss)


def test_data_outside_the_declared_range_fails_here_as_well():
    net = sums()
    plan = planned(net, jnp.zeros((3, 2, WIDTH)), input_range=(0, 1))
    memopt.verify(net, plan, (jnp.ones((3, 2, WIDTH)),))
    with pytest.raises(FAILED, match="holds 3"):
        memopt.verify(net, plan, (jnp.full((3, 2, WIDTH), 3.0),))


WITHIN = {
    "jit": lambda f, net, x: nnx.jit(f)(net, x),
    "jit, closed over": lambda f, net, x: jax.jit(lambda x: f(net, x))(x),
    "grad": lambda f, net, x: jax.grad(lambda x: f(net, x))(x),
}


@pytest.mark.parametrize("way", WITHIN)
def test_within_a_transformation_there_is_nothing_to_compare(way):
    net, x = sums(), frames()
    plan = planned(net, x)

    def run(net, x):
        memopt.verify(net, plan, (x,))
        return x.sum()

    with pytest.raises(ValueError, match="transformation"):
        WITHIN[way](run, net, x)


def test_a_segment_that_the_model_calls_in_a_loop_cannot_be_verified():
    class Looped(nnx.Module):
        def __init__(self):
            self.relay = Relay()

        def __call__(self, x):
            graphdef, state = nnx.split(self.relay)
            body = lambda c, _: (nnx.merge(graphdef, state)(c), None)  # noqa: E731
            return jax.lax.scan(body, x, length=2)[0]

    net, x = Looped(), frames()
    plan = planned(net, x, targets=(Relay,))
    with pytest.raises(ValueError, match="'relay'.*inside a transformation"):
        memopt.verify(net, plan, (x,))


def test_a_plan_of_another_model_is_refused():
    plan = planned(sums(), frames())
    with pytest.raises(ValueError, match="another model"):
        memopt.verify(chain(), plan, (frames(),))


@pytest.mark.parametrize("batch", [None, frames(), (jax.eval_shape(frames),)])
def test_only_real_data_can_be_compared(batch):
    plan = planned(sums(), frames())
    with pytest.raises(ValueError, match="`batch`.* is "):
        memopt.verify(sums(), plan, batch)
