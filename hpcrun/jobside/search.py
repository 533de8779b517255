"""The trials of a search, in their jobs: their values, and the metric in their logs.

Each trial is a run of the sweep's array. Its values are in trial.json in its directory, which is
created once, so that a requeued trial continues with its own values. The values of its metric are
in a record of each attempt. There is no other state, and no lock.
"""

import json
import math
import os
import re
import subprocess
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hpcrun.jobside.progress import read_named_step, read_training_bar
from hpcrun.jobside.records import RECORD_VERSION, read_json, write_json, write_record
from hpcrun.jobside.stall import list_rank_steps

# The time in which a trial draws its values, including the import from a slow file system.
SAMPLE_TIMEOUT_S = 600
# An attempt without a heartbeat for this long has died.
DEAD_AFTER_S = 900
_MAX_POINTS = 4000
_CHUNK_BYTES, _LINE_CHARS = 1 << 20, 4000

_EVALUATION_WORDS = ("eval", "evaluation", "val", "valid", "validation", "dev")
_OTHER_SPLITS = ("test", "train", "training")
_NUMBER = (
    r"([-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])(?:\.[0-9]+)?|[0-9]+\.?[0-9]*|\.[0-9]+)"
    r"(?:e[-+]?[0-9]+)?|[-+]?nan|[-+]?inf(?:inity)?)"
)
_EVALUATION = re.compile(r"(?<![a-z/])(?:eval|evaluat\w*|val|valid|validat\w*|dev)(?![a-z])")
_TEST = re.compile(r"(?<![a-z/])test(?![a-z])")
_COLOUR = re.compile("\x1b\\[[0-9;]*[A-Za-z]")
_STEP = re.compile(r"(?<![a-z])(?:global_?)?step\s*[:=#]?\s*([0-9]+)(?![0-9.])")
# The word in front of a name, up to a separator. Other words than these belong to the name:
# "aux loss" and "top-5 accuracy" are other metrics than loss and accuracy.
_WORD_BEFORE = re.compile(r"([^\s\"'`:=,;|(){}\[\]<>]+)[\s\"'`*]+$")
_MEASURE = re.compile(r"[-+]?[0-9.,/]+(?:[a-z%]{1,4}(?:/[a-z]+)?)?")  # 10, 3/8, 5.2s, 80%, 3.1it/s
# The rank of the process that wrote a line: "[rank1]:", "1: [rank 1]", "[default1]:".
_RANK = re.compile(r"(?:[0-9]+: ?)?\[(?:rank|default)[ =:]?([0-9]+)\]")
_NEUTRAL = (
    *("debug", "info", "warning", "step", "epoch", "iter", "iteration", "final", "current"),
    *("mean", "avg", "average", "running", "the", "with", "and", "is", "at", "results", "metrics"),
)

Say = Callable[[str], None]
Points = List[Tuple[int, float]]


class Trial(NamedTuple):
    """A trial as its records show it.

    Attributes:
        state: waiting, running, complete, pruned or failed.
        points: The step and the value of each report of the metric.
    """

    number: int
    values: Dict[str, str]
    state: str
    points: Points

    @property
    def value(self) -> Optional[float]:
        """The last value of the metric."""
        return self.points[-1][1] if self.points else None


def read_search(run: str) -> Dict[str, Any]:
    """Read the search that a run is a trial of; {} if it is none."""
    return read_json(os.path.join(run, "search.json"))


# ---- The metric ----------------------------------------------------------------------------------


