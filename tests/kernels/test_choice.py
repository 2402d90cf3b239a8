"""The choice between a kernel and XLA's program, made when a program is lowered."""

import functools as ft
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_bits, assert_near
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from snnjax import kernels, surrogate
from snnjax._membrane import Drive, Membrane
from snnjax.memopt import Grid
from snnjax.memopt._deviceless import described
from snnjax.memopt._devices import device_spec
from snnjax.memopt._ranges import Analysis
from snnjax.neuron import LIF, lif

KERNEL = "snnjax_lif_forward"
BACKWARD = "snnjax_lif_backward"
CHOICES = pytest.mark.parametrize("implementation", [None, "xla", "pallas"])
X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 5)), jnp.float32)


def spikes(implementation):
    return lambda x: lif(x, implementation=implementation)[0]


def gradient(implementation):
    return jax.grad(lambda x: lif(x, implementation=implementation)[0].sum())


def for_cuda(f, *args):
    """The program of `f` lowered for a CUDA device, which nobody needs to have."""
    with described(device_spec("rtx4090")):
        traced = jax.jit(f).trace(*args)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


# --- on a CPU -------------------------------------------------------------------------


@pytest.mark.parametrize("make", [spikes, gradient])
def test_none_on_a_cpu_is_the_program_of_xla(make):
    texts = [jax.jit(make(i)).lower(X).as_text() for i in (None, "xla")]
    assert not any(
        w in text.lower() for text in texts for w in ("custom_call", "triton")
    )
    assert all("while" in text for text in texts)
    with jax.disable_jit():
        values = [make(i)(X) for i in (None, "xla")]
    assert_near(*values, 1e-6)


@pytest.mark.parametrize(
    "run",
    {
        "eager": lambda f, g: f(X),
        "jit": lambda f, g: jax.jit(f)(X),
        "grad": lambda f, g: g(X),
        "vmap": lambda f, g: jax.vmap(f, 1, 1)(X),
        "vmap of grad": lambda f, g: jax.jit(jax.vmap(g, 1, 1))(X),
        "lowered": lambda f, g: jax.jit(f).lower(X),
        "a scan": lambda f, g: jax.lax.map(f, X[None]),
        "checkpoint": lambda f, g: jax.grad(jax.checkpoint(lambda x: f(x).sum()))(X),
    }.values(),
)
def test_a_kernel_forced_on_a_cpu_is_refused(run):
    words = '`implementation` is "pallas".*not for a CUDA.*None and "xla"'
    with pytest.raises(NotImplementedError, match=words):
        run(spikes("pallas"), gradient("pallas"))


@pytest.mark.parametrize("make", [spikes, gradient])
def test_a_kernel_forced_without_jit_is_refused(make):
    words = '`implementation` is "pallas".*disable_jit'
    with jax.disable_jit(), pytest.raises(NotImplementedError, match=words):
        make("pallas")(X)


def test_a_forced_kernel_traces_anywhere():
    """It is the lowering that knows the platform."""
    assert jax.eval_shape(spikes("pallas"), X).shape == X.shape
    assert gradient("pallas") and jax.jit(gradient("pallas")).trace(X)


def test_a_kernel_forced_on_what_it_cannot_serve_is_refused_at_once():
    x = jax.ShapeDtypeStruct((3, 0, 2), jnp.float32)
    with pytest.raises(NotImplementedError, match='"pallas", but .*has 0 values'):
        jax.eval_shape(spikes("pallas"), x)


@pytest.mark.parametrize("implementation", ["triton", "XLA", "", False])
def test_what_is_no_implementation(implementation):
    words = f"`implementation` is {implementation!r}; allowed are None, .*xla.*pallas"
    with pytest.raises(ValueError, match=words):
        lif(X, implementation=implementation)
    with pytest.raises(ValueError, match=words):
        LIF(implementation=implementation)


# --- lowered for a CUDA device --------------------------------------------------------


