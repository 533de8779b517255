"""survive and checkpoint as sbatch options and program arguments."""

from __future__ import annotations

import subprocess

import pytest

from hpcrun.errors import SpecError
from hpcrun.plan.types import Plan
from hpcrun.render.environment import open_templates
from hpcrun.render.files import render_files
from tests.plan import making

JOB = "script: a.py\n"


def options(made: Plan) -> dict[str, str | None]:
    """Return the sbatch options that control restarts."""
    return {k: v for k, v in made.directives if k in ("requeue", "no-requeue", "signal")}


def test_job_without_survive_is_never_requeued() -> None:
    made = making.plan(JOB)
    assert options(made) == {"no-requeue": None}
    assert (made.survive.when, made.survive.max_attempts, made.survive.warned) == ([], 1, None)


def test_survive_when_lists_the_causes_of_a_restart() -> None:
    made = making.plan(JOB + "survive: {when: [preempted, node_fail, preempted]}")
    assert options(made) == {"requeue": None}
    assert made.survive.when == ["preempted", "node_fail"]
    assert made.survive.max_attempts == 20


@pytest.mark.parametrize(
    ("survive", "signal", "saves"),
    [
        ("when: [time_limit]", "B:URG@60", False),
        ("when: [time_limit], save_before_end: 5m", "B:URG@300", True),
        ("when: [time_limit], save_before_end: 10s", "B:URG@60", True),
        ("save_before_end: 90s", "B:URG@90", True),
    ],
)
def test_save_before_end_sets_the_signal_option(survive: str, signal: str, saves: bool) -> None:
    made = making.plan(f"{JOB}survive: {{{survive}}}")
    assert options(made)["signal"] == signal
    name = signal[2:].partition("@")[0]
    assert not subprocess.call(["bash", "-c", f"kill -{name} $$"]), (
        "a shell that has only begun lives"
    )
    assert made.survive.saves is saves
    # Slurm itself requeues a job only after a preemption or a node failure.
    assert "no-requeue" in options(made)


def test_save_before_end_longer_than_the_limit_is_refused() -> None:
    asks = 'resources: {time: "5"}\nsurvive: {when: [time_limit], save_before_end: %s}'
    assert options(making.plan(JOB + asks % "4m"))["signal"] == "B:URG@240"
    match = r"survive\.save_before_end: 300s, and the time limit is 5 \(resources\.time\)"
    with pytest.raises(SpecError, match=match):
        making.plan(JOB + asks % "300s")
    with pytest.raises(SpecError, match=r"0m leaves no time to save: remove it"):
        making.plan(JOB + asks % "0m")
    with pytest.raises(SpecError, match=r"19h: Slurm can signal at most 18h before the end"):
        making.plan(JOB + asks % "19h")


@pytest.mark.parametrize(
    ("before", "trains"), [("4m", "0 to 60 s"), ("200s", "40 to 100 s"), ("3m", "")]
)
def test_attempt_with_little_training_time_has_a_note(before: str, trains: str) -> None:
    asks = f'resources: {{time: "5"}}\nsurvive: {{when: [time_limit], save_before_end: {before}}}'
    notes = [note for note in making.plan(JOB + asks).notes if "save_before_end" in note]
    assert [f"an attempt trains for {trains}" in note for note in notes] == [True] * bool(trains)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("$HOME/ck", "~ and variables are not expanded here"),
        ("~/ck", "~ and variables are not expanded here"),
        (".", "the run's own folder, with its logs: name a subfolder"),
        ("./", "the run's own folder, with its logs: name a subfolder"),
        ("..", "is outside the run's folder"),
        ("a/../../b", "is outside the run's folder"),
    ],
)
def test_ambiguous_checkpoint_dir_is_refused(folder: str, message: str) -> None:
    with pytest.raises(
        SpecError, match=f"checkpoint.dir: .*{message}(.*: write (the|an) absolute|$)"
    ):
        making.plan(f"{JOB}checkpoint: {{dir: {folder}}}")


def test_misspelled_resume_placeholder_is_reported_once() -> None:
    with pytest.raises(SpecError) as caught:
        making.plan(JOB + 'checkpoint: {resume: "--resume {resum}"}')
    assert "did you mean {resume}" in str(caught.value)
    assert "is missing" not in str(caught.value)