class MetricReader:
    """Collects the values of a metric from the lines of a log.

    The metric has the name that `hpcrun parse` shows, such as eval_loss, or that the log has. Its
    step is that of the line or of the last line before it that names one. A rank's log is read
    with the standard library alone, so `hpcrun parse` also finds values that this does not. Of
    several spellings in a log, the first one counts, and of lines with the rank of their process,
    those of the lowest rank.

    >>> reader = MetricReader("eval_loss")
    >>> for line in ("step 5 | loss 2.5", "step 10 val loss: 2.25", "{'eval_loss': 2.0}"):
    ...     reader.feed(line)
    >>> reader.points
    [(10, 2.25), (10, 2.0)]
    """

    def __init__(self, metric: str, spellings: Sequence[str] = ()) -> None:
        names = []
        self.split = ""
        for name in spellings or [metric]:
            words = [word for word in re.split("[^a-z0-9]+", name.lower()) if word]
            if len(words) > 1 and words[0] in (*_EVALUATION_WORDS, *_OTHER_SPLITS):
                self.split = "eval" if words[0] in _EVALUATION_WORDS else words[0][:5]
                words = words[1:]
            names.append(words)
        self.ranks = {"".join(words): rank for rank, words in reversed([*enumerate(names)])}
        self.last_words = sorted({words[-1] for words in names if words})
        names.sort(key=lambda words: -len("".join(words)))
        prefix = r"(?:(eval|evaluation|val|valid|validation|dev|test|train|training)[ _/.-]+)?"
        base = "|".join("[ _/.@-]?".join(map(re.escape, words)) for words in names)
        self.pattern = re.compile(
            r"(?<![a-z0-9_./@-])" + prefix + "(" + base + ")"
            + r"(?![a-z0-9_/.@])[\"']?\s*[:=|(]?\s*[\"']?" + _NUMBER
            + r"(?![a-z0-9])(?:\s*\(\s*" + _NUMBER + r"\s*\))?"
        )  # fmt: skip
        self.points: Points = []
        self.step: Optional[int] = None
        # The rank of the process and that of the spelling of the values so far.
        self.best = (math.inf, math.inf)

    def feed(self, line: str) -> None:
        """Process a line of the log."""
        line = _COLOUR.sub("", line)
        lower = line.lower()[-_LINE_CHARS:]
        found = read_named_step(line) if re.search("[0-9]", line) else None
        if found is not None:
            self.step = found.step
        elif "%|" in line or "it/s" in line:
            bar = read_training_bar(line)
            self.step = self.step if bar is None else bar[0]
        if not any(word in lower for word in self.last_words):
            return
        # The train_loss in the summary of Hugging Face's Trainer is the mean of the whole training.
        is_mean = "train_runtime" in lower and self.split != "train"
        found_value = None if is_mean else self._read_value(lower)
        if found_value is not None:
            label = _RANK.match(lower)
            process = 0 if label is None else int(label.group(1))
            rank, value = (process, found_value[0]), found_value[1]
            if rank > self.best:
                return
            if rank < self.best:
                self.best, self.points = rank, []
            stated = _STEP.search(lower) if found is None else None
            if stated is not None:
                self.step = int(stated.group(1))
            step = len(self.points) + 1 if self.step is None else self.step
            self.points.append((step, value))
            if len(self.points) > _MAX_POINTS:
                self.points = self.points[:-1:2] + self.points[-1:]

    def _read_value(self, line: str) -> Optional[Tuple[int, float]]:
        """Return the value on a line, and the rank of its spelling."""
        values = []
        for match in self.pattern.finditer(line):
            before, prefix = line[: match.start()], match.group(1) or ""
            word = _WORD_BEFORE.search(before)
            if word is not None and not _allows_name(word.group(1)):
                continue
            split = "eval" if prefix in _EVALUATION_WORDS else prefix[:5]
            if not split:
                split = "eval" if _EVALUATION.search(before) else ""
                split = "test" if not split and _TEST.search(before) else split
            # "loss" is that of the training, which some logs name train_loss.
            if split == self.split or (not self.split and prefix in ("train", "training")):
                # "loss 3.2 (3.0)": the value of the last batch, and the mean of the evaluation.
                number = match.group(4) if split in ("eval", "test") else None
                rank = self.ranks[re.sub("[^a-z0-9]", "", match.group(2))]
                values.append((rank, float((number or match.group(3)).replace(",", ""))))
        return min(values, key=lambda value: value[0], default=None)


