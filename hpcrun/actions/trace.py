"""Trace one training step of a job's own script, without weights or a GPU."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import hpcrun.workloads
from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.prepare import Prepared, load_spec, prepare_job
from hpcrun.actions.program import split_python_program
from hpcrun.errors import InputError
from hpcrun.fit import StepTrace
from hpcrun.structs import decodable

if TYPE_CHECKING:
    from hpcrun.context import Context

_TRACER = Path(hpcrun.workloads.__file__).parent / "trace_step.py"
# Blocks of the plan's environment that matter without a cluster.
_BLOCKS = ("run", "environment", "job_environment")
_NUMBERS = "hpcrun fit JOB --model DIR, or numbers instead of the job: --layers, --hidden"


def trace_job(
    context: Context, job: str, overrides: Sequence[str], time_limit: float
) -> tuple[Prepared, StepTrace]:
    """Run the script of a job under the tracer, on this machine.

    Args:
        time_limit: Seconds after which the trace is given up.

    Raises:
        InputError: The script cannot be run here, or cannot be traced.
    """
    spec = load_spec(context, job, overrides)
    made = prepare_job(context, spec, checks=Checks(strict=False)).each()[0]
    plan = made.plan
    if context.cluster.host is not None:
        raise InputError(
            f"{job}: its Python is on {context.cluster.host}, and --trace runs on this machine",
            fix=f"run hpcrun fit {job} --trace there",
        )
    if plan.setup.container is not None:
        raise InputError(f"{job}: --trace does not run containers", fix=_NUMBERS)
    program = split_python_program(plan.program)
    if program is None:
        raise InputError(
            f"{job}: --trace needs a Python script or module, and the job runs"
            f" {plan.program[0] if plan.program else 'a command'}",
            fix=_NUMBERS,
        )
    with tempfile.TemporaryDirectory(prefix="hpcrun-trace-") as folder:
        return made, _run_tracer(context, made, job, *program, Path(folder), time_limit)


def _run_tracer(
    context: Context,
    made: Prepared,
    job: str,
    python: str,
    program: Sequence[str],
    folder: Path,
    time_limit: float,
) -> StepTrace:
    plan = made.plan
    code = f"{plan.run_dir}/code"
    for file in made.files:
        if file.name.endswith((".json", ".yaml")):
            path = folder / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_place(file.text, code, plan.run_dir, plan.project_dir, folder))

    def place(text: str) -> str:
        return _place(text, code, plan.run_dir, plan.project_dir, folder)

    environ = dict(made.environ)
    for section in plan.environment:
        if section.block in _BLOCKS:
            for name, value in section.variables.items():
                if name not in section.keeps or name not in environ:
                    environ[name] = os.path.expandvars(place(value))
            for name, value in section.prepend.items():
                environ[name] = os.pathsep.join([place(value), *filter(None, [environ.get(name)])])
    environ["OMP_NUM_THREADS"] = "1"  # only data and small tensors are computed
    environ["WORLD_SIZE"] = str(max(plan.world_size, 1))
    environ["HPCRUN_TRACE_GPUS_PER_NODE"] = str(max(plan.ranks_per_node, 1))
    report = folder / "trace.json"
    words = [place(word) for word in (python, str(_TRACER), str(report), *program)]
    script = " && ".join(
        [
            *(f"module load {shlex.quote(name)}" for name in plan.setup.modules),
            *plan.setup.commands,
            f"cd -- {shlex.quote(place(plan.start_dir))}",
            f"exec {shlex.join(words)}",
        ]
    )
    output = folder / "output"
    with output.open("wb") as stream:
        try:
            subprocess.run(
                ["bash", "-lc" if plan.setup.modules else "-c", script],
                cwd=plan.project_dir,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=time_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InputError(
                f"{job}: the trace of two training steps took longer than {time_limit:.0f} s",
                fix=f"make the data set smaller: --set args=..., or {_NUMBERS}",
            ) from None
    if not report.is_file():
        lines = output.read_text(errors="replace").strip().splitlines()
        raise InputError(
            f"{job}: the trace did not start: {lines[-1] if lines else 'no output'}", fix=_NUMBERS
        )
    found: dict[str, Any] = json.loads(report.read_text())
    if not found.get("steps"):
        where = str(found.get("where", "")).replace(str(folder), "")
        at = f"{os.path.relpath(where, plan.project_dir)}: " if where else ""
        raise InputError(
            f"{job} cannot be traced: {at}{found.get('error')}", fix=f"instead: {_NUMBERS}"
        )
    return msgspec.convert(found, decodable(StepTrace), strict=False)


def _place(text: str, code: str, run_dir: str, project: str, folder: Path) -> str:
    """Replace the directories of a run, which does not exist yet."""
    return text.replace(code, project).replace(run_dir, str(folder))
