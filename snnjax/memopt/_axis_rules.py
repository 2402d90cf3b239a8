"""What each primitive does to a cut axis: keeps it apart, sums over it, or mixes it.

A rule takes an equation of the whole program and the layouts of its operands, None
where an operand is the same for all chunks. It says what each operand must be given as
(a chunk with this layout, or whole), and where the cut axis lies in each result. What
it does not say holds for no chunk, so a primitive without a rule is refused. As the
batching rules of `jax.vmap`, but of an axis that stays where it is.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ._layout import Layout

Layouts = Sequence[Layout | None]


class Effect(NamedTuple):
    """What an equation does to the cut axis.

    Args:
        operands: how each has to be given: a chunk that lies so, or None for whole.
        results: where the axis lies in each.
        total: whether the result is a sum over all of the cut axis instead.
    """

    operands: Layouts
    results: Layouts
    total: bool = False


class Mixes(ValueError):
    """The equation mixes what the chunks are to keep apart."""


def effect(eqn: Any, layouts: Layouts) -> Effect:
    """What an equation does, at least one of whose operands is cut.

    Raises:
        Mixes: it mixes the cut axis, or nothing is known of it.
    """
    name = eqn.primitive.name
    rule = elementwise if name in ELEMENTWISE else _RULES.get(name)
    if rule is None:
        raise Mixes(f"nothing is known of how `{name}` treats them")
    return rule(eqn, layouts)


def only(layouts: Layouts) -> Layout:
    """The layout of all operands that are cut."""
    found = {layout for layout in layouts if layout is not None}
    if not found:
        raise Mixes("an operand that says where, such as an index, has them")
    if len(found) > 1:
        raise Mixes("operands have them on different axes")
    return found.pop()


def elementwise(eqn: Any, layouts: Layouts) -> Effect:
    """Operands have the axis in the same place, or one that is broadcast, or none."""
    layout = only(layouts)
    rank = max(len(_shape(v)) for v in eqn.invars)

    def place(shape: tuple[int, ...]) -> Layout | None:
        cut = len(shape) == rank and shape[layout.axis] == layout.size
        return layout if cut else None

    operands = [place(_shape(v)) for v in eqn.invars]
    return Effect(operands, [place(_shape(v)) for v in eqn.outvars])


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)


def _along(eqn: Any, layouts: Layouts, axis: int | None) -> Effect:
    """One array operand, first, whose cut axis ends up at `axis`; others whole."""
    layout = only(layouts[:1])
    _whole(layouts[1:])
    moved = None if axis is None else layout.at(axis)
    rest = [None] * (len(layouts) - 1)
    return Effect([layout, *rest], [moved] * len(eqn.outvars))


def _whole(layouts: Layouts) -> None:
    if any(layout is not None for layout in layouts):
        raise Mixes("an index or a parameter depends on them")


def _apart(axis: int, axes: Sequence[int], what: str) -> None:
    if axis in axes:
        raise Mixes(what)


def _broadcast(eqn: Any, layouts: Layouts) -> Effect:
    where = eqn.params["broadcast_dimensions"]
    return _along(eqn, layouts, where[only(layouts[:1]).axis])


def _reshape(eqn: Any, layouts: Layouts) -> Effect:
    layout = only(layouts)
    moved = layout.reshaped(_shape(eqn.invars[0]), _shape(eqn.outvars[0]))
    if moved is None:
        raise Mixes("a reshape tears their axis apart")
    return Effect([layout], [moved])


def _transpose(eqn: Any, layouts: Layouts) -> Effect:
    return _along(eqn, layouts, eqn.params["permutation"].index(only(layouts).axis))


def _squeeze(eqn: Any, layouts: Layouts) -> Effect:
    axis = only(layouts).axis
    return _along(eqn, layouts, axis - sum(d < axis for d in eqn.params["dimensions"]))


def _reverse(eqn: Any, layouts: Layouts) -> Effect:
    axis = only(layouts).axis
    _apart(axis, eqn.params["dimensions"], "their order is reversed")
    return _along(eqn, layouts, axis)


def _slice(eqn: Any, layouts: Layouts) -> Effect:
    """Static and dynamic ones alike: all of the cut axis or nothing."""
    axis = only(layouts[:1]).axis
    if _shape(eqn.outvars[0])[axis] != _shape(eqn.invars[0])[axis]:
        raise Mixes("some of them are sliced out")
    return _along(eqn, layouts, axis)


def _pad(eqn: Any, layouts: Layouts) -> Effect:
    axis = only(layouts[:1]).axis
    if eqn.params["padding_config"][axis] != (0, 0, 0):
        raise Mixes("their axis is padded")
    return _along(eqn, layouts, axis)


def _concatenate(eqn: Any, layouts: Layouts) -> Effect:
    layout = only(layouts)
    _apart(layout.axis, [eqn.params["dimension"]], "their axis is concatenated")
    return Effect([layout] * len(layouts), [layout])


def _split(eqn: Any, layouts: Layouts) -> Effect:
    axis = only(layouts).axis
    _apart(axis, [eqn.params["axis"]], "their axis is split")
    return _along(eqn, layouts, axis)


def _reduce(eqn: Any, layouts: Layouts) -> Effect:
    axis, axes = only(layouts).axis, eqn.params["axes"]
    _apart(axis, axes, f"`{eqn.primitive.name}` runs over them")
    return _along(eqn, layouts, axis - sum(d < axis for d in axes))


def _reduce_sum(eqn: Any, layouts: Layouts) -> Effect:
    layout = only(layouts)
    if layout.axis in eqn.params["axes"]:
        return Effect([layout], [None], total=True)
    return _reduce(eqn, layouts)


def _cumulative(eqn: Any, layouts: Layouts) -> Effect:
    axis = only(layouts).axis
    _apart(axis, [eqn.params["axis"]], f"`{eqn.primitive.name}` runs along them")
    return _along(eqn, layouts, axis)


def _sort(eqn: Any, layouts: Layouts) -> Effect:
    layout = only(layouts)
    _apart(layout.axis, [eqn.params["dimension"]], "they are sorted")
    return Effect([layout] * len(layouts), [layout] * len(eqn.outvars))


def _dot(eqn: Any, layouts: Layouts) -> Effect:
    """A free axis stays; a batch axis is in both; a contraction is a sum over it."""
    contract, batch = eqn.params["dimension_numbers"]
    shapes = [_shape(v) for v in eqn.invars]
    side = 0 if layouts[0] is not None else 1
    layout = only(layouts[side : side + 1])
    if layout.axis in contract[side]:
        other = contract[1 - side][contract[side].index(layout.axis)]
        both = [layout, layout.at(other)] if side == 0 else [layout.at(other), layout]
        return Effect(both, [None], total=True)
    if layout.axis in batch[side]:
        place = batch[side].index(layout.axis)
        both = [layout.at(batch[0][place]), layout.at(batch[1][place])]
        return Effect(both, [layout.at(place)])
    _whole(layouts[1 - side : 2 - side])

    def free(s: int) -> list[int]:
        taken = (*contract[s], *batch[s])
        return [d for d in range(len(shapes[s])) if d not in taken]

    place = len(batch[0]) + side * len(free(0)) + free(side).index(layout.axis)
    operands = [layout, None] if side == 0 else [None, layout]
    return Effect(operands, [layout.at(place)])


def _convolution(eqn: Any, layouts: Layouts) -> Effect:
    numbers = eqn.params["dimension_numbers"]
    if layouts[0] is None or layouts[1] is not None:
        raise Mixes("a convolution's kernel depends on them")
    if layouts[0].axis != numbers.lhs_spec[0] or eqn.params["batch_group_count"] != 1:
        raise Mixes("a convolution's window slides over them")
    return _along(eqn, layouts, numbers.out_spec[0])


def _window(eqn: Any, layouts: Layouts) -> Effect:
    axis = only(layouts[:1]).axis
    names = "window_dimensions window_strides base_dilation window_dilation".split()
    ones = [eqn.params[n][axis] for n in names if n in eqn.params]
    if set(ones) != {1} or tuple(eqn.params["padding"][axis]) != (0, 0):
        raise Mixes("a window slides over them")
    return _along(eqn, layouts, axis)


def _gather(eqn: Any, layouts: Layouts) -> Effect:
    """Of a cut operand: all of the axis. By cut indices from a whole one: a look-up."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    out = range(len(_shape(eqn.outvars[0])))
    if layouts[0] is None:
        places = [d for d in out if d not in numbers.offset_dims]
        layout = only(layouts[1:])
        batching = numbers.start_indices_batching_dims
        if layout.axis == len(_shape(eqn.invars[1])) - 1 or layout.axis in batching:
            raise Mixes("an index is made of several of them")
        return Effect([None, layout], [layout.at(places[layout.axis])])
    axis = layouts[0].axis
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    if axis in gone or sizes[axis] != _shape(eqn.invars[0])[axis]:
        raise Mixes("some of them are picked out")
    kept = [d for d in range(len(sizes)) if d not in gone]
    return _along(eqn, layouts, numbers.offset_dims[kept.index(axis)])


