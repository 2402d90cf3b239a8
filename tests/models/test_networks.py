"""Every network against the published one: parameters, and the shape of its scores.

Nothing is allocated. The numbers are those of the papers' tables and of their code.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from snnjax import models, neuron

IMAGENET, CIFAR = (4, 2, 224, 224, 3), (4, 2, 32, 32, 3)

# name: how to make it, what comes in, classes, parameters
PUBLISHED = {
    # torchvision's ResNets, on which SEW-ResNet's code is built: 11.69, 21.80, 25.56 M
    "SEW-ResNet-18": (
        functools.partial(models.SEWResNet, 18), IMAGENET, 1000, 11_689_512),
    "SEW-ResNet-34": (
        functools.partial(models.SEWResNet, 34), IMAGENET, 1000, 21_797_672),
    "SEW-ResNet-50": (
        functools.partial(models.SEWResNet, 50), IMAGENET, 1000, 25_557_032),
    # vgg11_bn, vgg16_bn, vgg19_bn of torchvision
    "VGG-11": (functools.partial(models.SpikingVGG, 11), IMAGENET, 1000, 132_868_840),
    "VGG-16": (functools.partial(models.SpikingVGG, 16), IMAGENET, 1000, 138_365_992),
    "VGG-19": (functools.partial(models.SpikingVGG, 19), IMAGENET, 1000, 143_678_248),
    # Spikformer, ICLR 2023: 16.81, 29.68, 66.34 M; CIFAR 9.32, 4.15 M
    "Spikformer-8-384": (
        functools.partial(models.Spikformer, 384, heads=6), IMAGENET, 1000, "16.81"),
    "Spikformer-8-512": (models.Spikformer, IMAGENET, 1000, "29.68"),
    "Spikformer-8-768": (
        functools.partial(models.Spikformer, 768, heads=12), IMAGENET, 1000, "66.34"),
    "Spikformer-4-384": (
        functools.partial(models.Spikformer, 384, 4, heads=12, patch_size=4,
                          num_classes=10), CIFAR, 10, "9.32"),
    "Spikformer-4-256": (
        functools.partial(models.Spikformer, 256, 4, patch_size=4, num_classes=10),
        CIFAR, 10, "4.15"),
    # QKFormer, NeurIPS 2024: 16.47, 29.08, 64.96 M; CIFAR-100 6.74 M
    "QKFormer-384": (
        functools.partial(models.QKFormer, 384, heads=6), IMAGENET, 1000, "16.47"),
    "QKFormer-512": (models.QKFormer, IMAGENET, 1000, "29.08"),
    "QKFormer-768": (
        functools.partial(models.QKFormer, 768, heads=12), IMAGENET, 1000, "64.96"),
    "QKFormer, CIFAR-100": (
        functools.partial(models.QKFormer, 384, (1, 1, 2), small_images=True,
                          num_classes=100), CIFAR, 100, "6.74"),
    # Meta-SpikeFormer, ICLR 2024: 15.1, 31.3, 55.4 M
    "Meta-SpikeFormer 15": (
        functools.partial(models.MetaSpikeformer, 64, last=360), IMAGENET, 1000,
        "15.1"),
    "Meta-SpikeFormer 31": (
        functools.partial(models.MetaSpikeformer, 96), IMAGENET, 1000, "31.3"),
    "Meta-SpikeFormer 55": (models.MetaSpikeformer, IMAGENET, 1000, "55.4"),
    # the layers of the PLIF paper, and a leak for each of seven
    "DVS Gesture": (models.DVSGestureNet, (4, 2, 128, 128, 2), 11, 1_698_311),
    # the layers of the code of the PSN paper
    "sequential CIFAR": (models.SequentialCIFARNet, (32, 2, 32, 3), 10, 513_418),
}  # fmt: skip
# Of each network, the one that is fast to trace goes with every run.
QUICK = {
    "SEW-ResNet-34",
    "VGG-19",
    "Spikformer-4-384",
    "QKFormer, CIFAR-100",
    "DVS Gesture",
    "sequential CIFAR",
}


def count(model):
    return sum(a.size for a in jax.tree.leaves(nnx.state(model, nnx.Param)))


def scores(model, shape, dtype="float32"):
    return nnx.eval_shape(
        lambda model, x: model(x), model, jax.ShapeDtypeStruct(shape, dtype)
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow])
        for n in PUBLISHED
    ],
)
def test_parameters_and_scores_are_those_of_the_published_network(name):
    make, shape, classes, published = PUBLISHED[name]
    model = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
    y = scores(model, shape)
    assert (y.shape, y.dtype) == ((*shape[:2], classes), jnp.float32)
    if isinstance(published, int):
        assert count(model) == published
    else:  # in millions; some papers round, and some cut off
        unit = 10.0 ** -len(published.split(".")[1])
        assert abs(count(model) / 1e6 - float(published)) < unit


def test_parallel_neurons_add_what_the_paper_says():
    """Seven layers of 32 * 32 weights and 32 thresholds."""
    model = nnx.eval_shape(
        lambda: models.SequentialCIFARNet(
            neuron=lambda: neuron.PSN(32, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0)
        )
    )
    assert count(model) == 513_418 + 7 * (32 * 32 + 32) == 520_810


def tiny_sew(**settings):
    settings = {"small_images": True, "width": 4, "num_classes": 2} | settings
    return lambda: models.SEWResNet(18, blocks=(1, 1), **settings, rngs=nnx.Rngs(0))


def test_half_precision_goes_through():
    model = nnx.eval_shape(tiny_sew(dtype=jnp.bfloat16))
    assert scores(model, (2, 1, 8, 8, 3)).dtype == jnp.bfloat16
    assert {a.dtype.name for a in jax.tree.leaves(nnx.state(model, nnx.Param))} == {
        "float32"
    }


@pytest.mark.parametrize(
    "make, words",
    [
        (functools.partial(models.SEWResNet, 35), "`depth` is 35; allowed are 18, 34"),
        (functools.partial(models.SEWResNet, connect="or"), "`connect` is 'or'.*'add'"),
        (functools.partial(models.SEWBlock, 8, 8, connect="or"), "`connect` is 'or'"),
        (functools.partial(models.QKFormer, 64, (1, 1)), "`depth` is .1, 1.*3 numbers"),
        (
            functools.partial(models.MetaSpikeformer, 64, (1, 1, 1)),
            "`depth` is .1, 1, 1.*2 numbers",
        ),
        (functools.partial(models.SpikingVGG, 12), "`depth` is 12; allowed are 11, 13"),
        (functools.partial(models.SpikingVGG, image_size=48), "`image_size` is 48"),
        (functools.partial(models.Spikformer, 60), "`features` is 60.*multiple of 8"),
        (functools.partial(models.Spikformer, 64, heads=7), "`heads` is 7"),
        (functools.partial(models.Spikformer, patch_size=5), "`patch_size` is 5"),
        (functools.partial(models.DVSGestureNet, image_size=48), "`image_size` is 48"),
        (functools.partial(models.SequentialCIFARNet, height=6), "`height` is 6"),
    ],
)
def test_refuses_settings(make, words):
    with pytest.raises(ValueError, match=words):
        nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))


@pytest.mark.parametrize(
    "make, shape, words",
    [
        (
            models.DVSGestureNet,
            (2, 1, 64, 64, 2),
            r"event frames \[time, batch, 128, 1",
        ),
        (
            functools.partial(models.SpikingVGG, 11, image_size=32, width=2, hidden=()),
            (2, 1, 3, 32, 32),
            r"takes images \[time, batch, 32, 32, 3\]",
        ),
        (models.SequentialCIFARNet, (32, 1, 3, 32), "columns .*moveaxis"),
        (models.SequentialCIFARNet, (1, 32, 32, 32, 3), "of rank 5"),
        (tiny_sew(), (2, 1, 3, 8, 8), "last axis must be the 3"),
    ],
)
def test_refuses_images(make, shape, words):
    with_rngs = make if "tiny" in str(make) else lambda: make(rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=words):
        scores(nnx.eval_shape(with_rngs), shape)
