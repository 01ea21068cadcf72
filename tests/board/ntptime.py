"""Plays MicroPython's `ntptime` for the test of `docs/board.md`: the clock is right already."""


def settime() -> None:
    raise AssertionError("The clock is right.")
