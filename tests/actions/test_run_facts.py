"""Facts about a run besides its log, read from run folders written by submit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcrun.actions.prepare import prepare_job, prepare_spec
from hpcrun.actions.run_facts import (
    add_attempts,
    add_code_digests,
    digest_code,
    measure_step_time,
    read_run_facts,
)
from hpcrun.actions.submit import write_run
from hpcrun.context import Context, load_context
from hpcrun.curves.report.html import html_text
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import write_record
from tests.curves.parsing import parse_chunks
from tests.curves.report import runs
from tests.curves.report.runs import built
from tests.plan.making import job
from tests.secrets.secret_names import TOKENS, VARIABLES


@pytest.fixture
def context(tmp_path: Path, clean_environ: dict[str, str]) -> Context:
    project = tmp_path / "project"
    (project / "bin").mkdir(parents=True)
    (project / "bin" / "python").touch(0o755)
    (project / "train.py").write_text("print('hello')\n")
    (project / "hpcrun.yaml").write_text(f"python: {project}/bin/python\nruns_dir: ../runs\n")
    return load_context(clean_environ, project)


def written(context: Context, text: str) -> RunFolder:
    made = prepare_spec(context, job(text))
    write_run(context, made, [])
    return RunFolder(made.path)


DEEPSPEED = """\
name: mine
description: words
script: train.py
framework: deepspeed
args: [--ds, "{deepspeed_config}", --lr, 1e-4, --name=x, data, -v, --offset, "-1"]
resources: {nodes: 2, gpus_per_node: 4, gpu_type: a100}
batch: {micro_batch_per_gpu: 2, gradient_accumulation_steps: 3}
deepspeed: {zero_stage: 3, offload: {optimizer: cpu}, config: {steps_per_print: 7}}
"""


def test_settings_contain_job_values_and_derived_values(context: Context) -> None:
    facts, gpus, seconds = read_run_facts(written(context, DEEPSPEED))
    assert (gpus, seconds) == (8, None)
    expected = {
        "script": "train.py",
        "args.--lr": "1e-4",
        "args.--name": "x data",
        "args.-v": "",
        "args.--offset": "-1",
        "resources.nodes": "2",
        "resources.gpus_per_node": "4",
        "resources.gpu_type": "a100",
        "world_size": "8",
        "batch.micro_batch_per_gpu": "2",
        "batch.gradient_accumulation_steps": "3",
        "effective_batch": "48",
        "precision": "bf16",
        "launcher": "torchrun",
        "deepspeed.zero_stage": "3",
        "deepspeed.offload.optimizer": "cpu",
        "deepspeed.offload.param": "none",
        "deepspeed.config.steps_per_print": "7",
    }
    assert {key: facts.get(key) for key in expected} == expected
    assert list(facts) == sorted(facts)


def test_placeholders_in_arguments_have_their_values(context: Context) -> None:
    args = "--bs, '{micro_batch_per_gpu}', --out, '{run_dir}/x', '{{a}}', --nodes, '{nodes}'"
    text = f"script: train.py\nargs: [{args}]\nbatch: {{micro_batch_per_gpu: 4}}\n"
    facts, _, _ = read_run_facts(written(context, text))
    found = {key: value for key, value in facts.items() if key.startswith("args")}
    assert found == {"args.--bs": "4", "args.--out": "{run_dir}/x {a}", "args.--nodes": "1"}


def test_run_names_are_no_settings(context: Context) -> None:
    first, second = (read_run_facts(written(context, DEEPSPEED))[0] for _ in range(2))
    assert first == second
    assert not {"name", "description", "run_id"} & set(first)


def test_batch_not_set_by_the_job_is_unknown(context: Context) -> None:
    facts, gpus, _ = read_run_facts(written(context, "script: train.py\nframework: torch\n"))
    assert gpus == 1 and not [key for key in facts if "batch" in key]
    facts, _, _ = read_run_facts(written(context, "command: [python, a.py]\nbatch: {}\n"))
    assert "effective_batch" not in facts and facts["command"] == "python a.py"


def test_job_without_gpus_counts_no_gpus(context: Context) -> None:
    text = "script: train.py\nresources: {nodes: 2, gpus_per_node: 0}\n"
    facts, gpus, _ = read_run_facts(written(context, text))
    assert gpus is None and facts["world_size"] == "2"


def test_runs_of_a_sweep_differ_by_their_values(context: Context) -> None:
    spec = job(
        "script: train.py\nargs: [--lr, '{lr}', -b, '{micro_batch_per_gpu}']\n"
        "sweep: {lr: [1e-4, 3e-4], batch.micro_batch_per_gpu: [2]}"
    )
    prepared = prepare_job(context, spec)
    shown = []
    for each in prepared.runs:
        run = RunFolder(Path(each.plan.run_dir))
        run.path.mkdir(parents=True)
        for file in each.files:
            (run.path / file.name).write_text(file.text, errors="surrogateescape")
        shown.append(read_run_facts(run)[0])
    differing = {key for key in shown[0] if shown[0][key] != shown[1].get(key)}
    assert differing == {"sweep.lr", "args.--lr"}
    assert (shown[1]["sweep.lr"], shown[1]["effective_batch"]) == ("3e-4", "2")


@pytest.mark.parametrize(
    "text",
    [
        "env: {HF_TOKEN: sesame}",
        "args: [--wandb_api_key, sesame]",
        "args: ['--password=sesame']",
        "setup: {commands: ['export WANDB_API_KEY=sesame']}",
        "env: {PROXY: 'http://me:sesame@proxy:80'}",
        "env: {HUB: hf_sesamesesame}",
    ],
)
def test_secrets_in_a_job_file_are_hidden(context: Context, text: str) -> None:
    assert "sesame" not in str(read_run_facts(written(context, f"script: train.py\n{text}\n")))


def test_every_kind_of_secret_is_omitted(context: Context) -> None:
    values = {f"A{index}": token for index, (_, token, _) in enumerate(TOKENS)} | dict(VARIABLES)
    shown = str(read_run_facts(written(context, f"script: train.py\nenv: {json.dumps(values)}\n")))
    assert [value for value in values.values() if value in shown] == []


def test_harmless_values_with_secret_like_names_are_shown(context: Context) -> None:
    words = "[--pad_token, <pad>, --sort-key, len, --max-tokens, 7, tokenizer=gpt2, data.key=text]"
    facts, _, _ = read_run_facts(written(context, f"script: train.py\nargs: {words}\n"))
    assert {key: value for key, value in facts.items() if key.startswith("args")} == {
        "args.--pad_token": "<pad>",
        "args.--sort-key": "len",
        "args.--max-tokens": "7",
        "args.tokenizer": "gpt2",
        "args.data.key": "text",
    }


def test_seconds_are_summed_over_all_attempts(context: Context) -> None:
    run = written(context, "script: train.py")
    common = {"attempt": 0, "job_id": "1"}
    begin = common | {"host": "n", "pid": 1, "nodes": "n", "begun_at": 1000.0}
    for index in range(4):
        (run.attempts / str(index)).mkdir()
    write_record(run.attempts / "0" / "begin.json", begin)
    end = {"exit_code": 0, "signal": None, "stopped_by": "TERM", "first_failure": None}
    times = {"begun_at": 1000.0, "ended_at": 1300.5}
    write_record(run.attempts / "0" / "end.json", common | end | times)
    # Killed without a record: after its last heartbeat, before the first one, and just claimed.
    write_record(run.attempts / "1" / "begin.json", begin | {"begun_at": 5000.0})
    (run.attempts / "1" / "beat").write_text("5060\n")
    write_record(run.attempts / "2" / "begin.json", begin | {"begun_at": 7000.0})
    assert read_run_facts(run)[2] == 360.5


@pytest.mark.slow
def test_attempts_match_those_of_status(context: Context) -> None:
    text = "script: train.py\nresources: {nodes: 1, gpus_per_node: 4}\nlauncher: srun\n"
    text += "checkpoint: {resume: '--resume {resume}'}\n"
    run = written(context, text)
    for index, steps in enumerate((range(1, 11), range(6, 21))):
        for folder in (run.attempts / str(index), run.logs / str(index)):
            folder.mkdir(parents=True)
        begun, where = 1_800_000_000.0 + 5400 * index, {"job_id": "7", "host": "n1", "pid": 1}
        begin = {"attempt": index, "nodes": "n1", "begun_at": begun, **where}
        write_record(run.attempts / str(index) / "begin.json", begin)
        end: dict[str, Any] = {"why": ("preempted", "done")[index]}
        end |= {"exit_code": 143 * (not index), "signal": None}
        end |= {"stopped_by": None, "first_failure": None, "next": None if index else "requeue"}
        end |= {"checkpoint": "/c/step-5", "begun_at": begun, "ended_at": begun + 3600}
        write_record(
            run.attempts / str(index) / "end.json", {"attempt": index, "job_id": "7"} | end
        )
        log = "".join(f'{{"step": {step}, "loss": 2.0}}\n' for step in steps)
        (run.logs / str(index) / "rank-0.log").write_text(log)
    found = add_attempts(runs.restarted(), run)
    assert [(row[0], *row[2:]) for row in found.attempts] == [
        ("0", "n1", "1:00:00", "1 to 10", "preemption", "resumes from step-5"),
        ("1", "n1", "1:00:00", "6 to 20", "exit code 0", ""),
    ]
    assert found.cost == (
        "8.00 GPU hours, 1.33 for 5 steps repeated, 0.00 restart overhead, goodput 83%; "
        "30:00 between attempts"
    )
    assert found.curve.restarts[0].cause == "preemption"
    page = html_text([found])
    assert found.cost in page and "<td>preemption</td>" in page
    assert "Attempts" not in html_text([runs.restarted()])


def test_folder_with_corrupt_records_yields_no_facts(context: Context) -> None:
    run = written(context, "script: train.py")
    (run.path / "plan.json").write_text("{")
    (run.path / "spec.yaml").write_text("script: [\n")
    assert read_run_facts(run) == ({}, None, None)
    (run.path / "plan.json").unlink()
    (run.path / "spec.yaml").unlink()
    assert read_run_facts(run) == ({}, None, None)


def test_settings_of_an_older_format_are_shown(context: Context) -> None:
    run = written(context, "script: train.py")
    (run.path / "spec.yaml").write_text("script: old.py\nno_such_key: {a: [1, 2], b: null}\n")
    plan = json.loads(run.plan.read_text())
    del plan["world_size"]
    run.plan.write_text(json.dumps(plan))
    facts, gpus, _ = read_run_facts(run)
    assert facts == {"script": "old.py", "no_such_key.a": "1 2", "no_such_key.b": "null"}
    assert gpus is None


def test_code_digest_depends_on_its_files(context: Context) -> None:
    first = written(context, "script: train.py")
    again = written(context, "script: train.py")
    (context.project / "train.py").write_text("print('changed')\n")
    (context.project / "more.py").write_text("")
    second = written(context, "script: train.py")
    one, other = digest_code(first), digest_code(second)
    assert one == digest_code(again)
    assert {name for name in one | other if one.get(name) != other.get(name)} == {
        "train.py",
        "more.py",
    }
    assert digest_code(written(context, "script: train.py\nsnapshot: false")) == {}


def test_differing_code_files_are_listed(context: Context) -> None:
    folders = [written(context, "script: train.py") for _ in range(2)]
    for number in range(6):
        (context.project / f"part{number}.py").write_text("x")
    folders.append(written(context, "script: train.py"))
    runs = [built(run.run_id, {}, facts={"script": "train.py"}) for run in folders]
    plain = built("plain.log", {})
    shown, message = add_code_digests(context.runs_dir, [*runs, plain])
    codes = [run.facts.get("code") for run in shown]
    assert codes[0] == codes[1] != codes[2] and codes[3] is None
    assert message == ["the code differs in part0.py, part1.py, part2.py, part3.py and 2 more"]
    same, message = add_code_digests(context.runs_dir, [*runs[:2], plain])
    assert same == [*runs[:2], plain] and message == []


@pytest.mark.parametrize(
    ("seconds", "steps", "mean"),
    [
        ([30, 60, 90, 120, 150], [100, 200, 300, 400, 500], 0.3),
        ([30, 60, 90, 120], [100, 200, 300, 400], None),  # too few
        ([30, 60, 90, 120, 150], [100, 200, 50, 150, 250], None),  # counts within epochs
        ([30, 60, 90, 120, 150], [1100, 1200, 1300, 1400, 1500], None),  # another counter
    ],
)
def test_step_time_is_measured_by_when_steps_appeared(
    context: Context, seconds: list[int], steps: list[int], mean: float | None
) -> None:
    run = written(context, "script: train.py")
    path = run.attempts / "0" / "pace.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"version": 1, "seconds": seconds, "steps": steps}))
    lines = "".join(f"step {step} loss {3 - step / 900:.4f}\n" for step in range(10, 600, 10))
    curve = parse_chunks("a.log", [(0, [lines.encode()])]).curve
    assert measure_step_time(run, curve) == (mean if mean is None else pytest.approx(mean))
