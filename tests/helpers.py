"""The oracles: surrogates, neuron and gradient once more, in plain NumPy at float64."""

import numpy as np

# d spike / dx of every surrogate, from the formulas of the papers, `(x, width)`.
DERIVATIVES = {
    "atan": lambda x, a=2.0: a / (2 * (1 + (np.pi * a * x / 2) ** 2)),
    "sigmoid": lambda x, a=4.0: a / (2 * np.cosh(a * x / 2)) ** 2,
    "triangle": lambda x, w=1.0: np.where(np.abs(x) < w, (w - np.abs(x)) / w**2, 0.0),
    "rectangle": lambda x, w=1.0: np.where(2 * np.abs(x) < w, 1 / w, 0.0),
    "super_spike": lambda x, b=10.0: (b * np.abs(x) + 1.0) ** -2,
    "gaussian": lambda x, s=0.5: (
        np.exp(-(x**2) / (2 * s**2)) / np.sqrt(2 * np.pi * s**2)
    ),
}


def f64(a):
    return np.asarray(a).astype(np.float64)


def neuron_loop(
    x, v0, tau, *, decay_input=True, v_threshold=1.0, v_reset=0.0, **_unused
):
    """Charge, fire, reset, one time step after another; `tau=None` does not leak.

    Returns spikes, the charged potential `h` and the potential `v` of every step.
    """
    rest = 0.0 if v_reset is None else v_reset
    v, steps = f64(v0), []
    for current in f64(x):
        if tau is None:
            h = v + current
        elif decay_input:
            h = v + (current - (v - rest)) / tau
        else:
            h = v - (v - rest) / tau + current
        s = np.where(h >= v_threshold, 1.0, 0.0)
        v = h - v_threshold * s if v_reset is None else np.where(s == 1, v_reset, h)
        steps.append((s, h, v))
    return tuple(np.stack(a) for a in zip(*steps))


def neuron_gradients(
    x,
    v0,
    tau,
    ds,
    dv,
    derivative,
    *,
    decay_input=True,
    v_threshold=1.0,
    v_reset=0.0,
    detach_reset=False,
):
    """Gradients of `sum(ds * spikes) + sum(dv * v[-1])` by x, v0 and (summed) tau.

    Written from the equations, one by one, and not from the code under test: with
    `lam` for d loss / d v[t], d loss / d h[t] gathers what goes through the spike to
    the output, through the spike to the reset, and through the reset alone.
    """
    settings = {"v_threshold": v_threshold, "v_reset": v_reset}
    s, h, v = neuron_loop(x, v0, tau, decay_input=decay_input, **settings)
    rest = 0.0 if v_reset is None else v_reset
    before = np.concatenate([f64(v0)[None], v[:-1]])
    x, ds, lam = f64(x), f64(ds), f64(dv)
    dx, dtau = np.zeros_like(x), np.zeros_like(x[0])
    for t in reversed(range(len(x))):
        v_by_s = -v_threshold if v_reset is None else v_reset - h[t]
        v_by_h = 1.0 if v_reset is None else 1.0 - s[t]
        through_spike = ds[t] + (0.0 if detach_reset else lam * v_by_s)
        dh = through_spike * derivative(h[t] - v_threshold) + lam * v_by_h
        if tau is None:
            dx[t], lam = dh, dh
            continue
        dx[t] = dh / tau if decay_input else dh
        drive = (x[t] if decay_input else 0.0) - (before[t] - rest)
        dtau += dh * drive * (-1.0 / np.square(f64(tau)))
        lam = dh * (1.0 - 1.0 / f64(tau))
    return dx, lam, dtau


def driven_gradients(x, scale, shift, v0, tau, ds, dv, derivative, **settings):
    """`neuron_gradients` where the current is `x * scale + shift`, per feature.

    By the chain rule: gradients by x, v0, tau, and (summed) scale and shift.
    """
    x, scale = f64(x), f64(scale)
    current = x * scale + f64(shift)
    dcurrent, dv0, dtau = neuron_gradients(
        current, v0, tau, ds, dv, derivative, **settings
    )
    axes = tuple(range(x.ndim - 1))
    return dcurrent * scale, dv0, dtau, (dcurrent * x).sum(axes), dcurrent.sum(axes)


def sum_to(a, shape):
    """The sum of `a` over the axes along which `shape` was broadcast to its shape."""
    a = a.sum(tuple(range(a.ndim - len(shape))))
    ones = tuple(i for i, n in enumerate(shape) if n != a.shape[i])
    return a.sum(ones, keepdims=True)


def assert_clear(h, v_threshold, gap=1e-4):
    """No potential so near the threshold that float32 might fire otherwise."""
    assert np.abs(h - v_threshold).min() > gap


def assert_near(ours, wanted, tolerance=2e-5):
    ours, wanted = f64(ours), f64(wanted)
    assert ours.shape == wanted.shape
    scale = max(1.0, np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance * scale)


def assert_bits(ours, wanted):
    ours, wanted = np.asarray(ours), np.asarray(wanted)
    assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape)
    assert ours.tobytes() == wanted.tobytes()
