"""The only module that prints."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import click

from hpcrun.errors import HpcrunError, OutOfReach, SpecError

if TYPE_CHECKING:
    import threading

    from hpcrun.text import Display


# Control sequences that reach a terminal: colours.
_PASSES = re.compile(r"\x1b\[(?:[0-79]|2[0-9]|[349][0-7]|10[0-7]|[34]8;5;[0-9]{1,3}|;)*m")
# All control characters: C0 except newlines and tabs, DEL, C1, and bidirectional controls.
_CONTROLS = re.compile(
    rf"({_PASSES.pattern})|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def escape_controls(text: str) -> str:
    r"""Escape control sequences; all printed text passes through here.

    Names of jobs, paths, comments and records may have been written by other users.

    >>> escape_controls("\x1b[1mbold\x1b[0m \x1b]0;title\x07\r\x1b[2J")
    '\x1b[1mbold\x1b[0m \\x1b]0;title\\x07\\r\\x1b[2J'
    """
    if text.isprintable():
        return text

    def one(found: re.Match[str]) -> str:
        return found[1] or found[0].encode("unicode_escape").decode()

    shown = _CONTROLS.sub(one, text)
    # Reset a colour that is still active at the end of a text.
    return shown if shown.rfind("\x1b[") == shown.rfind("\x1b[0m") else f"{shown}\x1b[0m"


def print_notices() -> None:
    """Print pending notices about files to standard error, above any progress bar."""
    _erase_bars()
    files = sys.modules.get("hpcrun.files")
    for text in files.take_new_notices() if files is not None else ():
        _to_stderr(f"note: {text}")


def print_line(text: str = "") -> None:
    """Print a line of the result."""
    print_notices()
    click.echo(encodable(text), color=None if wants_colour() else False)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of the result; newlines within one, for example in a job's name, are escaped."""
    for line in lines:
        print_line(line.replace("\n", r"\n"))


def print_note(text: str) -> None:
    """Print a line that is not part of the result to standard error, if that is still open."""
    print_notices()
    _to_stderr(text)


def _to_stderr(text: str) -> None:
    try:
        click.echo(encodable(text), err=True, color=None if wants_colour() else False)
    except OSError:
        discard_output(2)


def confirm(text: str, *, default: bool = False) -> bool:
    """Ask a yes-or-no question on standard error."""
    return click.confirm(encodable(text), default=default, err=True)


def prompt(text: str, default: str) -> str:
    """Prompt for a word on standard error; Enter accepts the default."""
    text = encodable(f"{text} [{default}]")
    return str(click.prompt(text, default=default, show_default=False, err=True)).strip()


class TerminalPrompts:
    """Prompts for a login, on the terminal itself since the streams may be redirected.

    Attributes:
        is_prompting: A prompt waits for the user, into which a note would be printed.
    """

    is_prompting: ClassVar[bool] = False

    def __init__(self, *, is_verbose: bool = False) -> None:
        self.is_verbose = is_verbose

    def secret(self, question: str, *, echo: bool = False) -> str:
        """Prompt for a password, a passphrase or a code. Raises OutOfReach without a terminal."""
        TerminalPrompts.is_prompting = True
        try:
            return self._read_secret(question, echo=echo)
        finally:
            TerminalPrompts.is_prompting = False

    def _read_secret(self, question: str, *, echo: bool = False) -> str:
        import getpass

        print_notices()
        question = encodable(question)
        try:
            with open("/dev/tty", "r+b", buffering=0) as terminal:  # noqa: PTH123
                if echo:
                    terminal.write(f"{question}: ".encode())
                    return terminal.readline().decode(errors="replace").rstrip("\r\n")
        except OSError:
            raise OutOfReach(
                f"{question}: cannot prompt: no terminal",
                fix="use a key in an agent (ssh-add), or a connection opened by hpcrun connect",
                is_final=True,
            ) from None
        return getpass.getpass(f"{question}: ")

    def tell(self, text: str) -> None:
        if self.is_verbose:
            print_note(text)


def emit_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print_notices()
    import json

    click.echo(json.dumps(value, indent=2, ensure_ascii=True))


