"""A cluster on another machine: its run folders are copied only on request."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.errors import OutOfReach
from hpcrun.remote import Answers, Query, Result
from hpcrun.remote.local import LocalTransport

Answer = Callable[[Sequence[str], str], tuple[int, str, str]]


class FarTransport:
    """Copies run folders between a local mirror and the cluster's folder; each verb is one trip.

    ``slurm`` answers a command, by its name, for an argv and the folder that it is run in.
    """

    def __init__(self, mirror: Path, cluster: Path, slurm: Mapping[str, Answer]) -> None:
        self.mirror = mirror
        self.cluster = cluster
        self.slurm = dict(slurm)
        self.trips: list[str] = []

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
        """Reply like the Slurm of the cluster."""
        self.trips.append(argv[0])
        return self._answer(argv, cwd or "/")

    def run_queries(self, queries: Iterable[Query[Any]]) -> Answers:
        """Answer on this machine: both sides are local."""
        return LocalTransport(os.environ).run_queries(queries)

    def wrap_command(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, terminal: bool = False
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command itself."""
        return list(argv), dict(env or {})

    def run_script(self, script: str, take: Callable[[bytes], None]) -> Result:
        """Run the script: both sides are on this machine."""
        self.trips.append("bring")
        return LocalTransport(os.environ).run_script(script, take)

    def forward_port(self, host: str, port: int, by: Sequence[str] = ()) -> tuple[str, int]:
        """Return the port itself."""
        return host, port

    def fetch_changes(
        self, run_dirs: Iterable[Path], *, whole: bool = False, follow: bool = False
    ) -> None:
        """Copy the files written by the jobs."""
        named = [path for path in run_dirs if path.is_relative_to(self.mirror)]
        if named:
            self.trips.append("refresh")
        for run_dir in named:
            for name in ("attempts", "logs"):
                if (self._far(run_dir) / name).is_dir():
                    shutil.copytree(self._far(run_dir) / name, run_dir / name, dirs_exist_ok=True)

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
        """Copy the folders to the cluster and run a command in the first one."""
        self.trips.append("deliver")
        for run_dir in run_dirs:
            shutil.copytree(run_dir, self._far(run_dir))
        done = self._answer(argv, str(self._far(run_dirs[0])))
        if done.exit_code != 0:
            self._remove(run_dirs)
        return done

    def upload_files(self, paths: Sequence[Path]) -> None:
        """Copy files to the cluster, or remove them from it."""
        if paths:
            self.trips.append("send")
        for path in paths:
            if path.exists():
                shutil.copy2(path, self._far(path))
            else:
                self._far(path).unlink(missing_ok=True)

    def remove_directories(self, run_dirs: Sequence[Path]) -> None:
        """Remove the folders on both sides."""
        self.trips.append("remove")
        self._remove(run_dirs)
        for run_dir in run_dirs:
            shutil.rmtree(run_dir, ignore_errors=True)

    def _far(self, run_dir: Path) -> Path:
        return self.cluster / run_dir.relative_to(self.mirror)

    def _remove(self, run_dirs: Sequence[Path]) -> None:
        for run_dir in run_dirs:
            shutil.rmtree(self._far(run_dir), ignore_errors=True)

    def _answer(self, argv: Sequence[str], cwd: str) -> Result:
        if argv[0] not in self.slurm:
            raise OutOfReach(f"{argv[0]}: command not found")
        return Result(list(argv), *self.slurm[argv[0]](argv, cwd))
