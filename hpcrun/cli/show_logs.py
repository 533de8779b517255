"""Output of log lines on the terminal, in a pipe, or as JSON, also while their jobs run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from hpcrun.actions import JobLogs, Lines, masker_of
from hpcrun.cli.output import emit_bytes, encodable, has_colour, is_terminal, print_note
from hpcrun.context import Context
from hpcrun.logs import LogFile, RankFolder, sanitize_for_terminal
from hpcrun.runs import RunFolder
from hpcrun.secrets import FileMasker, Masker
from hpcrun.text import Display, dim, format_size

if TYPE_CHECKING:  # needed only to follow logs
    import subprocess

    from hpcrun.runs import JobStatus

# Limit of output on a terminal; a note tells how to see the earlier part.
MAX_TERMINAL_BYTES = 4 << 20
MAX_TERMINAL_LINES = 2000

_LOOK = Display(colour=True)  # colours are removed again if standard error supports none
_RESET = b"\x1b[0m"
# Lines that the job's own scripts print.
_OWN_LINE = re.compile(rb"(?m)^hpcrun: [^\r\n]*")
# Each state of a progress bar counts as a line.
_STATES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class LogPrinter:
    """Prints log lines, and tracks the position of each file's current line.

    Args:
        masker: None prints everything unchanged, including control characters.
        keeps: Selects lines.
        folds: On a terminal, show a line that several ranks print once.
    """

    def __init__(
        self,
        masker: Masker | None,
        *,
        as_json: bool = False,
        keeps: Callable[[bytes], bool] | None = None,
        folds: bool = False,
    ) -> None:
        self._masker = masker
        self._as_json = as_json
        self._keeps = keeps
        self._is_terminal = is_terminal()
        self._colours = has_colour()
        is_plain = masker is None or as_json or not self._is_terminal
        self._folder = RankFolder() if folds and not is_plain else None
        self._maskers: dict[Path, FileMasker] = {}
        self._last: Path | None = None
        self._end = b"\n"

    def show(self, event: Lines) -> None:
        if event.heading:
            self.end_open_line()
            if not self._as_json:
                whose = f"task {event.file.task}: " if event.file.task else ""
                emit_bytes(encodable(f"==> {whose}{event.heading} <==\n").encode())
        if not event.data:
            return
        data, path = event.data, event.file.path
        if self._masker is not None:
            data = self._maskers.setdefault(path, FileMasker(self._masker)).mask(data)
        if self._as_json:
            lines = [_as_json(event.file, line) for line in self._filter_states(data)]
            emit_bytes("".join(lines).encode())
            return
        if self._keeps is not None:
            data = b"".join(
                line if line.endswith((b"\n", b"\r")) else line + b"\n"
                for line in self._filter_states(data)
            )
        if self._folder is not None:
            data = self._folder.remove_repeated(event.file, data)
            if not data:
                return
            self._show_folded()
        if self._last not in (None, path):
            # Progress bars of several ranks share one row.
            self._end_line(ends=b"\n\r")
        self._last = path
        if self._masker is not None and self._is_terminal:
            data = sanitize_for_terminal(data, colours=self._colours)
            if self._colours and event.file.rank is None:
                data = _OWN_LINE.sub(b"\x1b[2m\\g<0>\x1b[0m", data)
        if data:
            emit_bytes(add_prefix(data, event.file))
            self._end = data[-1:]

    def _show_folded(self) -> None:
        """Tell which ranks have printed the lines above too."""
        if self._folder is not None and (note := self._folder.take_note()):
            self._end_line(ends=b"\n")
            text = f"[{note}]"
            emit_bytes(f"{dim(text, _LOOK) if self._colours else text}\n".encode())

    def show_all(self, events: Iterable[Lines]) -> bool:
        """Print events; return True if there were any."""
        has_any = False
        try:
            for event in events:
                has_any = True
                self.show(event)
        finally:
            self.end_open_line()
        return has_any

    def end_open_line(self) -> None:
        """End an incomplete line, progress bar or colour before other text is printed."""
        self._show_folded()
        self._end_line(ends=b"\n")

    def _end_line(self, *, ends: bytes) -> None:
        if self._last is not None and self._is_terminal and self._colours and self._masker:
            emit_bytes(_RESET)
        if self._end not in ends:
            emit_bytes(b"\n")
            self._end = b"\n"
        self._last = None

    def _filter_states(self, data: bytes) -> Iterator[bytes]:
        for found in _STATES.finditer(data):
            if self._keeps is None or self._keeps(found.group()):
                yield found.group()


def add_prefix(data: bytes, file: LogFile) -> bytes:
    """Add a file's prefix to each line, and to each state of a progress bar."""
    if not file.prefix:
        return data
    return b"".join(file.prefixed(found.group()) for found in _STATES.finditer(data))


