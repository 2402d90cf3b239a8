"""The trainer: what a step does, what is measured, and what is kept."""

import contextlib
import math
import struct

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers import assert_bits, assert_near, f64
from nets import CLASSES, FEATURES, Net, batches, shuffled, values

from snnjax import layer, loss, memopt, train

CLASSIFY = train.Classifier(loss.cross_entropy)
SGD = optax.sgd(0.3, momentum=0.9)


@pytest.fixture(autouse=True)
def promotion():
    """Optax's and the metrics' arithmetic mixes dtypes; that of a step is checked."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def fit(trainer, *args, **settings):
    return trainer.fit(*args, **{"epochs": 1, "show": False} | settings)


class Weight(nnx.Module):
    """One number, whose gradient by `follow` is that of the batch."""

    def __init__(self, shape=()):
        self.w = nnx.Param(jnp.zeros(shape))
        self.calls = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        return self.w[...] * x.mean()


def follow(model, x):
    return model(x)


def linear():
    """A model of no more than a matrix, which compiles at once."""
    return layer.Linear(FEATURES, CLASSES, rngs=nnx.Rngs(0))


def number(value):
    return (np.full((1, 2), value, "float32"),)


# --- steps ----------------------------------------------------------------------------


def test_a_schedule_counts_updates():
    """Warm-up and cosine of optax; two batches make an update."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 1.0, 2, 6)
    trainer = train.Trainer(Weight(), follow, optax.sgd(rate), accumulate=2)
    gradients = [1.0, 3.0, -2.0, 6.0, 1.0, 1.0, 5.0, -1.0]
    wanted, w = [], 0.0
    for i in range(4):
        # 0, 1/2, then from 1 down by half a cosine over four updates
        by = i / 2 if i < 2 else 0.5 * (1 + math.cos(math.pi * (i - 2) / 4))
        before, w = w, w - by * np.mean(gradients[2 * i : 2 * i + 2])
        wanted += [before, w]
    for gradient, want in zip(gradients, wanted):
        trainer.train_step(*number(gradient))
        assert_near(trainer.model.w[...], want)


def test_accumulated_gradients_are_those_of_the_large_batch():
    parts, settings = 4, {"norm": False, "dropout": 0.0}
    (whole,) = batches(1)
    small = [(whole[0][:, i::parts], whole[1][i::parts]) for i in range(parts)]
    large = train.Trainer(Net(**settings), CLASSIFY, SGD)
    split = train.Trainer(Net(**settings), CLASSIFY, SGD, accumulate=parts)
    start = values(large.model)
    for _ in range(2):
        value = large.train_step(*whole)
        each = [split.train_step(*batch) for batch in small]
        assert_near(np.mean(each), value)
    found, wanted = values(split.model), values(large.model)
    for name, want in wanted.items():
        assert_near(found[name], want, 1e-6)
        assert np.any(want != start[name])


