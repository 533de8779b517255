"""The user's own sbatch scripts: they run as with sbatch, and hpcrun records the run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.plain_sbatch import sbatch
from tests.cluster.site import Site, Submitted
from tests.json_schemas import check_json
from tests.source import ROOT
from tests.waiting import until

# Writes all that a script or a rank can see of its start: arguments, directory, environment, CPUs.
PROBE = r"""#!/bin/bash
{
    echo "argv:$(printf ' [%s]' "$0" "$@")"
    echo "cwd: $PWD"
    echo "cpus: $(grep Cpus_allowed_list /proc/self/status)"
    echo "limits: $(ulimit -a | tr '\n' ' ')"
    echo "umask: $(umask)"
    env -0 | sort -z | tr '\n\0' ' \n'
} >"$PROBED/${0##*/}-${SLURM_ARRAY_TASK_ID-}-${SLURM_PROCID-}-${SLURM_STEP_ID-}.txt"
"""
# Differences between any two jobs.
_OWN = re.compile(
    r"(SLURM_(JOB_?ID(_(HET|PACK)_GROUP_\d)?|ARRAY_JOB_ID|TASK_PID|LAUNCH_NODE_IPADDR"
    r"|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|GTIDS|JOB_(START|END)_TIME|STEP_RESV_PORTS)|SRUN_DEBUG|_|PROBED|TMPDIR)=.*"
)

HETEROGENEOUS = """#!/bin/bash
#SBATCH -N1 -n1 -w node1
#SBATCH hetjob
#SBATCH -N1 -n2 -t 5 -w node2
srun --het-group=0,1 bash -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME'
echo step 1 loss 2.5
sleep "${1-0}"
"""
SCRIPTS = {
    "steps": (
        """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH -J steps-of-two
#SBATCH --output=out/%x-%j.txt
#SBATCH --error=out/%x-%j.err

"$PROBER" batch "$@"
srun "$PROBER" rank 'a  b'
srun -N1 -n1 bash -c '"$PROBER" inner'
echo done >&2
""",
        ["one two", "*", ""],
    ),
    "shell options": (
        """#!/bin/bash -eu
#SBATCH -N 1
#SBATCH --export=ALL,ADDED=1
#SBATCH --chdir=sub
umask 027; set -x
exec "$PROBER" "$@"
""",
        [],
    ),
    "sh": (
        """#!/bin/sh
# A comment, and directives after a blank line.

#SBATCH --time=5

"$PROBER" "$@"
""",
        ["-n", "--", "x"],
    ),
    "login shell": (
        """#!/usr/bin/bash -l
#SBATCH --ntasks=3
srun --label "$PROBER"
""",
        [],
    ),
    "array": (
        """#!/bin/bash
#SBATCH --array=0-2
"$PROBER" "$SLURM_ARRAY_TASK_ID"
""",
        ["x"],
    ),
    "array of other indices": (
        """#!/bin/bash
#SBATCH --array=3,5-7:2%2
#SBATCH --nodelist=node1
"$PROBER" "$SLURM_ARRAY_TASK_ID"
""",
        [],
    ),
    "heterogeneous": (
        """#!/bin/bash
#SBATCH -N1 -n1 -w node1
#SBATCH hetjob
#SBATCH -N1 -n2 -w node2 --gres=gpu:1
"$PROBER" batch
srun --het-group=1 "$PROBER" rank
""",
        ["x"],
    ),
    "functions and traps": (
        """#!/bin/bash
