"""Errors for misplaced arguments: of the script before --, of sbatch, and of other tools."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence

import click

from hpcrun.errors import InputError

# sbatch's options and hpcrun's equivalents; {} is the value. Other long options of sbatch are keys
# of the job's slurm section.
_SBATCH = {
    "-n": "--nodes N --gpus-per-node M: hpcrun starts one rank per GPU",
    "--ntasks": "--nodes N --gpus-per-node M: hpcrun starts one rank per GPU",
    "--ntasks-per-node": "--gpus-per-node M: hpcrun starts one rank per GPU",
    "--gpus": "--gpus-per-node {} on one node, or --nodes N --gpus-per-node M on several",
    "-G": "--gpus-per-node {} on one node, or --nodes N --gpus-per-node M on several",
    "--gres": "--gpus-per-node M, and --set resources.gpu_type=TYPE for a type",
    "--mem": "--set resources.memory_per_node={}",
    "-c": "--set resources.cpus_per_gpu={}",
    "--cpus-per-task": "--set resources.cpus_per_gpu={}",
    "--exclusive": "--set resources.exclusive=true",
    "--dependency": "--after RUN_OR_JOB",
    "-d": "--after RUN_OR_JOB",
    "-q": "--set slurm.qos={}",
    "-w": "--set slurm.nodelist={}",
    "-x": "--set slurm.exclude={}",
    "-C": "--set slurm.constraint={}",
    "-a": "sweep: in the job file",
    "--array": "sweep: in the job file",
    "-o": "hpcrun logs shows the output; log files are in the run directory",
    "--output": "hpcrun logs shows the output; log files are in the run directory",
    "-e": "hpcrun logs --err shows errors; log files are in the run directory",
    "--error": "hpcrun logs --err shows errors; log files are in the run directory",
    "--wrap": "hpcrun submit -- COMMAND",
    "--job-name": "-J {}",
    "--chdir": "call hpcrun in that folder, or name its job file",
    "-D": "call hpcrun in that folder, or name its job file",
    "--export": "env: in the job file; environment: clean for none of the shell's variables",
    "--requeue": "--set 'survive.when=[preempted, time_limit, node_fail]'",
    "--no-requeue": "runs are restarted only after the events in survive.when",
    "--parsable": "--json",
    "-W": "--wait",
}
# Options of sbatch that belong into the slurm section of a job file.
_IN_SLURM_SECTION = {
    *("begin", "comment", "constraint", "deadline", "exclude", "licenses", "mail-type"),
    *("mail-user", "mcs-label", "nice", "nodelist", "prefer", "priority", "profile", "qos"),
    *("reservation", "switches", "tmp", "wckey"),
}
# Other tools' names for commands of hpcrun.
COMMANDS_ELSEWHERE = {
    "abort": "hpcrun cancel JOB",
    "attach": "hpcrun logs -f JOB (output), hpcrun shell JOB (a shell on a node)",
    "cat": "hpcrun logs JOB",
    "clusters": "hpcrun status --all; hpcrun init --user writes a profile of a cluster",
    "cp": "hpcrun fetch JOB",
    "create": "hpcrun init SCRIPT",
    "dashboard": "hpcrun top",
    "delete": "hpcrun clean (old runs), hpcrun cancel JOB (a job in the queue)",
    "describe": "hpcrun status JOB (its state), hpcrun show JOB (its files)",
    "diff": "hpcrun compare A B",
    "doctor": "hpcrun init --check",
    "download": "hpcrun fetch JOB",
    "exec": "hpcrun shell JOB -- COMMAND",
    "history": "hpcrun status --all",
    "info": "hpcrun status JOB (its state), hpcrun show JOB (its files)",
    "inspect": "hpcrun status JOB (its state), hpcrun show JOB (its files)",
    "kill": "hpcrun cancel JOB",
    "launch": "hpcrun submit JOB",
    "list": "hpcrun status (runs), hpcrun jobs (what can be submitted)",
    "log": "hpcrun logs JOB",
    "ls": "hpcrun status (runs), hpcrun jobs (what can be submitted)",
    "metrics": "hpcrun parse JOB",
    "new": "hpcrun init SCRIPT",
    "output": "hpcrun logs JOB",
    "plot": "hpcrun parse",
    "ps": "hpcrun status",
    "queue": "hpcrun status",
    "rerun": "hpcrun resubmit JOB",
    "restart": "hpcrun requeue JOB (under its own id), hpcrun resubmit JOB (a new run)",
    "resume": "hpcrun resubmit JOB",
    "rm": "hpcrun clean",
    "salloc": "hpcrun run JOB inside an salloc",
    "sbatch": "hpcrun submit",
    "scancel": "hpcrun cancel JOB",
    "sinfo": "hpcrun init --check",
    "squeue": "hpcrun status",
    "srun": "hpcrun submit JOB --follow",
    "ssh": "hpcrun shell JOB (a node of a job), hpcrun connect (the cluster)",
    "start": "hpcrun submit JOB",
    "stop": "hpcrun cancel JOB",
    "sweep": "hpcrun submit JOB, with sweep: {lr: [1e-4, 3e-4]} in the job file",
    "tail": "hpcrun logs -f",
    "train": "hpcrun submit JOB",
    "watch": "hpcrun top, hpcrun status --watch",
}


def explain_unknown_option(error: click.NoSuchOption, name: str, args: Sequence[str]) -> InputError:
    """Return the error for an unknown option, with the place where it belongs.

    Args:
        error: click's error.
        name: The command, submit or another that starts a job.
        args: The arguments of the command, up to ``--``.
    """
    option = error.option_name
    value = _value_of(option, args)
    key = option.lstrip("-")
    known = _SBATCH.get(option)
    if known is None and key in _IN_SLURM_SECTION:
        known = f"--set slurm.{key}={{}}"
    if known is not None:
        return InputError(f"{option} is sbatch's option", fix=known.replace("{}", value or "VALUE"))
    assert error.ctx is not None
    own, theirs = _split(error.ctx, args)
    line = shlex.join(["hpcrun", name, *own, "--", *theirs])
    fix = f"arguments of the script follow --: {line}"
    if close := difflib.get_close_matches(option, error.possibilities or (), 1, 0.8):
        fix = f"did you mean {close[0]}? {fix[0].upper()}{fix[1:]}"
    return InputError(f"hpcrun {name} has no option {option}", fix=fix)


def explain_extra_arguments(
    context: click.Context, name: str, args: Sequence[str], extra: Sequence[str]
) -> InputError:
    """Return the error for script arguments before ``--``; ``extra`` are these arguments."""
    start = args.index(extra[0]) if extra[0] in args else len(args)
    line = shlex.join(["hpcrun", name, *args[:start], "--", *args[start:]])
    return InputError(
        f"{' '.join(extra)}: "
        + ("not the name of a job" if name == "submit" else f"hpcrun {name} takes one job"),
        fix=f"arguments of the script follow --: {line}",
    )


def script_argument_line(name: str, job: str | None, key: str, value: str) -> str:
    """Return the command line that passes a value to the script instead of setting a job's key.

    >>> script_argument_line("submit", "train", "lr", "3e-4")
    'hpcrun submit train -- --lr 3e-4'
    """
    return shlex.join(["hpcrun", name, job or "JOB", "--", f"--{key}", value])


def _value_of(option: str, args: Sequence[str]) -> str:
    """Return the value of an option, as in `--mem 4G`, `--mem=4G` or `-n4`; "" if there is none."""
    for at, word in enumerate(args):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and at + 1 < len(args) and not args[at + 1].startswith("-"):
            return args[at + 1]
        if len(option) == 2 and word.startswith(option) and not word.startswith("--") and word[2:]:
            return word[2:]
    return ""


def _split(context: click.Context, args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into hpcrun's arguments, including the job, and the script's."""
    known: dict[str, bool] = {}  # option -> whether it has a value
    for parameter in context.command.get_params(context):
        if isinstance(parameter, click.Option):
            has_value = not parameter.is_flag and not parameter.count
            known |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), has_value)
    own: list[str] = []
    theirs: list[str] = []
    has_job = False
    words = iter(args)
    for word in words:
        option = word.partition("=")[0]
        if option in known:
            own.append(word)
            if known[option] and "=" not in word:
                own += [value for value in [next(words, None)] if value is not None]
        elif not word.startswith("-") and not has_job and not theirs:
            own.append(word)
            has_job = True
        else:
            theirs.append(word)
    return own, theirs
