"""Files of pipelines: their types, references and order."""

from __future__ import annotations

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from hpcrun.errors import SpecError
from hpcrun.spec.pipeline import list_followers, load_pipeline
from hpcrun.spec.schema import pipeline_schema

GOOD = """\
export: {job: export, after: [train, prepare], when: always, args: {format: onnx}}
train: {job: train, after: prepare, args: --lr 3e-4}
prepare: {job: tokenize}
"""


EACH = "for_each_checkpoint_of: b"


def test_stages_are_sorted_by_their_dependencies() -> None:
    stages = load_pipeline(GOOD, source="p.yaml")
    assert [*stages] == ["prepare", "train", "export"]
    assert stages["train"].after == ["prepare"] and stages["train"].args == ["--lr", "3e-4"]
    assert stages["export"].args == ["--format", "onnx"]
    assert list_followers(stages, ["train"]) == ["train", "export"]
    jsonschema.Draft202012Validator(pipeline_schema()).validate(yaml.safe_load(GOOD))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {job: b, afte: c}", "p.yaml:1: a.afte: unknown key; did you mean after?"),
        ("a: {after: b}", "p.yaml:1: a.job: is missing"),
        ("a: {job: x, args: {s: false}}", "p.yaml:1: a.args.s: a switch is on"),
        ("a: {job: x, when: later}", "p.yaml:1: a.when: expected one of always, each, failure"),
        ("a: {job: x, when: each}", "p.yaml:1: a.when: each needs after"),
        (
            "a: {job: x, after: [b, c], when: each}\nb: {job: x}\nc: {job: x}",
            "p.yaml:1: a.when: each needs one stage in after, a sweep",
        ),
        ("a: {job: x, when: failure}", "p.yaml:1: a.when: failure needs after"),
        ("a: {job: x, after: bb}\nb: {job: x}", "p.yaml:1: a.after: there is no stage bb; did"),
        ("a: {job: x, after: a}", "the stages wait for each other: a -> a"),
        ("a: {job: x, after: b}\nb: {job: x, after: a}", "wait for each other: a -> b -> a"),
        ("a: {job: x, parallel: 2}", "a.parallel: applies only with for_each_checkpoint_of"),
        (f"a: {{job: x, {EACH}}}\nb: {{job: x}}", "a.args: {checkpoint} is missing"),
        (f"a: {{job: x, {EACH}, after: b}}\nb: {{job: x}}", "and after exclude each other"),
        (f"a: {{job: x, {EACH}}}", "a.for_each_checkpoint_of: there is no stage b"),
        (f"a: {{job: x, {EACH}}}\nb: {{job: x}}\nc: {{job: x, after: a}}", "nothing can wait"),
        ("a: train", "p.yaml:1: a: expected keys"),
        ("1a: {job: x}", "p.yaml:1: 1a: expected a name of letters"),
        ("a.b: {job: x}", "expected a name of letters"),
        ("", "p.yaml:1: no stages: write NAME: {job: JOB}"),
        ("[a]", "expected keys"),
    ],
)
def test_invalid_pipelines_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        load_pipeline(text, source="p.yaml")
    assert message in str(raised.value), raised.value
