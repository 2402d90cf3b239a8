"""For griffe, which reads the docstrings: our `Example:` is its `Examples:`."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Makes a doctest under `Example:` a section of code, not a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"(?m)^( *)Example:$", r"\1Examples:", text)
