"""NIR: graphs against their equations, files and back, what cannot be said."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import nir
import numpy as np
import pytest
from flax import nnx

from snnjax import exchange, layer, models, neuron

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers_whatever_ran_before():
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


# --- an oracle: the equations of NIR, channels-first, by forward Euler ----------------


def _windows(x, size, stride, pad):
    """`[channel, row, column, size, size]` of `[channel, height, width]`."""
    x = np.pad(x, [(0, 0), *((n, n) for n in pad)])
    view = np.lib.stride_tricks.sliding_window_view(x, tuple(size), (1, 2))
    return view[:, :: stride[0], :: stride[1]]


def run_nir(graph, x, dt):
    """`x` `[time, batch, channel, ...]`; every node at every time step, summed."""
    order = list(graph.nodes)
    out = []
    for sample in np.moveaxis(np.asarray(x, np.float64), 1, 0):
        state, steps = {}, []
        for frame in sample:
            values = {}
            while len(values) < len(order):
                for name in order:
                    before = [a for a, b in graph.edges if b == name]
                    if name in values or any(a not in values for a in before):
                        continue
                    arrived = sum(values[a] for a in before) if before else frame
                    values[name] = _node(name, graph.nodes[name], arrived, state, dt)
            steps.append(values[next(iter(graph.outputs))])
        out.append(steps)
    return np.moveaxis(np.array(out), 0, 1)


def _node(name, node, x, state, dt):
    kind = type(node).__name__
    if kind in ("Input", "Output"):
        return x
    if kind in ("Affine", "Linear"):
        return node.weight.astype(float) @ x + getattr(node, "bias", 0)
    if kind == "Scale":
        return x * node.scale
    if kind == "Flatten":
        return x.ravel()
    if kind == "Conv2d":
        w = node.weight.astype(float)
        seen = _windows(x, w.shape[2:], node.stride, node.padding)
        y = np.einsum("cijkl,ockl->oij", seen, w)
        return y + node.bias[:, None, None]
    if kind in ("AvgPool2d", "SumPool2d"):
        seen = _windows(x, node.kernel_size, node.stride, node.padding)
        return seen.mean((3, 4)) if kind == "AvgPool2d" else seen.sum((3, 4))
    v = state.get(name, np.broadcast_to(node.v_reset, x.shape).astype(float))
    if kind == "IF":
        v = v + dt * node.r * x
    else:
        v = v + dt / node.tau.astype(float) * ((node.v_leak - v) + node.r * x)
    # no potential so near the threshold that float32 might fire otherwise
    assert np.abs(v - node.v_threshold).min() > 1e-6
    spikes = v > node.v_threshold
    state[name] = np.where(spikes, node.v_reset, v)
    return spikes.astype(float)


def first(x):
    return np.moveaxis(np.asarray(x), -1, 2)


def last(x):
    return np.moveaxis(np.asarray(x), 2, -1) if np.ndim(x) > 3 else x


def there_and_back(tmp_path, graph):
    nir.write(tmp_path / "graph.nir", graph)
    return nir.read(tmp_path / "graph.nir")


def network(pool=True, **lif):
    """Two blocks with statistics that batch norm has really seen, and a readout."""
    rngs = nnx.Rngs(3)
    block = lambda i, o, **s: models.VGGBlock(i, o, rngs=rngs, **s)  # noqa: E731
    net = layer.Sequential(
        layer.Sequential(block(2, 3, pool=pool, **lif), block(3, 4, **lif)),
        layer.Flatten(),
        layer.Dropout(0.5, rngs=rngs),
        layer.Linear(4 * 3 * 2, 5, rngs=rngs),
        neuron.IF(v_threshold=0.25),
    )
    for _, module in nnx.iter_modules(net):
        if isinstance(module, nnx.BatchNorm):
            n = module.num_features
            module.mean[...], module.var[...] = f32(n) / 4, jnp.abs(f32(n)) + 0.3
            module.scale[...], module.bias[...] = f32(n) + 1, f32(n) / 2 + 0.3
        if isinstance(module, nnx.Conv | nnx.Linear):
            module.bias[...] = f32(*module.bias.shape) / 4
    net.eval()
    return net


LIFS = {
    "decayed": {"tau": 2.0, "decay_input": True, "v_threshold": 0.5},
    "tutorial": {},  # tau 1.333, decay_input=False
    "reset": {"tau": 3.0, "decay_input": True, "v_threshold": 0.4, "v_reset": -0.2},
}


@pytest.mark.parametrize("dt", [1.0, 1e-3])
@pytest.mark.parametrize("lif", LIFS.values(), ids=LIFS)
def test_a_network_its_graph_and_the_network_read_back_spike_alike(tmp_path, lif, dt):
    lif = {"tau": 1.333, "decay_input": False} | lif
    net = network(**lif)
    x = RNG.integers(0, 3, (5, 2, 6, 4, 2)).astype(np.float32)
    wanted = np.asarray(nnx.jit(lambda net, x: net(x))(net, x))
    assert 0.05 < wanted.mean() < 0.95

    graph = there_and_back(tmp_path, exchange.to_nir(net, (6, 4, 2), dt=dt))
    assert [type(n).__name__ for n in graph.nodes.values()].count("Conv2d") == 2
    np.testing.assert_array_equal(run_nir(graph, first(x), dt), wanted)

    back = exchange.from_nir(graph, dt=dt)
    assert isinstance(back, layer.Sequential)
    lifs = [m for _, m in nnx.iter_modules(back) if isinstance(m, neuron.LIF)]
    for one in lifs:
        assert one.decay_input is lif["decay_input"]
        assert one.v_threshold == np.float32(lif.get("v_threshold", 1))
        np.testing.assert_allclose(one.tau, lif["tau"], rtol=1e-6)
    came = np.asarray(nnx.jit(lambda net, x: net(x))(back, x))
    np.testing.assert_array_equal(came, wanted)
    again = exchange.to_nir(back, (6, 4, 2), dt=dt)
    np.testing.assert_array_equal(run_nir(again, first(x), dt), wanted)


def test_a_potential_at_the_threshold_fires_in_ours_and_by_the_graph():
    """We fire at v >= 1, NIR at v > what is written; 0.25 four times is 1 exactly."""
    net = layer.Sequential(neuron.IF())
    x = np.full((8, 1, 1), 0.25, np.float32)
    assert np.asarray(net(x)).ravel().tolist() == [0, 0, 0, 1] * 2
    graph = exchange.to_nir(net, (1,))
    (node,) = (n for n in graph.nodes.values() if isinstance(n, nir.IF))
    assert node.v_threshold.dtype == np.float32 and node.v_threshold[0] < 1
    assert np.float32(1) > node.v_threshold[0]
    assert exchange.from_nir(graph).layers[0].v_threshold == 1.0
    strict = nir.IF(*(np.ones(1, np.float32) * v for v in (1, 1, 0)))
    read = exchange.from_nir(nir.NIRGraph.from_list(strict))
    assert np.asarray(read(x)).ravel().tolist() == [0, 0, 0, 0, 1, 0, 0, 0]


def chain(*nodes, shape=None):
    given = () if shape is None else (nir.Input(np.array(shape)),)
    return nir.NIRGraph.from_list(*given, *nodes)


def neurons(kind, shape, **values):
    full = {k: np.full(shape, v, np.float32) for k, v in values.items()}
    return getattr(nir, kind)(**full)


LAYERS = {
    "conv_strided": lambda: chain(
        nir.Conv2d((7, 6), f32(4, 2, 3, 3), (2, 1), (1, 0), (1, 1), 1, f32(4))
    ),
    "conv_padded": lambda: chain(
        nir.Conv2d((5, 5), f32(6, 2, 2, 2), 1, (0, 1), 1, 1, f32(6))
    ),
    "avg_padded": lambda: chain(
        nir.AvgPool2d(np.array([3, 2]), np.array([2, 2]), np.array([1, 0])),
        shape=(2, 7, 6),
    ),
    "sum": lambda: chain(
        nir.SumPool2d(np.array([2, 2]), np.array([2, 2]), np.array([0, 0])),
        shape=(3, 4, 4),
    ),
    "scale": lambda: chain(nir.Scale(f32(3, 4, 2))),
    "linear": lambda: chain(nir.Linear(f32(3, 5))),
    "flattened": lambda: chain(
        nir.Flatten(np.array([3, 4, 2]), start_dim=0),
        nir.Scale(f32(24)),
        nir.Affine(f32(5, 24), f32(5)),
    ),
    "lif": lambda: chain(
        neurons("LIF", (3, 2, 2), tau=0.02, r=5, v_leak=0.1, v_threshold=0.3, v_reset=0)
    ),
    "if": lambda: chain(neurons("IF", (4,), r=120, v_threshold=0.7, v_reset=0.2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_nodes_of_others_are_read(tmp_path, name):
    graph = there_and_back(tmp_path, LAYERS[name]())
    (source,) = graph.inputs.values()
    x = f32(4, 2, *source.input_type["input"])
    wanted = run_nir(graph, x, dt=4e-3)
    came = exchange.from_nir(graph, dt=4e-3)(jnp.asarray(last(x)))
    assert np.abs(wanted).max() > 0
    np.testing.assert_allclose(came, last(wanted), atol=2e-5)


def test_conv1d_keeps_its_settings():
    conv = nir.Conv1d(9, f32(4, 2, 3), 2, 1, 1, 1, f32(4))
    x = f32(2, 3, 2, 9)
    came = exchange.from_nir(chain(conv))(jnp.asarray(np.moveaxis(x, 2, -1)))
    padded = np.pad(x, [(0, 0)] * 3 + [(1, 1)])
    wanted = np.zeros((2, 3, 5, 4))
    for i in range(5):
        seen = padded[..., 2 * i : 2 * i + 3]
        wanted[:, :, i] = np.einsum("tbck,ock->tbo", seen, conv.weight) + conv.bias
    np.testing.assert_allclose(came, wanted, atol=1e-5)
    net = layer.Sequential(layer.Conv(2, 4, (3,), 2, padding=1, rngs=nnx.Rngs(0)))
    out = exchange.to_nir(net, (9, 2)).nodes["conv1d"]
    assert (out.stride, out.padding, out.weight.shape) == (2, 1, (4, 2, 3))


def residual():
    """A residual block: an addition before and one behind the neuron."""
    lif = {"tau": 2, "r": 1, "v_leak": 0, "v_threshold": 0.3, "v_reset": 0}
    nodes = {
        "in": nir.Input(np.array([6])),
        "a": nir.Affine(f32(6, 6), f32(6)),
        "spike": neurons("LIF", (6,), **lif),
        "b": nir.Affine(f32(6, 6), f32(6)),
        "last": neurons("LIF", (6,), **lif),
        "out": nir.Output(np.array([6])),
    }
    edges = [("in", "a"), ("a", "spike"), ("spike", "b"), ("in", "last"), ("b", "last")]
    return nodes, [*edges, ("last", "out"), ("spike", "out")]


def test_branches_are_added(tmp_path):
    graph = there_and_back(tmp_path, nir.NIRGraph(*residual()))
    x = f32(6, 3, 6)
    model = exchange.from_nir(graph)
    assert isinstance(model, exchange.Graph)
    wanted = run_nir(graph, x, dt=1)
    assert set(np.unique(wanted)) == {0, 1, 2}
    np.testing.assert_array_equal(model(jnp.asarray(x)), wanted)
    gradient = nnx.grad(lambda model: model(jnp.asarray(x)).mean())(model)
    assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(gradient))


def cyclic():
    nodes, edges = residual()
    return nir.NIRGraph(nodes, [*edges, ("last", "a")])


class Doubled(layer.Conv):
    def __call__(self, x):
        return 2 * super().__call__(x)


def refused_models():
    rngs = nnx.Rngs(0)
    conv = layer.Conv(2, 3, 3, rngs=rngs)
    return {
        "v_reset=None": (neuron.LIF(v_reset=None), (4,)),
        "MaxPool, which has no NIR node": (layer.MaxPool(2), (4, 4, 2)),
        "Doubled, which has no NIR node": (Doubled(2, 3, 3, rngs=rngs), (4, 4, 2)),
        "there is none": (layer.BatchNorm(2, rngs=rngs), (4, 4, 2)),
        "has no NIR node.*Sequential": (models.CIFAR10DVSVGG(rngs=rngs), (48, 48, 2)),
        "Linear on .4, 4, 2.": (layer.Linear(2, 3, rngs=rngs), (4, 4, 2)),
        "order is another": (layer.Flatten(), (4, 4, 2)),
        "cannot take .4, 4, 5.": (conv, (4, 4, 5)),
        "1 arrive": (conv, (4, 2)),
        "in 2 groups": (
            layer.Conv(2, 2, 3, feature_group_count=2, rngs=rngs),
            (4, 4, 2),
        ),
        "pads by": (layer.Conv(2, 3, 2, rngs=rngs), (4, 4, 2)),
    }


@pytest.mark.parametrize("words", refused_models())
def test_what_nir_cannot_say_is_refused(words):
    model, shape = refused_models()[words]
    with pytest.raises(ValueError, match=words):
        exchange.to_nir(layer.Sequential(model), shape)


LIF = {"tau": 2, "r": 1, "v_leak": 0, "v_threshold": 1, "v_reset": 0}
REFUSED = {
    "in a cycle": cyclic,
    "is a Threshold, which is not read": lambda: chain(nir.Threshold(f32(4))),
    "is a CubaLIF": lambda: chain(
        neurons(
            "CubaLIF", (4,), tau_syn=1, tau_mem=2, **{k: LIF[k] for k in list(LIF)[1:]}
        )
    ),
    "4 different values of `tau`": lambda: chain(
        nir.LIF(np.arange(2, 6.0), *(np.full(4, v) for v in (1, 0, 1, 0)))
    ),
    "shorter than a time step": lambda: chain(
        neurons("LIF", (2,), **LIF | {"tau": 0.5})
    ),
    "in 2 groups": lambda: nir.NIRGraph.from_list(
        nir.Input(np.array([4, 5, 5])),
        nir.Conv2d((5, 5), f32(6, 2, 2, 2), 1, 0, 1, 2, f32(6)),
        nir.Output(np.array([6, 4, 4])),
        type_check=False,
    ),
    "flattened features to the output": lambda: chain(
        nir.Flatten(np.array([3, 4, 2]), start_dim=0)
    ),
    "a NIRGraph behind a Flatten": lambda: chain(
        nir.Flatten(np.array([3, 4, 2]), start_dim=0), chain(nir.Linear(f32(2, 24)))
    ),
    "take nothing": lambda: nir.NIRGraph(
        {
            "input": nir.Input(np.array([4])),
            "a": nir.Linear(f32(2, 4)),
            "b": nir.Linear(f32(2, 4)),
            "output": nir.Output(np.array([2])),
        },
        [("input", "a"), ("a", "output"), ("b", "output")],
        type_check=False,
    ),
    "all of them: start_dim=0": lambda: chain(
        nir.Flatten(np.array([3, 4, 2]), start_dim=1)
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_we_cannot_run_is_refused(words):
    with pytest.raises(ValueError, match=words):
        exchange.from_nir(REFUSED[words]())


def test_without_the_extra_it_says_what_is_missing():
    code = (
        "import sys; sys.modules['nir'] = None\n"
        "from snnjax import exchange, layer\n"
        "try: exchange.to_nir(layer.Sequential(layer.Flatten()), (4,))\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert 'pip install "snnjax[nir]"' in done.stdout, done.stderr