def _as_json(file: LogFile, line: bytes) -> str:
    value = {
        "job": file.job_id,
        "task": int(file.task) if file.task.isdecimal() else None,
        "attempt": file.attempt,
        "node": file.node,
        "rank": file.rank,
        **({"role": file.role} if file.role else {}),
        "stream": "stderr" if file.is_err else None,
        "file": file.name,
        "line": line.rstrip(b"\r\n").decode("utf-8", "replace"),
    }
    return json.dumps(value) + "\n"


def show_logs(
    logs: JobLogs, printer: LogPrinter, job: str | None, *, follow: bool, is_cut: bool
) -> int:
    """Print existing lines and, with ``follow``, new ones; return the exit code."""
    logs.check()
    query, files = logs.query, logs.chosen()
    # A separate error file is printed like any other.
    extracts = query.err and not any(file.is_err for file in files)
    if extracts and not logs.runs:
        files = logs.files()
    if is_cut and is_terminal() and not extracts:
        _limit_to_tail(logs)
    if not extracts:
        logs.begin()
    if follow:
        kind = "run" if logs.runs else "job"
        again = f"the {kind} continues: hpcrun logs -f {job or ''}".rstrip()
        code = watch_logs(logs, printer, with_lines=not extracts, again=again)
        if extracts:
            _note_full_disk(logs)
            _show_errors(logs, printer, logs.chosen() or files)
        return code
    if not files:
        print_note(_describe_no_output(logs))
    if query.err:
        _note_full_disk(logs)
    if not extracts:
        printer.show_all(logs.read())
    elif not _show_errors(logs, printer, files) and files:
        print_note("no errors in these logs")
    return 0


def _show_errors(logs: JobLogs, printer: LogPrinter, files: list[LogFile]) -> bool:
    from hpcrun.actions import read_errors  # deferred: only --err needs it

    return printer.show_all(read_errors(logs, files, logs.query.attempt))


def _note_full_disk(logs: JobLogs) -> None:
    from hpcrun.monitor import describe_full_disk  # deferred: only --err needs it

    if logs.runs and (text := describe_full_disk(logs.runs[0].path)):
        print_note(text)


