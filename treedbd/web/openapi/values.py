"""What all parts of the OpenAPI document are made of: JSON objects, and references between them."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import attrs

from treedbd.limits import Limits

JsonObject: TypeAlias = dict[str, Any]

_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")


def ref(kind: str, name: str) -> JsonObject:
    """Return a reference to a component; `kind` is that of OpenAPI, such as `schemas`."""
    return {"$ref": f"#/components/{kind}/{name}"}


def fill_in(text: str, limits: Limits) -> str:
    """Return a text with the values of the limits that it names, such as `{write_body_bytes}`."""
    values = attrs.asdict(limits)
    return _PLACEHOLDER.sub(lambda found: f"{values[found[1]]:,}", text)
