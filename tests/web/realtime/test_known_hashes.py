"""The hashes of values that clients listen to, kept within bounds."""

from __future__ import annotations

from treedbd.tree.hashes import data_hash
from treedbd.web.realtime.listens import (
    MAX_KNOWN_BYTES,
    KnownHashes,
)

HASH = data_hash({"a": 1})
BODY = b'{"a":1}'


def test_a_claim_is_compared_with_the_hash_of_what_was_rendered() -> None:
    hashes = KnownHashes()
    for _ in range(2):
        assert hashes.is_hash_of(HASH, BODY, "place", 1)
        assert not hashes.is_hash_of("other", BODY, "place", 1)


def test_what_clients_name_does_not_stay_beyond_a_bound_of_bytes() -> None:
    hashes = KnownHashes()
    for number in range(3 * MAX_KNOWN_BYTES // 20_000):
        hashes.is_hash_of("claim", BODY, ("path", f"{number:020000}"), 1)
    kept = sum(len(repr(place)) for place in hashes._known)
    assert kept <= MAX_KNOWN_BYTES
    assert kept > MAX_KNOWN_BYTES // 2
