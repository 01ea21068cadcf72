"""Values in normal form, as tests write them."""

from __future__ import annotations

from typing import Any

from treedbd.tree.edit import normalise
from treedbd.tree.types import Value


def normal_form(body: Any) -> Value:
    """Return the normal form of JSON without server values."""
    value: Any = normalise(body).value
    return value  # type: ignore[no-any-return]  # no placeholders are in it
