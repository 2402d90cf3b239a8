"""The pages of docs/: a place for every public name, code that runs, links that lead.

A block marked `python` runs as it stands; one marked `py` is only shown.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import types
import unicodedata
from pathlib import Path

import jax
import pytest

import snnjax

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {p.relative_to(DOCS).as_posix(): p.read_text() for p in DOCS.rglob("*.md")}
INTERNAL = {"kernels"}  # as its docstring says

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
ENTRY = re.compile(r"^::: (\S+)", re.M)
HEADING = re.compile(r"^#+ (.*)$", re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ID = re.compile(r"\s*\{ #(\S+) \}$")


def namespaces():
    names = (m.name for m in pkgutil.iter_modules(snnjax.__path__))
    return [n for n in names if not n.startswith("_") and n not in INTERNAL]


def public_names(namespace):
    """What a package re-exports; of a single file, what is made there."""
    module = importlib.import_module(f"snnjax.{namespace}")
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and (inspect.getmodule(value) is module or hasattr(module, "__path__"))
    }


@pytest.mark.parametrize("namespace", namespaces())
def test_every_public_name_has_an_entry(namespace):
    entries = ENTRY.findall(PAGES[f"api/{namespace}.md"])
    names = {f"snnjax.{namespace}.{n}" for n in public_names(namespace)}
    assert len(entries) == len(set(entries))
    assert set(entries) == names | {f"snnjax.{namespace}"}


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    assert sorted(re.findall(r"\S+\.md", nav)) == sorted(PAGES)


def blocks(language):
    """The code of each such block, behind as many empty lines as the page has above."""
    found = [(p, f) for p, text in PAGES.items() for f in FENCE.finditer(text)]
    lines = [PAGES[p][: f.start(2)].count("\n") for p, f in found]
    return [
        pytest.param("\n" * line + f[2], id=f"{page}:{line + 1}")
        for (page, f), line in zip(found, lines)
        if f[1] == language
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_code_runs(code, request):
    """With jax as a user has it; line numbers in a traceback are those of the page."""
    program = compile(code, request.node.callspec.id, "exec")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(program, {"__name__": "page"})


@pytest.mark.parametrize("code", blocks("py"))
def test_code_that_is_shown_can_be_parsed(code):
    ast.parse(code)


def test_a_block_says_what_it_is():
    kinds = {f[1] for text in PAGES.values() for f in FENCE.finditer(text)}
    assert kinds <= {"python", "py", "sh"}


def slug(heading):
    """The anchor of a heading, as Python-Markdown makes it, or the one it names."""
    named = ID.search(heading)
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    words = re.sub(r"[^\w\s-]", "", plain).strip().lower()
    return named[1] if named else re.sub(r"[-\s]+", "-", words)


def anchors(page):
    return {slug(h) for h in HEADING.findall(FENCE.sub("", PAGES[page]))}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in LINK.findall(FENCE.sub("", PAGES[page])):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (DOCS / page).parent / path if path else DOCS / page
        name = file.resolve().relative_to(DOCS).as_posix()
        assert name in PAGES, f"{page} links to {target}"
        assert not anchor or anchor in anchors(name), f"{page} links to {target}"


def messages():
    """Every text of the package, with … for what is filled in."""
    for file in sorted((ROOT / "snnjax").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if _is_text(v) else "…" for v in node.values)
                yield " ".join("".join(parts).split())
            elif _is_text(node):
                yield " ".join(node.value.split())


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


ERRORS = [ID.sub("", h) for h in re.findall(r"^### (.*)$", PAGES["errors.md"], re.M)]


def test_errors_are_those_of_the_package():
    text = "\n".join(messages())
    parts = {e: [re.escape(p.strip()) for p in e.split("…")] for e in ERRORS}
    patterns = {e: ".*?".join(found) for e, found in parts.items()}
    assert len(ERRORS) > 50
    assert not [e for e, pattern in patterns.items() if not re.search(pattern, text)]