@CHOICES
@pytest.mark.parametrize("make, name", [(spikes, KERNEL), (gradient, BACKWARD)])
def test_for_cuda_it_is_the_kernel_unless_xla_is_asked_for(implementation, make, name):
    text = for_cuda(make(implementation), X)
    assert (name in text) == ("triton" in text) == (implementation != "xla")
    assert ("while" in text) == (implementation == "xla")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_is_lowered_for_cuda(dtype):
    text = for_cuda(gradient("pallas"), X.astype(dtype))
    assert BACKWARD in text


def test_a_float64_current_is_lowered_for_cuda():
    with jax.enable_x64(True):
        assert BACKWARD in for_cuda(gradient("pallas"), X.astype("float64"))


@pytest.mark.parametrize(
    "name", "atan sigmoid triangle rectangle super_spike gaussian".split()
)
def test_every_surrogate_is_lowered_for_cuda(name):
    spike = getattr(surrogate, name)

    def loss(x, tau):
        per_feature = {"scale": tau, "shift": tau}
        return lif(x, tau=tau, surrogate=spike, **per_feature)[0].sum()

    assert BACKWARD in for_cuda(jax.grad(loss, (0, 1)), X, jnp.full(5, 2.0))


@pytest.mark.parametrize("shape", [(1,), (40,), (17, 3), (9, 1, 1), (2, 3, 700)])
def test_every_shape_is_lowered_for_cuda(shape):
    def loss(x, v):
        s, last = lif(x, v, tau=jnp.full(shape[1:], 3.0), implementation="pallas")
        return s.sum() + last.sum()

    text = for_cuda(
        jax.value_and_grad(loss, (0, 1)), jnp.ones(shape), jnp.ones(shape[1:])
    )
    assert KERNEL in text and BACKWARD in text


@pytest.mark.parametrize("implementation", [None, "pallas"])
def test_under_vmap_it_is_the_kernel(implementation):
    f, g = spikes(implementation), gradient(implementation)
    assert KERNEL in for_cuda(jax.vmap(f, 1, 1), X)
    assert BACKWARD in for_cuda(jax.vmap(g, 1, 1), X)
    twice = jax.vmap(jax.vmap(g, 1, 1))
    assert BACKWARD in for_cuda(twice, jnp.ones((2, 3, 4, 5)))


def test_under_vmap_over_the_leak_alone():
    """What the kernel writes over is not mapped: it must not be shared."""

    def loss(tau):
        return lif(X, tau=tau, implementation="pallas")[0].sum()

    assert BACKWARD in for_cuda(jax.vmap(jax.grad(loss)), jnp.asarray([2.0, 3.0]))


def test_in_a_loop_it_is_the_kernel():
    def f(x):
        return jax.lax.scan(lambda c, x: (c, gradient("pallas")(x)), 0, x)[1]

    assert BACKWARD in for_cuda(f, X[None])


def test_no_warning_reaches_the_user():
    """From jax 0.11, Pallas says that its Triton is deprecated."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for f in (spikes(None), gradient("pallas"), jax.vmap(gradient(None), 1, 1)):
            for_cuda(f, X)
    assert [str(w.message) for w in seen] == []


def test_a_program_for_two_platforms_has_one_of_each():
    with described(device_spec("rtx4090")):
        traced = jax.jit(spikes(None)).trace(X)
        text = traced.lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert KERNEL in text and "while" in text


# --- over several devices -------------------------------------------------------------


AUTO = jax.sharding.AxisType.Auto


@pytest.fixture
def mesh():
    """Of this machine's CPUs."""
    return jax.make_mesh((8,), ("data",), (AUTO,))


def absent(*axes):
    """A mesh of CUDA devices, which nobody needs to have; 2 along each axis."""
    with described(device_spec("rtx4090")):
        device = jax.sharding.get_abstract_mesh().abstract_device
    auto = (AUTO,) * len(axes)
    return jax.sharding.AbstractMesh(
        (2,) * len(axes), axes, axis_types=auto, abstract_device=device
    )