def _dynamic_update(eqn: Any, layouts: Layouts) -> Effect:
    layout = only(layouts[:2])
    _whole(layouts[2:])
    if len({_shape(v)[layout.axis] for v in eqn.invars[:2]}) != 1:
        raise Mixes("some of them are written over")
    rest = [None] * (len(layouts) - 2)
    return Effect([layout, layout, *rest], [layout])


def _barrier(eqn: Any, layouts: Layouts) -> Effect:
    return Effect(layouts, layouts)


def _bitcast(eqn: Any, layouts: Layouts) -> Effect:
    if _shape(eqn.invars[0]) != _shape(eqn.outvars[0]):
        raise Mixes("a bitcast to another width is not followed")
    return elementwise(eqn, layouts)


def marked_causal(eqn: Any, layouts: Layouts) -> Effect:
    """`(*constants[, state], x) -> (y[, state])`, cut along another axis than time."""
    layout = only(layouts[-1:])
    step = _shape(eqn.invars[-1])[1:]
    one = layout.at(layout.axis - 1)

    def place(shape: tuple[int, ...]) -> Layout | None:
        # A constant broadcasts to one time step, from the right.
        axis = one.axis - (len(step) - len(shape))
        cut = axis >= 0 and shape[axis] == one.size
        return one.at(axis) if cut else None

    operands = [place(_shape(v)) for v in eqn.invars[:-1]]
    return Effect([*operands, layout], [layout, one][: len(eqn.outvars)])


