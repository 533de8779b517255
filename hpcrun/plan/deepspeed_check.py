"""The user's own DeepSpeed JSON, key by key: unknown, removed, old, of the wrong type.

DeepSpeed ignores an unknown key at its top level without a word, so that a typo trains something
else; in its sections an unknown key stops the job, after the queue. Here both are told before.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from hpcrun.errors import Problem
from hpcrun.plan.deepspeed_auto import explain_auto
from hpcrun.plan.deepspeed_keys import DEPRECATED, KEYS, REMOVED, Key, Section
from hpcrun.spec.deepspeed_json import Document

Path = tuple[str, ...]

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Answer(Struct, frozen=True, kw_only=True):
    """What the DeepSpeed that will train said about a configuration.

    ``read``: the dotted keys that it looked for by name; ``problems``: dotted path and message.
    """

    version: str
    read: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


class Said(Struct, frozen=True, kw_only=True):
    """What the user wrote: a file of their own, and keys in the job that merge over it."""

    config: dict[str, Any]
    file: Document | None = None
    file_name: str = ""


def place(said: Said, path: Path, message: str) -> Problem | None:
    """Make a problem that points to where the user wrote this key; None: the user did not.

    >>> print(place(Said(config={"bf16": {"enabled": 1}}), ("bf16", "enabled"), "no"))
    deepspeed.config.bf16.enabled: no
    """
    dotted = ".".join(path)
    value: Any = said.config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is not None:
        return Problem("", None, f"deepspeed.config.{dotted}", message)
    if said.file is not None and path in said.file.lines:
        return Problem(said.file_name, said.file.lines[path], dotted, message)
    return None


def check_keys(
    config: Mapping[str, Any],
    said: Said,
    framework: str,
    answer: Answer | None,
    problems: list[Problem],
    notes: list[str],
) -> None:
    """Look at every key that the user wrote.

    Where the DeepSpeed that will train has answered, it has the word on which keys there are and
    on what it refuses; the table has it on types, which DeepSpeed reads more loosely than its
    own code and other frameworks use them.
    """
    told: set[Path] = set()

    def tell(path: Path, message: str) -> None:
        problem = place(said, path, message)
        if problem is not None:
            told.add(path)
            problems.append(problem)

    for path, value, expected in _walk(config, KEYS, ()):
        dotted = ".".join(path)
        if dotted in REMOVED and answer is None:
            instead = f"; {REMOVED[dotted]}" if REMOVED[dotted] else ""
            tell(path, f"DeepSpeed has removed this and stops at it, even at false{instead}")
        elif dotted in DEPRECATED:
            problem = place(said, path, f"is deprecated; write {DEPRECATED[dotted]}")
            if problem is not None:
                notes.append(str(problem))
        elif dotted not in REMOVED and expected is None and _unknown(path, answer):
            tell(path, _no_such_key(path))
        message = ""
        if expected is not None:
            # The classes of its own sections know their bounds; a newer one may know more words.
            bounded = answer is None or _is_asked(path, answer)
            message = _mistyped(value, expected, path, framework, bounded)
        if message:
            tell(path, message)
    for refused, message in answer.problems if answer is not None else ():
        path = tuple(refused.split(".")) if refused else ()
        covered = any(path == one[: len(path)] or one == path[: len(one)] for one in told)
        if not covered:
            said_by = f"DeepSpeed {answer.version if answer else ''} refuses it: {message.strip()}"
            problems.append(place(said, path, said_by) or Problem("", None, "deepspeed", said_by))


def _walk(
    config: Mapping[str, Any], section: Section, path: Path
) -> Iterator[tuple[Path, Any, Key | Section | None]]:
    """Give each key with what it may hold; None: unknown."""
    for key, value in config.items():
        inner = (*path, key)
        # A key of the user's own; JSON has no comments.
        if key.startswith(("_", "//")):
            continue
        expected = section.get(key)
        yield inner, value, expected
        if isinstance(value, Mapping) and isinstance(expected, dict):
            yield from _walk(value, expected, inner)
        elif isinstance(expected, Key) and expected.shape == "map":
            yield from _params(value, inner)


def _params(value: Any, path: Path) -> Iterator[tuple[Path, Any, Key | Section | None]]:
    """Give what is "auto", or a number in quotes, among an optimizer's or a scheduler's parameters.

    Which parameters there are is torch's word or the optimizer's own; none is a number as text.
    """
    if path[0] not in ("optimizer", "scheduler") or not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        if inner == "auto":
            yield (*path, key), inner, Key("any")
        for item in inner if isinstance(inner, list) else [inner]:
            if isinstance(item, str) and _NUMBER.fullmatch(item):
                yield (*path, key), item, Key("number")


def _unknown(path: Path, answer: Answer | None) -> bool:
    """Tell whether DeepSpeed has no such key: by the table, else by what it said."""
    if answer is None:
        return True
    return ".".join(path) not in answer.read and _is_asked(path, answer)


def _is_asked(path: Path, answer: Answer) -> bool:
    """Tell whether DeepSpeed asks for the keys of this section by name.

    A section that is a class of its own is not asked: it refuses what it does not know.
    """
    above = ".".join(path[:-1])
    return len(path) == 1 or any(key.startswith(f"{above}.") for key in answer.read)


def _no_such_key(path: Path) -> str:
    """Say what was meant, as far as it can be guessed."""
    section: Any = KEYS
    for key in path[:-1]:
        section = section[key]
    near = difflib.get_close_matches(path[-1], section, 1)
    if not near:
        far = {name: dotted for dotted in _all_paths(KEYS) for name in [dotted.rpartition(".")[2]]}
        near = [far[name] for name in difflib.get_close_matches(path[-1], far, 1, 0.8)]
    hint = f"; did you mean {near[0]}?" if near else "; a key of your own starts with _"
    return f"DeepSpeed has no such key{hint}"


def _all_paths(section: Section, start: str = "") -> Iterator[str]:
    for key, below in section.items():
        yield f"{start}{key}"
        if isinstance(below, dict):
            yield from _all_paths(below, f"{start}{key}.")


def _mistyped(
    value: Any, expected: Key | Section, path: Path, framework: str, bounded: bool
) -> str:
    """Say what is wrong with a value; "" where nothing is."""
    if isinstance(expected, dict):
        null = path[-1] in ("offload_param", "offload_optimizer", "zenflow") and value is None
        return "" if isinstance(value, Mapping) or null else f"{_show(value)}; keys are needed here"
    if value == "auto":
        return "" if expected.auto else explain_auto(path, framework)
    if value is None:
        return "" if expected.null or expected.shape == "any" else "null; leave the key out"
    return _shape_fault(value, expected) or (_bound_fault(value, expected) if bounded else "")


def _shape_fault(value: Any, key: Key) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key.shape == "any":
        return ""
    if key.shape == "bool":
        # 0 and 1 are read as such everywhere.
        right = isinstance(value, bool) or (number and value in (0, 1))
        return "" if right else f"{_show(value)}; true or false is needed"
    if key.shape in ("int", "number"):
        kind = "a whole number" if key.shape == "int" else "a number"
        if number and (key.shape == "number" or value == value // 1):
            return ""
        return f"{_show(value)}; {kind} is needed"
    kinds: dict[str, tuple[type, str]] = {
        "text": (str, "text"),
        "list": (list, "a list"),
        "map": (Mapping, "a map"),
    }
    of, name = kinds[key.shape]
    return "" if isinstance(value, of) else f"{_show(value)}; {name} is needed"


def _bound_fault(value: Any, key: Key) -> str:
    if key.choices:
        word = value.lower() if key.fold and isinstance(value, str) else value
        if word not in key.choices:
            near = difflib.get_close_matches(str(value), [str(c) for c in key.choices], 1)
            legal = ", ".join(str(choice) for choice in key.choices)
            hint = f"; did you mean {near[0]}?" if near else ""
            return f"{json.dumps(value)} is none of {legal}{hint}"
    if key.least is not None and value < key.least:
        return f"{value} is too small; {key.least:g} or more"
    if key.most is not None and value > key.most:
        return f"{value} is too big; {key.most:g} or less"
    return ""


def _show(value: Any) -> str:
    """Show a value as JSON has it, with its type where that is what is wrong.

    >>> _show("5e7"), _show(True), _show(0.5), _show([1])
    ('"5e7" is text', 'true is true or false', '0.5 is a number', 'a list')
    """
    if isinstance(value, str):
        return f'"{value}" is text'
    if isinstance(value, bool):
        return f"{str(value).lower()} is true or false"
    if isinstance(value, (int, float)):
        return f"{value} is a number"
    if value is None:
        return "null"
    return "a list" if isinstance(value, list) else "a map"
