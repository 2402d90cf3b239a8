"""The described GPUs: consistent figures, and a description that XLA takes."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from snnjax.memopt._devices import DEVICES, device_spec, target_config
from snnjax.memopt._measure import measure


def test_names():
    assert list(DEVICES) == ["h200", "h100", "a100", "rtx4090", "l4", "t4"]
    assert all(device_spec(name).name == name for name in DEVICES)


@pytest.mark.parametrize("name", DEVICES)
def test_peak_is_what_the_cores_can_do(name):
    # Independent of the data sheet's peak: two operations a core and clock.
    spec = device_spec(name)
    cores = spec.sm_count * spec.fpus_per_sm
    assert 2 * cores * spec.clock_ghz * 1e9 == pytest.approx(spec.fp32_flops, rel=0.02)


@pytest.mark.parametrize("name", DEVICES)
def test_sizes_are_ordered(name):
    spec = device_spec(name)
    assert spec.shared_bytes_per_block <= spec.shared_bytes_per_block_optin
    assert spec.shared_bytes_per_block_optin <= spec.shared_bytes_per_sm
    assert spec.shared_bytes_per_sm < spec.l2_bytes < spec.memory_bytes
    assert spec.threads_per_sm % 32 == 0


def test_specs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        device_spec("t4").memory_bytes = 1


def test_unknown_name_lists_those_there_are():
    with pytest.raises(ValueError, match=r"`device` is 'gtx1080'.*'h200'.*'t4'"):
        device_spec("gtx1080")


@pytest.mark.parametrize("name", DEVICES)
def test_target_config_says_what_the_spec_says(name):
    spec, text = device_spec(name), target_config(device_spec(name))
    major, minor = spec.compute_capability
    assert f"cuda_compute_capability {{ major: {major} minor: {minor} }}" in text
    assert f"device_memory_size: {spec.memory_bytes}\n" in text
    assert f"core_count: {spec.sm_count}\n" in text
    assert f"memory_bandwidth: {round(spec.memory_bandwidth)}\n" in text
    assert f'device_description_str: "{spec.description}"' in text
    assert "runtime_version" in text
    assert text.count("{") == text.count("}") == 4


@pytest.mark.parametrize("name", DEVICES)
def test_every_description_compiles(name, cuda_wheels):
    def step(w, x):
        return w - jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)

    w = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    x = jax.ShapeDtypeStruct((256, 64), jnp.float32)
    report = measure(step, w, x, device=name, donate_argnums=0)
    assert report.device == name
    assert report.argument_bytes == 4 * (64 * 128 + 256 * 64)
    assert report.output_bytes == report.alias_bytes == 4 * 64 * 128
