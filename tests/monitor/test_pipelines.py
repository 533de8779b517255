"""The states of a pipeline's stages."""

from __future__ import annotations

from hpcrun.monitor import StageStatus, find_obstacle, has_failed
from hpcrun.runs import History, JobStatus, Verdict
from hpcrun.spec import load_pipeline


def describe(text: str, **states: str) -> list[StageStatus]:
    """Return the states of stages; one without a state never started."""
    found: dict[str, StageStatus] = {}
    for name, stage in load_pipeline(text, source="p.yaml").items():
        verdict = Verdict(state=states.get(name, "CANCELLED"), final=True)
        one = JobStatus(verdict=verdict, history=History(run_id=name))
        skipped = "" if name in states else find_obstacle(stage, found)
        found[name] = StageStatus(name=name, stage=stage, statuses=[one], skipped=skipped)
    return [*found.values()]


STAGES = """
train: {job: a}
report: {job: a, after: train, when: failure}
send: {job: a, after: report}
archive: {job: a, after: send}
"""


def test_stages_after_a_failure_stage_that_is_not_needed_do_not_fail() -> None:
    stages = describe(STAGES, train="COMPLETED")
    assert [one.skipped for one in stages] == [
        *("", "train succeeded", "report SKIPPED", "send SKIPPED"),
    ]
    assert not has_failed(stages)


def test_stages_skipped_because_of_a_failure_fail_the_pipeline() -> None:
    assert has_failed(describe("a: {job: j}\nb: {job: j, after: a}\n", a="FAILED"))
    assert has_failed(describe(STAGES, train="FAILED", report="COMPLETED", send="COMPLETED"))
    assert has_failed(describe(STAGES, train="COMPLETED", report="FAILED"))
