"""The DeepSpeed JSON before the interpreter that trains: asked once, and never in the way."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from hpcrun.actions.checks import deepspeed as deepspeed_check
from hpcrun.actions.checks.deepspeed import inspect_deepspeed, query_deepspeed
from hpcrun.actions.prepare import load_spec, prepare_spec
from hpcrun.actions.start_folder import StartFolder
from hpcrun.context import Context, load_context
from hpcrun.errors import InputError, SpecError
from hpcrun.remote.local import LocalTransport

HERE = LocalTransport(os.environ)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "hpcrun.yaml").write_text(
        f"runs_dir: {tmp_path}/runs\ncache_dir: {tmp_path}/cache\npython: {sys.executable}\n"
    )
    (folder / "a.py").write_text("pass\n")
    return folder


def context(project: Path) -> Context:
    environ = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return load_context(environ, project)


def job(project: Path, text: str) -> None:
    (project / "job.yaml").write_text(f"script: a.py\n{text}\n")


def interpreter(folder: Path, text: str) -> str:
    """Create a fake Python interpreter that counts its starts."""
    path = folder / "python"
    path.write_text(f"#!/bin/bash\necho started >> {folder}/starts\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def starts(folder: Path) -> int:
    path = folder / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_job_without_own_deepspeed_keys_starts_no_interpreter(
    project: Path, tmp_path: Path
) -> None:
    job(project, "deepspeed: {zero_stage: 3, offload: {optimizer: cpu}}")
    around = context(project)
    python = interpreter(tmp_path, "exit 1")
    given = inspect_deepspeed(
        around,
        load_spec(around, str(project / "job.yaml")),
        python,
        start=StartFolder.local(Path("/none")),
    )
    assert (given.file, given.answer, given.note) == (None, None, "")
    assert starts(tmp_path) == 0


def test_interpreter_resolved_on_the_node_is_not_queried(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The python3 of a login node differs from the one in the job's modules."""
    job(project, "deepspeed: {config: {gradient_clipping: 0.5}}")
    Path(interpreter(tmp_path, "exit 1")).rename(tmp_path / "python3")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    around = context(project)
    given = inspect_deepspeed(
        around,
        load_spec(around, str(project / "job.yaml")),
        "python3",
        start=StartFolder.local(Path("/none")),
    )
    assert given.answer is None and given.note == ""
    assert starts(tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit 3", "it ended with code 3 and printed nothing"),
        ("exit 0", "it ended with code 0 and printed nothing"),
        ('[[ $2 == *"import importlib"* ]] && { echo 0.1; exit; }; exit 9',
         "it ended with code 9 while it loaded DeepSpeed 0.1"),
        ('[[ $2 == *"import importlib"* ]] && { echo 0.1; exit; }; echo nonsense',
         "it ended with code 0 while it loaded DeepSpeed 0.1"),
        ('[[ $2 == *"import importlib"* ]] && { echo 0.1; exit; }; sleep 60',
         "no response within 0.5 s"),
    ],
)  # fmt: skip
def test_failing_interpreter_yields_a_note(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepspeed_check, "PATIENCE", 0.5)
    python = interpreter(tmp_path, text)
    answer, note = query_deepspeed(HERE, python, {}, tmp_path / "cache")
    assert answer is None
    assert note == f"could not check the DeepSpeed JSON with {python}: {expected}"
    assert not (tmp_path / "cache").exists()


def test_missing_interpreter_yields_a_note(tmp_path: Path) -> None:
    answer, note = query_deepspeed(HERE, f"{tmp_path}/python", {}, tmp_path)
    assert answer is None and note.endswith("No such file or directory")


def test_interpreter_without_deepspeed_falls_back_to_the_table(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "echo none")
    assert query_deepspeed(HERE, python, {}, tmp_path / "cache") == (None, "")
    assert starts(tmp_path) == 1


SAYS = """
if [[ $2 == *"import importlib"* ]]; then cat VERSION; else
echo '{"version": "9.9", "read": ["x"], "problems": [["a.b", "no"]]}'; fi
"""


