"""Eight devices give what one gives, and no activation travels between them."""

import math
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers import assert_near
from nets import values

import snnjax as snn
from snnjax import memopt, train
from snnjax.memopt import _optimize

SHAPE = 3, 16, 8, 8, 2  # time, batch, height, width, channel
TX = optax.sgd(0.1, momentum=0.9)


class ConvNet(nnx.Module):
    """Two VGG blocks, a pool of each kind, dropout, linear."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        block = snn.models.VGGBlock
        self.features = snn.layer.Sequential(
            block(2, 6, pool=True, rngs=rngs, v_threshold=0.5),
            block(6, 8, rngs=rngs, v_threshold=0.5),
            snn.layer.MaxPool(2),
            snn.layer.AvgPool(2, 1, padding="SAME"),
            snn.layer.Flatten(),
        )
        self.dropout = snn.layer.Dropout(0.2, rngs=rngs)
        self.readout = snn.layer.Linear(32, 4, rngs=rngs)

    def __call__(self, x):
        return self.readout(self.dropout(self.features(x)))


LOSS = train.Classifier(snn.loss.cross_entropy)


@pytest.fixture(autouse=True)
def promotion():
    """Averages of `nnx.metrics` mix dtypes; none of ours do."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def mesh():
    return train.make_mesh()


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    frames = (rng.random((2, *SHAPE)) < 0.4).astype("float32")
    labels = rng.integers(0, 4, (2, SHAPE[1])).astype("int32")
    labels[0, 3] = -1  # one that only fills up
    return list(zip(frames, labels))


@pytest.fixture(scope="module")
def plan(data):
    # Its proofs, without compiling two steps for its figures.
    unmeasured = mock.patch.object(
        _optimize, "with_figures", lambda net, plan, *_: plan
    )
    with unmeasured, jax.numpy_dtype_promotion("standard"):
        batch = jax.tree.map(jax.typeof, data[0])
        return memopt.make_plan(ConvNet(), (snn.models.VGGBlock,), batch, loss=LOSS)


def net(plan):
    return ConvNet() if plan is None else memopt.apply_plan(ConvNet(), plan)


def trained(mesh, plan, data):
    """Losses, figures and all values after an epoch of two steps."""
    trainer = train.Trainer(net(plan), LOSS, TX, mesh=mesh)
    tested = data if plan is None else None
    (figures,) = trainer.fit(data, tested, epochs=1, show=False)
    del figures["samples_per_second"]
    found = figures | values(trainer.model) | values(trainer.optimizer)
    return found, trainer


@pytest.fixture(scope="module")
def on_one(data):
    with jax.numpy_dtype_promotion("standard"):
        return trained(None, None, data)


@pytest.mark.parametrize("planned", [False, True], ids=["plain", "level1"])
def test_training_is_that_of_one_device(planned, mesh, plan, data, on_one):
    wanted, alone = on_one
    found, together = trained(mesh, plan if planned else None, data)
    assert planned or found.keys() == wanted.keys()
    for name, value in found.items():
        assert_near(value, wanted[name])
    kernel = together.model.readout.kernel[...]
    assert kernel.sharding.is_fully_replicated and len(kernel.sharding.device_set) == 8
    assert together.peak_bytes < 0.5 * alone.peak_bytes  # of one device


def test_a_plan_on_a_mesh_has_the_bytes_of_a_device(mesh, data, on_one):
    blocks, batch = (snn.models.VGGBlock,), train.shard(data[0], mesh)
    with jax.set_mesh(mesh):
        plan = memopt.make_plan(
            ConvNet(), blocks, batch, loss=LOSS, optimizer=TX, level=0
        )
    _, alone = on_one
    assert plan.plain_bytes < 0.5 * alone.peak_bytes


def text_of_step(model, mesh, batch):
    """The compiled training step; frames and labels divided over the mesh."""
    optimizer, metrics = nnx.Optimizer(model, TX, wrt=nnx.Param), LOSS.metrics()
    for tree in (model, optimizer, metrics):
        train.replicate(tree, mesh)
    step = nnx.jit(train.make_train_step(LOSS), donate_argnums=(0, 1, 2))
    with jax.set_mesh(mesh):
        lowered = step.lower(model, optimizer, metrics, *train.shard(batch, mesh))
        return lowered.compile().as_text()


