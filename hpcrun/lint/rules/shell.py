"""Rules for bash: broken lines, quoting and dangerous commands."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator

from hpcrun.lint.launch import find_programs
from hpcrun.lint.request import is_exclusive, is_multi_node, list_training, requests_gpus
from hpcrun.lint.rule import Edit, Found, rule
from hpcrun.lint.script import Script, Use, iterate_lines, show
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
            line = script.describe_line(start, use.start)
            text = f"{use.name} is empty here: it is assigned in {line}"
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


@rule(
    "dollar-missing",
    "warning",
    "the name of a variable without `$`",
    section=SECTION,
    source="bash(1): without $, a name is an ordinary word",
    fix="$NAME",
    bad="#SBATCH -N 1\nOUT_DIR=results\npython train.py --out OUT_DIR\n",
    good='#SBATCH -N 1\nOUT_DIR=results\npython train.py --out "$OUT_DIR"\nexport OUT_DIR\n',
)
def _(script: Script) -> Iterator[Found]:
    builtins = {"export", "unset", "read", "declare", "local", "readonly", "mapfile", "readarray"}
    builtins |= {"for", "let", "printf", "getopts", "typeset", "echo", "test", "[", "trap"}
    shell = {"PWD", "HOME", "USER", "HOSTNAME", "SLURM_JOB_ID", "SLURM_SUBMIT_DIR", "TMPDIR"}
    for one in script.assignments:
        if one.value.text in shell - {one.name} and not one.value.quoted and one.items is None:
            text = f"{one.name} is the word {one.value.text}, not the value of the variable"
            yield Found(one.start, text)
            return
    own = {
        one.name
        for one in script.assignments
        if len(one.name) > 3 and "_" in one.name and not one.prefix
    }
    for command in script.commands:
        if command.name in builtins or {"-x", "-genvlist", "--env", "-e"} & set(command.args):
            continue  # options of mpirun and docker that take names
        for word in command.words[1:]:
            name = word.text.rpartition("=")[2] if word.text.startswith("-") else word.text
            is_plain = script.data[word.start : word.end].decode("utf-8", "replace") == word.text
            if name in own and is_plain and not word.quoted and f"-{name}" != word.text:
                yield Found(word.start, f"{name} is a word here, not the value of the variable")
                return


@rule(
    "spaced-assignment",
    "error",
    "blanks around the `=` of an assignment",
    section=SECTION,
    source="bash(1), Simple Commands: NAME=VALUE is one word",
    fix="NAME=VALUE",
    bad="#SBATCH -N 1\nLR = 0.1\npython train.py --lr $LR\n",
    good="#SBATCH -N 1\nLR=0.1\npython train.py --lr $LR\n",
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        words = command.words
        names = words[1:2] if command.name in ("export", "local") else words[:1]
        after = words[2:3] if command.name in ("export", "local") else words[1:2]
        if names and after and re.fullmatch(r"[A-Za-z_]\w*", names[0].text):
            raw = script.data[after[0].start : after[0].end]
            first = script.data[names[0].start : names[0].end].decode("utf-8", "replace")
            if raw[:1] == b"=" and raw[:2] not in (b"==", b"=~") and first == names[0].text:
                yield Found(names[0].start, f"bash runs {names[0].text} as a command")
                return


@rule(
    "broken-test",
    "error",
    "`[` without the blanks that it needs",
    section=SECTION,
    source="bash(1): [ is a command, and ] its last argument",
    fix='[ "$A" = 1 ]',
    bad='#SBATCH -N 1\nif ["$A" = 1 ]; then\n  python t.py\nfi\n',
    good='#SBATCH -N 1\nif [ "$A" = 1 ]; then\n  python t.py\nfi\n',
)
def _(script: Script) -> Iterator[Found]:
    for start, line in iterate_lines(script.data):
        found = re.match(r"\s*(?:if|elif|while|until)\s+(?:!\s*)?(\[\[?)([^\s\[])", line)
        if found and not _in_text(script, start + len(line[: found.start(1)].encode())):
            at = start + len(line[: found.start(1)].encode("utf-8", "surrogateescape"))
            yield Found(at, f"{found[1]} and {found[2]} are one word: a blank is missing")
            return
        found = re.match(
            r"\s*(?:if|elif|while|until)\s+(?:!\s*)?\[\[?\s.*[^\s\]](\]\]?)\s*(;|$)", line
        )
        if found and not re.search(r"\[[^\s\]]*\]\s*(;|$)|\}\]", line):
            at = start + len(line[: found.start(1)].encode("utf-8", "surrogateescape"))
            yield Found(at, f"{found[1]} is a part of the word before: a blank is missing")
            return


# Variables that a login, a module or Slurm may set.
_FROM_OUTSIDE = (
    r"SLURM\w*|SBATCH\w*|SRUN\w*|CUDA\w*|CONDA\w*|VIRTUAL_ENV|EB\w+|LMOD\w*|MODULE\w*|PBS\w*|"
    r"\w*(SCRATCH|WORK|PROJECT|STORE|HOME|ROOT|TMP|FAST|GROUP|CACHE|TOKEN|KEY|PREFIX|VERSION)\w*|"
    r"(LD_|DY)?\w*PATH|USER(NAME)?|LOGNAME|PWD|OLDPWD|SHELL|HOST(NAME|TYPE)?|RANDOM|UID|EUID|PPID|"
    r"SECONDS|LINENO|BASH\w*|IFS|PIPESTATUS|FUNCNAME|REPLY|OPT(ARG|IND)|LANG|LC_\w+|TERM|DISPLAY|"
    r"NCCL\w*|OMP\w*|HF_\w*|WANDB\w*|GPU_DEVICE_ORDINAL|ROCR\w*|HIP\w*|MASTER_\w+|EPOCHREALTIME|"
    r"EPOCHSECONDS|PYTHON\w*|HTTPS?_PROXY|JOB_ID|DEBUG|PROCID|RANK|LOCAL_RANK|WORLD_SIZE|NODE_RANK"
)


# Commands that assign variables, and files that set up an environment only.
_OTHER_ASSIGNMENTS = (
    r"(?m)(?:^|[;&|]|\b(?:then|do|while|until|if)\b)[ \t]*(?:IFS=\S*[ \t]+)?"
    r"(?:read|mapfile|readarray|getopts|eval|printf -v|select|let|declare -n|local|typeset|coproc)"
    r"\b|--export=(?!ALL\b|NONE\b)"
)
_SETUP_FILES = r"activate|bashrc|conda\.sh|profile|init|modules"


def _reads_from_outside(script: Script) -> bool:
    """Return True if the script reads other files, or assigns variables by other means."""
    return bool(re.search(_OTHER_ASSIGNMENTS, script.text)) or any(
        one.name in ("source", ".") and not any(re.search(_SETUP_FILES, word) for word in one.args)
        for one in script.commands
    )


@rule(
    "misspelled-own-variable",
    "warning",
    "a variable that is never set, with a name like one that is",
    section=SECTION,
    source="bash(1): an unset variable is empty",
    fix="write the name that was meant",
    bad="#SBATCH -N 1\nOUTPUT_DIR=results\npython train.py --out $OUTPT_DIR\n",
    good="#SBATCH -N 1\nOUTPUT_DIR=results\npython train.py --out $OUTPUT_DIR\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or _reads_from_outside(script):
        return
    for use in _never_set(script):
        known = {one.name for one in script.assignments if len(one.name) > 3}
        close = difflib.get_close_matches(use.name, known, 1, cutoff=0.85)
        same = [one for one in known if one.upper() == use.name.upper()]
        if (meant := (same or close)[:1]) and not meant[0][-1:].isdigit():
            yield Found(use.start, f"{use.name} is empty: nothing sets it; {meant[0]} was meant")
            return


@rule(
    "variable-never-set",
    "note",
    "a variable that the script does not set",
    section=SECTION,
    source="bash(1): an unset variable is empty; sbatch passes on the submitter's variables only",
    fix="set it in the script, or give a default: ${NAME:-value}",
    bad="#SBATCH -N 1\npython train.py --data $dataset\n",
    good="#SBATCH -N 1\ndataset=imagenet\npython train.py --data $dataset\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or _reads_from_outside(script):
        return
    for use in _never_set(script):
        inside = [one for one in script.commands if one.start <= use.start < one.end]
        if any(one.name in ("echo", "printf") for one in inside):
            continue
        yield Found(use.start, f"{use.name} is empty unless the submitter's shell exports it")
        return


def _never_set(script: Script) -> Iterator[Use]:
    """Yield the uses of variables that neither the script nor, usually, its environment sets."""
    names = {one.name for one in script.assignments}
    loops = set(re.findall(r"\bfor\s+(?:\(\(\s*)?(\w+)", script.text))
    loops |= set(re.findall(r"\b(\w+)\+\+", script.text))
    tested = {use.name for use in script.uses if use.default}
    for use in script.uses:
        if use.name in names | loops | tested or not re.fullmatch(r"[A-Za-z_]\w+", use.name):
            continue
        raw = script.data[use.start : use.end]
        if b"`" in raw or b"$(" in raw:
            continue  # a word of a command inside $((...))
        if re.fullmatch(_FROM_OUTSIDE, use.name) or _in_quoted_heredoc(script, use.start):
            continue
        if re.search(rf"\b(export|declare|unset)\b[^\n]*\b{use.name}\b", script.text):
            continue
        yield use


def _in_quoted_heredoc(script: Script, at: int) -> bool:
    node = script.tree.root_node.descendant_for_byte_range(at, at)
    while node is not None:
        if node.type == "heredoc_body":
            return True
        node = node.parent
    return False


@rule(
    "continuation-swallows-command",
    "warning",
    "a backslash that joins the next command to the arguments",
    section=SECTION,
    source="bash(1): a backslash before the line end continues the line",
    fix="remove the backslash from the last line of the command",
    bad="#SBATCH -N 1\npython train.py \\\n  --lr 0.1 \\\necho done\n",
    good="#SBATCH -N 1\npython train.py \\\n  --lr 0.1\necho done\n",
)
def _(script: Script) -> Iterator[Found]:
    lines = list(iterate_lines(script.data))
    for (start, line), (following, after) in itertools.pairwise(lines):
        if not line.endswith("\\") or line.lstrip().startswith("#") or _in_text(script, start):
            continue
        if line.rstrip("\\ ").endswith(("&&", "||", "|", ";", "then", "do", "(")) or line == "\\":
            continue
        found = re.match(
            r"(echo|srun|python3?|torchrun|deactivate|conda|module|wait|exit|date|cd|export|rm)\s",
            after + " ",
        )
        before = line.split()
        starts = re.match(
            r"\s*(srun|time|exec|nohup|env|mpirun|singularity|apptainer|bash|sh|if|while|\w+=)",
            line,
        )
        if found and before and not starts and (line.lstrip().startswith("-") or len(before) > 2):
            if re.match(r"\s*-\S*\s*\\$", line) or re.search(
                r"--\s*\\$|\.(sif|simg|img)\s*\\$", line
            ):
                continue
            owner = next((c for c in script.commands if c.start <= following < c.end), None)
            if owner is None or owner.name in (
                "srun",
                "mpirun",
                "singularity",
                "apptainer",
                "time",
            ):
                continue
            yield Found(following, f"{found[1]} is an argument of the command before")
            return


@rule(
    "prompt-copied",
    "error",
    "a prompt in front of a command",
    section=SECTION,
    source="bash(1): the first word is the command, so bash looks for one with this name",
    fix="remove the first character",
    bad="#SBATCH -N 1\n$ module load cuda/12.4\npython t.py\n",
    good="#SBATCH -N 1\nmodule load cuda/12.4\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for start, line in iterate_lines(script.data):
        found = re.match(r"\s*([$?%>])[ \t]+(?=[A-Za-z./])", line)
        if found and not _in_text(script, start + len(line) - len(line.lstrip())):
            before = script.data[: max(start - 1, 0)].rsplit(b"\n", 1)[-1].rstrip()
            if not before.endswith(b"\\") and found[1] != ">":
                yield Found(start + found.start(1), f"bash runs {found[1]} as a command")
                return


@rule(
    "lone-dollar",
    "warning",
    "a `$` at the end of a name",
    section=SECTION,
    source="bash(1): a $ without a name is an ordinary character",
    fix="$$ for the process id, or $SLURM_JOB_ID",
    bad="#SBATCH -N 1\nHOSTS=hosts.$\nsrun hostname > $HOSTS\n",
    good="#SBATCH -N 1\nHOSTS=hosts.$$\nsrun hostname > $HOSTS\ngrep 'x$' $HOSTS\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in script.assignments:
        raw = script.data[one.start : one.end]
        if one.items is None and re.search(rb"[\w.]\$\"?$", raw) and b"'" not in raw:
            yield Found(one.start, f"{show(one.value.text)} ends with the character $")
            return


@rule(
    "unquoted-array",
    "note",
    "an array or the arguments without quotes",
    section=SECTION,
    source="bash(1), Word Splitting: elements with blanks or * become several words",
    fix='"${ARRAY[@]}", "$@"',
    bad="#SBATCH -N 1\npython train.py $@\n",
    good='#SBATCH -N 1\npython train.py "$@"\n',
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    for program in list_training(script):
        for word in program.command.words:
            raw = script.data[word.start : word.end]
            if re.fullmatch(rb"\$@|\$\*|\$\{@\}|\$\{@:\d+\}|\$\{\w+\[[@*]\]\}", raw):
                text = f"{raw.decode()} without quotes splits values with blanks"
                yield Found(word.start, text)
                return


@rule(
    "redirect-in-test",
    "warning",
    "`<` or `>` in `[ ... ]`",
    section=SECTION,
    source="bash(1): in [ ... ] a bare > is a redirection, which creates a file",
    fix='[ "$A" -gt 5 ]',
    bad="#SBATCH -N 1\nif [ $N > 5 ]; then\n  python t.py\nfi\n",
    good="#SBATCH -N 1\nif [ $N -gt 5 ]; then\n  python t.py\nfi\n",
)
def _(script: Script) -> Iterator[Found]:
    pattern = re.compile(
        rb"(?m)^[^#\n'\"]*(?:\bif|\bwhile|&&|\|\|)\s+\[ [^\]\n\"']*?\s([<>])\s+\S+\s*\]"
    )
    if found := pattern.search(script.data):
        yield Found(found.start(1), f"{found[1].decode()} is a redirection here, not a comparison")


@rule(
    "text-compared-as-number",
    "warning",
    "-eq or -ne with a text",
    section=SECTION,
    source="bash(1): [ ] refuses it; [[ ]] takes it for a variable, which is 0 if it is not set",
    fix="= or !=",
    bad="#SBATCH -N 1\nA=$1\nif [[ $A -eq small ]]; then python t.py; fi\n",
    good="#SBATCH -N 1\nA=$1\nif [[ $A == small || $A -eq 2 ]]; then python t.py; fi\n",
)
def _(script: Script) -> Iterator[Found]:
    known = {one.name for one in script.assignments}
    pattern = rb"(?m)^[^#\n]*\[[^\n]*?\s(-eq|-ne)\s+[\"']?([A-Za-z][\w+-]*)[\"']?\s*\]"
    for found in re.finditer(pattern, script.data):
        word = found[2].decode("utf-8", "surrogateescape")
        if word not in known and word != "RANDOM" and not word.startswith("SLURM"):
            yield Found(found.start(1), f"{found[1].decode()} compares numbers, not {word}")
            return


@rule(
    "old-arithmetic",
    "note",
    "`$[ ... ]`",
    section=SECTION,
    source="bash: the old form of $(( ... )), which is no longer documented",
    fix="$(( ... ))",
    bad="#SBATCH -N 1\nN=$[ 2 * 4 ]\npython t.py $N\n",
    good="#SBATCH -N 1\nN=$(( 2 * 4 ))\npython t.py $N\n",
)
def _(script: Script) -> Iterator[Found]:
    if found := re.search(rb"(?m)^[^#\n']*(\$\[)", script.data):
        yield Found(found.start(1), "$[ ] is obsolete, and may go away")


@rule(
    "kills-other-jobs",
    "warning",
    "a command that kills processes of other jobs on the node",
    section=SECTION,
    source="pkill(1) and killall(1) match all processes of the user on the node",
    fix="kill the process ids that the script started",
    bad="#SBATCH -N 1\npkill python\npython train.py\n",
    good="#SBATCH -N 1\npython train.py &\nPID=$!\nsleep 60\nkill $PID\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or is_exclusive(script):
        return
    for program in find_programs(script):
        if program.kind in ("pkill", "killall"):
            yield Found(
                program.command.start, f"{program.kind} ends other jobs of the same user, too"
            )
            return
        if program.kind == "xargs" and "kill" in program.args[:3]:
            text = "this ends all processes that match, also those of other jobs"
            yield Found(program.command.start, text)
            return
        if program.kind == "kill" and program.command.branch:
            line = script.data[: program.command.end].decode("utf-8", "replace").rsplit("for ", 1)
            if len(line) > 1 and re.search(r"\b(lsof|ps|pgrep|fuser|nvidia-smi)\b", line[1]):
                text = "this ends all processes that the loop lists, also those of other jobs"
                yield Found(program.command.start, text)
                return
        if program.kind == "ray" and program.args[:1] == ["stop"]:
            yield Found(
                program.command.start, "ray stop ends the Ray of other jobs on the node, too"
            )
            return


@rule(
    "sudo-in-job",
    "warning",
    "`sudo` or a package manager of the system",
    section=SECTION,
    source="users of a cluster have no root rights on its nodes, and sudo asks for a password",
    fix="use a module, conda or a container",
    bad="#SBATCH -N 1\nsudo apt-get install -y ffmpeg\npython t.py\n",
    good="#SBATCH -N 1\nmodule load ffmpeg/6.0\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    for command in script.commands:
        if command.name in ("sudo", "apt", "apt-get", "yum", "dnf"):
            yield Found(
                command.start, f"{command.name} needs root rights, which a job does not have"
            )
            return


@rule(
    "download-in-job",
    "note",
    "a download while the job runs",
    section=SECTION,
    source="compute nodes of many sites have no internet; GPUs wait for the download",
    fix="download before the job, on a login node",
    bad="#SBATCH --gres=gpu:1\nwget https://example.org/data.tar\npython t.py\n",
    good="#SBATCH --gres=gpu:1\npython t.py --data data.tar\n",
)
def _(script: Script) -> Iterator[Found]:
    if not requests_gpus(script):
        return
    for command in script.commands:
        words = [command.name, *command.args]
        fetches = command.name in ("wget", "gdown", "aria2c", "kaggle")
        fetches = fetches or (
            command.name == "curl" and any(re.match("https?:", one) for one in words)
        )
        fetches = fetches or (
            command.name == "git" and words[1:2] in (["clone"], ["pull"], ["fetch"])
        )
        fetches = fetches or (words[:2] in (["huggingface-cli", "download"], ["hf", "download"]))
        fetches = fetches or (
            command.name == "aws" and words[1:3] in (["s3", "cp"], ["s3", "sync"])
        )
        if (
            fetches
            and not command.function
            and not re.search(r"localhost|127\.0\.0|169\.254|POST|--data|-d ", " ".join(words))
        ):
            yield Found(
                command.start, f"{command.name} needs the internet, while the GPUs are idle"
            )
            return


@rule(
    "queries-slurm-in-a-loop",
    "note",
    "a loop that queries Slurm",
    section=SECTION,
    source="squeue(1), PERFORMANCE: do not run it from loops in scripts",
    fix="--dependency=afterok:JOB instead of waiting",
    bad="#SBATCH -N 1\nwhile squeue -u $USER | grep -q prep; do sleep 5; done\npython t.py\n",
    good="#SBATCH -N 1\n#SBATCH --dependency=afterok:123\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    pattern = rb"(?m)^\s*(while|until)\b[^\n#]*\b(squeue|sacct|scontrol show job)\b"
    if found := re.search(pattern, script.data):
        yield Found(found.start(1), "each query loads Slurm's controller")


def _in_text(script: Script, at: int) -> bool:
    """Return True if a byte is inside a string or a here-document."""
    node = script.tree.root_node.descendant_for_byte_range(at, at)
    while node is not None:
        if node.type in ("string", "raw_string", "heredoc_body", "comment", "ansi_c_string"):
            return True
        node = node.parent
    return False


# Commands that prepare a program, and those that change or show nothing else.
_PREPARES = {"module", "ml", "conda", "mamba", "cd", "source", "."}
_IDLE = {
    *("echo", "printf", "date", "pwd", "mkdir", "export", "set", "unset", "ulimit", "umask"),
    *("shopt", "wait", "exit", "[", "test", "true", ":", "deactivate", "list", "type"),
}


@rule(
    "runs-nothing",
    "warning",
    "a script that prepares an environment, and starts no program in it",
    section=SECTION,
    source="sbatch(1): the job ends with the script; here its state is COMPLETED at once",
    fix="add the program, or remove the # before it",
    bad="#SBATCH -N 1\nmodule load cuda/12.4\n# python train.py\n",
    good="#SBATCH -N 1\nmodule load cuda/12.4\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    prepares = [one for one in script.commands if one.name in _PREPARES]
    activates = re.compile(r"activate|\.bashrc|\.bash_profile|profile\.d/|conda\.sh|/etc/profile")
    runs = [
        one
        for one in script.commands
        if one.name not in _IDLE | _PREPARES
        or (one.name in ("source", ".") and not activates.search(" ".join(one.args)))
        or (one.name in ("conda", "mamba") and one.args[:1] not in (["activate"], ["deactivate"]))
    ]
    if prepares and not runs:
        yield Found(prepares[-1].start, "no command of the script starts a program")


@rule(
    "commands-after-exit",
    "warning",
    "a program below an exit that always runs",
    section=SECTION,
    source="bash(1): exit ends the script",
    fix="remove the exit, or the program",
    bad="#SBATCH -N 1\npython train.py\nexit\npython eval.py\n",
    good="#SBATCH -N 1\npython train.py || exit 1\npython eval.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        is_certain = not (command.branch or command.function or command.depends)
        if command.name != "exit" or not is_certain or command.substituted:
            continue
        for program in list_training(script):
            if program.command.start > command.end and not program.command.function:
                line = script.describe_line(command.start, program.command.start)
                yield Found(program.command.start, f"the script ends before, in {line}: exit")
                return
        return
