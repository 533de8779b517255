"""Options and arguments that several verbs share."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcrun.cli.output import SlownessNote, TerminalPrompts, print_note, progress_bar
from hpcrun.errors import InputError, SpecError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hpcrun.context import Context
    from hpcrun.monitor import RunFilter
    from hpcrun.spec import JobSpec, Origin

F = TypeVar("F", bound=Callable[..., Any])

# The words of the command line, in click's Context.meta.
COMMAND_LINE = "hpcrun.command_line"

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

# The keys of a job that the options of job_options() set.
_KEYS = {
    "nodes": "resources.nodes",
    "gpus_per_node": "resources.gpus_per_node",
    "time": "resources.time",
    "partition": "resources.partition",
    "account": "resources.account",
    "name": "name",
    "as": "group",
}


class Value(click.types.StringParamType):
    """A string parameter that is completed by functions of hpcrun.cli.completion."""

    def __init__(self, name: str, *kinds: str) -> None:
        self.name = name
        self.kinds = kinds

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from hpcrun.cli.completion import complete_values

        return complete_values(self.kinds, incomplete)


CLUSTER = Value("name", "clusters")
DIR = Value("dir", "files")
FILE = Value("file", "files")
JOB = Value("job", "jobs")
JOB_OR_RUN = Value("job", "jobs", "runs")
RUN = Value("run", "runs")
RUN_OR_FILE = Value("run", "runs", "files")

cluster_option = click.option("--cluster", type=CLUSTER, help="The cluster profile to use.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def make_context(
    cluster: str | None,
    *,
    debug: bool = False,
    job: str | None = None,
    system_ssh: bool = False,
) -> Context:
    """Find the project and cluster for the current folder; main() may supply the connection.

    Args:
        job: May be a job file of another project, which is then the project.
        system_ssh: The command starts the system's ssh, which shares the connection, so that it
            does not prompt again.
    """
    from msgspec import structs

    from hpcrun.context import load_context, use_system_ssh

    file = None
    if job is not None and job.endswith((".yaml", ".yml")) and Path(job).is_file():
        file = Path(job).resolve()
    found = load_context(os.environ, Path.cwd(), cluster, TerminalPrompts(), job_file=file)
    invocation = click.get_current_context()
    if found.cluster.host is not None and invocation.info_name in _WITHOUT_STATE:
        environ = _replace_full_state(found.runs_dir)
        if environ is not None:
            found = load_context(environ, Path.cwd(), cluster, TerminalPrompts(), job_file=file)
    if system_ssh:
        found = use_system_ssh(found, TerminalPrompts())
    command = ["hpcrun", *invocation.meta.get(COMMAND_LINE, [])]
    return structs.replace(
        found,
        debug=debug,
        command=command,
        waiting=SlownessNote(found.cluster.host or "Slurm").waiting,
        bar=progress_bar,
        connect=invocation.obj or found.connect,
    )


# Commands that need the copies of a remote cluster's records only while they run.
_WITHOUT_STATE = frozenset({"cancel", "logs", "status", "wait", "why"})


def _replace_full_state(runs_dir: Path) -> dict[str, str] | None:
    """Return an environment with a temporary folder for the copies of records, if the disk is full.

    Args:
        runs_dir: The usual folder of the copies.
    """
    from hpcrun.files import can_write

    if can_write(runs_dir):
        return None
    import atexit
    import shutil
    import tempfile

    for place in (None, "/dev/shm"):
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix="hpcrun-", dir=place)
            if not can_write(Path(folder)):
                Path(folder).rmdir()
                continue
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            print_note(
                f"note: no space left for {runs_dir}: this command keeps its copies of the "
                f"cluster's records in {folder}"
            )
            return {**os.environ, "XDG_STATE_HOME": folder}
    return None


def make_all_contexts(cluster: str | None) -> tuple[list[Context], list[InputError]]:
    """Find the clusters of all profiles unless one is named; without prompting for passwords.

    Errors of single profiles are returned, and raised only if no profile is usable.
    """
    from msgspec import structs

    from hpcrun.context import load_all_contexts

    if cluster or os.environ.get("HPCRUN_CLUSTER"):
        return [make_context(cluster)], []
    found, faults = load_all_contexts(os.environ, Path.cwd())
    if not found and faults:
        raise faults[0]
    if len(found) + len(faults) < 2:
        return [make_context(cluster)], []
    return [structs.replace(each, bar=progress_bar) for each in found], faults


class ArgsAfterDashes(click.Command):
    """A command with arguments after ``--``, in ``extra_args``; None without ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        extra_args = None
        if "--" in args:
            cut = args.index("--")
            args, extra_args = args[:cut], args[cut + 1 :]
        rest = self.parse_own(ctx, args)
        ctx.params["extra_args"] = extra_args
        return rest

    def parse_own(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before ``--``."""
        return super().parse_args(ctx, args)


class JobCommand(ArgsAfterDashes):
    """A command with job_options(); errors name the option that the user typed, not --set."""

    def parse_own(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [*args]
        try:
            ctx.allow_extra_args = True
            rest = super().parse_own(ctx, args)
        except click.NoSuchOption as error:
            from hpcrun.cli.misplaced import explain_unknown_option

            raise explain_unknown_option(error, self.name or "", words) from error
        if ctx.args and (ctx.params.get("as") is not None or self._are_jobs(ctx.args)):
            ctx.params["more_jobs"], ctx.args = ctx.args, []
        if ctx.args:
            from hpcrun.cli.misplaced import explain_extra_arguments

            raise explain_extra_arguments(ctx, self.name or "", words, ctx.args)
        return rest

    def _are_jobs(self, words: list[str]) -> bool:
        """Return True for names of jobs, several of which submit() accepts."""
        from hpcrun.assets import list_jobs
        from hpcrun.context import find_project

        if self.name != "submit":
            return False
        known = list_jobs(find_project(Path.cwd()), os.environ)
        return all(
            word in known or (word.endswith((".yaml", ".yml")) and Path(word).is_file())
            for word in words
        )

    def invoke(self, ctx: click.Context) -> Any:
        options = ctx.params
        if options.get("follow") and options["as_json"]:
            raise InputError(
                "--follow prints the raw log, which is not JSON",
                fix=f"hpcrun {self.name} --json, then hpcrun logs -f --json JOB",
            )
        try:
            return super().invoke(ctx)
        except SpecError as error:
            set_keys = [override.partition("=")[0].strip() for override in options["overrides"]]
            for option, key in _KEYS.items():
                typed = "--" + option.replace("_", "-")
                is_meant = options.get(option) is not None and key not in set_keys
                for problem in error.problems if is_meant else ():
                    if problem.source == "--set" and problem.path == key:
                        problem.source, problem.path = typed, ""
                    problem.message = problem.message.replace(f"(--set {key})", f"({typed})")
            fix = error.fix or self._script_fix(options, error)
            raise SpecError(error.problems, fix=fix, notes=error.notes) from error

    def _script_fix(self, options: dict[str, Any], error: SpecError) -> str:
        """Return how to pass a value to the script instead of --set; "" if the key exists."""
        from hpcrun.cli.misplaced import script_argument_line

        for override in options["overrides"]:
            key, _, value = override.partition("=")
            for problem in error.problems:
                is_unknown = problem.message.startswith("unknown key")
                if problem.source == "--set" and problem.path == key.strip() and is_unknown:
                    job = options.get("job")
                    line = script_argument_line(self.name or "", job, key.strip(), value.strip())
                    return f"to pass it to the script: {line}"
        return ""


def _parse_count(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def job_options(command: F) -> F:
    """Add the options that change a job."""
    for option in (
        click.option("-J", "--name", help="The run's name."),
        click.option("-A", "--account", help="The account to charge."),
        click.option("-p", "--partition", help="The partition."),
        click.option(
            "-t",
            "--time",
            help="The time limit, e.g. 90 (minutes), 2h, 24:00:00, 2-12 (days-hours).",
        ),
        click.option(
            "--gpus-per-node", type=click.IntRange(0), help="Number of GPUs on each node."
        ),
        click.option(
            "-N",
            "--nodes",
            metavar="N",
            type=_parse_count,
            help="Number of nodes, or a range, e.g. 2-4.",
        ),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            type=Value("key=value", "keys"),
            help="Override a key of the job, e.g. batch.micro_batch_per_gpu=4.",
        ),
        click.option("--debug", is_flag=True, help="Enable verbose torch and NCCL logging."),
        click.option(
            "--no-check",
            is_flag=True,
            help="Proceed even if checks fail.",
        ),
    ):
        command = option(command)
    return command


# The options of session_options() that change the job, and their keys.
_SESSION_KEYS = {
    "gpus": "resources.gpus_per_node",
    "time": "resources.time",
    "partition": "resources.partition",
    "account": "resources.account",
}


def session_options(command: F) -> F:
    """Add the options of commands that submit a job to work in."""
    for option in (
        click.option("-A", "--account", help="The account to charge."),
        click.option("-p", "--partition", help="The partition."),
        click.option("-t", "--time", help="The time limit, e.g. 4h, 90 (minutes), 1-12."),
        click.option("--gpus", type=click.IntRange(0), help="Number of GPUs (default: 0)."),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            type=Value("key=value", "keys"),
            help="Set a key of the job, e.g. setup.venv=~/venv, resources.memory_per_node=64G.",
        ),
        click.option("--keep", is_flag=True, help="Leave the job running at the end."),
    ):
        command = option(command)
    return command


def collect_session_overrides(options: dict[str, Any]) -> list[str]:
    """Return the changes of session_options() in the notation of --set."""
    from hpcrun.spec import dump_value

    return [
        *options["overrides"],
        *(
            f"{key}={dump_value(options[option], '--set', key)}"
            for option, key in _SESSION_KEYS.items()
            if options[option] is not None
        ),
    ]


def load_requested_job(
    context: Context, job: str | None, options: dict[str, Any]
) -> tuple[JobSpec, list[str], Origin]:
    """Load the named job, or the bare command after ``--``.

    Returns:
        The job, the arguments after ``--``, and where the job was defined.
    """
    from hpcrun.actions import draft_command_job, load_spec
    from hpcrun.assets import find_job
    from hpcrun.spec import Origin

    overrides = collect_overrides(options)
    extra_args = options["extra_args"] or []
    if job is not None:
        spec = load_spec(context, job, overrides)
        file = find_job(job, context.project, context.environ)
        return spec, extra_args, Origin(str(file), tuple(overrides))
    if not extra_args:
        raise click.UsageError("name a job (hpcrun jobs lists them), or give a command after --")
    spec = draft_command_job(extra_args, overrides)
    return spec, extra_args, Origin(spec.name or "command", tuple(overrides))


def collect_overrides(options: dict[str, Any]) -> list[str]:
    """Return the changes of job_options() in the notation of --set."""
    from hpcrun.spec import dump_value

    overrides = list(options["overrides"])
    for option, key in _KEYS.items():
        if options.get(option) is not None:
            overrides.append(f"{key}={dump_value(options[option], '--set', key)}")
    return overrides


def parse_duration(text: str) -> float:
    """Parse a duration like those of timeout(1): 90, 90s, 15m, 2.5h, 1d, 1h30m. Raises InputError.

    >>> parse_duration("90"), parse_duration("1h30m"), parse_duration("0.5m")
    (90.0, 5400.0, 30.0)
    """
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InputError(f"{text}: not a time", fix="seconds, or as in 15m, 2h, 1h30m, 1d")
    if len(parts) > 1 and any(not unit for _, unit in parts):
        raise InputError(f"{text}: missing unit", fix="as in 15m, 2h, 1h30m, 1d")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def parse_when(text: str, now: float) -> float:
    """Parse 10m, 1h30m, 2026-11-20, 2026-11-20T08:00 or 08:00 (today) to seconds since the epoch.

    A time without a zone is local. Raises InputError.

    >>> parse_when("1h30m", 10000.0)
    4600.0
    """
    from datetime import datetime  # deferred: only --since needs it

    word = text.strip()
    if re.fullmatch(r"([0-9]+(\.[0-9]+)?[smhdw])+", word.lower()):
        return now - parse_duration(word.lower())
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", word):
        word = f"{datetime.fromtimestamp(now):%Y-%m-%d}T{word:0>5}"
    try:
        # Python 3.10 does not parse a Z.
        return datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", word)).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(
            f"--since {text}: not a time",
            fix="as in 10m, 2h, 1d, 08:00, 2026-11-20 or 2026-11-20T08:00",
        ) from error


def parse_filter(
    name: str | None, since: str | None, states: str | None, project: str | None
) -> RunFilter | None:
    """Return the filter of a listing; None without any option. Raises InputError."""
    import time

    from hpcrun.monitor import LISTED_STATES, RunFilter

    if name is None and since is None and states is None and project is None:
        return None
    words = [word.strip().upper() for word in (states or "").split(",") if word.strip()]
    unknown = [word for word in words if word not in LISTED_STATES]
    if unknown or (states is not None and not words):
        raise InputError(
            f"--state {states}: no such state",
            fix=f"one or several of {', '.join(sorted(LISTED_STATES)).lower()}",
        )
    earliest = parse_when(since, time.time()) if since is not None else None
    if project is not None and (project.startswith((".", "~")) or "/" in project):
        project = os.path.realpath(Path(project).expanduser())
    return RunFilter(
        name=name or "", since=earliest, states=frozenset(words), project=project or ""
    )