cleanup() { "$PROBER" cleanup; }
trap cleanup EXIT
sleep 0.1 &
wait
( "$PROBER" subshell )
""",
        [],
    ),
}

_SRUN_WAITED = re.compile(r"srun: (Job \d+ step creation temporarily disabled|Step created for )")


def environ(site: Site, folder: Path) -> dict[str, str]:
    """Return the environment of a submitting shell, with a folder for what the probes find."""
    folder.mkdir()
    (folder / "prober").write_text(PROBE)
    (folder / "prober").chmod(0o755)
    own = {"PROBED": str(folder), "PROBER": str(site.project / "prober"), "SHLVL": "1"}
    return {**site.environ(), "SLURM_CONF": str(site.rig.conf), **own}


def probes(folder: Path) -> dict[str, list[str]]:
    """Return what the probes found, without what differs between any two jobs."""
    found = {}
    for path in sorted(folder.glob("*.txt")):
        lines = path.read_text().splitlines()
        kept = [re.sub(r"job\d+", "jobN", line) for line in lines if not _OWN.fullmatch(line)]
        found[path.name] = kept
    return found


def outputs(site: Site) -> dict[str, list[str]]:
    """Return the contents of the jobs' output files by name, without the ids of the jobs.

    What srun prints when it has to wait for its step depends on the load of the machine.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(site.project.glob("*.out")) + sorted(site.project.glob("*/*-*.*")):
        if path.parent.name not in ("plain", "ours", "runs"):
            lines = path.read_text().splitlines(keepends=True)
            text = "".join(line for line in lines if not _SRUN_WAITED.match(line))
            text = re.sub(r"job\d+", "jobN", text)
            found.setdefault(re.sub(r"\d+", "N", path.name, count=1), []).append(text)
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs_as_with_sbatch(site: Site, name: str) -> None:
    text, arguments = SCRIPTS[name]
    script = site.project / "old.sbatch"
    script.write_text(text)
    for folder in ("out", "sub"):
        (site.project / folder).mkdir()
    (site.project / "prober").write_text(PROBE)
    (site.project / "prober").chmod(0o755)
    plain, ours = site.project / "plain", site.project / "ours"
    done = subprocess.run(
        ["sbatch", "--wait", "old.sbatch", *arguments],
        cwd=site.project,
        env=environ(site, plain),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before = outputs(site)
    submitted = site.hpcrun(
        "submit", "old.sbatch", "--wait", "--", *arguments, env=environ(site, ours)
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    assert probes(plain) and probes(ours) == probes(plain)
    # The output files have the names that sbatch chooses, and the same content.
    assert outputs(site) == {name: texts * 2 for name, texts in before.items()}


def test_run_of_a_script_is_recorded(site: Site) -> None:
    script = site.project / "old.sbatch"
    text = "#!/bin/bash\n#SBATCH -o logs/%x.%j\n#SBATCH -J named\necho step 1 loss 2.5\nexit 7\n"
    script.write_text(text)
    (site.project / "logs").mkdir()
    done = site.hpcrun("submit", "old.sbatch", "--wait", "--json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    check_json("submit", answer)
    run = Submitted(answer["run_id"], answer["job_id"], Path(answer["run_dir"]))
    assert run.record("end.json")["exit_code"] == 7
    shown = site.status(run)
    assert (shown["state"], shown["exit_code"], shown["name"]) == ("FAILED", 7, "named")
    output = site.project / "logs" / f"named.{run.job_id}"
    assert output.read_text() == "step 1 loss 2.5\n"
    assert site.hpcrun("logs", run.job_id).stdout == "step 1 loss 2.5\n"
    parsed = json.loads(site.hpcrun("parse", run.job_id, "--json").stdout)["runs"][0]
    assert parsed["metrics"]["loss"]["last"]["value"] == 2.5
    # What Slurm gets differs from the script by one line.
    sent = (run.folder / "job.sbatch").read_text().splitlines(keepends=True)
    inserted = [line for line in sent if "inserted by hpcrun" in line]
    assert len(inserted) == 1
    assert "".join(line for line in sent if line not in inserted) == text

    script.write_text(text.replace("exit 7", "exit 0"))
    again = json.loads(site.hpcrun("resubmit", run.job_id, "--json").stdout)
    assert "the run uses the original script" in again["notes"][0]
    now = json.loads(site.hpcrun("resubmit", run.job_id, "--code", "now", "--json").stdout)
    done = site.hpcrun("wait", "--json", again["job_id"], now["job_id"])
    states = {one["job_id"]: one["state"] for one in json.loads(done.stdout)["runs"]}
    assert states == {again["job_id"]: "FAILED", now["job_id"]: "COMPLETED"}


def test_tasks_of_an_array_are_found_by_their_index(site: Site) -> None:
    text = "#!/bin/bash\n#SBATCH --array=3,7 -o %a.out\necho task $SLURM_ARRAY_TASK_ID\n"
    (site.project / "old.sbatch").write_text(f"{text}exit $((SLURM_ARRAY_TASK_ID - 3))\n")
    done = site.hpcrun("submit", "old.sbatch", "--wait", "--json")
    answer = json.loads(done.stdout)
    check_json("submit", answer)
    job_id = answer["job_id"]
    assert site.hpcrun("logs", f"{job_id}_7").stdout == "task 7\n"
    shown = json.loads(site.hpcrun("status", "--json", job_id).stdout)["runs"]
    states = {one["job_id"]: one["state"] for one in shown}
    assert states == {f"{job_id}_3": "COMPLETED", f"{job_id}_7": "FAILED"}
    listed = json.loads(site.hpcrun("status", "--json").stdout)["runs"]
    (row,) = [one for one in listed if one["job_id"] == job_id]
    assert row["states"] == {"COMPLETED": 1, "FAILED": 1}


def test_heterogeneous_job_is_one_run(site: Site) -> None:
    """Its state is that of the first component, in which the script runs."""
    (site.project / "old.sbatch").write_text(HETEROGENEOUS)
    done = site.hpcrun("submit", "old.sbatch", "--json", "--", "300")
    answer = json.loads(done.stdout)
    assert "hetjob" not in done.stderr
    job_id = answer["job_id"]
    until(lambda: "loss" in site.hpcrun("logs", job_id).stdout, "the script's output")
    ranks = sorted(site.hpcrun("logs", job_id).stdout.splitlines())[:3]
    places = zip(range(3), ("node1", "node2", "node2"), strict=True)
    assert ranks == [f"rank {rank} of 3 on {node}" for rank, node in places]
    (row,) = json.loads(site.hpcrun("status", "--json").stdout)["runs"]
    assert (row["job_id"], row["state"], row["nodes"]) == (job_id, "RUNNING", 2)
    shown = json.loads(site.hpcrun("top", "--json").stdout)["jobs"]
    assert [(one["job_id"], one["run_id"]) for one in shown] == [(job_id, answer["run_id"])]
    assert site.hpcrun("cancel", job_id).returncode == 0
    assert site.hpcrun("wait", job_id).returncode == 1
    (row,) = json.loads(site.hpcrun("status", "--json").stdout)["runs"]
    assert row["state"] == "CANCELLED"
    queue = site.rig.run("squeue", "-h", "-t", "running", "-o", "%i").stdout
    assert f"{job_id}+" not in queue


def test_signals_reach_the_script_as_with_sbatch(site: Site) -> None:
    (site.project / "old.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --open-mode=append -o log\n"
        "trap 'echo usr1; kill $!; exit 5' USR1\ntrap 'echo term' TERM\n"
        "echo begins ${SLURM_RESTART_COUNT:-0}\nsleep 600 & wait $!; wait\n"
    )
    log = site.project / "log"
    run = site.submit("old.sbatch")
    until(lambda: log.exists() and "begins" in log.read_text(), run.log)
    site.rig.run("scancel", "--batch", "--signal=USR1", run.job_id)
    site.wait_for(run, "attempts/0/end.json")
    assert run.record("end.json")["exit_code"] == 5
    assert log.read_text() == "begins 0\nusr1\n"

    log.unlink()
    run = site.submit("old.sbatch")
    until(lambda: log.exists() and "begins" in log.read_text(), run.log)
    assert site.hpcrun("cancel", run.job_id).returncode == 0
    assert site.hpcrun("wait", run.job_id).returncode == 1
    assert site.status(run)["state"] == "CANCELLED"
    assert log.read_text().count("term\n") == 1


def test_second_job_of_a_run_ends_at_once(site: Site) -> None:
    (site.project / "old.sbatch").write_text("#!/bin/bash\necho once >> count\n")
    run = site.submit("old.sbatch")
    assert site.hpcrun("wait", run.job_id).returncode == 0
    done = subprocess.run(
        ["sbatch", "--wait", "job.sbatch"],
        cwd=run.folder,
        env={**os.environ, "SLURM_CONF": str(site.rig.conf)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 93
    assert (site.project / "count").read_text() == "once\n"


def test_script_waits_for_other_runs(site: Site) -> None:
    (site.project / "first.sbatch").write_text("#!/bin/bash\nsleep 2; date +%s.%N > first\n")
    (site.project / "second.sbatch").write_text("#!/bin/bash\ndate +%s.%N > second\n")
    first = site.submit("first.sbatch")
    second = site.submit("second.sbatch", "--after", first.job_id)
    assert site.hpcrun("wait", second.job_id).returncode == 0
    times = [float((site.project / name).read_text()) for name in ("first", "second")]
    assert times == sorted(times)


def test_commands_of_the_guide_work(site: Site) -> None:
    """The commands at the beginning of docs/coming-from.md, on a script with one argument."""
    guide = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    block = guide.partition("```console\n")[2].partition("```")[0]
    (site.project / "old.sbatch").write_text(
        '#!/bin/bash\n#SBATCH --time=5\n#SBATCH -o %j.out\nsrun echo "lr ${2-none}"\n'
    )
    first = ""
    lines = [line.removeprefix("$ ").split(" #")[0] for line in block.splitlines()]
    assert len(lines) >= 5
    for line in lines:
        words = line.replace("4711", first).split()
        done = site.hpcrun(*words[1:])
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        if not first:
            first = re.findall(r"as job (\d+)", done.stdout)[0]
        if "--follow" in line:
            assert "lr 0.1" in done.stdout
    assert site.hpcrun("wait", first).returncode == 0
    assert (site.project / f"{first}.out").read_text() == "lr none\n"
    until(lambda: len(list(site.project.glob("*.out"))) == 3, "the job that waits for the first")
    # Those of the first paragraph, on a job that hpcrun did not submit.
    job = sbatch(site, "echo step 1 loss 2.5; sleep 600")
    until(lambda: list(site.project.glob(f"slurm-{job}.out")), "the job's output")
    until(lambda: (site.project / f"slurm-{job}.out").read_text(), "the job's line")
    named = re.findall(r"`hpcrun ([^`]*)`", guide.partition("\n\n- ")[0])
    commands = [one.replace("4711", job) for one in named if "4711" in one]
    assert len(commands) >= 5
    for words in sorted(commands, key=lambda one: "-f" in one):  # follow the cancelled job
        done = site.hpcrun(*words.split())
        assert (done.returncode == 0) == ("-f" not in words), (words, done.stdout, done.stderr)
        expected = {"parse": "loss", "logs": "loss 2.5", "status": "RUNNING"}
        assert expected.get(words.split()[0], "") in done.stdout, (words, done.stdout)


# Writes what a rank gets from the script, and from the converted job.
RANK = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SHARED", "WRITTEN", "TASK")
seen = {name: os.environ.get(name) for name in names}
seen |= {"argv": sys.argv[1:], "cpus": sorted(os.sched_getaffinity(0)), "cwd": os.getcwd()}
seen |= {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "host": os.uname().nodename}
part = "-".join((os.environ["TASK"], os.environ["RANK"]))
with open(os.path.join(os.environ["PROBED"], part), "w") as file:
    json.dump(seen, file)
"""
CONVERTED = """#!/bin/bash
#SBATCH -J converted --array=4
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=4 --gres=gpu:2
#SBATCH --output=plain.out
export WRITTEN='a  {b}'
export TASK=$SLURM_ARRAY_TASK_ID
SHARED=$(mktemp -u)
export SHARED=${SHARED:0:4}
NAMES=(none none none first second)
HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
mkdir -p made
cd made
srun PYTHON -m torch.distributed.run --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d \\
    --rdzv-endpoint="$HOST:$((20000 + SLURM_JOB_ID % 9000))" --rdzv-id=1 \\
    ../rank.py --name "${NAMES[$SLURM_ARRAY_TASK_ID]}" "$1" '{"x": 1}' "$WRITTEN" $USERS
echo "${PIPESTATUS[0]}"
"""


def test_converted_script_starts_the_same_ranks(site: Site) -> None:
    """The job of hpcrun init gives every rank the arguments, variables and CPUs of the script."""
    (site.project / "rank.py").write_text(RANK)
    (site.project / "old.sbatch").write_text(CONVERTED.replace("PYTHON", sys.executable))
    found = {}
    for name in ("plain", "ours"):
        env = {**environ(site, site.project / name), "USERS": "u v"}
        if name == "plain":
            argv = ["sbatch", "--wait", "old.sbatch", "one $two"]
        else:
            made = site.hpcrun("init", "old.sbatch", "--json", "--", "one $two", env=env)
            answer = json.loads(made.stdout)
            check_json("init", answer)
            assert answer["job"]["conversion"]["complete"], answer
            argv = [sys.executable, "-m", "hpcrun", "submit", "old", "--wait"]
        done = subprocess.run(
            argv, cwd=site.project, env=env, capture_output=True, text=True, check=False
        )
        log = "\n".join(path.read_text() for path in site.project.glob("*.out"))
        assert done.returncode == 0, done.stdout + done.stderr + log
        ranks = (site.project / name).glob("?-?")
        found[name] = {path.name: json.loads(path.read_text()) for path in ranks}
    assert len(found["plain"]) == 4 and found["ours"] == found["plain"]


def test_check_compares_the_ranks_of_script_and_job(site: Site) -> None:
    """Directives, paths and modules of another cluster do not matter; nothing is changed."""
    text = (
        "#!/bin/bash\n#SBATCH -p a100 -A project --gres=gpu:a100:2 --nodes=2 -t 1-0\n"
        "#SBATCH --array=5-6\nset -e\n#SBATCH --ntasks=8\n"
        "module load cuda\nsource /appl/venv/bin/activate\nrm keep\n/bin/rm {keep}\n"
        "sed -i s/a/b/ {keep}\necho b > {keep}\nsort -o {keep} /dev/null\necho b | tee {keep}\n"
        "cd {folder}\necho b > keep\nexport A=1\n"
        'srun torchrun --nnodes 2 --nproc-per-node 2 train.py --out "$USER" $1 '
        "~/data $SLURM_ARRAY_TASK_ID\n"
    )
    text = text.replace("{folder}", str(site.project)).replace("{keep}", f"{site.project}/keep")
    (site.project / "old.sbatch").write_text(text)
    (site.project / "keep").write_text("a")
    done = site.hpcrun("init", "old.sbatch", "--check", "--json", "--", "x")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    check_json("init", answer)
    assert answer["job"]["check"] == {"ranks": 8, "differences": []}
    assert (site.project / "keep").read_text() == "a"
    assert not (site.project / "jobs").exists()
