"""hpcrun fetch, including malformed and malicious answers."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcrun.actions import fetch
from hpcrun.remote import Result
from hpcrun.remote.local import LocalTransport
from hpcrun.runs import take_snapshot
from tests.cli.calling import Caller
from tests.environ import make_environ
from tests.needs import require_command

WRITES = """\
mkdir -p "$HPCRUN_CHECKPOINT_DIR/step 1" "$HPCRUN_RUN_DIR/out"
head -c 300000 /dev/urandom >"$HPCRUN_CHECKPOINT_DIR/step 1/model.pt"
echo 1 >"$HPCRUN_CHECKPOINT_DIR/latest"; : >"$HPCRUN_CHECKPOINT_DIR/empty"
ln -s latest "$HPCRUN_CHECKPOINT_DIR/link"
echo png >"$HPCRUN_RUN_DIR/out/a.png"; echo csv >"$HPCRUN_RUN_DIR/out/a.csv"
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the job once; return the folder of its project, home and runs."""
    folder = tmp_path_factory.mktemp("finished")
    hpcrun = Caller(folder, make_environ(folder))
    hpcrun.environ["PATH"] = os.environ["PATH"]
    hpcrun.write("write.sh", WRITES)
    hpcrun.write("job.yaml", "command: [bash, write.sh]\nresources: {gpus_per_node: 0}\n")
    assert hpcrun.process("run", "job.yaml").code == 0
    return folder


@pytest.fixture
def run(hpcrun: Caller, finished: Path) -> Path:
    """Copy the run and its job, with the paths in its records changed to the new place."""
    hpcrun.environ["PATH"] = os.environ["PATH"]
    for name in ("write.sh", "job.yaml"):
        shutil.copy2(finished / "my project" / name, hpcrun.project)
    shutil.copytree(finished / "runs", hpcrun.runs, symlinks=True)
    (run,) = hpcrun.runs.glob("2*")
    for record in [path for path in run.rglob("*") if path.is_file() and not path.is_symlink()]:
        data = record.read_bytes()
        changed = data.replace(bytes(finished), bytes(hpcrun.runs.parent))
        if changed != data:
            facts = record.stat()
            record.write_bytes(changed)
            os.utime(record, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    return run


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


class Between(LocalTransport):
    """Modifies the transferred data, as a remote host could."""

    change: Callable[[bytes], bytes] = staticmethod(lambda data: data)

    def __init__(self, env: Mapping[str, str], **options: Any) -> None:
        super().__init__(env, **options)

    def run_script(self, script: str, take: Callable[[bytes], None]) -> Result:
        return super().run_script(script, lambda data: take(type(self).change(data)))


@pytest.mark.slow
def test_fetch_copies_checkpoints_once(hpcrun: Caller, run: Path) -> None:
    saved = files_of(run / "checkpoints")
    done = hpcrun("fetch")
    target = hpcrun.project / run.name
    assert done.code == 0 and f"3 files, 293 KiB, to {target}" in done.out, done
    assert "1 link skipped, such as checkpoints/link" in done.err
    assert files_of(target / "checkpoints") == {k: v for k, v in saved.items() if k != "link"}
    assert not (target / "checkpoints" / "link").exists()
    again = hpcrun("fetch", "--json").json
    assert again["run_id"] == run.name and not any(one["fetched"] for one in again["files"])
    assert all(one["here"] and one["reason"] is None for one in again["files"])


@pytest.mark.slow
def test_fetch_copies_files_that_match_globs(hpcrun: Caller, run: Path) -> None:
    def names(*globs: str) -> list[str]:
        found = hpcrun("fetch", run.name, *globs, "--dry-run", "--json")
        return [one["name"] for one in found.json["files"]]

    assert names("out/*.png") == ["out/a.png"] and names("out") == ["out/a.csv", "out/a.png"]
    assert names("step*") == names("**/*.pt") == ["checkpoints/step 1/model.pt"]
    assert "secrets.env" not in names("*") and "plan.json" in names("*")
    assert names("out/**") == names("out") and names("**") == names("*")
    missing = hpcrun("fetch", run.name, "no/*")
    assert missing.code == 2 and "no file fits no/*" in missing.err
    assert not (hpcrun.project / run.name).exists()
    shutil.rmtree(run / "checkpoints")
    assert "its checkpoint folder" in hpcrun("fetch").err


@pytest.mark.slow
def test_fetch_resumes_partial_files_and_removes_stale_ones(
    hpcrun: Caller, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = run / "checkpoints" / "step 1" / "model.pt"
    facts, data = model.stat(), model.read_bytes()
    folder = hpcrun.project / "here" / "checkpoints" / "step 1"
    folder.mkdir(parents=True)
    part = folder / f".model.pt.{facts.st_ino}-{facts.st_size}-{int(facts.st_mtime)}.part"
    come: list[int] = []

    def count(piece: bytes) -> bytes:
        come.append(len(piece))
        return piece

    monkeypatch.setattr(Between, "change", staticmethod(count))
    hpcrun.connect = Between
    for begun, fewest, most in ((data[:200000], 100000, 110000), (b"", 300000, 310000)):
        part.write_bytes(begun)
        (folder / ".model.pt.1-2-3.part").write_bytes(b"old")
        come.clear()
        assert hpcrun("fetch", "--to", "here", run.name, "step*").code == 0
        assert (folder / "model.pt").read_bytes() == data and fewest <= sum(come) <= most
        assert [path.name for path in folder.iterdir()] == ["model.pt"]
        (folder / "model.pt").unlink()
    model.write_bytes(b"newer")
    assert hpcrun("fetch", "--to", "here", run.name, "step*").code == 0
    assert (folder / "model.pt").read_bytes() == b"newer"


@pytest.mark.slow
@pytest.mark.parametrize("begun", [b"x" * 10, b"x" * 200000, b"x" * 300000])
def test_partial_file_with_other_content_is_fetched_again(
    hpcrun: Caller, run: Path, begun: bytes
) -> None:
    """An interrupted copy or a damaged disk may leave such a file under the right name."""
    model = run / "checkpoints" / "step 1" / "model.pt"
    facts, data = model.stat(), model.read_bytes()
    folder = hpcrun.project / "here" / "checkpoints" / "step 1"
    folder.mkdir(parents=True)
    part = folder / f".model.pt.{facts.st_ino}-{facts.st_size}-{int(facts.st_mtime)}.part"
    part.write_bytes(begun)
    done = hpcrun("fetch", "--to", "here", "--json")
    assert done.code == 0 and [one["fetched"] for one in done.json["files"]] == [True] * 3, done
    assert (folder / "model.pt").read_bytes() == data
    assert [path.name for path in folder.iterdir()] == ["model.pt"]


@pytest.mark.slow
def test_file_written_by_another_fetch_is_refused(hpcrun: Caller, run: Path) -> None:
    model = run / "checkpoints" / "step 1" / "model.pt"
    facts = model.stat()
    folder = hpcrun.project / "here" / "checkpoints" / "step 1"
    folder.mkdir(parents=True)
    part = folder / f".model.pt.{facts.st_ino}-{facts.st_size}-{int(facts.st_mtime)}.part"
    old = folder / ".model.pt.1-2-3.part"
    with part.open("wb") as theirs, old.open("wb") as older:
        for file in (theirs, older):
            fcntl.flock(file, fcntl.LOCK_EX)
        theirs.write(b"theirs")
        theirs.flush()
        done = hpcrun("fetch", "--to", "here")
        assert done.code == 2 and "another hpcrun fetch is writing this file" in done.err, done
        assert part.read_bytes() == b"theirs" and old.exists()
    assert hpcrun("fetch", "--to", "here").code == 0
    assert (folder / "model.pt").read_bytes() == model.read_bytes()


@pytest.mark.slow
def test_concurrent_fetches_produce_complete_files(hpcrun: Caller, run: Path) -> None:
    """Each either succeeds with complete files, or reports that the other one is running."""
    big = run / "checkpoints" / "big.pt"
    big.write_bytes(os.urandom(1 << 20) * 60)
    folder = hpcrun.project / "here" / "checkpoints"
    for _ in range(3):
        shutil.rmtree(hpcrun.project / "here", ignore_errors=True)
        both = [hpcrun.start("fetch", "--to", "here") for _ in range(2)]
        ends = [(process.communicate()[1].decode(), process.returncode) for process in both]
        assert 0 in [code for _, code in ends], ends
        for err, code in ends:
            assert code == 0 or (code == 2 and "another hpcrun fetch is writing" in err), ends
        assert (folder / "big.pt").read_bytes() == big.read_bytes()
        assert not [*folder.rglob("*.part")], ends


@pytest.mark.slow
def test_fetch_follows_no_links(hpcrun: Caller, run: Path) -> None:
    other = hpcrun.project / "other"
    other.mkdir()
    (hpcrun.project / "here").mkdir()
    (hpcrun.project / "here" / "checkpoints").symlink_to(other)
    done = hpcrun("fetch", "--to", "here")
    assert done.code == 2 and "here/checkpoints: not a folder, but a link" in done.err
    (hpcrun.project / "here" / "checkpoints").unlink()
    (hpcrun.project / "here" / "checkpoints").mkdir()
    (other / "latest").write_text("mine")
    (hpcrun.project / "here" / "checkpoints" / "latest").symlink_to(other / "latest")
    assert hpcrun("fetch", "--to", "here", "latest").code == 2  # no such run
    assert hpcrun("fetch", "--to", "here", run.name, "latest").code == 0
    assert (other / "latest").read_text() == "mine"
    assert (hpcrun.project / "here" / "checkpoints" / "latest").read_text() == "1\n"


HOSTILE = {
    "upwards": lambda data: data.replace(b"./latest", b"./../../x"),
    "the root": lambda data: data.replace(b"./latest", b"/etc/pass"),
    "no number": lambda data: data.replace(b"81a4", b"zzzz"),
    "cut short": lambda data: data[: len(data) // 2],
    "nothing": lambda data: b"",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_malicious_file_list_is_refused(
    hpcrun: Caller, run: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Between, "change", staticmethod(HOSTILE[what]))
    hpcrun.connect = Between
    done = hpcrun("fetch", "--to", "here")
    assert done.code in (1, 4), done
    assert files_of(hpcrun.project / "here") == {} and not (hpcrun.project / "x").exists()


@pytest.mark.slow
def test_file_being_written_is_not_fetched(
    hpcrun: Caller, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the bytes of each file, the answer contains its size and time after reading."""
    model = run / "checkpoints" / "step 1" / "model.pt"

    def grows(data: bytes) -> bytes:
        if b"model.pt" in data:  # the list has just arrived
            with model.open("ab") as file:
                file.write(b"more")
        return data

    monkeypatch.setattr(Between, "change", staticmethod(grows))
    hpcrun.connect = Between
    done = hpcrun("fetch", "--json", "--to", "here")
    assert done.code == 1
    assert json.loads(done.out)["files"][-1]["reason"] == "it is being written"
    come = sorted(files_of(hpcrun.project / "here" / "checkpoints"))
    assert come == ["empty", "latest"]


