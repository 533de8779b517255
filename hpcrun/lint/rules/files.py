"""Rules for the files that a script reads and writes, and for paths in its commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcrun.lint.request import is_array, list_indices, list_started, list_training
from hpcrun.lint.rule import Found, rule
from hpcrun.lint.script import OPEN, Command, Script, show, unknown_parts

SECTION = "Files and paths"
_OWN_NAME = r"SLURM_|RANDOM|date|uuid|mktemp|\bi\b|TASK|SEED|seed|\$\$|[1-9@*#]$"
# Options of training programs that name what must survive the job.
_RESULTS = (
    r"--?(\w+[-_])*(out(put)?|save|ckpts?|checkpoints?|results?)([-_](dir|path|folder|root))?"
)
_COPIES = ("cp", "mv", "rsync", "tar", "scp", "zip")


def _written_files(command: Command) -> Iterator[tuple[str, bool]]:
    """Yield the files to which a command writes, as written, and whether it appends."""
    for text in command.redirects:
        found = re.fullmatch(r"(?:[12]|&)?(>>?\|?)\s*(\S.*)", text, re.S)
        if (
            found
            and not re.search(r"\s", found[2])
            and not found[2].startswith(("&", "/dev/", "("))
        ):
            yield found[2].strip("\"'"), found[1].startswith(">>")


def _is_distinct(script: Script, target: str) -> bool:
    """Return True if a variable in the name of a file may differ from job to job."""
    names = re.findall(r"\$\{?(\w+)|\$\(([^)]*)\)|`([^`]*)`", target)
    for name, *commands in names:
        if commands[0] or commands[1]:
            return True
        assigned = [one for one in script.assignments if one.name == name]
        if not assigned or any(not one.value.constant or one.branch for one in assigned):
            return True
    return False


@rule(
    "file-shared-by-array",
    "warning",
    "a file that all tasks of an array write with `>`",
    section=SECTION,
    source="bash(1): > truncates the file; the tasks of an array run at the same time",
    fix="add $SLURM_ARRAY_TASK_ID to the name",
    bad="#SBATCH --array=0-9\npython t.py --seed $SLURM_ARRAY_TASK_ID > result.txt\n",
    good="#SBATCH --array=0-9\n"
    "python t.py --seed $SLURM_ARRAY_TASK_ID > result_$SLURM_ARRAY_TASK_ID.txt\n",
)
def _(script: Script) -> Iterator[Found]:
    indices = list_indices(script)
    if not indices or len(indices) < 2:
        return
    for command in script.commands:
        if command.substituted or command.function:
            continue
        for target, _ in _written_files(command):
            if not _is_distinct(script, target):
                yield Found(command.start, f"all {len(indices)} tasks write {target}")
                return


@rule(
    "results-overwritten",
    "note",
    "a file of the program's output with the same name in every job",
    section=SECTION,
    source="bash(1): > truncates the file; tee does so without -a",
    fix="add $SLURM_JOB_ID to the name, or append with >>",
    bad="#SBATCH -N 1\npython train.py > results.txt\n",
    good="#SBATCH -N 1\npython train.py > results.$SLURM_JOB_ID.txt\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or is_array(script):
        return
    for program in list_started(script):
        command = program.command
        if command.function:
            continue
        for target, appends in _written_files(command):
            if not appends and not _is_distinct(script, target):
                yield Found(command.start, f"the next job, or a restart, overwrites {target}")
                return
    tees = [one for one in script.commands if one.name == "tee" and one.args]
    for tee in tees:
        if not tee.args[0].startswith("-") and not tee.words[1].unknown:
            yield Found(tee.start, f"the next job, or a restart, overwrites {tee.args[0]}")
            return


@rule(
    "hostfile-shared",
    "warning",
    "a list of nodes in a file with the same name in every job",
    section=SECTION,
    source="two jobs that run in one directory overwrite each other's file",
    fix="add $SLURM_JOB_ID to the name",
    bad="#SBATCH -N 2\nscontrol show hostnames > hostfile\ndeepspeed --hostfile hostfile t.py\n",
    good="#SBATCH -N 2\nscontrol show hostnames > hosts.$SLURM_JOB_ID\n"
    "deepspeed --hostfile hosts.$SLURM_JOB_ID t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        names = {command.name, *command.pipes_into}
        if not names & {"echo", "scontrol", "srun", "printf", "sed", "awk", "sort", "cat", "uniq"}:
            continue
        for target, _ in _written_files(command):
            name = target.rpartition("/")[2]
            lists_nodes = re.search(
                r"(?i)hosts?_?(file|list|$)|machine_?file|node_?(list|file)", name
            )
            if lists_nodes and not _is_distinct(script, target):
                yield Found(command.start, f"another job in this directory overwrites {target}")
                return


@rule(
    "output-written-twice",
    "note",
    "a program that writes into the output file of the job",
    section=SECTION,
    source="the job's output has a position of its own in the file: lines overwrite each other",
    fix="remove the redirection, or choose another file",
    bad="#SBATCH --output=train.log\npython train.py >> train.log\n",
    good="#SBATCH --output=train.log\npython train.py >> metrics.log\n",
)
def _(script: Script) -> Iterator[Found]:
    files = {script.value(name).removeprefix("./") for name in ("output", "error")} - {""}
    for command in script.commands:
        for target, _ in _written_files(command):
            if target.removeprefix("./") in files:
                yield Found(command.start, f"{target} is the output file of the job, too")
                return


@rule(
    "results-on-local-disk",
    "warning",
    "results or checkpoints in /tmp",
    section=SECTION,
    source="/tmp is a local disk of each node; many sites empty it at the end of a job",
    fix="write to a shared file system, or copy the results at the end",
    bad="#SBATCH -N 1\npython train.py --output_dir /tmp/run\n",
    good="#SBATCH -N 1\npython train.py --output_dir /tmp/run\ncp -r /tmp/run results/\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    local = r"/tmp/|/var/tmp/|/dev/shm/|/local_?scratch/"
    for program in list_training(script):
        last = program.command.end
        copies = [one for one in script.commands if one.name in _COPIES]
        if any(one.start > last or one.function for one in copies):
            continue
        words = program.args
        for index, word in enumerate(words):
            name, equals, value = word.partition("=")
            if not equals and index + 1 < len(words):
                value = words[index + 1]
            if re.fullmatch(_RESULTS, name) and re.match(local, value):
                text = f"{show(value)} is lost with the node, and other nodes do not see it"
                yield Found(program.command.start, text)
                return
    changes = [one for one in script.commands if one.name == "cd" and not one.function]
    for program in list_training(script)[-1:]:
        before = [one for one in changes if one.end < program.command.start and one.args]
        folder = show(before[-1].args[0]) if before else ""
        is_local = re.match(rf"{local}|\$\{{?(SLURM_TMPDIR|TMPDIR|LOCAL_SCRATCH)\b", folder)
        copies = [one for one in script.commands if one.name in _COPIES]
        if not is_local or any(one.start > program.command.end or one.function for one in copies):
            continue
        names = [word.partition("=")[0] for word in program.args]
        if not any(re.fullmatch(_RESULTS, name) for name in names):
            text = f"results in relative paths are lost: {folder} is removed with the job"
            yield Found(before[-1].start, text, severity="note")
            return


@rule(
    "shared-temporary-path",
    "note",
    "a fixed path in /tmp",
    section=SECTION,
    source="/tmp is shared by all jobs on a node, and a folder there belongs to one user",
    fix='use "$TMPDIR", or a path with $SLURM_JOB_ID',
    bad="#SBATCH -N 1\ntar -xf data.tar -C /tmp/data\npython t.py\n",
    good="#SBATCH -N 1\ntar -xf data.tar -C /tmp/data-$SLURM_JOB_ID\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    pattern = re.compile(r"(?:^|[=:])((?:/var)?/tmp/[\w.-]+|/dev/shm/[\w.-]+)")

    def is_fixed(text: str) -> str:
        found = pattern.search(text)
        rest = text[found.end() :] if found else ""
        if (
            found is None
            or rest.startswith(OPEN)
            or re.search(_OWN_NAME, "".join(unknown_parts(rest)))
        ):
            return ""
        return found[1]

    for one in script.assignments:
        if one.exported and one.items is None and (path := is_fixed(one.value.text)):
            yield Found(one.start, f"two jobs on a node share {path}")
            return
    for command in script.commands:
        if command.name in ("mkdir", "cp", "rsync", "tar", "unzip", "mv") and not command.function:
            for word in command.words[1:]:
                if path := is_fixed(word.text):
                    yield Found(word.start, f"two jobs on a node share {path}")
                    return


@rule(
    "output-discarded",
    "note",
    "the job's output or errors sent to /dev/null",
    section="Output files",
    source="sbatch(1), --output: without a file there is nothing that explains a failure",
    fix="write a file with %j in its name",
    bad="#SBATCH --output=/dev/null\n",
    good="#SBATCH --output=%j.out\n",
)
def _(script: Script) -> Iterator[Found]:
    for name in ("output", "error"):
        one = script.option(name)
        if one is not None and one.value == "/dev/null":
            yield Found(one.start, f"--{name}=/dev/null: a failure leaves no message")


@rule(
    "pattern-in-command",
    "warning",
    "a file pattern of Slurm, such as `%j`, in a command",
    section=SECTION,
    source="sbatch(1), filename pattern: only options such as --output expand %j, bash does not",
    fix="$SLURM_JOB_ID for %j, $USER for %u, $SLURM_ARRAY_TASK_ID for %a",
    bad="#SBATCH -N 1\npython train.py --out /scratch/%u/run_%j\n",
    good="#SBATCH -N 1\nsrun --output=%j_%t.out python train.py --out /scratch/$USER\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    pattern = re.compile(r"(?:^|[/_.=-])(%[jAuxNJ])(?=$|[/_.-])|%A_%a")
    readers = {"srun", "sbatch", "date", "printf", "find", "stat", "awk", "sed", "squeue", "sacct"}
    readers |= {"echo", "strftime", "ps", "time"}
    values = [
        (one.start, one.value.text)
        for one in script.assignments
        if one.items is None and not re.search(r"(?i)format|fmt", one.name)
    ]
    for command in script.commands:
        if command.name in readers:
            continue
        values += [(word.start, word.text) for word in command.words[1:]]
    for program in list_started(script):
        if program.command.name == "srun":
            values += [(program.command.start, word) for word in program.args]
    for start, text in values:
        found = pattern.search(re.sub(f"{OPEN}.*", "", text))
        if found and not re.search(r"%[HMSYmd]", text):
            yield Found(start, f"bash does not expand {found[1] or found[0]} in {show(text)}")
            return


@rule(
    "tilde-not-expanded",
    "warning",
    "a `~` that bash does not expand",
    section=SECTION,
    source="bash(1), Tilde Expansion: only at the beginning of an unquoted word",
    fix="$HOME",
    bad='#SBATCH -N 1\nDATA="~/data"\npython t.py --data $DATA\n',
    good='#SBATCH -N 1\nDATA=~/data\npython t.py --data "$DATA"\necho "~/data"\n',
)
def _(script: Script) -> Iterator[Found]:
    for one in script.assignments:
        raw = script.data[one.value.start : one.value.end]
        if raw[:2] in (b'"~', b"'~") and raw[2:3] in (b"/", b'"', b"'"):
            yield Found(
                one.start, f"{one.name} begins with the character ~: quotes keep it as it is"
            )
            return
    for command in script.commands:
        if command.name in ("echo", "printf", "sed", "awk", "grep") or command.substituted:
            continue
        for word in command.words[1:]:
            raw = script.data[word.start : word.end]
            if re.match(rb"--?[\w.-]+=~/|\"~/|'~/", raw):
                yield Found(word.start, f"bash does not expand the ~ in {show(word.text)}")
                return


@rule(
    "script-path-is-spool",
    "warning",
    "the folder of the script by `$0` or `BASH_SOURCE`",
    section=SECTION,
    source="sbatch(1): slurmd runs a copy of the script in its spool directory",
    fix="$SLURM_SUBMIT_DIR, or an absolute path",
    bad='#SBATCH -N 1\ncd "$(dirname "$0")"\npython t.py\n',
    good='#SBATCH -N 1\ncd "$SLURM_SUBMIT_DIR"\npython t.py\n',
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or "SLURM_JOB_ID:-" in script.text or "sbatch " in script.text:
        return
    pattern = re.compile(
        rb"(?:dirname|realpath|readlink(?: -f)?|cd)\s+(?:--\s+)?\"?\$\{?(?:0\b|BASH_SOURCE)"
        rb"|\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}"
    )
    for found in pattern.finditer(script.data):
        line = script.data[: found.start()].rsplit(b"\n", 1)[-1]
        if not line.lstrip().startswith(b"#") and b"SLURM" not in line:
            yield Found(found.start(), "this is Slurm's spool directory, not the script's folder")
            return


@rule(
    "cd-unchecked",
    "note",
    "a `cd` whose failure is not checked",
    section=SECTION,
    source="bash(1): without set -e, the script continues in the directory where it was",
    fix="cd DIR || exit 1, or set -e at the top",
    bad="#SBATCH -N 1\ncd /scratch/project\npython train.py\n",
    good="#SBATCH -N 1\ncd /scratch/project || exit 1\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or re.search(r"(?m)^\s*set\s+(-\w*e|-o errexit)", script.text):
        return
    if re.search(r"^#!.*\s-\w*e", script.shebang):
        return
    training = list_training(script)
    for command in _list_unchecked_changes(script):
        if any(one.command.start > command.end for one in training):
            text = "if the folder is missing, the program runs in the directory of submission"
            yield Found(command.start, text)
            return
    for program in training:
        inner = program.inner
        if inner is None or any(one.name == "set" for one in inner.commands):
            continue
        for command in _list_unchecked_changes(inner):
            shown = show(command.args[0])
            text = f"if {shown} is missing, the program runs in the directory of submission"
            yield Found(program.command.start, text)
            return


def _list_unchecked_changes(script: Script) -> Iterator[Command]:
    """Yield each ``cd`` after whose failure the script continues."""
    for command in script.commands:
        if command.name != "cd" or command.guarded or command.branch or not command.args:
            continue
        if command.args[0] in (".", "..", "-", "~") or "SLURM_SUBMIT_DIR" in command.args[0]:
            continue
        if show(command.args[0]) in ("$(pwd)", "$PWD", "$SLURM_TMPDIR", "$TMPDIR"):
            continue  # where the script was at some time, or a folder that the site creates
        rest = script.data[command.end : command.end + 40].lstrip(b" \t")
        if not rest.startswith((b"&&", b"||")):
            yield command


@rule(
    "placeholder-in-command",
    "warning",
    "a path or name in a command that was meant to be replaced",
    section=SECTION,
    source="copied templates",
    fix="write the value for your project",
    bad="#SBATCH -N 1\ncd /path/to/project\npython t.py\n",
    good="#SBATCH -N 1\ncd /scratch/project\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    pattern = re.compile(
        r"(?:^|[=:\"'/])/?(?:path|PATH)[/_-](?:to|TO)(?:[/_-]|$)"
        r"|<[A-Za-z][\w .-]*>"
        r"|(?:^|[/=_-])(?i:your)[-_](?i:user(name)?|env(ironment)?|account|project|script|program"
        r"|folder|directory|dir|path|key|token|name|data(set)?|api[-_]key|wandb[-_]key|conda[-_]env)"
        r"(?:$|[/._-])"
        r"|(?i:change_?me|replace_?me)|^\.\.\.$|(?i:\[(?:todo|your)\b[^]]*\])|^TODO$|^XXX+$"
    )
    places: list[tuple[int, str]] = [
        (one.value.start, one.value.text)
        for one in script.assignments
        if one.items is None and one.value.constant
    ]
    for command in script.commands:
        if command.name not in ("echo", "printf", "sed", "grep", "cat"):
            places += [(word.start, word.text) for word in command.words]
            places += [(command.start, text) for text in command.redirects]
    for start, text in sorted(places):
        # A text with several words is a message or a usage, unless it is all placeholder.
        found = pattern.search(text)
        if found and (not re.search(r"[;\n]|\\n", text) or found[0] == text):
            yield Found(start, f"{show(text[:60])} is a placeholder: {found[0].strip('=/')}")
            return


@rule(
    "results-copied-at-the-end",
    "note",
    "results on a local disk that are copied only after the program",
    section=SECTION,
    source="slurm.conf(5), KillWait: at the time limit the script is killed before it copies",
    fix="let the program save to a shared file system, or copy in a trap of --signal=B:USR1@300",
    bad="#SBATCH -N 1\npython t.py --output_dir $SLURM_TMPDIR/run\ncp -r $SLURM_TMPDIR/run .\n",
    good="#SBATCH -N 1\npython t.py --data $SLURM_TMPDIR/data --output_dir run\n",
)
def _(script: Script) -> Iterator[Found]:
    training = list_training(script)
    if not script.directives or not training or script.has("signal"):
        return
    if any(one.name == "trap" for one in script.commands):
        return
    last = max(one.command.end for one in training)
    local = re.compile(
        r"(/var)?/tmp/|/dev/shm/|/local_?scratch/|\$(SLURM_)?TMPDIR\b|\$LOCAL_SCRATCH"
    )
    for command in script.commands:
        if command.start < last or command.function or command.guarded:
            continue
        if command.name in ("cp", "mv", "rsync", "scp"):
            for word in command.args[:-1]:
                if local.match(show(word)):
                    text = f"a job that reaches its time limit loses {show(word)}"
                    yield Found(command.start, text)
                    return
