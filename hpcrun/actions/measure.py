"""Measure a few steps of a job on its cluster: memory by rank, and seconds per step."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, structs

import hpcrun.workloads
from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.earlier_runs import count_devices
from hpcrun.actions.job_memory import JobMemory, estimate_job_memory
from hpcrun.actions.measurements import (
    Measurement,
    NodePeak,
    RankMeasurement,
    record_measurement,
)
from hpcrun.actions.parse import CurveLog
from hpcrun.actions.prepare import Prepared, load_spec, prepare_job, project_templates
from hpcrun.actions.program import split_python_program
from hpcrun.actions.start_folder import find_start_folder
from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError
from hpcrun.fit import Calibration, MeasuredMemory, compute_calibration
from hpcrun.monitor import Source
from hpcrun.plan import Plan, parse_seconds
from hpcrun.remote import RunCommand
from hpcrun.render import RenderedFile, render_files
from hpcrun.runs import RunFolder, parse_node_usage
from hpcrun.spec import Checkpoint, JobSpec, Notify, Survive, dump_job
from hpcrun.structs import decodable

_PROGRAM = Path(hpcrun.workloads.__file__).parent / "measure_step.py"
# Trackers that send data elsewhere, off in a run that is no training.
_NO_TRACKERS = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled"}
# Options of training scripts that name a directory for what a run writes: transformers, Lightning,
# nanoGPT, timm, detectron2, torchvision's references, mmengine.
_OUTPUT_OPTIONS = {
    *("output_dir", "out_dir", "outdir", "output_path", "output", "save_dir", "save_path"),
    *("save_folder", "logging_dir", "log_dir", "logdir", "checkpoint_dir", "ckpt_dir"),
    *("results_dir", "result_dir", "exp_dir", "experiment_dir", "work_dir", "default_root_dir"),
    *("tensorboard_dir", "tb_dir"),
}
# Prints the records of all ranks, and the samples of all nodes.
_PRINT_RECORDS = """\
cd -- "$1" || exit 1
for file in measured/rank-*.json measured/refused-* usage/*/node-*; do
    [ -f "$file" ] || continue
    printf '\\n==> %s\\n' "$file"
    head -c 65536 -- "$file"
done
"""


class MeasuringJob(Struct, frozen=True, kw_only=True):
    """A job that measures another one.

    Attributes:
        spec: The job that is measured.
        plan: Its plan.
        memory: Its estimated memory; None if its model is unknown.
        made: The job to submit.
        replaced: Arguments that name another directory for outputs in it.
    """

    spec: JobSpec
    plan: Plan
    memory: JobMemory | None
    made: Prepared
    replaced: list[str]


def prepare_measurement(
    context: Context, job: str, overrides: Sequence[str], *, steps: int, limit: str
) -> MeasuringJob:
    """Prepare a job with the resources of another one that ends after some steps.

    Its checkpoints and known outputs are in its own directory; it never restarts or notifies.

    Args:
        limit: The time limit, if that of the job is longer.

    Raises:
        InputError: The job cannot be measured.
    """
    spec = load_spec(context, job, overrides)
    for is_other, what in (
        (bool(spec.sweep_keys), "a sweep"),
        (bool(spec.roles), "a job with roles"),
        (isinstance(spec.resources.nodes, str), "a job with a range of nodes"),
    ):
        if is_other:
            raise InputError(
                f"{job}: --measure does not measure {what}",
                fix="--set with one value, or a job file with one program and one number of nodes",
            )
    given = spec.resources.time
    if given is None or parse_seconds(given) > parse_seconds(limit):
        given = limit
    measuring = structs.replace(
        spec,
        name=f"measure-{spec.name or 'job'}",
        group=None,
        resources=structs.replace(spec.resources, time=given),
        checkpoint=Checkpoint(),
        survive=Survive(),
        notify=Notify(to=[]),
        env={**spec.env, **_NO_TRACKERS},
    )
    made = prepare_job(context, measuring, checks=Checks(strict=False)).each()[0]
    plan = made.plan
    program = split_python_program(plan.program)
    if program is None or plan.launcher == "ray":
        raise InputError(
            f"{job}: --measure needs a Python script or module, and the job runs"
            f" {plan.program[0] if plan.program else 'a command'}",
            fix="script: or module: in the job file",
        )
    memory = estimate_job_memory(
        *(spec, plan, context.cluster),
        environ=context.environ,
        folder=find_start_folder(context, plan.start_dir, plan.project_dir),
    )
    python, words = program
    words, replaced = replace_outputs(words, plan.run_dir)
    changed = structs.replace(
        plan, program=[python, f"{plan.run_dir}/{_PROGRAM.name}", str(steps), *words]
    )
    files = [
        *render_files(changed, project_templates(context)),
        *(file for file in made.files if file.name == "spec.yaml"),
        RenderedFile(_PROGRAM.name, _PROGRAM.read_text(encoding="utf-8")),
    ]
    made = structs.replace(made, plan=changed, files=files)
    return MeasuringJob(spec=spec, plan=plan, memory=memory, made=made, replaced=replaced)


def replace_outputs(words: Sequence[str], run_dir: str) -> tuple[list[str], list[str]]:
    """Replace the values of options for outputs by directories of the run; list the options.

    >>> replace_outputs(["t.py", "--out_dir", "out", "--lr=1", "--log-dir=/r/x"], "/r")
    (['t.py', '--out_dir', '/r/outputs/out_dir', '--lr=1', '--log-dir=/r/x'], ['--out_dir'])
    """
    found: list[str] = []
    replaced: list[str] = []
    previous = ""  # an option whose value is the next word
    for word in words:
        name, has_value, value = word.partition("=")
        start = f"{name}="
        if previous and not word.startswith("-"):
            name, has_value, value, start = previous, "=", word, ""
        plain = name.lstrip("-+").replace("-", "_")
        is_output = plain in _OUTPUT_OPTIONS
        previous = name if is_output and not has_value and name.startswith("--") else ""
        if is_output and has_value and not f"{value}/".startswith(f"{run_dir}/"):
            word = f"{start}{run_dir}/outputs/{plain}"
            replaced.append(name)
        found.append(word)
    return found, replaced


# ---- after the job -------------------------------------------------------------------------------


def collect_measurement(context: Context, job: MeasuringJob) -> Measurement:
    """Read what the ranks and nodes of a measuring job recorded, and keep it for later estimates.

    Raises:
        InputError: No rank recorded a step.
    """
    plan = job.made.plan
    query = RunCommand(("bash", "-c", _PRINT_RECORDS, "bash", plan.run_dir), timeout=60.0)
    ranks, nodes, refused = _parse_records(context.transport().run_queries([query])[query].stdout)
    errors = sorted({each.error for each in ranks if each.error})
    stepped = [each for each in ranks if each.seconds]
    if not stepped:
        found = "; ".join(errors[:3]) or "the job ended before a step of an optimizer of torch"
        raise InputError(f"{plan.run_id}: nothing was measured: {found}", fix=_suggest_fix(job))
    size, unit = count_devices(plan)
    measurement = Measurement(
        run_id=plan.run_id,
        at=time.time(),
        spec=dump_job(job.spec),
        size=size,
        unit=unit,
        world_size=plan.world_size,
        effective_batch=plan.effective_batch,
        partition=dict(plan.directives).get("partition"),
        steps=min(len(each.seconds) for each in stepped),
        seconds_per_step=_find_pace(stepped),
        total_steps=_find_total_steps(context, RunFolder(job.made.path)),
        ranks=ranks,
        nodes=nodes,
        refused=refused,
        shape=None if job.memory is None else job.memory.shape,
        training=None if job.memory is None else job.memory.training,
        calibration=_calibrate(job, ranks),
    )
    record_measurement(context, measurement)
    return measurement


def _suggest_fix(job: MeasuringJob) -> str:
    run = job.made.plan.run_id
    return (
        f"hpcrun logs {run}; a script that writes outside of its run's directory needs another "
        "directory for outputs: --set args=..., or {checkpoint_dir} in the job file"
    )


def _parse_records(text: str) -> tuple[list[RankMeasurement], list[NodePeak], list[str]]:
    """Parse the records of ranks, the samples of nodes, and the files that were not changed."""
    ranks: list[RankMeasurement] = []
    nodes: list[NodePeak] = []
    refused: list[str] = []
    for part in re.split(r"^==> ", text, flags=re.M)[1:]:
        name, _, content = part.partition("\n")
        number = name.rpartition("-")[2].removesuffix(".json")
        if name.startswith("measured/rank-"):
            with contextlib.suppress(msgspec.DecodeError, UnicodeEncodeError):
                ranks.append(msgspec.json.decode(content.strip(), type=decodable(RankMeasurement)))
        elif name.startswith("measured/refused-"):
            refused += [line for line in content.splitlines() if line]
        elif number.isdecimal():
            node = parse_node_usage(content.strip().splitlines(), rank=int(number), attempt=0)
            if node is not None:
                peaks = [gpu.memory_peak for gpu in node.gpus if gpu.memory_peak is not None]
                nodes.append(
                    NodePeak(
                        node=node.node,
                        host_peak=node.memory_peak if node.memory_of == "job" else None,
                        gpu_peaks=peaks,
                    )
                )
    return sorted(ranks, key=lambda each: each.rank), nodes, sorted(set(refused))


def _find_pace(ranks: Sequence[RankMeasurement]) -> float | None:
    """Return the seconds per step of the slowest rank; the first step loads and compiles."""
    paces = [statistics.median(each.seconds[1:]) for each in ranks if len(each.seconds) > 1]
    return max(paces, default=None)


def _find_total_steps(context: Context, run: RunFolder) -> int | None:
    """Return the number of steps that the job plans according to its log."""
    with contextlib.suppress(HpcrunError, OSError, UnicodeDecodeError):
        log = CurveLog(context, Source(run.run_id, run=run))
        log.read()
        return log.curve(all_trainings=False).total_steps
    return None


def _calibrate(job: MeasuringJob, ranks: Sequence[RankMeasurement]) -> Calibration | None:
    """Compute how the fullest GPU corrects estimates; None without one, or if it contradicts."""
    full = find_fullest(ranks)
    memory = job.memory
    if memory is None or full is None or full.peak_allocated is None:
        return None
    measured = MeasuredMemory(
        allocated=full.peak_allocated,
        reserved=full.peak_reserved or full.peak_allocated,
        outside=full.outside or 0,
    )
    return compute_calibration(memory.shape, memory.training, measured, job.made.plan.run_id)


def find_fullest(ranks: Sequence[RankMeasurement]) -> RankMeasurement | None:
    """Return the rank whose GPU was used most; None without GPUs."""
    on_gpus = [each for each in ranks if each.peak_allocated is not None]
    return max(on_gpus, key=lambda each: each.total or 0, default=None)
