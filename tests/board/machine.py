"""Plays MicroPython's `machine` for the test of `docs/board.md`: an output prints its changes."""


class Pin:
    """A pin that is printed as `led 0` or `led 1` whenever it changes."""

    OUT = 1

    def __init__(self, number: int, mode: int = 0) -> None:
        self._value = 0

    def value(self, value: bool) -> None:
        if self._value != int(value):
            self._value = int(value)
            print("led", self._value)


class ADC:
    """An analogue input that reads the same as ever."""

    def __init__(self, pin: Pin) -> None:
        assert isinstance(pin, Pin)

    def read_u16(self) -> int:
        return 20000
