"""A transport that answers from a script: for tests, ours and those of hpcrun's users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpcrun.transport import Result

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
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self.answers = dict(answers)
        self.files = dict(files or {})
        self.asked: list[list[str]] = []

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

    def read(self, path: str, offset: int, limit: int) -> bytes:
        """Read a scripted file."""
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][offset : offset + limit]

    def size(self, path: str) -> int:
        """Tell a scripted file's size."""
        return len(self.files.get(path, b""))
