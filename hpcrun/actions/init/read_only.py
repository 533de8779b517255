"""Rewrite an sbatch script so that it writes no files when it runs in a sandbox."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hpcrun.errors import InputError
from hpcrun.lint import OPEN, Command, Script, parse_script, parse_srun

# Programs that only pass text on, with the arguments by which they would write a file or start
# another program. With these, they do nothing.
FILTERS = {
    "awk": ("*'>'*|*'|'*|*system*|-f*|-i*|--f*|--i*|-l*|--l*|-E*|--e*", "awk"),
    "sed": ("--i*|-i*|-[!-]*i*|-f*|--f*", "sed --sandbox"),
    "shuf": ("--o*|-[!-]*o*|-o*", "shuf"),
    "sort": ("--o*|-[!-]*o*|-o*|--c*", "sort"),
}
_SHELLS = {"bash", "sh", "dash", "ksh", "zsh", "eval", "xargs", "env", "ssh"}
_WRITES = re.compile(r">(?!\s*/dev/null\b|&\s*[\d-])")
_OUTPUT = re.compile(r"(--output|--error|-[oe])(=?)(.*)")


def format_filter(name: str, path: str) -> str:
    """Format a shell script that runs one of FILTERS unless it would write a file."""
    patterns, command = FILTERS[name]
    words = " ".join([path, *command.split()[1:]])
    return (
        f'#!/bin/sh\nfor one; do case $one in {patterns}) exit 0 ;; esac; done\nexec {words} "$@"\n'
    )


def make_read_only(text: str) -> str:
    """Redirect what a script writes to /dev/null, and call programs by name instead of path.

    Raises:
        InputError: The text has a redirection that cannot be replaced.

    >>> print(make_read_only("/bin/rm a; echo 1 2>&1 >> ~/log"))
    rm a; echo 1 2>&1 >> /dev/null
    """
    # The directory of the probes must be the only one in which programs are found.
    text = re.sub(r"(?<![\w$])PATH(?=\+?=)", "RANK_PROBE_IGNORED", text)
    script = parse_script(text, keeps_expansions=True)
    edits = [*_list_redirections(script)]
    for command in script.commands:
        edits += _list_words(script, command)
    if any(word.text.rsplit("/", 1)[-1] in _SHELLS for c in script.commands for word in c.words):
        _refuse_inner_writes(script)
    data = script.data
    for start, end, new in sorted(set(edits), reverse=True):
        data = data[:start] + new + data[end:]
    return data.decode("utf-8", "surrogateescape")


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in node.children:
        yield from _walk(child)


def _refuse(script: Script, start: int, what: str) -> InputError:
    line = script.line_of(start)
    return InputError(
        f"--check: line {line}: {what}: the script would run with real files; "
        "remove it from a copy, and check that"
    )


def _list_redirections(script: Script) -> Iterator[tuple[int, int, bytes]]:
    for node in _walk(script.tree.root_node):
        if not re.fullmatch(r"&?>[>|]?|>&|<>", node.type):
            continue
        parent = node.parent
        if parent.type == "ERROR":
            raise _refuse(script, node.start_byte, "a redirection that cannot be read")
        target = parent.child_by_field_name("destination")
        if parent.type != "file_redirect" or target is None:
            continue
        shown = script.data[target.start_byte : target.end_byte].decode("utf-8", "surrogateescape")
        if not re.fullmatch(r"\d+-?|-|/dev/(null|stdout|stderr)", shown):
            new = b"/dev/null"
            yield target.start_byte, target.end_byte, new


def _list_words(script: Script, command: Command) -> Iterator[tuple[int, int, bytes]]:
    """List the edits of one command: its path, and the files that srun writes."""
    names = command.words[:1]
    if command.name.rsplit("/", 1)[-1] == "srun":
        _, rest = parse_srun([word.text for word in command.words[1:]])
        count = len(command.words) - len(rest)
        names = [*names, *command.words[count : count + 1]]
        skips = False
        for word in command.words[1:count]:
            found = _OUTPUT.fullmatch(word.text)
            if not found and not skips:
                continue
            raw = script.data[word.start : word.end]
            if b"$" in raw[:1]:
                raise _refuse(script, command.start, f"a variable holds srun {word.text}")
            skips = bool(found and not found[3] and not found[2])
            yield word.start, word.end, b""
    for word in names:
        if not re.match(rf"[/~]|{OPEN}.*/", word.text):
            continue
        if script.data[word.start : word.start + 1] in b'$"' and not re.match(
            rf"{OPEN}", word.text
        ):
            raise _refuse(script, command.start, f"a variable holds the path {word.text}")
        yield word.start, word.end, word.text.rsplit("/", 1)[-1].encode("utf-8", "surrogateescape")


def _refuse_inner_writes(script: Script) -> None:
    """Refuse redirections in the strings that another shell may run."""
    kinds = ("string", "raw_string", "ansi_c_string", "heredoc_body")
    for node in _walk(script.tree.root_node):
        if node.type in kinds:
            text = script.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")
            if _WRITES.search(text):
                shown = " ".join(text.split())[:80]
                raise _refuse(script, node.start_byte, f"another shell may write a file: {shown}")
