"""A transport with scripted replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.remote import Answers, Query, Result

Answer = Callable[[Sequence[str]], Result]


class ScriptedTransport:
    """Answers each command by its first word and remembers what was asked.

    >>> transport = ScriptedTransport({"squeue": (0, "", "")})
    >>> transport.run(["squeue", "--me"]).exit_code
    0
    >>> transport.asked
    [['squeue', '--me']]
    """

    def __init__(
        self,
        answers: Mapping[str, tuple[int, str, str] | Answer | Exception],
    ) -> None:
        self.answers = dict(answers)
        self.env: dict[str, str] = {}
        self.asked: list[list[str]] = []
        self.refreshed: list[list[Path]] = []
        self.removed: list[list[Path]] = []

    def open(self) -> None:
        """Do nothing: both sides are on this machine."""

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        stdin: str | None = None,
    ) -> Result:
        """Give the scripted answer; an Exception is raised; a missing one is a KeyError."""
        self.asked.append(list(argv))
        answer = self.answers[argv[0]]
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return answer(argv)
        return Result(list(argv), *answer)

    def run_queries(self, queries: Iterable[Query[Any]]) -> Answers:
        """Answer commands from the script, and other queries on this machine."""
        return Answers({query: query.answer_here(self) for query in queries})

    def wrap_command(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, terminal: bool = False
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command itself."""
        return list(argv), dict(env or {})

    def run_script(self, script: str, take: Callable[[bytes], None]) -> Result:
        """Return the scripted reply; no test defines one."""
        return self.run(["bring"])

    def forward_port(self, host: str, port: int, by: Sequence[str] = ()) -> tuple[str, int]:
        """Return the port itself."""
        return host, port

    def fetch_changes(
        self, run_dirs: Iterable[Path], *, whole: bool = False, follow: bool = False
    ) -> None:
        """Record the folders whose changes were requested."""
        self.refreshed.append(list(run_dirs))

    def copy_outputs(
        self, paths: Sequence[str], *, whole: bool = True
    ) -> tuple[list[Path], dict[str, str]]:
        """Return the files themselves."""
        return [Path(path) for path in paths], {}

    def submit_directories(
        self,
        run_dirs: Sequence[Path],
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float = 60,
    ) -> Result:
        """Return the scripted reply, as for a command in the first folder."""
        return self.run(argv, cwd=str(run_dirs[0]), env=env, timeout=timeout)

    def upload_files(self, paths: Sequence[Path]) -> None:
        """Do nothing: there is only one side."""

    def remove_directories(self, run_dirs: Sequence[Path]) -> None:
        """Record the folders to be removed."""
        self.removed.append(list(run_dirs))
