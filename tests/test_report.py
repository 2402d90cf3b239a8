"""Every measured figure in README and docs is the one in `benchmarks/results`."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import report  # noqa: E402


@pytest.mark.parametrize("file", report.files(), ids=lambda f: f.name)
def test_the_tables_are_those_of_the_results(file):
    text = file.read_text()
    assert report.rendered(text) == text, "run python benchmarks/report.py"


def test_a_changed_figure_is_found():
    text = (ROOT / "README.md").read_text()
    figure = re.search(r"\| (\d{3}) \|", text)
    assert figure, "README has a table with a figure of three digits"
    changed = text.replace(figure[0], "| 999 |", 1)
    assert report.rendered(changed) == text


@pytest.mark.parametrize("name", report.TABLES)
def test_every_table_is_shown_somewhere(name):
    marker = f"<!-- table: {name} -->"
    assert any(marker in file.read_text() for file in report.files())


def test_no_measured_size_stands_outside_a_table():
    """Sizes and times in README's prose would not change with the results."""
    text = report.BLOCK.sub("", (ROOT / "README.md").read_text())
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = re.findall(r"(?<![`\w])\d+(?:\.\d+)? ?(?:MiB|MB|GiB|s|ms|x)\b(?!`)", prose)
    assert found == []
