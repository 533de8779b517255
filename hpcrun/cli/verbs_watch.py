"""The verbs of the section Watch, from status to nodes."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from hpcrun.cli.options import (
    DIR,
    JOB,
    RUN,
    RUN_OR_FILE,
    ArgsAfterDashes,
    cluster_option,
    collect_session_overrides,
    json_option,
    make_all_contexts,
    make_context,
    parse_duration,
    parse_filter,
    parse_when,
    session_options,
)
from hpcrun.cli.output import (
    can_draw,
    confirm,
    emit_json,
    is_terminal,
    print_line,
    print_note,
    print_table,
)
from hpcrun.errors import InputError

# For at most this many last lines only the end of a log is fetched.
_END = 2000
# Seconds between two checks of hpcrun notify --watch, each of which queries Slurm.
_NOTIFY_EVERY_S = 60.0

if TYPE_CHECKING:
    from hpcrun.context import Context
    from hpcrun.monitor import SortKey
    from hpcrun.runs import JobStatus


@click.command("status")
@click.argument("job", required=False, type=RUN)
@click.option(
    "-n", "count", type=click.IntRange(1), default=20, help="Number of runs (default: 20)."
)
@click.option("--all", "everything", is_flag=True, help="Show all runs, on all your clusters.")
@click.option("--name", metavar="PATTERN", help="List only runs of this name, e.g. 'lr*'.")
@click.option(
    "--since", metavar="WHEN", help="List only runs submitted since this time, e.g. 7d, 2026-11-20."
)
@click.option(
    "--state",
    "states",
    metavar="STATES",
    help="List only runs in these states, e.g. failed.",
)
@click.option(
    "--project", metavar="DIR", help="List only runs of this project: its directory, or its name."
)
@click.option(
    "--sort",
    type=click.Choice(["loss", "step", "time", "gpu-hours", "name"]),
    help="Sort by this column, the best first, instead of by age.",
)
@click.option("-w", "--watch", "is_watched", is_flag=True, help="Refresh as the state changes.")
@cluster_option
@json_option
def status(
    job: str | None,
    count: int,
    everything: bool,
    name: str | None,
    since: str | None,
    states: str | None,
    project: str | None,
    sort: SortKey | None,
    is_watched: bool,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Show the state of the newest runs, of one run in detail, or of all runs of a sweep.

    JOB is a Slurm job id such as 123 or 123_4 (also of a job that hpcrun did not submit), a run id,
    its last four characters, a sweep's id, or a run's name, which means its newest run. Without
    JOB, a sweep is one row of the list; with --all, each run of a sweep has its own row.

    --state takes the words of the column STATE, and active (every state that is not final);
    failed also means TIMEOUT, OUT_OF_MEMORY and all other ends but COMPLETED and CANCELLED.

    --all queries the clusters of all your profiles in parallel. A cluster that needs a password, or
    has not responded 5 s after the others, is reported and omitted. --cluster selects one cluster.

    --watch requires a terminal, and ends at Ctrl-C, or when the given JOB has ended. Slurm is
    queried at most twice a minute; the files of the runs are read more often.

    The exit code is 4 if the state depends on Slurm and Slurm does not respond.
    """
    from hpcrun.cli.show_status import StatusQuery, show_status

    only = parse_filter(name, since, states, project)
    if job is not None and (only is not None or sort is not None):
        raise InputError(
            "--name, --since, --state, --project and --sort apply to the list of runs, not to one "
            "JOB",
            fix="leave out JOB, or the options",
        )
    query = StatusQuery(job, None if everything else count, everything, only, sort)
    if not is_watched:
        is_each = everything and job is None
        where, faults = make_all_contexts(cluster) if is_each else ([make_context(cluster)], [])
        return show_status(where, query, faults, as_json=as_json)
    if as_json:
        raise InputError("--watch and --json exclude each other", fix="use one of them")
    from hpcrun.cli.watch_status import watch_status

    return watch_status(make_context(cluster), query)


