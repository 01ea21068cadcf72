"""Tells `twistd` that there is a `treedb` to start."""

from twisted.application.service import ServiceMaker

treedb = ServiceMaker(
    "treedb",
    "treedbd.tap",
    "A JSON tree database over HTTPS.",
    "treedb",
)
