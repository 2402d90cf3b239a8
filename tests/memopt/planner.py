"""Plans of tiny models without a compiler, and what they train to."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from models import WIDTH, Block, chain, loss, values

from snnjax.memopt import _optimize, _profile, make_plan, residual_bytes

SHAPE = (4, 4, WIDTH)
X = jax.ShapeDtypeStruct(SHAPE, jnp.float32)


WAYS = {
    **{f"level {n}": {"level": n} for n in range(5)},
    **{n: {"profile": n} for n in ("safe", "exhaustive")},
    **{f"prefer {n}": {"prefer": n} for n in ("speed", "balanced", "memory")},
    "checkpoint": {"checkpoint_budget": "speed"},
    "two at most": {"level": 3, "max_gc_wrapped_modules": 2},
    "none": {"level": 4, "max_gc_wrapped_modules": 0},
    "one round": {"level": 3, "max_split_rounds": 1, "max_candidates_per_round": 1},
    "slowdown": {"max_slowdown": 1.2},
    "budget": {"budget": "7 KB"},
}


def batch_of_ones():
    return (2 * jax.random.normal(jax.random.key(7), SHAPE),)


def gradients(net):
    value, found = nnx.jit(nnx.value_and_grad(loss))(net, *batch_of_ones())
    return {"loss": np.asarray(value)} | values(found) | values(net)


def without_compiling(monkeypatch):
    """What is kept, and what is held, instead of the compiled step's peak."""
    calls = []

    def prepare_step(net, training, device):
        calls.append(net)
        held = _profile.held_bytes(net, training)
        peak = held + residual_bytes(training.loss, net, *training.batch)
        return lambda: SimpleNamespace(peak_bytes=peak, device="cpu")

    monkeypatch.setattr(_optimize, "prepare_step", prepare_step)
    monkeypatch.setattr(_profile, "prepare_step", prepare_step)
    return calls


def plan_of(net, instance=(Block,), batch=(X,), **settings):
    return make_plan(net, instance, batch, **({"loss": loss} | settings))


def stages():
    class Stages(nnx.Module):
        def __init__(self):
            for i, name in enumerate("abc"):
                setattr(self, name, chain(n=2, seed=i))

        def __call__(self, x):
            return self.c(self.b(self.a(x)))

    return Stages()


def split_all(monkeypatch):
    """Every target that may be split counts as small when it is."""

    def search(table, options, measure, batch_size):
        offered = [[c for c in r.choices if c.kind == "split"] for r in table.rows]
        choices = tuple((o or [r.choices[1]])[0] for o, r in zip(offered, table.rows))
        return dataclasses.replace(
            real(table, options, measure, batch_size), choices=choices
        )

    real = _optimize.search
    monkeypatch.setattr(_optimize, "search", search)
