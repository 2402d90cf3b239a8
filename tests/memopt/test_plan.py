"""Plans as data: there and back, and refused whole when cut, edited or foreign."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from snnjax.memopt import Plan, PlannedSegment

PLAN = Plan(
    level=1,
    segments=(
        PlannedSegment("features.layers.0", "NullSpikeCompressor", "unknown"),
        PlannedSegment("features.layers.1", "BitSpikeCompressor", "{0, 1}: lif/spike"),
    ),
    candidates=("features.layers.0", "features.layers.1", "head"),
    fingerprint=(("head", "Block"), ("head.kernel", "Param float32[2,3]")),
    device="h200",
    plain_bytes=3 * 2**20,
    planned_bytes=2**20,
    plain_residual_bytes=2**21,
    planned_residual_bytes=2**16,
    versions=(("jax", "0.10.2"),),
    notes=("not called on this batch, and left plain: [head] é",),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


def resigned(body: object, **head: object) -> str:
    """A file whose checksum is right, whatever its content."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    whole = json.loads(PLAN.to_json())
    return json.dumps(whole | {"sha256": checksum, "plan": body} | head)


def edited(**changes: object) -> dict:
    return json.loads(PLAN.to_json())["plan"] | changes


@pytest.mark.parametrize(
    "plan",
    [PLAN, Plan(level=0, segments=(), candidates=("",), fingerprint=())],
    ids=["full", "empty"],
)
def test_a_plan_comes_back_equal_from_its_file(plan, path):
    plan.save(path)
    assert Plan.load(path) == plan == Plan.from_json(plan.to_json())
    assert hash(Plan.load(str(path))) == hash(plan)
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"]


def test_a_plan_is_frozen_plain_data():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PLAN.level = 0
    assert json.loads(PLAN.to_json())["schema"] == 1


def test_a_file_cut_short_anywhere_is_refused(path):
    whole = PLAN.to_json().encode()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="plan.json.*make the plan again"):
            Plan.load(path)


def test_a_file_with_any_character_changed_is_refused_or_equal():
    """Layout may change; what the plan says may not."""
    whole = PLAN.to_json()
    for i in range(0, len(whole), 3):
        digit = "7" if whole[i] != "7" else "8"
        try:
            plan = Plan.from_json(whole[:i] + digit + whole[i + 1 :])
        except ValueError:
            continue
        assert plan == PLAN


@pytest.mark.parametrize(
    "old, new",
    [
        ('"level": 1', '"level": 2'),
        ("3145728", "3145729"),
        ("BitSpikeCompressor", "NullSpikeCompressor"),
        ("features.layers.1", "features.layers.2"),
        ('"h200"', "null"),
        ("float32[2,3]", "float32[2,4]"),
    ],
)
def test_an_edited_file_is_refused(old, new, path):
    PLAN.save(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match="changed after it was saved"):
        Plan.load(path)


@pytest.mark.parametrize("schema", [0, 2, "1", None, [1]])
def test_another_schema_is_refused_by_name(schema):
    with pytest.raises(ValueError, match="schema") as error:
        Plan.from_json(resigned(edited(), schema=schema))
    assert repr(schema) in str(error.value) and "1" in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["", " ", "{}", "[]", "[1]", "3", '"plan"', "null", "NaN", "{", "\x00", "plan"]
    + ['{"schema": 1}', '{"schema": 1, "sha256": "", "plan": {}}', "[[[[", "é"],
)
def test_other_files_are_refused(text, path):
    path.write_text(text)
    with pytest.raises(ValueError, match="make the plan again"):
        Plan.load(path)


def test_a_binary_file_is_refused(path):
    path.write_bytes(b"\xff\xfe\x00\x9d" * 9)
    with pytest.raises(ValueError, match="plan.json"):
        Plan.load(path)


@pytest.mark.parametrize(
    "body",
    [[], {}, None, "plan", 3, edited(more=1), edited(segments=3), edited(segments=[{}])]
    + [edited(versions=[1]), edited(fingerprint=[["a"]]), edited(segments=[3])]
    + [{k: v for k, v in edited().items() if k != "candidates"}],
)
def test_what_is_signed_but_no_plan_is_refused(body):
    with pytest.raises(ValueError, match="make the plan again"):
        Plan.from_json(resigned(body))


def test_a_missing_file_is_an_operating_system_error(path):
    with pytest.raises(FileNotFoundError):
        Plan.load(path)


