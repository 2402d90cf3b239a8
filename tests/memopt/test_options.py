"""The planner's knobs: presets, precedence, conflicts, budgets in every form."""

import math
from typing import Any

import numpy as np
import pytest

from snnjax.memopt._climb import Limits
from snnjax.memopt._options import Options, resolve

GIB = 2**30


def options(**arguments: Any) -> Options:
    return resolve(**({"has_batch": True, "device_bytes": 8 * GIB} | arguments))


# --- presets --------------------------------------------------------------------------


def test_without_arguments_every_target_becomes_a_segment():
    came = options()
    assert (came.level, came.requested_level, came.climbs) == (1, 1, True)
    assert came.profile is came.prefer is came.checkpoint_budget is None
    assert came.budget is came.max_slowdown is None and came.notes == ()
    assert came.most_of(7) == 7 and came.limits == Limits(None, None)
    assert came.factor == 2 and not came.searches


@pytest.mark.parametrize(
    "profile, level, slowdown",
    [
        ("safe", 1, None),
        ("balanced", 4, 1.3),
        ("memory", 4, None),
        ("exhaustive", 4, 1.35),
    ],
)
def test_a_profile(profile, level, slowdown):
    came = options(profile=profile)
    assert (came.level, came.max_slowdown) == (level, slowdown)
    assert came.requested_level == level and came.profile == profile
    assert not came.climbs and came.searches == (level > 1)
    assert came.most_of(8) == 8


def test_dearer_profiles_compile_no_less():
    names = ("safe", "balanced", "memory", "exhaustive")
    compiles = [options(profile=name).compiles for name in names]
    assert compiles == sorted(compiles) and 0 < compiles[0] and compiles[-1] <= 11


@pytest.mark.parametrize(
    "prefer, profile, targets",
    [("speed", "safe", 4), ("balanced", "balanced", 6), ("memory", "memory", 8)],
)
def test_a_preference_is_a_profile_and_a_share(prefer, profile, targets):
    came = options(prefer=prefer)
    assert (came.prefer, came.profile) == (prefer, profile)
    assert came.checkpoint_budget == prefer and came.most_of(8) == targets
    same = options(profile=profile, checkpoint_budget=prefer)
    assert (came.level, came.max_slowdown) == (same.level, same.max_slowdown)


@pytest.mark.parametrize(
    "name, targets", [("speed", 4), ("balanced", 6), ("memory", 8)]
)
def test_a_share_of_the_targets(name, targets):
    came = options(checkpoint_budget=name)
    assert came.most_of(8) == targets and came.level == 1


@pytest.mark.parametrize("level", range(5))
def test_a_level_climbs(level):
    came = options(level=level)
    assert (came.level, came.requested_level, came.climbs) == (level, level, True)
    kinds = {
        0: {"plain"},
        1: {"gc"},
        2: {"gc", "split"},
        3: {"gc", "split", "batch", "time"},
        4: {"plain", "gc", "currents", "split", "batch", "time"},
    }
    assert set(came.kinds) == kinds[level]
    assert came.searches == (level > 1)


# --- precedence -----------------------------------------------------------------------


def test_what_is_given_beside_a_preset_wins():
    assert options(profile="memory", level=2).level == 2
    assert options(profile="balanced", max_slowdown=1.1).max_slowdown == 1.1
    came = options(prefer="speed", profile="memory")
    assert came.profile == "memory" and came.level == 4 and came.most_of(8) == 4
    came = options(prefer="speed", checkpoint_budget="memory")
    assert came.profile == "safe" and came.most_of(8) == 8
    assert options(prefer="speed", max_gc_wrapped_modules=7).most_of(8) == 7
    assert options(prefer="speed", gc_target_budget_ratio=0.75).most_of(8) == 6
    assert options(checkpoint_budget="speed", max_gc_wrapped_modules=8).most_of(8) == 8


def test_a_budget_replaces_the_slowdown_of_a_preset_but_not_the_users():
    came = options(profile="balanced", budget="1GiB")
    assert (came.budget, came.max_slowdown) == (GIB, None)
    came = options(profile="balanced", budget="1GiB", max_slowdown=1.2)
    assert (came.budget, came.max_slowdown) == (GIB, 1.2)


@pytest.mark.parametrize("wish", [{"budget": "1GiB"}, {"max_slowdown": 1.2}])
def test_what_a_user_wants_is_searched_for_with_every_move(wish):
    came = options(**wish)
    assert came.level == 4 and not came.climbs and came.searches and came.compiles > 1


