"""MicroPython for Linux, under which programs for boards are tested."""

from __future__ import annotations

import pathlib
import shutil
from typing import Final

STAND_INS: Final = pathlib.Path(__file__).parent / "board"
HEAP: Final = "128k"
"""That of a small board."""


def find_micropython() -> str:
    """Return MicroPython for Linux, which `tests/board/install` provides."""
    unpacked = STAND_INS / ".micropython/micropython"
    found = str(unpacked) if unpacked.exists() else shutil.which("micropython")
    assert found is not None, "MicroPython is missing: run tests/board/install."
    return found