def test_a_failing_write_leaves_the_old_file(path, monkeypatch):
    PLAN.save(path)
    old = path.read_bytes()

    def half(self, content):
        with open(self, "wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="no space"):
        dataclasses.replace(PLAN, level=0).save(path)
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert Plan.load(path) == PLAN
    assert list(path.parent.iterdir()) == [path]  # nothing half made


def test_saving_replaces_and_needs_a_folder(path, tmp_path):
    PLAN.save(path)
    other = dataclasses.replace(PLAN, device="t4")
    other.save(path)
    assert Plan.load(path) == other
    with pytest.raises(OSError):
        PLAN.save(tmp_path / "nowhere" / "plan.json")


def test_a_plan_prints_every_decision_and_figure():
    text = str(PLAN)
    for words in ("level 1", "features.layers.1", "BitSpikeCompressor", "{0, 1}"):
        assert words in text
    assert "3.0 MiB -> 1.0 MiB (3.00x less)" in text and "h200" in text
    assert "2.0 MiB -> 64.0 KiB (32.00x less)" in text
    # Square brackets are markup to rich; they are text to us.
    assert "left plain: [head]" in text
    row = next(line for line in text.splitlines() if "head" in line)
    assert "plain" in row and "GC" not in row


def test_a_plan_that_saves_nothing_says_so():
    assert "no less" in str(dataclasses.replace(PLAN, planned_bytes=2**30))
    assert "MiB" not in str(Plan(0, (), ("",), ()))
    assert "(the model)" in str(Plan(0, (), ("",), ()))


def test_markup_in_a_path_or_boundary_stays_text():
    odd = PlannedSegment("[red]layer[/red]", "BitSpikeCompressor", "{0, 1}: [bold]x")
    text = str(dataclasses.replace(PLAN, segments=(odd,)))
    assert "[red]layer[/red]" in text and "[bold]x" in text


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda plan: plan.without("head"), "`paths` are 'head'; allowed are"),
        (lambda plan: plan.without(), "`paths` are none"),
        (lambda plan: plan.with_chunks("haed", batch=2), "`paths` are 'haed'"),
        (lambda plan: plan.first(-1), "`count` is -1"),
        (lambda plan: plan.first(True), "`count` is True"),
    ],
)
def test_what_a_plan_does_not_have_cannot_be_changed(change, words):
    with pytest.raises(ValueError, match=words):
        change(PLAN)


def test_a_segment_that_is_cut_forgets_the_figures_of_the_old_choice():
    known = dataclasses.replace(
        PLAN.segments[0], currents=True, kept_bytes=8, seconds=1.0
    )
    plan = dataclasses.replace(PLAN, segments=(known,), slowdown=1.1, timed=True)
    cut = plan.with_chunks(known.path, batch=2)
    (segment,) = cut.segments
    assert (segment.currents, segment.kept_bytes, segment.seconds) == (
        False,
        None,
        None,
    )
    assert (cut.planned_bytes, cut.slowdown, cut.timed) == (None, None, False)


def test_the_table_shows_each_target_once_and_parts_in_its_place():
    one = PlannedSegment("a.first", "NullSpikeCompressor", "unknown")
    two = dataclasses.replace(one, path="a.second")
    last, far = (dataclasses.replace(one, path=p) for p in ("c", "d"))
    plan = Plan(2, (last, one, two, far), ("a", "ab", "c"), ())
    rows = [line.split()[:2] for line in str(plan).splitlines()[4:] if line.strip()]
    assert rows == [
        ["a.first", "GC"],
        ["a.second", "GC"],
        ["ab", "plain"],
        ["c", "GC"],
        ["d", "GC"],
    ]


def test_no_path_name_or_number_is_cut_short():
    path = "transformer.blocks.11.attention.projection.layers.0.convolution_and_norm"
    long = PlannedSegment(
        path,
        "IntegerSpikeCompressor",
        "0..1 in steps of 1/4: lif/spike through avg_pool",
        (("bits", 3), ("lo", 0), ("scale", 0.25)),
        cut="batch",
        chunks=8,
        forward_by="chunks",
        kept_bytes=12345 * 2**20,
        seconds=1.23,
    )
    text = str(Plan(4, (long,), (path,), ()))
    assert all(word in text for word in (path, long.compressor, "12345.0 MiB"))
    assert "1.23e+03 ms" in text and "…" not in text