@pytest.mark.parametrize("wish", [{"budget": "1GiB"}, {"max_slowdown": 1.2}])
@pytest.mark.parametrize("beside", [{"level": 1}, {"profile": "safe"}, {"level": 0}])
def test_what_a_user_wants_is_never_passed_over(wish, beside):
    """Either the two contradict each other, which is an error, or it is looked for."""
    try:
        came = options(**wish, **beside)
    except ValueError as error:
        assert any(f"`{name}`" in str(error) for name in wish)
    else:
        assert came.searches


def test_limits_of_a_climb():
    came = options(level=3, max_split_rounds=2, max_candidates_per_round=0)
    assert came.limits == Limits(2, 0)
    assert options(level=3, temporal_split_factor=3).factor == 3


def test_no_knob_is_passed_over_in_silence():
    """Limits of a climb beside a preset, which does not climb."""
    knobs = {"max_split_rounds": 1, "max_candidates_per_round": 1}
    for name, value in knobs.items():
        try:
            came = options(profile="memory", **{name: value})
        except ValueError as error:
            assert f"`{name}`" in str(error)
        else:
            assert came.climbs or any(name in note for note in came.notes)


def test_without_expensive_profiling_one_candidate_is_compiled():
    for beside in ({"profile": "exhaustive"}, {"level": 3}, {"budget": "1GiB"}):
        assert options(allow_expensive_profiling=False, **beside).compiles == 1
        assert options(allow_expensive_profiling=True, **beside).compiles >= 1


@pytest.mark.parametrize(
    "arguments, of, most",
    [
        ({"max_gc_wrapped_modules": 0}, 8, 0),
        ({"max_gc_wrapped_modules": 3}, 8, 3),
        ({"max_gc_wrapped_modules": 9}, 8, 8),
        ({"gc_target_budget_ratio": 0}, 8, 0),
        ({"gc_target_budget_ratio": 0.0}, 8, 0),
        ({"gc_target_budget_ratio": 1e-9}, 8, 1),
        ({"gc_target_budget_ratio": 0.3}, 8, 3),
        ({"gc_target_budget_ratio": 0.07}, 100, 7),
        ({"gc_target_budget_ratio": 0.55}, 100, 55),
        ({"gc_target_budget_ratio": 1}, 8, 8),
        ({"gc_target_budget_ratio": 3.5}, 8, 8),
        ({"gc_target_budget_ratio": 0.5, "max_gc_wrapped_modules": 3}, 8, 3),
        ({"gc_target_budget_ratio": 0.25, "max_gc_wrapped_modules": 3}, 8, 2),
        ({"gc_target_budget_ratio": 0.5, "max_gc_wrapped_modules": 0}, 8, 0),
        ({"gc_target_budget_ratio": 0.5}, 0, 0),
        ({"checkpoint_budget": "speed"}, 1, 1),
        ({"checkpoint_budget": "speed"}, 7, 4),
    ],
)
def test_how_many_targets_may_become_segments(arguments, of, most):
    assert options(**arguments).most_of(of) == most


def test_a_limit_at_level_1_needs_a_search():
    assert options(level=1, max_gc_wrapped_modules=2).searches
    assert options(level=1, gc_target_budget_ratio=0.5).searches
    assert not options(level=0, gc_target_budget_ratio=0.5).searches


# --- budgets --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget, size",
    [
        ("6GiB", 6 * GIB),
        ("300 MB", 300_000_000),
        ("300MiB", 300 * 2**20),
        (" 1.5 gib ", 3 * 2**29),
        ("2KB", 2000),
        ("2 kib", 2048),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        ("100", 100),
        ("100 B", 100),
        (".5 KiB", 512),
        ("5. KiB", 5120),
        (123456, 123456),
        (0.5, 4 * GIB),
        (1.0, 8 * GIB),
        (1, 1),
        (np.int64(4096), 4096),
        (np.float64(0.5), 4 * GIB),
    ],
)
def test_a_budget_in_every_form(budget, size):
    came = options(budget=budget).budget
    assert came == size and type(came) is int


@pytest.mark.parametrize(
    "budget",
    ["", "GiB", "6 GiBs", "six GiB", "-6GiB", "6,5GiB", "1e9", "1.2.3MB", "0", "0GiB"]
    + ["nan", "inf", "0.5", ".", "6 G iB", 0, -1, 0.0, -0.5, 1.5, math.nan, math.inf]
    + [True, False, [1], (1,), {"a": 1}, b"6GiB", 1j, object],
)
def test_a_budget_that_is_none_is_refused_by_name(budget):
    with pytest.raises(ValueError, match="`budget` is") as error:
        options(budget=budget)
    assert "6GiB" in str(error.value)