def _allows_name(word: str) -> bool:
    """Return True if a metric's name may begin after this word."""
    return word in (*_NEUTRAL, *_EVALUATION_WORDS, *_OTHER_SPLITS) or bool(
        _MEASURE.fullmatch(word) or not re.search("[a-z]", word)
    )


class MetricLog:
    """Reads the new part of a log."""

    def __init__(self, path: str, search: Mapping[str, Any]) -> None:
        self.path = path
        self.reader = MetricReader(search["metric"], search.get("spellings") or ())
        self.offset, self.rest = 0, b""

    def read(self) -> None:
        """Read all new complete lines."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:  # truncated
                    self.offset, self.rest = 0, b""
                file.seek(self.offset)
                while True:
                    data = file.read(_CHUNK_BYTES)
                    if not data:
                        return
                    self.offset += len(data)
                    pieces = re.split(b"[\r\n]+", self.rest + data)
                    self.rest = pieces[-1][-_CHUNK_BYTES:]
                    for piece in pieces[:-1]:
                        self.reader.feed(piece.decode("utf-8", "replace"))
        except OSError:
            return

    def finish(self) -> None:
        """Read the last line even if it is not complete."""
        self.read()
        self.reader.feed(self.rest.decode("utf-8", "replace"))
        self.rest = b""


class MetricRecorder:
    """Records the metric of an attempt from the logs of the first and the last rank."""

    def __init__(self, environ: Mapping[str, str], search: Mapping[str, Any]) -> None:
        run, attempt = environ["HPCRUN_RUN_DIR"], environ.get("HPCRUN_ATTEMPT") or "0"
        self.folder = os.path.join(run, "logs", attempt)
        self.attempt, self.search = os.path.join(run, "attempts", attempt), search
        self.logs: Dict[str, MetricLog] = {}

    def read(self, is_end: bool = False) -> Points:
        """Return the values so far."""
        kind = "node" if os.path.exists(os.path.join(self.attempt, "began")) else "rank"
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        names = [name for name in names if re.match(kind + r"-[0-9]+\.log$", name)]
        names.sort(key=lambda name: int(re.sub("[^0-9]", "", name)))
        names = list(dict.fromkeys(names[:1] + names[-1:]))
        for name in names:
            if name not in self.logs:
                self.logs[name] = MetricLog(os.path.join(self.folder, name), self.search)
            if is_end:
                self.logs[name].finish()
            else:
                self.logs[name].read()
        return next((self.logs[n].reader.points for n in names if self.logs[n].reader.points), [])

    def write(self, name: str, points: Points) -> None:
        """Write the record of the values; JSON has no numbers that are not finite."""
        shown = [[step, value if is_finite(value) else str(value)] for step, value in points]
        metric = self.search["metric"]
        record = {"version": RECORD_VERSION, "metric": metric, "points": shown}
        write_record(os.path.join(self.attempt, name), json.dumps(record))


class TrialWatch:
    """Records the metric of an attempt while it runs."""

    def __init__(self, environ: Mapping[str, str], say: Say, actions: Any) -> None:
        self.environ, self.say, self.actions = environ, say, actions
        self.search = read_search(environ["HPCRUN_RUN_DIR"])
        self.every = float(self.search["every"])
        self.recorder = MetricRecorder(environ, self.search)
        self.pruner = Pruner(environ, self.search) if self.search.get("prune") else None
        self.count = 0
        self.has_ended = False

    def check(self) -> None:
        """Record new values, and end the attempt if the trial is pruned."""
        points = self.recorder.read()
        if len(points) != self.count:
            self.count = len(points)
            self.recorder.write("metric.json", points)
        if self.pruner is None or self.has_ended or not points:
            return
        text = self.pruner.judge()
        steps = list_rank_steps(self.environ, self.actions) if text else None
        # Without an answer of Slurm, the next check retries.
        if text and steps:
            self.say("hpcrun: " + text)
            ended = [self.actions.cancel_slurm_step(step) for step in steps]
            self.has_ended = all(ended)


def record_end(environ: Mapping[str, str]) -> None:
    """Record the metric at the end of an attempt, when its logs are complete."""
    search = read_search(environ["HPCRUN_RUN_DIR"])
    if search.get("metric"):
        recorder = MetricRecorder(environ, search)
        # Another file than the watcher's, which may still be writing.
        recorder.write("metric-end.json", recorder.read(is_end=True))


def is_finite(value: float) -> bool:
    """Return True for a number other than NaN and the infinities."""
    return value == value and value not in (float("inf"), float("-inf"))


# ---- The trials ----------------------------------------------------------------------------------


def read_trials(search: Mapping[str, Any]) -> List[Trial]:
    """Read all trials of a search."""
    return [
        read_trial("{}{}{}".format(search["before"], number, search["after"]), number)
        for number in range(search["trials"])
    ]


def read_trial(run: str, number: int) -> Trial:
    """Read a trial from the records in its directory."""
    values = read_json(os.path.join(run, "trial.json")).get("values")
    values = values or read_json(os.path.join(run, "task.json")).get("values") or {}
    folders = list_attempts(run)
    points = merge_points(map(_read_points, [*list_earlier_attempts(run), *folders]))
    return Trial(number, values, _read_state(run, folders), points)


def list_earlier_attempts(run: str) -> List[str]:
    """Return the attempts of the trials whose checkpoints a resubmitted trial resumes from."""
    runs: List[str] = []
    earlier = read_search(run).get("resumes")
    while earlier and earlier not in runs:
        runs.insert(0, earlier)
        earlier = read_search(earlier).get("resumes")
    return [attempt for each in runs for attempt in list_attempts(each)]


def list_attempts(run: str) -> List[str]:
    """Return the folders of a run's attempts, in order."""
    attempts = os.path.join(run, "attempts")
    try:
        numbers = sorted(int(name) for name in os.listdir(attempts) if name.isdecimal())
    except OSError:
        numbers = []
    return [os.path.join(attempts, str(each)) for each in numbers]


