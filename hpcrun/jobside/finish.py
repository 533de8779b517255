"""The end of an attempt: its cause, its record, and what happens to its run and its nodes."""

import os
import signal
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from hpcrun.jobside import ends
from hpcrun.jobside.records import read_json, write_json
from hpcrun.jobside.slurm import MANY_TRIES, Job, Say, is_preempted, names_memory

NO_RESTART = "Slurm would not start it again: see logs/batch.log"


class Outcome(NamedTuple):
    """The exit code of the batch script, and how the run continues: None, or ``next`` in End."""

    code: int
    next: Optional[str]


class Finish:
    """The decisions and actions at the end of an attempt.

    Args:
        begun: When it began, in seconds since the epoch.
        stopped: The name of the signal that requested the end, or "".
        is_overdue: The attempt was ended shortly before the time limit.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        say: Say,
        complain: Say,
        *,
        begun: float,
        stopped: str,
        is_overdue: bool,
    ) -> None:
        self.environ, self.say, self.complain = environ, say, complain
        self.job = Job(environ, say)
        self.begun, self.stopped, self.is_overdue = begun, stopped, is_overdue
        self.is_stopped = bool(stopped) or is_overdue

    def run(self, code: int) -> Outcome:
        """Write the end record, and start the next attempt if the run continues.

        Args:
            code: The exit code of the launcher.
        """
        job = self.job
        pruning = read_json(job.path("pruned.json"))
        # The ranks of a pruned run have not failed: they were ended.
        first = None if self.stopped or pruning else self._first_failure(code)
        code = self._exit_code(code, first)
        end: Dict[str, Any] = {
            "attempt": job.attempt,
            "job_id": job.id,
            "begun_at": self.begun,
            "stopped_by": self.stopped or None,
            "first_failure": first,
        }
        evidence = self._find_evidence(code, first, end)
        why = ends.classify_end(exit_code=code, **evidence)
        newest = ends.newest_of(self.environ)
        decision = ends.decide(self.environ, why, newest, time.time() - self.begun)
        # A program that was asked to end, saved and exited with 0 has not completed its work.
        killed_by = 15 if self.stopped else signal_number(code)
        if why == "pruned":
            code, killed_by = 0, None  # what waits for the job's success starts
        elif code == 0 and why != "done":
            code, killed_by = 143, 15
        end.update(exit_code=code, signal=killed_by, ended_at=round(time.time(), 3), why=why)
        end["checkpoint"] = newest or None
        note = decision.note
        following: Optional[str] = None
        if note == "yes" and self._has_spare_node(why):
            following = "relaunch"
            self._say_end(why, " on other nodes of the job")
            self._clean_nodes(is_stopped=False)
        elif note == "yes":
            write_json(job.path("end.json"), "end", {**end, "next": "requeue"})
            self._say_end(why, "")
            self._clean_nodes(is_stopped=self.is_stopped)  # ranks that still run need their folders
            following = self._go_on(decision.pause)
            note = NO_RESTART
        note = "" if following else note
        note = str(pruning.get("text") or "") if why == "pruned" else note
        write_json(job.path("end.json"), "end", {**end, "next": following, "note": note or None})
        heir = job.successor()
        if heir and following != heir:
            job.call("scancel", "--state=PENDING", heir)
        if not following:
            self._clean_nodes(is_stopped=self.is_stopped)
            self._remove_secrets()
        return Outcome(code, following)

    def _has_spare_node(self, why: str) -> bool:
        from hpcrun.jobside.successors import spare_is_left  # deferred: slow to load

        return not self.is_stopped and spare_is_left(self.job, why)

    def _go_on(self, pause: int) -> Optional[str]:
        from hpcrun.jobside.successors import Continuation  # deferred: slow to load

        return Continuation(self.job).go_on(pause)

    def _say_end(self, why: str, where: str) -> None:
        text = "hpcrun: attempt {} ended ({}), and the run goes on{}"
        self.say(text.format(self.job.attempt, why, where))

    # ---- What happened

    def _first_failure(self, code: int) -> Optional[Dict[str, Any]]:
        """Return the record of the process that failed first."""
        for number in range(4):
            try:
                names = sorted(os.listdir(self.job.path("failures")))
            except OSError:
                names = []
            for name in names:
                if name.endswith(".json"):
                    return read_json(os.path.join(self.job.path("failures"), name)) or None
            # A record of another node may appear with a delay on a network file system.
            if code == 0 or number == 3:
                return None
            self.job.sleep(0.5)
        return None

    def _exit_code(self, code: int, first: Optional[Mapping[str, Any]]) -> int:
        """Return the exit code of the process that failed first, whatever the launcher returned."""
        job = self.job
        if self.stopped:
            return code
        if first is not None:
            found = first.get("exit_code")
            return found if isinstance(found, int) and 0 < found < 256 else 1
        if code == 0 and not os.path.exists(job.path("launched")):
            self.complain("hpcrun: error: the job's setup ended before the training was started")
            return 1
        if code == 0 and job.allocated:
            lost = job.lost_nodes()
            if lost:  # with spare nodes (--no-kill) srun succeeds without the ranks of a dead node
                text = "hpcrun: error: a node died before its ranks had ended: {}"
                self.complain(text.format(",".join(lost)))
                return 1
        return code

    def _find_evidence(
        self, code: int, first: Optional[Mapping[str, Any]], end: Mapping[str, Any]
    ) -> Dict[str, Any]:
        """Return the evidence that ends.classify_end() needs."""
        job = self.job
        is_told = any(name.startswith("told-") for name in os.listdir(job.folder))
        is_warned = os.path.exists(job.path("stop"))
        found = {"state": "", "preempted": False, "told": "", "mark": "", "phase": "ranks"}
        # After a success no query to Slurm is needed.
        if code or self.is_stopped or is_told or is_warned:
            preliminary = {
                **end, "exit_code": code, "signal": None, "ended_at": round(time.time(), 3)
            }  # fmt: skip
            # It is written at once if slurmctld does not answer, since Slurm may kill this process
            # soon; for a run that may continue the query is then repeated for an hour.
            shown = job.show(
                MANY_TRIES if job.survives else 2,
                lambda: write_json(job.path("end.json"), "end", preliminary),
            )
            state = "NODE_FAIL" if job.is_replaced() else job.state(shown)
            found["state"], found["preempted"] = state, is_preempted(shown)
            if is_warned:
                found["told"] = "limit"
            elif first is None and (self.stopped or is_told):
                found["told"] = "asked"
            found["mark"] = self._own_finding(shown, state)
        if not self._has_ranks():
            found["phase"] = "setup"
        return found

    def _own_finding(self, shown: Mapping[str, str], state: str) -> str:
        job = self.job
        if os.path.exists(job.path("pruned.json")):
            return "pruned"
        if os.path.exists(job.path("stalled")):
            return "stalled"
        if job.lost_nodes():
            return "node"
        # Slurm reports a node as down minutes after it died, when the other ranks have already
        # failed.
        has_others = int(self.environ.get("SLURM_JOB_NUM_NODES") or 1) > 1
        if not state and not self.stopped and shown and has_others and "node_fail" in job.survives:
            job.note_silent_nodes()
            if job.lost_nodes():
                return "node"
        return "memory" if names_memory(job.output()) else ""

    def _has_ranks(self) -> bool:
        job = self.job
        if os.path.exists(job.path("began")):
            return True
        try:
            names = os.listdir(os.path.join(job.run, "logs", str(job.attempt)))
        except OSError:
            return False
        return any(name.startswith("rank-") and name.endswith(".log") for name in names)

    # ---- What is left

    def _clean_nodes(self, *, is_stopped: bool) -> None:
        """Remove the run's folders on nodes whose processes were killed before they could.

        That takes a step on such nodes only, since another one may be unreachable and Slurm needs
        half a minute to detect that. (In a stopped job no step can start any more: Slurm has asked
        the processes to end, and they have cleaned up.)
        """
        job = self.job
        nodes = self._nodes_to_clean()
        harness = ["bash", "--", os.path.join(job.run, "harness.sh")]
        if nodes and not job.is_slurm:
            self._run([*harness, "clean", job.host])
        elif nodes and not is_stopped:
            hosts = job.host_names(job.node_list)
            names = [hosts[node] for node in nodes if node < len(hosts)]
            if job.allocated:  # those that failed are not reached
                names = [name for name in names if name not in job.bad_nodes(job.attempt)]
            if names:
                count = str(len(names))
                self._run([*harness, "beside", "30", ",".join(names), count, "clean", *hosts])

    def _nodes_to_clean(self) -> List[int]:
        """Return the ranks of the nodes that still have a folder."""
        try:
            names = os.listdir(self.job.path("local"))
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def _run(self, argv: List[str]) -> None:
        import subprocess  # deferred: slow to load

        try:
            subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            self.complain("hpcrun: error: the nodes could not be cleaned: {}".format(error))

    def _remove_secrets(self) -> None:
        """Remove the secrets after the last attempt.

        A stopped job may be requeued, and then needs them; hpcrun removes them at the end.
        """
        if self.stopped and not self._forbids_requeue():
            return
        try:
            os.unlink(os.path.join(self.job.run, "secrets.env"))
        except OSError:
            pass

    def _forbids_requeue(self) -> bool:
        try:
            with open(os.path.join(self.job.run, "job.sbatch"), "rb") as file:
                return any(line.startswith(b"#SBATCH --no-requeue") for line in file)
        except OSError:
            return False


def signal_number(code: int) -> Optional[int]:
    """Return the signal that an exit code represents, if any. A program may exit with 255.

    >>> signal_number(137), signal_number(255), signal_number(1)
    (9, None, None)
    """
    if not 128 < code <= 192:
        return None
    try:
        signal.Signals(code - 128)
    except ValueError:
        # Real-time signals are known to the shell, but not named in Python.
        return code - 128 if signal.SIGRTMIN <= code - 128 <= signal.SIGRTMAX else None
    return code - 128
