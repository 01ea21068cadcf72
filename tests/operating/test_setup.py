from __future__ import annotations

import pathlib
from typing import Any

import pytest

from treedbd.operating.log import CannotLog, LogTarget, LogWriter, find_target


@pytest.mark.parametrize(
    ("options", "in_foreground", "target"),
    [
        ({}, True, LogTarget()),
        ({"logfile": "-"}, True, LogTarget()),
        ({"logfile": "a.log"}, True, LogTarget("a.log")),
        ({"logfile": None}, False, LogTarget("twistd.log")),
        ({"logfile": "a.log"}, False, LogTarget("a.log")),
        ({"logfile": "-"}, False, None),
        ({"logger": LogWriter}, True, None),
        ({"syslog": True}, False, None),
    ],
)
def test_the_options_of_twistd_say_where_to_log(
    options: dict[str, Any], in_foreground: bool, target: LogTarget | None
) -> None:
    assert find_target(options, in_foreground=in_foreground) == target


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CannotLog, match=r"The log file \S+ cannot be written \(.+\): choose") as it:
        LogTarget(str(tmp_path / "no/log")).open("json")
    assert "\n" not in str(it.value)
