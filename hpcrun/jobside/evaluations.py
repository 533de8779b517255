"""Submit a job for each checkpoint of a training: by the training's job, or by whoever watches it.

The submission of a pipeline leaves a folder for each such stage, with the files of a run in which a
checkpoint and a run id stand for those to come. A file per checkpoint, which only one process can
create, is the claim, so each checkpoint is submitted once, whoever does it.
"""

import contextlib
import json
import os
import random
import re
import shutil
import string
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set
from urllib.parse import quote

from hpcrun.jobside.checkpoints import Judge, Peers, absolute
from hpcrun.jobside.records import read_json, write_record
from hpcrun.jobside.slurm import Say, command_environment, parse_submitted, run_slurm

# The records of these stages, in the runs of the training and of its evaluations.
EVALUATIONS = "evaluations.json"
# In the training's run: why its job could not submit an evaluation.
REFUSED = "evaluations-refused.json"
# In the training's run: how many checkpoints no job evaluates yet, by stage.
REMAINING = "evaluations-remaining.json"
# In the training's run: hpcrun has cancelled its evaluations, so none is submitted any more.
CANCELLED = "evaluations-cancelled.json"
# A job that Slurm may have accepted, although its answer was lost, appears within this time.
LOST_REPLY_S = 600.0
# A lock that is older belongs to a process that was killed.
STALE_LOCK_S = 600.0
# How long a job whose submission Slurm has refused waits before it tries again.
REFUSED_AGAIN_S = 600.0
# How long a job that has ended repeats its last check if Slurm is silent or another process
# submits: at the time limit Slurm kills it after KillWait, 30 s by default.
END_PATIENCE_S = 15.0
END_RETRY_S = 3.0
# Paths of checkpoints that have one form in all files of a run: bash (quoted), JSON and YAML.
_PLAIN_PATH = re.compile(r"/[\w ./=+@~^-]*[\w./=+@~^-]$")
# Variables of a job that its submissions keep: the user's own defaults of sbatch.
_KEPT = (
    *("SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS"),
    *("SBATCH_CONSTRAINT", "SBATCH_RESERVATION"),
)
# Variables of a job that its submissions must not inherit.
_DROPPED_PREFIXES = (
    *("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "HPCRUN_"),
    *("TORCHELASTIC_", "PMI_", "PMIX_", "OMPI_"),
)
_DROPPED = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


class Training(NamedTuple):
    """The run whose checkpoints are evaluated."""

    run_dir: str
    checkpoint_dir: str
    world_size: int
    marker: str


class Outcome(NamedTuple):
    """The outcome for a checkpoint or a stage: a submitted job, or why there is none.

    ``kind`` is "submitted", "refused" (by Slurm), "silent" (no answer of Slurm), "busy" (another
    process submits), "waiting" (the checkpoint is submitted by a later check), "error".
    """

    kind: str
    stage: str
    text: str = ""
    checkpoint: str = ""


class EvaluationWatch:
    """Submits evaluations from a job of a training, or of one of its evaluations."""

    def __init__(self, environ: Mapping[str, str], complain: Say) -> None:
        self.environ, self.complain = environ, complain
        self.run = environ["HPCRUN_RUN_DIR"]
        self.record = read_json(os.path.join(self.run, EVALUATIONS))
        self.due = 0.0

    def check(self, *, has_ended: bool = False) -> None:
        """Submit what is due.

        Args:
            has_ended: This run has ended, except for this process.
        """
        training = self._find_training()
        if training is None or (time.monotonic() < self.due and not has_ended):
            return
        until = time.monotonic() + END_PATIENCE_S
        while True:
            outcomes = submit_due(
                self.environ, self.record, training, own=self.run if has_ended else ""
            )
            unsettled = [one for one in outcomes if one.kind in ("silent", "busy")]
            if not (has_ended and unsettled) or time.monotonic() >= until:
                break
            time.sleep(END_RETRY_S)
        refused = [one for one in outcomes if one.kind == "refused"]
        if refused:
            self.due = time.monotonic() + REFUSED_AGAIN_S
        if has_ended:  # nobody may repeat this check
            refused += [one for one in outcomes if one.kind == "silent"]
        self._record_refusal(training, [*refused, *(o for o in outcomes if o.kind == "error")])

    def _record_refusal(self, training: Training, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            return
        path, first = os.path.join(training.run_dir, REFUSED), outcomes[0]
        if read_json(path).get("message") != first.text:
            self.complain("hpcrun: no evaluation was submitted: " + first.text)
        values = {
            "stage": first.stage,
            "kind": first.kind,
            "message": first.text,
            "at": round(time.time(), 3),
        }
        write_record(path, json.dumps(values))

    def _find_training(self) -> Optional[Training]:
        if self.record.get("stage"):  # an evaluation
            return read_training(str(self.record.get("folder", "")))
        return Training(
            self.run,
            self.environ.get("HPCRUN_CHECKPOINT_DIR", ""),
            int(self.environ.get("HPCRUN_WORLD_SIZE") or 1),
            self.environ.get("HPCRUN_CHECKPOINT_MARKER", ""),
        )


def read_training(folder: str) -> Optional[Training]:
    """Return the newest training; None if it is unknown."""
    found = read_json(os.path.join(folder, "training.json"))
    try:
        return Training(**found)
    except TypeError:
        return None


def submit_due(
    environ: Mapping[str, str],
    record: Mapping[str, Any],
    training: Training,
    *,
    own: str = "",
    patience: float = 0.0,
) -> List[Outcome]:
    """Submit evaluations of complete checkpoints that have none, as many as may run in parallel.

    Args:
        record: The record of the stages.
        own: The run of this process, which has ended.
        patience: How many seconds to wait for another process that submits evaluations.
    """
    folder, done = str(record.get("folder", "")), []  # type: str, List[Outcome]
    if not os.path.isdir(folder) or not os.path.isdir(training.run_dir):
        return []
    if read_training(folder) != training:
        path = os.path.join(folder, "training.json")
        write_record(path, json.dumps(dict(training._asdict())))
    path = os.path.join(training.run_dir, REMAINING)
    remaining = read_json(path)
    for name, stage in record.get("stages", {}).items():
        with _lock(os.path.join(folder, name), patience) as is_ours:
            if is_ours:
                submitter = _StageSubmitter(environ, folder, name, stage, training)
                done += submitter.submit(own)
                if remaining.get(name, 0) != submitter.remaining:
                    remaining[name] = submitter.remaining
                    write_record(path, json.dumps(remaining))
            else:
                done.append(Outcome("busy", name))
    kinds = {one.kind for one in done}
    if ("submitted" in kinds or not kinds) and not kinds & {"refused", "error", "silent"}:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(training.run_dir, REFUSED))
    return done


class _StageSubmitter:
    """Submits the evaluations of one stage, while it has the lock."""

    def __init__(
        self,
        environ: Mapping[str, str],
        folder: str,
        name: str,
        stage: Mapping[str, Any],
        training: Training,
    ) -> None:
        self.environ, self.name, self.stage, self.training = environ, name, stage, training
        self.folder = os.path.join(folder, name)
        self.template = os.path.join(self.folder, stage["run_id"])
        self.runs_dir = os.path.dirname(os.path.dirname(folder))
        self.claims = os.path.join(self.folder, "claims")
        self.remaining = 0  # checkpoints that no job evaluates yet

    def submit(self, own: str) -> List[Outcome]:
        if self._is_cancelled():
            self._remove_secrets()
            return []
        checkpoints, done = _list_whole_checkpoints(*self.training[1:]), []  # type: Any, List[Any]
        for path in checkpoints:
            if not _PLAIN_PATH.match(path):
                text = "{}: such a path cannot be evaluated; use letters, digits, spaces and {}"
                text = text.format(path, "._=+@~^-")
                done.append(Outcome("error", self.name, text, path))
        claims = [_Claim(self.claims, path) for path in checkpoints if _PLAIN_PATH.match(path)]
        if all(claim.is_submitted for claim in claims):
            if self._is_training_over():
                self._remove_secrets()
            return done
        self.remaining = len([claim for claim in claims if not claim.is_submitted])
        queued = self._list_queued_jobs(10 if own else 30)
        if queued is None:
            return [*done, Outcome("silent", self.name, "squeue: no answer")]
        active = self._list_claimed_runs() & queued.keys() - {os.path.basename(own)}
        room = int(self.stage["parallel"]) - len(active)
        problem: Optional[Outcome] = None
        for claim in claims:
            if claim.is_submitted:
                continue
            job = claim.find_job(self.runs_dir, queued)
            if job is not None:  # the answer was lost
                self._record_job(claim, job, claim.read_time())
                self.remaining -= 1
                continue
            outcome: Optional[Outcome] = None
            if problem is None and room > 0 and claim.is_open():
                outcome = self._submit(claim)
            if outcome is None:
                outcome = Outcome("waiting", self.name, "", claim.checkpoint)
            elif outcome.kind == "submitted":
                room, self.remaining = room - 1, self.remaining - 1
            else:
                problem = outcome
            done.append(outcome)
            if outcome.kind == "error":  # it applies to all checkpoints
                break
        return done

    def _is_cancelled(self) -> bool:
        """Return True if hpcrun has cancelled the training, or the evaluations of its run."""
        names = (CANCELLED, "cancelled.json")
        return any(os.path.exists(os.path.join(self.training.run_dir, name)) for name in names)

    def _list_claimed_runs(self) -> Set[str]:
        found: Set[str] = set()
        with contextlib.suppress(OSError):
            for name in os.listdir(self.claims):
                found.update(_Claim(self.claims, name).read_run_ids())
        return found

    def _list_queued_jobs(self, seconds: float) -> Optional[Dict[str, str]]:
        """Return the user's jobs by the name of their folder; None without an answer."""
        argv = ["squeue", "--noheader", "--user={}".format(os.getuid()), "--format=%i %Z"]
        answer = run_slurm(argv, seconds, command_environment(self.environ))
        if answer.text is None:
            return None
        found: Dict[str, str] = {}
        for line in answer.text.splitlines():
            job, _, folder = line.strip().partition(" ")
            name = os.path.basename(folder.rstrip("/"))
            if name:
                found[name] = job
        return found

    def _is_training_over(self) -> bool:
        """Return True if the training has ended, and nobody has started it again."""
        root = os.path.join(self.training.run_dir, "attempts")
        with contextlib.suppress(OSError, ValueError):
            last = os.path.join(root, str(max(map(int, os.listdir(root)))))
            end = read_json(os.path.join(last, "end.json"))
            is_last = "next" in end and not end["next"]
            return is_last and not os.path.exists(os.path.join(last, "again"))
        return False

    def _remove_secrets(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.template, "secrets.env"))

    def _submit(self, claim: "_Claim") -> Optional[Outcome]:
        """Submit an evaluation; return None if it was claimed or cancelled meanwhile."""
        path = claim.checkpoint
        if self.stage.get("secrets") and not os.path.exists(
            os.path.join(self.template, "secrets.env")
        ):
            text = "the secrets of stage {} were removed when its training ended".format(self.name)
            return Outcome("error", self.name, text, path)
        run_id = self._new_run_id()
        if not claim.acquire(run_id):
            return None
        run = os.path.join(self.runs_dir, run_id)
        changes = {self.stage["run_id"]: run_id, self.stage["token"]: path}
        try:
            _create_run(self.template, run, changes)
            if self.stage["uses_code"]:
                code = os.path.join(self.training.run_dir, "code")
                shutil.copytree(code, os.path.join(run, "code"), symlinks=True)
            if self._is_cancelled():
                shutil.rmtree(run, ignore_errors=True)
                claim.release()
                return None
            argv = ["sbatch", "--parsable", *self.stage["options"], "job.sbatch"]
            answer = run_slurm(argv, 60, self._make_environment(), run)
        except BaseException:
            shutil.rmtree(run, ignore_errors=True)
            claim.release()
            raise
        job = parse_submitted(answer.text or "")
        if not job:
            if answer.text is not None or answer.is_silence:
                return Outcome("silent", self.name, answer.error or "sbatch: no answer", path)
            shutil.rmtree(run, ignore_errors=True)
            claim.release()
            return Outcome("refused", self.name, answer.error, path)
        self._record_job(claim, job, time.time())
        return Outcome("submitted", self.name, job, path)

    def _record_job(self, claim: "_Claim", job: str, submitted_at: float) -> None:
        """Record that Slurm has the job of a claim. The run may have been deleted."""
        changes = {self.stage["run_id"]: claim.run_id, self.stage["token"]: claim.checkpoint}
        text = _replace_text(json.dumps(self.stage["submitted"]), changes)
        submitted: Dict[str, Any] = json.loads(text)
        submitted.update(job_id=job, submitted_at=submitted_at, host=os.uname().nodename)
        path = os.path.join(self.runs_dir, claim.run_id, "submitted.json")
        if job and os.path.isdir(os.path.dirname(path)) and not os.path.exists(path):
            write_record(path, json.dumps(submitted))
        claim.mark_submitted(job)

    def _new_run_id(self) -> str:
        """Return a run id with the time and a random number, as that of the template."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        chance = random.SystemRandom()
        last = "".join(chance.choice(string.ascii_lowercase + string.digits) for _ in range(4))
        return stamp + str(self.stage["run_id"])[len(stamp) : -4] + last

    def _make_environment(self) -> Dict[str, str]:
        """Return the environment of sbatch, without the variables of the job that calls it."""
        inherited = {
            name: value
            for name, value in self.environ.items()
            if name in _KEPT or not (name.startswith(_DROPPED_PREFIXES) or name in _DROPPED)
        }
        clean = self.stage.get("environment")
        if clean is not None:
            slurm = {name: inherited[name] for name in _KEPT[:2] if name in inherited}
            return {**clean, **slurm}
        return {k: value for k, value in inherited.items() if k not in self.stage["without"]}


def _list_whole_checkpoints(root: str, world: int, marker: str = "") -> List[str]:
    """Return the paths of all complete checkpoints whose names have a number, the oldest first."""
    if not root or not os.path.isdir(root):
        return []
    judged = Judge(root, world, marker)
    peers = Peers(judged)
    return [
        absolute(root, unit)
        for unit in reversed(judged.order)
        if re.search("[0-9]", unit.name)
        and judged.verdict(unit).state == "whole"
        and not peers.missing_part(unit)
    ]


class _Claim:
    """The right to evaluate a checkpoint: a file per try, which only one process can create."""

    def __init__(self, folder: str, checkpoint: str) -> None:
        """Take a checkpoint's path, or the name of its claim."""
        self.checkpoint = checkpoint
        name = quote(checkpoint, safe="")[-200:] if "/" in checkpoint else checkpoint
        self.folder = os.path.join(folder, name)
        try:
            self.names = os.listdir(self.folder)
        except FileNotFoundError:
            self.names = []
        self.tries = len([each for each in self.names if each.isdecimal()])
        self.run_id = self._read(self.tries - 1) if self.tries else ""

    @property
    def is_submitted(self) -> bool:
        return "submitted" in self.names

    def _read(self, number: int) -> str:
        try:
            with open(os.path.join(self.folder, str(number))) as file:
                return file.read().strip()
        except OSError:
            return ""

    def read_run_ids(self) -> Set[str]:
        return {self._read(int(name)) for name in self.names if name.isdecimal()} - {""}

    def find_job(self, runs_dir: str, queued: Mapping[str, str]) -> Optional[str]:
        """Return the job of the last try if Slurm has got it, "" if its id is unknown."""
        if not self.run_id:
            return None
        first = os.path.join(runs_dir, self.run_id, "attempts", "0")
        begun = str(read_json(os.path.join(first, "begin.json")).get("job_id") or "")
        return queued.get(self.run_id, begun if os.path.isdir(first) else None)

    def read_time(self) -> float:
        """Return the time of the last try; now if it has just been withdrawn."""
        try:
            return os.stat(os.path.join(self.folder, str(self.tries - 1))).st_mtime
        except OSError:
            return time.time()

    def is_open(self) -> bool:
        """Return True if there is no claim, or if Slurm never got the job of the last one.

        The caller has searched the job.
        """
        return not self.tries or time.time() - self.read_time() >= LOST_REPLY_S

    def acquire(self, run_id: str) -> bool:
        """Claim the checkpoint for a run; return False if another process has just done so."""
        os.makedirs(self.folder, 0o755, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(os.path.join(self.folder, str(self.tries)), flags, 0o644)
        except FileExistsError:
            return False
        self.tries, self.run_id = self.tries + 1, run_id
        with os.fdopen(descriptor, "w") as file:
            file.write(run_id)
        return True

    def mark_submitted(self, job: str) -> None:
        """Record that Slurm has the job, whose run may be deleted later."""
        write_record(os.path.join(self.folder, "submitted"), job)

    def release(self) -> None:
        """Withdraw the last claim, whose job was not submitted."""
        self.tries -= 1
        os.unlink(os.path.join(self.folder, str(self.tries)))


def _create_run(template: str, run: str, changes: Mapping[str, str]) -> None:
    """Create a run from its template: the same files and modes, with other ids.

    EVALUATIONS names the template itself, from which the run submits the next ones.
    """
    os.mkdir(run, 0o755)
    for folder, names, files in os.walk(template):
        inner = os.path.relpath(folder, template)
        target = os.path.normpath(os.path.join(run, inner))
        if inner == "." and "code" in names:
            names.remove("code")
            shutil.copytree(os.path.join(folder, "code"), os.path.join(run, "code"), symlinks=True)
        for name in names:
            os.mkdir(os.path.join(target, name), 0o755)
        for name in files:
            source = os.path.join(folder, name)
            with open(source, "rb") as file:
                data = file.read()
            if not name.endswith(".pyz") and name != EVALUATIONS:
                for old, new in changes.items():
                    data = data.replace(old.encode(), new.encode())
            mode = os.stat(source).st_mode & 0o755
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(os.path.join(target, name), flags, mode), "wb") as file:
                file.write(data)


