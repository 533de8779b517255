"""hpcrun logs of a requeued run, whose batch log contains all attempts."""

from __future__ import annotations

import pytest

from tests.cli.calling import Caller
from tests.cli.logged_run import Run


@pytest.fixture
def run(hpcrun: Caller) -> Run:
    """Write attempt 0 on n1 and n2, attempt 1 on n2 and n3, and a batch log of both."""
    made = Run(hpcrun)
    for attempt, hosts in enumerate((("n1", "n2"), ("n2", "n3"))):
        text = "".join(f"{host} slots=2\n" for host in hosts)
        made.write(f"attempts/{attempt}/hostfile", text)
        for rank in range(4):
            made.write(f"logs/{attempt}/rank-{rank}.log", f"rank {rank} of attempt {attempt}\n")
    zero = "hpcrun: attempt 0 of job 7 begins on n[1-2]\nerror: zero\nzero\n"
    one = "hpcrun: attempt 1 of job 7 begins on n[2-3]\nerror: one\none\n"
    made.write("logs/batch.log", zero + one)
    return made


def test_last_lines_are_counted_within_the_attempt(run: Run) -> None:
    last = {attempt: run.logs("--attempt", attempt, "-n", "1") for attempt in ("0", "1", "last")}
    assert last["0"].splitlines()[-1] == "zero" and "one" not in last["0"]
    assert last["1"].splitlines()[-1] == "one" and last["1"] == last["last"]
    assert run.logs("--attempt", "0", "-n", "0") == ""
    assert "one" not in run.logs("--attempt", "0", "-n", "9")
    assert "error: zero" not in run.logs("--attempt", "0", "-n", "1", "--grep", "zero")
    # --since must not include output of a later attempt.
    run.write("logs/batch.log", (run.path / "logs/batch.log").read_text() + "2030-01-01 00:00:00\n")
    assert "one" not in run.logs("--attempt", "0", "--since", "2029-12-31T00:00")


def test_err_shows_errors_of_the_requested_attempt(run: Run) -> None:
    for options, there, gone in (
        (("--attempt", "0"), "error: zero", "error: one"),
        (("--attempt", "1"), "error: one", "error: zero"),
        ((), "error: one", "error: zero"),
    ):
        found = run.logs("--err", *options)
        assert there in found and gone not in found, options


def test_node_numbers_depend_on_the_attempt(run: Run) -> None:
    for host, expected in (("n1", {(0, 0)}), ("n2", {(0, 1), (1, 0)}), ("n3", {(1, 1)})):
        assert {(each["attempt"], each["node"]) for each in run.json("--node", host)} == expected
    assert {each["attempt"] for each in run.json("--node", "01")} == {0, 1}
    run.write("attempts/10/hostfile", "n1 slots=2\n")
    assert {each["rank"] for each in run.json("--node", "n2", "--attempt", "1")} == {0, 1}
