"""Fixtures of the tests of the planner."""

import pytest
from planner import without_compiling


@pytest.fixture
def cheap(monkeypatch):
    """Plans without a compiler; the models that were looked at."""
    return without_compiling(monkeypatch)
