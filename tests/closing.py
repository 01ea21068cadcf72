"""What ends with the context it is used in."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self


class Closing(abc.ABC):
    """Is closed when its context is left; one that begins there does so in `__enter__`."""

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """End it, with all that it holds."""
