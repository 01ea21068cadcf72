"""The hashes of values that clients listen to, kept for the next who asks with a hash.

After a restart all clients come back at once, each with the hash of what it holds. The hash of a
value is computed from its JSON once, and kept by what was rendered and the number of the state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from treedbd.limits import KIB, MIB
from treedbd.store.rows import parse_stored
from treedbd.tree.hashes import data_hash
from treedbd.tree.value import from_export
from treedbd.web.reading import Rendering

HASHED_BYTES: Final = 64 * KIB
"""The JSON of a longer value is not hashed: sending it costs less."""
MAX_KNOWN: Final = 4096
MAX_KNOWN_BYTES: Final = 4 * MIB
"""Hashes that are kept, and bytes of what they are kept by, which has the path of a client."""
_ENTRY_BYTES: Final = 500


class KnownHashes:
    """The hashes that were computed last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[str, int]] = OrderedDict()
        self._bytes = 0

    def is_hash_of(
        self, claimed: str, rendered: bytes | Rendering, key: Hashable, sequence: int
    ) -> bool:
        """Return whether what was rendered has the hash that a client claims, if that is cheap.

        `key` and `sequence` say what was rendered, from which state.
        """
        if not claimed:
            return False
        size = len(rendered) if isinstance(rendered, bytes) else rendered.size
        if size > HASHED_BYTES:
            return False
        place = (key, sequence)
        known = self._known.get(place)
        if known is None:
            body = rendered if isinstance(rendered, bytes) else rendered.whole()
            known = data_hash(from_export(parse_stored(body))), len(repr(place)) + _ENTRY_BYTES
            self._keep(place, known)
        return known[0] == claimed

    def _keep(self, place: Hashable, known: tuple[str, int]) -> None:
        self._known[place] = known
        self._bytes += known[1]
        while len(self._known) > MAX_KNOWN or self._bytes > MAX_KNOWN_BYTES:
            _, (_, size) = self._known.popitem(last=False)
            self._bytes -= size
