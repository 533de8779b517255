"""Every error that hpcrun raises on purpose, on one page.

    HpcrunError                   exit 1   something failed; the base of all
      InputError                  exit 2   what the user gave is wrong: a file, an option, a value
        SpecError                 exit 2   a job or cluster file, with all its problems at once
      SchedulerRefused            exit 3   Slurm answered, and the answer is no
      OutOfReach                  exit 4   Slurm, a host or a file system does not answer
      CommandFailed               exit 1   a command that hpcrun ran ended badly
      WaitTimeout                 exit 124 runs are not over yet, after as long as was to be waited

A message says what is wrong and where; ``fix`` says what to type or change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class HpcrunError(Exception):
    """Base of all errors that are shown to the user as one clear message."""

    exit_code = 1

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive the way between processes, whatever a subclass is made of."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[HpcrunError], args: tuple[Any, ...], state: dict[str, Any]) -> HpcrunError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InputError(HpcrunError, ValueError):
    """The user's input is wrong; nothing was done."""

    exit_code = 2


class Problem:
    """One thing wrong in a spec: the path of a key, what is wrong, and where it stands.

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
    """A job or cluster file has problems; ``problems`` holds all of them.

    ``notes`` is what else the user should know, which alone would not have been an error.
    """

    def __init__(
        self, problems: Sequence[Problem], *, fix: str = "", notes: Sequence[str] = ()
    ) -> None:
        super().__init__("\n".join(str(problem) for problem in problems), fix=fix)
        self.problems = list(problems)
        self.notes = list(notes)


class SchedulerRefused(HpcrunError):
    """Slurm refused."""

    exit_code = 3


class OutOfReach(HpcrunError):
    """Slurm (or a host, or a file system) gave no answer; nothing is known, nothing was lost.

    ``maybe_done``: the request may have arrived all the same. ``is_final``: asking again by itself
    is no help and may lock the user out, as after a refused login.
    """

    exit_code = 4

    def __init__(
        self, message: str, *, fix: str = "", maybe_done: bool = False, is_final: bool = False
    ) -> None:
        super().__init__(message, fix=fix)
        self.maybe_done = maybe_done
        self.is_final = is_final


class CommandFailed(HpcrunError):
    """A command ended with a code other than 0; carries what it printed."""

    def __init__(self, argv: Sequence[str], exit_code: int, stdout: str, stderr: str) -> None:
        tail = "\n".join((stderr.strip() or stdout.strip()).splitlines()[-10:])
        super().__init__(f"{argv[0]} ended with code {exit_code}: {tail}")
        self.argv = list(argv)
        self.code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class WaitTimeout(HpcrunError, TimeoutError):
    """The time to wait is up; the runs go on."""

    exit_code = 124
