"""`python -m treedbd`, where the script `treedb` is not on the path."""

from __future__ import annotations

import sys

from treedbd.cli.main import main

sys.exit(main())
