"""The words that could stand on a command line: runs, jobs, clusters, keys of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from hpcrun.cli.completion_line import Item
from hpcrun.controller.project import PROFILE, find_project

# So many of the newest runs are offered by their Slurm ids: a record is opened for each.
_BY_JOB = 30
_MOST = 200
# A run's id begins with so many characters for its time: YYYYMMDD-HHMMSS-.
_STAMP = 16
_RUN = re.compile(r"(\d{8}-\d{6})-([A-Za-z0-9._+-]+-[0-9a-z]{4})(\.array)?")
_TASK = re.compile(r"(.+)\.(\d+)(-[0-9a-z]{4})")


def runs(current: str, *, is_told: bool = True) -> list[Item]:
    """Runs, newest first: by Slurm id, and by the end of the run's id, which is easy to type.

    ``is_told``: with what they are, for shells that show it.
    """
    runs_dir = _quick_runs_dir() or _runs_dir()
    names = _names(runs_dir)
    items = []
    if not current or current[0].isdigit():
        items = [
            Item(job_id, _what(runs_dir / name) if is_told else "")
            for name, job_id in _job_ids(runs_dir, islice(_newest(names, ""), _BY_JOB))
            if job_id.startswith(current)
        ]
    # The whole id once its date is being typed; else what follows the date.
    by_date = bool(re.match(r"\d{5}", current))
    if not items or by_date:
        for name in islice(_newest(names, current), _MOST):
            value = name.removesuffix(".array")
            said = _what(runs_dir / name) if is_told and len(items) < _BY_JOB else ""
            items.append(Item(value if by_date else value[_STAMP:], said))
    return items


def _quick_runs_dir() -> Path | None:
    """The runs folder of the project's profile, where it stands there in one plain line.

    All that YAML allows, and all other profiles, are for load_context, which takes longer than the
    rest of the answer.
    """
    if os.environ.get("HPCRUN_CLUSTER"):
        return None
    project = find_project(Path.cwd())
    found = re.findall(rb"^[\"']?runs_dir.*$", _read(project / PROFILE), re.MULTILINE)
    plain = re.fullmatch(rb"runs_dir: +(/?[A-Za-z0-9][\w./+-]*)\s*", found[0]) if found else None
    return project / plain[1].decode() if plain and len(found) == 1 else None


def _runs_dir() -> Path:
    from hpcrun.controller.context import load_context

    return load_context(os.environ, Path.cwd()).runs_dir


def _names(runs_dir: Path) -> list[str]:
    try:
        return sorted((entry.name for entry in os.scandir(runs_dir)), reverse=True)
    except OSError:
        return []


def _newest(names: Sequence[str], current: str) -> Iterator[str]:
    """The folders of runs whose id, or the end of it, begins so; a sweep stands for its tasks."""
    there = frozenset(names)
    for name in names:
        if not (name.startswith(current) or name.startswith(current, _STAMP)):
            continue
        if not _RUN.fullmatch(name):
            continue
        task = _TASK.fullmatch(name)
        if task is None or f"{task[1]}{task[3]}.array" not in there:
            yield name


def _job_ids(runs_dir: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        found = re.search(rb'"job_id": ?"([0-9_]+)"', _read(runs_dir / name / "submitted.json"))
        if found:
            yield name, found[1].decode()


def _what(folder: Path) -> str:
    """Say what a run is, by its name and what its own files tell of its state."""
    match = _RUN.fullmatch(folder.name)
    assert match is not None
    stamp, name = match[1], match[2].rpartition("-")[0]
    when = f"{stamp[4:6]}-{stamp[6:8]} {stamp[9:11]}:{stamp[11:13]} UTC"
    state = _state(folder)
    kind = "sweep" if match[3] else ""
    return ", ".join(text for text in (name, kind or state, when) if text)


def _state(folder: Path) -> str:
    seen = re.search(rb'"state": ?"([A-Z_]+)"', _read(folder / "cache" / "seen.json"))
    if seen:
        return seen[1].decode().lower()
    try:
        names = [entry.name for entry in os.scandir(folder / "attempts")]
    except OSError:
        return ""
    attempts = [name for name in names if name.isdigit()]
    if not attempts:
        return "not begun"
    end = _read(folder / "attempts" / max(attempts, key=int) / "end.json")
    code = re.search(rb'"exit_code": ?(\d+)', end)
    return f"exit code {code[1].decode()}" if code else "running"


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(1 << 14)
    except OSError:
        return b""


def presets(current: str) -> list[Item]:
    """Jobs that can be submitted by their names."""
    from hpcrun.assets import list_jobs

    jobs = list_jobs(find_project(Path.cwd()), os.environ)
    return [
        Item(name, _description(path) or whose)
        for name, (whose, path) in sorted(jobs.items())
        if name.startswith(current)
    ]


def _description(path: Path) -> str:
    """The description of a job, where it stands in one line as it does in nearly all."""
    found = re.search(rb"^description: *([^\n#|>&*!]+)", _read(path), re.MULTILINE)
    return found[1].decode("utf-8", "replace").strip().strip("\"'") if found else ""


def clusters(current: str) -> list[Item]:
    """The user's profiles by name, the project's own, and the sandbox."""
    from hpcrun.assets import config_dir

    found = {
        path.stem: "yours" for path in sorted((config_dir(os.environ) / "clusters").glob("*.yaml"))
    }
    own = re.search(rb"^name: *([^\s#]+)", _read(find_project(Path.cwd()) / PROFILE), re.MULTILINE)
    if own:
        found[own[1].decode("utf-8", "replace").strip("\"'")] = "this project's"
    found.setdefault("sandbox", "a Slurm on this machine")
    return [Item(name, whose) for name, whose in found.items() if name.startswith(current)]


def keys(current: str) -> list[Item]:
    """Keys of a job for --set, each with its =, or the values that one can have."""
    import json

    from hpcrun.assets import shipped

    schema = json.loads((shipped("jobs") / "job.schema.json").read_text(encoding="utf-8"))
    found = dict(_keys(schema))
    key, has_value, _ = current.partition("=")
    if has_value:
        values = found.get(key, ("", []))[1]
        return [Item(f"{key}={value}") for value in values if f"{key}={value}".startswith(current)]
    return [Item(f"{name}=", said) for name, (said, _) in found.items() if name.startswith(key)]


def _keys(node: object, path: str = "") -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Walk a schema: dotted key -> (what it means, the values that it can have)."""
    if not isinstance(node, dict):
        return
    properties = node.get("properties")
    if isinstance(properties, dict):
        for key, inner in properties.items():
            yield from _keys(inner, f"{path}.{key}" if path else key)
        return
    values = [str(value) for value in node.get("enum", ()) if value is not None]
    kinds = node.get("type")
    if kinds == "boolean" or (isinstance(kinds, list) and "boolean" in kinds):
        values = ["true", "false"]
    yield path, (str(node.get("description", "")), values)


def files(current: str) -> list[Item]:
    """Files and folders, for a place that takes other words too; hidden ones if asked for."""
    head, _, tail = current.rpartition("/")
    folder = head + "/" if "/" in current else ""
    try:
        entries = sorted(entry.name for entry in os.scandir(Path(folder or ".").expanduser()))
    except (OSError, RuntimeError):  # no such user
        return []
    return [
        Item(folder + name)
        for name in entries
        if name.startswith(tail) and (tail.startswith(".") or not name.startswith("."))
    ][:_MOST]