def emit_bytes(data: bytes) -> None:
    """Print the bytes of a log unchanged."""
    print_notices()
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def discard_output(number: int = 1) -> None:
    """Redirect a stream whose reader closed it to /dev/null, so that Python reports no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def print_failure(error: click.ClickException | HpcrunError, argv: Sequence[str]) -> None:
    """Print an error as text, or as one JSON object: the last line of standard error."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    ours, code = error, error.exit_code
    if not isinstance(ours, HpcrunError):
        fix = f"{context.command_path} --help" if context is not None else ""
        ours = HpcrunError(ours.format_message(), fix=fix)
    if _wants_json(argv):
        import json

        print_note(json.dumps({"error": _error_json(ours, code)}))
    # A group without a verb: click 8.2 and later raise its help instead of printing it.
    elif type(error).__name__ == "NoArgsIsHelpError":
        print_note(ours.message)
    else:
        if context is not None:
            print_note(context.get_usage())
        print_error(ours)


def print_error(error: HpcrunError) -> None:
    """Print an error: what, where, the fix."""
    for problem in error.problems if isinstance(error, SpecError) else [error.message]:
        print_message("error", str(problem), fg="red")
    if error.fix:
        print_message("  fix", error.fix, fg="green")
    for text in error.notes if isinstance(error, SpecError) else ():
        print_message("note", text, dim=True)


def _wants_json(argv: Sequence[str]) -> bool:
    """Return True if --json is on the command line; arguments after -- belong to the job.

    >>> [_wants_json(line.split()) for line in ("jobs --json", "submit -- x --json", "status")]
    [True, False, False]
    """
    own = list(argv)
    return "--json" in own[: own.index("--") if "--" in own else None]


def _error_json(error: HpcrunError, exit_code: int) -> dict[str, Any]:
    spec = error if isinstance(error, SpecError) else SpecError([])
    return {
        "message": error.message,
        "fix": error.fix or None,
        "problems": [vars(problem) for problem in spec.problems],
        "notes": spec.notes,
        "exit_code": exit_code,
    }


def print_message(kind: str, text: str, **style: Any) -> None:
    """Print a message of some kind to standard error, wrapped to a terminal's width."""
    lines, room = [f"{kind}: {text}"], terminal_width() - 8
    if len(lines[0]) > room and sys.stderr.isatty():
        from hpcrun.text import wrap

        lines = wrap(lines[0], max(room, 30), whole_words=True)
    first, *more = lines
    indent = kind[: len(kind) - len(kind.lstrip())]
    print_note(f"{indent}{click.style(kind.strip(), **style)}{first[len(kind) :]}")
    for line in more:
        print_note(f"  {line}")


def print_pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns; long values are wrapped on a terminal."""
    from hpcrun.text import format_pairs

    print_lines(format_pairs(rows, output_display()))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as wide as its content; the last column is wrapped on a terminal."""
    from hpcrun.text import format_table

    print_lines(format_table(header, rows, output_display()))


def output_display() -> Display:
    """Return the capabilities and width of the output; a pipe has unlimited width."""
    from hpcrun.text import UNLIMITED, Display

    width = terminal_width() if is_terminal() else UNLIMITED
    return Display(width, UNLIMITED, has_colour(), not has_unicode())


def drawing_display() -> Display:
    """Return the capabilities of the output, with a drawing width also for a pipe."""
    from hpcrun.text import UNLIMITED, Display

    width, height = width_and_height()
    height = height if is_terminal() else UNLIMITED
    return Display(width, height, has_colour(), not has_unicode())


