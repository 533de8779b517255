"""hpcrun shell --new notebook and code on a real Slurm, from the login node and from a laptop."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.laptop import Laptop, laptop
from tests.cluster.site import Site
from tests.waiting import until

__all__ = ["laptop"]  # fixture


def test_new_shell_runs_in_its_own_job_and_cancels_it(site: Site) -> None:
    script = 'echo "job $SLURM_JOB_ID with $SLURM_CPUS_ON_NODE CPUs in $PWD"; exit 7'
    done = site.hpcrun(
        "shell", "--new", "--time", "5", "--set", "env={MINE: abc}", "--", "bash", "-c", script
    )
    assert done.returncode == 7, done.stderr
    job = done.stdout.split()[1]
    assert done.stdout.startswith(f"job {job} with ") and f"in {site.project}\n" in done.stdout
    assert f"submitted job {job}\n" in done.stderr and f"cancelled job {job}\n" in done.stderr
    until(lambda: site.rig.run("squeue", "-h", "-j", job).stdout == "", "the job's end")
    kept = site.hpcrun("shell", "--new", "--keep", "--time", "5", "--", "printenv", "SLURM_JOB_ID")
    again = site.hpcrun("shell", kept.stdout.strip(), "--", "printenv", "SLURM_JOB_ID")
    assert again.stdout == kept.stdout, again.stderr
    site.hpcrun("cancel", kept.stdout.strip())
    refused = site.hpcrun("shell", "--new", "-p", "nowhere", "--", "true")
    assert refused.returncode in (2, 3), refused.stderr


def test_new_shell_of_a_laptop_runs_on_the_cluster(laptop: Laptop) -> None:
    done = laptop.hpcrun("shell", "--new", "--time", "5", "--", "printenv", "SLURMD_NODENAME")
    assert (done.returncode, done.stdout) == (0, "node1\n"), done.stderr
    assert "cancelled job" in done.stderr


@contextmanager
def started(
    argv: Sequence[str], cwd: Path, environ: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start hpcrun; yield the process and the first line that it prints."""
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address or process.wait(), process.communicate()
        yield process, address
    finally:
        process.kill()
        process.communicate()


def test_notebook_of_a_laptop_is_forwarded_and_needs_its_token(laptop: Laptop) -> None:
    argv = laptop.argv("notebook", "--time", "5")
    with started(argv, laptop.project, laptop.environ()) as (process, address):
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)[\w/-]*\?token=([\w-]{40,})", address)
        assert found, address
        base, token = found.groups()
        with urllib.request.urlopen(f"{base}api/status?token={token}") as page:
            assert "started" in json.load(page)
        try:
            urllib.request.urlopen(f"{base}api/status")
        except urllib.error.HTTPError as error:
            assert error.code == 403
        else:
            raise AssertionError("the token is not needed")
        (run,) = laptop.json("status")["runs"]
        far_run = laptop.far_runs / run["run_id"]
        readable = [
            path
            for path in far_run.rglob("*")
            if path.is_file() and path.stat().st_mode & 0o077 and token in path.read_text("latin-1")
        ]
        assert readable == []
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130 and f"cancelled job {run['job_id']}" in err, err
    until(lambda: laptop.json("status", run["job_id"])["runs"][0]["final"], "the end of the job")


def test_notebook_on_the_login_node_explains_the_tunnel(site: Site) -> None:
    argv = [sys.executable, "-m", "hpcrun", "notebook", "--time", "5", "--keep"]
    with started(argv, site.project, site.environ()) as (process, address):
        port = re.match(r"http://127\.0\.0\.1:(\d+)/", address)
        assert port, address
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert re.search(rf"ssh -N -J \S+ -L {port[1]}:127\.0\.0\.1:{port[1]} node1\n", err), err
    job = re.search(r"job (\d+) continues", err)
    assert job, err
    site.hpcrun("cancel", job[1])
    # A Python without Jupyter is refused before anything is submitted.
    refused = site.hpcrun("notebook", "--set", "setup.python=/usr/bin/python3")
    assert refused.returncode == 2 and "/usr/bin/python3 has no Jupyter" in refused.stderr, refused


def test_ssh_reaches_the_node_of_a_laptops_new_job(laptop: Laptop) -> None:
    argv = laptop.argv("code", "--time", "5")
    with started(argv, laptop.project, laptop.environ()) as (process, line):
        found = re.fullmatch(r"code --remote ssh-remote\+(hpcrun-(\d+)-\w{4}) (\S.*)", line)
        assert found, line
        host, job, _ = found.groups()
        folder = laptop.state / "code"
        (entry,) = folder.glob("*.conf")
        ssh = [*laptop.argv()[:-3], "ssh", "-F", str(entry), host]
        data = bytes(range(256)) * 1000
        done = subprocess.run(
            [*ssh, "echo $SLURM_JOB_ID $(uname -n) >&2; cat"],
            cwd="/",
            env=laptop.environ(),
            input=data,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0 and done.stdout == data, done.stderr
        assert done.stderr.decode().split()[-2:] == [job, "node1"], done.stderr
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130 and f"cancelled job {job}" in err, err
    assert not any(folder.iterdir())
    until(lambda: laptop.json("status", job)["runs"][0]["final"], "the end of the job")
