"""Downloading a document of any size: one response, and pages of children after a break.

One response shows one moment. When it breaks, the children that are complete are kept, and the rest
is requested in pages, in the innermost container that was open first, then in those above; each
page shows its own moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import attrs

from treedbd.cli.client import receive
from treedbd.cli.loading.files import Format
from treedbd.cli.loading.joiner import Joiner
from treedbd.cli.loading.part_file import PartFile
from treedbd.cli.loading.retries import LONGEST, Retries
from treedbd.cli.options import SUFFIX, NoResponse, Url
from treedbd.cli.progress import ProgressReport
from treedbd.limits import MIB
from treedbd.tree.fragments import Splitter
from treedbd.tree.types import InvalidData, Path
from treedbd.tree.value import compact

_EXPORT: Final = {"format": "export"}
_BY_KEY: Final = {"orderBy": '"$key"'}
_PAGE_BYTES: Final = 4 * MIB
_FIRST_PAGE: Final = 1000
_LARGEST_PAGE: Final = 20_000
"""Children of a page: as many as have about `_PAGE_BYTES`."""


class Download:
    """Downloads what a URL names into a file."""

    def __init__(
        self, retries: Retries, url: Url, file: PartFile, progress: ProgressReport
    ) -> None:
        """Write to `file`, which is neither begun nor finished here."""
        self._retries = retries
        self._url = url.to_json()
        self._file = file
        self._progress = progress
        self._received = 0
        self._page = _FIRST_PAGE
        self._failures = retries.failures()

    async def run_plain(self) -> None:
        """Download the value without priorities; after a break from its beginning."""
        while True:
            try:
                await self._copy({})
                return
            except NoResponse as error:
                if not self._file.can_resume and self._received:
                    raise
                await self._pause(error, 0)
                self._file.close()
                self._file.begin()

    async def run(self, form: Format, joiner: Joiner) -> None:
        """Download the value with priorities; `joiner` has what was downloaded before."""
        is_copied = form == "json" and self._file.can_resume
        while True:
            received = self._received
            try:
                if joiner.has_begun:
                    await self._go_on(joiner)
                elif is_copied:
                    await self._copy(_EXPORT)
                    return
                else:
                    await self._join(joiner, self._url.with_parameters(_EXPORT), ())
                joiner.finish()
                return
            except NoResponse as error:
                await self._pause(error, received)
                if is_copied and not joiner.has_begun:
                    joiner = self._file.recover(form)

    async def _pause(self, error: NoResponse, received: int) -> None:
        if self._received > received:
            self._failures = self._retries.failures()
        await self._retries.pause(self._failures, str(error))

    async def _copy(self, parameters: Mapping[str, str]) -> None:
        """Write a response as it is."""
        url = self._url.with_parameters({"timeout": LONGEST, **parameters})
        response = await self._retries.request("GET", url)

        def consume(data: bytes) -> None:
            self._file.write(data)
            self._count(data)

        await receive(response, url, consume)

    async def _join(self, joiner: Joiner, url: Url, below: Path) -> None:
        """Add what a response has at `below`."""
        url = url.with_parameters({"timeout": LONGEST})
        response = await self._retries.request("GET", url)
        splitter = Splitter()

        def consume(data: bytes) -> None:
            self._count(data)
            for fragment in splitter.feed(data):
                joiner.add(fragment, below)

        try:
            await receive(response, url, consume)
            for fragment in splitter.finish():
                joiner.add(fragment, below)
        except InvalidData as error:
            raise NoResponse(f"The response of {url.origin} is not whole. {error}") from None

    async def _go_on(self, joiner: Joiner) -> None:
        """Add what is missing in the containers that are open, the innermost first."""
        path = joiner.path
        for depth in reversed(range(len(path) + 1)):
            await self._add_pages(joiner, path[:depth])

    async def _add_pages(self, joiner: Joiner, container: Path) -> None:
        url = self._below(container).with_parameters(_EXPORT | _BY_KEY)
        after: str | None = ""
        while True:
            joiner.close_below(container)
            last = joiner.last_keys()[-1]
            if last == after:
                return
            after, before = last, self._received
            parameters = {"limitToFirst": str(self._page)}
            if after is not None:
                parameters["startAfter"] = compact(after).decode()
            await self._join(joiner, url.with_parameters(parameters), container)
            size = max(self._received - before, 1)
            self._page = max(1, min(self._page * _PAGE_BYTES // size, _LARGEST_PAGE))

    def _below(self, path: Path) -> Url:
        names = [quote(key, safe="") for key in path]
        root = self._url.path.removesuffix(SUFFIX).rstrip("/")
        return attrs.evolve(self._url, path="/".join([root, *names])).to_json()

    def _count(self, data: bytes) -> None:
        self._received += len(data)
        self._progress.advance_to(self._received)
