"""The program that measures steps of a script: which files it protects, and when it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.workloads import measure_step
from hpcrun.workloads.measure_step import Guard, Recorder
from tests.torch_extensions import extensions
from tests.workloads.trainer import free_port


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guard:
    """A guard of a project in a temporary directory, with a run and a home beside it."""
    for name in ("run/measured", "project/out", "home/.cache/huggingface"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
    return Guard(tmp_path / "run", "0")


def test_files_of_the_project_and_the_home_directory_cannot_be_changed(
    guard: Guard, tmp_path: Path
) -> None:
    (tmp_path / "project" / "link").symlink_to(tmp_path / "home")
    events: list[tuple[str, tuple[Any, ...]]] = [
        ("open", ("out/model.pt", "wb", os.O_WRONLY | os.O_CREAT)),
        ("open", (b"data.bin", "r+b", os.O_RDWR)),
        ("open", (tmp_path / "home" / "notes", None, os.O_WRONLY | os.O_APPEND)),
        ("open", ("link/notes", "a", os.O_WRONLY | os.O_APPEND)),
        ("open", ("/etc/new", "x", os.O_WRONLY | os.O_CREAT)),
        ("os.mkdir", ("out/new", 0o777, -1)),
        ("os.remove", ("out/model.pt", -1)),
        ("os.rename", ("out", str(tmp_path / "run" / "x"), -1, -1)),
        ("os.rename", (str(tmp_path / "run" / "x"), "out/latest", -1, -1)),
        ("os.symlink", (str(tmp_path / "run"), "out/latest", -1)),
        ("shutil.rmtree", ("out", None)),
        ("os.truncate", ("out/model.pt", 0)),
    ]
    for event, args in events:
        with pytest.raises(PermissionError, match="does not let the script change"):
            guard.check_event(event, args)
    assert guard.report.read_text() == f"{tmp_path}/project/out/model.pt\n"


def test_removal_in_an_open_directory_is_checked_by_its_path(guard: Guard, tmp_path: Path) -> None:
    folder = os.open(tmp_path / "project" / "out", os.O_RDONLY)
    try:
        with pytest.raises(PermissionError, match=r"project/out/model\.pt"):
            guard.check_event("os.remove", ("model.pt", folder))
    finally:
        os.close(folder)


def test_the_run_caches_devices_and_reading_are_allowed(guard: Guard, tmp_path: Path) -> None:
    write = os.O_WRONLY | os.O_CREAT
    for event, args in [
        ("open", ("train.py", "r", os.O_RDONLY | os.O_CLOEXEC)),
        ("open", (3, "w", write)),
        ("open", ("/dev/null", "w", write)),
        ("open", (tmp_path / "run" / "outputs" / "x", "w", write)),
        ("open", (tmp_path / "home" / ".cache" / "huggingface" / "lock", "w", write)),
        ("os.mkdir", ("out", 0o777, -1)),  # exists
        ("import", ("torch", None, None, None, None)),
    ]:
        guard.check_event(event, args)
    assert not guard.report.exists()


def test_measuring_ends_when_all_optimizers_have_made_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path, 2)
    ended: list[str] = []
    monkeypatch.setattr(recorder, "finish", ended.append)
    first, second = (SimpleNamespace(param_groups=[{"params": []}], state={}) for _ in range(2))
    for each in (first, second, first):
        recorder.after_step(each)
    assert not ended and len(recorder.ends) == 2
    recorder.after_step(second)
    assert ended == [""]


def test_parts_of_several_optimizers_are_added(tmp_path: Path) -> None:
    def tensor(count: int) -> Any:
        return SimpleNamespace(numel=lambda: count, element_size=lambda: 4, grad=None)

    recorder = Recorder(tmp_path, 9)
    for count in (100, 10):
        optimizer = SimpleNamespace(
            param_groups=[{"params": [tensor(count)]}],
            state={0: {"step": 1, "moments": [tensor(count), tensor(count)]}},
        )
        recorder.parts[count] = {}
        recorder.after_step(optimizer)
    assert recorder.add_parts() == {"optimizer": 880, "parameters": 440}


DEEPSPEED = """\
import deepspeed, torch
model = torch.nn.Linear(1000, 1000, bias=False)
config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
          "bf16": {"enabled": True}, "zero_optimization": {"stage": STAGE},
          "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for index in range(100):
    engine.backward(engine(torch.ones(1, 1000, dtype=torch.bfloat16)).float().sum())
    engine.step()
    print("pass", index + 1, flush=True)
"""


@pytest.mark.slow
def test_steps_of_an_engine_of_deepspeed_are_counted_and_its_states_measured(
    tmp_path: Path,
) -> None:
    """ZeRO-3 is the stage whose inner optimizer steps several times in each step."""
    (tmp_path / "train.py").write_text(DEEPSPEED.replace("STAGE", "3"))
    (tmp_path / "run").mkdir()
    environ = {
        **os.environ,
        "HPCRUN_RUN_DIR": str(tmp_path / "run"),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": extensions(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, measure_step.__file__, "2", "train.py"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Two passes are accumulated in each step; the last line is that of the third pass.
    assert "pass 3" in done.stdout and "pass 4" not in done.stdout
    record = json.loads((tmp_path / "run" / "measured" / "rank-0.json").read_text())
    assert len(record["seconds"]) == 2 and record["error"] == ""
    parts, count = record["parts"], 1000 * 1000
    assert (parts["parameters"], parts["master weights"]) == (2 * count, 4 * count)
    assert 8 * count <= parts["optimizer"] <= 8 * count + 100