def merge_points(attempts: Any) -> Points:
    """Join the values of attempts: a later attempt repeats the steps since its checkpoint.

    >>> merge_points([[(1, 3.0), (2, 2.5), (3, 2.2)], [(3, 2.25), (4, 2.0)]])
    [(1, 3.0), (2, 2.5), (3, 2.25), (4, 2.0)]
    """
    merged: Points = []
    for points in attempts:
        if points:
            merged = [point for point in merged if point[0] < points[0][0]] + points
    return merged


def _read_points(folder: str) -> Points:
    for name in ("metric-end.json", "metric.json"):
        points = read_json(os.path.join(folder, name)).get("points")
        if points:
            return [(int(step), float(value)) for step, value in points]
    return []


def _read_state(run: str, folders: Sequence[str]) -> str:
    is_cancelled = os.path.exists(os.path.join(run, "cancelled.json"))
    if not folders:
        return "failed" if is_cancelled else "waiting"
    end = read_json(os.path.join(folders[-1], "end.json"))
    if not end:
        try:
            is_dead = (
                time.time() - os.stat(os.path.join(folders[-1], "beat")).st_mtime > DEAD_AFTER_S
            )
        except OSError:
            is_dead = False
        return "failed" if is_dead else "running"
    if end.get("next"):
        return "failed" if is_cancelled else "running"
    return {"done": "complete", "pruned": "pruned"}.get(str(end.get("why")), "failed")


# ---- Pruning -------------------------------------------------------------------------------------
#
# Asynchronous successive halving (ASHA, Li et al., 2020, https://arxiv.org/abs/1810.05934), in the
# variant that ends trials instead of pausing them. A trial is judged once at each rung, with the
# values that other trials have reported there until then; nothing is shared but these records.


