"""treedb: a self-hosted JSON tree database, one Twisted daemon over HTTPS."""
