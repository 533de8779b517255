"""Facts about a run besides its log: its settings, its GPUs, its duration."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import structs

from hpcrun.curves import LOSS, Curve, ParsedRun, Usage
from hpcrun.errors import SpecError
from hpcrun.files import read_plain
from hpcrun.monitor import with_steps
from hpcrun.plan import Plan, split_options
from hpcrun.runs import (
    END_NAMES,
    RankUsage,
    RunFolder,
    compute_cost,
    compute_elapsed,
    read_history,
    read_pace,
    read_plan,
    read_task,
    read_usage,
    sweep_folder,
)
from hpcrun.secrets import is_secret_setting
from hpcrun.spec import Node, parse_document
from hpcrun.views import format_attempt_rows, format_cost

# Keys without effect on the training: names, and keys whose content is in another key.
_IGNORED_KEYS = (
    *("name", "description", "group", "secrets", "log_patterns"),
    *("sweep", "sweep_combinations", "sweep_exclude", "sweep_part", "sweep_limit"),
)
# Decided values and their names in the plan, if they reach the program.
_PLAN_FIELDS = {
    "hpcrun": "hpcrun_version",
    "resources.nodes": "nodes",
    "resources.gpus_per_node": "gpus_per_node",
    "nccl.fabric": "fabric",
    **{name: name for name in ("cluster", "accelerator", "python", "launcher", "framework")},
    **{name: name for name in ("precision", "world_size", "effective_batch")},
}
_BATCH_FIELDS = {
    "batch.micro_batch_per_gpu": "micro_batch_per_gpu",
    "batch.gradient_accumulation_steps": "gradient_accumulation_steps",
}
# Keys of DeepSpeed's JSON that are derived from other keys of the job.
_DERIVED = re.compile(
    r"train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps"
    r"|(bf16|fp16)\.enabled|zero_optimization\.(stage|offload_(optimizer|param)\.device)"
)
# Fewer steps at known times do not show a pace: the job checks its log every 30 s.
_MIN_PACE_STEPS = 5
_MAX_NAMED_FILES = 4  # differing files that are named


def read_run_facts(run: RunFolder) -> tuple[dict[str, str], int | None, float | None]:
    """Return a run's settings by key, its number of GPUs, and its duration in seconds.

    Settings are those of the job as requested, options of its program as "args.--lr" with the
    values of placeholders, and decided values that the job left open. Precision and batch are
    included only if they reach the program. An attempt without an end counts until its last
    heartbeat.
    """
    plan, history = read_plan(run), read_history(run)
    facts = _flatten_job(run.path / "spec.yaml", plan)
    gpus = None
    if plan is not None:
        facts |= _flatten_plan(plan)
        if plan.accelerator != "cpu":
            gpus = plan.nodes * plan.gpus_per_node or None
    if history.task is not None:
        facts |= {f"sweep.{name}": value for name, value in history.task.values.items()}
    shown = {
        key: value for key, value in sorted(facts.items()) if not is_secret_setting(key, value)
    }
    seconds = [*(each.seconds() for each in history.attempts[:-1]), compute_elapsed(history)]
    ran = [each for each in seconds if each is not None]
    return shown, gpus, sum(ran) if ran else None


def summarize_usage(run: RunFolder) -> Usage:
    """Summarize what the ranks of a run measured of themselves."""
    ranks = read_usage(run)
    peaks = [each for each in ranks.values() if each.peak_reserved is not None]
    most = max(peaks, key=lambda each: each.peak_reserved or 0, default=RankUsage())
    shares = {
        rank: min(1.0, max(0.0, each.data_seconds / each.loop_seconds))
        for rank, each in ranks.items()
        if each.data_seconds is not None and each.loop_seconds
    }
    allocated = max((each.peak_allocated or 0 for each in peaks), default=0)
    first, plan = ranks.get(0, RankUsage()), read_plan(run)
    return Usage(
        peak_memory=most.peak_reserved,
        peak_allocated=allocated or None,
        gpu_memory=most.gpu_memory,
        loop_seconds=first.loop_seconds,
        data_shares=shares,
        estimated_memory=plan.estimated_memory if plan is not None else None,
    )


def measure_step_time(run: RunFolder, curve: Curve) -> float | None:
    """Return the mean time of a step, by when the job saw the steps in its first rank's log.

    None if the steps that the job saw are not those of the curve, or too few.
    """
    pace, losses = read_pace(run), curve.metrics.get(LOSS)
    if pace is None or losses is None or len(pace.steps) < _MIN_PACE_STEPS:
        return None
    first, last = losses.summary.first.step, losses.summary.last.step
    rises = all(before < after for before, after in pairwise(pace.steps))
    if first is None or last is None or not rises or len(pace.seconds) != len(pace.steps):
        return None
    if not first <= pace.steps[0] < pace.steps[-1] <= last:
        return None
    seconds = pace.seconds[-1] - pace.seconds[0]
    return seconds / (pace.steps[-1] - pace.steps[0]) if seconds > 0 else None


def add_attempts(parsed: ParsedRun, run: RunFolder) -> ParsedRun:
    """Add the GPUs of spare nodes, and the ends and cost of several attempts."""
    history, plan = read_history(run), read_plan(run)
    attempts, elapsed = history.attempts, compute_elapsed(history)
    gpus, spare = (plan.all_gpus_per_node, plan.survive.spare_nodes) if plan is not None else (0, 0)
    parsed = structs.replace(parsed, spare_gpus=spare * gpus)
    if len(attempts) < 2:
        return parsed
    ends = {each.index + 1: each.end for each in attempts}
    restarts = []
    for restart in parsed.curve.restarts:
        end = ends.pop(restart.attempt, None)  # only the first restart of an attempt gets its cause
        cause = END_NAMES.get(end.why or "", "") if end is not None else ""
        restarts.append(structs.replace(restart, cause=cause))
    attempts = with_steps(run, attempts, plan.log_patterns if plan is not None else ())
    cost = compute_cost(attempts, gpus, None, spare, elapsed)
    return structs.replace(
        parsed,
        curve=structs.replace(parsed.curve, restarts=tuple(restarts)),
        attempts=tuple(
            format_attempt_rows(
                attempts, _local_time, elapsed, resumes=plan is None or plan.resumes
            )
        ),
        cost=format_cost(cost, has_gpus=bool(gpus)),
    )


def _local_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def digest_code(run: RunFolder) -> dict[str, str]:
    """Digest each file of a run's copy of the code; empty if the code runs in place.

    A link is represented by its target's name.
    """
    task = read_task(run)
    code = run.code if task is None else sweep_folder(run.path.parent, task.sweep_id).code
    digests = {}
    for path in code.rglob("*"):
        if "__pycache__" in path.parts or not (path.is_symlink() or path.is_file()):
            continue
        data = b""
        with contextlib.suppress(OSError):
            data = os.fsencode(path.readlink()) if path.is_symlink() else read_plain(path)
        digests[str(path.relative_to(code))] = hashlib.sha256(data).hexdigest()
    return digests


def add_code_digests(
    runs_dir: Path, runs: Sequence[ParsedRun]
) -> tuple[list[ParsedRun], list[str]]:
    """Add code digests to the settings of runs if they differ; list differing files."""
    from hpcrun.curves import differing  # deferred: the comparison report is slow to import

    digests = [digest_code(RunFolder(runs_dir / run.source)) if run.facts else {} for run in runs]
    names = [*differing(digests)]
    if not names:
        return list(runs), []
    codes = [hashlib.sha256(repr(sorted(each.items())).encode()).hexdigest() for each in digests]
    digested = [
        structs.replace(run, facts=run.facts | {"code": code[:8]}) if each else run
        for run, each, code in zip(runs, digests, codes, strict=True)
    ]
    more = f" and {len(names) - _MAX_NAMED_FILES} more" if len(names) > _MAX_NAMED_FILES else ""
    return digested, [f"the code differs in {', '.join(names[:_MAX_NAMED_FILES])}{more}"]


def _flatten_job(path: Path, plan: Plan | None) -> dict[str, str]:
    """Flatten the requested job; return an empty dict if its file is missing or corrupt."""
    try:
        tree = parse_document(read_plain(path).decode("utf-8"), str(path), [])
    except (OSError, UnicodeDecodeError, SpecError):
        return {}
    facts: dict[str, str] = {}
    for name, node in tree.entries.items():
        if name in ("args", "command") and plan is not None:
            words = _fill_placeholders(name, [item.text for item in node.items], plan)
            facts |= split_options(name, words)
        elif name not in _IGNORED_KEYS:
            facts |= _flatten(name, node)
    return facts


def _fill_placeholders(key: str, words: list[str], plan: Plan) -> list[str]:
    """Return the words of a key as the program gets them; directories of the run stay placeholders.

    If the program differs in a word without a placeholder, the words are returned unchanged.
    """
    first = len(plan.program) - len(words) if key == "args" else 0
    filled = plan.program[first : first + len(words)] if first >= 0 else []
    pairs = list(zip(words, filled, strict=False))
    if len(pairs) < len(words) or any(a != b and "{" not in a for a, b in pairs):
        return words
    own = {plan.checkpoint_dir: "{checkpoint_dir}", plan.run_dir: "{run_dir}"}
    own[plan.run_id] = "{run_id}"
    for value in sorted(filter(None, own), key=len, reverse=True):
        filled = [word.replace(value, own[value]) for word in filled]
    return filled


def _flatten(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Flatten a tree of YAML or JSON to texts with dotted keys; maps in lists are omitted.

    >>> dict(_flatten("", {"a": {"b": True}, "c": [1, None, 0.1]}))
    {'a.b': 'true', 'c': '1 null 0.1'}
    """
    value = value.value if isinstance(value, Node) else value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flatten(f"{key}.{name}" if key else name, inner)
    elif isinstance(value, list):
        items = [text for item in value for name, text in _flatten("", item) if not name]
        yield from (
            split_options(key, items) if key in ("args", "command") else [(key, " ".join(items))]
        )
    else:
        yield key, value if isinstance(value, str) else json.dumps(value)


def _flatten_plan(plan: Plan) -> dict[str, str]:
    names = _PLAN_FIELDS | (_BATCH_FIELDS if plan.effective_batch is not None else {})
    found = {key: getattr(plan, name) for key, name in names.items()}
    facts = {key: str(value) for key, value in found.items() if value is not None}
    if partition := dict(plan.directives).get("partition"):
        facts["resources.partition"] = partition
    if plan.reference_trainer:
        facts["script"] = "the reference trainer"
    if plan.deepspeed_config is not None:
        config = dict(_flatten("", plan.deepspeed_config))
        facts["deepspeed.zero_stage"] = config.get("zero_optimization.stage", "0")
        for part in ("optimizer", "param"):
            device = config.get(f"zero_optimization.offload_{part}.device", "none")
            facts[f"deepspeed.offload.{part}"] = device
        rest = {key: value for key, value in config.items() if not _DERIVED.fullmatch(key)}
        facts |= {f"deepspeed.config.{key}": value for key, value in rest.items()}
    return facts
