"""What a project that you have just fetched may start before you submit it: nothing of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import ROOT, Caller, replay

JOB = "script: train.py\nresources: {gpus_per_node: 1}\nargs: [--data, a.o]\n"


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def started(hpcrun: Caller, tmp_path: Path) -> Path:
    """A project whose checkout names programs; the folder in which each leaves a sign."""
    signs = tmp_path / "signs"
    signs.mkdir()
    program = hpcrun.write("run-me", f'#!/bin/sh\ntouch "{signs}/$1"\nexit 1\n')
    program.chmod(0o755)
    hpcrun.write("train.py", "import torch\n")
    hpcrun.write("job.yaml", JOB)
    hpcrun.write("data/.gitignore", "*.o\n")
    hpcrun.write("a.o", "")
    project = hpcrun.project
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "x")
    # A partial clone whose rules on what to ignore have to be fetched.
    git(project, "update-index", "--skip-worktree", "data/.gitignore")
    rules = git(project, "rev-parse", ":data/.gitignore")
    (project / ".git" / "objects" / rules[:2] / rules[2:]).unlink()
    (project / "data" / ".gitignore").unlink()
    (project / "data" / "b.o").touch()
    command = f"'{program}'"
    for name, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": str(tmp_path),
        "remote.origin.uploadpack": f"{command} fetch",
        "core.fsmonitor": f"{command} monitor",
        "core.sshCommand": f"{command} ssh",
        "credential.helper": f"!{command} credential",
    }.items():
        git(project, "config", name, value)
    (project / ".git" / "hooks" / "post-index-change").symlink_to(program)
    return signs


def test_git_starts_nothing_of_the_checkouts(hpcrun: Caller, started: Path) -> None:
    subprocess.run(
        ["git", "-C", str(hpcrun.project), "ls-files", "-co", "--exclude-standard"],
        check=False,
        capture_output=True,
    )
    assert {path.name for path in started.iterdir()} >= {"monitor", "fetch"}  # as git alone does
    for path in started.iterdir():
        path.unlink()
    hpcrun("submit", "job.yaml", "--dry-run")
    replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
    done = hpcrun("submit", "job.yaml", "--no-check")
    assert done.code == 0, done
    (run,) = hpcrun.runs.iterdir()
    assert (run / "code" / "train.py").is_file()
    assert not any(started.iterdir())


def test_a_template_lays_out_text_and_reaches_no_python(hpcrun: Caller, tmp_path: Path) -> None:
    hpcrun.write("train.py", "")
    hpcrun.write("job.yaml", JOB)
    for reach in (
        "cycler.__init__.__globals__.os.popen('touch {}').read()",
        "(plan | attr('__class__')).__mro__[-1].__subclasses__()",
        "'{0.__class__}'.format(plan)",
        "plan.directives.append(('wrap', 'id'))",
        "plan.program.append('x')",
    ):
        text = reach.replace("{}", str(tmp_path / "here"))
        text = '{% extends "hpcrun/job.sbatch.j2" %}\n{% block setup %}\n{{ ' + text + " }}\n"
        hpcrun.write("templates/job.sbatch.j2", text + "{% endblock %}\n")
        done = hpcrun("submit", "job.yaml", "--dry-run")
        assert done.code == 2 and "templates/job.sbatch.j2:3: " in done.err, (reach, done)
        assert "unsafe" in done.err or "undefined" in done.err or "no attribute" in done.err, done
    assert not (tmp_path / "here").exists()


def test_the_python_that_is_asked_runs_no_code_of_the_project(
    hpcrun: Caller, tmp_path: Path
) -> None:
    """It is asked which packages it has, with the project's own among them."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    asked = tmp_path / "asked"
    python.write_text(f'#!/bin/sh\ntouch "{asked}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    hpcrun.write("train.py", "import torch\n")
    hpcrun.write("job.yaml", JOB)
    for name in ("sitecustomize.py", "usercustomize.py", "torch/__init__.py"):
        hpcrun.write(name, f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    done = hpcrun("submit", "job.yaml", "--dry-run", "--set", f"setup.python={python}")
    assert asked.exists(), done
    assert not (tmp_path / "ran").exists()


def test_git_is_asked_in_one_way() -> None:
    files = [*(ROOT / "hpcrun").rglob("*.py")]
    assert [file.name for file in files if '"git"' in file.read_text()] == ["snapshot.py"]
