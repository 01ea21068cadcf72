"""Pull producers, which give a piece whenever they are asked, made to run by themselves."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IPullProducer, IPushProducer, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

_log = Logger()


@implementer(IPushProducer)
class PulledProducer:
    """A pull producer that is asked again in every turn of the reactor while the peer reads."""

    def __init__(
        self, producer: IPullProducer, clock: IReactorTime, abort: Callable[[], None]
    ) -> None:
        """Pull from `producer` from the next turn on; `abort` ends a reply that broke."""
        self._producer = producer
        self._clock = clock
        self._abort = abort
        self._next: IDelayedCall | None = None
        self.resumeProducing()

    def resumeProducing(self) -> None:
        """Ask again."""
        if self._next is None:
            self._next = self._clock.callLater(0, self._pull)

    def pauseProducing(self) -> None:
        """Ask no more for now."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def stopProducing(self) -> None:
        """Tell the producer that nobody reads it any more."""
        self.pauseProducing()
        self._producer.stopProducing()

    def _pull(self) -> None:
        # Scheduled first, so that the producer may pause or unregister itself meanwhile.
        self._next = self._clock.callLater(0, self._pull)
        try:
            self._producer.resumeProducing()
        except Exception:
            _log.failure("A producer broke in the middle of a reply.")
            self.pauseProducing()
            self._abort()
