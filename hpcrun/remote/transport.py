"""The interface to the cluster: where Slurm's commands run and where run folders lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

from msgspec import Struct

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Folders with this prefix, in the folder of the runs, are being removed.
TRASH = ".trash-"


# Called with how much of long work is done, and of how much.
Show = Callable[[float, float], None]


# Why a file of the cluster is not copied, if it may still be written.
NO_SUCH_FILE = "no such file"


def no_bar(label: str, unit: str) -> AbstractContextManager[Show]:
    """Show nothing of long work, which is called ``label`` and counted in ``unit``."""
    return nullcontext(lambda done, total: None)


class Result(Struct, frozen=True):
    """A command that ended."""

    argv: list[str]
    exit_code: int
    stdout: str
    stderr: str


class Query(Struct, Generic[T_co], frozen=True):
    """A query about the cluster's host, whose answer is a ``T_co``; asking it twice is harmless."""

    def bash(self) -> str:
        """Return the bash command that answers it there; see queries.query_script()."""
        raise NotImplementedError

    def parse(self, result: Result) -> T_co:
        """Parse the output of that command. Raises OutOfReach."""
        raise NotImplementedError

    def answer_here(self, transport: Any) -> T_co:
        """Answer it on this machine; ``transport`` is the LocalTransport."""
        raise NotImplementedError


class Answers:
    """The answers to some queries, by query. A query that was not asked is a KeyError."""

    def __init__(self, found: Mapping[Query[Any], Any]) -> None:
        self._found = found

    def __getitem__(self, query: Query[T]) -> T:
        return cast(T, self._found[query])

    def __contains__(self, query: Query[Any]) -> bool:
        return query in self._found

    def __iter__(self) -> Iterator[Query[Any]]:
        return iter(self._found)

    def __or__(self, other: Answers) -> Answers:
        return Answers({**self._found, **other._found})


class Transport(Protocol):
    """Runs commands on the cluster and keeps run folders the same here and there."""

    def open(self) -> None:
        """Connect, so that a user answers before several threads ask. Raises OutOfReach."""

    def rest(self) -> None:
        """Let the connection and its threads go until the next question.

        Not where a user would be asked again.
        """

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        stdin: str | None = None,
    ) -> Result:
        """Run a command to its end; ``env`` replaces the transport's own environment.

        ``stdin`` is what the command can read; None: nothing.

        Raises OutOfReach when it does not end in ``timeout`` seconds or is not there at all.
        """

    def run_queries(self, queries: Iterable[Query[Any]]) -> Answers:
        """Answer queries about the cluster's host, all in one trip. Raises OutOfReach."""

    def process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, terminal: bool = False
    ) -> tuple[list[str], dict[str, str]]:
        """Return a command of this machine, and its environment, that is one of the cluster's.

        It has that one's streams, with ``terminal`` its terminal, and its exit code. ``env`` counts
        where the cluster is here.
        """

    def bring(self, script: str, take: Callable[[bytes], None]) -> Result:
        """Run a script of bash's where files are read; ``take`` gets its output, as it comes.

        The Result has none. Raises OutOfReach, and what ``take`` raises.
        """

    def reach(self, host: str, port: int, by: Sequence[str] = ()) -> tuple[str, int]:
        """Return where a port is found on this machine that the cluster's host reaches.

        It stays until the process ends or the connection breaks: then another call opens it again,
        at the same place. What the host does not reach a command of its own does: ``by``, whose
        stdin and stdout are one connection to the port. Raises OutOfReach.
        """

    def refresh(
        self, run_dirs: Iterable[Path], *, whole: bool = False, follow: bool = False
    ) -> None:
        """Bring what is new of some runs' folders: records, and logs as far as they have grown.

        Of a long log that is new here the end may be all that comes, unless it is to be ``whole``.
        The folder of the runs itself stands for their names. No trip where there are none; what
        lies elsewhere than the runs is left alone. Where the cluster is here the folders are not
        even listed. Who is to ``follow`` the runs does not wait: what is new comes by itself from
        now on, as long as this is called again and again. Raises OutOfReach; of runs that are
        followed once after each time that they were out of reach.
        """

    def copy_outputs(
        self, paths: Sequence[str], *, whole: bool = True
    ) -> tuple[list[Path], dict[str, str]]:
        """Return where files of the cluster are read on this machine, as they are there now.

        Where the cluster is another machine, they are copies, which are not there for files that
        cannot be read; the second value says why, by their paths. Of a long file that is new here
        the end may be all that comes, unless it is to be ``whole``. Raises OutOfReach.
        """

    def deliver(
        self,
        run_dirs: Sequence[Path],
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float = 60,
    ) -> Result:
        """Send finished folders to the cluster, then run a command in the first of them.

        The command runs once, whatever breaks meanwhile. Where it fails the folders stay there:
        remove() takes them away. Raises OutOfReach, as run().
        """

    def send(self, paths: Sequence[Path]) -> None:
        """Make files of delivered folders the same there as here: the copy of one, or gone.

        Raises OutOfReach.
        """

    def remove(self, run_dirs: Sequence[Path]) -> None:
        """Remove folders for good, here and on the cluster: all of them or none.

        An end in between leaves no half run. Folders that are gone already are no error. Raises
        OSError, OutOfReach.
        """


# Makes the transport to a cluster of the environment of its commands. ``deadline`` (by
# time.monotonic): every command is cut off then, whatever its own limit. ``waiting``: each runs
# inside it. A Context has one, so that a test can set its own.
Connect = Callable[..., Transport]
