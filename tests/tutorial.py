"""Read docs/tutorial.md: files to write, commands to run, and their expected output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).parent.parent / "docs" / "tutorial.md"
_BLOCK = re.compile(
    r"(?:^`(?P<name>[^`\n]+)`:\n\n|^<!-- (?P<remark>[^\n]*) -->\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Numbers, folders, ends of run ids.
_CHANGES = re.compile(r"\d|/|\w-[0-9a-z]{4}[:;,]?$")


@dataclass
class Step:
    """A file to write (``text``), or a ``command`` with its output in the document.

    ``is_alike``: the output is the same in every run, except for what skeleton() removes.
    """

    name: str = ""
    text: str = ""
    command: str = ""
    shown: list[str] = field(default_factory=list)
    exit_code: int = 0
    is_alike: bool = True


def steps(document: str) -> Iterator[Step]:
    """Return the steps in order, without pip commands and blocks that a comment excludes.

    >>> [step.command for step in steps("```console\\n$ ls\\na\\n$ cd b\\n```\\n")]
    ['ls', 'cd b']
    """
    for block in _BLOCK.finditer(document):
        remark = block["remark"] or ""
        if block["name"]:
            yield Step(name=block["name"], text=block["text"])
        elif block["language"] == "console" and not remark.startswith("not run here"):
            found = [_step(part) for part in re.split(r"^\$ ", block["text"], flags=re.M)[1:]]
            if remark.startswith("exit code "):
                found[-1].exit_code = int(remark.removeprefix("exit code "))
            for step in found:
                step.is_alike = not remark.startswith("no two runs are alike")
            yield from (step for step in found if not step.command.startswith("pip "))


def _step(part: str) -> Step:
    command, *shown = part.rstrip("\n").split("\n")
    return Step(command=command, shown=shown)


def skeleton(line: str) -> str:
    """Remove from a line what differs between runs: numbers, ids, folders and times.

    >>> skeleton("  hpcrun logs -f 4711_0  its output"), skeleton("train  COMPLETED  0:13  2x1")
    ('hpcrun logs -f # its output', 'train COMPLETED # #')
    """
    words = line.split()
    kept = ["#" if _CHANGES.search(word) else word for word in words]
    # What took how long stands at the ends of lines.
    return re.sub(r" time( #| s| ms| min)+$", "", " ".join(kept))
