"""Libraries that only the extra `data` brings, imported where they are used."""

import importlib
from typing import Any


def optional(name: str) -> Any:
    """The library `name`, or an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f'{error}. snnjax.data needs it here: pip install "snnjax[data]"'
        ) from error
