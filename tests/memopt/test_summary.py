"""What `memory_optimization` says that it did."""

import re

import pytest
from models import Block, chain, loss
from planner import WAYS, X, split_all, stages

import snnjax as snn
from snnjax import memopt
from snnjax.memopt import memory_optimization

FIELDS = (
    "profile checkpoint_budget prefer device requested_level applied_level compress_x "
    "allow_expensive_profiling applied_steps skipped_steps notes gc_wrap_count "
    "manual_compressor_count bit_compressor_count null_compressor_count "
    "spatial_split_count temporal_split_count unwrap_count gc_container_count "
    "tcgc_container_count options gc_candidate_count gc_selected_count "
    "gc_selection_policy gc_selected_modules gc_selection_explanation recommendation "
    "peak_bytes residual_bytes"
).split()


def optimized(net, instance=(Block,), **settings):
    settings = {"loss": loss, "return_summary": True} | settings
    return memory_optimization(net, instance, (X,), **settings)


@pytest.mark.parametrize("way", ["level 3", "prefer balanced", "budget", "none"])
def test_the_summary_has_every_field_and_agrees_with_the_model(way, cheap):
    model, summary = optimized(chain(n=3), **WAYS[way])
    for field in FIELDS:
        value = getattr(summary, field)
        optional = field in ("profile", "checkpoint_budget", "prefer")
        assert value is not None or optional, field
    made = [m for m in model.layers if isinstance(m, memopt.GCContainer)]
    assert summary.gc_container_count == len(made) == summary.gc_selected_count
    allowed = 0 if way == "none" else 3
    assert summary.unwrap_count == allowed - len(made)
    cut = [m for m in made if isinstance(m, memopt.TCGCContainer)]
    assert summary.tcgc_container_count == len(cut)
    batch = [m for m in made if isinstance(m, memopt.BCGCContainer)]
    assert summary.bcgc_container_count == len(batch)
    steps = (*summary.applied_steps, *summary.skipped_steps)
    assert len(steps) == len(set(steps)) == max(summary.plan.level, 1)
    assert summary.applied_level <= summary.requested_level
    assert "took" in str(summary)


def test_the_summary_has_the_options_as_they_were_resolved(cheap):
    _, summary = optimized(chain(n=3), budget="9 KB")
    assert summary.options.budget == 9000
    _, summary = optimized(chain(n=3), prefer="balanced")
    assert (summary.prefer, summary.profile) == ("balanced", "balanced")
    assert summary.checkpoint_budget == "balanced" and summary.requested_level == 4
    assert summary.gc_selection_policy in ("budget_covers_all", "most_saved_per_second")
    _, summary = optimized(chain(n=3), level=4, max_gc_wrapped_modules=0)
    assert summary.gc_selection_policy == "explicit_zero_budget"
    assert summary.applied_level == 0 and not summary.applied_steps


SIZE = r"([\d.]+) ([KM])iB"
LINE = rf"net's layers\.\d: (successfully|not) %s \({SIZE} -> {SIZE}.*\)"


def test_verbose_prints_the_lines_of_the_search(cheap, capsys):
    optimized(chain(n=3), level=4, verbose=True)
    lines = capsys.readouterr().out.splitlines()
    chunks = [ln for ln in lines if re.fullmatch(LINE % "cut into chunks", ln)]
    assert len(chunks) > 1
    assert any(re.fullmatch(LINE % "made plain", ln) for ln in lines)
    for line in lines:
        found = re.match(rf"net's .*successfully .* \({SIZE} -> {SIZE}", line)
        if found:
            before, was, after, now = found.groups()
            assert (was, float(before)) >= (now, float(after))


def test_verbose_splits_are_told_in_the_words_of_the_tutorial(cheap, capsys):
    optimized(stages(), snn.layer.Sequential, level=2, verbose=True)
    out = capsys.readouterr().out
    assert re.search(r"net's [abc]: (successfully|not) split \(.* -> .*\)", out)


def test_the_summary_counts_splits(cheap, monkeypatch):
    split_all(monkeypatch)
    _, summary = optimized(stages(), snn.layer.Sequential, level=2)
    assert summary.spatial_split_count == 3 and summary.gc_container_count == 6
    assert summary.gc_selected_count == 3 and summary.applied_level == 2
    assert summary.gc_selected_modules == ("a", "b", "c")


def test_what_a_limit_left_out_was_not_unwrapped(cheap):
    _, summary = optimized(chain(n=3), profile="memory", max_gc_wrapped_modules=1)
    assert summary.gc_selected_count == 1 and summary.unwrap_count == 0
    assert "level4_greedy_unwrap" in summary.skipped_steps
    assert "1 of 3 modules is now a GC segment" in str(summary)
    _, summary = optimized(chain(n=3), max_slowdown=1.15)
    assert 0 < summary.gc_selected_count < 3
    assert summary.unwrap_count == 3 - summary.gc_selected_count
    assert "level4_greedy_unwrap" in summary.applied_steps
