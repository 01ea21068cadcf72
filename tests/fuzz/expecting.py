"""The result of a call, or the one kind of error that its documentation allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def outcome(work: Callable[[], T], *errors: type[E]) -> T | E:
    """Return what `work` returns, or the error it raises if that is one of `errors`.

    The text of the error is checked: it says something, and is not a traceback.
    """
    try:
        return work()
    except errors as error:
        text = str(error)
        assert text, "An error says nothing."
        assert "Traceback" not in text, "An error shows a traceback."
        return error
