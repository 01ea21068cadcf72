"""What Tab completes, without a daemon."""

from __future__ import annotations

import pytest

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import (
    resolve_path as resolve,
)
from treedbd.cli.shell.shell import (
    KEPT_S,
    MAX_KEPT,
    MAX_KEYS,
    KeyCache,
    complete,
    split_words,
)
from treedbd.tree.types import Path

KEYS = {
    ("users",): ["ada", "alan", "it's", "two words", 'say "hi"', "-Nx", "--raw", "a;b"],
    ("users", "ada"): ["age", "name"],
    (): ["log", "users"],
}


class FakeTree:
    """Keys of a tree, and which were asked for."""

    def __init__(self, keys: dict[Path, list[str]]) -> None:
        self.keys = keys
        self.reads: list[tuple[Path, str | None]] = []
        self.seconds = 0.0
        self.cache = KeyCache(self.read, lambda: self.seconds)

    def read(self, path: Path, after: str | None) -> list[str]:
        self.reads.append((path, after))
        if path not in self.keys:
            raise CommandFailed("It is forbidden.")
        return [key for key in self.keys[path] if after is None or key > after][:MAX_KEYS]


def completed(line: str, fake: FakeTree | None = None) -> list[str]:
    """Return the lines that Tab makes of a line."""
    tree = fake or FakeTree(KEYS)
    found = complete(line, lambda text: resolve(text, ("users",)), tree.cache)
    return [line[: each.start] + each.text for each in found]


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("c", ["cd", "cat", "cp"]),
        ("who", ["whoami"]),
        ("cat ad", ["cat ada"]),
        ("cat a", ["cat ada", "cat alan", "cat 'a;b'"]),
        ("cat ada/", ["cat ada/age", "cat ada/name"]),
        ("cd ../u", ["cd ../users"]),
        ("cd /l", ["cd /log"]),
        ("cat tw", ["cat 'two words'"]),
        ("cat 'tw", ["cat 'two words'"]),
        ('cat "two w', ["cat 'two words'"]),
        ("cat it", ["cat 'it'\"'\"'s'"]),
        ("cat say", ["cat 'say \"hi\"'"]),
        ("cat -N", ["cat -Nx"]),
        ("cat ./--", ["cat ./--raw"]),
        ("cat --sh", ["cat --shallow"]),
        ("ls; cat al", ["ls; cat alan"]),
        ("set ad", ["set ada"]),
        ("set ada a", []),
        ("cat --order-by a", []),
        ("cat --order-by age ad", ["cat --order-by age ada"]),
        ("help wa", ["help watch"]),
        ("use d", []),
        ("nothing a", []),
        ("cat \udcff/", []),
        ("cat a.b/", []),
    ],
)
def test_tab_completes_the_last_word(line: str, lines: list[str]) -> None:
    assert completed(line) == lines


def test_a_completion_is_a_word_that_names_the_key() -> None:
    for line in completed("cat "):
        (_, word) = split_words(line)
        assert resolve(word.text, ("users",))[1:] in [(key,) for key in KEYS["users",]]
    assert "cat ./--raw" in completed("cat ")


def test_keys_are_read_once_in_a_while() -> None:
    tree = FakeTree(KEYS)
    assert completed("c", tree)
    assert tree.reads == []
    assert completed("cat ad", tree) == completed("cat ad", tree)
    assert tree.reads == [(("users",), None)]
    tree.seconds += KEPT_S
    completed("cat ad", tree)
    assert len(tree.reads) == 2
    tree.cache.clear()
    completed("cat ad", tree)
    assert len(tree.reads) == 3


def test_what_cannot_be_read_has_no_completions_for_a_while() -> None:
    tree = FakeTree(KEYS)
    assert completed("cat secret/a", tree) == completed("cat secret/b", tree) == []
    assert len(tree.reads) == 1


def test_of_many_keys_those_with_the_prefix_are_read() -> None:
    tree = FakeTree({("users",): [f"k{number:05}" for number in range(5 * MAX_KEYS)]})
    assert len(completed("cat ", tree)) == MAX_KEYS
    assert completed("cat k0149", tree) == [f"cat k0149{digit}" for digit in range(10)]
    assert tree.reads == [(("users",), None), (("users",), "k0149")]


def test_a_bounded_number_of_places_is_kept() -> None:
    tree = FakeTree({(str(number),): ["x"] for number in range(2 * MAX_KEPT)})
    for number in range(MAX_KEPT + 1):
        tree.cache.find((str(number),), "")
    tree.cache.find(("0",), "")
    assert len(tree.reads) == MAX_KEPT + 2
