"""Send requests that schemathesis derives from `/.openapi.json`, for as long as you want.

    .venv/bin/python bench/schemathesis_run.py [--seconds N] [--rate N] [--seed N]
        [--sender NAME]

A daemon in development mode, with rules that deny something, serves on this machine only. In turns
the requests are those of anonymous callers and of an admin, and in the dialect of Firebase those of
an admin and of a user. A response is wrong if its status is a server error or not documented, or
if its media type, headers or body are not those of the document. Each round prints its seed, how
many requests were generated and the statuses of all responses; of a failure what schemathesis says,
with a line for curl. The exit status is 1 if there was any, or a traceback in the daemon's log.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.daemon import Daemon
from tests.openapi_trial import SENDERS, Trial, put_rules

PHASES = "examples,coverage,fuzzing,stateful"
EXAMPLES = 1000
"""For each operation, if the time is not over before."""
MAX_TRACE_LINES = 60

_ANSWERED = re.compile(r"\[request#info\] [A-Z]+ \S+ ([0-9]{3}) ")


def main() -> int:
    """Run the rounds and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="of all rounds")
    parser.add_argument("--rate", type=int, default=50, help="requests a second, at most")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--sender", choices=SENDERS, help="only the round of this one")
    options = parser.parse_args()
    senders = [options.sender] if options.sender else [*SENDERS]
    each_s = max(1, options.seconds // len(senders))
    has_failed = False
    total = 0
    with tempfile.TemporaryDirectory() as name, Daemon(Path(name)) as daemon:
        for seed, sender in enumerate(senders, options.seed):
            put_rules(daemon)
            begin, logged = time.monotonic(), len(daemon.log)
            outcome = Trial(
                SENDERS[sender], seed, PHASES, EXAMPLES, seconds=each_s, rate=options.rate
            ).run(daemon.http, Path(name))
            total += outcome.cases
            statuses = Counter(_ANSWERED.findall(daemon.log[logged:]))
            shown = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            print(
                f"{sender} (seed {seed}): {outcome.cases} requests "
                f"in {time.monotonic() - begin:.0f} s; {shown}",
                flush=True,
            )
            if outcome.status != 0:
                has_failed = True
                print(outcome.output, flush=True)
        _, found, trace = daemon.log.partition("Traceback")
        if found:
            has_failed = True
            print(found + "\n".join(trace.splitlines()[:MAX_TRACE_LINES]))
    print(f"{total} requests, {'with failures' if has_failed else 'no failure'}")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
