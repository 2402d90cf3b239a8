"""Who may import whom, and that importing does nothing."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python(code, **environment):
    """Another interpreter: import-linter, for one, configures logging as it pleases."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_import_contracts():
    run = python(
        "from importlinter.cli import lint_imports; "
        "raise SystemExit(lint_imports('pyproject.toml', no_cache=True))"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 broken" in run.stdout


IMPORT_AND_COMPARE = """
import logging, sys, threading, warnings
import flax.nnx, jax, optax, rich
def world():
    return (
        dict(jax.config.values), list(warnings.filters), threading.active_count(),
        logging.root.handlers[:], sys.path[:], sys.excepthook,
    )
before = world()
import snnjax
names = ("config", "warnings", "threads", "logging", "sys.path", "excepthook")
for name, a, b in zip(names, before, world()):
    assert a == b, f"importing snnjax changes {name}: {a} to {b}"
extras = {"matplotlib", "tonic", "sklearn", "aedat", "grain", "h5py", "PIL", "nir"}
optional = extras & set(sys.modules) - LOADED
assert not optional, f"importing snnjax imports {optional}"
print("imported")
jax.devices()
"""


def test_importing_does_nothing():
    """On a platform that does not exist: the first look at a device would fail."""
    # What jax and flax import themselves is theirs, if it is installed.
    code = IMPORT_AND_COMPARE.replace(
        "def world", "LOADED = set(sys.modules)\ndef world"
    )
    run = python(code, JAX_PLATFORMS="nowhere")
    assert run.stdout == "imported\n", run.stderr
    # And it does: the same process, asked for its devices at the end.
    assert run.returncode != 0 and "nowhere" in run.stderr