def lowered_over(mesh, f):
    sharding = NamedSharding(mesh, P(None, "data"))
    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=sharding)
    return jax.jit(f).trace(x).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("make", [spikes, gradient])
def test_a_program_that_xla_partitions_is_the_one_of_xla(make):
    text = lowered_over(absent("data"), make(None))
    assert "triton" not in text and "while" in text
    words = '`implementation` is "pallas".*several devices.*shard_map.*"xla"'
    with pytest.raises(NotImplementedError, match=words):
        lowered_over(absent("data"), make("pallas"))


def rest(implementation):
    return LIF(implementation=implementation)


def pulled(implementation):
    return jax.grad(lambda x: rest(implementation)(x).sum())


def per_device(mesh, f, check_vma):
    spec = P(None, "data")
    return jax.shard_map(
        f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma
    )


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("implementation", [None, "pallas"])
@pytest.mark.parametrize("make, name", [(rest, KERNEL), (pulled, BACKWARD)])
def test_inside_a_shard_map_it_is_the_kernel(implementation, make, name, check_vma):
    mesh = absent("data")
    f = per_device(mesh, make(implementation), check_vma)
    assert name in lowered_over(mesh, f)


@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_a_shard_map_on_cpus_the_values_are_those(mesh, check_vma):
    f = per_device(mesh, rest(None), check_vma)
    x = jax.device_put(X, NamedSharding(mesh, P(None, "data")))
    assert_bits(jax.jit(f)(x), rest("xla")(X))
    g = per_device(mesh, pulled(None), check_vma)
    assert_near(jax.jit(g)(x), pulled("xla")(X), 1e-6)


def test_inside_a_shard_map_over_one_axis_of_two_it_is_partitioned():
    """The other axis is XLA's still."""
    two, spec = absent("data", "model"), P(None, "data")
    f = jax.shard_map(
        spikes(None), mesh=two, in_specs=spec, out_specs=spec, axis_names={"data"}
    )
    assert "triton" not in lowered_over(two, f)


# --- what the planner can prove -------------------------------------------------------

RULE = Membrane(0.5, True, 1.0, 0.0, False, surrogate.atan)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("steps", [3, 8, 20])
def test_spikes_of_the_kernel_are_proven_binary(steps, dtype):
    """From the program: whatever bits the kernel writes, what is read is 0 or 1."""
    x = jax.ShapeDtypeStruct((steps, 2, 3), dtype)
    jaxpr = jax.make_jaxpr(
        lambda x: kernels.lif_forward(RULE, Drive(), None, x, interpret=True)[0]
    )(x)
    (known,) = Analysis().run(jaxpr, [None])
    assert known is not None and known.grid == Grid(0, 1)


@CHOICES
def test_spikes_of_a_choice_are_proven_binary(implementation):
    (known,) = Analysis().run(jax.make_jaxpr(spikes(implementation))(X), [None])
    assert known is not None and known.grid == Grid(0, 1)


# --- derivatives of derivatives, and surrogates of one's own --------------------------


def test_a_second_derivative_is_that_of_the_program_of_xla():
    def curvature(implementation):
        return jax.jit(jax.grad(lambda x: (gradient(implementation)(x) ** 2).sum()))

    x = X[:, :1, :2]
    assert_near(curvature(None)(x), curvature("xla")(x))
    with pytest.raises(NotImplementedError, match="a second time"):
        curvature("pallas")(x)


def graded(x):
    return jax.nn.sigmoid(x)


def test_a_surrogate_that_may_be_no_spike_is_left_to_xla():
    text = for_cuda(lambda x: lif(x, surrogate=graded)[0], X)
    assert KERNEL not in text
    with pytest.raises(NotImplementedError, match="`surrogate` graded was not made by"):
        lif(X, surrogate=graded, implementation="pallas")


def test_a_surrogate_of_ones_own_has_the_kernel():
    wide = ft.partial(surrogate.surrogate(lambda x, a: a / (1 + x * x)), a=0.5)
    assert KERNEL in for_cuda(lambda x: lif(x, surrogate=wide)[0], X)
