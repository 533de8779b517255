"""The values of runs as TensorBoard's event files, a folder for each run.

    FOLDER/train.log/events.out.tfevents.0000000000.hpcrun      tensorboard --logdir FOLDER

Tags are those of the Hugging Face Trainer, so that its own runs lie in the same charts. Where a log
has no steps, or its counter starts again, the order of the points takes their place. Wall times are
the log's time stamps; without, seconds since 1970 count the training's own step times, or stay 0,
so that "relative" shows durations and nothing is dated wrongly to the present.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hpcrun.curves.curve import Curve
from hpcrun.curves.names import LR
from hpcrun.curves.report.axes import x_axis
from hpcrun.curves.report.files import package_of
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.files import write_atomically, write_error

# A fixed name: writing the same run again replaces it, where two files would draw two curves.
EVENT_FILE = "events.out.tfevents.0000000000.hpcrun"


def write_tensorboard(runs: Sequence[ParsedRun], folder: Path) -> None:
    """Write the event files, one folder per run. Raises InputError."""
    with package_of("tensorboard"):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    for run, name in zip(runs, folder_names([run.source for run in runs]), strict=True):
        try:
            (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder / name, error) from error
        with write_atomically(folder / name / EVENT_FILE) as file:
            records = RecordWriter(file)
            records.write(Event(file_version="brain.Event:2").SerializeToString())
            for step, wall_time, values in _events(run.curve):
                summary = Summary(
                    value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values]
                )
                event = Event(step=step, wall_time=wall_time, summary=summary)
                records.write(event.SerializeToString())


def tag(name: str) -> str:
    """Return the tag under which a metric stands.

    >>> [tag(name) for name in ("loss", "eval_loss", "lr", "rewards/margins", "val/acc")]
    ['train/loss', 'eval/loss', 'train/learning_rate', 'train/rewards/margins', 'val/acc']
    """
    if name == LR:
        return "train/learning_rate"
    if re.match(r"(train|eval|val|valid|validation|test)/.", name):
        return name
    split, _, rest = name.partition("_")
    return f"{split}/{rest}" if split in ("train", "eval", "test") and rest else f"train/{name}"


def folder_names(sources: Sequence[str]) -> list[str]:
    """Name a folder for each run: what its source ends in, made plain and unique.

    Sources with the same last part keep the folder above it too.

    >>> folder_names(["a/train.log", "b/train.log", "../x y.out", "17", "17"])
    ['a-train.log', 'b-train.log', 'x_y.out', '17', '17-2']
    """
    parts = [[p for p in source.split("/") if p not in ("", ".", "..")] for source in sources]
    plain = []
    for part in parts:
        has_twin = any(other[-1:] == part[-1:] and other != part for other in parts)
        chosen = "-".join(part[-2:] if has_twin else part[-1:])
        chosen = re.sub(r"[^\w.+=@-]", "_", chosen, flags=re.ASCII)
        plain.append(chosen.strip(".")[-100:] or "run")
    return _unique(plain, "-")


def _unique(names: Iterable[str], mark: str = "_") -> list[str]:
    """Number names that came before, in whatever case: some file systems know none.

    >>> _unique(["a", "A", "b", "a"])
    ['a', 'A_2', 'b', 'a_3']
    """
    chosen: list[str] = []
    taken: set[str] = set()
    for name in names:
        one, count = name, 1
        while one.lower() in taken:
            count += 1
            one = f"{name}{mark}{count}"
        taken.add(one.lower())
        chosen.append(one)
    return chosen


def _events(curve: Curve) -> Iterator[tuple[int, float, list[tuple[str, float]]]]:
    """Yield (step, wall time, [(tag, value)]) in the order of steps; one event where all agree."""
    events: dict[tuple[int, float], list[tuple[str, float]]] = {}
    tags = _unique(tag(name) for name in curve.metrics)
    for own_tag, (name, series) in zip(tags, curve.metrics.items(), strict=True):
        steps = x_axis(curve, name, "step") or x_axis(curve, name, "order") or []
        times: Sequence[float] = series.times or x_axis(curve, name, "time") or [0.0] * len(steps)
        for step, time, value in zip(steps, times, series.values, strict=True):
            events.setdefault((int(step), time), []).append((own_tag, value))
    for (step, time), values in sorted(events.items(), key=lambda event: event[0]):
        yield step, time, values
