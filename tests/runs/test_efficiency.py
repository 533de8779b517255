"""The efficiency of runs, and the advice that follows from it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hpcrun.runs.advice import Advice, advise
from hpcrun.runs.efficiency import RunEfficiency, measure_run
from hpcrun.runs.ends import Stall
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Attempt, Begin, End, History, Submitted, Task
from hpcrun.runs.status import JobStatus, ResourceUsage
from hpcrun.runs.usage import NodeSeries, parse_node_usage
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm import JobAccounting, SlurmJob
from hpcrun.spec import CostFactors

HOUR = 3600.0
GIB = 1 << 30
RUN_ID = "20261120-081455-train-7k3q"


def attempt(index: int = 0, *, at: float = 1000.0, seconds: float = HOUR, **known: Any) -> Attempt:
    nodes = known.pop("nodes", "n1")
    begin = Begin(attempt=index, job_id=str(7 + index), host="n1", pid=1, nodes=nodes, begun_at=at)
    end = End(
        attempt=index,
        job_id=str(7 + index),
        exit_code=known.pop("exit_code", 0),
        signal=None,
        stopped_by=None,
        first_failure=None,
        begun_at=at,
        ended_at=at + seconds,
        next=known.pop("next", None),
        why=known.pop("why", None),
    )
    return Attempt(index=index, begin=begin, end=end, **known)


def status(*attempts: Attempt, **known: Any) -> JobStatus:
    submitted = Submitted(
        job_id="7", cluster="c", slurm_conf=None, submitted_at=400.0, host="h", user="me"
    )
    history = History(run_id=RUN_ID, submitted=submitted, attempts=list(attempts))
    values: dict[str, Any] = {
        "verdict": Verdict(state="COMPLETED", final=True),
        "history": history,
        "run": RunFolder("/runs/" + RUN_ID),  # type: ignore[arg-type]
        "job_id": "7",
        "name": "train",
        "submitted_at": 400.0,
        "gpus_per_node": 4,
        "node_count": 1,
    }
    return JobStatus(**values | known)


def usage(
    *uses: int, minutes: int = 60, idle_after: int | None = None, node: str = "n1", attempt: int = 0
) -> NodeSeries:
    """Return the use of a node with GPUs of a constant use, all idle after some minutes."""
    names = " ".join(f"nvidia:GPU-{node}-{n}:81920" for n in range(len(uses)))
    lines = [f"hpcrun-usage 1 {node} 15 job 16 job {64 * GIB} {names}".rstrip()]
    for minute in range(minutes + 1):
        busy = minute if idle_after is None else min(minute, idle_after)
        gpus = [f"{use * 4 * busy} 1000 2000 {1200 * minute}" for use in uses]
        host = f"{1000 + 60 * minute} {60 * minute} {8 * 60 * minute}000000000"
        lines.append(f"{host} {GIB} {2 * GIB} {4 * minute} {' '.join(gpus)}".rstrip())
    found = parse_node_usage(lines, rank=0, attempt=attempt)
    assert found is not None
    return found


def measure(found: JobStatus, **known: Any) -> RunEfficiency:
    return measure_run(found, now=10_000.0, **known)


def suggest(*runs: RunEfficiency) -> list[Advice]:
    return advise(runs)[0]


def test_hours_and_losses_of_one_attempt_add_up() -> None:
    one = measure(
        status(attempt(moved=1000 + 360.0)),
        usage=[usage(90, 90, 90, 90, idle_after=54)],
        saving_seconds={0: 180.0},
    )
    assert (one.hours, one.unit, one.gpus, one.queue_seconds) == (4.0, "gpu", 4, 600.0)
    lost = one.lost
    assert lost.startup == pytest.approx(0.4)
    assert lost.idle_tail == pytest.approx(0.4)
    assert lost.checkpoint == pytest.approx(0.2)
    assert (lost.restart, lost.replayed, lost.stalled) == (0.0, 0.0, 0.0)
    assert one.goodput == pytest.approx(0.75)


def test_replayed_steps_and_restarts_are_lost() -> None:
    first = attempt(0, moved=1000.0, first_step=0, last_step=99, exit_code=1, next="8")
    second = attempt(1, at=1000 + HOUR + 300, moved=1000 + HOUR + 300 + 360.0)
    second = structs.replace(second, first_step=50, last_step=149)
    one = measure(status(first, second))
    assert (one.hours, one.attempts, one.waited_seconds) == (8.0, 2, 300.0)
    assert one.lost.restart == pytest.approx(0.4)
    assert one.lost.replayed == pytest.approx(0.5 * 3.6)
    assert one.goodput == pytest.approx(1 - 2.2 / 8)


def test_stalled_time_is_not_counted_as_idle_tail_too() -> None:
    stall = Stall(silent_seconds=1200.0, threshold=600.0, since=1000 + HOUR - 1200)
    found = status(
        attempt(moved=1000.0, exit_code=1, stall=stall),
        verdict=Verdict(state="FAILED", final=True),
    )
    one = measure(found, usage=[usage(90, 90, 90, 90, idle_after=40)])
    assert one.lost.stalled == pytest.approx(4 / 3)
    assert one.lost.idle_tail == pytest.approx(0.0)


def test_goodput_is_unknown_without_a_first_step() -> None:
    one = measure(status(attempt()))
    assert one.hours == 4.0
    assert (one.goodput, one.lost.startup, one.lost.idle_tail) == (None, None, None)


def test_idle_gpus_at_the_end_are_unknown_while_the_run_trains() -> None:
    found = status(attempt(moved=1000.0), verdict=Verdict(state="RUNNING"))
    assert measure(found, usage=[usage(90, 90, idle_after=40)]).lost.idle_tail is None


def test_run_without_gpus_counts_node_hours() -> None:
    found = status(attempt(moved=1000.0), gpus_per_node=0, node_count=1)
    factors = CostFactors(per_gpu_hour=9.0, per_node_hour=0.5, kg_co2_per_kwh=0.3)
    one = measure(found, factors=factors, usage=[usage()])
    assert (one.hours, one.unit, one.gpus, one.cost) == (1.0, "node", None, 0.5)
    assert (one.gpu_use, one.energy_kwh, one.co2_kg, one.lost.idle_tail) == (None,) * 4


def test_energy_is_slurms_or_else_that_of_the_gpus() -> None:
    factors = CostFactors(per_gpu_hour=1.2, kg_co2_per_kwh=0.5)
    samples, slurm = [usage(90, 90, 90, 90)], JobAccounting(energy_joules=7.2e6)
    of_gpus = measure(status(attempt()), usage=samples, factors=factors)
    assert of_gpus.energy_of == "gpus" and of_gpus.energy_kwh == pytest.approx(1.2)
    assert of_gpus.co2_kg == pytest.approx(0.6) and of_gpus.cost == pytest.approx(4.8)
    of_nodes = measure(status(attempt()), usage=samples, accounts=[slurm], factors=factors)
    assert of_nodes.energy_of == "nodes" and of_nodes.energy_kwh == pytest.approx(2.0)


def test_job_of_slurm_alone_has_hours_but_no_goodput() -> None:
    job = SlurmJob(
        *(),
        job_id="9",
        source="sacct",
        state="COMPLETED",
        nodes="2",
        gpus=8,
        elapsed="2:00:00",
        limit="1-00:00:00",
        name="mine",
    )
    found = JobStatus.of_job("9", Verdict(state="COMPLETED", final=True), job)
    one = measure(found, queue_seconds=60.0)
    assert (one.hours, one.gpus, one.nodes, one.queue_seconds) == (16.0, 8, 2, 60.0)
    assert (one.run_id, one.goodput, one.limit_seconds) == (None, None, 86400.0)
    assert [each.option for each in suggest(one)] == ["--time 2:30:00"]


def test_pending_run_has_waited_until_now() -> None:
    one = measure(status(verdict=Verdict(state="PENDING")))
    assert (one.queue_seconds, one.hours, one.elapsed_seconds) == (9600.0, None, None)
    assert advise([one]) == ([], [])


# ---- advice


def test_idle_gpus_are_not_requested_again() -> None:
    (found,) = suggest(measure(status(attempt()), usage=[usage(90, 80, 0, 0)]))
    assert found.text == "2 of 4 GPUs idle (under 1 % of 60 min)"
    assert found.option == "--gpus-per-node 2"


def test_idle_nodes_are_not_requested_again() -> None:
    idle = structs.replace(usage(0, 0, 0, 0, node="n2"), rank=1)
    found = status(attempt(nodes="n[1-2]"), node_count=2)
    one = measure(found, usage=[usage(90, 90, 90, 90), idle])
    assert [each.option for each in suggest(one)] == ["--nodes 1"]


def test_run_that_uses_no_gpu_may_not_find_them() -> None:
    (found,) = suggest(measure(status(attempt()), usage=[usage(0, 0, 0, 0)]))
    assert "4 of 4 GPUs idle" in found.text and "does the program find its GPUs?" in found.text
    assert found.option == "--gpus-per-node 0"


@pytest.mark.parametrize(("minutes", "note"), [(5, "too few samples"), (25, "25 min of 60 min")])
def test_few_samples_give_no_advice_but_a_note(minutes: int, note: str) -> None:
    one = measure(status(attempt()), usage=[usage(90, 0, 0, 0, minutes=minutes)])
    found, notes = advise([one])
    assert found == []
    assert len(notes) == 1 and note in notes[0] and "needs 10 min" in notes[0]


def test_run_without_gpus_gets_no_note_on_samples_of_gpus() -> None:
    for samples in ([], [usage(minutes=5)]):
        assert advise([measure(status(attempt(), gpus_per_node=0), usage=samples)]) == ([], [])


def test_gpus_with_a_missing_sample_give_no_advice() -> None:
    node = usage(90, 90, 90, 0)
    unknown = structs.replace(node.gpus[0], utilization=None)
    one = measure(status(attempt()), usage=[structs.replace(node, gpus=[unknown, *node.gpus[1:]])])
    assert suggest(one) == []


def test_unused_host_memory_is_not_requested_again() -> None:
    used = ResourceUsage(memory_asked=100 * GIB, memory_used=32 * GIB)
    accounts = [JobAccounting(memory_used=32 * GIB)]
    (found,) = suggest(measure(status(attempt()), used=used, accounts=accounts))
    assert found.text == "68 % of the requested host memory unused (32.0 of 100.0 GiB at most)"
    assert found.option == "--set resources.memory_per_node=40G"
    running = status(attempt(), verdict=Verdict(state="RUNNING"))
    assert suggest(measure(running, used=used, accounts=accounts)) == []


def requeued(*, gpus: int = 1, **known: Any) -> JobStatus:
    """Return a run of 20 minutes on n1 and, after a preemption, an hour on n2."""
    first = attempt(0, seconds=1200.0, why="preempted", next="8", **known)
    second = attempt(1, at=3000.0, nodes="n2")
    return status(first, second, gpus_per_node=gpus)


def test_gpu_use_is_weighted_by_time_and_counts_the_gpus_of_one_attempt() -> None:
    samples = [usage(0, minutes=20), usage(96, node="n2", attempt=1)]
    one = measure(requeued(), usage=samples)
    assert one.gpu_use == pytest.approx(72.0) and (one.sampled_gpus, one.gpus) == (1, 1)
    assert [each.kind for each in suggest(one)] == []
    idle = [usage(90, 0, minutes=20), usage(90, 0, node="n2", attempt=1)]
    (found,) = suggest(measure(requeued(gpus=2), usage=idle))
    assert found.text == "1 of 2 GPUs idle (under 1 % of 20 min)"
    assert found.option == "--gpus-per-node 1"


def test_gpus_without_samples_are_named_and_prevent_advice() -> None:
    """With one GPU per task, only that of the first task is sampled."""
    one = measure(status(attempt()), usage=[usage(0)])
    assert (one.sampled_gpus, one.training_gpus, one.lost.idle_tail) == (1, 4, None)
    assert advise([one]) == (
        [],
        [
            "7: 1 of 4 GPUs sampled; advice on GPUs needs samples of all of the run's GPUs, "
            "and of no others"
        ],
    )
    visible = measure(status(attempt(), gpus_per_node=1), usage=[usage(90, 0)])
    assert advise([visible])[0] == [] and "2 GPUs sampled" in advise([visible])[1][0]
    assert (one.energy_kwh, visible.energy_kwh) == (None, None)


def test_energy_of_a_part_of_the_run_is_unknown() -> None:
    last = usage(90, node="n2", attempt=1)
    one = measure(requeued(), usage=[last], factors=CostFactors(kg_co2_per_kwh=0.5))
    assert (one.sampled_share, one.energy_kwh, one.co2_kg) == (0.75, None, None)
    notes = advise([one, measure(status(attempt()))])[1]
    assert notes[-1] == "GPU use and memory by samples are of a part of the time of: 7 (75 %)"
    whole = measure(requeued(), usage=[usage(90, minutes=20), last])
    assert (whole.used.cpus, whole.used.cpu_share) == (16, 0.5)
    assert whole.sampled_share == 1.0 and whole.energy_kwh == pytest.approx(0.4)


def test_host_memory_is_the_peak_of_all_attempts() -> None:
    last = ResourceUsage(memory_asked=100 * GIB, memory_used=10 * GIB, cpu_share=0.9)
    first, second = (
        JobAccounting(memory_used=used * GIB, cpu_seconds=busy, held_seconds=100.0)
        for used, busy in ((40, 10.0), (10, 90.0))
    )
    one = measure(requeued(), used=last, accounts=[first, second])
    assert (one.used.memory_used, one.is_memory_partial) == (40 * GIB, False)
    assert one.used.cpu_share == pytest.approx(0.5)
    assert [each.option for each in suggest(one)] == ["--set resources.memory_per_node=50G"]
    # The samples of a node may exceed those of Slurm.
    node = structs.replace(usage(90), memory_peak=60 * GIB)
    sampled = measure(status(attempt(), gpus_per_node=1), used=last, accounts=[first], usage=[node])
    assert suggest(sampled) == []


def test_host_memory_of_a_part_of_the_run_gives_no_advice() -> None:
    last = ResourceUsage(memory_asked=100 * GIB, memory_used=10 * GIB)
    one = measure(requeued(), used=last, usage=[usage(90, node="n2", attempt=1)])
    assert one.is_memory_partial and one.node_memory_peak is None
    assert suggest(one) == []


@pytest.mark.parametrize("why", ["out_of_memory", None])
def test_attempt_that_ran_out_of_memory_prevents_advice_on_memory(why: str | None) -> None:
    used = ResourceUsage(memory_asked=100 * GIB, memory_used=10 * GIB)
    accounts = [JobAccounting(memory_used=10 * GIB)] * 2
    first = attempt(0, why=why, exit_code=1, next="8")
    if why is None:  # the whole job was killed
        first = structs.replace(first, end=None)
    one = measure(status(first, attempt(1)), used=used, accounts=accounts)
    assert suggest(one) == []


def test_run_with_several_attempts_gets_no_advice_on_its_time_limit() -> None:
    found = structs.replace(requeued(), limit=8 * HOUR)
    assert suggest(measure(found)) == []
    assert suggest(measure(status(attempt(), limit=8 * HOUR)))


def test_time_limit_is_the_longest_of_all_tasks() -> None:
    """Tasks of a sweep have one request: what one of them needs, all get."""

    def task(index: int, seconds: float, state: str = "COMPLETED") -> RunEfficiency:
        found = status(
            attempt(seconds=seconds), limit=8 * HOUR, verdict=Verdict(state=state, final=True)
        )
        of = Task(sweep_id="20261120-081455-lr-7k3q", index=index, values={})
        return measure(structs.replace(found, history=structs.replace(found.history, task=of)))

    (found,) = suggest(task(0, 1200), task(1, HOUR))
    assert found.option == "--time 1:15:00" and len(found.words) == 2
    assert found.text.startswith("time limit 8.0 times longer than needed (8:00:00, and 1:00:00")
    assert suggest(task(0, 1200), task(1, 6 * HOUR)) == []
    assert suggest(task(0, 1200), task(1, HOUR, "TIMEOUT")) == []


def test_short_run_gets_no_advice_on_its_time_limit() -> None:
    assert suggest(measure(status(attempt(seconds=100), limit=8 * HOUR))) == []


def test_large_losses_are_named_with_their_hours() -> None:
    one = measure(status(attempt(moved=1000 + 900.0)))
    (found,) = suggest(one)
    assert found.text.startswith("25 % of the time (1.00 of 4.00 GPU hours) before the first step")


def test_low_use_suggests_to_explain_the_speed() -> None:
    (found,) = suggest(measure(status(attempt()), usage=[usage(30, 30, 30, 30)]))
    assert (
        found.text
        == "the GPUs were busy for 30 % of 60 min; hpcrun why 7 lists what slows the run down"
    )
