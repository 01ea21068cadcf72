"""A base class for resources that are closed at the end of a `with` block."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self


class Closing(abc.ABC):
    """A resource that is closed when its `with` block ends."""

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close this object."""
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Release what this object holds."""
