"""Test in a temporary sandbox whether a job recovers from faults and continues the same curve."""

from __future__ import annotations

import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Literal, NamedTuple, get_args

from msgspec import Struct, structs

from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.logs import masker_of
from hpcrun.actions.parse import parse_runs
from hpcrun.actions.prepare import prepare_spec
from hpcrun.actions.sandbox_shape import build_cluster_shape
from hpcrun.actions.submit import submit_job
from hpcrun.context import Context, adopt_python, load_context
from hpcrun.curves import EVAL_LOSS, GRAD_NORM, LOSS, LR, Curve
from hpcrun.errors import NeedsLinux
from hpcrun.jobside import newest_checkpoint
from hpcrun.monitor import status_of
from hpcrun.plan import Plan
from hpcrun.runs import JobStatus, RunFolder, read_history
from hpcrun.sandbox import (
    MAX_NODES,
    SandboxFiles,
    SandboxPartition,
    SandboxShape,
    find_members,
    lifecycle,
    plain_shape,
    send_signal,
)
from hpcrun.signals import interrupt_on_signals
from hpcrun.spec import Cluster, EndCause, JobSpec, Notify, Origin

Fault = Literal["preempt", "limit", "node"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
# The name in survive.when for each fault.
CAUSES: dict[Fault, EndCause] = {"preempt": "preempted", "limit": "time_limit", "node": "node_fail"}
PREEMPTION_GRACE_S = 10  # seconds between a preemption and the kill
_LIMIT_WARNING_S = 20  # seconds between the warning before the time limit and the kill
_MAX_FAULT_DELAY_S = 4.0  # a fault follows the first checkpoint within this time
_UNDISTURBED_EXTRA_S = 40.0  # the undisturbed run continues this long, to stay ahead of all others
_RESTART_TIMEOUT_S = 150.0  # timeout for a run to restart
_STEPS_AFTER, _SECONDS_AFTER = 5, 20.0  # sufficient for the comparison
_RELATIVE_TOLERANCE = 1e-6
_COMPARED_METRICS = (LOSS, EVAL_LOSS, LR, GRAD_NORM)
# The partition whose jobs preempt those of all others.
_URGENT_PARTITION = "urgent"


class CurveDifference(Struct, frozen=True):
    """The first value that differs from the undisturbed run's; None means nan or infinite."""

    step: int
    metric: str
    value: float | None
    expected: float | None


class Trial(Struct, kw_only=True):
    """A run of the job, with a fault or (None) without, and its outcome.

    Attributes:
        lost_at: The last step before the fault.
        resumed_at: The first step after the fault.
        same: The curve matches the undisturbed run's; None if they cannot be compared.
        compared: The number of compared values.
        spread: The maximum relative difference of these values.
        why: The reason of a failure, or a remark.
        cause: The name of the fault in survive.when.
        asked_for: The job's own survive.when contains the cause.
        tried: The fault occurred while the run still had steps to do.
    """

    fault: Fault | None
    run_dir: str
    ok: bool = False
    seconds: float | None = None
    steps: int | None = None
    checkpoint: str | None = None
    lost_at: int | None = None
    resumed_at: int | None = None
    replayed: int | None = None
    same: bool | None = None
    compared: int = 0
    spread: float | None = None
    difference: CurveDifference | None = None
    why: str = ""
    fix: str = ""
    cause: EndCause | None = None
    asked_for: bool = True
    tried: bool = False


class RehearsalRequest(NamedTuple):
    """The job and faults to rehearse; ``within``: seconds until the first checkpoint."""

    spec: JobSpec
    extra_args: Sequence[str]
    origin: Origin
    faults: Sequence[Fault]
    within: float
    is_strict: bool


def rehearse_job(
    context: Context, asked: RehearsalRequest, *, keep: bool, say: Callable[[str], None]
) -> list[Trial]:
    """Run the job undisturbed and once with each fault; the undisturbed run is first in the result.

    If the undisturbed run fails, it is the only result. The sandbox is always removed.

    Args:
        keep: Keep the directories of the runs.
        say: Reports progress.

    Raises:
        InputError: The job cannot be rehearsed.
        SpecError: The job has problems.
        HpcrunError: The sandbox cannot be started.
    """
    if sys.platform != "linux":
        raise NeedsLinux("hpcrun rehearse")
    nodes, ranks = asked.spec.resources.most_nodes, asked.spec.resources.gpus_per_node or 1
    # Ranks share this machine's cores, which limits the number of simultaneous runs, but two always
    # run.
    room = max(2, len(os.sched_getaffinity(0)) // (nodes * ranks))
    at_once = max(1, min(len(asked.faults) + 1, room, MAX_NODES // nodes - 1))
    shape = _build_shape(context.cluster, context.cluster_source, nodes * at_once + 1, ranks)
    context.cache_dir.mkdir(parents=True, exist_ok=True)
    runs_dir = Path(tempfile.mkdtemp(prefix="rehearsal-", dir=context.cache_dir))
    place = Path(tempfile.mkdtemp(prefix="hpr", dir="/tmp")) / "s"
    try:
        with interrupt_on_signals():
            lifecycle.up(place, shape=shape)
            environ = {**context.environ, "HPCRUN_SANDBOX_DIR": str(place)}
            inside = load_context(environ, context.cwd, "sandbox")
            # the cluster's Python, if this machine is its login node
            profile = adopt_python(
                inside.cluster, context.cluster, context.environ, context.project
            )
            profile = structs.replace(profile, local_dir=str(place.parent))
            inside = structs.replace(
                inside, runs_dir=runs_dir, cluster=profile, project=context.project
            )
            stage = _Rehearsal(inside, asked, place)
            return stage.run_trials(at_once, say)
    finally:
        lifecycle.down(place)
        shutil.rmtree(place.parent, ignore_errors=True)
        if not keep:
            shutil.rmtree(runs_dir, ignore_errors=True)


def _build_shape(cluster: Cluster, source: str, nodes: int, gpus: int) -> SandboxShape:
    """Shape the sandbox like the cluster, with an additional partition that preempts all others."""
    plain = not cluster.partitions
    shape = plain_shape(nodes, gpus) if plain else build_cluster_shape(cluster, source, nodes)
    lower = ("PriorityTier=1", "PreemptMode=REQUEUE", f"GraceTime={PREEMPTION_GRACE_S}")
    alone = "OverSubscribe=EXCLUSIVE"  # a fault affects one run only
    queues = [
        structs.replace(queue, options=tuple(dict.fromkeys([*queue.options, alone, *lower])))
        for queue in shape.queues
    ]
    urgent = SandboxPartition(
        name=_URGENT_PARTITION, options=("PriorityTier=9", "PreemptMode=OFF"), is_default=False
    )
    settings = ("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE")
    return structs.replace(shape, queues=(*queues, urgent), settings=settings)


class _Rehearsal:
    """The sandbox, and the job that runs in it."""

    def __init__(self, context: Context, asked: RehearsalRequest, place: Path) -> None:
        self._context, self._asked, self._layout = context, asked, SandboxFiles(place)
        self._environ = lifecycle.clean_environment(os.environ, self._layout)
        spec = asked.spec
        when = list(dict.fromkeys([*spec.survive.when, *CAUSES.values()]))
        folder = spec.checkpoint.dir
        if folder is not None and Path(folder).is_absolute():
            folder = None  # each run uses its own directory
        self._spec = structs.replace(
            spec,
            survive=structs.replace(spec.survive, when=when),
            checkpoint=structs.replace(spec.checkpoint, dir=folder),
            notify=Notify(to=[]),  # the faults of a rehearsal are no news
        )
        self._curves: dict[str, Curve] = {}
        self._is_last = False  # only the undisturbed run is still running

    def run_trials(self, at_once: int, say: Callable[[str], None]) -> list[Trial]:
        """Run all trials, several at a time; compare those with a fault to the one without."""
        faults = (None, *self._asked.faults)
        waiting = list(enumerate(self._trial(fault, say) for fault in faults))
        active: dict[int, Iterator[Trial]] = {}
        known: dict[int, Trial] = {}
        while waiting or active:
            while waiting and len(active) < at_once:
                number, one = waiting.pop(0)
                active[number] = one
            for number, one in list(active.items()):
                try:
                    known[number] = next(one)
                except StopIteration:
                    del active[number]
            if 0 not in active and not known[0].ok:
                return [known[0]]
            self._is_last = list(active) == [0] and not waiting
            time.sleep(0.5)
        trials = [known[number] for number in range(len(faults))]
        first = trials[0]
        for trial in trials[1:]:
            if trial.ok:
                compare_curves(trial, self._curves[trial.run_dir], self._curves[first.run_dir])
        return trials

    # ---- one run -------------------------------------------------------------------------------

    def _trial(self, fault: Fault | None, say: Callable[[str], None]) -> Iterator[Trial]:
        """Run the job once; yield the intermediate result instead of waiting."""
        checks = Checks(strict=self._asked.is_strict)
        made = prepare_spec(
            self._context,
            self._spec,
            extra_args=self._asked.extra_args,
            origin=self._asked.origin,
            checks=checks,
        )
        job = submit_job(self._context, made).job_id
        cause = CAUSES[fault] if fault else None
        run, trial = RunFolder(made.path), Trial(fault=fault, run_dir=str(made.path), cause=cause)
        trial.asked_for = cause is None or cause in self._asked.spec.survive.when
        asked_at = time.monotonic()
        while not (run.attempts / "0" / "launched").exists() and not self._status(run).final:
            if not run.attempts.exists() and time.monotonic() - asked_at > _RESTART_TIMEOUT_S:
                reason = self._status(run).reason or "Slurm gives no reason"
                trial.why = f"it did not start: {reason}"
                self._cancel(job)
                yield trial
                return
            yield trial
        begun = time.monotonic()
        while not (found := self._newest(made.plan)):
            status = self._status(run)
            if status.final or time.monotonic() - begun > self._asked.within:
                self._cancel(job)
                self._explain_no_checkpoint(trial, status)
                yield trial
                return
            yield trial
        saved_after = time.monotonic() - begun
        if fault is None:
            say(f"first checkpoint after {saved_after:.0f} s: {Path(found).name}")
            while (
                time.monotonic() - begun < saved_after + _UNDISTURBED_EXTRA_S and not self._is_last
            ):
                if (status := self._status(run)).final:
                    trial.ok = status.ok
                    trial.why = "" if status.ok else self._last_words(run, status)
                    break
                yield trial
            else:
                trial.ok = True
            trial.checkpoint = Path(found).name
        else:
            comes_at = time.monotonic() + random.uniform(0, _MAX_FAULT_DELAY_S)
            while time.monotonic() < comes_at:
                yield trial
            nodes = self._run_slurm_command("squeue", "-h", "-j", job, "-o", "%N")
            begin = read_history(run).attempts[-1].begin
            if nodes and fault == "node" and begin is not None:
                nodes = begin.nodes  # without idle spare nodes
            hit = time.monotonic()
            if nodes:
                say(f"{fault}: now, on {nodes}")
                trial.tried = True
                self._cause_fault(fault, job, nodes)
            yield from self._until_back(run, made.plan, trial, hit)
        trial.seconds = round(time.monotonic() - begun, 1)
        curve = self._curve(run)
        trial.steps = _find_last_step(curve)
        self._cancel(job)
        yield trial

    def _until_back(self, run: RunFolder, plan: Plan, trial: Trial, hit: float) -> Iterator[Trial]:
        """Wait until the run has restarted and made some steps, or has failed."""
        back = 0.0
        while True:
            yield trial
            status, curve = self._status(run), self._curve(run)
            again = [each for each in curve.restarts if each.attempt > 0]
            resumed = again[0].resumed_at if again else None
            if resumed is not None:
                back = back or time.monotonic()
                trial.lost_at, trial.resumed_at = again[0].lost_at, resumed
                trial.replayed = again[0].replayed
                trial.checkpoint = self._began_from(run)
                trial.ok = True
                steps = [step for step in curve.steps(LOSS) if step is not None]
                first = min(steps, default=0)
                if resumed <= first and (again[0].lost_at or 0) > first:
                    self._explain_from_start(trial)
                    return
                enough = (_find_last_step(curve) or 0) >= (trial.lost_at or 0) + _STEPS_AFTER
                if enough or time.monotonic() - back > _SECONDS_AFTER:
                    return
            began_from = self._began_from(run)
            if _find_last_step(curve) is None and began_from:
                newest = Path(self._newest(plan)).name
                if newest != began_from or (status.final and status.ok):
                    trial.ok, trial.checkpoint = True, began_from
                    trial.why = "its log shows no steps, so the curves were not compared"
                    return
            if status.final:
                if trial.ok and status.ok:
                    return
                trial.ok = False
                if status.ok:  # the run may have had nothing left to do
                    trial.tried = False
                    trial.why = "it ended before the interruption"
                    trial.fix = "give it more steps, and save sooner: arguments after -- go to it"
                else:
                    trial.why = self._last_words(run, status)
                return
            if time.monotonic() - hit > _RESTART_TIMEOUT_S:
                trial.ok = False
                trial.why = f"it did not restart within {_RESTART_TIMEOUT_S:.0f} s ({status.state})"
                return

    # ---- causes of a failed restart ------------------------------------------------------------

    def _explain_no_checkpoint(self, trial: Trial, status: JobStatus) -> None:
        if status.final and not status.ok:
            trial.why = self._last_words(RunFolder(Path(trial.run_dir)), status)
            return
        when = "before it was over" if status.final else f"within {self._asked.within:.0f} s"
        trial.why = f"it saved no complete checkpoint {when}: there is nothing to resume from"
        trial.fix = (
            "save into $HPCRUN_CHECKPOINT_DIR (or name your script's folder: checkpoint.dir), and "
            "here often enough: arguments after -- go to the script, --within waits longer"
        )

    def _explain_from_start(self, trial: Trial) -> None:
        trial.ok = False
        resume = self._spec.checkpoint.resume
        if trial.checkpoint is None:
            trial.why = "no complete checkpoint existed any more, so it started at its first step"
            trial.fix = "keep the last checkpoint until the next one is complete"
            return
        trial.why = f"it started at its first step again, although {trial.checkpoint} exists"
        trial.fix = (
            f"your script was called with {resume.replace('{resume}', trial.checkpoint)}: "
            "let it load model, optimizer, schedule and step from there"
            if resume
            else "pass it the checkpoint to resume from, as by checkpoint: "
            '{resume: "--resume {resume}"}, or let it read HPCRUN_RESUME'
        )

    def _last_words(self, run: RunFolder, status: JobStatus) -> str:
        """Describe how a run ended, with the last line of its first rank."""
        attempt = max(0, status.attempts - 1)
        end = status.end
        text = f"attempt {attempt} ended: {status.state}"
        text += f", exit code {end.exit_code}" if end is not None else ""
        text += f"; {end.note}" if end is not None and end.note else ""
        said = b""
        for name in ("rank-0.log", "node-0.log"):
            with suppress(OSError):
                lines = (run.logs / str(attempt) / name).read_bytes()[-65536:].split(b"\n")
                said = said or next((line for line in reversed(lines) if line.strip()), b"")
        if said:
            said = masker_of(self._context, [run]).mask(said)
            text += f"; its last line: {said.decode(errors='replace').strip()[:200]}"
        return text

    # ---- the faults ----------------------------------------------------------------------------

    def _cause_fault(self, fault: Fault, job: str, nodes: str) -> None:
        names = self._run_slurm_command("scontrol", "show", "hostnames", nodes).split()
        if fault == "preempt":
            self._run_slurm_command(
                "sbatch",
                f"-p{_URGENT_PARTITION}",
                f"-w{nodes}",
                f"-N{len(names)}",
                "--exclusive",
                "-t1",
                "-D/",
                "-o/dev/null",
                "--wrap=sleep 1",
            )
        elif fault == "limit":
            # The time limit is enforced as Slurm does it, because Slurm itself checks only twice a
            # minute.
            self._run_slurm_command(
                "scontrol", "update", f"JobId={job}", f"EndTime=now+{_LIMIT_WARNING_S}"
            )
            self._run_slurm_command("scancel", "--batch", "--signal=URG", job)
        else:
            name = random.choice(names)
            self._kill_node(name)
            self._run_slurm_command(
                "scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=rehearsal"
            )

    def _kill_node(self, name: str) -> None:
        """Kill all processes of a node at once, like a power failure."""
        mark = f"SLURMD_NODENAME={name}".encode()
        daemon = lifecycle.read_pid(self._layout, name)
        for number in (SIGSTOP, SIGKILL):
            everyone = find_members(self._layout.root)
            own = [one for one in everyone if mark in _read_environ(one.pid)]
            steps = {one.parent for one in own}
            own += [one for one in everyone if one.pid in steps and one.name == "slurmstepd"]
            for one in [one for one in everyone if one.pid == daemon] + own:
                send_signal(one, number)

    # ---- queries -------------------------------------------------------------------------------

    def _run_slurm_command(self, *argv: str) -> str:
        return lifecycle.run_slurm_command(argv, self._environ).strip()

    def _cancel(self, job: str) -> None:
        self._run_slurm_command("scancel", "--quiet", job)

    def _status(self, run: RunFolder) -> JobStatus:
        return status_of(self._context, [run])[0]

    def _curve(self, run: RunFolder) -> Curve:
        curve = parse_runs(self._context, [run.run_id], full=True)[0].curve
        self._curves[str(run.path)] = curve
        return curve

    def _newest(self, plan: Plan) -> str:
        """Return the newest complete checkpoint, selected like the job does."""
        return newest_checkpoint(plan.checkpoint_dir, plan.world_size, plan.survive.marker or "")

    def _began_from(self, run: RunFolder) -> str | None:
        with suppress(OSError):
            return Path((run.attempts / "1" / "resume").read_text().strip()).name or None
        return None


def _read_environ(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _find_last_step(curve: Curve) -> int | None:
    steps = [step for step in curve.steps(LOSS) if step is not None]
    return steps[-1] if steps else None


def compare_curves(trial: Trial, curve: Curve, undisturbed: Curve) -> None:
    """Compare the loss, lr and grad_norm of each step of a restarted run to the undisturbed run.

    Steps before the fault show whether the script is deterministic at all.
    """
    worst, compared = 0.0, 0
    first: CurveDifference | None = None
    for name in _COMPARED_METRICS:
        known = dict(zip(undisturbed.steps(name), undisturbed.values(name), strict=True))
        for step, value in zip(curve.steps(name), curve.values(name), strict=True):
            if step is None or (expected := known.get(step)) is None:
                continue
            compared += step >= (trial.resumed_at or 0)
            if value == expected or (math.isnan(value) and math.isnan(expected)):
                continue
            gap = abs(value - expected) / max(abs(value), abs(expected))
            worst = max(worst, math.inf if math.isnan(gap) else gap)
            if not gap <= _RELATIVE_TOLERANCE and (first is None or step < first.step):
                first = CurveDifference(
                    step, name, *(v if math.isfinite(v) else None for v in (value, expected))
                )
    trial.compared = compared
    if not compared:
        trial.why = "no step after it is in both logs, so the curves were not compared"
        return
    trial.spread = worst if math.isfinite(worst) else None
    trial.same = first is None
    trial.difference = first
    if first is None:
        return
    if first.step < (trial.resumed_at or 0):
        trial.same = None
        trial.why = "the curves differ before the fault already: the script is not the same twice"
        trial.fix = "set its seeds, to see whether it resumes with the same curve"
    else:
        trial.ok = False
        trial.why = "it resumed with a different curve"
        trial.fix = "save and load what is missing: optimizer, schedule, random states, data order"
