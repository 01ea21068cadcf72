"""The shell at a terminal: prompt, history, completion, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import History, InMemoryHistory

from treedbd.cli.exit import CommandFailed, make_printable
from treedbd.cli.shell.commands import ShellEnded, run_line
from treedbd.cli.shell.completion import KeyCache, complete
from treedbd.cli.shell.history import BoundedHistory
from treedbd.cli.shell.lines import is_open
from treedbd.cli.shell.session import ShellSession

_MAX_PROMPT_CHARACTERS = 50


class ShellCompleter(Completer):
    """Completes lines of a session."""

    def __init__(self, session: ShellSession, keys: KeyCache) -> None:
        self._session = session
        self._keys = keys

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Iterate over the completions of the word before the cursor; it may take a request."""
        line = document.text_before_cursor
        for each in complete(line, self._session.resolve, self._keys):
            shown = make_printable(each.shown)
            yield Completion(each.text, each.start - len(line), display=shown)


def run_prompt(session: ShellSession, keys: KeyCache, file: pathlib.Path | None) -> None:
    """Run lines until the user leaves; keep them in a file, None for no history."""
    history: History = InMemoryHistory() if file is None else BoundedHistory(file)
    prompt: PromptSession[str] = PromptSession(
        history=history,
        completer=ShellCompleter(session, keys),
        complete_in_thread=True,
        complete_while_typing=False,
        enable_history_search=True,
        multiline=Condition(lambda: is_open(get_app().current_buffer.text)),
        prompt_continuation="... ",
    )
    question: PromptSession[str] = PromptSession(history=InMemoryHistory())
    session.confirm = lambda text: _confirm(question, text)
    while True:
        try:
            line = prompt.prompt(make_prompt(session))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            run_line(session, line)
        except ShellEnded:
            return
        except KeyboardInterrupt:
            session.screen.note("Interrupted.")
        except CommandFailed as error:
            session.screen.note(str(error), is_error=True)


def make_prompt(session: ShellSession) -> str:
    """Return what is shown before a line."""
    place = make_printable(session.location)
    if len(place) > _MAX_PROMPT_CHARACTERS:
        place = f"{session.label}:…{place[-_MAX_PROMPT_CHARACTERS:]}"
    return f"{place}{' (as)' if session.auth is not None else ''}> "


def _confirm(question: PromptSession[str], text: str) -> bool:
    try:
        return question.prompt(make_printable(text)).strip().lower() in {"y", "yes"}
    except (EOFError, KeyboardInterrupt):
        return False
