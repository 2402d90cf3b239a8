"""Figures kept on disk: found for the same program only, and never a reason to fail."""

import jax
import jax.numpy as jnp
import pytest

from snnjax.memopt import _cache, _deviceless, measure
from snnjax.memopt._cache import cached

FIGURES = {"temp": 8, "argument": 4}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SNNJAX_CACHE_DIR", str(tmp_path / "figures"))
    return tmp_path / "figures"


def never():
    raise AssertionError("was made again")


def files(folder):
    return [f for f in folder.rglob("*") if f.is_file()]


def test_figures_are_made_once(folder):
    assert cached(("module", b"options"), lambda: FIGURES) == FIGURES
    assert cached(("module", b"options"), never) == FIGURES
    assert len(files(folder)) == 1  # and nothing half made


@pytest.mark.parametrize(
    "parts",
    [("module", b"other"), ("modul", b"eoptions"), ("moduleoptions",), ()],
)
def test_other_parts_are_another_key(folder, parts):
    cached(("module", b"options"), lambda: FIGURES)
    assert cached(parts, lambda: {"temp": 1}) == {"temp": 1}


def test_another_compiler_or_flag_is_another_key(folder, monkeypatch):
    cached(("module",), lambda: FIGURES)
    monkeypatch.setenv("XLA_FLAGS", "--xla_something")
    assert cached(("module",), lambda: {"temp": 1}) == {"temp": 1}
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(_cache, "version", lambda name: "0.0.1")
    assert cached(("module",), lambda: {"temp": 2}) == {"temp": 2}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"temp": 8, "argu',
        b"[]",
        b"{}",
        b'{"temp": -1}',
        b'{"temp": 1.5}',
        b"\xff",
    ],
)
def test_a_damaged_file_is_made_again(folder, content):
    cached(("module",), lambda: FIGURES)
    (file,) = files(folder)
    file.write_bytes(content)
    assert cached(("module",), lambda: FIGURES) == FIGURES
    assert cached(("module",), never) == FIGURES


def test_what_fails_is_not_kept(folder):
    def fails():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        cached(("module",), fails)
    assert cached(("module",), lambda: FIGURES) == FIGURES


def test_a_folder_that_cannot_be_written_is_no_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SNNJAX_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert cached(("module",), lambda: FIGURES) == FIGURES
    assert cached(("module",), lambda: {"temp": 1}) == {"temp": 1}


def test_the_environment_says_where(tmp_path, monkeypatch):
    monkeypatch.setenv("SNNJAX_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached(("module",), lambda: FIGURES)
    assert not files(tmp_path)
    monkeypatch.delenv("SNNJAX_CACHE_DIR")
    cached(("module",), lambda: FIGURES)
    assert len(files(tmp_path / "snnjax" / "figures")) == 1


def test_a_step_is_compiled_once(folder, monkeypatch):
    compiled = []

    def counted(lowered, options, dump):
        compiled.append(options)
        return real(lowered, options, dump)

    real = _deviceless.compile_lowered
    monkeypatch.setattr(_deviceless, "compile_lowered", counted)
    x = jax.ShapeDtypeStruct((64,), jnp.float32)
    first, second = (measure(lambda x: jnp.sin(x) * 2, x) for _ in range(2))
    assert first == second and len(compiled) == 1
    quick = {"xla_backend_optimization_level": 0}
    measure(lambda x: jnp.sin(x) * 2, x, compiler_options=quick)
    measure(lambda x: jnp.sin(x) * 3, x)
    measure(lambda x: jnp.sin(x) * 2, jax.ShapeDtypeStruct((65,), jnp.float32))
    assert len(compiled) == 4


def test_a_curve_is_never_from_the_cache(folder):
    x = jax.ShapeDtypeStruct((64,), jnp.float32)
    measure(jnp.cumsum, x)
    assert measure(jnp.cumsum, x, timeline=True).timeline is not None
