"""Compare the ranks of an sbatch script with those of the converted job, in a sandbox."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcrun.actions.init.probe import CODE, FOLDER
from hpcrun.actions.init.read_only import FILTERS, format_filter, make_read_only
from hpcrun.actions.init.script_job import read_beside
from hpcrun.context import find_project, read_text
from hpcrun.convert import (
    Conversion,
    convert_script,
    follow_last_script,
    format_converted_job,
)
from hpcrun.errors import HpcrunError, InputError
from hpcrun.lint import parse_directives
from hpcrun.sandbox import MAX_GPUS_PER_NODE, MAX_NODES, lifecycle, plain_shape
from hpcrun.text import is_whole_number

_SECONDS = 120  # for each of the two jobs
_PROBES = {
    "python": "python",
    "python3": "python",
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    **dict.fromkeys(("mpirun", "mpiexec", "orterun"), "mpirun"),
    "singularity": "container",
    "apptainer": "container",
    **dict.fromkeys(
        ("uv", "poetry", "pipenv", "pixi", "hatch", "pdm", "numactl", "timeout", "nsys", "nice"),
        "wrapper",
    ),
}
# Directives that shape the ranks. The others name partitions, accounts and nodes of the cluster.
_SHAPING = {
    *("nodes", "ntasks", "ntasks-per-node", "tasks-per-node", "cpus-per-task", "cpus-per-gpu"),
    *("gpus", "gpus-per-node", "gpus-per-task", "gres", "array", "job-name", "exclusive"),
}
_PROGRAM_PATH = re.compile(r"(?<![\w.])[\w~$/{}.-]*/bin/(python|torchrun)[\d.]*(?=\s)")
_MOST_TASKS = 2  # of an array
# Programs that a script may run beside FILTERS: they change nothing.
_HARMLESS = (
    *("basename", "bash", "cat", "cut", "date", "dirname", "egrep", "env", "expr", "false"),
    *("fgrep", "grep", "head", "hostname", "id", "mktemp", "nproc", "paste", "printf"),
    *("scontrol", "seq", "sh", "sleep", "srun", "tail", "tr", "true"),
    *("uname", "wc", "whoami"),
)
# Sourced by the script and by the job: nothing outside of their folder is changed.
_START = '. "$RANK_PROBE_FUNCTIONS"; PATH=$RANK_PROBE_BIN\n'
# A directory outside of it is only recorded.
_FUNCTIONS = r"""_probe_cd() {
  local target=$1 before=${RANK_PROBE_CD:-$PWD}
  [ "$target" != - ] || target=${RANK_PROBE_OLD:-$PWD}
  [[ $target == /* ]] || target=$before/$target
  RANK_PROBE_OLD=$before
  if [[ $target/ == "${RANK_PROBE_BIN%/bin}"/* && $target/ != */../* ]] &&
    builtin cd -- "$target" 2>/dev/null; then
    unset RANK_PROBE_CD
  else
    export RANK_PROBE_CD=$target PWD=$target
  fi
}
cd() { [ "${1-}" != -- ] || shift; _probe_cd "${1-$HOME}"; }
pushd() { RANK_PROBE_STACK=("$PWD" "${RANK_PROBE_STACK[@]}"); _probe_cd "${1-$HOME}"; }
popd() { _probe_cd "${RANK_PROBE_STACK[0]-$PWD}"; RANK_PROBE_STACK=("${RANK_PROBE_STACK[@]:1}"); }
source() {
  case $1 in
    */../*) : ;;
    "${RANK_PROBE_BIN%/bin}"/*) [ ! -e "$1" ] || builtin source "$@" ;;
    /*) : ;;
    *) [ ! -e "$1" ] || builtin source "$@" ;;
  esac
}
.() { source "$@"; }
module() { :; }
ml() { :; }
conda() { :; }
mamba() { :; }
ulimit() { :; }
command_not_found_handle() { :; }
"""
_RESTORE = (
    "unset -f cd pushd popd source . module ml conda mamba ulimit command_not_found_handle; "
    "unset RANK_PROBE_CD RANK_PROBE_OLD RANK_PROBE_STACK; PATH=$RANK_PROBE_PATH; "
    "export BASH_ENV=$RANK_PROBE_FUNCTIONS"
)
_COMPARED = ("world_size", "argv", "directory", "cpus", "gpus", "host")


class Difference(Struct, frozen=True):
    """A value that a rank of the script and of the job do not have in common."""

    rank: str
    what: str
    script: str
    job: str


class Comparison(Struct, frozen=True, kw_only=True):
    """The ranks of a script, and the differences of the job's."""

    ranks: int
    differences: list[Difference]


def check_conversion(
    script: str, arguments: Sequence[str], environ: Mapping[str, str], cwd: Path
) -> tuple[Conversion, Comparison]:
    """Convert a script, and compare its ranks with those of the job; nothing is written.

    Raises:
        InputError: The file is not a text, or the job does not fit into a sandbox.
        HpcrunError: One of the jobs did not start its program.
    """
    text, home = read_text(Path(script)), environ.get("HOME", "~")
    project = str(find_project(cwd))
    made = convert_script(
        text,
        Path(script).stem,
        project=project,
        folder=str(cwd),
        home=home,
        arguments=arguments,
        read_file=read_beside,
    )
    followed = follow_last_script(text, read_beside)
    whole = followed.text if followed is not None else text
    return made, compare_ranks(whole, script, made, arguments)


def compare_ranks(
    text: str, name: str, conversion: Conversion, arguments: Sequence[str]
) -> Comparison:
    """Run a script and its conversion in a sandbox of their own, with a probe as the program.

    Modules, environments, containers, partitions and GPU types are left out of both.

    Raises:
        InputError: The job is too large for a sandbox, or its number of nodes is not fixed.
        HpcrunError: One of the jobs did not start its program.
    """
    request = conversion.request
    if not is_whole_number(request.nodes) or int(request.nodes) > MAX_NODES:
        raise InputError(f"--check: {request.nodes} nodes: a sandbox has at most {MAX_NODES}")
    if (request.gpus or 0) > MAX_GPUS_PER_NODE:
        raise InputError(f"--check: a node of a sandbox has at most {MAX_GPUS_PER_NODE} GPUs")
    with tempfile.TemporaryDirectory(prefix="hpcrun-check-") as top:
        folder = Path(top)
        project = folder / "project"
        for one in ("project", "bin", "plain", "ours", "home"):
            (folder / one).mkdir()
        _write_programs(folder, text)
        directives, body = _reduce(text)
        own = str(folder / "home")
        made = convert_script(
            directives + body, "job", project=str(project), home=own, arguments=arguments
        )
        each_gpu = made.job["resources"].get("cpus_per_gpu", 0) * max(1, request.gpus or 0)
        cpus = max((request.cpus or 1) * (request.tasks or 1), each_gpu)
        with _sandbox(folder, int(request.nodes), request.gpus or 0, cpus) as environ:
            environ["HOME"] = own
            if re.search(r"\bpython[\d.]*\s(-\w+\s+)*-c\b", made.before):
                environ[CODE] = "1"
            script = f'{directives}. "$RANK_PROBE_START"\n{body}'
            plain = _run_script(script, name, arguments, folder, environ)
            ours = _run_job(made, folder, environ)
        assigned = set(re.findall(r"(?m)(?:^|[;\s])(?:export\s+)?([A-Za-z_]\w*)=", text))
        declared = {each for one in made.remarks for each in re.findall(r"(\w+)=", one.text)} | set(
            RANDOM_NAMES
        )
        # Slurm assigns the job's GPUs, which is reported if the script selects them.
        values: Sequence[str] = _COMPARED
        if any("VISIBLE_DEVICES" in one.text for one in made.remarks):
            values = [one for one in _COMPARED if one != "gpus"]
        return _compare(plain, ours, values, assigned - declared)


# Variables that hpcrun sets for every rank, or that differ between any two jobs.
RANDOM_NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PATH", "PYTHONPATH"),
    *("LD_LIBRARY_PATH", "HOME", "TMPDIR", "PWD", "OLDPWD", "SLURM_ARRAY_TASK_ID", "BASH_ENV"),
)


def _reduce(text: str) -> tuple[str, str]:
    """Return the directives that a sandbox knows, and the rest of a script.

    Of an array, a few tasks are left. A Python with a path becomes the probe.
    """
    directives, lines = [], []
    is_head = True
    for line in text.split("\n")[1:]:
        is_head = is_head and (not line.strip() or line.lstrip().startswith("#"))
        if not re.match(r"#SBATCH\s", line):
            lines.append(
                re.sub(r"(?<![\w.])[\w~$/{}.-]*/bin/(python|torchrun)[\d.]*(?=\s)", r"\1", line)
            )
            continue
        if not is_head:
            continue  # sbatch ignores it
        found, _ = parse_directives(line.encode("utf-8", "surrogateescape"))
        for one in found:
            value = one.value
            if one.option == "gres":
                value = ",".join(_untyped(part) for part in value.split(",") if "gpu" in part)
            elif one.option.startswith("gpus"):
                value = re.sub(r"^[A-Za-z_][\w.-]*:", "", value)
            elif one.option == "array":
                value = _first_tasks(value)
            if one.option in _SHAPING and not (one.option == "gres" and not value):
                quoted = '="' + value.replace('"', "") + '"' if value else ""
                directives.append(f"#SBATCH --{one.option}{quoted}")
    head = "\n".join(["#!/bin/bash", *directives, ""])
    # A line that begins with "#!" would be taken for that of an interpreter.
    return head, make_read_only("\n".join(["", *lines]))


def _untyped(part: str) -> str:
    words = part.split("(")[0].split(":")
    return f"gpu:{words[-1]}" if is_whole_number(words[-1]) else "gpu:1"


def _first_tasks(value: str) -> str:
    numbers: list[int] = []
    for part in value.split("%")[0].split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if found:
            first, last = int(found[1]), int(found[2] or found[1])
            numbers += range(first, min(last, first + 10_000) + 1, int(found[3] or 1))
    return ",".join(map(str, numbers[:_MOST_TASKS]))


def _write_programs(folder: Path, text: str) -> None:
    """Write the probe under the names of Python, its launchers and the shell scripts of a text."""
    package = Path(__file__).parents[3]
    for name, kind in _PROBES.items():
        path = folder / "bin" / name
        path.write_text(
            "#!/bin/sh\n"
            f"PYTHONPATH={shlex.quote(str(package))} exec {shlex.quote(sys.executable)} "
            f'-m hpcrun.actions.init.probe {kind} "$@"\n'
        )
        path.chmod(0o755)
    for name in _HARMLESS:
        if found := shutil.which(name):
            (folder / "bin" / name).symlink_to(found)
    (folder / "bin" / "tee").write_text("#!/bin/sh\nexec cat\n")
    for name in FILTERS:
        if found := shutil.which(name):
            (folder / "bin" / name).write_text(format_filter(name, found))
    for name in ("tee", *FILTERS):
        if (folder / "bin" / name).exists():
            (folder / "bin" / name).chmod(0o755)
    for path in re.findall(r"(?<![\w/$}.~])(?:\./)?([\w-][\w./-]*\.sh)\b", text):
        script = folder / "project" / path
        if ".." not in script.parts and not script.exists():
            script.parent.mkdir(parents=True, exist_ok=True)
            # Nothing happens where it is sourced.
            script.write_text(
                f'#!/bin/sh\ncase $0 in *{script.name}) exec python {path} "$@" ;; esac\n'
            )
            script.chmod(0o755)
    (folder / "functions.sh").write_text(_FUNCTIONS)
    (folder / "start.sh").write_text(_START)


@contextlib.contextmanager
def _sandbox(folder: Path, nodes: int, gpus: int, cpus: int) -> Iterator[dict[str, str]]:
    """Start a sandbox, and yield the environment of a shell in it."""
    shape = plain_shape(nodes, gpus)
    (kind,) = shape.kinds
    if cpus > kind.cpus:
        from msgspec import structs

        shape = structs.replace(shape, kinds=(structs.replace(kind, cpus=cpus),))
    directory = folder / "sandbox"
    status = lifecycle.up(directory, shape=shape)
    try:
        kept = ("PATH", "LANG", "LC_ALL", "USER", "LOGNAME")
        environ = {name: os.environ[name] for name in kept if name in os.environ}
        environ.setdefault("USER", pwd.getpwuid(os.getuid()).pw_name)  # as in a login shell
        yield {
            **environ,
            "SLURM_CONF": str(status.slurm_conf),
            "HPCRUN_SANDBOX_DIR": str(directory),
            "RANK_PROBE_BIN": str(folder / "bin"),
            "RANK_PROBE_PATH": os.environ.get("PATH", os.defpath),
            "RANK_PROBE_FUNCTIONS": str(folder / "functions.sh"),
            "RANK_PROBE_START": str(folder / "start.sh"),
        }
    finally:
        lifecycle.down(directory)


def _run_script(
    script: str, name: str, arguments: Sequence[str], folder: Path, environ: Mapping[str, str]
) -> list[dict[str, Any]]:
    path = folder / "project" / Path(name).name
    path.write_text(script, encoding="utf-8", errors="surrogateescape")
    argv = ["sbatch", "--wait", f"--output={folder}/plain.%a", path.name, *arguments]
    env = {**environ, FOLDER: str(folder / "plain"), "BASH_ENV": str(folder / "start.sh")}
    return _run(argv, folder, env, "plain")


def _run_job(made: Conversion, folder: Path, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    job = dict(made.job)
    resources = {k: v for k, v in job["resources"].items() if k in _KEPT_RESOURCES}
    setup = job.get("setup", {})
    commands = ['. "$RANK_PROBE_START"', *setup.get("commands", []), _RESTORE]
    words = [*job.get("args", [])]
    if "script" in job:
        command = ["python", job["script"], *words]
    elif "module" in job:
        command = ["python", "-m", job["module"], *words]
    else:
        command = list(job["command"])
    if command[:2] == ["bash", "-c"]:
        command[2] = f'. "$RANK_PROBE_START"\n{command[2]}'
    kept = ("launcher", "launcher_args", "env", "nccl", "sweep", "sweep_combinations", "srun")
    shown = {key: job[key] for key in kept if key in job}
    slurm = {k: v for k, v in job.get("slurm", {}).items() if k == "cpus-per-task"}
    made.job = {
        "command": command,
        **shown,
        "resources": resources,
        "slurm": slurm,
        "setup": {"python": str(folder / "bin" / "python"), "commands": commands},
        "preflight": False,
        "snapshot": False,
    }
    path = folder / "project" / "job.yaml"
    path.write_text(format_converted_job(made, "the script", "none"), encoding="utf-8")
    argv = [sys.executable, "-m", "hpcrun", "submit", str(path), "--wait", "--no-check"]
    env = {**environ, FOLDER: str(folder / "ours")}
    return _run([*argv, "--cluster", "sandbox"], folder, env, "ours")


_KEPT_RESOURCES = ("nodes", "gpus_per_node", "cpus_per_gpu", "exclusive")


def _run(
    argv: Sequence[str], folder: Path, environ: Mapping[str, str], name: str
) -> list[dict[str, Any]]:
    """Run a job to its end, and return the records of its probes."""
    try:
        done = subprocess.run(
            argv,
            cwd=folder / "project",
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        output = f"no end within {_SECONDS} s"
    found = [json.loads(path.read_text()) for path in sorted((folder / name).glob("*.json"))]
    if not found:
        logs = [*folder.glob(f"{name}.*"), *folder.glob("home/hpcrun/runs/*/logs/*.log")]
        log = "\n".join(one.read_text(errors="replace")[-2000:] for one in logs)
        what = "the script" if name == "plain" else "the job"
        raise HpcrunError(f"--check: {what} started no program: {output.strip()[-2000:]}\n{log}")
    return found


def _compare(
    plain: Sequence[dict[str, Any]],
    ours: Sequence[dict[str, Any]],
    values: Sequence[str],
    names: set[str],
) -> Comparison:
    differences: list[Difference] = []
    before, after = _by_rank(plain), _by_rank(ours)
    for rank in sorted({*before, *after}):
        mine, other = before.get(rank, []), after.get(rank, [])
        if len(mine) != len(other):
            differences.append(Difference(rank, "programs", str(len(mine)), str(len(other))))
            continue
        for one, two in zip(mine, other, strict=True):
            pairs = [(what, str(one[what]), str(two[what])) for what in values]
            for name in sorted(names & one["environ"].keys()):
                pairs.append((name, one["environ"][name], two["environ"].get(name, "not set")))
            differences += [
                Difference(rank, what, a, b)
                for what, a, b in pairs
                if _normalize(a, one["environ"]) != _normalize(b, two["environ"])
            ]
    return Comparison(ranks=len(before), differences=differences)


def _normalize(text: str, environ: Mapping[str, str]) -> str:
    """Replace what differs between any two jobs: ids, and names of temporary files."""
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID"):
        if value := environ.get(name):
            text = text.replace(value, name)
    return re.sub(r"\btmp\.\w{10}\b", "tmp", text)


def _by_rank(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the records by the number of the task, counted from 0, and the rank.

    The tasks of a sweep over the values of an array have other indices than those of the array.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    tasks = sorted({int(one["task"]) for one in records if one["task"]})
    for one in records:
        number = f"{tasks.index(int(one['task']))}." if one["task"] else ""
        key = f"{number}{one['rank']}"
        found.setdefault(key, []).append(one)
    for each in found.values():
        each.sort(key=lambda one: (one["argv"], one["directory"]))
    return found
