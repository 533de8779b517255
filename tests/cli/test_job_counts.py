"""Limits on the number of jobs, with answers of Slurm 22.05, which refused these submissions."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.calling import Caller, Done, replay
from tests.cli.slurm_rows import account_row, row

SWEEP = """\
command: [echo, "{lr}"]
resources: {gpus_per_node: 0}
sweep: {lr: [1, 2, 3, 4, 5, 6]}
"""
CONFIG = """\
AccountingStorageEnforce = associations,limits,qos
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = rig
MaxArraySize            = 1001
"""
PARTITIONS = "PartitionName=all Default=YES QoS=N/A\nPartitionName=wide QoS=wide\n"
QOS = "normal||||\nbig|4|||\nwide|100|||\nabove|5|||DenyOnLimit,OverPartQOS\n"
RECORDS = """\
Association Records

ClusterName=rig Account=root UserName= Partition= Priority=0 ID=1
    ParentAccount= Lft=1 DefAssoc=No
    GrpSubmitJobs=N(2) GrpWall=N(0.00)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=rig Account=research UserName= Partition= Priority=0 ID=3
    ParentAccount=root(1) Lft=2 DefAssoc=No
    GrpSubmitJobs=50(2) GrpWall=N(0.00)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=rig Account=research UserName=me(0) Partition= Priority=0 ID=4
    ParentAccount= Lft=3 DefAssoc=Yes
    GrpSubmitJobs=N(2) GrpWall=N(0.00)
    MaxJobs=3(2) MaxJobsAccrue= MaxSubmitJobs=5(2) MaxWallPJ=

QOS Records

QOS=normal(1)
    GrpJobs=N(6) GrpJobsAccrue=N(0) GrpSubmitJobs=N(6) GrpWall=N(0.00)
    Account Limits
      research
        MaxJobsPA=N(6) MaxJobsAccruePA=N(0) MaxSubmitJobsPA=N(6)
    User Limits
      me(0)
        MaxJobsPU=N(6) MaxJobsAccruePU=N(0) MaxSubmitJobsPU=N(6)
QOS=big(2)
    GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=N(0) GrpWall=N(0.00)
    Account Limits
        No Accounts
    User Limits
        No Users