def test_unreachable_cluster_is_not_reported_as_missing_run(hpcrun: Caller) -> None:
    """hpcrun must not claim that there is no such run."""
    hpcrun.environ["PATH"] = os.environ["PATH"]
    hpcrun.write("hpcrun.yaml", "host: nowhere.invalid\nruns_dir: ~/runs\n")
    for words in (["fetch"], ["fetch", "abcd"], ["parse"], ["status"]):
        done = hpcrun(*words)
        assert done.code == 4 and "nowhere.invalid" in done.err, done
        assert "no runs yet" not in done.err and done.out == "", done


@pytest.mark.slow
def test_wandb_sync_uploads_complete_offline_folders(hpcrun: Caller) -> None:
    """Each complete offline folder is passed to the local wandb; refused ones are reported."""
    hpcrun.environ["PATH"] = os.environ["PATH"]
    folders = [f"code/wandb/offline-run-20261120_08145{n}-a{n}" for n in (1, 2)]
    writes = "".join(
        f'mkdir -p "$HPCRUN_RUN_DIR/{one}/files"; echo {one} >"$HPCRUN_RUN_DIR/{one}/run.wandb"\n'
        f'echo 1 >"$HPCRUN_RUN_DIR/{one}/files/config.yaml"\n'
        for one in folders
    )
    hpcrun.write("write.sh", writes + 'echo 1 >"$HPCRUN_RUN_DIR/code/other"\n')
    hpcrun.write("job.yaml", "command: [bash, write.sh]\nresources: {gpus_per_node: 0}\n")
    assert hpcrun.process("run", "job.yaml").code == 0
    # A Python without wandb.
    python = hpcrun.tools / "python"
    python.symlink_to(sys.executable)
    environ = {**hpcrun.environ, "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}

    def fetch(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-m", "hpcrun", "fetch", "--wandb-sync", *words],
            cwd=hpcrun.project,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )

    without = fetch()
    assert without.returncode == 2 and "wandb is not installed here" in without.stderr
    assert f"{python} -m pip install wandb" in without.stderr
    assert not list(hpcrun.project.glob("2*"))
    wandb = hpcrun.tools / "wandb"
    wandb.write_text(
        '#!/bin/sh\necho uploading\ncat "$2/run.wandb" "$2/files/config.yaml" >>"${0%/*}/synced"\n'
        "case $2 in *a2) exit 1 ;; esac\n"
    )
    wandb.chmod(0o755)
    done = fetch("--to", "here")
    assert done.returncode == 1 and f"wandb did not accept {folders[1]}" in done.stderr, done
    assert folders[0] not in done.stderr and "uploading" not in done.stdout
    synced = (hpcrun.tools / "synced").read_text().split()
    assert synced == [folders[0], "1", folders[1], "1"]
    assert set(files_of(hpcrun.project / "here")) - {".gitignore"} == {
        f"{one}/{name}" for one in folders for name in ("run.wandb", "files/config.yaml")
    }


@pytest.mark.thorough
def test_real_wandb_recognizes_the_offline_folder(hpcrun: Caller) -> None:
    """It recognizes the run; the upload itself fails here, because there is no API key."""
    require_command("wandb", str(Path(sys.executable).parent))
    hpcrun.write(
        "train.py",
        "import wandb\nrun = wandb.init(project='p', mode='offline')\n"
        "run.log({'loss': 0.5})\nrun.finish()\n",
    )
    hpcrun.write(
        "job.yaml",
        f"command: [{sys.executable}, train.py]\nresources: {{gpus_per_node: 0}}\n"
        "env: {WANDB_DIR: '{run_dir}'}\n",
    )
    own = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_ERROR_REPORTING": "false"}
    hpcrun.environ |= own | {"PATH": os.environ["PATH"], "HOME": str(hpcrun.project)}
    assert hpcrun.process("run", "job.yaml").code == 0
    done = hpcrun.process("fetch", "--wandb-sync", "--to", "here")
    assert done.code == 1 and "Syncing 1 run(s)" in done.err and "No API key" in done.err, done
    (folder,) = (hpcrun.project / "here" / "wandb").glob("offline-run-*")
    assert f"wandb did not accept wandb/{folder.name}\n" in done.err
    assert f"here/wandb/{folder.name}/run-" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("checkout", [False, True])
@pytest.mark.parametrize("to", [(), ("--to", "results/of today"), ("--to", "kept")])
def test_what_was_fetched_is_no_code(
    hpcrun: Caller, run: Path, checkout: bool, to: tuple[str, ...]
) -> None:
    """Neither git nor the next submission takes it; a folder of the user's stays as it is."""
    if checkout:
        subprocess.run(["git", "init", "-q", hpcrun.project], check=True)
    hpcrun.write("kept/own.txt", "mine")
    assert hpcrun("fetch", *to).code == 0
    assert not (hpcrun.project / "kept" / ".gitignore").exists()
    take_snapshot(
        hpcrun.project, hpcrun.project.parent / "copy", leave_out=hpcrun.runs, show=lambda *_: None
    )
    copied = set(files_of(hpcrun.project.parent / "copy"))
    plain = {"hpcrun.yaml", "job.yaml", "write.sh", "kept/own.txt"}
    come = {name for name in copied if name.startswith("kept/checkpoints/")}
    assert copied - plain - come == set() and bool(come) == ("kept" in to)


# Malicious records, and the file outside of the target that each of them aims at.
PLANTED = {
    "run_dir upwards": {"run_dir": "..", "checkpoint_dir": "../../../home/victim"},
    "relative run_dir": {"run_dir": "runs/x", "checkpoint_dir": "runs/x/../../victim"},
    "checkpoint_dir upwards": {"checkpoint_dir": "{run}/../../victim"},
    "project_dir upwards": {"project_dir": "{run}/../../victim", "run_dir": "."},
    "no folder": {"run_dir": "", "checkpoint_dir": ""},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", PLANTED)
def test_fetch_writes_only_inside_its_target(hpcrun: Caller, run: Path, what: str) -> None:
    """The paths in a plan.json come from the cluster, or from a cloned repository."""
    for folder in (hpcrun.project.parent / "victim", hpcrun.project.parent / "home" / "victim"):
        folder.mkdir(parents=True)
        (folder / "latest").write_text("mine\n")
    plan = json.loads((run / "plan.json").read_text())
    plan |= {key: value.format(run=run) for key, value in PLANTED[what].items()}
    (run / "plan.json").write_text(json.dumps(plan))
    before = files_of(hpcrun.project.parent)
    for globs in ([], ["**"], ["latest"]):
        done = hpcrun("fetch", "--to", "a/b/here", run.name, *globs)
        assert done.code in (0, 2) and "Traceback" not in done.err, done
    after = files_of(hpcrun.project.parent)
    made = {name for name in after if after[name] != before.get(name)}
    assert all(name.startswith("my project/a/b/here/") for name in made), made


@pytest.mark.slow
def test_many_small_files_come_by_streams(
    hpcrun: Caller, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their names, modes and times; and again none of them comes."""
    folder = run / "checkpoints" / "shards"
    for number in range(300):
        path = folder / f"{number % 7}" / ("long " * 30 + f"{number}\n.bin")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(number * 7))
        path.chmod(0o640 if number % 2 else 0o755)
    (folder / "same").hardlink_to(folder / "0" / ("long " * 30 + "0\n.bin"))
    monkeypatch.setattr(fetch, "_IN_A_STREAM", 100)
    trips: list[str] = []

    class Counting(LocalTransport):
        def run_script(self, script: str, take: Callable[[bytes], None]) -> Result:
            trips.append(script)
            return super().run_script(script, take)

    hpcrun.connect = Counting
    done = hpcrun("fetch", "--to", "here")
    assert done.code == 0 and len(trips) <= 6, done
    here = hpcrun.project / "here" / "checkpoints"
    saved = files_of(run / "checkpoints")
    assert files_of(here) == {name: data for name, data in saved.items() if name != "link"}
    for path in folder.rglob("*.bin"):
        info, own = path.stat(), (here / path.relative_to(run / "checkpoints")).stat()
        assert own.st_mode == info.st_mode and int(own.st_mtime) == int(info.st_mtime)
    trips.clear()
    assert hpcrun("fetch", "--to", "here").code == 0 and len(trips) == 1  # the list


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "changed", "no tar"])
def test_a_stream_that_is_not_whole_leaves_no_wrong_file(
    hpcrun: Caller, run: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run / "checkpoints" / "shards"
    folder.mkdir()
    for number in range(50):
        (folder / f"{number}").write_bytes(os.urandom(1000 + number))
    state = {"streams": 0}

    class Faulty(LocalTransport):
        def run_script(self, script: str, take: Callable[[bytes], None]) -> Result:
            if "tar --format" not in script or "hard-dereference" not in script:
                return super().run_script(script, take)
            state["streams"] += 1
            if how == "no tar":
                script = script.replace("tar --format", "no-such-tar --format")
            data = bytearray()
            result = super().run_script(script, data.extend)
            if how == "changed":
                (folder / "7").write_bytes(b"changed since")
            take(bytes(data[: len(data) // 2] if how == "cut" else data))
            return result

    hpcrun.connect = Faulty
    done = hpcrun("fetch", "--to", "here", "--json")
    assert state["streams"] == 1 and done.code in (0, 1), done
    come = files_of(hpcrun.project / "here" / "checkpoints" / "shards")
    assert len(come) >= 49 and not [name for name in come if name.endswith(".part")]
    for name, data in come.items():
        assert len(data) == 1000 + int(name)
