"""Losses of class scores over time, `[time, batch, class]`, against integer labels.

Each is a scalar, the mean over the samples; samples with a negative label, which only
fill up a batch, are left out. Half precisions are summed in float32.
"""

import jax
import jax.numpy as jnp
import optax

from ._types import Array, check_floating, check_time_major, float32_at_least


def cross_entropy(scores: Array, labels: Array, *, smoothing: float = 0.0) -> Array:
    """Cross-entropy of the scores' mean over time, the firing rate.

        loss = mean over samples of -sum over c of wanted[c] * log_softmax(rate)[c]
        rate = mean over t of scores
        wanted = (1 - smoothing) * onehot(label) + smoothing / classes

    Args:
        scores: `[time, batch, class]`, spikes or potentials.
        labels: `[batch]`, integers; negative ones are left out.
        smoothing: share of the target spread over all classes, from 0 to below 1.

    Returns:
        A scalar.

    Raises:
        ValueError: a shape or dtype is not as above, or `smoothing` is out of range.

    Source: label smoothing is Szegedy et al., "Rethinking the Inception Architecture
    for Computer Vision", CVPR 2016, section 7.
    """
    scores = _checked(scores, labels)
    wanted = _smoothed(scores, labels, smoothing)
    return _mean(optax.softmax_cross_entropy(scores.mean(0), wanted), labels)


def tet(
    scores: Array,
    labels: Array,
    *,
    weight: float = 1e-3,
    phi: float = 1.0,
    smoothing: float = 0.0,
) -> Array:
    """Temporal efficient training: cross-entropy at every time step, a pull to phi.

        loss = (1 - weight) * mean over t of cross_entropy(scores[t])
             + weight * mean((scores - phi)**2)

    Args:
        scores: `[time, batch, class]`, potentials or currents of the readout.
        labels: `[batch]`, integers; negative ones are left out.
        weight: lambda of the paper, of the pull; from 0 to 1.
        phi: what the pull draws every score to; the firing threshold in the paper.
        smoothing: as in `cross_entropy`.

    Returns:
        A scalar.

    Raises:
        ValueError: a shape or dtype is not as above, or a number is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> import snnjax as snn
        >>> scores = jnp.zeros((4, 2, 10))  # time, batch, class
        >>> f"{snn.loss.tet(scores, jnp.array([3, 7]), weight=0.0):.4f}"  # ln 10
        '2.3026'

    Source: Deng et al., "Temporal Efficient Training of Spiking Neural Network via
    Gradient Re-weighting", ICLR 2022; the defaults are those of the authors' code.
    """
    scores = _checked(scores, labels)
    _check_share(weight, "weight")
    wanted = _smoothed(scores, labels, smoothing)
    each = optax.softmax_cross_entropy(scores, jnp.broadcast_to(wanted, scores.shape))
    pull = jnp.square(scores - phi).mean((0, 2))
    return _mean((1 - weight) * each.mean(0) + weight * pull, labels)


def rate_mse(scores: Array, labels: Array) -> Array:
    """Squared distance of the firing rates to the one-hot label.

        loss = mean over samples and classes of (rate - onehot(label))**2
        rate = mean over t of scores

    Args:
        scores: `[time, batch, class]`, spikes of the readout as a rule.
        labels: `[batch]`, integers; negative ones are left out.

    Returns:
        A scalar.

    Raises:
        ValueError: a shape or dtype is not as above.

    Source: Fang et al., "Incorporating Learnable Membrane Time Constant to Enhance
    Learning of Spiking Neural Networks", ICCV 2021.
    """
    scores = _checked(scores, labels)
    error = scores.mean(0) - _one_hot(scores, labels)
    return _mean(jnp.square(error).mean(-1), labels)


