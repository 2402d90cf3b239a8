"""The one call, its figures, and what it says to wrong arguments."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from models import (
    WIDTH,
    Block,
    Residual,
    assert_same,
    chain,
    frames,
    loss,
    values,
)
from models import planned as unmeasured

import snnjax as snn
from snnjax import memopt
from snnjax.memopt import Grid, make_plan, memory_optimization


@dataclasses.dataclass(frozen=True)
class HalfSizeCompressor(memopt.BaseSpikeCompressor):
    """The user's own: small integers in one byte."""

    holds: ClassVar[Grid | None] = Grid(0, 255)

    def compress(self, x):
        return x.astype(jnp.uint8)

    def decompress(self, data, shape, dtype):
        return data.astype(dtype)


@pytest.fixture(scope="module")
def measured() -> tuple[nnx.Module, nnx.Module, memopt.MemOptSummary, dict]:
    """A model whose activations outweigh its parameters, and what the call made."""
    net = chain(n=4)
    before = values(net)
    x = jax.ShapeDtypeStruct((16, 64, WIDTH), jnp.float32)
    seg, summary = memory_optimization(
        net, (Block,), (x,), level=1, loss=loss, return_summary=True
    )
    return net, seg, summary, before


def test_one_call_segments_and_measures(measured):
    net, seg, summary, before = measured
    assert all(isinstance(b, memopt.GCContainer) for b in seg.layers)
    plain, planned = summary.peak_bytes
    assert 0 < planned < plain
    plain, planned = summary.residual_bytes
    assert 0 < planned < plain / 4
    assert summary.plan.device == "cpu"
    assert dict(summary.plan.versions)["jax"] == jax.__version__
    # The model that came is untouched.
    assert not any(isinstance(b, memopt.GCContainer) for b in net.layers)
    assert_same(net, before, tolerance=0)


def test_the_summary_counts_what_the_new_model_holds(measured):
    _, seg, summary, _ = measured
    assert (summary.requested_level, summary.applied_level) == (1, 1)
    assert summary.gc_candidate_count == summary.gc_selected_count == 4
    assert summary.gc_container_count == 4
    assert summary.gc_selected_modules == tuple(f"layers.{i}" for i in range(4))
    assert (summary.null_compressor_count, summary.bit_compressor_count) == (1, 3)
    assert summary.compress_x and summary.applied_steps and not summary.skipped_steps
    assert summary.optimize_seconds > 0
    assert "layers.3" in str(summary) and "KiB" in str(summary)


def test_a_plan_with_figures_survives_its_file(measured, tmp_path):
    plan = measured[2].plan
    plan.save(tmp_path / "plan.json")
    assert memopt.Plan.load(tmp_path / "plan.json") == plan


def test_level_zero_leaves_all_as_it_is():
    net = chain(n=1)
    same, summary = memory_optimization(net, Block, return_summary=True)
    assert not isinstance(same.layers[0], memopt.GCContainer)
    assert summary.applied_level == 0 == summary.gc_selected_count
    assert summary.skipped_steps and not summary.applied_steps
    assert same.layers[0].linear.kernel is net.layers[0].linear.kernel


def test_without_a_batch_inputs_are_kept_as_they_are_and_a_note_says_so():
    net, summary = memory_optimization(chain(), Block, level=1, return_summary=True)
    assert summary.null_compressor_count == 2
    assert summary.peak_bytes == (None, None)
    assert "without an example batch" in summary.notes[0]
    assert "without an example batch" in str(summary)


def test_verbose_prints_the_plan(capsys):
    memory_optimization(chain(n=1), Block, level=1, verbose=True)
    assert "layers.0" in capsys.readouterr().out
    memory_optimization(chain(n=1), Block, level=1)
    assert capsys.readouterr().out == ""


def test_abstract_models_can_be_planned_and_real_ones_take_the_plan():
    abstract = nnx.eval_shape(lambda: chain(n=2))
    x = jax.ShapeDtypeStruct(frames().shape, jnp.float32)
    plan = make_plan(abstract, Block, (x,), loss=loss, optimizer=optax.sgd(0.1))
    assert [s.compressor for s in plan.segments][1] == "BitSpikeCompressor"
    seg = memopt.apply_plan(chain(n=2), plan)
    assert np.isfinite(seg(frames())).all()
    kernel = abstract.layers[0].linear.kernel.get_value()
    assert isinstance(kernel, jax.ShapeDtypeStruct)


def test_the_default_loss_takes_every_output():
    class Two(nnx.Module):
        def __init__(self):
            self.block = Block(nnx.Rngs(0))

        def __call__(self, x):
            return {"y": self.block(x), "x": x.mean()}

    plan = make_plan(Two(), Block, (frames(),))
    assert plan.plain_bytes > 0 and len(plan.segments) == 1


def test_of_nested_targets_the_outermost_is_taken():
    plan = make_plan(chain(Residual), (Block, Residual, nnx.Linear), None)
    assert plan.candidates == ("layers.0", "layers.1")


# --- compressors that the user names --------------------------------------------------


def compressors(net: nnx.Module, **settings: Any) -> list[str]:
    plan = unmeasured(net, frames(), **settings)
    return [s.compressor for s in plan.segments]


