"""How the rules of each project are made: from where, checked by which limits, shared with whom."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from treedbd.database.active_rules import ActiveRules
from treedbd.database.requests import ProjectSpec
from treedbd.database.rules_storage import RulesStorage
from treedbd.database.rules_work import RulesWork
from treedbd.database.runtime import OtherProcesses, RunInThread
from treedbd.limits import RulesLimits
from treedbd.rules.ruleset import DENY, RuleSet


@attrs.frozen
class RulesMaker:
    """Makes the rules of the projects of a catalog.

    `first` are in force until others are PUT, which are stored where `find_storage` says.
    """

    first: RuleSet
    limits: RulesLimits
    work: RulesWork
    find_storage: Callable[[str], RulesStorage | None]
    run_in_thread: RunInThread
    others: OtherProcesses | None

    def make(self, project: ProjectSpec, changed: Callable[[], None]) -> ActiveRules:
        """Return the rules of a project; `changed` is called when others are in force."""
        return ActiveRules(
            DENY if project.is_file_managed else self.first,
            is_file_managed=project.is_file_managed,
            work=self.work,
            limits=self.limits,
            storage=self.find_storage(project.name),
            run_in_thread=self.run_in_thread,
            changed=changed,
            exchange=None if self.others is None else self.others.rules_of(project.name),
        )
