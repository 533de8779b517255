"""Expected start times, in the format of each release of Slurm."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hpcrun.errors import OutOfReach, SchedulerRefused
from hpcrun.remote import LocalTransport
from hpcrun.remote.queries import parse_answers, query_script
from hpcrun.slurm import client
from hpcrun.slurm.commands import Estimate, parse_estimate
from tests.remote.scripted import ScriptedTransport

CAPTURED = Path(__file__).parent.parent / "captured"
ANSWERS = sorted(CAPTURED.glob("*/sbatch/test-only*.json"))


def ask(file: Path) -> Estimate:
    """Return a transport with the captured replies."""
    text = json.loads(file.read_text())
    answer = (text["exit_code"], text["stdout"], text["stderr"])
    return client.query_expected_start(ScriptedTransport({"sbatch": answer}), "#!/bin/bash\n", {})


def name(file: Path) -> str:
    """Return the release as the id of a test case."""
    return f"{file.parts[-3]}-{file.stem}"


@pytest.mark.parametrize("file", [f for f in ANSWERS if "refused" not in f.stem], ids=name)
def test_expected_start_is_parsed_for_every_release(file: Path) -> None:
    estimate = ask(file)
    assert estimate.start[:2] == "20" and estimate.start[10] == "T"
    assert estimate.processors in (2, 8)
    assert estimate.nodes in ("node1", "node2", "node[1-2]")
    assert estimate.partition == "debug"


@pytest.mark.parametrize("file", [f for f in ANSWERS if "refused" in f.stem], ids=name)
def test_refused_estimate_raises_the_refusal(file: Path) -> None:
    with pytest.raises(SchedulerRefused) as caught:
        ask(file)
    assert caught.value.message.startswith("Slurm would refuse the job: allocation failure")
    assert "no node has what the job asks for" in caught.value.fix


def test_estimates_cover_all_releases() -> None:
    assert len({file.parts[-3] for file in ANSWERS}) >= 4


def test_missing_response_is_not_a_refusal() -> None:
    text = "sbatch: error: Unable to contact slurm controller (connect failure)"
    with pytest.raises(OutOfReach):
        client.query_expected_start(ScriptedTransport({"sbatch": (1, "", text)}), "", {})


def test_estimate_is_parsed_after_plugin_output_and_in_the_old_format() -> None:
    text = "sbatch: lua: your account is charged\nsbatch: Job 7 to start at 2026-11-20T12:00:00 "
    text += "using 4 processors on nodes n1\n"
    assert parse_estimate(text) == Estimate("2026-11-20T12:00:00", 4, "n1", "")
    assert parse_estimate("sbatch: error: invalid partition specified: x") is None


def test_estimates_of_a_remote_host_ignore_its_defaults_and_time_zone(tmp_path: Path) -> None:
    """sbatch prints the host's local time, and the login's SBATCH_* would override directives."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(
        "#!/bin/bash\n"
        'echo "sbatch: Job 7 to start at 2026-11-20T12:00:00 using 4 processors on nodes n1 in "'
        '"partition $(cat)-${SBATCH_PARTITION-}-${SBATCH_QOS-}-$1" >&2\n'
    )
    sbatch.chmod(0o755)
    env = {"SBATCH_QOS": "high", "HOME": "/elsewhere", "SLURM_CONF": "/x"}
    asked = client.build_estimate_query("script", env)
    assert asked.env == (("SLURM_CONF", "/x"),)
    host = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TZ": "Asia/Tokyo", "SBATCH_PARTITION": "p"}
    done = subprocess.run(
        ["bash", "-s"],
        input=query_script([asked], "mark"),
        env=host,
        capture_output=True,
        text=True,
    )
    found = client.parse_expected_start(parse_answers([asked], "mark", done.stdout)[asked])
    assert found.partition == "script--high---test-only"
    noon_in_tokyo = datetime(2026, 11, 20, 3, tzinfo=timezone.utc)
    assert datetime.fromisoformat(found.start).astimezone() == noon_in_tokyo


def test_missing_sbatch_is_no_refusal(tmp_path: Path) -> None:
    asked = client.build_estimate_query("script", {})
    (tmp_path / "bash").symlink_to("/bin/bash")
    answers = LocalTransport({"PATH": str(tmp_path)}).run_queries([asked])
    with pytest.raises(OutOfReach):
        client.parse_expected_start(answers[asked])
