"""The settings of the real-time protocol, `[realtime]`."""

from __future__ import annotations

import attrs

from treedbd.config.values import boolean, key


@attrs.frozen
class RealtimeSettings:
    """`[realtime]`: whether the WebSocket of the SDKs of Firebase is served at `/.ws`."""

    enabled: bool = key(True, boolean)
