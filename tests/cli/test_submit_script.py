"""hpcrun submit of an sbatch script, without Slurm: dry runs and refusals."""

from __future__ import annotations

import json

import pytest

from tests.cli.calling import Caller

SCRIPT = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --output=logs/%j.out\n\nsrun python train.py\n"


def test_dry_run_shows_the_call_and_the_difference(hpcrun: Caller) -> None:
    hpcrun.write("old.sbatch", SCRIPT)
    done = hpcrun("submit", "old.sbatch", "--dry-run", "-t", "5", "--", "a b")
    assert done.code == 0, done
    call, *diff = done.out.splitlines()
    place = f"'--output={hpcrun.project}/logs/%j.out'"
    assert call == (f"sbatch --parsable --time=5 --job-name=old.sbatch {place} job.sbatch 'a b'")
    changed = [line for line in diff[2:] if line.startswith(("+", "-"))]
    assert len(changed) == 1 and "inserted by hpcrun" in changed[0]
    whole = hpcrun("submit", "old.sbatch", "--dry-run", "--json").json["job.sbatch"]
    lines = whole.splitlines(keepends=True)
    assert "".join(line for line in lines if "inserted by hpcrun" not in line) == SCRIPT
    assert lines.index(next(line for line in lines if "inserted" in line)) == 4


@pytest.mark.parametrize(
    ("text", "argv", "message"),
    [
        ("#!/usr/bin/env python3\n", [], "not a shell script (#!/usr/bin/env python3)"),
        ("#!/bin/bash\r\nls\r\n", [], "DOS line ends"),
        ("#!/bin/bash\n#SBATCH --array=1-1001\n", [], "hpcrun records arrays of at most 1000"),
        ("#!/bin/bash\n#SBATCH --array=5-1\n", [], "hpcrun records arrays of at most 1000"),
        ("#!/bin/bash\n#SBATCH -M hpda\n", [], "--clusters=hpda: hpcrun follows the jobs of one"),
        ("#!/bin/bash\n#SBATCH --clusters=a,b\n", [], "--clusters=a,b: hpcrun follows"),
        (SCRIPT, ["--set", "env.A=1"], "--set env.A=1: old.sbatch is an sbatch script"),
        (SCRIPT, ["--debug"], "--debug: old.sbatch is an sbatch script"),
    ],
)
def test_unsupported_script_is_one_clear_error(
    hpcrun: Caller, text: str, argv: list[str], message: str
) -> None:
    hpcrun.write("old.sbatch", text)
    done = hpcrun("submit", "old.sbatch", "--dry-run", *argv)
    assert done.code == 2, done
    assert message in done.err and "\n  fix: " in done.err and "Traceback" not in done.err


def test_clusters_option_may_name_the_cluster_of_the_profile(hpcrun: Caller) -> None:
    conf = hpcrun.write("slurm.conf", "ClusterName=mine\n")
    hpcrun.write("old.sbatch", "#!/bin/bash\n#SBATCH --clusters=mine\nls\n")
    hpcrun.environ["SLURM_CONF"] = str(conf)
    assert hpcrun("submit", "old.sbatch", "--dry-run").code == 0


def test_script_in_a_subfolder_belongs_to_the_project(
    hpcrun: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its run can be the newest one of the project."""
    hpcrun.write("scripts/old.sbatch", SCRIPT)
    monkeypatch.setattr(hpcrun, "project", hpcrun.project / "scripts")
    plan = hpcrun("submit", "old.sbatch", "--dry-run", "--json").json["plan.json"]
    assert json.loads(plan)["provenance"]["project"] == str(hpcrun.project.parent)


def test_errors_of_lint_are_shown_before_the_submission(hpcrun: Caller) -> None:
    hpcrun.write("old.sbatch", "#!/bin/bash\nls\n#SBATCH -N 2\n")
    done = hpcrun("submit", "old.sbatch", "--dry-run")
    assert (
        "old.sbatch:3: sbatch ignores -N 2: a command stands above it [late-directive]" in done.err
    )
    assert "late-directive" not in hpcrun("submit", "old.sbatch", "--dry-run", "--no-check").err


def test_limits_of_the_profile_are_checked_before_the_submission(hpcrun: Caller) -> None:
    hpcrun.write("hpcrun.yaml", "name: mine\npartitions: {gpu: {max_time: '60'}}\n")
    hpcrun.write("old.sbatch", "#!/bin/bash\n#SBATCH -p gpu -t 90\nls\n")
    done = hpcrun("submit", "old.sbatch", "--dry-run")
    assert "old.sbatch:2: 90: partition gpu allows 60 [beyond-partition]" in done.err
    assert "beyond-partition" not in hpcrun("submit", "old.sbatch", "--dry-run", "-t", "30").err
    assert hpcrun("lint", "old.sbatch").code == 0
    assert hpcrun("lint", "old.sbatch", "--cluster", "mine").code == 1


def test_group_of_a_script_is_recorded(hpcrun: Caller) -> None:
    hpcrun.write("old.sbatch", SCRIPT)
    files = hpcrun("submit", "old.sbatch", "--as", "memory", "--dry-run", "--json").json
    assert json.loads(files["plan.json"])["group"] == "memory"
    refused = hpcrun("submit", "old.sbatch", "--as", "1", "--dry-run")
    assert refused.code == 2 and "expected a name that begins with a letter" in refused.err


@pytest.mark.parametrize("name", ["train", "zero2-4gpu"])
def test_job_comes_before_a_script_of_the_same_name(hpcrun: Caller, name: str) -> None:
    """As before scripts could be submitted: a file in the project must not replace a job."""
    hpcrun.write("jobs/train.yaml", "command: [hostname]\nresources: {gpus_per_node: 0}\n")
    hpcrun.write(name, SCRIPT)
    assert "script.sh" not in hpcrun("submit", name, "--dry-run", "--json").json
    by_path = hpcrun("submit", f"./{name}", "--dry-run", "--json").json
    assert "inserted by hpcrun" in by_path["job.sbatch"]
