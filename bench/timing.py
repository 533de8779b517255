"""Time whole processes alternately, so that slow phases of the machine affect all of them."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Command(NamedTuple):
    """A command to run. ``may_fail``: it does its work, but exits with an error."""

    argv: Sequence[str]
    may_fail: bool = False


class Times:
    """Durations of each command in seconds, one value per round."""

    def __init__(self, seconds: dict[str, list[float]]) -> None:
        self.seconds = seconds

    def ratio(self, name: str, other: str) -> float:
        """Compare two commands by the median of the ratios of all rounds."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def milliseconds(self, name: str) -> float:
        """Return the median of one command."""
        return statistics.median(self.seconds[name]) * 1000

    def line(self, name: str, label: str = "") -> str:
        """Return one line with the times of a command."""
        seconds = [one * 1000 for one in self.seconds[name]]
        return (
            f"{label or name}: median {statistics.median(seconds):.0f} ms"
            f" (from {min(seconds):.0f} to {max(seconds):.0f}, {len(seconds)} times)"
        )


def in_turns(
    commands: Mapping[str, Command], rounds: int, *, env: Mapping[str, str], cwd: Path
) -> Times:
    """Run each command once per round; the first round is a warm-up and is not counted.

    Raises CalledProcessError for a command that fails.
    """
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    names = list(commands)
    for number in range(rounds + 1):
        # Each command is first equally often.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            command = commands[name]
            began = time.perf_counter()
            done = subprocess.run(
                command.argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            took = time.perf_counter() - began
            if done.returncode and not command.may_fail:
                raise subprocess.CalledProcessError(
                    done.returncode, command.argv, done.stdout, done.stderr
                )
            if number:
                seconds[name].append(took)
    return Times(seconds)
