"""What a catalog does for the files of its databases."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from treedbd.database.active_rules import FollowedRules
from treedbd.database.file_user import FileUser
from treedbd.names import DatabaseName


@attrs.define(eq=False)
class ReadMoment:
    """The very moment in which one request may read without asking others.

    Attributes:
        of: whose databases it may read, None for no such moment. Whoever begins with another
            request ends it.

    """

    of: object | None = None


@attrs.frozen
class CatalogHooks:
    """What the catalog does for the files of its databases.

    Attributes:
        find: returns a database that has a file.
        check_may_create: raises `CannotCreateStore` if there may be no further database; in any
            thread.
        created: records that a database has a file from now on; in any thread.
        keep: keeps a database in memory from now on, because its file is open; in any thread.
        let_go: keeps it no more.
        rules: returns the rules of a project.
        moment: in which a request may read at once.

    """

    find: Callable[[DatabaseName], FileUser]
    check_may_create: Callable[[DatabaseName], None]
    created: Callable[[DatabaseName], None]
    keep: Callable[[DatabaseName], None]
    let_go: Callable[[DatabaseName], None]
    rules: Callable[[str], FollowedRules]
    moment: ReadMoment = attrs.field(factory=ReadMoment)
