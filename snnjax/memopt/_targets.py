"""Which modules may become segments, and what keeps the input of each.

Every argument of the planner that a user can get wrong is checked here, before anything
is traced.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ._checks import check_whole
from ._compress import (
    BaseSpikeCompressor,
    NullSpikeCompressor,
    compressor_for,
    compressor_named,
    settings_of,
)
from ._container import GCContainer
from ._grid import Grid
from ._model import check_net, named_modules, outermost
from ._plan import PlannedSegment
from ._ranges import Known

Targets = type | tuple[type, ...]
UNKNOWN = "unknown"


def find_targets(net: Any, instance: Any) -> dict[str, nnx.Module]:
    """The modules of `net` of the types `instance`, outermost only, by path."""
    check_net(net)
    targets = outermost(net, _types(instance))
    if not targets:
        present = sorted({type(m).__name__ for m in named_modules(net).values()})
        raise ValueError(
            f"`instance` is {instance!r} and matches no module of "
            f"{type(net).__name__}; it has {', '.join(present)}."
        )
    segments = list(outermost(net, (GCContainer,)))
    if segments:
        raise ValueError(
            f"`net` is segmented already, at {', '.join(segments)}; start from the "
            "plain model."
        )
    return targets


def check_batch(batch: Any) -> None:
    """Raises unless `batch` is None or a tuple of arrays, or of pytrees of them."""
    leaves = jax.tree.leaves(batch)
    bad = [type(a).__name__ for a in leaves if not _is_array(a)]
    if batch is not None and (not isinstance(batch, tuple) or bad):
        raise ValueError(
            f"`batch` (or `dummy_input`) is {type(batch).__name__}"
            f"{' of ' + ', '.join(bad) if bad else ''}; allowed is a tuple of arrays, "
            "or of jax.ShapeDtypeStructs, for example `(frames,)`."
        )


def _is_array(a: Any) -> bool:
    return isinstance(a, int | float | complex) or (
        hasattr(a, "shape") and hasattr(a, "dtype")
    )


def parts_of(net: nnx.Module, targets: dict[str, nnx.Module]) -> dict[str, list[str]]:
    """Paths of the parts of each target that may be split: more than one, all named.

    The parts are those of `__spatial_split__`, or the layers of a Sequential.
    """
    paths = {id(module): path for path, module in named_modules(net).items()}
    found = {}
    for path, target in targets.items():
        parts = [paths.get(id(part)) for part in _parts(target)]
        if len(parts) > 1 and None not in parts:
            found[path] = [p for p in parts if p is not None]
    return found


def _parts(target: nnx.Module) -> tuple[Any, ...]:
    split = getattr(target, "__spatial_split__", None)
    if split is not None:
        return tuple(split())
    return tuple(target.layers) if isinstance(target, nnx.Sequential) else ()


def check_loss(loss: Any) -> None:
    """Raises unless `loss` can be called."""
    if not callable(loss):
        raise ValueError(
            f"`loss` is {loss!r}; allowed is a function `loss(model, *batch)`."
        )


def check_optimizer(optimizer: Any) -> None:
    """Raises unless `optimizer` is one of optax's, or None."""
    made = all(hasattr(optimizer, name) for name in ("init", "update"))
    if optimizer is not None and not made:
        raise ValueError(
            f"`optimizer` is {optimizer!r}; allowed is an optax.GradientTransformation "
            "or None. Call it: `optax.adam(1e-3)`."
        )


def check_time_repeats(repeats: Any, net: nnx.Module, batch: Any) -> None:
    """Raises unless so many steps can be run."""
    check_whole("time_repeats", repeats, 0, "Give the number of timed steps.")
    if repeats and (batch is None or _is_abstract((nnx.state(net), batch))):
        raise ValueError(
            f"`time_repeats` is {repeats}, but the model or the batch is abstract; "
            "allowed are values, since steps are run, and 0 with abstract ones."
        )


def check_real(batch: Any) -> None:
    """Raises unless `batch` is a tuple of arrays with values."""
    check_batch(batch)
    if batch is None or _is_abstract(batch):
        raise ValueError(
            "`batch` is abstract or None; allowed is real data, which is compared. "
            "Give arrays."
        )


def _is_abstract(tree: Any) -> bool:
    leaves = jax.tree.leaves(tree)
    return any(isinstance(a, jax.ShapeDtypeStruct) for a in leaves)


def check_input_range(input_range: Any) -> Grid | None:
    """The grid of a declared `(lo, hi)`, or None for None."""
    if input_range is None:
        return None
    whole = isinstance(input_range, tuple) and [type(n) for n in input_range]
    pair = whole == [int, int] and input_range[0] <= input_range[1]
    if not pair or max(map(abs, input_range)) > 2**23:
        raise ValueError(
            f"`input_range` is {input_range!r}; allowed is a pair of whole numbers "
            "(lo, hi) up to 2**23 in size, such as (0, 1) for binary event frames, or "
            "None."
        )
    return Grid(*input_range)


def plan_segment(
    path: str, module: nnx.Module, known: Known | None, compress: bool, unchecked: bool
) -> PlannedSegment:
    """One segment of a plan: its path, its compressor and what its input can hold."""
    grid = None if known is None else known.grid
    boundary = UNKNOWN if known is None else str(known)
    own = _own_compressor(module) if compress else NullSpikeCompressor()
    if own is None:
        own = compressor_for(grid)
    elif not unchecked and not own.covers(grid):
        raise ValueError(
            f"`x_compressor` of {path} is {own}, which is exact on {own.holds}; its "
            f"input is {boundary}, so it could lose information. Name "
            "NullSpikeCompressor, remove the attribute, or pass `unchecked=True` if "
            "you know better, and then `memopt.verify`."
        )
    check_round_trip(path, own, grid)
    vouched = not own.covers(grid)
    return PlannedSegment(path, type(own).__name__, boundary, settings_of(own), vouched)


def check_round_trip(path: str, own: BaseSpikeCompressor, grid: Grid | None) -> None:
    """Raises unless a compressor gives back each member of `grid`, if few."""
    if grid is None or not own.covers(grid) or grid.bits > 12:
        return
    members = np.arange(grid.lo, grid.hi + 1, dtype=np.float32) * 2.0**grid.exponent
    x = jnp.asarray(members.reshape(1, 1, -1))
    came = np.asarray(own.pack(x).unpack())
    if came.shape != x.shape or came.dtype != x.dtype:
        raise ValueError(
            f"`x_compressor` of {path} is {own}: a float32 array of shape {x.shape} "
            f"came back as {came.dtype} of shape {came.shape}."
        )
    wrong = np.flatnonzero(came.ravel() != members)
    if wrong.size:
        raise ValueError(
            f"`x_compressor` of {path} is {own}, whose round trip is not exact: "
            f"{members[wrong[0]]:g} came back as {came.ravel()[wrong[0]]:g}."
        )


def _own_compressor(module: nnx.Module) -> BaseSpikeCompressor | None:
    own = getattr(module, "x_compressor", None)
    if own is None or isinstance(own, BaseSpikeCompressor):
        return own
    return compressor_named(own)


def _types(instance: Any) -> tuple[type, ...]:
    types = instance if isinstance(instance, tuple) else (instance,)
    if not types or not all(isinstance(t, type) for t in types):
        raise ValueError(
            f"`instance` is {instance!r}; allowed is a type of nnx.Module or a tuple "
            "of such types, for example `(snn.models.VGGBlock,)`."
        )
    return types