def _limit_to_tail(logs: JobLogs) -> None:
    """Start near the end if there is more than fits a terminal's limits."""
    query = logs.query
    sizes = [file.path.stat().st_size for file in logs.chosen() if file.path.exists()]
    if sum(sizes) <= MAX_TERMINAL_BYTES or query.pattern is not None or query.since is not None:
        return
    lines = max(10, MAX_TERMINAL_LINES // len(sizes))
    each = " of each file" if len(sizes) > 1 else ""
    print_note(
        f"{format_size(sum(sizes))}: the last {lines} lines{each}; "
        "all of it: -n all, or hpcrun logs | less -R"
    )
    logs.query = structs.replace(query, lines=lines)


def _describe_no_output(logs: JobLogs) -> str:
    if logs.runs:
        if len(logs.runs) == 1:
            return _explain_silence(logs.context, logs.runs[0])
        return f"none of the {len(logs.runs)} runs of the sweep has output yet"
    statuses = logs.monitor.statuses
    paths = [file.name for file in (logs.output.files() if logs.output else ())]
    where = f" ({paths[0]})" if paths else ""
    if logs.output and {job.stdout for job in logs.output.jobs} == {"/dev/null"}:
        where = " (it is discarded: sbatch --output=/dev/null)"
    states = ", ".join(dict.fromkeys(status.state for status in statuses))
    yet = "" if all(status.final for status in statuses) else " yet"
    return f"job {statuses[0].job_id}: {states}; no output{yet}{where}"


def _explain_silence(context: Context, run: RunFolder) -> str:
    """Explain why a run has no output: it is pending, starting, or ended without any."""
    from hpcrun.monitor import describe_stage, status_of

    status = status_of(context, [run])[0]
    name = f"job {status.job_id}" if status.job_id else run.run_id
    if status.final:
        return f"{name}: {status.state}; no output"
    return f"{name}: {status.state}; no output yet: waiting for {describe_stage(status, run)}"


# ---- following


def watch_run(
    context: Context,
    run: RunFolder,
    *,
    logs: bool,
    quiet: bool = False,
    process: subprocess.Popen[bytes] | None = None,
) -> int:
    """Follow a run to its end; return 0 if it completed successfully and 1 if not.

    Ctrl-C never terminates the run; the caller terminates its own ``process``.
    """
    alive = None if process is None else lambda: process.poll() is None
    found = JobLogs(context, [run], alive=alive)
    printer = LogPrinter(masker_of(context, [run]), folds=True)
    again = f"the run continues: hpcrun logs -f {run.run_id}" if process is None else ""
    return watch_logs(found, printer, with_lines=logs, quiet=quiet, again=again)


def watch_logs(
    logs: JobLogs, printer: LogPrinter, *, with_lines: bool, quiet: bool = False, again: str = ""
) -> int:
    """Print lines and states until all jobs are over; return 0 if all succeeded and 1 if not.

    ``again`` is the message after Ctrl-C: nothing else was stopped, and how to resume following.
    """
    try:
        for event in logs.follow(with_lines=with_lines):
            if isinstance(event, str):
                if not quiet:
                    print_note(dim(event, _LOOK))
            elif isinstance(event, Lines):
                printer.show(event)
            elif not quiet:
                printer.end_open_line()
                print_note(_format_status(logs.context, event))
    except KeyboardInterrupt:
        if again:
            print_note(f"\nstopped following; {again}")
        raise
    finally:
        printer.end_open_line()
    return _exit_code(logs.monitor.statuses)


def wait_for_runs(
    context: Context,
    runs: Sequence[RunFolder],
    *,
    name: str,
    quiet: bool,
    check: Callable[[Sequence[JobStatus]], object] | None = None,
) -> int:
    """Wait for several runs; return 0 if all succeeded, else 1. Ctrl-C only stops waiting.

    Args:
        name: The name of their sweep or group; "" if they have none.
        check: Called again and again with their states.
    """
    from hpcrun.monitor import Monitor, WatchedRuns, poll_all

    monitor = Monitor(context, [WatchedRuns([*runs])])

    def check_and_sleep(seconds: float) -> None:
        if check is not None:
            check(monitor.statuses)
        time.sleep(seconds)

    try:
        for status in poll_all([monitor], sleep=check_and_sleep):
            if not quiet:
                print_note(_format_status(context, status))
    except KeyboardInterrupt:
        print_note(f"\nstopped waiting; the runs continue: hpcrun status {name}")
        raise
    return _exit_code(monitor.statuses)


def _format_status(context: Context, status: JobStatus) -> str:
    from hpcrun.actions import add_cause
    from hpcrun.views import format_state, format_verdict

    if not status.final:
        return format_state(status, _LOOK)
    return format_verdict(add_cause(context, status), _LOOK)


def _exit_code(statuses: Sequence[JobStatus]) -> int:
    return 0 if all(status.ok for status in statuses) else 1