def test_stalled_after_sets_the_limit_in_the_batch_script() -> None:
    def line(text: str) -> list[str]:
        files = {
            one.name: one.text for one in render_files(making.plan(text), open_templates(None))
        }
        head = files["job.sbatch"].partition('"${1-}" = body')[0]
        return [each for each in head.splitlines() if "STALLED_AFTER" in each]

    assert line(JOB) == []
    for wrong in ("0s", "9999999999h"):
        with pytest.raises(SpecError, match=f"stalled_after: .*{wrong}"):
            making.plan(JOB + f"survive: {{stalled_after: {wrong}}}")
    # Above the line that starts the harness, which watches the logs.
    found = line(JOB + "survive: {stalled_after: 30m}")
    assert found == ["export HPCRUN_STALLED_AFTER=1800 # seconds without a step"]


def test_requeue_option_restarts_after_preemption_and_node_failure() -> None:
    made = making.plan(JOB + "slurm: {requeue: true}")
    assert options(made) == {"requeue": None}
    assert made.survive.when == ["preempted", "node_fail"]
    assert making.plan(JOB, "slurm: {requeue: true}").survive.when == ["preempted", "node_fail"]


def test_survive_with_no_requeue_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no-requeue: survive\.when has preempted: remove one"):
        making.plan(JOB + "survive: {when: [preempted]}\nslurm: {no-requeue: true}")


def test_checkpoint_dir_and_resume_arguments_are_planned() -> None:
    made = making.plan(JOB + 'checkpoint: {resume: "--resume {resume}"}')
    assert made.survive.resume == ["--resume", "${HPCRUN_RESUME}"]
    assert made.checkpoint_dir == f"{made.run_dir}/checkpoints"
    inside = making.plan(JOB + "checkpoint: {dir: out/ckpt}")
    assert inside.checkpoint_dir == f"{inside.run_dir}/out/ckpt"
    assert making.plan(JOB + "checkpoint: {dir: /s/me}").checkpoint_dir == "/s/me"


@pytest.mark.parametrize(
    ("resume", "message"),
    [
        ("--resume latest", "is missing, the checkpoint to resume from"),
        ("--resume '{resume}", "No closing quotation"),
        ("--from {resum} {resume}", "did you mean {resume}"),
    ],
)
def test_invalid_resume_arguments_are_refused(resume: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        making.plan(f'{JOB}checkpoint: {{resume: "{resume}"}}')


@pytest.mark.parametrize("words", [["--resume"], ["--auto-resume", "-c"]])
def test_resume_switch_without_placeholder_is_accepted(words: list[str]) -> None:
    made = making.plan(f'{JOB}checkpoint: {{resume: "{" ".join(words)}"}}')
    assert made.survive.resume == words


@pytest.mark.parametrize("survive", ["", "survive: {when: [preempted]}\n"])
def test_checkpoint_retention_is_written_to_every_batch_script(survive: str) -> None:
    made = making.plan(f"{JOB}{survive}checkpoint: {{keep: 3, marker: it's whole}}")
    script = next(
        file.text for file in render_files(made, open_templates(None)) if file.name == "job.sbatch"
    )
    head = script.partition('[ "${1-}" = body ]')[0]
    assert f"\nexport HPCRUN_CHECKPOINT_DIR={made.checkpoint_dir} HPCRUN_WORLD_SIZE=" in head
    assert "\nexport HPCRUN_CHECKPOINT_KEEP=3\n" in head
    assert "\nexport HPCRUN_CHECKPOINT_MARKER='it'\\''s whole'\n" in head


@pytest.mark.parametrize(
    "wrong", ["keep: 0", "marker: a/b", "marker: ''", "marker: ..", "marker: '*.pt'"]
)
def test_invalid_keep_and_marker_are_refused(wrong: str) -> None:
    with pytest.raises(SpecError, match=r"checkpoint\.(keep|marker)"):
        making.plan(f"{JOB}checkpoint: {{{wrong}}}")


def test_spare_nodes_are_requested_and_counted() -> None:
    survive = (
        "survive: {when: [node_fail], spare_nodes: 1}\nresources: {nodes: 2, gpus_per_node: 1}"
    )
    made = making.plan(JOB + survive)
    given = dict(made.directives)
    assert (given["nodes"], given["no-kill"], made.nodes, made.world_size) == ("3", None, 2, 2)
    assert any("charges for, 3 nodes for 2: 50 % more" in note for note in made.notes)
    with pytest.raises(SpecError, match=r"spare_nodes: nothing uses them: survive\.when needs"):
        making.plan(JOB + survive.replace("node_fail", "preempted"))
