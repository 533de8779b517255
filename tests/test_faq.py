"""docs/faq.md and docs/coming-from.md quote hpcrun's messages correctly."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

import hpcrun
from docs.make_reference import faq
from hpcrun.convert import Conversion, convert_script
from hpcrun.lint import SourcedFile
from hpcrun.slurm.reasons import explain_reason, refusal_fix
from tests.source import ROOT, modules, tree

FAQ = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
COMING = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")


def rows(section: str) -> list[list[str]]:
    """Return the cells of the table in a section, without its header."""
    text = FAQ.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) > 3, section
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]


def messages(section: str) -> list[str]:
    return [message for row in rows(section) for message in re.findall(r"`([^`]+)`", row[0])]


@cache
def expected() -> tuple[str, ...]:
    """All that hpcrun can say: its texts, with \\0 for what is filled in."""
    found = []
    for path in modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else "\0" for part in node.values
                )
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    for script in (ROOT / "templates").glob("*.sh"):
        found += re.findall(r'"([^"\n]*)"', script.read_text(encoding="utf-8"))
    return tuple(found)


def fixed_words(message: str) -> list[str]:
    """Return the parts of a quoted message that are not placeholders.

    >>> fixed_words("PATH: no such file; did you mean FILE?")
    ['no such file; did you mean']
    """
    parts = re.split(r"\b[A-Z]+\b(?:,)?|\([A-Z]+\)|[{}]", message)
    return [part.strip(" :;,.?") for part in parts if len(part.strip(" :;,.?")) > 3]


OWN = [
    *messages("hpcrun refuses: your job or your files"),
    *messages("hpcrun refuses: runs and commands"),
    *messages("hpcrun ended the job"),
    *(one for one in messages("Slurm does not answer") if not one.startswith("state ")),
    "no metrics in N files",
    "it has progress bars, but none that shows a value",
]


@pytest.mark.slow
@pytest.mark.parametrize("message", OWN)
def test_hpcrun_says_so(message: str) -> None:
    # Named commands, and what the system says of a file, are filled in.
    for name in ("sbatch: ", "squeue ", "--rank: ", ": Permission denied", "secrets: NAME: "):
        message = message.replace(name, "")
    wanted = fixed_words(message)
    assert wanted
    for words in wanted:
        assert any(words in text for text in expected()), words


@pytest.mark.slow
def test_a_message_that_nobody_says_is_noticed() -> None:
    assert fixed_words("WORD: that is no such thing") == ["that is no such thing"]
    assert not any("that is no such thing" in text for text in expected())


def test_refusals_of_slurm_have_the_fix_that_hpcrun_prints() -> None:
    for text in messages("Slurm refuses the job"):
        assert refusal_fix(f"sbatch: error: Batch job submission failed: {text}"), text


def test_failures_are_in_the_words_of_why() -> None:
    assert faq(FAQ) == FAQ, "python -m docs.make_reference"
    assert faq(FAQ.replace("out of GPU memory", "x")) == FAQ


@pytest.mark.parametrize("row", rows("The job waits"), ids=lambda row: row[0])
def test_reasons_are_in_the_words_of_status(row: list[str]) -> None:
    why = explain_reason(row[0].strip("`"), "JOB")
    assert why.words != row[0].strip("`")
    assert row[1:] == [why.words, why.fix]


def convert(text: str) -> Conversion:
    def read_file(name: str) -> SourcedFile | None:
        return SourcedFile(name, "python -u t.py\n") if name == "train.sh" else None

    return convert_script(text, "old", project="/p", home="/h", read_file=read_file)


def test_init_converts_the_script_of_the_guide_to_its_job_file() -> None:
    """All keys but those that only a person can choose: placeholders, the batch, a framework."""
    script = re.findall(r"```bash\n(.*?)```", COMING, re.DOTALL)[0]
    made = convert(script.replace("KEY=...", f"KEY={40 * 'a1'}"))
    wanted = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", COMING, re.DOTALL)[0])
    assert made.is_complete
    assert made.job["script"] == wanted["script"]
    options = [word for word in wanted["args"] if word.startswith("--")]
    assert [word for word in made.job["args"] if word.startswith("--")] == options
    same = ("secrets", "slurm")
    assert {key: made.job[key] for key in same} == {key: wanted[key] for key in same}
    given = made.job["resources"]
    assert (given.pop("account"), given.pop("partition")) == ("abc123", "gpu")
    assert given == wanted["resources"]
    venv = made.job["setup"]["venv"]
    assert (made.job["setup"]["modules"], venv) == (["cuda/12.4"], ".venv")


# For each row of the table: lines of a script, and the keys that the job then has.
CONVERTED = {
    "directives": (
        "#SBATCH --gpus=1 --qos=a --requeue --signal=USR1@60 --export=NONE\npython t.py",
        ["resources", "slurm", "survive", "environment"],
    ),
    "`module load`": ("module load a\nsource venv/bin/activate\npython t.py", ["setup"]),
    "other commands": ("umask 27\npython t.py", ["setup.commands"]),
    "`bash train.sh`": ("bash train.sh", ["command=t.py"]),
    "`source config.sh`": (
        "source config.sh\npython t.py $LR",
        ["setup.commands=export LR"],
    ),
    "a directory": (
        "if true; then cd a; fi\npython t.py",
        ["setup.commands=export START_FOLDER=$PWD"],
    ),
    "`/path/to/torchrun`": (
        "#SBATCH --gpus=1\n/a/bin/torchrun --nproc_per_node=1 t.py",
        ["setup.python=/a/bin/python"],
    ),
    "`export NAME=value`": (
        "export A=1\nexport NCCL_DEBUG=INFO\nexport HF_TOKEN=abcdefgh\npython t.py",
        ["env", "nccl.env", "secrets"],
    ),
    "`srun torchrun`": (
        "#SBATCH -N 2 --gres=gpu:2\n"
        "srun torchrun --nnodes 2 --nproc_per_node 2 --max_restarts=1 -m a b",
        ["launcher", "launcher_args", "module", "args"],
    ),
    "a program whose": (
        "#SBATCH --gpus=1\nD=$(date)\ntorchrun --nproc_per_node=1 t.py --out $D",
        ["command=bash", "launcher"],
    ),
    "`singularity exec`": ("singularity exec --nv a.sif python t.py", ["setup.container"]),
    "`--array`": (
        "#SBATCH --array=0-1\npython t.py $SLURM_ARRAY_TASK_ID",
        ["sweep"],
    ),
    "several programs": (
        "srun python a.py\nsrun python b.py",
        ["command=python a.py\npython b.py"],
    ),
}


def test_init_converts_each_row_of_the_guide() -> None:
    table = COMING.partition("| in the script | in the job |\n")[2].partition("\n\n")[0]
    lines = [line.removeprefix("| ") for line in table.splitlines()[1:]]
    assert len(lines) == len(CONVERTED)
    for line, (start, (script, keys)) in zip(lines, CONVERTED.items(), strict=True):
        assert line.startswith(start)
        made = convert(f"#!/bin/bash\n{script}\n")
        assert made.is_complete, (script, made.missing)
        for path in keys:
            key, _, wanted = path.partition("=")
            value = made.job
            for word in key.split("."):
                value = value[word]
            assert value and (not wanted or wanted in value), path


def test_functions_of_the_guide_exist() -> None:
    """Functions of Python in the tables for users of other tools."""
    for name in re.findall(r"`hpcrun\.(\w+)\(", COMING):
        assert callable(getattr(hpcrun, name)), name
    for name in re.findall(r"`run\.(\w+)\(", COMING):
        assert callable(getattr(hpcrun.Run, name)), name
    for owner, name, words in re.findall(r"`(hpcrun|run)\.(\w+)\(([^`]*)\)", COMING):
        function = getattr(hpcrun.Run if owner == "run" else hpcrun, name)
        for keyword in re.findall(r"(\w+)=", words):
            assert keyword in inspect.signature(function).parameters, (name, keyword)


def test_the_translated_script_asks_slurm_for_the_same(tmp_path: Path) -> None:
    """The job file of docs/coming-from.md gives the #SBATCH lines of the script beside it."""
    job, profile = re.findall(r"```yaml\n(.*?)```", COMING, re.DOTALL)
    script = re.findall(r"```bash\n(.*?)```", COMING, re.DOTALL)[0]
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "finetune.yaml").write_text(job)
    (tmp_path / "hpcrun.yaml").write_text(profile + f"runs_dir: {tmp_path}/runs\n")
    (tmp_path / "train.py").write_text("import sys\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text("")
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "WANDB_API_KEY": "x"}
    done = subprocess.run(
        [sys.executable, "-m", "hpcrun", "submit", "finetune", "--dry-run", "--json"],
        cwd=tmp_path, env=env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["job.sbatch"].splitlines()
    theirs = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert len(theirs) > 8
    missing = [line for line in theirs if line not in made]
    assert missing == ["#SBATCH --output=logs/%x-%j.out"]  # hpcrun has a file for each rank
