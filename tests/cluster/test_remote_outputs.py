"""What a run has written and serves comes to the laptop; and each verb goes the way there."""

# ruff: noqa: F811 - a fixture is imported, and is what the tests have as an argument

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.site import until
from tests.cluster.test_remote import SLEEPER, Laptop, laptop  # noqa: F401
from tests.transport.link import Link

WRITES = """\
mkdir -p "$HPCRUN_CHECKPOINT_DIR/step 1" out
head -c 3000000 /dev/urandom >"$HPCRUN_CHECKPOINT_DIR/step 1/model.pt"
echo png >out/a.png
"""


@contextmanager
def started(laptop: Laptop, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Start hpcrun on the laptop."""
    process = subprocess.Popen(
        laptop.argv(*args),
        cwd=laptop.project,
        env=laptop.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_outputs_come_back(laptop: Laptop) -> None:
    """Checkpoints and plots; where the link breaks on the way it goes on, and all is whole."""
    laptop.write("write.sh", WRITES)
    laptop.write("job.yaml", SLEEPER.replace("say.sh", "write.sh"))
    job = laptop.json("submit", "job.yaml")
    laptop.does("wait", job["job_id"])
    far_run = laptop.far_runs / job["run_id"]
    plot = laptop.json("fetch", job["job_id"], "out/*.png")
    assert [one["name"] for one in plot["files"]] == ["code/out/a.png"]
    assert (laptop.project / job["run_id"] / "code/out/a.png").read_text() == "png\n"
    link = Link(2222, f"{laptop.rig.network.prefix}.2")
    laptop.through(link)
    link.start()
    assert not laptop.json("fetch", "--to", "all")["files"][0]["reason"]
    assert link.count > 40  # in so many pieces it came
    link.start(link.count * 2 // 3)
    done = laptop.hpcrun("fetch", "--to", "here")
    link.close()
    assert link.is_cut and done.returncode == 0 and "it goes on" in done.stderr, done
    for target in ("all", "here"):
        come = laptop.project / target / "checkpoints" / "step 1"
        assert [path.name for path in come.iterdir()] == ["model.pt"]
        model = far_run / "checkpoints" / "step 1" / "model.pt"
        assert (come / "model.pt").read_bytes() == model.read_bytes()


@pytest.mark.parametrize("way", ["paramiko", "openssh"])
def test_a_port_of_a_node(laptop: Laptop, way: str) -> None:
    profile = laptop.project / "hpcrun.yaml"
    profile.write_text(f"{profile.read_text()}ssh: {way}\n")
    laptop.write("page.txt", "from the node\n")
    serve = f"command: [{sys.executable}, -m, http.server, '7431']"
    laptop.write("job.yaml", f"{serve}\nresources: {{gpus_per_node: 0}}\n")
    job = laptop.json("submit", "job.yaml")["job_id"]
    until(lambda: laptop.json("status", job)["runs"][0]["state"] == "RUNNING", "a start", 30)
    with started(laptop, "open", job, "7431") as opened:
        assert opened.stdout is not None
        url = opened.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", url), opened.communicate()
        with urllib.request.urlopen(f"{url.strip()}page.txt", timeout=20) as page:
            assert page.read() == b"from the node\n"
        opened.send_signal(signal.SIGINT)
        _, err = opened.communicate(timeout=20)
        assert opened.returncode == 130 and "that is port 7431 of node1" in err, err
    laptop.does("cancel", job)
    laptop.hpcrun("wait", job)
    gone = laptop.hpcrun("open", job, "7431")
    assert gone.returncode == 2 and "is CANCELLED" in gone.stderr
    if way == "openssh":
        laptop.does("connect", "--close")


def test_each_verb(laptop: Laptop) -> None:
    """What reads a run, and what acts on it, over ssh."""
    laptop.write("say.sh", "echo step 1 loss 0.5\nfalse\n")
    laptop.write("job.yaml", SLEEPER)
    first = laptop.json("submit", "job.yaml", "--set", "snapshot=true")
    laptop.does("wait", first["job_id"], code=1)
    laptop.write("say.sh", "for i in 1 2 3; do echo step $i loss 0.$i; done; sleep ${WAIT-0}\n")
    second = laptop.json("submit", "job.yaml", "--set", "env={WAIT: '300'}")
    job = second["job_id"]
    why = laptop.json("why", first["job_id"])
    assert "exit" in json.dumps(why), why
    shown = laptop.json("show", first["run_id"])
    assert first["run_id"] in json.dumps(shown)
    until(lambda: "loss 0.3" in laptop.hpcrun("logs", job).stdout, "its lines", 30)
    compared = laptop.json("compare", first["run_id"], second["run_id"])
    assert len(compared["runs"]) == 2, compared
    assert laptop.does("hostfile", job).split() == ["node1", "slots=1"]
    usage = laptop.json("top", job)["jobs"][0]
    assert usage["job_id"] == job, usage
    assert laptop.does("shell", job, "--", "uname", "-n") == "node1\n"
    with started(laptop, "parse", "-f", "--json", job) as parse:
        assert laptop.json("requeue", job)["runs"][0]["requeued"]
        laptop.does("cancel", job)
        out, err = parse.communicate(timeout=60)
    assert json.loads(out)["runs"][0]["metrics"]["loss"]["last"]["value"] == 0.3, err
    assert "no node is left out" in laptop.does("nodes")


def test_the_folders_there_are_checked(laptop: Laptop) -> None:
    """Before anything is sent, by the far host's own words."""
    laptop.write("say.sh", "true\n")
    laptop.write("job.yaml", SLEEPER)
    profile = laptop.project / "hpcrun.yaml"
    before = profile.read_text()
    profile.write_text(before.replace("~/my runs", "/dev/null/runs"))
    done = laptop.hpcrun("submit", "job.yaml")
    assert done.returncode == 2 and "runs_dir: /dev/null: not a folder" in done.stderr, done
    profile.write_text(before.replace("~/my runs", "/proc/runs"))
    done = laptop.hpcrun("submit", "job.yaml")
    assert done.returncode == 2 and "/proc: cannot be written to" in done.stderr, done