def test_deepspeed_probe_result_is_cached(tmp_path: Path) -> None:
    python = interpreter(tmp_path, SAYS.replace("VERSION", f"{tmp_path}/version"))
    (tmp_path / "version").write_text("9.9\n")
    cache = tmp_path / "cache"

    def ask(config: dict[str, object]) -> int:
        before = starts(tmp_path)
        answer, note = query_deepspeed(HERE, python, config, cache)
        assert note == "" and answer is not None
        assert (answer.version, answer.problems) == ("9.9", [("a.b", "no")])
        return starts(tmp_path) - before

    assert ask({"a": 1, "b": 2}) == 2
    assert ask({"b": 2, "a": 1}) == 1  # only its version
    assert ask({"a": 2}) == 2  # another configuration
    (tmp_path / "version").write_text("9.10\n")
    assert ask({"a": 2}) == 2  # another DeepSpeed
    for kept in cache.glob("*/*.json"):
        kept.write_text("torn")
    assert ask({"a": 2}) == 2


def test_unwritable_cache_is_ignored(tmp_path: Path) -> None:
    python = interpreter(tmp_path, SAYS.replace("cat VERSION", "echo 9.9"))
    (tmp_path / "cache").write_text("a file")
    answer, _ = query_deepspeed(HERE, python, {}, tmp_path / "cache")
    assert answer is not None and answer.version == "9.9"


@pytest.mark.slow
def test_deepspeed_check_uses_the_installed_deepspeed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All refused keys are reported together; a local folder named deepspeed is not imported."""
    monkeypatch.chdir(project)
    (project / "deepspeed").mkdir()
    (project / "deepspeed" / "__init__.py").write_text("raise SystemExit(7)")
    (project / "ds.json").write_text(
        json.dumps(
            {
                "bf16": {"enabled": True},
                "train_batch_size": "auto",
                "elasticity": {"enabled": False},
                "zero_optimization": {"stage": 2, "overlap_com": True, "sub_group_size": -1},
                "checkpoint": {"writer": {"type": "slow"}},
                "gradient_cliping": 1,
            },
            indent=1,
        )
    )
    job(project, "deepspeed: {config_file: ds.json}")
    around = context(project)
    spec = load_spec(around, str(project / "job.yaml"))
    given = inspect_deepspeed(around, spec, sys.executable, start=StartFolder.local(Path("/none")))
    assert given.answer is not None and given.note == ""
    shown = dict(given.answer.problems)
    assert set(shown) == {
        "elasticity",
        "zero_optimization.overlap_com",
        "zero_optimization.sub_group_size",
        "checkpoint",
    }
    assert {"train_batch_size", "zero_optimization", "activation_checkpointing"} <= set(
        given.answer.read
    )
    with pytest.raises(SpecError) as caught:
        prepare_spec(around, spec)
    lines = {problem.path: problem.line for problem in caught.value.problems}
    assert lines == {
        "elasticity": 6,
        "zero_optimization.overlap_com": 11,
        "zero_optimization.sub_group_size": 12,
        "checkpoint": 14,
        "gradient_cliping": 19,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [("none.json", "none.json: no such file"), (".", "a folder")],
)
def test_missing_deepspeed_file_is_refused(name: str, expected: str, project: Path) -> None:
    job(project, f"deepspeed: {{config_file: {name}}}")
    around = context(project)
    spec = load_spec(around, str(project / "job.yaml"))
    with pytest.raises(InputError, match=expected):
        prepare_spec(around, spec)


def test_deepspeed_file_in_the_home_folder_is_found(project: Path, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"bf16": {"enabled": true}}')
    job(project, "deepspeed: {config_file: ~/ds.json}")
    around = context(project)
    around.environ["HOME"] = str(tmp_path)
    spec = load_spec(around, str(project / "job.yaml"))
    given = inspect_deepspeed(around, spec, "", start=StartFolder.local(Path("/none")))
    assert given.file is not None and given.file.value == {"bf16": {"enabled": True}}


@pytest.mark.slow
@pytest.mark.parametrize("section", ["zero_stage: 2", "config: {gradient_clipping: 0.5}"])
def test_script_with_the_offload_optimizer_has_no_note(project: Path, section: str) -> None:
    job(project, f"deepspeed: {{offload: {{optimizer: cpu}}, {section}}}")
    around = context(project)
    spec = load_spec(around, str(project / "job.yaml"))
    assert any("DeepSpeedCPUAdam" in note for note in prepare_spec(around, spec).plan.notes)
    script = project / str(spec.script)
    script.write_text("from deepspeed.ops.adam import DeepSpeedCPUAdam\n")
    assert not any("DeepSpeedCPUAdam" in note for note in prepare_spec(around, spec).plan.notes)