"""


@pytest.fixture
def site(hpcrun: Caller) -> Caller:
    """A site that enforces limits; the user has two jobs in the queue."""
    hpcrun.write("sweep.yaml", SWEEP)
    hpcrun.write("one.yaml", "command: [date]\nresources: {gpus_per_node: 0}\n")
    set_answers(hpcrun)
    return hpcrun


def set_answers(hpcrun: Caller, config: str = CONFIG, records: str = RECORDS) -> None:
    answers = {
        "scontrol": {" config ": config, " partition ": PARTITIONS, "": records},
        "sacctmgr": {" qos ": QOS, "": "rig|research||research|normal,big||||\n"},
        "id": {" -un ": "me\n", "": "0\n"},
    }
    for command, texts in answers.items():
        script = hpcrun.tools / command
        cases = [f"*'{words}'*) cat <<'E'\n{text}E\n;;" for words, text in texts.items()]
        script.write_text(f'#!/bin/sh\ncase " $* " in {" ".join(cases)} esac\n')
        script.chmod(0o755)


def test_sweep_beyond_the_limit_of_the_account_is_refused_with_numbers(site: Caller) -> None:
    done = site("submit", "sweep.yaml", "--dry-run")
    assert done.code == 2
    assert "sweep: 6 jobs: account research accepts 5 pending and running jobs" in done.err, done
    assert "(MaxSubmitJobs); 2 are in the queue, so it accepts 3 more" in done.err
    command = "for part in 1 2; do hpcrun submit --set sweep_part=$part/2 --wait "
    assert f"Submit it in parts: {command}" in done.err
    assert "submit fewer now, and the others when jobs have ended; --no-check" in done.err
    assert site("submit", "sweep.yaml", "--dry-run", "--no-check").code == 0
    assert site("submit", "sweep.yaml", "--dry-run", "--set", "sweep.lr=[1, 2, 3]").code == 0


def test_limit_of_the_qos_replaces_that_of_the_account(site: Caller) -> None:
    """Slurm prints no limit per user for a QOS in which the user has no job yet."""
    done = site("submit", "sweep.yaml", "--dry-run", "--set", "slurm.qos=big")
    assert "QOS big accepts 4 pending and running jobs (MaxSubmitJobsPerUser); 0 are" in done.err
    assert "account research" not in done.err
    chosen = ("--set", "slurm.qos=big", "--set", "sweep.lr=[1, 2, 3, 4]")
    assert site("submit", "sweep.yaml", "--dry-run", *chosen).code == 0


@pytest.mark.parametrize("qos", ["normal", "big"])
def test_limit_of_the_qos_of_the_partition_comes_first(site: Caller, qos: str) -> None:
    chosen = ("--set", "resources.partition=wide", "--set", f"slurm.qos={qos}")
    done = site("submit", "sweep.yaml", "--dry-run", *chosen)
    assert done.code == 0, done
    lr = ",".join(map(str, range(101)))
    done = site("submit", "sweep.yaml", "--dry-run", *chosen, "--set", f"sweep.lr=[{lr}]")
    assert "101 jobs: QOS wide accepts 100 pending and running jobs" in done.err


def test_limit_of_a_qos_may_override_that_of_the_partition(site: Caller) -> None:
    chosen = ("--set", "resources.partition=wide", "--set", "slurm.qos=above")
    done = site("submit", "sweep.yaml", "--dry-run", *chosen)
    assert "QOS above accepts 5 pending" in done.err


def test_limits_of_one_of_several_partitions_are_not_certain(site: Caller) -> None:
    done = site("submit", "sweep.yaml", "--dry-run", "--set", "resources.partition=all,wide")
    assert done.code == 0, done


def test_jobs_of_several_files_count_together(site: Caller) -> None:
    site.write("sweep.yaml", SWEEP.replace("3, 4, 5, 6", "3"))
    assert site("submit", "sweep.yaml", "--dry-run").code == 0
    done = site("submit", "sweep.yaml", "one.yaml", "--dry-run", "--as", "x")
    assert done.code == 2 and "jobs: 4 jobs: account research accepts 5" in done.err, done


def test_limits_that_slurm_does_not_enforce_are_ignored(site: Caller) -> None:
    set_answers(site, CONFIG.replace("associations,limits,qos", "associations"))
    assert site("submit", "sweep.yaml", "--dry-run").code == 0


def test_max_array_size_is_read_from_slurm(site: Caller) -> None:
    """The profile may be older than the limit."""
    set_answers(site, CONFIG.replace("1001", "4"), "")
    done = site("submit", "sweep.yaml", "--dry-run")
    assert done.code == 2
    assert "sweep: 6 runs: an array has 4 tasks at most (MaxArraySize)" in done.err, done
    command = "for part in 1 2; do hpcrun submit --set sweep_part=$part/2 "
    assert f"submit it in 2 parts: {command}" in done.err
    assert "--as sweep-parts; done" in done.err
    for part, runs in ("1/2", "1, 2, 3"), ("2/2", "4, 5, 6"):
        done = site("submit", "--set", f"sweep_part={part}", "sweep.yaml", "--dry-run", "--json")
        assert done.code == 0, done
        assert [run["values"]["lr"] for run in done.json["runs"]] == runs.split(", ")


def test_part_of_a_sweep_that_cannot_be_is_refused(site: Caller) -> None:
    done = site("submit", "one.yaml", "--dry-run", "--set", "sweep_part=1/2")
    assert "sweep_part: the job has no sweep; remove it" in done.err, done
    for part in ("3/2", "1/7"):
        done = site("submit", "sweep.yaml", "--dry-run", "--set", f"sweep_part={part}")
        assert f"{part}: expected I/N, I up to N and N up to 6" in done.err, done


def printed_arguments(done: Done) -> list[str]:
    """Return the arguments of the printed command that submits a sweep in parts."""
    pattern = r"do hpcrun submit --set sweep_part=\$part/2 (?:--wait )?(.*); done"
    found = re.search(pattern, done.out + done.err)
    assert found, done
    return shlex.split(found[1])


def test_printed_command_submits_the_parts_with_the_same_options(site: Caller) -> None:
    site.write("4-long.yaml", SWEEP)
    profiles = Path(site.environ["HOME"], ".config/hpcrun/clusters")
    profiles.mkdir(parents=True)
    (profiles / "local.yaml").write_text((site.project / "hpcrun.yaml").read_text())
    rows = "".join(row(Path("/elsewhere"), job_id, "PENDING") for job_id in ("11", "12"))
    replay(site.tools, "squeue", (0, rows, ""))
    name = "4-a-name-that-is-longer-than-names-of-groups"
    asked = ["--cluster", "local", "--after", "11", "--after", "12", "--no-check", "-J", name]
    done = site("submit", "4-long.yaml", *asked, "--dry-run")
    assert done.code == 0, done
    words = printed_arguments(done)
    assert words[:3] == ["4-long.yaml", "--as", "sweep-4-a-name-that-is-longer-than-parts"]
    assert words[3:9] == ["--cluster", "local", "--after", "11", "--after", "12"]
    assert words[9:] == ["--set", f'name="{name}"', "--no-check"]
    assert len(words[2]) == 40
    for part in "1/2", "2/2":
        done = site("submit", "--set", f"sweep_part={part}", *words, "--dry-run", "--json")
        assert done.code == 0 and len(done.json["runs"]) == 3, done
        assert "dependency=afterok:11" in done.json["job.sbatch"]


def test_printed_command_submits_parts_of_a_bare_command(site: Caller) -> None:
    bare = ["--set", "sweep.lr=[1,2,3,4,5,6]", "--", "bash", "-c", "echo {lr} --as"]
    words = printed_arguments(site("submit", "--dry-run", *bare))
    assert words == ["--as", "bash-parts", *bare]
    for part, values in ("1/2", ["1", "2", "3"]), ("2/2", ["4", "5", "6"]):
        done = site("submit", "--set", f"sweep_part={part}", "--dry-run", "--json", *words)
        assert done.code == 0, done
        assert [run["values"]["lr"] for run in done.json["runs"]] == values


def test_stage_of_a_pipeline_beyond_the_limit_has_no_command_for_parts(site: Caller) -> None:
    site.write("pipelines/both.yaml", "train: {job: sweep.yaml}\n")
    done = site("submit", "both", "--dry-run")
    assert done.code == 2 and "6 jobs: account research accepts 5" in done.err, done
    assert "submit fewer now" in done.err and "sweep_part" not in done.err
    set_answers(site, CONFIG.replace("1001", "4"), "")
    done = site("submit", "both", "--dry-run")
    assert "6 runs: an array has 4 tasks at most (MaxArraySize); submit fewer" in done.err, done


def test_resubmit_of_a_sweep_beyond_the_limit_has_no_command_for_parts(site: Caller) -> None:
    """It would train all runs from the start."""
    replay(site.tools, "sbatch", (0, "7\n", ""))
    assert site("submit", "sweep.yaml", "--no-check").code == 0
    (sweep,) = site.runs.glob("*.array")
    ended = "".join(account_row(sweep, f"7_{index}", "FAILED") for index in range(6))
    replay(site.tools, "sacct", (0, ended, ""))
    replay(site.tools, "squeue", (0, "", ""))
    done = site("resubmit", "7", "--failed", "--fresh", "--dry-run")
    assert done.code == 2 and "6 jobs: account research accepts 5" in done.err, done
    assert "submit fewer now" in done.err and "sweep_part" not in done.err, done
    set_answers(site, CONFIG.replace("1001", "4"), "")
    done = site("resubmit", "7", "--failed", "--fresh", "--dry-run")
    assert "6 runs: an array has 4 tasks at most (MaxArraySize); submit fewer" in done.err, done
    assert "sweep_part" not in done.err
