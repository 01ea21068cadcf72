"""Presence over the real-time protocol: what a client has left is written however it ends.

    .venv/bin/python bench/presence.py [--rounds N] [--workers N]

In each round a client writes that it is online, with a disconnect write that it is not. Then its
socket is closed, or its process is killed, or its network is cut, or it comes back with the name of
its former session, or the daemon is stopped or killed, and started again. `online` must be right
soon, after a restart in the first answer, and what was left must have been written once. The median
and the longest time are printed; if the network is cut, keep-alives of one second find it.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile

from tests.presence_rounds import ENDS, PresenceRounds


def main() -> None:
    """Run the rounds and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--workers", default="1")
    wanted = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        PresenceRounds(pathlib.Path(folder), "--workers", wanted.workers) as rounds,
    ):
        for end in ENDS:
            took = [rounds.run(end) for _ in range(wanted.rounds)]
            print(
                f"{end:8} {len(took)} rounds, online right in each: median "
                f"{statistics.median(took):.3f} s, longest {max(took):.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
