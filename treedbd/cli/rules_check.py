"""`treedb rules check`: a rules document parsed as the daemon does, without one."""

from __future__ import annotations

from argparse import Namespace

from treedbd.cli.exit import DONE, CommandFailed, Status, print_line, warn
from treedbd.cli.options import read_settings
from treedbd.cli.output import excerpt
from treedbd.cli.rules import read_rules
from treedbd.limits import RulesLimits
from treedbd.rules.document import InvalidRules, with_hint
from treedbd.rules.ruleset import RuleSet, parse_rules


def check(arguments: Namespace) -> Status:
    """Check `arguments.file`; raise `CommandFailed` with the place of the first error."""
    limits = read_settings(arguments).rules
    file: str = arguments.file
    raw = read_rules(file)
    text = raw.decode("utf-8", "replace")
    rules = parse_rules_of(file, raw, limits)
    for (line, column), warning, _ in rules.warnings:
        warn(f"{file}:{line}:{column}: warning: {warning}", *excerpt(text, line, column))
    print_line(f"{file}: ok")
    return DONE


def parse_rules_of(
    file: str, raw: bytes, limits: RulesLimits, shown: bytes | None = None
) -> RuleSet:
    """Return the rules in a text; raise `CommandFailed`, which shows the line.

    The line is one of `shown`, if the text is only a part of that file, at the same position.
    """
    try:
        return parse_rules(raw, limits)
    except InvalidRules as error:
        where = excerpt((shown or raw).decode("utf-8", "replace"), error.line, error.column)
        raise CommandFailed(f"{file}:{with_hint(error)}", *where) from None
