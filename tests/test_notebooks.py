"""The notebooks: committed as a run left them, small, readable; slow, they run."""

import importlib
import re
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
CELLS, BYTES = 40, 150_000  # fewer than so many

# Of one machine, of one run, or of no use to a reader: paths, addresses, tracebacks,
# terminal colors, what libraries log.
PRIVATE = re.compile(
    r"/(home|root|Users|tmp|work|usr|var)/|site-packages|\bat 0x[0-9a-f]+|Traceback"
    r"|\x1b\[|[A-Z]\w*Warning\b|^[IWEF]\d{4} |absl::"
)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def texts(cell):
    """What a cell shows, but for pictures."""
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        elif output.output_type == "error":
            yield "Traceback"
        else:
            yield from (v for k, v in output.data.items() if not k.startswith("image/"))


def shows_something(cell):
    return re.search(r"^(print\(|plt\.show\(\))", cell.source, re.M) is not None


def test_there_are_five():
    assert [path.name[:2] for path in NOTEBOOKS] == ["1_", "2_", "3_", "4_", "5_"]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return request.param


def test_it_is_one_short_story(notebook):
    book = read(notebook)
    nbformat.validate(book)
    assert len(book.cells) < CELLS
    assert notebook.stat().st_size < BYTES
    first = book.cells[0]
    assert first.cell_type == "markdown" and first.source.startswith("# ")


def test_it_was_executed_from_top_to_bottom(notebook):
    cells = code_cells(notebook)
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    assert all(cell.outputs for cell in cells if shows_something(cell))
    assert any(shows_something(cell) for cell in cells)


def test_outputs_hold_nothing_private_and_no_noise(notebook):
    for cell in code_cells(notebook):
        streams = [o.name for o in cell.outputs if o.output_type == "stream"]
        assert "stderr" not in streams, cell.source
        for text in texts(cell):
            found = PRIVATE.search(text)
            assert found is None, f"{found[0]!r} below\n{cell.source}"


def test_nothing_volatile_is_kept_beside_the_outputs(notebook):
    book = read(notebook)
    assert set(book.metadata) == {"kernelspec", "language_info"}
    assert set(book.metadata.language_info) == {"name"}
    assert not any(cell.metadata for cell in book.cells)
    assert [cell.id for cell in book.cells] == [
        f"cell-{number}" for number in range(1, len(book.cells) + 1)
    ]


def test_links_lead_to_files(notebook):
    for cell in read(notebook).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", cell.source):
                assert (FOLDER / target).is_file(), target


@pytest.fixture
def execute(monkeypatch):
    """The module of `notebooks/execute.py`."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("execute")


def written(folder, *sources):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path = folder / "n.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.mark.slow
def test_a_run_is_by_this_python_and_leaves_the_file_as_it_is(execute, tmp_path):
    path = written(tmp_path, "import sys\nprint(sys.executable)", "1 + 1")
    before = path.read_bytes()
    first, second = execute.executed(path).cells
    assert first.outputs[0].text.strip() == sys.executable
    assert (first.execution_count, second.execution_count) == (1, 2)
    assert second.outputs[0].data["text/plain"] == "2"
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_run_that_fails_or_litters_is_an_error(execute, tmp_path):
    from nbclient.exceptions import CellExecutionError

    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute.executed(written(tmp_path, "1 / 0"))
    litter = "from pathlib import Path\nPath('left.txt').touch()"
    with pytest.raises(RuntimeError, match=r"leaves left\.txt behind"):
        execute.executed(written(tmp_path, litter))


@pytest.mark.slow
def test_it_runs(notebook, execute, request):
    """Cells assert what they claim; those that show something today, did so before."""
    if notebook.name.startswith("3_"):
        request.getfixturevalue("cuda_wheels")
    before = [bool(cell.outputs) for cell in code_cells(notebook)]
    cells = [c for c in execute.executed(notebook).cells if c.cell_type == "code"]
    assert [bool(cell.outputs) for cell in cells] == before
    for cell in cells:
        assert not any(PRIVATE.search(text) for text in texts(cell)), cell.source