class Judgement(NamedTuple):
    """The comparison of a trial with the others at a rung.

    Attributes:
        place: 1 for the best value of all that were reported at this rung.
        of: The number of these values, with the trial's own.
        best: How many of them continue: the best of each ``factor``.
        is_pruned: The trial is not among them. Fewer values than ``factor`` end no trial.
    """

    place: int
    of: int
    best: int
    is_pruned: bool


def judge_rung(own: float, others: Sequence[float], factor: int, goal: str) -> Judgement:
    """Compare the value of a trial at a rung with those of others; NaN is the worst value.

    >>> judge_rung(2.0, [1.0, 3.0, 4.0], 4, "minimize")
    Judgement(place=2, of=4, best=1, is_pruned=True)
    >>> judge_rung(1.0, [2.0, 3.0, 4.0], 4, "minimize").is_pruned
    False
    """

    def loss(value: float) -> float:
        return float("inf") if value != value else value if goal == "minimize" else -value

    place = 1 + sum(loss(other) < loss(own) for other in others)
    of = 1 + len(others)
    best = of // factor
    return Judgement(place, of, best, best > 0 and place > best)


def list_rungs(first: int, factor: int, last_step: int) -> List[int]:
    """Return the steps of the rungs up to a step.

    >>> list_rungs(100, 4, 1700)
    [100, 400, 1600]
    """
    rungs = []
    step = max(first, 1)
    while step <= last_step:
        rungs.append(step)
        step *= max(factor, 2)
    return rungs


def value_at(points: Points, step: int) -> Optional[Tuple[int, float]]:
    """Return the first report at a step or after it; None if there is none yet.

    >>> value_at([(50, 3.0), (120, 2.0), (200, 1.0)], 100)
    (120, 2.0)
    """
    return next((point for point in points if point[0] >= step), None)


