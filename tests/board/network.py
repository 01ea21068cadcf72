"""Plays MicroPython's `network` for the test of `docs/board.md`: the Wi-Fi is there at once."""

STA_IF = 0


class WLAN:
    """A connection to a Wi-Fi."""

    def __init__(self, interface: int) -> None:
        assert interface == STA_IF
        self._is_connected = False

    def active(self, is_active: bool) -> None:
        assert is_active

    def connect(self, name: str, password: str) -> None:
        assert name
        assert password
        self._is_connected = True

    def isconnected(self) -> bool:
        return self._is_connected
