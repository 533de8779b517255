"""The next attempt of a run: which start gets which number, and how the next one is started.

Slurm restarts the job, or another job, which was submitted for that, continues the run. It starts
when this one is over, and exits at once if it is then superfluous.
"""

import os
import random
import re
import subprocess
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set

from hpcrun.jobside import ends
from hpcrun.jobside.records import read_json, read_line, write_json, write_record
from hpcrun.jobside.slurm import (
    MANY_TRIES,
    Answer,
    Job,
    Say,
    Waiting,
    find_counterpart,
    parse_record,
    parse_submitted,
    parse_time,
    parse_waiting,
    replace_array_failure,
    replace_dependency,
    run_slurm,
)

# The exit code of a superfluous job, or of a duplicate of one that has the run: jobs that wait for
# its success do not start.
SUPERFLUOUS = 93
# Slurm's "or" and "and" between dependencies on the two jobs of a run.
_JOINTS = {"afterok": "?", "afternotok": ",", "afterany": ","}
# Variables that another job's submission keeps: the user's own defaults of sbatch.
_KEPT = (
    *("SLURM_CONF", "HPCRUN_RUN_DIR", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS"),
    *("SBATCH_CONSTRAINT", "SBATCH_RESERVATION"),
)


# ---- The claim of an attempt ---------------------------------------------------------------------


class Claim(NamedTuple):
    """The number of the attempt that starts now; or None, with the exit code of the job."""

    attempt: Optional[int]
    code: int = 0


def next_attempt(
    environ: Mapping[str, str], job: str, before: str, known: Optional[int], complain: Say
) -> Claim:
    """Return which attempt starts now, in a job that is not the first start of its run.

    Args:
        job: The job that starts.
        before: The job that had the run before, if another one did.
        known: The number of an existing attempt.
    """
    last = last_attempt(environ["HPCRUN_RUN_DIR"], known)
    restarts = int(environ.get("SLURM_RESTART_COUNT") or 0)
    begin = _read(environ, last, "begin.json")
    owner = str(begin.get("job_id") or "")
    if owner == job and before != job and _number(begin.get("restarts"), -1) >= restarts:
        return Claim(last)
    if _exists(environ, last, "pruned.json"):
        from hpcrun.jobside.search import stays_pruned  # other jobs' archives lack it

        if stays_pruned(environ, last, complain):
            return Claim(None)
    if environ.get("HPCRUN_SURVIVE") and (
        _has_ended(environ, last) or _ends_now(environ, last, job)
    ):
        complain("hpcrun: attempt {} was the last one of this run: see its end.json".format(last))
        # Slurm 24.05 to 25.11 may restart a completed job that was preempted before.
        return Claim(None, _number(_read(environ, last, "end.json").get("exit_code"), 0))
    if not owner or owner == job:
        return Claim(last + 1)
    if owner == before and _is_wanted(environ, last, before, job):
        return Claim(last + 1)
    complain(
        "hpcrun: job {} is not needed: attempt {} of this run is job {}'s".format(job, last, owner)
    )
    return Claim(None, SUPERFLUOUS)


def last_attempt(run: str, known: Optional[int] = None) -> int:
    """Return the number of the last existing attempt, -1 for none."""
    try:
        names = os.listdir(os.path.join(run, "attempts"))
    except OSError:
        names = []
    numbers = [int(name) for name in names if re.match("[0-9]{1,9}$", name)]
    return max([-1 if known is None else known, *numbers])


def _read(environ: Mapping[str, str], attempt: int, name: str) -> Dict[str, Any]:
    return read_json(os.path.join(environ["HPCRUN_RUN_DIR"], "attempts", str(attempt), name))


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _exists(environ: Mapping[str, str], attempt: int, name: str) -> bool:
    return os.path.exists(os.path.join(environ["HPCRUN_RUN_DIR"], "attempts", str(attempt), name))


def _has_ended(environ: Mapping[str, str], attempt: int) -> bool:
    """Return True if the run did not continue after an attempt.

    ``hpcrun requeue`` creates the file ``again``.
    """
    end = _read(environ, attempt, "end.json")
    return (
        attempt >= 0
        and "next" in end
        and not end["next"]
        and not _exists(environ, attempt, "again")
    )


def _is_wanted(environ: Mapping[str, str], attempt: int, before: str, job: str) -> bool:
    """Return True if a job should continue the run after an attempt of the job before."""
    run = environ["HPCRUN_RUN_DIR"]
    if os.path.exists(os.path.join(run, "cancelled.json")):
        return False
    chosen = str(_read(environ, attempt, "end.json").get("next") or "")
    if chosen.isdecimal():
        return chosen == job
    argv = ["scontrol", "--oneliner", "show", "job", before]
    state = parse_record(run_slurm(argv, 20).text or "").get("JobState", "")
    if not state:
        argv = ["sacct", "--noheader", "--allocations", "--parsable2", "--format=State"]
        state = (run_slurm([*argv, "--jobs=" + before], 60).text or "").strip()
    return continuation(environ, attempt, state or "NODE_FAIL") == "yes"


def continuation(environ: Mapping[str, str], attempt: int, state: str) -> str:
    """Return "yes", or why not, for an attempt whose script is gone.

    Args:
        state: Slurm's state of its job, or the reason of its end.
    """
    why = ends.classify_end(state, exit_code=1) if state[:1].isupper() else state
    environ = {**environ, "HPCRUN_ATTEMPT": str(attempt)}
    return ends.decide(environ, why, ends.newest_of(environ), 0.0).note


def _ends_now(environ: Mapping[str, str], attempt: int, job: str) -> bool:
    """Return True if the run must end after an attempt whose node died before it wrote its end.

    Slurm restarts such a job by itself, without a limit. An end record is written for the attempt.
    """
    begin = _read(environ, attempt, "begin.json")
    if str(begin.get("job_id")) != job or _exists(environ, attempt, "again"):
        return False
    if "next" in _read(environ, attempt, "end.json"):
        return False
    note = continuation(environ, attempt, environ["HPCRUN_SURVIVE"].split()[0])
    if note == "yes":
        return False
    folder = os.path.join(environ["HPCRUN_RUN_DIR"], "attempts", str(attempt))
    beat = read_line(os.path.join(folder, "beat"))
    record = {
        "attempt": attempt,
        "job_id": job,
        "begun_at": begin.get("begun_at"),
        "exit_code": 1,
        "signal": None,
        "stopped_by": None,
        "first_failure": None,
        "ended_at": int(beat) if beat.isdecimal() else round(time.time(), 3),
        "why": "node_fail",
        "next": None,
        "note": note or None,
    }
    write_json(os.path.join(folder, "end.json"), "end", record)
    return True


def distrust_rebooted_node(job: Job, before: int) -> bool:
    """Record that the node that ran the script of the attempt before has rebooted since.

    Slurm restarts the job by itself, without distrusting that node. Returns True if the run is on
    that node again.
    """
    folder = os.path.join(job.run, "attempts", str(before))
    if "node_fail" not in job.survives or os.path.exists(os.path.join(folder, "end.json")):
        return False
    begin = read_json(os.path.join(folder, "begin.json"))
    node, began = str(begin.get("host") or ""), begin.get("begun_at")
    if not node or not isinstance(began, (int, float)):
        return False
    shown = job.show_nodes(node)
    booted = parse_time(shown[0].get("BootTime", "")) if shown else None
    if booted is None or booted <= int(began) or node not in job.host_names(job.node_list):
        return False
    job.note_bad_node(node, "it has booted while attempt {} was running there".format(before))
    text = "hpcrun: {} has booted while attempt {} was running there, so the run goes on without it"
    job.say(text.format(node, before))
    return True


# ---- The next attempt ----------------------------------------------------------------------------


class Continuation:
    """Starts the next attempt of the run, in this job or in another one."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.random = random.Random()

    def go_on(self, pause: int) -> Optional[str]:
        """Start the next attempt after a delay in seconds.

        Returns "requeue", or the number of another job; None if Slurm does not start it again.
        """
        job = self.job
        shown = job.show()
        if job.state(shown) == "CANCELLED" or os.path.exists(
            os.path.join(job.run, "cancelled.json")
        ):
            job.say("hpcrun: the job was cancelled meanwhile")
            return None
        lost = job.lost_nodes()
        nodes = sorted({*lost, *job.bad_nodes()}) if job.allocated else lost
        excluded = shown.get("ExcNodeList", "(null)")
        names = ",".join(nodes)
        if names and excluded not in ("", "(null)"):
            names = excluded + "," + names
        # It restarts anyway, or already has: requeueing would end that attempt.
        if job.begins_again(shown):
            self.exclude(names)
            return "requeue"
        heir = job.successor()
        if not (heir and self._release(heir, pause, names)):
            # Slurm may forget a delay that is set on a job while it ends; another job keeps it. And
            # if this one has come back to a bad node it has already waited its two minutes.
            is_back = os.path.isdir(job.path("bad")) and not os.path.exists(job.path("launched"))
            if (pause <= 0 or is_back) and self.requeue(names):
                return "requeue"
            heir = self.chain(pause, names, MANY_TRIES)
        if not heir:
            return None
        self.move_dependencies(job.id, heir)
        return heir

    def _release(self, heir: str, pause: int, nodes: str) -> bool:
        """Start the job that waits to continue the run, after a delay and without some nodes."""
        argv = ["scontrol", "update", "JobId=" + heir, "StartTime=now+{}".format(pause)]
        if nodes:
            argv.append("ExcNodeList=" + nodes)
        return self._insist(MANY_TRIES, argv, 20).text is not None

    def _insist(self, tries: int, argv: List[str], seconds: float) -> Answer:
        return self.job.insist(tries, " ".join(argv), lambda: self.job.call(*argv, seconds=seconds))

    def requeue(self, nodes: str) -> bool:
        """Make Slurm restart this job, without some nodes."""
        job = self.job
        for number in range(MANY_TRIES):
            # It restarts anyway, or already has: requeueing would end that attempt. Checked each
            # time, since a node that was disconnected may learn of it late.
            if job.is_replaced() or job.begins_again(job.show()):
                break
            answer = job.call("scontrol", "requeue", job.id)
            if answer.text is not None or "pending execution" in answer.error:
                break  # or Slurm has done it itself
            if number == 0:
                job.say("hpcrun: scontrol requeue: {}".format(answer.error or "no answer"))
                # Submitted so that Slurm never restarts it by itself; its owner may while it runs.
                if "disabled" in answer.error and self.allow_requeue():
                    continue
            if not answer.is_silence:
                return False
            job.sleep(5.0 if number or answer.error else 0.0)
        else:
            return False
        self.exclude(nodes)
        return True

    def exclude(self, nodes: str) -> None:
        """Exclude nodes from the next start of the job, which is to be restarted.

        The TERM that Slurm sends to all processes of a requeued job also ends scontrol: the command
        is then repeated. A name that Slurm no longer knows makes it refuse all of them: then those
        of this job alone are excluded.
        """
        job = self.job
        if job.is_replaced() or not nodes:
            return
        for _ in range(5):
            answer = job.call("scontrol", "update", "JobId=" + job.id, "ExcNodeList=" + nodes)
            if answer.text is not None:
                return
            if answer.code in (-15, 143):
                continue
            job.say("hpcrun: scontrol update: {}".format(answer.error or "no answer"))
            known = ",".join(job.lost_nodes())
            if "nvalid node" not in answer.error or not known or known == nodes:
                return
            nodes = known

    def allow_requeue(self) -> bool:
        """Allow requeueing, at a site that submits all jobs without.

        The owner may change that while the job runs, but no longer while it is being ended.
        """
        job = self.job
        return job.call("scontrol", "update", "JobId=" + job.id, "Requeue=1").text is not None

    # ---- Another job

    def secure(self, before: str) -> bool:
        """Make the run continue if a dead node ends this script.

        If Slurm is to restart the job, that must be allowed from the start; if a site forbids it,
        another job waits. Returns False if Slurm does not answer, or rejects that job now: then
        this is repeated later.

        Args:
            before: The job that had the run before, or "".
        """
        job = self.job
        if not job.is_slurm or not {"preempted", "node_fail"}.intersection(job.survives):
            return True
        shown = job.show()
        if not shown:
            return False
        if before and before != job.id:  # its node died
            self.move_dependencies(before, job.id)
        if shown.get("Requeue") != "0" or self.allow_requeue():
            return True
        if job.attempt + 1 >= int(job.environ.get("HPCRUN_MAX_ATTEMPTS") or 1):
            return True
        write_record(job.path("chaining"), "")
        try:
            heir = self.chain(0, "", 1)
            if heir:
                begin = read_json(job.path("begin.json"))
                write_json(job.path("begin.json"), "begin", {**begin, "successor": heir})
        finally:
            os.unlink(job.path("chaining"))
        if not heir:
            return False
        self.stand_by(job.id, heir)
        return True

    def chain(self, pause: int, nodes: str, tries: int) -> str:
        """Submit another job for the next attempt of this run, and return its number, or "".

        A second job, if only the answer was lost, detects that it is superfluous.
        """
        job = self.job
        environ = {
            name: value
            for name, value in job.environ.items()
            if name in _KEPT or not name.startswith(("SLURM_", "SBATCH_", "HPCRUN_"))
        }
        argv = ["sbatch", "--parsable", "--begin=now+{}".format(pause)]
        if nodes:
            argv.append("--exclude=" + nodes)
        argv += ["--dependency=afterany:" + job.id, "job.sbatch", "after", job.id]
        answer = job.insist(tries, "sbatch", lambda: run_slurm(argv, 60, environ, job.run))
        return parse_submitted(answer.text or "")

    # ---- The user's jobs that wait for this run

    def waiting(self) -> List[Waiting]:
        """Return the user's pending jobs with their dependencies."""
        user = str(os.getuid())
        argv = ("squeue", "--noheader", "--user=" + user, "--states=PENDING", "-o", "%i %E")
        return parse_waiting(self.job.call(*argv).text or "")

    def stand_by(self, old: str, new: str) -> None:
        """Make jobs that depend on job OLD alone depend on OLD or NEW.

        OLD may end on a dead node, where nobody is left to update them. The run has failed, or has
        ended, only if that is true of both jobs. (A list of several dependencies is joined
        differently.)
        """
        for waiting in self.waiting():
            kind, _, job_id = waiting.dependency.partition(":")
            if waiting.job != new and job_id == old and kind in _JOINTS:
                both = "{0}:{1}{3}{0}:{2}".format(kind, old, new, _JOINTS[kind])
                self._set_dependency(waiting.job, both)

    def move_dependencies(self, old: str, new: str) -> None:
        """Make jobs that depend on job OLD depend on NEW, which continues it.

        For a dependency on the whole array of a task OLD, each other task is listed, or is an
        alternative if the job waits for a failure. Of an array whose tasks each depend on the same
        task of OLD's array, only the task that depends on OLD is changed. Repeated until no
        dependency on OLD remains, because another task may have changed the same job at the same
        moment.
        """
        moved: Set[str] = set()
        for _ in range(5):
            changed = False
            for waiting in self.waiting():
                if waiting.job == new:
                    continue  # it starts when OLD has ended
                task = find_counterpart(waiting, old)
                if task and task not in moved:
                    array = "aftercorr:{}_*".format(old.partition("_")[0])
                    own = waiting.dependency.replace(array, "afterok:" + new)
                    self._set_dependency(task, own)
                    moved.add(task)
                    changed = True
                if task:
                    continue
                dependency = self._follow(waiting.dependency, old, new)
                if dependency != waiting.dependency:
                    changed = True
                    self._set_dependency(waiting.job, dependency)
            if not changed:
                return
            self.job.sleep(self.random.uniform(0.3, 0.8))

    def _follow(self, dependency: str, old: str, new: str) -> str:
        """Return a dependency that names NEW instead of OLD, or the tasks of OLD's array."""
        found = replace_dependency(dependency, old, new)
        array = old.partition("_")[0] + "_*"
        if found != dependency or "_" not in old:
            return found
        terms = [term for term in re.split("[,?]", dependency) if array in term.split(":")]
        if not terms:
            return dependency
        tasks = [new, *self._other_tasks(old)]
        if not any(term.startswith("afternotok:") for term in terms):
            return replace_dependency(dependency, array, ":".join(tasks))
        followed = replace_array_failure(dependency, array, tasks)
        if not followed:
            message = "hpcrun: a job that waits for {} may start although {} continues as job {}"
            self.job.say(message.format(dependency, old, new))
        return followed or dependency

    def _other_tasks(self, task: str) -> List[str]:
        """Return the other tasks of an array that have not completed."""
        array = task.partition("_")[0]
        argv = ("squeue", "--noheader", "--array", "--states=all", "--jobs=" + array, "-o", "%i %T")
        rows = [line.split() for line in (self.job.call(*argv).text or "").splitlines()]
        return [
            row[0] for row in rows if len(row) == 2 and row[0] != task and row[1] != "COMPLETED"
        ]

    def _set_dependency(self, job: str, dependency: str) -> None:
        argv = ("scontrol", "update", "JobId=" + job, "Dependency=" + dependency)
        answer = self.job.call(*argv)
        if answer.text is None:
            self.job.say("hpcrun: scontrol update: {}".format(answer.error or "no answer"))


# ---- Spare nodes ---------------------------------------------------------------------------------


def healthy_nodes(job: Job) -> List[str]:
    """Return the job's nodes that have not failed in any attempt, spare ones included."""
    failed = {*job.bad_nodes(), *job.lost_nodes(job.allocated)}
    return [name for name in job.host_names(job.allocated) if name not in failed]


def choose_nodes(job: Job, count: int) -> List[str]:
    """Return as many of the job's nodes as the ranks need, healthy ones first."""
    healthy = healthy_nodes(job)
    others = [name for name in job.host_names(job.allocated) if name not in healthy]
    return [*healthy, *others][:count]


def spare_is_left(job: Job, why: str) -> bool:
    """Return True if the ranks can be restarted in this job, on other nodes, after such an end.

    The single warning before the time limit must not have been sent.
    """
    if why != "node_fail" or not job.allocated or os.path.exists(job.path("stop")):
        return False
    for node in job.lost_nodes():
        job.note_bad_node(node, "Slurm calls it down")
    return len(healthy_nodes(job)) >= int(job.environ.get("SLURM_JOB_NUM_NODES") or 1)


def replace_host(job: Job, host: str) -> bool:
    """Make Slurm restart the job if HOST, which ran its script, is no longer one of its nodes.

    Slurm removes a dead node from a job with spare nodes (--no-kill), even that of the batch
    script: then nobody is left to restart the ranks.
    """
    nodes = job.host_names(job.show().get("NodeList", ""))
    if not nodes or host in nodes:
        return False
    job.say("hpcrun: {} has died, and with it the job's script: it is started again".format(host))
    if not Continuation(job).requeue(host):
        job.call("scancel", job.id)  # another one waits (secure)
    return True


class SpareGuard:
    """A watchdog on another of the job's nodes, and a second one in case that node dies.

    The file ``guarded`` appears when the watchdog runs, or never will.
    """

    def __init__(self, job: Job, start: Callable[[str], "subprocess.Popen[bytes]"]) -> None:
        self.job, self.start = job, start
        self.process: Optional["subprocess.Popen[bytes]"] = None

    def look(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        others = [name for name in healthy_nodes(self.job) if name != self.job.host]
        if others:
            self.process = self.start(others[-1])
        else:
            write_record(self.job.path("guarded"), "")
