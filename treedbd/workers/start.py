"""What a worker is started with: its settings, its number, and the descriptors that it inherits.

The parent writes it as JSON to memory that only the two of them share, and passes the descriptors
of everything under fixed numbers, which the worker finds open.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from treedbd.config.endpoints import LocalNetwork
from treedbd.config.settings import Settings, load_settings

CHANNEL: Final = 3
"""The connection to the parent."""
START: Final = 4
"""This record."""
BOARD: Final = 5
RECEIVER: Final = 6
"""The socket at which hints arrive."""
DIRECTORY_LOCK: Final = 7
"""The lock file of the data directory."""
SAMPLES: Final = 8
"""The memory in which workers show each other what they count for metrics."""
DIRECTORY: Final = 9
"""The data directory itself, which is locked as long as one worker has it open."""
FIRST_FREE: Final = 10
"""From here on: sockets at which other workers receive hints, then listening sockets."""


@attrs.frozen
class SettingsSource:
    """Where settings are read from: as `load_settings`, with what the file held at the start."""

    file: str | None
    flags: Mapping[str, object]
    folder: str
    content: bytes | None = None
    accept_loss: bool = False
    quiet: bool = False
    network: LocalNetwork | None = None

    def read(self) -> SettingsSource:
        """Return the same with what the file holds now, if it can be read."""
        if self.file is None:
            return self
        try:
            content = (pathlib.Path(self.folder) / self.file).read_bytes()
        except OSError:
            return self  # `load` says why
        return attrs.evolve(self, content=content)

    def load(self) -> Settings:
        """Return the settings; raise `ConfigError`."""
        file = None if self.file is None else pathlib.Path(self.file)
        settings = load_settings(
            file, self.flags, pathlib.Path(self.folder), self.content, self.network
        )
        return attrs.evolve(settings, accept_loss=self.accept_loss, quiet=self.quiet)


@attrs.frozen
class ListeningSocket:
    """A socket that the parent has opened, for the endpoint of the same place in the settings.

    Those of `ops_listen` follow those of `listen`.
    """

    descriptor: int
    family: int


@attrs.frozen
class WorkerStart:
    """What worker number `number` of `workers` is started with; `others` receive its hints.

    `parent` is the id of the process that has started it. One worker, at its first start,
    `checks_files` for damage.
    """

    parent: int
    number: int
    workers: int
    checks_files: bool
    secret: bytes
    source: SettingsSource
    others: tuple[int, ...]
    listening: tuple[ListeningSocket, ...]

    def write(self) -> int:
        """Return the descriptor of memory that holds this record."""
        json_able: dict[str, Any] = {
            "parent": self.parent,
            "number": self.number,
            "workers": self.workers,
            "checks_files": self.checks_files,
            "secret": self.secret.hex(),
            "source": {**attrs.asdict(self.source), "content": _encode(self.source.content)},
            "others": self.others,
            "listening": [(each.descriptor, each.family) for each in self.listening],
        }
        descriptor = os.memfd_create("treedb-worker", os.MFD_CLOEXEC)
        os.write(descriptor, json.dumps(json_able).encode())
        return descriptor


def read_start(descriptor: int = START) -> WorkerStart:
    """Return what the parent has written."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "rb") as file:
        content: dict[str, Any] = json.load(file)
    source = content["source"]
    network = source["network"]
    if network is not None:
        network = LocalNetwork(
            network["admin_token"], tuple(network["names"]), tuple(network["addresses"])
        )
    return WorkerStart(
        content["parent"],
        content["number"],
        content["workers"],
        content["checks_files"],
        bytes.fromhex(content["secret"]),
        SettingsSource(
            **{
                **source,
                "content": _decode(source["content"]),
                "network": network,
            }
        ),
        tuple(content["others"]),
        tuple(ListeningSocket(*each) for each in content["listening"]),
    )


def _encode(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _decode(content: str | None) -> bytes | None:
    return None if content is None else base64.b64decode(content)
