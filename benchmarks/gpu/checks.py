"""Every kernel against NumPy at float64, on inputs drawn afresh."""

import time

import child
import jax
import jax.numpy as jnp
import numpy as np
from helpers import DERIVATIVES, driven_gradients, f64, neuron_loop
from workload import DTYPES, sizes

from snnjax import kernels, surrogate
from snnjax._membrane import Drive, Membrane


def checks(options):
    seed = time.time_ns() % 2**32
    rng, interpret = np.random.default_rng(seed), jax.default_backend() != "gpu"
    rows = [
        check_lif(rng, shape, dtype, interpret, **settings)
        for shape in sizes(options)["checks"]
        for dtype in DTYPES
        for settings in (
            {"name": "atan", "v_reset": 0.0, "decay_input": True},
            {"name": "sigmoid", "v_reset": None, "decay_input": False},
        )
    ]
    rows += [check_pack(rng, width, interpret) for width in (1, 2, 4)]
    return {"seed": seed, "rows": rows, "right": all(row["right"] for row in rows)}


def check_lif(rng, shape, dtype, interpret, name, **settings):
    """Both passes, with everything that a neuron can be given."""
    case = draw(rng, shape, dtype)
    drive, v, x, ds, dv = case
    s, h, last = loop(case, settings)
    # Where a potential is so near the threshold that float32 may fire otherwise, a
    # whole neuron is left out: no cotangent comes to it.
    clear = np.abs(h - 1).min(0) > 1e-4
    case = drive, v, x, ds * clear.astype(ds.dtype), dv * clear.astype(dv.dtype)
    (spikes, end), gradients = computed(case, name, settings, interpret)
    found = {"v": f64(end) * clear, **flat(gradients)}
    wanted = {"v": last * clear, **autodiff(case, name, settings)}
    errors = {what: error(found[what], wanted[what]) for what in wanted}
    wrong = int(((f64(spikes) != s) & clear).sum())
    bounds = {"dx": 2.0**-8} if dtype != "float32" else {}  # rounded to x's dtype
    right = not wrong and all(e <= bounds.get(w, 2e-5) for w, e in errors.items())
    return {
        "kernel": "lif",
        "shape": list(shape),
        "dtype": dtype,
        "surrogate": name,
        **settings,
        "left_out": float(1 - clear.mean()),
        "wrong_spikes": wrong,
        "errors": errors,
        "right": right,
    }


def draw(rng, shape, dtype):
    """What drives the neurons, potential, current, and cotangents of both results."""
    step = shape[1:]
    feature = (1,) * (len(step) - 1) + step[-1:]
    x, ds = (jnp.asarray(rng.normal(0.3, 1.2, shape), dtype) for _ in range(2))
    v, dv = (jnp.asarray(rng.normal(size=step), jnp.float32) for _ in range(2))
    drive = (jnp.asarray(rng.uniform(0.3, 1, feature), jnp.float32) for _ in range(3))
    return Drive(*drive), v, x, ds, dv


def loop(case, settings):
    """Spikes, potentials before a reset, and the last one, step by step."""
    drive, v, x, *_ = case
    current = f64(x) * f64(drive.scale) + f64(drive.shift)
    s, h, v_steps = neuron_loop(current, v, 1 / f64(drive.leak), **settings)
    return s, h, v_steps[-1]


def computed(case, name, settings, interpret):
    """By the kernels."""
    rule = Membrane(
        leak=None,
        v_threshold=1.0,
        detach_reset=False,
        surrogate=getattr(surrogate, name),
        **settings,
    )

    def run(drive, v, x, ds, dv):
        forward = kernels.lif_forward(rule, drive, v, x, interpret=interpret)
        backward = kernels.lif_backward(rule, drive, v, x, ds, dv, interpret=interpret)
        return forward, backward

    return jax.jit(run).lower(*case).compile()(*case)


def flat(gradients):
    drive, dv, dx = gradients
    parts = {f"d{name}": f64(a).ravel() for name, a in drive._asdict().items()}
    return {"dx": f64(dx), "dv": f64(dv), **parts}


def autodiff(case, name, settings):
    """As `flat` has them; the loop's own parameter is tau, of which leak is 1 / tau."""
    drive, v, x, ds, dv = case
    tau = 1 / f64(drive.leak)
    dx, dv, dtau, dscale, dshift = driven_gradients(
        x, drive.scale, drive.shift, v, tau, ds, dv, DERIVATIVES[name], **settings
    )
    dleak = (-np.square(tau) * dtau).reshape(-1, x.shape[-1]).sum(0)
    return {"dx": dx, "dv": dv, "dleak": dleak, "dscale": dscale, "dshift": dshift}


def error(found, wanted):
    return float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))


def check_pack(rng, width, interpret):
    """Exactly, against NumPy."""
    n, per_byte = 4099, 8 // width
    values = rng.integers(0, 2**width, (3, n), dtype=np.uint8)
    packed = kernels.pack(width, jnp.asarray(values), interpret=interpret)
    back = kernels.unpack(width, n, packed, interpret=interpret)
    columns = -(-n // per_byte)
    padded = np.zeros((3, columns * per_byte), np.uint8)
    padded[:, :n] = values
    parts = padded.reshape(3, per_byte, columns).astype(int)
    wanted = (parts << (width * np.arange(per_byte))[:, None]).sum(1)
    right = np.array_equal(packed, wanted) and np.array_equal(back, values)
    return {"kernel": "pack", "width": width, "right": bool(right)}


if __name__ == "__main__":
    child.main(checks)
