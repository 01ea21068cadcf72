"""Caches by what callers send: bounded, and emptied together when a load is over.

Results of functions are cached by decorators; a cache of another kind is added by `empty_together`.

What they hold is little. But it is among what the load had allocated, and the allocator of the
interpreter gives back only MiB in which nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from sys import getsizeof
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakSet

from treedbd.limits import MIB

P = ParamSpec("P")
T = TypeVar("T")

CACHED_BYTES: Final = MIB
"""After so many bytes of arguments and results a cache is emptied."""
_ENTRY_BYTES: Final = 150
"""What an entry takes beside these."""

_caches: Final[WeakSet[Any]] = WeakSet()


def empty_together(cache: Any) -> None:
    """Call `cache_clear` of a cache whenever the others are emptied."""
    _caches.add(cache)


def short_cache(entries: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """Return a decorator that caches the last `entries` results, as `lru_cache`.

    It is for functions of something short, and for what can be found again at any time.
    """

    def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        cached = lru_cache(entries)(function)
        _caches.add(cached)
        return cached

    return decorate


def bounded_cache(entries: int) -> Callable[[Callable[P, T]], _lru_cache_wrapper[T]]:
    """Return a decorator that caches as `short_cache`, but at most `CACHED_BYTES`.

    It is for functions from text, or tuples of texts, to the same. A hit costs nothing more; what
    is computed is counted, and the cache emptied when that is too much.
    """

    def decorate(function: Callable[P, T]) -> _lru_cache_wrapper[T]:
        counted = 0

        def compute(*args: P.args, **keywords: P.kwargs) -> T:
            nonlocal counted
            result = function(*args, **keywords)
            counted += _ENTRY_BYTES + _size_of(args) + _size_of(result)
            if counted > CACHED_BYTES:
                cached.cache_clear()
                counted = 0
            return result

        cached = short_cache(entries)(compute)
        return cached

    return decorate


def empty_caches() -> None:
    """Forget everything that is cached by this module."""
    for each in list(_caches):
        each.cache_clear()


def _size_of(value: object) -> int:
    """Return how many bytes of memory texts take: a string has up to four for each character."""
    if isinstance(value, tuple):
        return getsizeof(value) + sum(map(_size_of, value))
    return getsizeof(value) if isinstance(value, str | bytes) else 0
