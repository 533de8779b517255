"""Rules for bash: broken lines, quoting and dangerous commands."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from hpcrun.lint.request import is_multi_node, list_training
from hpcrun.lint.rule import Edit, Found, rule
from hpcrun.lint.script import Script, iterate_lines
from hpcrun.text import is_whole_number

SECTION = "Shell"


@rule(
    "dangling-arguments",
    "error",
    "a line of arguments that bash runs as a command",
    section=SECTION,
    source="bash(1): a command ends at a line end without a backslash, and at a comment line",
    fix="end the line before with a backslash; move comments out of the command",
    bad="python train.py \\\n  --lr 0.1\n  --epochs 3\n",
    good="python train.py \\\n  --lr 0.1 \\\n  --epochs 3\n",
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        word = command.words[0] if command.words else None
        if word is None or command.function or not word.constant:
            continue
        raw = script.data[word.start : word.end]
        if re.match(rb"--?[A-Za-z]", raw) and not raw.startswith(b"$"):
            text = f"bash runs {word.text} as a command: the line before does not end with \\"
            yield Found(word.start, text)
            return
    for one in script.assignments:  # the grammar reads --name=$VALUE as an assignment
        if re.match(r"--?[A-Za-z]", one.name) and not one.prefix:
            text = f"bash runs {one.name} as a command: the line before does not end with \\"
            yield Found(one.start, text)
            return


@rule(
    "blank-after-backslash",
    "error",
    "a blank after the backslash at the end of a line",
    section=SECTION,
    source="bash(1): only a backslash directly before the line end continues the line",
    fix="remove the blank",
    bad="python train.py \\ \n  --lr 0.1\n",
    good="python train.py \\\n  --lr 0.1\n",
)
def _(script: Script) -> Iterator[Found]:
    lines = list(iterate_lines(script.data))
    for (start, line), (_, follows) in itertools.pairwise(lines):
        found = re.search(r"(?<!\\)\\([ \t]+)\r?$", line)
        if found is None or line.lstrip().startswith("#") or not follows.strip():
            continue
        if re.search(r"\s#", line) or _in_text(script, start + found.start()):
            continue
        if re.match(r"\s*(-|[\w./$\"'{]+)", follows):
            begin = start + len(line[: found.start(1)].encode("utf-8", "surrogateescape"))
            edit = Edit(begin, begin + len(found[1]), "")
            yield Found(begin - 1, "the command ends here: a blank follows the backslash", edit)


@rule(
    "redirect-alone",
    "warning",
    "a redirection or a pipe that belongs to no command",
    section=SECTION,
    source="bash(1): the command before has ended, so nothing is redirected",
    fix="end the line before with a backslash",
    bad="#SBATCH -N 1\npython train.py\n2>&1 | tee log.txt\n",
    good="#SBATCH -N 1\npython train.py 2>&1 | tee log.txt\n",
)
def _(script: Script) -> Iterator[Found]:
    for start, line in iterate_lines(script.data):
        if not re.match(r"\s*(2?>&?1?\s*\||2>&1\b|&>\s*\S)", line) or start == 0:
            continue
        before = script.data[: start - 1].rsplit(b"\n", 1)[-1].rstrip()
        if (
            before
            and not before.endswith((b"\\", b"|", b"&&"))
            and not before.startswith(b"#")
            and not _in_text(script, start)
        ):
            at = start + len(line) - len(line.lstrip())
            yield Found(at, "nothing is redirected: the command before has ended")
            return


@rule(
    "smart-quotes",
    "error",
    "typographic quotes or no-break spaces in a command",
    section=SECTION,
    source="bash takes them for ordinary characters of a word",
    fix="write ASCII quotes and blanks",
    bad="#SBATCH -N 1\npython train.py --name \u201ca b\u201d\n",
    good='#SBATCH -N 1\npython train.py --name "a b"\necho "\u201cquoted\u201d"\n',
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        for word in command.words:
            raw = script.data[word.start : word.end].decode("utf-8", "replace")
            if word.quoted or raw[:1] in "'\"":
                continue
            bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", raw)
            if found := re.search("[\u201c\u201d\u2018\u2019\u00a0]", bare):
                if command.name in ("echo", "printf"):
                    continue
                name = "a no-break space" if found[0] == "\u00a0" else f"the quote {found[0]}"
                yield Found(word.start, f"bash takes {name} for a part of the word")
                return


@rule(
    "alias-not-expanded",
    "error",
    "an alias in a script",
    section=SECTION,
    source="bash(1): aliases are not expanded in scripts without shopt -s expand_aliases",
    fix="write a function",
    bad="#SBATCH -N 1\nalias run='python -u'\nrun train.py\n",
    good="#SBATCH -N 1\nshopt -s expand_aliases\nalias run='python -u'\nrun train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if "expand_aliases" in script.text:
        return
    names = set()
    for command in script.commands:
        if command.name == "alias":
            names |= {word.split("=")[0] for word in command.args if "=" in word}
    for command in script.commands:
        if command.name in names - {"ls", "ll", "rm", "cp", "mv", "grep"}:
            yield Found(command.start, f"bash does not expand the alias {command.name} in scripts")
            return


@rule(
    "dangerous-remove",
    "warning",
    "rm -r of a path that begins with a variable that may be empty",
    section=SECTION,
    source="an empty variable leaves the root of the path",
    fix='rm -rf "${DIR:?}/..."',
    bad="#SBATCH -N 1\nrm -rf $OUT/*\npython t.py\n",
    good="#SBATCH -N 1\nOUT=results\nrm -rf $OUT/*\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    safe = {"SLURM_TMPDIR", "TMPDIR", "HOME", "USER", "SLURM_SUBMIT_DIR", "SLURM_JOB_ID", "PWD"}
    assigned = {one.name for one in script.assignments}
    for command in script.commands:
        if command.name != "rm" or not any(re.match(r"-\w*r", word) for word in command.args):
            continue
        for word in command.words[1:]:
            raw = script.data[word.start : word.end].decode("utf-8", "replace")
            found = re.match(r"\"?\$\{?(\w+)\}?\"?/(\*|\")?$|\"?\$\{?(\w+)\}?\"?/\*", raw)
            name = (found[1] or found[3]) if found else ""
            if name and name not in safe and name not in assigned and not is_whole_number(name):
                yield Found(word.start, f"if {name} is empty, this removes /: use ${{{name}:?}}")
                return


@rule(
    "copy-on-first-node",
    "note",
    "data copied to the local disk of the first node only",
    section=SECTION,
    source="sbatch(1): the script runs on the first node",
    fix="srun --ntasks-per-node=1 cp ...",
    bad="#SBATCH -N 2\ncp data.tar $TMPDIR/\nsrun python train.py --data $TMPDIR\n",
    good="#SBATCH -N 2\nsrun --ntasks-per-node=1 cp data.tar $TMPDIR/\nsrun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script):
        return
    local = (
        r"/tmp/|\$\{?(SLURM_TMPDIR|TMPDIR|LOCAL_SCRATCH|SCRATCHDIR)\b|/dev/shm/|/local_?scratch/"
    )
    for command in script.commands:
        if command.name in ("cp", "rsync", "tar", "unzip") and not command.branch and command.args:
            last = command.words[-1]
            raw = script.data[last.start : last.end].decode("utf-8", "replace")
            if re.match(rf"\"?({local})", raw) and not command.pipes_into:
                yield Found(command.start, f"{raw} of the other nodes stays empty")
                return


@rule(
    "buffered-output",
    "note",
    "Python's output is delayed",
    section=SECTION,
    source="Python buffers output that goes to a file: the last lines are lost if it is killed",
    fix="python -u, or export PYTHONUNBUFFERED=1",
    bad="#SBATCH -N 1\npython train.py\n",
    good="#SBATCH -N 1\npython -u train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if "PYTHONUNBUFFERED" in script.text or not script.directives:
        return
    for program in list_training(script):
        if (
            program.kind == "python"
            and not any("u" in one.name for one in program.options)
            and not program.container
        ):
            yield Found(program.command.start, "lines appear late, and are lost on a kill")
            return


@rule(
    "unset-variable",
    "warning",
    "a variable that is assigned only below its use",
    section=SECTION,
    source="bash(1): an unset variable is empty",
    fix="assign it above",
    bad="#SBATCH -N 1\npython train.py --lr $LR\nLR=0.1\n",
    good="#SBATCH -N 1\nLR=0.1\npython train.py --lr $LR\n",
)
def _(script: Script) -> Iterator[Found]:
    first: dict[str, int] = {}
    for one in script.assignments:
        first.setdefault(one.name, one.start)
    if any(re.search(r"\b(read|mapfile|getopts|source|\.)\b", one.name) for one in script.commands):
        return
    for use in script.uses:
        start = first.get(use.name)
        if start is None or use.start >= start or use.default or use.name.isupper() is False:
            continue
        inside = [c for c in script.commands if c.start <= use.start < c.end]
        if any(c.function or c.branch for c in inside) or not inside:
            continue
        if use.name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "TMPDIR"):
            continue
        if any(
            c.name in ("python", "srun", "torchrun") for c in inside
        ) and not use.name.startswith(("SLURM", "CUDA", "NCCL")):
            line = script.line_of(start)
            text = f"{use.name} is empty here: it is assigned in line {line}"
            yield Found(use.start, text)
            return


@rule(
    "syntax-error",
    "error",
    "a script that bash cannot parse",
    section=SECTION,
    source="bash -n",
    fix="close the quote, the bracket or the block",
    bad="#SBATCH -N 1\nif true; then\n  python t.py\n",
    good="#SBATCH -N 1\nif true; then\n  python t.py\nfi\n",
)
def _(script: Script) -> Iterator[Found]:
    message = str(script.cache.get("syntax") or "")
    found = re.search(r"line (\d+): (.*)", message)
    if found and script.is_shell and not script.data.count(b"\r\n"):
        starts = [start for start, _ in iterate_lines(script.data)]
        line = min(int(found[1]), len(starts))
        yield Found(starts[line - 1], f"bash: {found[2]}")


def _in_text(script: Script, at: int) -> bool:
    """Return True if a byte is inside a string or a here-document."""
    node = script.tree.root_node.descendant_for_byte_range(at, at)
    while node is not None:
        if node.type in ("string", "raw_string", "heredoc_body", "comment", "ansi_c_string"):
            return True
        node = node.parent
    return False
