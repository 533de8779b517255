"""Bring a rig into every situation that hpcrun handles, and store Slurm's output in each."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcrun.slurm.cluster import (
    SHOW_CONFIG,
    SHOW_PARTITIONS,
    SHOW_QOS,
    SINFO,
    associations_argv,
    show_nodes_argv,
)
from hpcrun.slurm.commands import SBATCH, scancel_argv
from hpcrun.slurm.jobs import sacct_argv, show_job_argv, squeue_argv
from tests.versions.book import Book

# For slurm.conf: limits and accounts are enforced as on a real site; memory is watched, since a
# rig has no cgroups that would kill a job for it; jobs do not leave squeue while we look.
SETTINGS = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "JobAcctGatherFrequency": "task=1",
    "JobAcctGatherParams": "OverMemoryKill",
}
MIN_JOB_AGE = 600
NEVER_GIVEN = "999999"
_LONG = "sleep 600"
_RUN = "20261120-081455-a b-7k3q"


def capture(book: Book) -> None:
    """Capture all cases; takes three minutes, most of it for a time limit of one minute."""
    book.clear()
    jobs: dict[str, str] = {}
    book.take("none", squeue_argv())
    # Ends only when its minute is over: everything else is captured meanwhile.
    jobs["timeout"] = submit(book, "timeout", "#SBATCH --time=1", _LONG)
    _queue(book, jobs)
    _arrays(book, jobs)
    _refusals(book)
    _facts(book)
    _ends(book, jobs)
    _over(book, jobs)
    _silence(book, jobs)
    _lost_node(book)


def submit(
    book: Book, name: str, *lines: str, folder: str = "", case: str = "", argv: Sequence[str] = ()
) -> str:
    """Submit a script of these lines from its own folder, and return the id of the job."""
    place = book.rig.shared / "runs" / (folder or name)
    place.mkdir(parents=True, exist_ok=True)
    script = ["#!/bin/bash", f'#SBATCH --job-name="{name}"', "#SBATCH --output=out.log", *lines]
    (place / "job.sbatch").write_text("\n".join(script) + "\n")
    argv = argv or SBATCH
    if case:
        return book.take(case, argv, cwd=str(place)).strip()
    done = book.rig.ask(argv, cwd=str(place))
    return done.stdout.strip() or done.stderr


def _queue(book: Book, jobs: dict[str, str]) -> None:
    jobs["two words"] = submit(
        book,
        "two words",
        "#SBATCH --nodes=2",
        "#SBATCH --time=10",
        _LONG,
        folder=_RUN,
        case="taken",
    )
    jobs["held"] = submit(
        book,
        'pipe|and, \\"quotes\\"',
        "#SBATCH --hold",
        _LONG,
        folder="new\nline",
        case="taken-from-a-folder-with-a-newline",
    )
    jobs["ok"] = submit(book, "ok", "exit 0", case="taken-short")
    jobs["failed"] = submit(book, "failed", "exit 3")
    jobs["code 131"] = submit(book, "code 131", "exit 131")
    jobs["killed"] = submit(book, "killed", "kill -9 $$")
    jobs["waiting"] = submit(
        book, "waiting", f"#SBATCH --dependency=afterok:{jobs['two words']}", "exit 0"
    )
    # 24.11 refuses it, the others let it wait for ever.
    impossible = submit(book, "impossible", "#SBATCH --nodes=99", "exit 0", case="too-many-nodes")
    jobs["later"] = submit(book, "later", "#SBATCH --begin=now+1hour", "exit 0")
    # Killed for its memory; the state is FAILED: without cgroups none is OUT_OF_MEMORY.
    jobs["oom"] = submit(
        book,
        "oom",
        "#SBATCH --mem=100",
        "exec python3 -c 'import time; x = b\"x\" * 400_000_000; time.sleep(60)'",
    )
    # Preempted by what asks for the same four GPUs in the partition of higher priority.
    gpus = "#SBATCH --gres=gpu:4"
    jobs["preempted"] = submit(book, "preempted", gpus, "#SBATCH --no-requeue", _LONG)
    book.wait(jobs["preempted"], "RUNNING")
    place = book.rig.run("squeue", "-h", f"-j{jobs['preempted']}", "-o%N").stdout.strip()
    jobs["preempting"] = submit(
        book, "preempting", gpus, "#SBATCH --partition=high", f"#SBATCH --nodelist={place}", _LONG
    )
    jobs["requeued"] = submit(book, "requeued", "#SBATCH --requeue", _LONG)
    # Deaf to SIGTERM: it is COMPLETING for KillWait seconds.
    jobs["deaf"] = submit(book, "deaf", "trap '' TERM", "while :; do sleep 1; done")
    for name in ("two words", "preempting", "requeued", "deaf"):
        book.wait(jobs[name], "RUNNING")
    book.take("one", squeue_argv([jobs["two words"]]))
    pending = [jobs["held"], jobs["waiting"], jobs["later"], impossible]
    book.take("pending", squeue_argv([job for job in pending if job]))
    book.take("two-one-of-them-unknown", squeue_argv([jobs["two words"], NEVER_GIVEN]))
    book.take("unknown", squeue_argv([NEVER_GIVEN]))
    book.take("not-a-number", squeue_argv(["nonsense"]))
    book.take("running", show_job_argv(jobs["two words"]))
    book.take("held", show_job_argv(jobs["held"]))
    book.take("gpus", squeue_argv([jobs["preempting"]]))
    book.take("gpus", show_job_argv(jobs["preempting"]))
    book.take("waits-for-another", show_job_argv(jobs["waiting"]))
    book.take("partition", squeue_argv(partition="debug"))
    parts = submit(book, "parts", "#SBATCH --hold", "#SBATCH hetjob", "#SBATCH --hold", _LONG)
    book.take("parts", squeue_argv([parts]))
    book.take("parts", show_job_argv(parts))
    book.rig.run("scancel", parts)
    book.take("unknown", show_job_argv(NEVER_GIVEN))
    book.take("requeue", ["scontrol", "requeue", jobs["requeued"]], parse=False)
    book.wait(jobs["requeued"], "PENDING")
    book.take("requeued", squeue_argv([jobs["requeued"]]))
    book.take("requeued", show_job_argv(jobs["requeued"]))
    book.take("taken", scancel_argv(jobs["deaf"]))
    book.take("completing", squeue_argv([jobs["deaf"]]))
    book.take("completing", sacct_argv([jobs["deaf"]]))


def _arrays(book: Book, jobs: dict[str, str]) -> None:
    fresh = submit(book, "fresh array", "#SBATCH --array=1-6%2", "#SBATCH --hold", _LONG)
    book.take("array-fresh", _rows(squeue_argv([fresh]), each_task=False))
    book.take("array-fresh-each-task", _rows(squeue_argv([fresh]), each_task=True))
    book.take("array-taken", scancel_argv(fresh))
    book.take("array-all-cancelled", _rows(squeue_argv([fresh]), each_task=True))
    book.accounted([fresh], "CANCELLED")
    book.take("array-all-cancelled", sacct_argv([fresh]))
    # 1 ends well, 2 fails, 3 runs and is cancelled, 4 runs, 5 and 6 wait.
    lines = ("case $SLURM_ARRAY_TASK_ID in 1) exit 0 ;; 2) exit 7 ;; esac", _LONG)
    jobs["array"] = array = submit(
        book,
        "array",
        "#SBATCH --array=1-6%2",
        "#SBATCH --output=%A_%a.out",
        *lines,
        case="taken-array",
    )
    book.wait(array, "COMPLETED", "FAILED", "RUNNING", "PENDING")
    deadline = time.monotonic() + 30
    while book.states(array).count("RUNNING") < 2 and time.monotonic() < deadline:
        time.sleep(0.3)
    book.take("array", _rows(squeue_argv([array]), each_task=False))
    book.take("array-each-task", _rows(squeue_argv([array]), each_task=True))
    book.take("array-one-task", squeue_argv([f"{array}_4"]))
    book.take("array-one-waiting-task", squeue_argv([f"{array}_6"]))
    book.take("array-no-such-task", squeue_argv([f"{array}_77"]))
    book.take("array", show_job_argv(array))
    book.take("array-task", show_job_argv(f"{array}_4"))
    book.take("array-waiting-task", show_job_argv(f"{array}_6"))
    # The accounting hears of all this seconds later.
    book.accounted([array], "RUNNING", "PENDING")
    book.take("array", sacct_argv([array]))
    book.take("array-one-task", sacct_argv([f"{array}_2"]))
    book.take("array-one-waiting-task", sacct_argv([f"{array}_6"]))
    book.take("array-taken-task", scancel_argv(f"{array}_3"))
    book.take("array-ended-task", scancel_argv(f"{array}_1"))
    book.take("array-no-such-task", scancel_argv(f"{array}_77"))
    book.take("array-taken-waiting-task", scancel_argv(f"{array}_6"))
    book.wait(array, "CANCELLED", "COMPLETED", "FAILED", "RUNNING")
    book.take("array-after-scancel", _rows(squeue_argv([array]), each_task=True))
    book.accounted([array], "CANCELLED")
    book.take("array-after-scancel", sacct_argv([array]))


def _rows(argv: Sequence[str], *, each_task: bool) -> list[str]:
    """Query squeue for a row per task of an array, or for one row for all pending tasks."""
    others = [word for word in argv if word != "--array"]
    # The last word names the jobs.
    return [*others[:-1], "--array", others[-1]] if each_task else others


def _refusals(book: Book) -> None:
    cases = {
        "invalid-partition": "#SBATCH --partition=nowhere",
        "no-such-gres": "#SBATCH --gres=tpu:1",
        "too-many-gpus": "#SBATCH --gres=gpu:99",
        "unknown-option": "#SBATCH --no-such-option",
        "invalid-account": "#SBATCH --account=nobodys",
        "invalid-qos": "#SBATCH --qos=gold",
        "invalid-time": "#SBATCH --time=soon",
        "invalid-constraint": "#SBATCH --constraint=h100",
        "invalid-reservation": "#SBATCH --reservation=monday",
    }
    for case, line in cases.items():
        submit(book, case, line, "exit 0", case=f"refused-{case}")
    # 20.11 and 22.05 take it: an unknown job counts as one that has ended well.
    line = f"#SBATCH --dependency=afterok:{NEVER_GIVEN}"
    submit(book, "after unknown", line, "exit 0", case="dependency-on-unknown")
    submit(book, "dos", "exit 0\r", case="refused-dos-line-ends")
    place = str(book.rig.shared / "runs")
    book.take("refused-no-file", SBATCH, cwd=place)
    test_only = ["sbatch", "--test-only", "job.sbatch"]
    submit(book, "fits", "#SBATCH --nodes=2", "exit 0", case="test-only", argv=test_only)
    line = "#SBATCH --gres=gpu:99"
    submit(book, "does not fit", line, "exit 0", case="test-only-refused", argv=test_only)
    # Nodes in use: the start lies in the future, when the running jobs' limits end.
    line = "#SBATCH --exclusive"
    submit(book, "would wait", line, "exit 0", case="test-only-later", argv=test_only)


def _facts(book: Book) -> None:
    node = book.rig.node_names[0]
    show = ["scontrol", "--oneliner", "show"]
    book.take("node", [*show, "node", node], parse=False)
    book.take("no-such-node", [*show, "node", "nowhere"], parse=False)
    book.take("partition", [*show, "partition"], parse=False)
    book.take(
        "hostnames", ["scontrol", "show", "hostnames", "gpu[01-03,7],x[1-2]y[08-10]"], parse=False
    )
    book.take("partitions", ["sinfo", "--noheader", "--format=%R|%a|%l|%D|%G|%c|%m|%f|%T"])
    book.take("nodes", ["sinfo", "--noheader", "--Node", "--format=%N|%R|%G|%c|%m|%f|%T"])
    show_assoc = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", "user=root"]
    book.take("associations", [*show_assoc, "format=account,partition,qos"])
    book.take("version", ["sinfo", "--version"])
    # What `hpcrun init` asks.
    book.take("config", SHOW_CONFIG, parse=False)
    book.take("all-partitions", SHOW_PARTITIONS, parse=False)
    book.take("two-nodes", show_nodes_argv(book.rig.node_names), parse=False)
    book.take("kinds-of-nodes", SINFO)
    book.take("accounts", associations_argv("root", ""))
    book.take("qos", SHOW_QOS)


def _ends(book: Book, jobs: dict[str, str]) -> None:
    book.take("mine", squeue_argv())
    book.take("not-a-number", scancel_argv("nonsense"))
    book.take("unknown", scancel_argv(NEVER_GIVEN))
    book.wait(jobs["ok"], "COMPLETED")
    book.take("ended", scancel_argv(jobs["ok"]))
    book.take("ended", squeue_argv([jobs["ok"]]))
    book.wait(jobs["deaf"], "CANCELLED")
    # Started anew after cred_expire.
    book.wait(jobs["requeued"], "RUNNING")
    book.take("requeued-running", squeue_argv([jobs["requeued"]]))
    # Slurm itself waits for a minute before it says so.
    lost = {"SLURM_CONF": "/nonexistent/slurm.conf"}
    book.take("no-slurm-conf", squeue_argv([jobs["two words"]]), env=lost)


def _over(book: Book, jobs: dict[str, str]) -> None:
    book.wait(jobs["timeout"], "TIMEOUT", seconds=150)
    ids = sorted(jobs.values(), key=int)
    book.accounted(ids, "TIMEOUT", "PREEMPTED")
    book.take("all", squeue_argv(ids))
    book.take("jobs", sacct_argv(ids))
    book.take("timeout", sacct_argv([jobs["timeout"]]))
    book.take("requeued", sacct_argv([jobs["requeued"]]))
    book.take("requeued-duplicates", [*sacct_argv([jobs["requeued"]]), "--duplicates"])
    book.take("unknown", sacct_argv([NEVER_GIVEN]))
    book.take("not-a-number", sacct_argv(["nonsense"]))


def _silence(book: Book, jobs: dict[str, str]) -> None:
    rig, job_id = book.rig, jobs["two words"]
    place = str(rig.shared / "runs" / "ok")
    questions = [
        (SBATCH, place),
        (squeue_argv([job_id]), "/"),
        (show_job_argv(job_id), "/"),
        (scancel_argv(job_id), "/"),
    ]

    def ask_all(case: str, env: dict[str, str] | None = None) -> None:
        for argv, cwd in questions:
            book.take(case, argv, cwd=cwd, env=env)

    without = rig.conf.parent / "without"
    without.mkdir(exist_ok=True)
    for file in rig.conf.parent.glob("*.conf"):
        (without / file.name).write_bytes(file.read_bytes())
    text = rig.conf.read_text()
    (without / "slurm.conf").write_text(text.replace("/slurmdbd\n", "/none\n"))
    conf = {"SLURM_CONF": str(without / "slurm.conf")}
    book.take("no-accounting", sacct_argv([job_id]), env=conf)
    (without / "slurm.conf").write_text(text.replace("/munge/socket", "/munge/nothing"))
    ask_all("no-munge", conf)
    book.take("no-munge", sacct_argv([job_id]), env=conf)
    # A port where nobody listens: the database's daemon is down.
    (without / "slurm.conf").write_text(text + "AccountingStoragePort=1\n")
    book.take("no-database", sacct_argv([job_id]), env=conf)
    rig.stop_controller()
    ask_all("no-controller")
    rig.start_controller()


def _lost_node(book: Book) -> None:
    rig = book.rig
    node = rig.node_names[1]
    # Without --no-requeue Slurm would start it anew.
    lines = (f"#SBATCH --nodelist={node}", "#SBATCH --no-requeue")
    lost = submit(book, "lost node", *lines, _LONG)
    book.wait(lost, "RUNNING")
    rig.kill_node(node)
    book.wait(lost, "NODE_FAIL", seconds=120)
    book.take("node-fail", squeue_argv([lost]))
    book.accounted([lost], "NODE_FAIL")
    book.take("node-fail", sacct_argv([lost]))