@pytest.mark.parametrize("name", ["NullSpikeCompressor", "HalfSizeCompressor"])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_module_may_name_its_compressor(name, by_name):
    net = chain()
    cls = {c.__name__: c for c in (memopt.NullSpikeCompressor, HalfSizeCompressor)}
    net.layers[1].x_compressor = name if by_name else cls[name]()
    assert compressors(net) == ["NullSpikeCompressor", name]


def test_compress_x_false_keeps_every_input():
    net = chain()
    net.layers[1].x_compressor = "BitSpikeCompressor"
    assert compressors(net, compress_x=False) == ["NullSpikeCompressor"] * 2


@pytest.mark.parametrize("name", ["BitSpikeCompressor", "HalfSizeCompressor"])
def test_an_unproven_compressor_is_refused_unless_unchecked(name):
    net = chain()
    net.layers[0].x_compressor = name
    with pytest.raises(ValueError, match="`x_compressor` of layers.0") as error:
        compressors(net)
    for words in (name, "unknown", "NullSpikeCompressor", "unchecked=True"):
        assert words in str(error.value)
    assert compressors(net, unchecked=True)[0] == name


def test_a_proof_of_more_than_a_compressor_holds_is_refused():
    net = chain(Residual, n=3)
    net.layers[2].x_compressor = "BitSpikeCompressor"
    net.layers[0] = Block(nnx.Rngs(0))
    with pytest.raises(ValueError, match="layers.2") as error:
        compressors(net)
    assert "{0, 1}" in str(error.value) and "0..2" in str(error.value)


@pytest.mark.parametrize("bad", ["ZipSpikeCompressor", 3, memopt.BitSpikeCompressor])
def test_an_unknown_compressor_is_refused_with_what_is_allowed(bad):
    net = chain()
    net.layers[1].x_compressor = bad
    with pytest.raises(ValueError, match="`x_compressor` is .*BitSpikeCompressor"):
        compressors(net)


# --- wrong arguments ------------------------------------------------------------------

X = np.zeros((3, 2, WIDTH), np.float32)


def segmented_already() -> nnx.Module:
    return memory_optimization(chain(), Block, level=1)


BAD = {
    "level 7": ({"level": 7}, ["`level` is 7", "0, 1"]),
    "level -1": ({"level": -1}, ["`level` is -1", "0, 1"]),
    "level True": ({"level": True}, ["`level` is True", "0, 1"]),
    "level 1.5": ({"level": 1.5}, ["`level` is 1.5", "0, 1"]),
    "level '1'": ({"level": "1"}, ["`level` is '1'", "0, 1"]),
    "level 2": ({"level": 2, "batch": None}, ["`level` is 2", "`dummy_input` is None"]),
    "level 4": ({"level": 4, "batch": None}, ["`level` is 4", "`dummy_input` is None"]),
    "no match": ({"instance": nnx.Conv}, ["`instance` is", "Conv", "Block", "Linear"]),
    "a list": ({"instance": [Block]}, ["`instance` is [", "tuple"]),
    "a name": ({"instance": "Block"}, ["`instance` is 'Block'", "type"]),
    "no types": ({"instance": ()}, ["`instance` is ()", "type"]),
    "a function": ({"net": lambda x: x}, ["`net` is of type function", "nnx.Module"]),
    "a class": ({"net": Block}, ["`net`", "nnx.Module"]),
    "segmented": ({"net": segmented_already}, ["`net` is segmented", "layers.0"]),
    "segmented inside": (
        {"net": segmented_already, "instance": snn.layer.Sequential},
        ["`net` is segmented", "layers.0"],
    ),
    "segmented outside": (
        {"net": segmented_already, "instance": snn.layer.Linear},
        ["`net` is segmented", "layers.0"],
    ),
    "T = 0": ({"batch": (X[:0],)}, ["batch", "[0,2,8]", "time step", "at least 1"]),
    "rank": ({"batch": (X[0, 0],)}, ["batch", "[8]", "time, batch"]),
    "axis order": ({"batch": (X[..., :5],)}, ["batch", "[3,2,5]"]),
    "no tuple": ({"batch": X}, ["batch", "ndarray", "tuple"]),
    "a batch of words": ({"batch": (X, "a")}, ["batch", "str"]),
    "empty": ({"batch": ()}, ["batch"]),
    "loss of a tree": ({"loss": lambda m, x: m(x)}, ["`loss`", "[3,2,8]", "scalar"]),
    "loss of two": ({"loss": lambda m, x: (m(x).sum(), 1.0)}, ["`loss`", "scalar"]),
    "loss of none": ({"loss": lambda m, x: None}, ["`loss`", "scalar"]),
    "loss of an integer": (
        {"loss": lambda m, x: m(x).sum().astype(jnp.int32)},
        ["`loss`", "int32"],
    ),
    "no loss": ({"loss": 3}, ["`loss` is 3"]),
    "device": ({"device": "gtx9"}, ["`device` is 'gtx9'", "h200", "rtx4090"]),
    "device 5": ({"device": 5}, ["`device` is 5", "h200"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_argument_is_named_with_what_came_and_what_is_allowed(case):
    wrong, words = BAD[case]
    arguments = {
        "net": chain(n=1),
        "instance": Block,
        "batch": (X,),
        "level": 1,
    } | wrong
    net = arguments.pop("net")
    net = segmented_already() if net is segmented_already else net
    with pytest.raises(ValueError) as error:
        make_plan(net, arguments.pop("instance"), arguments.pop("batch"), **arguments)
    text = str(error.value)
    for word in words:
        assert word in text.replace(", ", ",") or word in text, text
