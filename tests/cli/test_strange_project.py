"""An untrusted project starts none of its own programs before it is submitted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.calling import ROOT, Caller, replay
from tests.cli.status_runs import make_run
from tests.needs import require_command

JOB = "script: train.py\nresources: {gpus_per_node: 1}\nargs: [--data, a.o]\n"


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def started(hpcrun: Caller, tmp_path: Path) -> Path:
    """A project whose git configuration names programs, and the folder of their traces."""
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
    # A partial clone whose ignore rules have to be fetched.
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
        "filter.own.clean": f"{command} filter",
    }.items():
        git(project, "config", name, value)
    (project / ".git" / "info").mkdir(exist_ok=True)
    (project / ".git" / "info" / "attributes").write_text("*.py filter=own\n")
    os.utime(project / "train.py", (1, 1))  # so that its content is compared
    (project / ".git" / "hooks" / "post-index-change").symlink_to(program)
    return signs


def test_git_starts_no_programs_of_the_checkout(hpcrun: Caller, started: Path) -> None:
    subprocess.run(
        ["git", "-C", str(hpcrun.project), "ls-files", "-co", "--exclude-standard"],
        check=False,
        capture_output=True,
    )
    assert {path.name for path in started.iterdir()} >= {"monitor", "fetch"}  # as git itself does
    for path in started.iterdir():
        path.unlink()
    hpcrun("submit", "job.yaml", "--dry-run")
    replay(hpcrun.tools, "sbatch", (0, "7\n", ""))
    done = hpcrun("submit", "job.yaml", "--no-check")
    assert done.code == 0, done
    (run,) = hpcrun.runs.iterdir()
    assert (run / "code" / "train.py").is_file()
    assert not any(started.iterdir())


def test_template_cannot_reach_python(hpcrun: Caller, tmp_path: Path) -> None:
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


def test_queried_python_runs_no_code_of_the_project(hpcrun: Caller, tmp_path: Path) -> None:
    """It is queried for its packages, which include those of the project."""
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


def test_git_is_called_only_by_git_command() -> None:
    files = [*(ROOT / "hpcrun").rglob("*.py")]
    call = re.compile(r"""[\[(]\s*["']git["']""")  # the first word of a command
    assert [file.name for file in files if call.search(file.read_text())] == ["snapshot.py"]


VERBS = ("status", "init --yes", "why 7", "parse 7", "logs 7", "top", "status --all", "hostfile 7")


@pytest.fixture
def slurm_of_project(hpcrun: Caller) -> Iterator[Callable[..., bool]]:
    """Create a slurm.conf in the project, and return a call that tells whether it was used.

    Slurm's commands load the libraries in the PluginDir of the slurm.conf that they use.
    """
    require_command("squeue")
    hpcrun.environ["PATH"] += f":{Path(shutil.which('squeue') or '').parent}"
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        theirs.settimeout(0.1)
        hpcrun.write(
            "plug/slurm.conf",
            "ClusterName=theirs\nSlurmctldHost=localhost(127.0.0.1)\nAuthType=auth/none\n"
            f"SlurmctldPort={theirs.getsockname()[1]}\nMessageTimeout=2\n"
            "NodeName=n\nPartitionName=p Nodes=n\n",
        )

        def is_asked(*words: str) -> bool:
            hpcrun.process(*words)
            calls = 0
            with contextlib.suppress(TimeoutError):
                while True:
                    theirs.accept()[0].close()
                    calls += 1
            return calls > 0

        yield is_asked


@pytest.mark.slow
def test_no_command_uses_the_slurm_conf_of_a_cloned_project(
    hpcrun: Caller, slurm_of_project: Callable[..., bool]
) -> None:
    plug = hpcrun.project / "plug"
    profile = hpcrun.project / "hpcrun.yaml"
    usual = profile.read_text()
    (plug / "link").symlink_to("slurm.conf")
    confs = ["plug/slurm.conf", "./plug/slurm.conf", "/proc/self/cwd/plug/slurm.conf"]
    confs += [f"{plug}/slurm.conf", f"{plug}/link", f"{plug}/../plug/slurm.conf"]
    for conf in confs:
        profile.write_text(f"{usual}slurm_conf: {json.dumps(conf)}\n")
        for verb in VERBS if conf == confs[0] else VERBS[:1]:
            assert not slurm_of_project(*verb.split()), (conf, verb)
            done = hpcrun.process(*verb.split())
            if verb != "status --all":  # which reports the invalid profile, and shows others
                assert done.code == 2, (conf, verb, done)
            assert "part of the project" in done.err, (conf, verb, done)
            assert f"export HPCRUN_TRUST={hpcrun.project}" in done.err
    profile.write_text(f"{usual}slurm_conf: {plug}/slurm.conf\n")
    hpcrun.environ["HPCRUN_TRUST"] = str(hpcrun.project)
    assert slurm_of_project("top"), "the user trusts it"


@pytest.mark.slow
def test_slurm_conf_elsewhere_in_the_repository_is_not_used(
    hpcrun: Caller, slurm_of_project: Callable[..., bool]
) -> None:
    inner = hpcrun.project / "examples"
    inner.mkdir()
    git(hpcrun.project, "init", "-q")
    (hpcrun.project / "hpcrun.yaml").rename(inner / "hpcrun.yaml")
    with (inner / "hpcrun.yaml").open("a") as file:
        file.write(f"slurm_conf: {hpcrun.project}/plug/slurm.conf\n")
    hpcrun.project = inner
    assert not slurm_of_project("status")
    assert "part of the project" in hpcrun.process("status").err


@pytest.mark.slow
def test_slurm_conf_of_a_run_in_a_cloned_project_is_not_used(
    hpcrun: Caller, slurm_of_project: Callable[..., bool]
) -> None:
    hpcrun.runs = hpcrun.project / "runs"
    hpcrun.write("hpcrun.yaml", "runs_dir: runs\n")
    run = make_run(hpcrun, "20261120-081455-train-7k3q", "15")
    for conf in ("plug/slurm.conf", f"{hpcrun.project}/plug/slurm.conf"):
        record = json.loads(run.submitted.read_text()) | {"slurm_conf": conf}
        run.submitted.write_text(json.dumps(record | {"submitted_at": time.time()}))
        os.utime(run.submitted)
        for verb in ("status", "status 15", "top 15", "cancel 15", "why 15", "clean"):
            assert not slurm_of_project(*verb.split()), (conf, verb)
    hpcrun.environ["HPCRUN_TRUST"] = str(hpcrun.project)
    assert slurm_of_project("status"), "the user trusts it"