def find_first_rung(search: Mapping[str, Any], trials: Sequence[Trial]) -> Optional[int]:
    """Return the step of the first rung; None while it is unknown.

    Without ``prune_from`` it is a hundredth of the steps of the first trial that is complete, as
    in optuna's SuccessiveHalvingPruner.
    """
    if search.get("prune_from"):
        return int(search["prune_from"])
    lasts = (trial.points[-1][0] for trial in trials if trial.state == "complete" and trial.points)
    last = next(lasts, None)
    return None if last is None else max(last // 100, 1)


class Pruner:
    """Judges a trial at the rungs that it has reached, each once, also over several attempts.

    attempts/N/rungs.json has the judgements, and attempts/N/pruned.json the one that ended the run.
    """

    def __init__(self, environ: Mapping[str, str], search: Mapping[str, Any]) -> None:
        self.search = search
        self.run = environ["HPCRUN_RUN_DIR"]
        self.attempt = os.path.join(self.run, "attempts", environ.get("HPCRUN_ATTEMPT") or "0")
        self.judged: Dict[int, Any] = {}
        for folder in [*list_earlier_attempts(self.run), *list_attempts(self.run)]:
            for each in read_json(os.path.join(folder, "rungs.json")).get("rungs") or []:
                self.judged[int(each["rung"])] = each
        self.text = ""

    def judge(self) -> str:
        """Return why the trial ends, or ""."""
        factor, number = int(self.search["prune_factor"]), int(self.search["number"])
        own = read_trial(self.run, number)
        if self.text or not own.points:
            return self.text
        reached = own.points[-1][0]
        given = self.search.get("prune_from")
        if given and set(list_rungs(int(given), factor, reached)) <= set(self.judged):
            return ""  # the records of all trials are only read at a rung
        trials = read_trials(self.search)
        # The rungs of a trial do not change when other trials become complete.
        first = min(self.judged) if self.judged else find_first_rung(self.search, trials)
        for rung in list_rungs(first, factor, reached) if first is not None else []:
            point = value_at(own.points, rung)
            if rung in self.judged or point is None:
                continue
            others = [value_at(trial.points, rung) for trial in trials if trial.number != number]
            values = [other[1] for other in others if other is not None]
            found = judge_rung(point[1], values, factor, self.search["goal"])
            shown = point[1] if is_finite(point[1]) else str(point[1])
            record = {"rung": rung, "step": point[0], "value": shown, **found._asdict()}
            record["others"] = [value if is_finite(value) else str(value) for value in values]
            self.judged[rung] = record
            self._write("rungs.json", {"rungs": list(self.judged.values())})
            if found.is_pruned:
                self.text = (
                    "pruned at step {}: {} {:.6g} is number {} of {} at step {}, and the best {} "
                    "continue"
                ).format(
                    reached,
                    self.search["metric"],
                    point[1],
                    found.place,
                    found.of,
                    rung,
                    found.best,
                )
                self._write(
                    "pruned.json", {**record, "text": self.text, "at": round(time.time(), 3)}
                )
                return self.text
        return ""

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        path = os.path.join(self.attempt, name)
        write_record(path, json.dumps({"version": RECORD_VERSION, **record}))


def stays_pruned(environ: Mapping[str, str], attempt: int, complain: Say) -> bool:
    """Return True if a pruned run must not run again, even if its node died before it had ended.

    An end record is written for such an attempt. ``hpcrun requeue`` creates the file ``again``.
    """
    folder = os.path.join(environ["HPCRUN_RUN_DIR"], "attempts", str(attempt))
    pruning = read_json(os.path.join(folder, "pruned.json"))
    end = read_json(os.path.join(folder, "end.json"))
    # It may have been complete before it could be ended.
    if os.path.exists(os.path.join(folder, "again")) or end.get("why") == "done":
        return False
    if end.get("why") != "pruned":
        begin = read_json(os.path.join(folder, "begin.json"))
        record = {
            "attempt": attempt,
            "job_id": begin.get("job_id"),
            "begun_at": begin.get("begun_at"),
            "exit_code": 0,
            "signal": None,
            "stopped_by": None,
            "first_failure": None,
            "ended_at": end.get("ended_at") or pruning.get("at") or round(time.time(), 3),
            "why": "pruned",
            "checkpoint": end.get("checkpoint"),
            "next": None,
            "note": pruning.get("text"),
        }
        write_json(os.path.join(folder, "end.json"), "end", record)
    complain("hpcrun: attempt {} was the last one of this run: it was pruned".format(attempt))
    return True


# ---- The values of a trial -----------------------------------------------------------------------


def prepare_trial(environ: Mapping[str, str], complain: Say) -> Dict[str, str]:
    """Return the values of this trial, which its first attempt draws; {} if that fails."""
    run = environ["HPCRUN_RUN_DIR"]
    path = os.path.join(run, "trial.json")
    if not os.path.exists(path):
        record = _sample(environ, read_search(run), complain)
        if record is None:
            return {}
        part = "{}.{}".format(path, os.getpid())
        write_record(part, json.dumps(record))
        try:
            os.link(part, path)  # fails if another process was faster
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            os.rename(part, path)
        if os.path.exists(part):
            os.unlink(part)
    values = read_json(path).get("values")
    return values if isinstance(values, dict) else {}


def _sample(
    environ: Mapping[str, str], search: Mapping[str, Any], complain: Say
) -> Optional[Dict[str, Any]]:
    """Draw values in the first Python that has optuna; None if that fails."""
    archive = os.path.join(environ["HPCRUN_RUN_DIR"], "jobside.pyz")
    drop = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
    clean = {key: value for key, value in environ.items() if key not in drop}
    failures = []
    for python in search.get("pythons") or ["python"]:
        try:
            done = subprocess.run(
                [python, archive, "sample_trial"],
                cwd="/",
                env=clean,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=SAMPLE_TIMEOUT_S,
            )
            if done.returncode == 0:
                lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
                record = json.loads(lines[-1])
                return {"version": RECORD_VERSION, "at": round(time.time(), 3), **record}
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            failures.append("{}: {}".format(python, lines[-1] if lines else "no message"))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            failures.append("{}: {}".format(python, error))
    complain(
        "hpcrun: error: no values for this trial: optuna drew none with " + "; ".join(failures)
    )
    return None