def _replace_text(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def _lock(folder: str, patience: float) -> Iterator[bool]:
    """Let one process at a time count and submit evaluations; yield False to all others."""
    lock, until = os.path.join(folder, "lock"), time.monotonic() + patience
    while True:
        try:
            os.mkdir(lock)
            break
        except FileExistsError:
            with contextlib.suppress(OSError):
                if time.time() - os.stat(lock).st_mtime > STALE_LOCK_S:
                    os.rmdir(lock)  # the next check takes it
            if time.monotonic() >= until:
                yield False
                return
            time.sleep(0.5)
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(lock)


def submit_for_watcher(environ: Mapping[str, str], words: Sequence[str]) -> str:
    """Submit what is due, for a command of hpcrun that watches the pipeline; return the outcomes.

    Args:
        words: The patience in seconds, and checkpoint directory, world size and marker of the
            training, for a training that has not started.
    """
    patience, checkpoint_dir, world_size, marker = words
    run = environ["HPCRUN_RUN_DIR"]
    record = read_json(os.path.join(run, EVALUATIONS))
    training = read_training(str(record.get("folder", "")))
    if training is None or training.run_dir != run:
        training = Training(run, checkpoint_dir, int(world_size), marker)
    outcomes = submit_due(environ, record, training, patience=float(patience))
    return json.dumps([dict(one._asdict()) for one in outcomes])
