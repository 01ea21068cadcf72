"""A fragment of a JSON document (`fragments`): JSON that can be parsed by itself."""

from __future__ import annotations

from typing import NamedTuple

from treedbd.tree.long_strings import parse_text
from treedbd.tree.printing import parse
from treedbd.tree.types import Json, Path


class Fragment(NamedTuple):
    """Some of the members of the container at `path`, or a whole document that is short.

    `path` leads from the top of the document. `parts`, joined, are JSON: an object with some
    members, in the order of the document, or an array with some items, of which `first` is the
    index of the first one; a whole document may also be a leaf. If there are several parts, all but
    the first and the last one are the text of a long string, the only thing in the fragment.
    `begun` is how many of the containers from the top down to this one had fragments before: if any
    had not, what is at `path[:begun]` is an earlier member of the same name, and does not count.
    """

    path: Path
    parts: tuple[bytes, ...]
    first: int
    begun: int

    @property
    def json(self) -> bytes:
        """The JSON."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    @property
    def long_parts(self) -> tuple[bytes, ...]:
        """The text of the long string, without its quotation marks; empty if there is none."""
        return self.parts[1:-1]

    def parse(self) -> Json:
        """Parse the JSON, with pauses if it is long; raise `InvalidData`."""
        if len(self.parts) == 1:
            return parse(self.parts[0])
        around = parse(self.parts[0] + self.parts[-1])  # with an empty string
        text = parse_text(self.long_parts)
        if isinstance(around, dict):
            return dict.fromkeys(around, text)
        return [text] if isinstance(around, list) else text