def terminal_width(default: int = 80) -> int:
    """Return the terminal's width: $COLUMNS, or that of any stream's terminal.

    shutil.get_terminal_size() would first import three compression libraries.
    """
    with contextlib.suppress(ValueError):
        if (given := int(os.environ.get("COLUMNS", ""))) > 0:
            return given
    for stream in (sys.__stdout__, sys.__stderr__, sys.__stdin__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if (found := os.get_terminal_size(stream.fileno()).columns) > 0:  # type: ignore[union-attr]
                return found
    return default


def width_and_height() -> tuple[int, int]:
    """Return the size for drawings, in characters."""
    import shutil

    return terminal_width(100), shutil.get_terminal_size((100, 30)).lines


def is_terminal() -> bool:
    """Return True if the output is a terminal."""
    return sys.stdout.isatty()


def can_draw() -> bool:
    """Return True if the output is a terminal that can redraw a picture in place."""
    return is_terminal() and os.environ.get("TERM") != "dumb"


def has_colour() -> bool:
    """Return True if the output is a terminal on which colours are enabled."""
    return is_terminal() and wants_colour()


def wants_colour() -> bool:
    """Return True unless colours are disabled (no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def has_unicode() -> bool:
    """Return True if the output can show more than ASCII.

    Python writes UTF-8 also in the C locale, because many machines set none (PEP 538, 540); an
    explicit LC_ALL=C selects ASCII.
    """
    if os.environ.get("LC_ALL") in ("C", "POSIX") and not os.environ.get("PYTHONIOENCODING"):
        return False
    return _encoding().lower().replace("-", "").startswith("utf")


def encodable(text: str) -> str:
    """Escape control sequences and characters that the terminal's encoding lacks."""
    encoding, text = _encoding(), escape_controls(text)
    if not has_unicode():
        text = text.replace("…", "...").replace("×", "x")
    return text.encode(encoding, "backslashreplace").decode(encoding)


def replace_unencodable(text: str) -> str:
    """Replace characters that the output's encoding lacks by "?", to keep the width of rows."""
    encoding = _encoding()
    return escape_controls(text).encode(encoding, "replace").decode(encoding)


def _encoding() -> str:
    return sys.stdout.encoding or "ascii"  # a replacement of sys.stdout may have none


# A note is printed after this many seconds without an answer from Slurm.
SLOW_ANSWER_S = 3.0


class SlownessNote:
    """Prints one note if Slurm, or its host, is slow to answer."""

    def __init__(self, who: str = "Slurm") -> None:
        self._who = who
        self._is_reported = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        import threading

        is_over = threading.Event()
        try:
            threading.Thread(target=self._report_slowness, args=(is_over,), daemon=True).start()
        except RuntimeError:  # the limit of threads is reached: print no note
            yield
            return
        try:
            yield
        finally:
            is_over.set()

    def _report_slowness(self, is_over: threading.Event) -> None:
        while not is_over.wait(SLOW_ANSWER_S):
            # The user's time to answer a prompt is not Slurm's.
            if not TerminalPrompts.is_prompting:
                if not self._is_reported:
                    self._is_reported = True
                    print_note(f"{self._who} is slow to answer; still waiting ...")
                return


# Work that takes longer than this gets a progress bar, redrawn at this interval, in seconds.
LONG_WORK_S, REDRAW_INTERVAL_S = 1.0, 0.1


@contextlib.contextmanager
def progress_bar(label: str, unit: str) -> Iterator[Callable[[float, float], None]]:
    """Show a progress bar while standard error is a terminal; remove it at the end.

    Yields a function to be called with the completed and total amount, in ``unit``.
    """
    call = click.get_current_context(silent=True)
    is_quiet = call is not None and call.params.get("as_json")
    is_shown = not is_quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    began, drawn_at, shown = time.time(), 0.0, -1.0

    def show(done: float, total: float) -> None:
        nonlocal drawn_at, shown
        now = time.time()
        is_due = now - began >= LONG_WORK_S and (
            now - drawn_at >= REDRAW_INTERVAL_S or done >= total
        )
        if not (is_shown and is_due and total) or done == shown:
            return
        drawn_at, shown = now, done
        rate = done / max(now - began, 1e-3)
        left = ""
        if 0 < done < total:
            minutes, seconds = divmod(int((total - done) / rate), 60)
            left = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}  "
        text = f"{int(100 * done / total):3}%  {left}{done:.0f} {unit}, "
        text += f"{rate:.{0 if rate >= 10 else 1}f} {unit}/s"
        # A line that is longer than the window could not be erased.
        width = min(24, terminal_width() - len(f"{label}  []  {text}") - 1)
        if width >= 0:
            _bars.append(label)
            line = f"{label}  [{'#' * int(width * done / total):-<{width}}]  {text}"
            try:
                sys.stderr.write(f"\r\x1b[?25l{line:<{terminal_width() - 1}}")
                sys.stderr.flush()
            except OSError:  # the terminal is closed, but the work continues
                discard_output(2)

    try:
        yield show
    finally:
        _erase_bars()


_bars: list[str] = []  # labels of visible bars


def _erase_bars() -> None:
    """Erase the line of a bar and show the cursor, before other output."""
    if _bars:
        _bars.clear()
        sys.stderr.write("\r\x1b[K\x1b[?25h")
        sys.stderr.flush()