@click.command("logs")
@click.argument("job", required=False, type=RUN)
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job ends.")
@click.option(
    "--rank", "ranks", multiple=True, metavar="R", help="Show only these ranks, e.g. 0,3-5."
)
@click.option(
    "--node", "nodes", multiple=True, metavar="N", help="Show only this node, by number or name."
)
@click.option("--role", metavar="NAME", help="Show only this role of a job with several programs.")
@click.option(
    "--err", is_flag=True, help="Show only why the job failed: tracebacks and error lines."
)
@click.option("--attempt", metavar="K", help="Show only this attempt: 0, 1, ..., or last.")
@click.option("-n", "--lines", metavar="N", help="Show the last N lines of each file, or all.")
@click.option("--grep", metavar="RE", help="Show only lines that match this Python regex.")
@click.option(
    "--since",
    metavar="WHEN",
    help="Show only lines since this time, e.g. 10m, 2h, 08:00, 2026-11-20T08:00.",
)
@click.option("--raw", is_flag=True, help="Do not mask secrets or remove control characters.")
@cluster_option
@json_option
def logs(
    job: str | None,
    follow: bool,
    ranks: tuple[str, ...],
    nodes: tuple[str, ...],
    role: str | None,
    err: bool,
    attempt: str | None,
    lines: str | None,
    grep: str | None,
    since: str | None,
    raw: bool,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Show the output of a job: that of each rank, of the launchers and of the batch script.

    JOB is a run id, a sweep, or any Slurm job id such as 123 or 123_4; the default is the newest
    run. Lines of ranks other than 0 begin with [rankN]:, those of a launcher with nodeN:, those of
    the tasks of a sweep or an array with [taskN]:, those of a role other than the main one with its
    name, as in [server]:.

    With -f the exit code is 0 if the job succeeded and 1 if it did not. Ctrl-C stops
    following, but never stops the job. A terminal shows only the last lines of a long log; to see
    the whole log, pass -n all or use a pipe: hpcrun logs | less -R.

    --err shows why a job failed: the last traceback of the rank that failed first, then those of
    the other ranks, then the error lines of the launcher, the batch script and Slurm. For a job
    that hpcrun did not submit, --err shows stderr, if that is a separate file.

    --since compares the time stamps of the lines, in local time unless they include a time zone. A
    log whose last lines have no time stamps is shown completely if it was modified since then.

    Secrets are shown as ***: the values of the job's secrets, tokens with a well-known format
    (Hugging Face, GitHub, OpenAI, AWS ...), values that follow a name ending in key, token, secret,
    password, auth or credentials, passwords in URLs, and private keys.

    With --json each line is a JSON object.
    """
    from hpcrun.actions import LogQuery, logs_of, masker_of
    from hpcrun.cli.show_logs import LogPrinter, show_logs

    query = LogQuery(
        ranks=_parse_ranks(ranks),
        nodes=tuple(word for each in nodes for word in each.split(",") if word),
        attempt=_parse_number(
            attempt, "last", -1, "--attempt {}: not an attempt", "--attempt 0, or --attempt last"
        ),
        role=role or "",
        err=err,
        lines=_parse_number(
            lines, "all", None, "--lines {}: not a number of lines", "-n 50, or -n all"
        ),
        pattern=_parse_pattern(grep),
        since=None if since is None else parse_when(since, time.time()),
    )
    where = make_context(cluster)
    count = _END if lines is None and is_terminal() else query.lines
    is_short = count is not None and count <= _END
    asks_more = err or query.pattern or query.since is not None or query.attempt is not None
    logs = logs_of(where, job, query, whole=not is_short or bool(asks_more))
    printer = LogPrinter(
        None if raw else masker_of(where, logs.runs),
        as_json=as_json,
        keeps=query.keeps if query.pattern is not None else None,
        folds=not query.ranks,
    )
    return show_logs(logs, printer, job, follow=follow, is_cut=lines is None)


def _parse_ranks(words: Sequence[str]) -> frozenset[int]:
    """Parse ranks such as 0,3-5. Raises InputError.

    >>> sorted(_parse_ranks(["0,3-5", "7"]))
    [0, 3, 4, 5, 7]
    """
    found: set[int] = set()
    for word in ",".join(words).split(",") if words else ():
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise InputError(f"--rank {word}: not a rank", fix="as in --rank 0 or --rank 0,3-5")
        found.update(range(first, last + 1))
    return frozenset(found)


def _parse_number(
    text: str | None, word: str, meaning: int | None, problem: str, example: str
) -> int | None:
    """Parse a number, or the word that stands for ``meaning``. Raises InputError."""
    if text is None or text == word:
        return None if text is None else meaning
    if re.fullmatch(r"[0-9]{1,12}", text):
        return int(text)
    raise InputError(problem.format(text), fix=f"as in {example}")


def _parse_pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    if any("\ud800" <= char <= "\udfff" for char in text):
        # The locale is not UTF-8, but logs are.
        text = os.fsencode(text).decode("utf-8", "surrogateescape")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        at = error.pos if isinstance(error, re.error) else None
        where = f" at character {at + 1}" if at is not None else ""
        message = error.msg if isinstance(error, re.error) else str(error)
        raise InputError(
            f"--grep {text}: not a regular expression: {message}{where}",
            fix=f"to search for the text itself: --grep '{re.escape(text)}'",
        ) from error


@click.command("top")
@click.argument("jobs", nargs=-1, metavar="[JOB]...", type=RUN)
@click.option(
    "-n", "count", type=click.IntRange(1), default=20, help="Number of jobs (default: 20)."
)
@click.option("--no-usage", is_flag=True, help="Do not measure GPU and CPU use.")
@cluster_option
@json_option
def top(
    jobs: tuple[str, ...], count: int, no_usage: bool, cluster: str | None, as_json: bool
) -> int:
    """Watch jobs as they run: step, loss, speed, and how busy each node is.

    JOB is a Slurm job id, a run id or a sweep's id; the default is all your running and pending
    jobs, including those that hpcrun did not submit. q or Ctrl-C quits. With --json, or if stdout
    is not a terminal, one snapshot is printed.

    GPU and CPU use is measured by a job step (srun --overlap) that reserves no resources and
    ends with this command. sacct lists the step as hpcrun-top.
    """
    from hpcrun.cli.watch_top import print_snapshot, watch_top

    where = make_context(cluster)
    if as_json or not can_draw():
        return print_snapshot(where, jobs, count=count, usage=not no_usage, as_json=as_json)
    return watch_top(where, jobs, count=count, usage=not no_usage)


@click.command("ui")
@click.argument("jobs", nargs=-1, metavar="[JOB|LOG]...", type=RUN_OR_FILE)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port (default: any free port)."
)
@click.option("--actions", is_flag=True, help="Allow cancel, requeue and resubmit on the page.")
@click.option("--open", "opens", is_flag=True, help="Open the page in the default web browser.")
@cluster_option
def ui(jobs: tuple[str, ...], port: int, actions: bool, opens: bool, cluster: str | None) -> int:
    """Show all runs, their curves and logs on a web page that only this machine serves.

    JOB is a run id, a sweep or any Slurm job id, LOG is any log file; the page opens with the first
    one. Ctrl-C ends the server, never a job.

    The address includes a random token, and the server listens on 127.0.0.1 only. From a laptop,
    forward its port: ssh -L 8000:127.0.0.1:8000 LOGIN, with --port 8000. Slurm is queried as by
    hpcrun status --watch while a page is open, and not at all otherwise.
    """
    from hpcrun.ui import Board, redirecting_file, serve

    where = make_context(cluster)
    board = Board(where, jobs, has_actions=actions)

    files = ExitStack()  # removed when the server ends

    def announce(address: str) -> None:
        page = address + (f"#/run/{quote(board.first, safe='')}" if board.first else "")
        print_line(page)
        print_note("Ctrl-C ends the server")
        if opens:
            import webbrowser

            from hpcrun.assets import state_dir

            folder = state_dir(where.environ) / "ui"
            webbrowser.open(files.enter_context(redirecting_file(folder, page)).as_uri())

    with files:
        serve(board, port=port, announce=announce)
    return 0


# The exit code of timeout(1).
TIMED_OUT = 124


@click.command("wait")
@click.argument("jobs", metavar="[JOB...]", nargs=-1, type=RUN)
@click.option("--any", "first", is_flag=True, help="Stop when the first job has ended.")
@click.option(
    "--timeout", metavar="T", help="Stop waiting after T: seconds, or e.g. 15m, 2h, 1h30m."
)
@cluster_option
@json_option
def wait(
    jobs: Sequence[str], first: bool, timeout: str | None, cluster: str | None, as_json: bool
) -> int:
    """Wait until runs, sweeps or other Slurm jobs have ended.

    The default JOB is the newest run. The exit code is 0 if all jobs succeeded, 1 if one failed,
    124 if the timeout was reached, and 4 if Slurm did not respond when it was reached. A requeued
    job has not ended. Ctrl-C stops waiting, but never stops the job.
    """
    from hpcrun.actions import (
        EvaluationSubmitter,
        NotificationSender,
        add_cause,
    )
    from hpcrun.cli.submit_pipeline import RemainingEvaluations, find_exit_code
    from hpcrun.monitor import (
        Monitor,
        WatchedRuns,
        WatchedSlurmJobs,
        describe_stages,
        find_pipeline,
        find_targets,
        has_failed,
        poll_all,
        watch_key,
    )
    from hpcrun.text import Display
    from hpcrun.views import ended_json, format_end

    limit = None if timeout is None else parse_duration(timeout)
    where = make_context(cluster)
    targets = find_targets(where, jobs)
    pipelines = [each for word in jobs if (each := find_pipeline(where, word)) is not None]
    deadline = None if limit is None else time.monotonic() + limit
    superseded = {run for each in pipelines for run in each.superseded()}
    runs = [run for run in targets.all_runs() if run not in superseded]
    watched = [WatchedRuns(runs), WatchedSlurmJobs(targets.jobs)]
    monitor = Monitor(where, watched, deadline=deadline)
    last: dict[str, JobStatus] = {}
    over: list[JobStatus] = []
    sender, submitter = NotificationSender(where), EvaluationSubmitter(where)
    remaining = RemainingEvaluations(where, deadline)
    there: set[str] = set()

    def notify_and_sleep(seconds: float) -> None:
        sender.check_if_due(monitor.statuses)
        submitter.check_if_due(monitor.statuses)
        time.sleep(seconds)

    try:
        while True:
            for status in poll_all([monitor], deadline=deadline, sleep=notify_and_sleep):
                if status.final:
                    status = add_cause(where, status)
                    over.append(status)
                    if not as_json:
                        print_line(format_end(status, Display(colour=True)))
                elif not as_json:
                    _show_progress(last.get(watch_key(status)), status)
                last[watch_key(status)] = status
                if first and over:
                    break
            sender.finish(monitor.statuses)
            # Pending tasks shared a row, and have rows of their own since they started.
            there |= {watch_key(status) for status in monitor.statuses}
            is_late = deadline is not None and time.monotonic() >= deadline
            if not pipelines or is_late or (first and over):
                break
            pipelines = remaining.submit(pipelines, runs)
            new = [run for each in pipelines for run in each.runs() if run not in runs]
            if not new:
                break
            runs += new
            monitor = Monitor(where, [WatchedRuns(new)], deadline=deadline)
    except KeyboardInterrupt:
        print_note("\nstopped waiting; the jobs continue")
        raise
    last = {key: status for key, status in last.items() if key in there}
    left = [status for status in last.values() if not status.final]
    timed_out = bool(left or remaining.waiting) and not (first and over)
    silent = [status for status in left if status.state == "UNKNOWN"]
    if as_json:
        emit_json({"runs": [ended_json(one) for one in last.values()], "timed_out": timed_out})
    elif timed_out:
        names = ", ".join(one.label for one in left[:3]) + (", ..." if len(left) > 3 else "")
        waiting = "checkpoints are still to be evaluated"
        print_note(f"timed out; still running: {names}" if names else f"timed out; {waiting}")
    if timed_out:
        return 4 if silent else TIMED_OUT
    of_pipelines = {run.path for each in pipelines for run in each.runs()}
    failed = [one for one in over if not one.ok]
    if any(one.run is None or one.run.path not in of_pipelines for one in failed):
        return 1
    if first and over:
        return 1 if any(has_failed(describe_stages(each, over)) for each in pipelines) else 0
    codes = [find_exit_code(each, over) for each in pipelines]
    return max([*codes, 1 if remaining.problems else 0])


def _show_progress(before: JobStatus | None, now: JobStatus) -> None:
    """Print state changes on a terminal; in a pipe only when Slurm stops or resumes answering."""
    from hpcrun.text import Display
    from hpcrun.views import format_state

    was = before.state if before is not None else ""
    silence = "UNKNOWN" in (now.state, was) and now.state != was and before is not None
    if silence or is_terminal():
        line = format_state(now, Display(colour=True))
        print_note(line + ("; still waiting" if now.state == "UNKNOWN" else ""))


@click.command("shell", cls=ArgsAfterDashes)
@click.argument("job", required=False, type=RUN)
@click.option("--node", metavar="N", help="The node, by name or number (default: the first).")
@click.option("--new", "is_new", is_flag=True, help="Submit a new job for the shell.")
@session_options
@cluster_option
def shell(
    job: str | None,
    node: str | None,
    is_new: bool,
    keep: bool,
    cluster: str | None,
    extra_args: list[str] | None,
    **options: Any,
) -> int:
    """Open a shell on a node of a running job, or of a new job.

    The shell has the environment of the job: modules, Python, GPUs and working directory. A command
    after -- is run instead of a shell, and its exit code is returned: hpcrun shell 7 -- nvidia-smi.
    The default JOB is the newest run.

    --new submits a job, waits until it has started, and cancels it when the shell ends: hpcrun
    shell --new --gpus 1 --time 4h. The other options, but for --node, need --new.
    """
    from hpcrun.actions import exec_shell, prepare_shell
    from hpcrun.monitor import find_targets

    overrides = collect_session_overrides(options)
    if (overrides or keep) and not is_new:
        raise InputError("only a new job can be changed", fix="hpcrun shell --new ...")
    if is_new and job is not None:
        raise InputError(f"{job}: a job that exists, and --new", fix="leave out one of them")
    if extra_args == []:
        raise click.UsageError("no command follows --")
    has_terminal = sys.stdin.isatty() and is_terminal()
    if extra_args is None and not has_terminal:
        raise InputError(
            "a shell needs a terminal", fix="give a command: hpcrun shell JOB -- nvidia-smi"
        )
    where = make_context(cluster, system_ssh=True)
    if is_new:
        from hpcrun.cli.sessions import run_shell_session

        return run_shell_session(where, overrides, extra_args or [], node=node, keep=keep)
    shell = prepare_shell(
        where, find_targets(where, [job] if job else []), extra_args or [], node=node
    )
    for text in shell.notes:
        print_note(click.style(f"note: {text}", dim=True))
    exec_shell(shell)
    return 1  # not reached


@click.command("notebook")
@click.option("--open", "opens", is_flag=True, help="Open the page in the default web browser.")
@session_options
@cluster_option
def notebook(opens: bool, keep: bool, cluster: str | None, **options: Any) -> int:
    """Start Jupyter on a node, in a new job, and print its address.

    The job's Python must have JupyterLab, Notebook or jupyter_server: --set setup.venv=~/venv
    selects it, as for every job. The server listens on the node's loopback interface, and requires
    a random token. On a laptop, with host: in the profile, its port is forwarded; on a login node
    the command prints how to reach it.

    Ctrl-C asks whether to cancel the job; without a terminal it cancels it. With --keep the job
    continues until its time limit, and hpcrun open JOB PORT forwards its port again.
    """
    from hpcrun.cli.sessions import run_notebook_session

    overrides = collect_session_overrides(options)
    return run_notebook_session(make_context(cluster), overrides, keep=keep, opens=opens)


@click.command("code")
@click.option("--connect", metavar="RUN", help="Used by the entry: connect to the run's node.")
@session_options
@cluster_option
def code(connect: str | None, keep: bool, cluster: str | None, **options: Any) -> int:
    """Prepare a job for VS Code's Remote-SSH, and print how to connect to it.

    The command submits a job, waits until it has started, and writes an entry for ssh's
    configuration. It works with every program that uses ssh. The node needs OpenSSH's sshd program,
    but no running server: each connection is a job step, with the CPUs, GPUs and limits of the job.

    Ctrl-C asks whether to cancel the job; without a terminal it cancels it. With --keep the job
    continues until its time limit.
    """
    where = make_context(cluster)
    if connect is not None:
        from hpcrun.actions import exec_shell, prepare_editor_connection

        exec_shell(prepare_editor_connection(where, connect))
        return 1  # not reached
    from hpcrun.cli.sessions import run_editor_session

    overrides = collect_session_overrides(options)
    return run_editor_session(where, overrides, keep=keep, cluster=cluster)


def _parse_port(ctx: click.Context, param: click.Parameter, value: str) -> int | str:
    """Parse the number of a port, or "dashboard"."""
    if value == "dashboard":
        return value
    port: int = click.IntRange(1, 65535).convert(value, param, ctx)  # type: ignore[arg-type]
    return port


@click.command("open")
@click.argument("job", type=RUN)
@click.argument("port", callback=_parse_port)
@click.option("--node", metavar="N", help="The node, by name or number (default: the first).")
@cluster_option
def open(job: str, port: int | str, node: str | None, cluster: str | None) -> int:
    """Forward a port from a node of a running job to this machine: TensorBoard, a notebook.

    The command prints the URL to open, and forwards the port until the job ends or until Ctrl-C.
    PORT is a number, or dashboard for the dashboard of Ray (launcher: ray).

    On a login node, the command prints the URL of the node and the ssh command to run on your
    laptop, and ends. The server on the node must then listen on all addresses (tensorboard
    --bind_all, jupyter lab --ip 0.0.0.0).
    """
    from hpcrun.actions import find_dashboard_port, find_node, keep_port_open, open_port
    from hpcrun.monitor import find_targets

    where = make_context(cluster)
    status, shown, host = find_node(where, find_targets(where, [job]), node)
    if isinstance(port, str):
        port = find_dashboard_port(status)
    opened = open_port(where, shown, host, port)
    at, number = opened.here
    if not opened.is_answered:
        must = "must listen on all addresses: tensorboard --bind_all, jupyter lab --ip 0.0.0.0"
        if where.cluster.host is not None:
            must = "on 127.0.0.1 alone must be there before hpcrun open is"
        print_note(f"note: nothing responds on port {port} of {host} yet; the program {must}")
    if opened.is_relayed and where.cluster.host is None:
        raise InputError(
            f"port {port} of {host} responds only on that node",
            fix="make the program listen on all addresses (tensorboard --bind_all, jupyter lab "
            "--ip 0.0.0.0), or run hpcrun open on your laptop, with host: in the profile",
        )
    print_line(f"http://{at}:{number}/")
    if where.cluster.host is None:
        import getpass
        import socket

        login = f"{getpass.getuser()}@{socket.getfqdn()}"
        print_note(f"from your laptop: ssh -N -L {port}:{at}:{port} {login}")
        print_note(f"and there open http://127.0.0.1:{port}/")
        return 0
    print_note(f"that is port {port} of {host}, until {status.label} is over or Ctrl-C")
    ended = keep_port_open(where, status, opened, print_note)
    print_note(f"{ended.label} is {ended.state}")
    return 0


@click.command("fetch")
@click.argument("job", required=False, type=RUN)
@click.argument("globs", nargs=-1, metavar="[GLOB]...")
@click.option("--to", type=DIR, help="Target directory (default: named like the run).")
@click.option("--wandb-sync", is_flag=True, help="Upload the run's offline directories with wandb.")
@click.option("--dry-run", is_flag=True, help="List what would be copied, and stop.")
@cluster_option
@json_option
def fetch(
    job: str | None,
    globs: tuple[str, ...],
    to: str | None,
    wandb_sync: bool,
    dry_run: bool,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Copy a run's checkpoints, or the files that match a GLOB, to this machine.

    JOB is a Slurm job id or a run id; the default is the newest run. A GLOB is relative
    to the run's folder, its checkpoints or its working directory: 'global_step100', 'out/*.png',
    '**/events.out.tfevents.*'. A folder stands for all files in it. Quote the GLOB.

    Files that exist locally are not copied again, and interrupted transfers are resumed. The exit
    code is 1 if a file could not be read or is still being written.
    """
    from hpcrun.actions import (
        OFFLINE,
        Fetched,
        fetch_files,
        find_outputs,
        find_wandb,
        sync_offline,
    )
    from hpcrun.monitor import require_single_run, resolve_run_or_sweep
    from hpcrun.text import format_count, format_size

    where = make_context(cluster)
    wandb = find_wandb(where) if wandb_sync else ""
    run = require_single_run(resolve_run_or_sweep(where, job), job)
    if wandb_sync and not globs:
        globs = (OFFLINE,)
    found = find_outputs(where, run, globs)
    target = where.cwd / (to or run.run_id)
    size = sum(file.size for file in found.files)
    if found.fault:
        print_note(f"note: some files could not be listed: {found.fault}")
    if found.links:
        print_note(
            f"note: {format_count(len(found.links), 'link')} skipped, such as {found.links[0]}"
        )
    if not as_json:
        if dry_run:
            print_table(
                ["SIZE", "FILE"], [(format_size(file.size), file.name) for file in found.files]
            )
        print_line(f"{format_count(len(found.files), 'file')}, {format_size(size)}, to {target}")
    fetched = Fetched()
    if not dry_run:
        with where.bar("fetching", "MB") as show:
            fetched = fetch_files(where, found.files, target, show, print_note)
    refused = []
    if wandb_sync and not dry_run:
        refused = sync_offline(where, wandb, target, found.files)
    if as_json:
        rows = [
            {
                "name": file.name,
                "bytes": file.size,
                "fetched": file.name in fetched.done,
                "here": file.name in fetched.done or file.name in fetched.had,
                "reason": fetched.failed.get(file.name),
            }
            for file in found.files
        ]
        emit_json({"run_id": run.run_id, "to": str(target), "dry_run": dry_run, "files": rows})
    elif not dry_run:
        had = f", {len(fetched.had)} already existed here" if fetched.had else ""
        print_line(f"{len(fetched.done)} brought{had}")
    for name, why in fetched.failed.items():
        print_note(f"not copied: {name}: {why}")
    for name in refused:
        print_note(f"wandb did not accept {name}")
    return 1 if fetched.failed or refused else 0


@click.command("sync")
@click.argument("jobs", metavar="[RUN]...", nargs=-1, type=RUN)
@click.option(
    "--to",
    "kind",
    type=click.Choice(["tensorboard", "mlflow", "wandb", "trackio"]),
    required=True,
    help="The tracker.",
)
@click.option("-f", "--follow", is_flag=True, help="Send new points until the runs have ended.")
@click.option(
    "--dir", "folder", type=DIR, help="Folder of TensorBoard's, W&B's or trackio's files."
)
@click.option(
    "--project",
    metavar="NAME",
    help="Project of W&B or trackio, or MLflow experiment (default: the project directory's name).",
)
@cluster_option
def sync(
    jobs: tuple[str, ...],
    kind: str,
    follow: bool,
    folder: str | None,
    project: str | None,
    cluster: str | None,
) -> int:
    """Send the metrics of runs to TensorBoard, MLflow, W&B or trackio, without code in the script.

    RUN is a run id, a job id or a sweep, as for hpcrun parse; the default is the newest run. Each
    run, with all its attempts, is one run of the tracker, with its settings and the use of its
    nodes. A later call sends only what is new. Ctrl-C never stops the job.

    MLflow is found by MLFLOW_TRACKING_URI, W&B by wandb login or WANDB_API_KEY;
    WANDB_MODE=offline writes files. TensorBoard's files are written to ./tensorboard, or --dir,
    trackio's database to its own folder, or --dir.

    With -f, the exit code is 1 if a run failed.
    """
    from hpcrun.actions import sync_runs
    from hpcrun.trackers import make_tracker

    where = make_context(cluster)
    path = None if folder is None else where.cwd / folder
    ok = sync_runs(
        where,
        jobs,
        kind,
        lambda name: make_tracker(kind, where.environ, path, where.cwd, name),
        print_note,
        project=project,
        follow=follow,
    )
    return 0 if ok else 1


@click.command("notify")
@click.argument("job", required=False, type=JOB)
@click.option("--test", "is_test", is_flag=True, help="Send a test message to each channel.")
@click.option("-w", "--watch", "is_watched", is_flag=True, help="Repeat until Ctrl-C.")
@click.option("--cron", is_flag=True, help="Print a line for crontab.")
@click.option("--systemd", is_flag=True, help="Write a timer for the user's systemd.")
@cluster_option
def notify(
    job: str | None,
    is_test: bool,
    is_watched: bool,
    cron: bool,
    systemd: bool,
    cluster: str | None,
) -> int:
    """Send the notifications of your runs that their jobs have not sent.

    Jobs send their own notifications where compute nodes have internet access. Elsewhere, hpcrun
    wait, status --watch and top send those of the runs that they show, and this command those of
    all runs of the last month, if they happened in the last day: once, with --watch every minute,
    or from cron or systemd on a login node or your own machine.

    --test uses the channels of JOB, a job's name or file; by default those of the profile and of
    ~/.config/hpcrun/config.yaml. Commands, variables and files that the project names require a
    confirmation, unless HPCRUN_TRUST lists the project. The exit code is 1 if a message could not
    be sent.
    """
    from hpcrun.actions import send_new_notifications, send_test_messages

    if is_test + is_watched + cron + systemd > 1:
        raise InputError("--test, --watch, --cron and --systemd exclude each other", fix="use one")
    if job is not None and not is_test:
        raise InputError(f"{job}: a job is named only with --test", fix="leave it out")
    where = make_context(cluster, job=job)
    if is_test:
        can_ask = sys.stdin.isatty() and sys.stderr.isatty()
        results = send_test_messages(where, job, confirm=_confirm_channels if can_ask else None)
        for channel, error in results.items():
            print_line(f"{channel}: {error or 'sent'}")
        return 1 if any(results.values()) else 0
    if cron or systemd:
        return _print_schedule(where, cluster, cron=cron)
    while True:
        errors = send_new_notifications(where)
        for text in dict.fromkeys(errors):
            print_note(f"not sent: {text}")
        if not is_watched:
            return 1 if errors else 0
        time.sleep(_NOTIFY_EVERY_S)


def _confirm_channels(channels: str) -> bool:
    return confirm(f"The project names {channels}. Run these commands and send these values?")


def _print_schedule(where: Context, cluster: str | None, *, cron: bool) -> int:
    """Print the line for crontab, or write the units of systemd and print how to start them."""
    from hpcrun.actions import Schedule, write_systemd_units
    from hpcrun.assets import own_command

    schedule = Schedule(
        program=own_command(),
        folder=str(where.project),
        path=where.environ.get("PATH", ""),
        cluster=cluster,
    )
    if cron:
        print_line(schedule.cron_line())
        print_note("to install it: (crontab -l; hpcrun notify --cron) | crontab -")
        return 0
    units = write_systemd_units(where.environ, schedule)
    for unit in units:
        print_line(f"wrote {unit}")
    print_note(f"to start it: systemctl --user enable --now {units[-1].name}")
    print_note("to keep it running while you are not logged in: loginctl enable-linger")
    return 0


@click.command("nodes")
@click.argument("nodes", metavar="[NODE...]", nargs=-1)
@click.option("--clear", is_flag=True, help="Stop excluding these nodes; without NODE, all nodes.")
@cluster_option
@json_option
def nodes(nodes: tuple[str, ...], clear: bool, cluster: str | None, as_json: bool) -> int:
    """List the nodes that failed a check when one of your runs started.

    Your jobs exclude such a node for a day, unless too few nodes would remain, or the job requests
    the node (slurm: {nodelist: ...}). List of checks: docs/jobs.md, Bad nodes.
    """
    from hpcrun.actions import clear_bad_nodes as take_back
    from hpcrun.actions import list_bad_nodes
    from hpcrun.text import format_duration

    where, now = make_context(cluster), time.time()
    found = [one for one in list_bad_nodes(where) if not nodes or one.node in nodes]
    missing = [name for name in nodes if name not in {one.node for one in found}]
    if missing:
        raise InputError(f"{missing[0]}: not an excluded node", fix="hpcrun nodes lists them")
    cleared = take_back(where, [one.node for one in found]) if clear and found else []
    if as_json:
        keys = ("node", "why", "at", "until", "run_id")
        rows = [{key: getattr(one, key) for key in keys} for one in found]
        emit_json({"nodes": [] if clear else rows, "cleared": cleared})
    elif clear:
        for name in cleared:
            print_line(f"{name} may be used again")
        if not cleared:
            print_line("no node was excluded")
    elif not found:
        print_line("no nodes excluded")
    else:
        lines = [
            (
                one.node,
                f"{format_duration(max(0, now - one.at))} ago",
                format_duration(max(0, one.until - now)),
                one.run_id,
                one.why,
            )
            for one in found
        ]
        print_table(["NODE", "FOUND", "EXCLUDED FOR", "BY RUN", "WHY"], lines)
    return 0
