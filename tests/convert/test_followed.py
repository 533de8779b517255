"""Scripts whose last command runs another script."""

from __future__ import annotations

import pytest

from hpcrun.convert import Conversion, convert_script
from hpcrun.lint import SourcedFile

HEAD = "#!/bin/bash\n#SBATCH --gpus-per-node=2\n#SBATCH --cpus-per-task=8\n"
TRAIN = '#!/bin/bash\n#SBATCH --nodes=9\nmkdir -p out\nsrun torchrun --nproc_per_node=2 t.py "$1"\n'


def convert(body: str, train: str = TRAIN) -> Conversion:
    """Convert a script that may run train.sh."""

    def read_file(name: str) -> SourcedFile | None:
        is_there = name in ("train.sh", "./train.sh")
        return SourcedFile("train.sh", train) if is_there else None

    return convert_script(HEAD + body, "a", project="/p", home="/h", read_file=read_file)


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("bash train.sh 0.1", ["0.1"]),
        ("sh ./train.sh 'a b'  # the training", ["a b"]),
        ("./train.sh --lr", ["--lr"]),
        ("source train.sh x", ["x"]),
        ("bash train.sh", [""]),
    ],
)
def test_script_that_the_last_command_runs_is_converted(command: str, args: list[str]) -> None:
    made = convert(f"echo start\n{command}\n")
    assert made.is_complete
    assert made.job["script"] == "t.py"
    assert made.job.get("args", [""]) == args
    assert made.job["resources"]["gpus_per_node"] == 2
    assert "nodes" not in made.job["resources"]
    assert "mkdir -p out || true" in made.job["setup"]["commands"]


@pytest.mark.parametrize(
    "body",
    [
        "bash other.sh\n",
        "cd x\nbash train.sh\n",
        "set -e\nbash train.sh\n",
        "LR=0.1\nbash train.sh\n",  # which the script would read
        "bash train.sh > log\n",
        "bash train.sh\ndate > done\n",
    ],
)
def test_script_that_would_do_something_else_stays_a_command(body: str) -> None:
    made = convert(body, TRAIN.replace('"$1"', "$LR"))
    assert "script" not in made.job
    reasons = [one.reason for one in made.remarks if one.effect == "assumed"]
    assert reasons == ["this script is not read: it must not call srun itself"]


def test_remarks_name_the_lines_of_both_scripts() -> None:
    made = convert("module list\nbash train.sh 0.1\n", TRAIN.replace("srun", "nvidia-smi\nsrun"))
    shown = [(one.line, one.text) for one in made.remarks if one.effect == "replaced"]
    assert shown == [(4, "module list"), (5, "train.sh line 4: nvidia-smi")]


def test_a_script_with_a_program_of_its_own_is_not_followed() -> None:
    made = convert("python a.py\nsource train.sh\n")
    assert "t.py" not in str(made.job)
