"""Bad nodes that a job excludes."""

from __future__ import annotations

import pytest

from hpcrun.actions.bad_nodes import add_exclusions
from hpcrun.slurm.cluster import parse_sinfo
from tests.plan.making import plan

ROWS = parse_sinfo(
    "gpu|3|64|512000|idle|n[1-3]|gpu:a100:4(S:0-1)|(null)\n"
    "gpu|1|64|512000|drained|n4|gpu:a100:4(S:0-1)|(null)\n"
    "cpu|8|64|512000|idle|c[1-8]|(null)|(null)\n"
)
BAD = {"n2": "no GPU", "n9": "of another cluster", "c1": "a full disk"}


@pytest.mark.parametrize(
    ("job", "default", "excluded", "note"),
    [
        ("resources: {nodes: 2, partition: gpu}", None, "n2", "n2 is excluded: no GPU; hpcrun"),
        ("resources: {nodes: 2}", "gpu", "n2", "n2 is excluded"),
        ("resources: {nodes: 2, partition: cpu, gpus_per_node: 0}", "gpu", "c1", "c1 is excluded"),
        (
            "resources: {partition: gpu}\nslurm: {exclude: 'n[1,4]'}",
            None,
            "n[1,4],n2",
            "n2 is excluded",
        ),
        # One of three nodes is already drained, so two remain for a job that needs three.
        ("resources: {nodes: 3, partition: gpu}", None, None, "n2 may be bad: no GPU; it is not"),
        ("resources: {nodes: 2, partition: gpu}\nslurm: {exclude: n1}", None, "n1", "n2 may be"),
        # The user's own exclusion.
        ("resources: {partition: gpu}\nslurm: {nodelist: 'n[2-3]'}", None, None, ""),
        ("resources: {partition: gpu}\nslurm: {exclude: n2}", None, "n2", ""),
        ("resources: {partition: gpu}\nslurm: {exclude: ./names}", None, "./names", ""),
    ],
)
def test_bad_nodes_are_excluded_while_enough_nodes_remain(
    job: str, default: str | None, excluded: str | None, note: str
) -> None:
    before = plan(f"script: a.py\n{job}")
    after = add_exclusions(before, BAD, ROWS, default)
    assert dict(after.directives).get("exclude") == excluded
    new = after.notes[len(before.notes) :]
    assert new[0].startswith(note) if note else new == []


def test_no_node_is_excluded_without_node_data_from_slurm() -> None:
    before = plan("script: a.py")
    assert add_exclusions(before, BAD, [], None) == before
