"""`treedb tree`: a path and what is below it, down to a depth, with sizes and counts."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

import attrs
import orjson

from treedbd.cli.children import PAGE_CHILDREN, ListedChild, read_children, read_itself
from treedbd.cli.exit import CommandFailed, print_line, write_out
from treedbd.cli.http_client import HttpClient, run_once
from treedbd.cli.options import (
    SUFFIX,
    Url,
    add_network_options,
    add_optional_address,
    add_settings_options,
    number_from,
)
from treedbd.cli.output import Palette

MAX_DEPTH: Final = 32
"""The keys of the longest path."""
_COUNTED: Final = 100 * PAGE_CHILDREN
"""How many children of a node are counted."""
_SHOWN_CHARACTERS: Final = 60


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    add_optional_address(parser)
    parser.add_argument(
        "--depth",
        metavar="N",
        type=number_from(1, MAX_DEPTH),
        default=2,
        help="how many levels are shown (default: %(default)s)",
    )
    parser.add_argument(
        "--children",
        metavar="N",
        type=number_from(1, PAGE_CHILDREN),
        default=20,
        help="how many children of a node are shown (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_network_options(parser)
    add_settings_options(parser)
    parser.set_defaults(run=run_once, request=_tree)


@attrs.frozen
class _TreeNode:
    """A child with those of its children that are shown; `count` is None if it was not opened."""

    child: ListedChild
    children: tuple[_TreeNode, ...] = ()
    count: int | None = None


def _tree(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url
    value = read_itself(client, url)
    if value is None:
        raise CommandFailed(f"There is nothing at {url}.")
    name = unquote(url.path.removesuffix(SUFFIX).rstrip("/").rpartition("/")[2]) or "/"
    root = attrs.evolve(value, key=name)
    node = _read(client, url, root, arguments.depth, arguments.children)
    if arguments.json:
        write_out(orjson.dumps(_as_json(node)) + b"\n")
        return
    palette = Palette()
    print_line(_label(node, palette))
    for line in _lines(node, "", palette):
        print_line(line)


def _read(client: HttpClient, url: Url, child: ListedChild, depth: int, most: int) -> _TreeNode:
    if child.kind != "object" or depth == 0:
        return _TreeNode(child)
    shown = list(read_children(client, url, with_values=True, limit=most))
    count = len(shown)
    if count == most:
        count = sum(1 for _ in read_children(client, url, with_values=False, limit=_COUNTED))
    nodes = (_read(client, url.below((each.key,)), each, depth - 1, most) for each in shown)
    return _TreeNode(child, tuple(nodes), count)


def _lines(node: _TreeNode, indent: str, palette: Palette) -> Iterator[str]:
    more = (node.count or 0) - len(node.children)
    for at, each in enumerate(node.children, 1):
        is_last = at == len(node.children) and more <= 0
        yield f"{indent}{'└── ' if is_last else '├── '}{_label(each, palette)}"
        yield from _lines(each, indent + ("    " if is_last else "│   "), palette)
    if more > 0:
        text = f"… {more:,}{'+' if node.count == _COUNTED else ''} more"
        yield f"{indent}└── {palette.paint(text, 'dim')}"


def _label(node: _TreeNode, palette: Palette) -> str:
    child = node.child
    name = palette.paint(child.key, child.kind)
    if child.kind != "object":
        text = orjson.dumps(child.value).decode()
        cut = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
        return f"{name}: {palette.paint(cut, '')}"
    facts = []
    if node.count is not None:
        mark = "+" if node.count == _COUNTED else ""
        facts.append(f"{node.count:,}{mark} {'child' if node.count == 1 else 'children'}")
    if child.size:
        facts.append(f"{child.size:,} bytes")
    shown = ", ".join(facts)
    return f"{name} {palette.paint(f'({shown})', 'dim')}" if facts else name


def _as_json(node: _TreeNode) -> dict[str, Any]:
    found: dict[str, Any] = {"key": node.child.key, "kind": node.child.kind}
    if node.child.size:
        found["size"] = node.child.size
    if node.child.kind != "object":
        found["value"] = node.child.value
    if node.count is not None:
        found |= {"count": node.count, "children": [_as_json(each) for each in node.children]}
    return found
