"""The tutorial: every command with its exit code and output, in a sandbox."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import require
from tests.sandbox.using import taken_down
from tests.source import ROOT
from tests.torch_extensions import CACHE
from tests.tutorial import FILE, Step, skeleton, steps

# Job ids, in the document and in the test.
_SUBMITTED = re.compile(r"^Submitted \S+ to \S+ as job (\d+)", re.MULTILINE)
# Curves, machine-dependent numbers, and omitted output.
_DRAWN = re.compile(r"[│┤└─⠀-⣿━]|^\.\.\.$|^[*o+] ")


def reported(lines: list[str]) -> set[str]:
    """Return the lines of an output, without times, ids and other varying parts."""
    kept = {skeleton(line) for line in lines if line.strip() and not _DRAWN.search(line)}
    return {line for line in kept if re.search(r"[a-z]{3}", line)}


# States that may be missed, depending on the speed of the machine. A short run may also end before
# the job script has noticed its first step.
_PASSING = re.compile(r"^job # (PENDING|CONFIGURING|RUNNING|COMPLETING)$|^trained # of the time$")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_tutorial_commands_print_what_it_shows(tmp_path: Path) -> None:
    require(shutil.which("slurmctld", path="/usr/sbin:/usr/bin"), "slurmctld")
    # The sockets of a sandbox need a short path.
    place = Path("/tmp") / f"hpt{os.getpid()}"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hpcrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcrun "$@"\n')
    (tmp_path / "bin" / "hpcrun").chmod(0o755)
    CACHE.mkdir(parents=True, exist_ok=True)
    (tmp_path / "hpcrun").mkdir()
    (tmp_path / "hpcrun" / "cache").symlink_to(CACHE)
    env = {
        "PATH": f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "HPCRUN_SANDBOX_DIR": str(place),
        "LANG": "C.UTF-8",
        "COLUMNS": "80",
    }
    ids: dict[str, str] = {}
    folder = tmp_path
    with taken_down(place):
        for step in steps(FILE.read_text(encoding="utf-8")):
            if step.name:
                target = tmp_path / step.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(step.text)
            elif step.command.startswith("cd "):
                folder /= step.command.removeprefix("cd ")
            else:
                run(step, folder, env, ids)
        assert not place.exists(), "the last command takes the sandbox away"
    assert len(ids) >= 6


def run(step: Step, folder: Path, env: dict[str, str], ids: dict[str, str]) -> None:
    """Run a command with the current job ids, and compare its output with the document."""
    command = re.sub(r"\b\d{5,}\b", lambda match: ids.get(match[0], match[0]), step.command)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=folder, env=env, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    where = f"{command}\n{done.stdout}"
    assert done.returncode == step.exit_code or "head" in command, where
    shown = "\n".join(step.shown)
    ids.update(zip(_SUBMITTED.findall(shown), _SUBMITTED.findall(done.stdout), strict=True))
    missing = reported(step.shown) - reported(done.stdout.splitlines())
    if step.is_alike:
        assert {line for line in missing if not _PASSING.match(line)} == set(), where
