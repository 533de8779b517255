"""Load pipelines: stages that are jobs, and the stages after which each one starts."""

# No `from __future__ import annotations`: msgspec would evaluate every annotation at start-up.

import difflib
from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from hpcrun.errors import Problem, SpecError
from hpcrun.spec.check import build_struct
from hpcrun.spec.job import Stage, StageName
from hpcrun.spec.load import expand_arguments
from hpcrun.spec.rules import find_circle
from hpcrun.spec.yaml12 import Node, is_null, parse_document


class _File(Struct, frozen=True, kw_only=True):
    stages: dict[StageName, Stage]


def load_pipeline(text: str, *, source: str) -> dict[str, Stage]:
    """Load a pipeline: its stages by name, each after those that it waits for.

    Raises:
        SpecError: With all problems.

    >>> text = "test: {job: eval, after: train}\\ntrain: {job: train}"
    >>> list(load_pipeline(text, source="p.yaml"))
    ['train', 'test']
    """
    problems: list[Problem] = []
    tree = _expand_stages(parse_document(text, source, problems), problems)
    stages = build_struct(_File, Node({"stages": tree}, source, 1), problems).stages
    for problem in problems:
        problem.path = problem.path.removeprefix("stages").removeprefix(".")
    if not problems and not stages:
        problems.append(tree.problem("", "no stages: write NAME: {job: JOB}"))
    if not problems:
        _check_order(stages, tree, problems)
    if problems:
        raise SpecError(problems)
    return _sort_stages(stages)


def _expand_stages(tree: Node, problems: list[Problem]) -> Node:
    """Return the tree with lists for ``after: train`` and for arguments that are a map or text."""
    stages = {}
    for name, node in tree.entries.items():
        if isinstance(node.value, dict):
            known = len(problems)
            node = expand_arguments(node, problems)
            for problem in problems[known:]:
                problem.path = f"{name}.{problem.path}"
            after = node.entries.get("after")
            if after is not None and isinstance(after.value, str) and not is_null(after):
                listed = structs.replace(after, value=[after], plain=False)
                node = structs.replace(node, value={**node.entries, "after": listed})
        stages[name] = node
    return structs.replace(tree, value=stages) if isinstance(tree.value, dict) else tree


def _check_order(stages: Mapping[str, Stage], tree: Node, problems: list[Problem]) -> None:
    for name, stage in stages.items():
        node, path = tree.entries[name], f"{name}.after"
        for other in stage.after:
            if other not in stages:
                close = difflib.get_close_matches(other, stages, 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(stages)}"
                problems.append(node.problem(path, f"there is no stage {other}; {hint}"))
            elif stages[other].for_each_checkpoint_of is not None:
                message = f"{other} runs for each checkpoint, and nothing can wait for all of them"
                problems.append(node.problem(path, message))
        training = stage.for_each_checkpoint_of
        own = f"{name}.for_each_checkpoint_of"
        if training is not None and training not in stages:
            problems.append(node.problem(own, f"there is no stage {training}"))
        elif training is not None and stages[training].for_each_checkpoint_of is not None:
            message = f"{training} is itself a stage of several runs"
            problems.append(node.problem(own, message))
        if training is not None and stage.after:
            message = "for_each_checkpoint_of and after exclude each other"
            problems.append(node.problem(path, message))
        if training is not None and not any("{checkpoint}" in word for word in stage.args):
            message = '{checkpoint} is missing, as in [--checkpoint, "{checkpoint}"]'
            problems.append(node.problem(f"{name}.args", message))
        if training is None and "parallel" in node.entries:
            message = "applies only with for_each_checkpoint_of"
            problems.append(node.problem(f"{name}.parallel", message))
        if stage.when != "success" and not stage.after:
            message = f"{stage.when} needs after, the stages whose end decides"
            problems.append(node.problem(f"{name}.when", message))
        if stage.when == "each" and len(stage.after) > 1:
            message = "each needs one stage in after, a sweep"
            problems.append(node.problem(f"{name}.when", message))
    circle = [] if problems else find_circle({name: one.waits_for for name, one in stages.items()})
    if circle:
        message = f"the stages wait for each other: {' -> '.join([*circle, circle[0]])}"
        problems.append(tree.entries[circle[0]].problem(f"{circle[0]}.after", message))


def _sort_stages(stages: Mapping[str, Stage]) -> dict[str, Stage]:
    """Return the stages in the order of the file, but each after those that it waits for."""
    done: dict[str, Stage] = {}
    while len(done) < len(stages):
        name = next(n for n, s in stages.items() if n not in done and done.keys() >= {*s.waits_for})
        done[name] = stages[name]
    return done


def list_followers(stages: Mapping[str, Stage], names: Sequence[str]) -> list[str]:
    """List the named stages and all that wait for them, in order.

    >>> stages = {"a": Stage(job="j"), "b": Stage(job="j", after=["a"]), "c": Stage(job="j")}
    >>> list_followers(stages, ["a"])
    ['a', 'b']
    """
    found: list[str] = []
    for name, stage in stages.items():
        if name in names or not {*stage.after}.isdisjoint(found):
            found.append(name)
    return found