def test_a_share_needs_a_device_with_known_memory():
    with pytest.raises(ValueError, match="`budget` is 0.5.*`device`"):
        options(budget=0.5, device_bytes=None)
    assert options(budget=10**9, device_bytes=None).budget == 10**9


# --- wrong arguments ------------------------------------------------------------------

BAD = {
    "profile": ["fast", "", "Safe", 1, True, ["safe"], {}],
    "prefer": ["safe", "", 0, ["speed"]],
    "checkpoint_budget": ["safe", "", 0.5, ["speed"]],
    "level": [-1, 5, 1.0, "1", True, [1], math.nan],
    "max_gc_wrapped_modules": [-1, 1.0, "2", True, [2]],
    "gc_target_budget_ratio": [-0.1, math.nan, math.inf, "0.5", True, [0.5]],
    "max_split_rounds": [-1, 1.5, "2", False],
    "max_candidates_per_round": [-1, 1.5, "2", True],
    "temporal_split_factor": [1, 0, -2, 2.0, "2", True],
    "max_slowdown": [0.99, 0, -1, math.nan, math.inf, "1.2", True, [1.2]],
    "allow_expensive_profiling": ["no", 0, 1, 2.5, []],
}


@pytest.mark.parametrize(
    "name, value", [(name, value) for name, values in BAD.items() for value in values]
)
def test_a_wrong_argument_is_a_value_error_that_names_it(name, value):
    with pytest.raises(ValueError) as error:
        options(**{name: value})
    assert f"`{name}` is {value!r}" in str(error.value)
    assert "allowed" in str(error.value)


@pytest.mark.parametrize("budget", [0.0, 1.5, "0GiB", "7Gb i", "1.2.3", True])
def test_a_budget_is_refused_in_the_words_in_which_it_came(budget):
    with pytest.raises(ValueError) as error:
        options(budget=budget)
    assert str(error.value).startswith(f"`budget` is {budget!r}; allowed are")


def test_candidates_beside_no_expensive_profiling_are_one_and_a_note():
    knobs = {"max_candidates_per_round": 5, "allow_expensive_profiling": False}
    came = options(profile="memory", **knobs)
    assert came.compiles == 1
    assert "`allow_expensive_profiling` allows no more" in came.notes[0]


def test_an_unknown_name_is_shown_with_those_there_are():
    with pytest.raises(ValueError, match="safe.*balanced.*memory.*exhaustive"):
        options(profile="fast")
    with pytest.raises(ValueError, match="speed.*balanced.*memory"):
        options(prefer="fast")


@pytest.mark.parametrize("name", BAD)
def test_none_is_as_good_as_not_given(name):
    assert options(**{name: None}) == options()


def test_an_unknown_argument_is_a_type_error():
    with pytest.raises(TypeError, match="fast"):
        options(fast=True)


# --- without a batch ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, profile",
    [("profile", p) for p in ("balanced", "memory", "exhaustive")]
    + [("prefer", p) for p in ("balanced", "memory")],
)
def test_without_a_batch_a_preset_falls_back_and_says_so(name, profile):
    came = options(has_batch=False, **{name: profile})
    assert came.level == 1 and came.requested_level == 4
    assert "level 1" in came.notes[0] and "example batch" in came.notes[0]


@pytest.mark.parametrize("arguments", [{}, {"level": 0}, {"level": 1}])
@pytest.mark.parametrize("beside", [{}, {"profile": "safe"}, {"prefer": "speed"}])
def test_the_first_levels_need_no_batch(arguments, beside):
    came = options(has_batch=False, **arguments, **beside)
    assert came.notes == () and came.level == arguments.get("level", 1)


@pytest.mark.parametrize("level", [2, 3, 4])
@pytest.mark.parametrize("beside", [{}, {"profile": "memory"}])
def test_without_a_batch_a_level_is_an_error(level, beside):
    with pytest.raises(ValueError, match=f"`level` is {level}.*`dummy_input`"):
        options(has_batch=False, level=level, **beside)


@pytest.mark.parametrize("wish", [{"budget": "1GiB"}, {"max_slowdown": 1.2}])
@pytest.mark.parametrize("beside", [{}, {"level": 1}, {"profile": "memory"}])
def test_without_a_batch_a_wish_is_an_error(wish, beside):
    with pytest.raises(ValueError) as error:
        options(has_batch=False, **wish, **beside)
    ((name, value),) = wish.items()
    assert str(error.value).startswith(f"`{name}` is {value!r} and `dummy_input` is")
