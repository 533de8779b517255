"""Check a script's arguments with argparse and the options that static analysis found."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NoReturn

from hpcrun.plan.script_facts import ScriptFacts, select_command
from hpcrun.plan.script_parsers import ParserOption

# The similarity from which an argument counts as a misspelled option; it is higher if some options
# of the script are unknown.
_SIMILARITY = 0.7
_SIMILARITY_IF_INCOMPLETE = 0.85
_HELP = ("-h", "--help")
# Parsers whose options are named in the script.
_NAMED_PARSERS = ("argparse", "transformers", "click", "typer", "fire", "tyro")
_TYPES = {"int": int, "float": float}


class _ParserError(Exception):
    """The error with which the script would exit."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _ParserError(message)


def check_arguments(
    script: str, facts: ScriptFacts, args: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Find arguments that a script's parser rejects.

    Args:
        script: The script's name for messages.

    Returns:
        The certain errors and the probable ones.

    >>> option = ParserOption(["--epochs"], type="int")
    >>> facts = ScriptFacts(parser="argparse", is_certain=True, is_complete=True, options=[option])
    >>> check_arguments("a.py", facts, ["--epochs", "3"])
    ([], [])
    >>> check_arguments("a.py", facts, ["--epochs", "3.5"])[0]
    ["--epochs: invalid int value: '3.5'"]
    """
    facts, doubts = _select_given_command(script, facts, args)
    known = [name for option in facts.options for name in option.names] + list(_HELP)
    # A positional first argument may be a file with the values.
    is_file = bool(args) and (len(args) == 1 or not args[0].startswith("-"))
    of_file = facts.parser == "transformers" and (is_file or "--config" in args)
    unknown: list[tuple[str, str | None]] = []
    given: set[str] = set()
    for word in args:
        if word == "--":
            break
        name = word.partition("=")[0]
        if not re.match(r"--?[A-Za-z_]", name) or " " in word:
            continue  # argparse also parses -1 and "-x y" as values
        found = _match_options(name, known, facts.abbreviates)
        given |= found
        if not found:
            unknown.append(
                (
                    name,
                    _find_closest(
                        name, known, _SIMILARITY if facts.is_complete else _SIMILARITY_IF_INCOMPLETE
                    ),
                )
            )
    sure: list[str] = []
    if facts.is_complete and not of_file:
        for name, close in unknown:
            if facts.parser == "hydra" and close is None:
                close = f"{name.lstrip('-')}=VALUE"
            hint = f"; did you mean {close}?" if close else ""
            sure.append(f"{name}: {script} has no such argument{hint}")
    maybe = list(doubts)
    if facts.parser in _NAMED_PARSERS and not facts.is_complete:
        maybe += [f"{name}: did you mean {close}, of {script}?" for name, close in unknown if close]
    if facts.is_certain and not of_file and not given & set(_HELP):
        missing = [o.names[-1] for o in facts.options if o.required and not given & set(o.names)]
        if missing and not sure and not maybe:
            sure.append(f"{script} requires {' and '.join(missing)}")
        # The values of unknown options would be read as positional arguments.
        is_clear = not unknown or (not facts.is_complete and not facts.positionals)
        if is_clear and facts.parser != "click":
            sure += _run_argparse(script, facts, args)
    elif facts.parser in _NAMED_PARSERS and not of_file and not given & set(_HELP):
        missing = [o.names[-1] for o in facts.options if o.required and not given & set(o.names)]
        # With fire, a value without its name is that of the next parameter.
        has_values = facts.parser == "fire" and any(word[:1] != "-" for word in args)
        if missing and not has_values:
            maybe.append(f"{script} seems to require {' and '.join(missing)}")
    return list(dict.fromkeys(sure)), list(dict.fromkeys(maybe))


def _select_given_command(
    script: str, facts: ScriptFacts, args: Sequence[str]
) -> tuple[ScriptFacts, list[str]]:
    """Return the facts with only the options of the subcommand in the arguments, and doubts."""
    if not facts.commands:
        return facts, []
    given = next((word for word in args if word in facts.commands), "")
    if given or set(args) & set(_HELP):
        return select_command(facts, given), []
    plain = [word for word in args if not word.startswith("-")]
    close = difflib.get_close_matches(plain[0], facts.commands, 1) if plain else []
    hint = f"; did you mean {close[0]}?" if close else ""
    named = ", ".join(facts.commands)
    return facts, [f"no command of {script} is given; there are {named}{hint}"]


def order_hydra_arguments(facts: ScriptFacts, args: Sequence[str]) -> list[str]:
    """Move Hydra's options before its overrides, because Hydra rejects any other order.

    >>> hydra = ScriptFacts(parser="hydra", options=[ParserOption(["--config-name"])])
    >>> order_hydra_arguments(hydra, ["bs=4", "--config-name", "mine", "lr=1"])
    ['--config-name', 'mine', 'bs=4', 'lr=1']
    """
    if facts.parser != "hydra" or not facts.options:
        return list(args)
    options: list[str] = []
    overrides: list[str] = []
    takes = {name: option for option in facts.options for name in option.names}
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        options.append(word)
        meant = _match_options(word, takes, True) if word.startswith("--") else {word}
        option = takes.get(min(meant)) if meant else None
        is_optional = option is not None and option.nargs == "?"
        if option is None or option.nargs == 0 or not waiting:
            continue
        if not is_optional or waiting[0] in option.choices:
            options.append(waiting.pop(0))
    return options + overrides


def _run_argparse(script: str, facts: ScriptFacts, args: Sequence[str]) -> Iterator[str]:
    """Parse the arguments with argparse and yield its error, if any."""
    # A prefix may belong to an unknown option unless all options are known.
    abbreviates = facts.abbreviates and facts.is_complete
    parser = _Parser(add_help=False, allow_abbrev=abbreviates, conflict_handler="resolve")
    parser.add_argument(*_HELP, action="store_true")
    try:
        for option in (*facts.options, *facts.positionals):
            _add_option(parser, option)
        # -1e-4 is a value since Python 3.14.
        read, rest = parser.parse_known_args([re.sub(r"^-[0-9.]+[eE].*", "-1", x) for x in args])
    except (TypeError, ValueError):  # not an option that argparse could define
        return
    except _ParserError as stop:
        message = str(stop)
        match = re.fullmatch(r"argument (\S+): (.*)", message, re.DOTALL)
        needs = message.removeprefix("the following arguments are required: ")
        if match:
            close = re.search(r"invalid choice: '([^']*)'", match[2])
            name = max(match[1].split("/"), key=len)
            choices = [choice for o in facts.options if name in o.names for choice in o.choices]
            near = difflib.get_close_matches(close[1], choices, 1) if close else []
            hint = f"; did you mean {near[0]}?" if near else ""
            yield f"{name}: {match[2]}{hint}"
        elif needs != message:
            yield f"{script} requires {needs.replace(', ', ' and ').upper()}"
        return
    if facts.is_complete and rest:
        yield f"{' '.join(rest)}: {script} does not accept these arguments"
    if facts.parser == "hydra":
        for word in read.overrides:
            if "=" not in word and not word.startswith("~"):
                yield f"{word!r}: Hydra accepts KEY=VALUE, +KEY=VALUE and ~KEY"


def _add_option(parser: argparse.ArgumentParser, option: ParserOption) -> None:
    is_flag = option.names[0].startswith("-")
    if option.nargs == 0 and is_flag:
        parser.add_argument(*option.names, action="store_true", dest="_")
        return
    kind = _TYPES.get(option.type, str)
    # The result of a custom conversion function is unknown.
    choices = None if option.type == "?" or not option.choices else list(map(kind, option.choices))
    more: dict[str, Any] = {"dest": "_"} if is_flag else {}
    parser.add_argument(*option.names, nargs=option.nargs, type=kind, choices=choices, **more)


def _match_options(name: str, known: Collection[str], abbreviates: bool) -> set[str]:
    """Return the options that an argument may be: argparse accepts prefixes, and -n4 for -n 4."""
    if name in known:
        return {name}
    if name.startswith("--"):
        return {option for option in known if abbreviates and option.startswith(name)}
    return {option for option in known if option[:2] == name[:2] or option.startswith(f"-{name}")}


def _find_closest(name: str, known: Collection[str], alike: float) -> str | None:
    """Return the most similar option, ignoring - and _; None if no option is similar."""

    def bare(text: str) -> str:
        return re.sub("[-_]", "", text).lower()

    by_bare = {bare(option): option for option in known}
    close = difflib.get_close_matches(bare(name), by_bare, 1, alike)
    return by_bare[close[0]] if close else None
