"""docs/faq.md and docs/coming-from.md: what they quote of hpcrun's own is what hpcrun says."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from docs.make_reference import faq
from hpcrun.slurm.reasons import explain_reason, refusal_fix
from tests.source import ROOT, modules, tree

FAQ = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
COMING = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
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
    """What of a quoted message does not stand for the reader's own.

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
