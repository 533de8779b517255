"""How commands and files of a cluster are reached: the seam for local, scripted and, later, SSH."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class Result(Struct, frozen=True):
    """A command that ended."""

    argv: list[str]
    exit_code: int
    stdout: str
    stderr: str


class Transport(Protocol):
    """Runs commands and reads files where the cluster is."""

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

    def read(self, path: str, offset: int, limit: int) -> bytes:
        """Read up to ``limit`` bytes from ``offset``; empty at the end.

        Raises FileNotFoundError.
        """

    def size(self, path: str) -> int:
        """Tell a file's size in bytes; 0 where there is none."""
