"""What an operator has to correct: a file, an endpoint or a setting that cannot be used."""

from __future__ import annotations

from treedbd.text import in_one_line


class OperatorError(Exception):
    """One sentence for an operator, `<subject> <problem>: <remedy>`.

    Attributes:
        subject: what cannot be used, by its full name: a file, an endpoint, a key of a file.
        problem: what is wrong with it, from the verb on: "cannot be read (No such file)".
        remedy: what to do about it, in the imperative.

    """

    def __init__(self, subject: object, problem: str, remedy: str) -> None:
        super().__init__(subject, problem, remedy)
        self.subject = str(subject)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the sentence, on one line."""
        return in_one_line(f"{self.subject} {self.problem}: {self.remedy}.")

    def in_setting(self, source: str, key: str) -> str:
        """Return the sentence prefixed with the file and the key that name the subject."""
        return in_one_line(f"{source}: {key}: {self}")
