"""Asking the user, on a terminal; everywhere else the default is taken, and told."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from textwrap import fill

import click

from hpcrun.cli.output import note, width_and_height


class Prompter:
    """Asks questions; ``taken`` keeps the defaults that nobody was asked about.

    ``quiet``: take all defaults, as with --yes, or where standard input is no terminal.
    """

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet or not has_terminal()
        self.taken: dict[str, str] = {}

    def choose(
        self, key: str, text: str, answers: Sequence[str], default: str, details: Sequence[str]
    ) -> str:
        """Ask for one of several answers, by its name or number; Enter takes the default.

        Without ``details`` the answers stand in one line, and have no numbers.
        """
        if self.quiet:
            self.taken[key] = default
            return default
        if details:
            note(f"\n{text}:")
        else:
            note("\n" + fill(f"{text}: {', '.join(answers)}", width_and_height()[0]))
        for number, detail in enumerate(details, 1):
            note(f"  {number:>2}  {detail}")
        while True:
            said = str(click.prompt("  which", default=default, err=True)).strip()
            if said in answers:
                return said
            if details and said.isdecimal() and 1 <= int(said) <= len(answers):
                return answers[int(said) - 1]
            note(f"  {said}: none of these")

    def confirm(self, key: str, text: str, *, default: bool) -> bool:
        """Ask a yes or a no."""
        if self.quiet:
            self.taken[key] = "yes" if default else "no"
            return default
        return click.confirm(text, default=default, err=True)


def has_terminal() -> bool:
    """Tell whether there is somebody to ask: who types, and sees the question."""
    return all(
        bool(stream and not stream.closed and stream.isatty()) for stream in (sys.stdin, sys.stderr)
    )
