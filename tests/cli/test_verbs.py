"""Commands that start nothing: jobs, show, schema, submit --dry-run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpcrun.assets import shipped_folder
from hpcrun.render.files import FIXED
from hpcrun.spec.load import load_job
from tests.cli.calling import Caller
from tests.json_schemas import check_json

PRESETS = sorted(file.stem for file in shipped_folder("jobs").glob("*.yaml"))
COMMON = {"job.sbatch", "node.sh", "plan.json", "spec.yaml", *FIXED}


@pytest.fixture(autouse=True)
def has_python(hpcrun: Caller) -> None:
    """Allow a training Python without torch for the presets."""
    hpcrun.write("hpcrun.yaml", f'runs_dir: "{hpcrun.runs}"\npython: python3\n')


def test_jobs_lists_presets(hpcrun: Caller) -> None:
    done = hpcrun("jobs")
    assert done.code == 0 and done.err == ""
    lines = done.out.splitlines()
    assert lines[0].split() == ["JOB", "FROM", "WHAT"]
    assert [line.split()[:2] for line in lines[1:]] == [[name, "built-in"] for name in PRESETS]


def test_project_jobs_precede_built_in_ones(hpcrun: Caller) -> None:
    hpcrun.write("jobs/zero2-4gpu.yaml", "description: mine\nscript: a.py\n")
    hpcrun.write("jobs/broken.yaml", "nodez: 1\nscrip: a.py\n")
    home = Path(hpcrun.environ["HOME"]) / ".config" / "hpcrun" / "jobs"
    home.mkdir(parents=True)
    (home / "own.yaml").write_text("description: the user's\n")
    jobs = {job["name"]: job for job in hpcrun("jobs", "--json").json["jobs"]}
    assert set(jobs) == {*PRESETS, "broken", "own"}
    assert (jobs["zero2-4gpu"]["from"], jobs["zero2-4gpu"]["description"]) == ("project", "mine")
    assert (jobs["own"]["from"], jobs["own"]["error"]) == ("user", None)
    assert "broken.yaml:1: nodez: unknown key" in jobs["broken"]["error"]
    assert hpcrun("jobs").code == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_show_prints_a_job_file(hpcrun: Caller, preset: str) -> None:
    done = hpcrun("show", preset)
    assert done.code == 0

    def nothing(name: str) -> tuple[str, str]:
        raise AssertionError(name)

    spec = load_job(done.out, source="shown", resolve=nothing)
    assert spec.name == preset and spec.description
    shown = hpcrun("show", preset, "--json").json["job"]
    assert shown["resources"]["nodes"] == spec.resources.nodes


@pytest.mark.parametrize("kind", ["job", "cluster"])
def test_schema_prints_the_json_schema(hpcrun: Caller, kind: str) -> None:
    schema = hpcrun("schema", kind).json
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "slurm" in json.dumps(schema)


@pytest.mark.parametrize("preset", [name for name in PRESETS if not name.startswith("sweep")])
def test_dry_run_prints_all_files_and_writes_nothing(hpcrun: Caller, preset: str) -> None:
    done = hpcrun("submit", preset, "--dry-run", "--json")
    assert done.code == 0 and done.err == ""
    files = done.json
    check_json("submit", files)
    expected = re.compile("CPUs per GPU by default|on this machine's own disk")
    assert all(expected.search(note) for note in files.pop("notes"))
    extra = {"deepspeed.json"} if preset.startswith("zero") else set()
    assert set(files) - {"accelerate.yaml"} == COMMON | extra
    plan = json.loads(files["plan.json"])
    assert plan["name"] == preset
    assert plan["effective_batch"] == (
        plan["micro_batch_per_gpu"] * plan["gradient_accumulation_steps"] * plan["world_size"]
    )
    if extra:
        assert json.loads(files["deepspeed.json"])["train_batch_size"] == plan["effective_batch"]
    assert not hpcrun.runs.exists()
    text = hpcrun("submit", preset, "--dry-run").out
    assert "==> job.sbatch <==" in text and "==> harness.sh <==" not in text


def test_options_override_the_job(hpcrun: Caller) -> None:
    done = hpcrun(
        *("submit", "zero2-8gpu-2node", "--dry-run", "--json", "--nodes", "3"),
        *("--gpus-per-node", "2", "--time", "2-12", "--partition", "p", "--account", "a b"),
        *(
            "--name",
            'it\'s "mine"',
            "--set",
            "batch.micro_batch_per_gpu=7",
            "--set",
            "precision=fp16",
        ),
        *("--", "--lr", "1e-4", "{world_size}", "--", "--nodes"),
    )
    plan = json.loads(done.json["plan.json"])
    directives = dict(plan["directives"])
    assert directives["job-name"] == plan["name"] == 'it\'s "mine"'
    assert (directives["time"], directives["partition"]) == ("2-12", "p")
    assert directives["account"] == "a b"
    assert (plan["nodes"], plan["gpus_per_node"], plan["world_size"]) == (3, 2, 6)
    assert plan["effective_batch"] == 42
    assert plan["precision"] == "fp16"
    assert plan["program"][-5:] == ["--lr", "1e-4", "6", "--", "--nodes"]


def test_bare_command_is_planned(hpcrun: Caller) -> None:
    done = hpcrun("submit", "--dry-run", "--json", "--", "echo", "it's {run_id} {x}", "$HOME")
    plan = json.loads(done.json["plan.json"])
    assert plan["program"] == ["echo", f"it's {plan['run_id']} {{x}}", "$HOME"]
    assert (plan["name"], plan["launcher"], plan["gpus_per_node"]) == ("echo", "none", 0)
    assert "gres" not in dict(plan["directives"])


def test_job_file_with_extends_is_recorded_completely(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "")
    hpcrun.write("jobs/base.yaml", "script: train.py\nresources: {nodes: 2}\n")
    hpcrun.write("experiments/mine.yaml", "extends: base\nresources: {gpus_per_node: 2}\n")
    done = hpcrun("submit", "experiments/mine.yaml", "--dry-run", "--json")
    plan = json.loads(done.json["plan.json"])
    assert (plan["name"], plan["nodes"], plan["gpus_per_node"]) == ("mine", 2, 2)
    # The recorded job is self-contained.
    assert "extends" not in done.json["spec.yaml"]


def test_project_is_found_from_a_subfolder(hpcrun: Caller) -> None:
    hpcrun.write("train.py", "")
    hpcrun.write("jobs/mine.yaml", "script: train.py\n")
    hpcrun.write("sub/x", "")
    above, hpcrun.project = hpcrun.project, hpcrun.project / "sub"
    plan = json.loads(hpcrun("submit", "mine", "--dry-run", "--json").json["plan.json"])
    assert plan["project_dir"] == str(above)


def test_version_and_help_are_printed(hpcrun: Caller) -> None:
    assert hpcrun("--version").out.startswith("hpcrun, version ")
    assert hpcrun("--help").out == hpcrun("-h").out
    assert hpcrun().code in (0, 2)


def test_a_job_file_of_another_project_is_submitted_from_there(
    hpcrun: Caller, tmp_path: Path
) -> None:
    other = tmp_path / "elsewhere"
    (other / "jobs").mkdir(parents=True)
    (other / "train.py").write_text("import torch\n")
    (other / "jobs" / "train.yaml").write_text("script: train.py\nsnapshot: false\n")
    file = str(other / "jobs" / "train.yaml")
    plan = json.loads(hpcrun("submit", file, "--dry-run", "--json").out)["plan.json"]
    assert json.loads(plan)["project_dir"] == str(other)
    # Its own profile counts before that of the current directory.
    (other / "hpcrun.yaml").write_text("name: elsewhere\npython: python3\nruns_dir: theirs\n")
    plan = json.loads(hpcrun("submit", file, "--dry-run", "--json").out)["plan.json"]
    assert json.loads(plan)["cluster"] == "elsewhere"
    assert json.loads(plan)["run_dir"].startswith(str(other / "theirs"))


def test_a_dry_run_opens_with_a_summary(hpcrun: Caller) -> None:
    lines = hpcrun("submit", "zero2-4gpu", "--dry-run").out.splitlines()
    assert lines[0] == "==> summary <=="
    summary = lines[: lines.index("==> job.sbatch <==")]
    assert any("shape" in line and "4 GPUs" in line for line in summary)
    assert any("batch" in line and "effective" in line for line in summary)