def count(
    spikes: Array,
    labels: Array,
    *,
    correct_rate: float = 1.0,
    incorrect_rate: float = 0.0,
) -> Array:
    """Squared distance of the spike counts to target counts, for each time step.

        target = time * (correct_rate if c == label else incorrect_rate)
        error = sum over t of spikes - target
        loss = mean over samples and classes of error**2 / time

    Args:
        spikes: `[time, batch, class]`.
        labels: `[batch]`, integers; negative ones are left out.
        correct_rate, incorrect_rate: wanted spikes a time step, from 0 to 1.

    Returns:
        A scalar.

    Raises:
        ValueError: a shape or dtype is not as above, or a rate is out of range.

    Source: Shrestha and Orchard, "SLAYER: Spike Layer Error Reassignment in Time",
    NeurIPS 2018; the scale, and targets as rates, are those of snnTorch's
    `mse_count_loss` (which rounds the target down).
    """
    spikes = _checked(spikes, labels, "spikes")
    _check_share(correct_rate, "correct_rate")
    _check_share(incorrect_rate, "incorrect_rate")
    steps = spikes.shape[0]
    rates = incorrect_rate + (correct_rate - incorrect_rate) * _one_hot(spikes, labels)
    error = spikes.sum(0) - steps * rates
    return _mean(jnp.square(error).mean(-1) / steps, labels)


def latency(spikes: Array, labels: Array) -> Array:
    """Cross-entropy of negated first-spike times: the label's neuron is to fire first.

        first = sum over t of product over s <= t of (1 - spikes[s])
        loss = mean over samples of -log_softmax(-first)[label]

    For spikes of 0 and 1, `first` is the number of silent steps before the first spike,
    `time` if there is none. Unlike an argmax it has a derivative in every spike, the
    steps that would be won by firing then, which goes on through the surrogate.

    Args:
        spikes: `[time, batch, class]`, 0 or 1.
        labels: `[batch]`, integers; negative ones are left out.

    Returns:
        A scalar.

    Raises:
        ValueError: a shape or dtype is not as above.

    Source: the loss is Mostafa, "Supervised Learning Based on Temporal Coding in
    Spiking Neural Networks", IEEE TNNLS 2018, with times in place of their exponentials
    (as snnTorch's `ce_temporal_loss`). `first` is the expected survival time of
    discrete-time survival analysis with spikes as hazards: Gensheimer and Narasimhan,
    "A Scalable Discrete-Time Survival Model for Neural Networks", PeerJ 2019.
    """
    spikes = _checked(spikes, labels, "spikes")
    first = jnp.cumprod(1 - spikes, axis=0).sum(0)
    wanted = _one_hot(spikes, labels)
    return _mean(optax.softmax_cross_entropy(-first, wanted), labels)


def _mean(each: Array, labels: Array) -> Array:
    """Over the samples whose label is not negative; 0 if there is none."""
    real = (labels >= 0).astype(each.dtype)
    return (each * real).sum() / jnp.maximum(real.sum(), 1)


def _one_hot(scores: Array, labels: Array) -> Array:
    return jax.nn.one_hot(labels, scores.shape[-1], dtype=scores.dtype)


def _smoothed(scores: Array, labels: Array, smoothing: float) -> Array:
    if not 0 <= smoothing < 1:
        raise ValueError(
            f"`smoothing` is {smoothing}; allowed is a share from 0 to below 1."
        )
    return optax.smooth_labels(_one_hot(scores, labels), smoothing)


def _checked(scores: Array, labels: Array, name: str = "scores") -> Array:
    check_time_major(scores, name, "time batch class")
    check_floating(scores, name)
    if labels.shape != scores.shape[1:2]:
        raise ValueError(
            f"`labels` has shape {tuple(labels.shape)} with `{name}` of shape "
            f"{tuple(scores.shape)}; allowed is one class index a sample, "
            f"{tuple(scores.shape[1:2])}."
        )
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"`labels` has dtype {labels.dtype}; allowed are integers, class indices. "
            "One-hot labels become indices by `labels.argmax(-1)`."
        )
    return scores.astype(float32_at_least(scores.dtype))


def _check_share(value: float, name: str) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` is {value}; allowed is a number from 0 to 1.")
