"""What a shell asks while a command line is typed: the words that could stand there.

Never asks Slurm, and says nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpcrun.cli.completion_line import Item, Line, is_plain, read_bash, write_bash, write_zsh

if TYPE_CHECKING:
    import click

# What the arguments of a verb name; all other verbs are asked, which takes longer.
_PLACES = {
    "submit": "presets",
    "run": "presets",
    "show": "presets runs",
    "parse": "runs files",
    "compare": "runs files",
    "hostfile": "runs files",
    **dict.fromkeys(("status", "logs", "cancel", "wait", "requeue", "resubmit"), "runs"),
    **dict.fromkeys(("shell", "top", "clean"), "runs"),
}
# What the values of options name, by the option or by what its help calls the value.
_OPTIONS = {"--cluster": "clusters", "--after": "runs", "--set": "keys"}
_METAVARS = {"FILE": "files", "DIR": "files", "PATH": "files", "RUN": "runs", "JOB": "runs"}


class Answer(NamedTuple):
    """``kind``: words; files: those that the shell finds; both; open: words that go on."""

    kind: str
    items: list[Item]


def main() -> None:
    """Answer a shell; whatever happens, nothing else reaches the user's prompt."""
    try:
        text = _reply(sys.argv[1], sys.argv[2:])
        os.write(1, text.encode("utf-8", "surrogateescape"))
    except BaseException:  # Ctrl-C too; a broken profile is told by the verb itself
        os._exit(1)
    # No cleaning up: it takes as long as some answers.
    os._exit(0)


def _reply(shell: str, words: Sequence[str]) -> str:
    """The lines for a shell: the kind of the answer, then a word in each."""
    if shell == "bash":
        line = read_bash(words[0], words[1])
        answer = answer_to(line, is_told=False)
        is_raw = answer.kind == "both"
        if is_raw:
            answer = Answer("both", [*answer.items, *_values("files", line.current)])
        values = [write_bash(item.value, line, is_raw=is_raw) for item in answer.items]
        return "\n".join([answer.kind, *(value for value in values if value), ""])
    *before, _, current = words
    answer = answer_to(Line(before, current))
    if shell == "zsh":
        lines = [write_zsh(item) for item in answer.items]
    else:
        lines = [f"{item.value}\t{item.help}" if item.help else item.value for item in answer.items]
    return "\n".join([answer.kind, *lines, ""])


def answer_to(line: Line, *, is_told: bool = True) -> Answer:
    """Find what could stand in the place of the last word; ``is_told``: and what runs are."""
    words, current = line.words, line.current
    verb = next((word for word in words if not word.startswith("-")), None)
    if "--" in words:
        return Answer("files", [])
    is_value = bool(words) and words[-1].startswith("-")
    if verb in _PLACES and not current.startswith("-") and not is_value:
        return _of(_PLACES[verb], current, is_told=is_told)
    # Only now click, and the verb's own module.
    import click

    from hpcrun.cli.main import VERBS, hpcrun

    command: click.Command = hpcrun
    rest = list(words)
    while isinstance(command, click.Group):
        verb = next((word for word in rest if not word.startswith("-")), None)
        if verb is None:
            if current.startswith("-"):
                return _options(command, rest, current)
            names = command.list_commands(click.Context(command))
            return _words([Item(name, VERBS.get(name, "")) for name in names], current)
        rest = rest[rest.index(verb) + 1 :]
        found = command.get_command(click.Context(command), verb)
        if found is None:
            return Answer("words", [])
        command = found
    return _of_command(command, rest, current, _PLACES.get(verb or "", ""))


def _of_command(command: click.Command, words: list[str], current: str, place: str) -> Answer:
    import click

    named = {
        name: param for param in command.params for name in (*param.opts, *param.secondary_opts)
    }
    waiting, taken = None, 0
    for word in words:
        if waiting is not None:
            waiting = None
        elif word.startswith("-") and len(word) > 1:
            option = named.get(word)
            waiting = option if isinstance(option, click.Option) and _has_value(option) else None
        else:
            taken += 1
    if waiting is not None:
        return _of_value(waiting, words[-1], current)
    name, has_value, value = current.partition("=")
    if current.startswith("--") and has_value:
        option = named.get(name)
        if not isinstance(option, click.Option):
            return Answer("words", [])
        answer = _of_value(option, name, value)
        return Answer(
            answer.kind, [Item(f"{name}={each.value}", each.help) for each in answer.items]
        )
    if current.startswith("-"):
        return _options(command, words, current)
    if place:
        return _of(place, current)
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    for argument in arguments:
        if argument.nargs == -1 or taken < argument.nargs:
            return _of_value(argument, "", current)
        taken -= argument.nargs
    return Answer("words", [])


def _has_value(option: click.Option) -> bool:
    return not option.is_flag and not option.count


def _options(command: click.Command, words: Sequence[str], current: str) -> Answer:
    """The options that are not there yet; the long forms, unless there is none."""
    import click

    items = []
    for param in command.get_params(click.Context(command)):
        if not isinstance(param, click.Option) or param.hidden:
            continue
        if not param.multiple and any(name in words for name in param.opts):
            continue
        names = [name for name in param.opts if name.startswith("--")] or param.opts
        items += [Item(name, (param.help or "").partition("\n")[0]) for name in names]
    return _words(items, current)


def _of_value(param: click.Parameter, name: str, current: str) -> Answer:
    """What an option's value or an argument can be."""
    import click

    if isinstance(param.type, click.Choice):
        return _words([Item(str(choice)) for choice in param.type.choices], current)
    if isinstance(param.type, click.Path | click.File):
        return Answer("files", [])
    metavar = (param.metavar or "").strip("[].")
    return _of(_OPTIONS.get(name) or _METAVARS.get(metavar, ""), current)


def _of(place: str, current: str, *, is_told: bool = True) -> Answer:
    """Collect the words of a place, as "runs files"."""
    kinds = place.split()
    items = [
        item
        for kind in kinds
        if kind != "files"
        for item in _values(kind, current, is_told=is_told)
    ]
    if "files" in kinds:
        return Answer(
            "both" if items else "files", [item for item in items if is_plain(item.value)]
        )
    # A job may be a file of the user's own, too.
    if kinds[:1] == ["presets"] and ("/" in current or not items):
        return Answer("files", [])
    is_open = bool(items) and all(item.value.endswith("=") for item in items)
    return Answer("open" if is_open else "words", _plain(items))


def _words(items: Sequence[Item], current: str) -> Answer:
    return Answer("words", _plain([item for item in items if item.value.startswith(current)]))


def _plain(items: Sequence[Item]) -> list[Item]:
    """Leave out what cannot be typed, and meanings that would command the terminal."""
    return [
        Item(item.value, item.help if is_plain(item.help) else "")
        for item in items
        if is_plain(item.value)
    ]


def _values(kind: str, current: str, *, is_told: bool = True) -> list[Item]:
    from hpcrun.cli import completion_values

    if kind == "runs":
        return completion_values.runs(current, is_told=is_told)
    values: list[Item] = getattr(completion_values, kind)(current) if kind else []
    return values
