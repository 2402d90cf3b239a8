"""Libraries that an extra of this package brings, imported where they are used."""

import importlib
from typing import Any


def optional(name: str, extra: str) -> Any:
    """The library `name`, or an error that says how to get it.

    Args:
        name: of the module.
        extra: of `pip install "snnjax[extra]"`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f'{error}. snnjax needs it here: pip install "snnjax[{extra}]"'
        ) from error
