"""The commands that the documentation shows."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hpcrun.cli.main import VERBS, hpcrun


def command(*words: str) -> click.Command:
    """Find a verb, or a verb of a verb."""
    found: click.Command = hpcrun
    for word in words:
        assert isinstance(found, click.Group), f"{' '.join(words)}: no such verb"
        inner = found.get_command(click.Context(found), word)
        assert inner is not None, f"{' '.join(words)}: no such verb"
        found = inner
    return found


def all_commands() -> Iterator[tuple[str, click.Command]]:
    for verb in VERBS:
        found = command(verb)
        yield verb, found
        if isinstance(found, click.Group):
            for inner in found.commands.values():
                yield f"{verb} {inner.name}", inner


COMMANDS = dict(all_commands())
