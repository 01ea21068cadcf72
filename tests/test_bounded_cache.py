"""A cache by texts of callers is bounded in bytes, too."""

from __future__ import annotations

from treedbd.caches import CACHED_BYTES, bounded_cache, empty_caches, short_cache


def test_a_result_is_computed_once() -> None:
    computed: list[str] = []

    @bounded_cache(2)
    def shout(text: str) -> str:
        computed.append(text)
        return text.upper()

    assert [shout("a"), shout("a"), shout("b")] == ["A", "A", "B"]
    assert computed == ["a", "b"]


def test_long_texts_do_not_stay() -> None:
    @bounded_cache(1000)
    def pair(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
        return headers[0][1]

    long = CACHED_BYTES // 10
    for number in range(100):
        pair(((b"Name", b"%0*d" % (long, number)),))
    assert pair.cache_info().currsize <= 6


def test_what_is_counted_is_memory_and_not_characters() -> None:
    @bounded_cache(1000)
    def split(text: str) -> tuple[str, ...]:
        return tuple(text.split("/"))

    wide = "\U0001f600" * (CACHED_BYTES // 50)  # each takes four bytes
    for number in range(20):
        split(f"{number}{wide}")
    assert split.cache_info().currsize <= 7
    for number in range(200):
        split("/".join([f"{number:04}"] * 200))  # each key takes 50 bytes beside its characters
    assert split.cache_info().currsize <= 100


def test_all_caches_are_emptied_together() -> None:
    shout, whisper = bounded_cache(9)(str.upper), short_cache(9)(str.lower)
    assert (shout("a"), whisper("A")) == ("A", "a")
    empty_caches()
    assert shout.cache_info().currsize == whisper.cache_info().currsize == 0
    assert (shout("a"), whisper("A")) == ("A", "a")
