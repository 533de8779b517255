"""Follow a script whose last command runs another one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from hpcrun.convert.remarks import Remark
from hpcrun.lint import Command, Script, SourcedFile, list_training, parse_script

_PLAIN_SHEBANG = re.compile(r"#!\s*(/usr)?/bin/(env\s+)?(ba)?sh\s*(\n|$)")


class FollowedScript(Struct, frozen=True):
    """A script with the lines of another one in place of its last command.

    Attributes:
        file: The name of the other script.
        line: The line of the command.
        inserted: The number of lines between the command's line and those of the other script.
        count: The number of lines in place of the command.
        replaced: The number of lines of the command.
    """

    text: str
    file: str
    line: int
    inserted: int
    count: int
    replaced: int

    def locate(self, remark: Remark) -> Remark:
        """Return a remark on the text as one on the two scripts."""
        at = remark.line - self.line
        if remark.line < self.line:
            return remark
        if at >= self.count:
            line = remark.line - self.count + self.replaced
            return Remark(line, remark.text, remark.effect, remark.reason)
        number = max(1, at + 1 - self.inserted)
        text = f"{self.file} line {number}: {remark.text}"
        return Remark(self.line, text, remark.effect, remark.reason)


def follow_last_script(
    text: str, read_file: Callable[[str], SourcedFile | None]
) -> FollowedScript | None:
    """Insert the script that the last command sources or runs, if it starts the program.

    Return None if another command starts one, or if the script would do something else when its
    lines are inserted.

    >>> text = "#!/bin/bash\\n#SBATCH -N 1\\nbash train.sh 0.1\\n"
    >>> found = follow_last_script(text, lambda name: SourcedFile(name, "srun python t.py $1\\n"))
    >>> found.text if found else None
    '#!/bin/bash\\n#SBATCH -N 1\\nset -- 0.1\\nsrun python t.py $1\\n\\n'
    """
    script = parse_script(text)
    commands = [one for one in script.commands if not one.substituted]
    if not script.is_shell or not commands or list_training(script) or script.has("chdir"):
        return None
    last = max(commands, key=lambda one: one.end)
    name, position = _find_name(last)
    is_plain = not (last.branch or last.function or last.background or last.guarded)
    if not name or not is_plain or last.pipes_into or last.redirects or last.prefix:
        return None
    data = text.encode("utf-8", "surrogateescape")
    start, end = script.text_position(last.start), script.text_position(last.end)
    before, after = data[:start], data[end:]
    if before.rpartition(b"\n")[2].strip() or not re.match(rb"[ \t]*(#[^\n]*)?(\n|$)", after):
        return None
    if any(one.name in ("cd", "pushd") for one in commands):
        return None  # the file may be another one
    file = read_file(name)
    if file is None or not _runs_alike(script, last, file.text):
        return None
    words = text.encode("utf-8", "surrogateescape")[
        script.text_position(last.words[position].end) : end
    ]
    given = words.decode("utf-8", "surrogateescape").strip()
    is_sourced = last.name in ("source", ".")
    keeps_arguments = given == '"$@"' or (is_sourced and not given)
    reads_arguments = re.search(r"\$\{?[1-9@*#]|\bshift\b", file.text)
    sets_arguments = reads_arguments and not keeps_arguments
    lines = [f"set -- {given}".strip()] if sets_arguments else []
    inner = ["#" if one.startswith("#SBATCH") else one for one in file.text.split("\n")]
    inserted = "\n".join([*lines, *inner]).encode("utf-8", "surrogateescape")
    return FollowedScript(
        text=(before + inserted + after).decode("utf-8", "surrogateescape"),
        file=file.name,
        line=before.count(b"\n") + 1,
        inserted=len(lines),
        count=len(lines) + len(inner),
        replaced=data[start:end].count(b"\n") + 1,
    )


def list_inner_scripts(commands: Sequence[Command]) -> list[Command]:
    """Return the commands that run another shell script."""
    return [one for one in commands if one.name not in ("source", ".") and _find_name(one)[0]]


def _find_name(command: Command) -> tuple[str, int]:
    """Return the script that a command sources or runs, and the index of its word."""
    words = command.words
    at = 1 if command.name in ("source", ".", "bash", "sh") else 0
    if len(words) <= at or not words[at].constant:
        return "", 0
    name = words[at].text
    is_script = name.endswith((".sh", ".bash")) and (at == 1 or "/" in name)
    return (name, at) if is_script and not name.startswith("-") else ("", 0)


def _runs_alike(script: Script, command: Command, text: str) -> bool:
    """Return True if the lines of a file do the same in the script as in a shell of their own."""
    if command.name in ("source", "."):
        return True
    is_own = command.name not in ("bash", "sh")
    if is_own and not _PLAIN_SHEBANG.match(text):
        return False
    if any(one.name in ("set", "shopt", "trap", "alias") for one in script.commands):
        return False
    exported = {one.name for one in script.assignments if one.exported}
    hidden = {one.name for one in script.assignments} - exported | script.functions
    return not any(re.search(rf"\b{re.escape(one)}\b", text) for one in hidden)
