"""Check a script by all rules, and apply safe fixes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from hpcrun.lint.rule import RULES, SEVERITIES, Edit, Severity
from hpcrun.lint.rules import all_rules
from hpcrun.lint.script import Origin, Script, iterate_lines, parse_script, show

# Rules about commands and constants, which the outer script of a here-document cannot change.
_FOR_ANY_VALUES = {
    *(
        "bashrc-sourced",
        "conda-init",
        "conda-not-initialized",
        "install-in-job",
        "renamed-variable",
        "unread-variable",
    ),
    *(
        "bad-nccl-value",
        "nccl-switch",
        "slow-debugging",
        "secret-in-script",
        "old-launcher",
        "default-port",
        "fixed-port",
    ),
    *(
        "hostname-ip",
        "nodelist-parsed",
        "cd-unchecked",
        "exit-code-lost",
        "pipe-hides-failure",
        "wait-hides-failure",
    ),
    *(
        "cpus-not-requested",
        "requeue-truncates-log",
        "sh-with-bash-syntax",
        "docker-in-job",
        "sudo-in-job",
    ),
    *("kills-other-jobs", "download-in-job", "module-replaced", "results-copied-at-the-end"),
}
_IGNORE = re.compile(r"#\s*hpcrun:\s*ignore(-file)?=([\w,-]+)")


class Finding(Struct, frozen=True):
    """A finding of a rule in a script.

    Attributes:
        file: The name of the script.
        line: The number of the line, from 1.
        column: The number of the column, from 1.
        message: What is wrong, in one sentence.
        source: Where that is documented.
        fix: What to do.
        fixable: ``hpcrun lint --fix`` can change it.
    """

    rule: str
    severity: Severity
    file: str
    line: int
    column: int
    message: str
    source: str
    fix: str
    fixable: bool = False
    edit: Edit | None = None


class SourcedFile(Struct, frozen=True):
    """A file that a script sources: its name in findings, and its text."""

    name: str
    text: str


def lint_script(
    text: str,
    name: str = "script",
    *,
    syntax: str = "",
    read_sourced: Callable[[str], SourcedFile | None] | None = None,
) -> list[Finding]:
    """Return the findings of all rules in a script, in the order of its lines.

    Args:
        syntax: The message of ``bash -n``, which is stricter than the parser.
        read_sourced: Read the file of a ``source`` statement, or of ``bash FILE`` at the end;
            None if it is not available. Its lines are checked in place of the statement.

    >>> [one.rule for one in lint_script("#!/bin/bash\\n#SBATCH --time=1\\nls\\n#SBATCH -N 2\\n")]
    ['late-directive']
    """
    if read_sourced is not None and not syntax:
        whole, origins = _insert_sourced(text, name, read_sourced)
        if origins:
            return _lint_combined(whole, text, name, origins)
    return _lint_text(text, name, syntax, ())


def _lint_text(text: str, name: str, syntax: str, origins: Sequence[Origin]) -> list[Finding]:
    """Check a text; messages name the lines by their origins, the findings those of the text."""
    script = parse_script(text, name)
    script.cache["syntax"] = syntax
    script.origins = origins
    ignored = list_ignored(script)
    found: list[Finding] = []
    for rule in all_rules():
        if rule.id in ignored.get(0, ()):
            continue
        for one in rule.check(script):
            line = script.line_of(one.start)
            if rule.id in ignored.get(line, ()):
                continue
            found.append(
                Finding(
                    rule=rule.id,
                    severity=one.severity or rule.severity,
                    file=name,
                    line=line,
                    column=script.column_of(one.start),
                    message=show(one.message),
                    source=rule.source,
                    fix=rule.fix,
                    fixable=one.edit is not None,
                    edit=_edit_of_text(script, one.edit),
                )
            )
    for line, inner, computed in _list_generated(script):
        count = inner.count("\n") + 1
        stems = origins[line - 1 :] or [Origin(name, line + at) for at in range(count)]
        found += [
            replace(one, line=one.line + line - 1, edit=None, fixable=False)
            for one in _lint_text(inner, name, "", stems)
            if computed is None or (_holds_for_any_values(one) and one.line not in computed)
        ]
    rank = {severity: index for index, severity in enumerate(SEVERITIES)}
    return sorted(found, key=lambda one: (one.line, one.column, rank[one.severity], one.rule))


def _insert_sourced(
    text: str, name: str, read_sourced: Callable[[str], SourcedFile | None]
) -> tuple[str, list[Origin]]:
    """Replace statements that source or run a file by its lines; no origins if there are none."""
    sources: dict[int, SourcedFile] = {}
    script = parse_script(text, name)
    lines = text.split("\n")
    last = max((one.end for one in script.commands), default=0)
    for command in script.commands:
        # A script that bash runs as the last command is like a sourced one.
        runs = command.name in ("source", ".") or (
            command.name in ("bash", "sh") and command.end == last and not command.background
        )
        if not runs or len(command.words) != 2 or command.branch:
            continue
        line = script.line_of(command.start)
        whole = script.data[command.start : command.end].decode("utf-8", "surrogateescape")
        is_alone = not command.words[1].unknown and lines[line - 1].strip() == whole
        if is_alone and (one := read_sourced(command.args[0])) is not None:
            sources[line] = one
    if not sources:
        return text, []
    made: list[str] = []
    origins: list[Origin] = []
    for number, line_text in enumerate(lines, 1):
        if (one := sources.get(number)) is None:
            made.append(line_text)
            origins.append(Origin(name, number))
            continue
        # Directives below the statement come too late, even if the file has only comments.
        made.append(":")
        origins.append(Origin(name, number))
        for inner, sourced in enumerate(one.text.split("\n"), 1):
            # sbatch does not read the directives of a sourced file.
            made.append("#" if sourced.startswith("#SBATCH") else sourced)
            origins.append(Origin(one.name, inner))
    return "\n".join(made), origins


def _lint_combined(text: str, original: str, name: str, origins: Sequence[Origin]) -> list[Finding]:
    """Check a text with inserted lines, and name the file and line of each finding."""
    before, after = _list_offsets(original), _list_offsets(text)

    def find_shift(position: int) -> int | None:
        index = bisect_right(after, position) - 1
        origin = origins[index]
        return after[index] - before[origin.line - 1] if origin.file == name else None

    found = []
    for one in _lint_text(text, name, "", origins):
        origin, edit = origins[one.line - 1], one.edit
        if edit is not None:
            shift = find_shift(edit.start)
            if shift is None or find_shift(edit.end) != shift:
                edit = None
            else:
                edit = Edit(edit.start - shift, edit.end - shift, edit.text)
        found.append(
            replace(one, file=origin.file, line=origin.line, edit=edit, fixable=edit is not None)
        )
    return found


def _list_offsets(text: str) -> list[int]:
    """Return the position of the first byte of each line."""
    sizes = [len(line.encode("utf-8", "surrogateescape")) + 1 for line in text.split("\n")]
    return [0, *accumulate(sizes)][:-1]


def _list_generated(script: Script) -> Iterator[tuple[int, str, set[int] | None]]:
    """Yield the sbatch scripts in here-documents.

    Yields:
        The number of the first line, the text, and the lines of the directives in which the outer
        script expands variables. None stands for an exact text, in which it expands nothing.
    """
    nodes = [script.tree.root_node] if script.tree is not None else []
    while nodes:
        node = nodes.pop()
        if node.type != "heredoc_redirect":
            nodes += node.children
            continue
        parts = {child.type: child for child in node.children}
        start, body = parts.get("heredoc_start"), parts.get("heredoc_body")
        if start is None or body is None:
            continue
        text = script.data[body.start_byte : body.end_byte].decode("utf-8", "surrogateescape")
        if "<<-" in parts:
            text = re.sub(r"(?m)^\t+", "", text)
        if not re.match(r"#!.*sh\b", text) or "\n#SBATCH" not in text:
            continue
        computed: set[int] | None = None
        if not re.search(rb"['\"\\]", script.data[start.start_byte : start.end_byte]):
            if re.search(r"(?<!\\)[$`]", text):
                if re.search(r"(?m)^#SBATCH\s+[$`]", text):
                    continue  # any options
                lines = text.split("\n")
                computed = {
                    number
                    for number, one in enumerate(lines, 1)
                    if one.startswith("#SBATCH") and re.search(r"(?<!\\)[$`]", one)
                }
                for number in computed:
                    value = r"(?<!\\)(\$\([^)]*\)|\$\{[^}]*\}|\$\w+|`[^`]*`)"
                    lines[number - 1] = re.sub(value, "_", lines[number - 1])
                text = "\n".join(lines)
            text = re.sub(r"\\([$`\\])", r"\1", text)
        yield script.line_of(body.start_byte), text, computed


def _holds_for_any_values(finding: Finding) -> bool:
    """Return True if a finding does not depend on the values of the directives and variables."""
    rule = RULES[finding.rule]
    if rule.id in _FOR_ANY_VALUES:
        return True
    return finding.severity == "error" and rule.section in ("Directives", "Shell")


def _edit_of_text(script: Script, edit: Edit | None) -> Edit | None:
    """Return an edit with positions in the text instead of those in the parsed bytes."""
    if edit is None:
        return None
    start, end = script.text_position(edit.start), script.text_position(edit.end)
    return Edit(start, end, edit.text)


def list_ignored(script: Script) -> dict[int, set[str]]:
    """Return the rules that comments ignore, by line; 0 stands for the whole file.

    ``# hpcrun: ignore=RULE reason`` applies to its line, or to the next one if it stands alone.
    """
    ignored: dict[int, set[str]] = {}
    for number, (_, line) in enumerate(iterate_lines(script.data), 1):
        for found in _IGNORE.finditer(line):
            alone = not line[: found.start()].strip()
            where = 0 if found[1] else number + alone
            ignored.setdefault(where, set()).update(found[2].split(","))
    return ignored


def apply_fixes(text: str, findings: Sequence[Finding]) -> str:
    r"""Return the text with all safe fixes.

    >>> text = "#!/bin/bash\n#SBTACH -N 2\nls\n"
    >>> apply_fixes(text, lint_script(text))
    '#!/bin/bash\n#SBATCH -N 2\nls\n'
    """
    data = text.encode("utf-8", "surrogateescape")
    end = len(data)
    edits = {one.edit for one in findings if one.edit is not None}
    # From the last to the first, so that the positions of the others stay valid.
    for edit in sorted(edits, key=lambda one: (one.start, one.end), reverse=True):
        if edit.end <= end:
            data = (
                data[: edit.start] + edit.text.encode("utf-8", "surrogateescape") + data[edit.end :]
            )
            end = edit.start
    return data.decode("utf-8", "surrogateescape")
