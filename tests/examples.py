"""How many examples the tests of properties draw: some of them in the gate, all in long runs.

Examples differ from run to run, so what one run of the gate does not draw a later one does. The
environment variable `TREEDB_TEST_EXAMPLES` is the share in per cent, for a long run 100 or more.
"""

from __future__ import annotations

import os
from typing import Final

SHARE: Final = int(os.environ.get("TREEDB_TEST_EXAMPLES", "35"))
FEWEST: Final = 20


def examples(most: int) -> int:
    """Return how many of `most` examples are drawn in this run."""
    return max(min(most, FEWEST), most * SHARE // 100)
