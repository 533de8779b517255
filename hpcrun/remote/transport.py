"""The interface to the cluster: where Slurm's commands run and where run folders lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Prefix of folders that are being removed, in the folder of the runs.
TRASH = ".trash-"


# Called with the amount of work that is done, and with the total.
ShowProgress = Callable[[float, float], None]


# Why a file of the cluster is not copied, if it may still be written.
NO_SUCH_FILE = "no such file"


def no_progress_bar(label: str, unit: str) -> AbstractContextManager[ShowProgress]:
    """Show no progress."""
    return nullcontext(lambda done, total: None)


class Result(Struct, frozen=True):
    """A command that ended."""

    argv: list[str]
    exit_code: int
    stdout: str
    stderr: str


class Query(Protocol[T_co]):
    """A query about the cluster's host, whose answer is a ``T_co``.

    A query is hashable, because answers are stored by query. It has no side effects, because it is
    repeated after a lost connection.
    """

    def to_bash(self) -> str:
        """Return the bash command that answers the query there; see queries.query_script()."""

    def parse_answer(self, result: Result) -> T_co:
        """Parse the output of that command. Raises OutOfReach."""

    def answer_here(self, transport: Any) -> T_co:
        """Answer the query on this machine; ``transport`` is the LocalTransport."""


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
    """Runs commands on the cluster, and keeps the folders of runs the same on both machines."""

    def open(self) -> None:
        """Connect, and let the user answer the questions of a login. Raises OutOfReach."""

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        stdin: str | None = None,
    ) -> Result:
        """Run a command to its end.

        Args:
            env: Replaces the transport's own environment.
            stdin: The command's input; None for none.

        Raises:
            OutOfReach: The command does not exist, or does not end within ``timeout`` seconds.
        """

    def run_queries(self, queries: Iterable[Query[Any]]) -> Answers:
        """Answer queries about the cluster's host, all in one trip. Raises OutOfReach."""

    def wrap_command(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, terminal: bool = False
    ) -> tuple[list[str], dict[str, str]]:
        """Return a local command, and its environment, that runs a command on the cluster.

        The local command has the streams and the exit code of the other one.

        Args:
            env: Replaces the environment where the cluster is this machine.
            terminal: Give the command a terminal.
        """

    def run_script(self, script: str, on_output: Callable[[bytes], None]) -> Result:
        """Run a bash script on the host of transfers, and pass on its output piece by piece.

        Returns:
            The exit code and stderr.

        Raises:
            OutOfReach: The host does not answer; also what ``on_output`` raises.
        """

    def forward_port(self, host: str, port: int, helper: Sequence[str] = ()) -> tuple[str, int]:
        """Return a local address that leads to a port which the cluster's host can reach.

        The address is valid until the process ends. After a broken connection another call opens it
        again at the same port.

        Args:
            helper: A command whose stdin and stdout are one connection to the port, for a port that
                the host cannot reach by itself.

        Raises:
            OutOfReach: The host does not answer.
        """

    def fetch_changes(
        self, run_dirs: Iterable[Path], *, whole: bool = False, follow: bool = False
    ) -> None:
        """Copy new records and appended log lines of runs into the mirror.

        Without runs there is no round trip. Folders outside the mirror are ignored; where the
        cluster is this machine, nothing is done.

        Args:
            run_dirs: Folders of runs in the mirror; the mirror itself stands for the names of all
                runs.
            whole: Fetch logs from their beginning; else only the end of a log that is long and new.
            follow: Do not wait: changes arrive by themselves while this is called again and again.

        Raises:
            OutOfReach: The host does not answer; of followed runs once for each interruption.
        """

    def copy_outputs(
        self, paths: Sequence[str], *, whole: bool = True
    ) -> tuple[list[Path], dict[str, str]]:
        """Copy files of the cluster to this machine.

        Args:
            whole: Copy long files from their beginning; else their end.

        Returns:
            The path of each copy, the file itself where the cluster is this machine; and why a file
            could not be read, by its path.

        Raises:
            OutOfReach: The host does not answer.
        """

    def submit_directories(
        self,
        run_dirs: Sequence[Path],
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float = 60,
    ) -> Result:
        """Upload the folders of runs, then run a command in the first, exactly once.

        Where the command fails the folders remain; remove_directories() removes them.

        Raises:
            OutOfReach: As run().
        """

    def upload_files(self, paths: Sequence[Path]) -> None:
        """Make files of uploaded folders the same on the cluster: copy them, or remove them there.

        Raises:
            OutOfReach: The host does not answer.
        """

    def remove_directories(self, run_dirs: Sequence[Path]) -> None:
        """Remove the folders of runs, on this machine and on the cluster: all of them or none.

        An interruption leaves no half run. Folders that do not exist are ignored.

        Raises:
            OSError: A folder cannot be removed.
            OutOfReach: The host does not answer.
        """


# Builds the transport to a cluster for the environment of its commands. Options: ``deadline``, by
# time.monotonic(), at which every command is terminated; ``waiting``, a context manager in which
# each command runs.
Connect = Callable[..., Transport]