ELEMENTWISE = frozenset(
    """
    add sub mul div rem max min pow atan2 nextafter and or xor not neg sign floor ceil
    round exp exp2 log log1p expm1 tanh sinh cosh tan sin cos asin acos atan asinh acosh
    atanh sqrt rsqrt cbrt logistic erf erfc erf_inv lgamma digamma igamma igammac zeta
    polygamma regularized_incomplete_beta bessel_i0e bessel_i1e abs square integer_pow
    is_finite eq ne lt le gt ge select_n clamp convert_element_type shift_left
    shift_right_logical shift_right_arithmetic population_count clz real imag conj
    complex reduce_precision stop_gradient copy copy_p name add_any sharding_constraint
    """.split()
)
_RULES: dict[str, Callable[[Any, Layouts], Effect]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "rev": _reverse,
    "slice": _slice,
    "dynamic_slice": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "split": _split,
    "reduce_sum": _reduce_sum,
    **dict.fromkeys(
        "reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax "
        "argmin".split(),
        _reduce,
    ),
    **dict.fromkeys(
        "cumsum cumprod cummax cummin cumlogsumexp".split(),
        _cumulative,
    ),
    "sort": _sort,
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    **dict.fromkeys(
        "reduce_window_sum reduce_window_max reduce_window_min".split(),
        _window,
    ),
    "gather": _gather,
    "dynamic_update_slice": _dynamic_update,
    "optimization_barrier": _barrier,
    "bitcast_convert_type": _bitcast,
}