def test_mixed_precision_keeps_a_float32_membrane_and_learns():
    model = Net(dtype=jnp.bfloat16, dropout=0.0)
    (batch,) = batches(1)
    trainer = train.Trainer(model, CLASSIFY, SGD)
    with jax.numpy_dtype_promotion("strict"):  # nothing is widened unasked
        jaxpr = jax.make_jaxpr(lambda x: nnx.clone(model)(x))(batch[0])
    dtypes = {str(v.aval.dtype) for v in _carries(jaxpr.jaxpr)}
    assert "float32" in dtypes and "bfloat16" not in dtypes
    dots = [e for e in _equations(jaxpr.jaxpr) if e.primitive.name == "dot_general"]
    assert dots and all(e.outvars[0].aval.dtype == jnp.bfloat16 for e in dots)
    losses = [float(trainer.train_step(*batch)) for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]
    for leaf in jax.tree.leaves(nnx.state(trainer.model, nnx.Param)):
        assert leaf.dtype == jnp.float32


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in jax.tree.leaves(list(eqn.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def _carries(jaxpr):
    """What loops over time carry, but for their counters."""
    for eqn in _equations(jaxpr):
        if eqn.primitive.name in ("while", "scan"):
            yield from (v for v in eqn.outvars if v.aval.ndim)


def test_a_step_is_donated_compiled_once_and_its_bytes_are_known():
    trainer = train.Trainer(linear(), CLASSIFY, SGD)
    assert trainer.peak_bytes is None
    first, second = batches(2)
    kernel = trainer.model.kernel[...]
    trainer.train_step(*first)
    assert kernel.is_deleted()
    peak = trainer.peak_bytes
    model, metrics = linear(), CLASSIFY.metrics()
    step = nnx.jit(train.make_train_step(CLASSIFY), donate_argnums=(0, 1, 2))
    state = model, nnx.Optimizer(model, SGD, wrt=nnx.Param), metrics
    assert memopt.measure(step, *state, *first).peak_bytes == peak
    with count_compilations() as compiled:
        trainer.train_step(*second)
    assert compiled == []
    trainer.train_step(*batches(1, batch=3)[0])  # a smaller last batch
    assert trainer.peak_bytes == peak


class count_compilations:
    """Names of what is compiled meanwhile."""

    def __enter__(self):
        self.names = []
        jax.monitoring.register_event_duration_secs_listener(self._note)
        return self.names

    def _note(self, event, duration, **kwargs):
        if "backend_compile" in event:
            self.names.append(event)

    def __exit__(self, *error):
        jax.monitoring.unregister_event_duration_listener(self._note)


# --- figures --------------------------------------------------------------------------


def test_figures_are_means_over_the_samples():
    """Of an epoch's losses as they came, and of the evaluation afterwards."""
    data, tested = batches(3), batches(2, seed=5)
    tested[1][1][4:] = -1  # a last batch that was filled up
    alone = train.Trainer(Net(), CLASSIFY, SGD)
    losses = [float(alone.train_step(*batch)) for batch in data]
    trainer = train.Trainer(Net(), CLASSIFY, SGD)
    (figures,) = fit(trainer, data, tested)
    names = {"loss", "accuracy", "eval_loss", "eval_accuracy", "samples_per_second"}
    assert set(figures) == names and figures["samples_per_second"] > 0
    assert_near(figures["loss"], np.mean(losses))
    model = trainer.model
    model.eval()
    run = nnx.jit(lambda model, x: model(x).mean(0))
    scores = np.concatenate([f64(run(model, x)) for x, _ in tested])
    labels = np.concatenate([y for _, y in tested])
    real = labels >= 0
    scores, labels = scores[real], labels[real]
    logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    assert_near(figures["eval_loss"], -logs[np.arange(len(labels)), labels].mean())
    assert_near(figures["eval_accuracy"], (scores.argmax(-1) == labels).mean())
    again = trainer.evaluate(tested)
    assert again == {name: figures[f"eval_{name}"] for name in ("loss", "accuracy")}


def test_evaluation_changes_nothing():
    trainer = train.Trainer(Net(), CLASSIFY, SGD)
    before = values(trainer.model) | values(trainer.optimizer)
    trainer.evaluate(batches(2))
    after = values(trainer.model) | values(trainer.optimizer)
    for name, value in before.items():
        assert_bits(after[name], value)
    assert not trainer.model.dropout.deterministic
    with pytest.raises(ZeroDivisionError):
        trainer.evaluate(1 / 0 for _ in range(1))
    assert not trainer.model.dropout.deterministic


def test_another_decision_counts():
    last = train.Classifier(loss.cross_entropy, decide=lambda scores: scores[-1])
    (batch,) = batches(1)
    model = linear()
    found = train.Trainer(model, last, SGD).evaluate([batch])
    assert_near(found["accuracy"], (model(batch[0])[-1].argmax(-1) == batch[1]).mean())


def test_any_loss_will_do_and_epochs_may_have_a_length():
    trainer = train.Trainer(Weight(), follow, optax.sgd(1.0))
    history = fit(trainer, lambda i: [number(i)], epochs=2, steps_per_epoch=3)
    assert trainer.step == 6
    # w is 0, 0, -1 and then -3, -6, -10 when the numbers 0, 1, 2, ... come
    assert [e["loss"] for e in history] == [
        pytest.approx((0 + 0 - 2) / 3),
        pytest.approx((-9 - 24 - 50) / 3),
    ]
    assert len(fit(trainer, lambda i: [number(i)], epochs=3, steps_per_epoch=1)) == 3


class Recorder:
    def __init__(self):
        self.lines = []

    def write(self, step, values):
        self.lines.append((step, dict(values)))


def test_a_writer_is_told():
    writer = Recorder()
    trainer = train.Trainer(Weight(), follow, optax.sgd(1.0), writer=writer)
    fit(trainer, [number(i) for i in range(5)], [number(1)], log_every=2)
    assert [step for step, _ in writer.lines] == [2, 4, 5]
    assert set(writer.lines[0][1]) == {"train/loss", "train/samples_per_second"}
    assert writer.lines[1][1]["train/loss"] == pytest.approx((0 - 0 - 2 - 9) / 4)
    assert set(writer.lines[2][1]) == {
        "epoch/loss",
        "epoch/eval_loss",
        "epoch/samples_per_second",
    }


def test_tensorboard_reads_what_is_written(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    writer = train.TensorBoard(tmp_path)
    assert not list(tmp_path.iterdir())
    writer.write(7, {"train/loss": 1.5, "train/accuracy": 0.25})
    writer.close()
    (file,) = tmp_path.iterdir()
    content, found, purged = file.read_bytes(), {}, False
    while content:  # TFRecords: length, its checksum, an event, its checksum
        (size,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + size])
        purged |= event.session_log.status == 1 and event.step == 7
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
        content = content[16 + size :]
    assert found == {("train/loss", 7): 1.5, ("train/accuracy", 7): 0.25}
    assert purged  # what a killed run wrote of later steps is hidden


def test_tensorboard_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r'pip install "snnjax\[tensorboard\]"'):
        train.TensorBoard(tmp_path)


def test_the_bar_shows_the_figures(capsys):
    trainer = train.Trainer(linear(), CLASSIFY, SGD)
    fit(trainer, batches(2), show=True, log_every=1)
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("epoch 1/1", "2/", "loss ", "accuracy ", "samples/s", "peak", "MiB"):
        assert part in shown
    fit(trainer, batches(2), epochs=2)
    assert capsys.readouterr().out == ""


# --- checkpoints ----------------------------------------------------------------------


def test_a_checkpoint_holds_everything(tmp_path):
    """Batch norm's statistics, random counters, momentum, metrics: bit for bit."""

    def trainer(seed):
        return train.Trainer(Net(seed), CLASSIFY, SGD, checkpoints=tmp_path, keep=1)

    first, second = trainer(0), trainer(1)
    wanted = fit(first, shuffled, epochs=1, save_every=3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["5"]
    assert fit(second, shuffled, epochs=1)[0] == wanted[0]  # it was done
    found = values(second.model) | values(second.optimizer)
    for name, value in (values(first.model) | values(first.optimizer)).items():
        assert_bits(found[name], value)
    after = [fit(t, shuffled, epochs=2)[1]["loss"] for t in (first, second)]
    assert after[0] == after[1]


@pytest.mark.parametrize(
    "other", [Weight, lambda: Weight((2,))], ids=["names", "shape"]
)
def test_another_model_is_told_from_the_checkpoint(other, tmp_path):
    first = Weight((3,)) if other is not Weight else linear()
    tree = nnx.Dict(model=first)
    saved = train.Checkpoints(tmp_path)
    saved.save(1, tree, {})
    with pytest.raises(
        ValueError, match="step 1 in .* not of this model.* there and .* here"
    ):
        saved.restore(nnx.Dict(model=other()))
    assert saved.restore(tree) == {}


def test_an_empty_folder_has_no_notes(tmp_path):
    with pytest.raises(ValueError, match="no complete checkpoint in .*folder"):
        train.Checkpoints(tmp_path).notes()


# --- arguments ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["accumulate", "keep"])
def test_numbers_below_one_are_refused_by_the_trainer(name):
    with pytest.raises(ValueError, match=f"`{name}` is 0; allowed is 1 or more"):
        train.Trainer(Weight(), follow, SGD, **{name: 0})


@pytest.mark.parametrize(
    "name", ["epochs", "steps_per_epoch", "save_every", "log_every"]
)
def test_numbers_below_one_are_refused_by_fit(name):
    trainer = train.Trainer(Weight(), follow, SGD)
    with pytest.raises(ValueError, match=f"`{name}` is 0; allowed is 1 or more"):
        fit(trainer, [number(1)], **{name: 0})


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("every", [{"log_every": 1}, {"save_every": 5}, {}])
def test_a_loss_that_is_no_number_ends_the_run(tmp_path, value, every):
    """And spoils no checkpoint: the last is of the step before."""
    data = [number(1.0), number(2.0), number(value)]
    trainer = train.Trainer(Weight(), follow, SGD, checkpoints=tmp_path / "saved")
    fit(trainer, data[:2])
    words = r"`loss` has become (nan|-?inf) by step 5, in epoch 1; the checkpoint of"
    with pytest.raises(FloatingPointError, match=rf"{words} step 2 is kept.*optax"):
        fit(trainer, data, epochs=2, **every)
    with contextlib.closing(train.Checkpoints(tmp_path / "saved")) as saved:
        assert saved.latest == 2


def test_data_without_a_batch_is_refused():
    with pytest.raises(ValueError, match="`train_data` has no batch"):
        fit(train.Trainer(Weight(), follow, SGD), [])
    data = [(jnp.ones((1,)),)]
    with pytest.raises(ValueError, match="`eval_data` has no batch"):
        fit(train.Trainer(Weight(), follow, SGD), data, iter(data), epochs=2)