@pytest.mark.parametrize("kind", ["plain", "level1", "chunks"])
def test_nothing_but_sums_travels(kind, mesh, plan, data):
    if kind == "chunks":
        paths = [segment.path for segment in plan.segments]
        plan = plan.with_chunks(*paths, batch=2, shards=8, forward_by="chunks")
    model = net(None if kind == "plain" else plan)
    largest = max(a.size for a in jax.tree.leaves(nnx.state(model, nnx.Param)))
    text = text_of_step(model, mesh, data[0])
    assert "all-reduce" in text
    for moved in ("all-gather", "all-to-all", "collective-permute"):
        assert moved not in text
    for line in re.findall(r"= (.*) all-reduce(?:-start)?\(", text):
        for shape in re.findall(r"\[([\d,]*)\]", line.split("all-reduce")[0]):
            assert math.prod(int(n) for n in shape.split(",") if n) <= largest, line
    if kind == "level1":
        assert "u8[3,2," in text  # packed spikes of a device's two samples


def test_without_the_mesh_activations_are_gathered(mesh, data):
    """Right all the same; this is what `jax.set_mesh` is for."""
    conv = snn.layer.Conv(2, 4, 3, rngs=nnx.Rngs(0))
    x, _ = train.shard(data[0], mesh)

    def compiled():
        gradient = nnx.grad(lambda conv, x: jnp.sum(jnp.sin(conv(x))))
        return nnx.jit(gradient).lower(conv, x).compile().as_text()

    assert "all-gather" in compiled()
    with jax.set_mesh(mesh):
        assert "all-gather" not in compiled()


LAYERS = {
    "conv": lambda: snn.layer.Conv(3, 4, 3, rngs=nnx.Rngs(1)),
    "strided": lambda: snn.layer.Conv(3, 4, (3, 2), 2, rngs=nnx.Rngs(1)),
    "pointwise": lambda: snn.layer.Conv(3, 4, 1, padding="VALID", rngs=nnx.Rngs(1)),
    "grouped": lambda: snn.layer.Conv(3, 6, 3, feature_group_count=3, rngs=nnx.Rngs(1)),
    "max_pool": lambda: snn.layer.MaxPool(2),
    "avg_pool": lambda: snn.layer.AvgPool(3, 2, padding="SAME"),
}


CASES = [(name, 16) for name in LAYERS]
CASES += [("conv", 12), ("conv", 7), ("max_pool", 7)]  # samples that do not divide


@pytest.mark.parametrize("name, batch", CASES)
def test_a_layer_is_the_same_on_a_mesh(name, batch, mesh):
    model, rng = LAYERS[name](), np.random.default_rng(2)
    x = jnp.asarray(rng.normal(size=(2, batch, 5, 6, 3)), jnp.float32)

    @nnx.jit
    def run(model, x):
        def total(model, x):
            y = model(x)
            w = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
            return jnp.sum(w * y), y

        return nnx.grad(total, argnums=(0, 1), has_aux=True)(model, x)

    wanted = run(model, x)
    with jax.set_mesh(mesh):
        found = run(model, train.shard(x, mesh) if batch == 16 else x)
    for a, b in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        assert_near(a, b)


def test_a_shard_holds_neighboring_samples(mesh):
    x, y = train.shard((np.arange(32.0).reshape(2, 16), np.arange(16)), mesh)
    for i, device in enumerate(mesh.devices.flat):
        (part,) = (s.data for s in x.addressable_shards if s.device == device)
        np.testing.assert_array_equal(
            part, [[2 * i, 2 * i + 1], [16 + 2 * i, 17 + 2 * i]]
        )
        (part,) = (s.data for s in y.addressable_shards if s.device == device)
        np.testing.assert_array_equal(part, [2 * i, 2 * i + 1])


def test_samples_that_devices_cannot_share_are_refused(mesh):
    with pytest.raises(ValueError, match="12 samples .axis 1 .*8 devices.*multiple"):
        train.shard(np.zeros((2, 12, 3)), mesh)


def test_a_mesh_of_chosen_devices():
    two = jax.devices()[3:5]
    mesh = train.make_mesh(two)
    assert mesh.axis_names == ("batch",) and list(mesh.devices) == two
