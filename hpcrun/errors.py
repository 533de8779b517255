"""All exceptions that hpcrun raises on purpose.

HpcrunError                   exit 1   an operation failed; the base of all
    InputError                  exit 2   invalid user input: a file, an option, a value
        SpecError                 exit 2   an invalid job or cluster file, with all its problems
    SchedulerRefused            exit 3   Slurm rejected a request
    OutOfReach                  exit 4   Slurm, a host or a file system does not respond
    CommandFailed               exit 1   a command started by hpcrun failed
    WaitTimeout                 exit 124 runs did not end before the timeout

A message states what is wrong and where; ``fix`` states what to type or change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class HpcrunError(Exception):
    """Base class of all errors that are shown to the user as a message without a traceback."""

    exit_code = 1

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling between processes, whatever arguments a subclass takes."""
        return _rebuild_error, (type(self), self.args, self.__dict__)


def _rebuild_error(
    kind: type[HpcrunError], args: tuple[Any, ...], state: dict[str, Any]
) -> HpcrunError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InputError(HpcrunError, ValueError):
    """The user's input is invalid; nothing was changed."""

    exit_code = 2


class NeedsLinux(InputError):
    """The command starts jobs on this machine, which is not Linux.

    >>> NeedsLinux("hpcrun sandbox").message
    'hpcrun sandbox runs only on Linux'
    """

    def __init__(self, command: str) -> None:
        fix = "run it on a Linux machine; the commands for clusters and logs work here"
        super().__init__(f"{command} runs only on Linux", fix=fix)


class Problem:
    """One problem in a spec: the path of the key, the error, and the position in the file.

    >>> str(Problem("resources.gpus", "unknown key", "jobs/x.yaml", 3))
    'jobs/x.yaml:3: resources.gpus: unknown key'
    >>> str(Problem("a.b", "not a number", "--set"))
    '--set: a.b: not a number'
    """

    def __init__(self, path: str, message: str, source: str = "", line: int | None = None) -> None:
        self.path = path
        self.message = message
        self.source = source
        self.line = line

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}" if self.line else self.source
        return ": ".join(part for part in (where, self.path, self.message) if part)


class SpecError(InputError):
    """A job or cluster file is invalid; all its problems are reported at once.

    Attributes:
        problems: All problems that were found.
        notes: Remarks for the user that would not be errors by themselves.
    """

    def __init__(
        self, problems: Sequence[Problem], *, fix: str = "", notes: Sequence[str] = ()
    ) -> None:
        super().__init__("\n".join(str(problem) for problem in problems), fix=fix)
        self.problems = list(problems)
        self.notes = list(notes)


class SchedulerRefused(HpcrunError):
    """Slurm rejected a request."""

    exit_code = 3


class OutOfReach(HpcrunError):
    """Slurm, a host or a file system did not respond, so the state is unknown.

    Attributes:
        maybe_done: The request may nevertheless have been executed.
        is_final: An automatic retry would not help and may lock the user out, as after a failed
            login.
    """

    exit_code = 4

    def __init__(
        self, message: str, *, fix: str = "", maybe_done: bool = False, is_final: bool = False
    ) -> None:
        super().__init__(message, fix=fix)
        self.maybe_done = maybe_done
        self.is_final = is_final


class CommandFailed(HpcrunError):
    """A command failed; its output is included."""

    def __init__(self, argv: Sequence[str], exit_code: int, stdout: str, stderr: str) -> None:
        tail = "\n".join((stderr.strip() or stdout.strip()).splitlines()[-10:])
        super().__init__(f"{argv[0]} ended with code {exit_code}: {tail}")
        self.argv = list(argv)
        self.code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class WaitTimeout(HpcrunError, TimeoutError):
    """The timeout expired; the runs continue."""

    exit_code = 124
