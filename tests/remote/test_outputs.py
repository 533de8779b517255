"""The output of jobs that were not submitted by hpcrun, on a remote cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcrun.remote.mirror import Outputs
from tests.needs import require_root
from tests.remote.desk import Desk
from tests.slurm_answers import show_job, squeue_row

STEPS = "".join(f"step={n} loss={10 - n}\n" for n in range(5))
UNRELATED = "step=1 loss=77.5\nof the laptop alone\nValueError: of the laptop\n"
MOUNT = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


@dataclass
class Other:
    """A job of the user's on the cluster, whose output goes to a folder that both machines have.

    What the laptop has in that folder is of its own, with the same names: a mount namespace.
    """

    desk: Desk
    scratch: Path
    laptops: Path

    @property
    def out(self) -> Path:
        return self.scratch / "9.out"

    def set(self, state: str, *, out: str = "9.out", err: str = "9.err") -> None:
        slurm, scratch = self.desk.home.parent / "slurm", self.scratch
        paths = {"StdOut": f"{scratch}/{out}", "StdErr": f"{scratch}/{err}"}
        answer = show_job("9", state, NodeList="n1", WorkDir=str(scratch), **paths)
        for name, text in (
            ("scontrol", answer),
            ("squeue", squeue_row("9", state, Z=str(scratch), u="root")),
        ):
            (slurm / f"{name}.out").write_text(text)
            (slurm / name).write_text(
                "#!/bin/bash\n[[ $* != *--version* ]] || { echo slurm 24.11.5; exit; }\n"
                "[[ $* == *--noheader* || $0 == *scontrol ]] || echo JOBID\n"
                f'exec cat "{slurm}/{name}.out"\n'
            )
            (slurm / name).chmod(0o755)

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = ["unshare", "-m", "bash", "-c", MOUNT, "bash", str(self.laptops), str(self.scratch)]
        return subprocess.Popen(
            [*argv, sys.executable, "-m", "hpcrun", *words],
            cwd=self.desk.hpcrun.project,
            env=self.desk.hpcrun.environ | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=120)
        assert "of the laptop" not in out + err and "77.5" not in out + err, (words, out, err)
        assert "Traceback (most" not in err, (words, err)
        return process.returncode, out, err


@pytest.fixture
def other(desk: Desk) -> Iterator[Other]:
    made = Other(desk, desk.home.parent / "scratch", desk.home.parent / "laptop's scratch")
    for folder in (made.scratch, made.laptops):
        folder.mkdir()
    for name in ("9.out", "9.err", "slurm-9.out", "9-n1.out"):
        (made.laptops / name).write_text(UNRELATED)
    made.set("RUNNING")
    yield made


@pytest.mark.slow
def test_outputs_are_read_on_the_cluster(other: Other) -> None:
    other.out.write_text(STEPS)
    (other.scratch / "9.err").write_text("KeyError: 'lr'\n")
    code, out, err = other.call("logs", "9")
    assert code == 0 and STEPS in out and "KeyError: 'lr'" in out, (out, err)
    code, out, _ = other.call("logs", "9", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["file"] for line in lines} == {str(other.out), f"{other.scratch}/9.err"}
    code, out, err = other.call("parse", "9", "--json")
    (run,) = json.loads(out)["runs"]
    assert run["metrics"]["loss"]["last"]["value"] == 6 and run["source"] == str(other.out), out
    other.set("FAILED")
    code, out, err = other.call("why", "9")
    assert "KeyError" in out, (out, err)
    code, out, err = other.call("status", "9")
    assert "FAILED" in out and "KeyError" in out, (out, err)


@pytest.mark.slow
def test_growth_of_an_output_is_fetched(other: Other) -> None:
    big = "".join(f"step={n} loss={1 / n:.6f}\n" for n in range(1, 60_000))
    other.out.write_text(big)
    assert other.call("logs", "9", "--lines", "1")[1].endswith(big.splitlines()[-1] + "\n")
    with other.out.open("a") as file:
        file.write("step=60000 loss=0.5\n")
    assert other.call("logs", "9")[1] == big + "step=60000 loss=0.5\n"
    other.out.write_text("begun again\n")
    assert other.call("logs", "9")[1] == "begun again\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("logs", "9"), ("parse", "9"), ("why", "9"), ("logs", "9", "--err")]
)
def test_missing_remote_output_is_not_read_locally(other: Other, words: tuple[str, ...]) -> None:
    other.set("FAILED")
    code, out, err = other.call(*words)
    if words[0] == "parse":
        assert code == 2 and f"its output {other.out} does not exist" in err, (out, err)
    other.out.mkdir()  # no file
    other.call(*words)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["9-%N.out", "9-%5j.out", "o%N/%t.out"])
def test_output_names_with_node_patterns_are_not_read_locally(other: Other, name: str) -> None:
    other.set("RUNNING", out=name, err=name)
    (other.scratch / "9-n1.out").write_text(STEPS)
    _, out, err = other.call("logs", "9")
    assert (STEPS in out) == (name == "9-%N.out"), (out, err)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["logs", "parse"])
def test_output_is_followed_to_its_last_line(other: Other, verb: str) -> None:
    other.out.write_text("step=0 loss=9\n")
    process = other.start(verb, "-f", "9", *(["--json"] if verb == "parse" else []))
    time.sleep(3)
    with other.out.open("a") as file:
        for number in range(1, 30):
            file.write(f"step={number} loss=2\n")
            file.flush()
            time.sleep(0.05)
        file.write("step=30 loss=0.25\n")
    other.set("COMPLETED")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (out, err)
    if verb == "logs":
        steps = [line.split()[0] for line in out.splitlines() if line.startswith("step=")]
        assert steps == [f"step={number}" for number in range(31)], (out, err)
    else:
        assert "0.25" in out.splitlines()[-1] or "0.25" in out, (out, err)
    assert "of the laptop" not in out + err


@pytest.mark.slow
def test_wide_status_and_top_read_no_local_output(other: Other) -> None:
    other.out.write_text(STEPS)
    code, out, err = other.call("top", "--json")
    (job,) = json.loads(out)["jobs"]
    assert code == 0 and job["step"] == 4, (out, err)


def test_unreadable_output_is_named(tmp_path: Path) -> None:
    """Runs as another user, because root can read everything."""
    require_root()
    outputs = Outputs(tmp_path / "copies")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        out, none = f"{folder}/9.out", f"{folder}/none"
        Path(out).write_text("secret")
        Path(out).chmod(0)
        script = outputs.build_script([out, none], whole=True)
        argv = ["setpriv", "--reuid=65534", "--clear-groups", "bash", "-s"]
        done = subprocess.run(argv, input=script, capture_output=True, text=True, check=True)
    assert "secret" not in done.stdout
    faults = {out: "permission denied on the cluster", none: "no such file"}
    assert outputs.remove_unreadable([out, none], done.stderr) == faults
