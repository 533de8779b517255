"""JobSpec and Cluster to Plan: every decision in one place."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import structs

from hpcrun import __version__
from hpcrun.errors import Problem, SpecError
from hpcrun.plan.deepspeed import (
    Given,
    Training,
    compose_deepspeed_config,
    given_precision,
    model_parallel,
    optimizer_notes,
    stage_of,
)
from hpcrun.plan.directives import Topology, build_directives, build_topology
from hpcrun.plan.environment import (
    LOCAL_DIR,
    accelerator_section,
    debug_notes,
    debug_section,
    fill,
    fill_known,
    hub_section,
    names_node,
    node_sections,
    process_section,
    run_section,
)
from hpcrun.plan.gpus import decide_precision, gpu_section
from hpcrun.plan.launchers import (
    ON_ACCELERATE,
    build_accelerate_config,
    check_launcher,
    decide_framework,
    decide_launcher,
    framework_notes,
    framework_section,
    switch_notes,
)
from hpcrun.plan.nccl import decide_fabric, nccl_sections
from hpcrun.plan.setup import build_setup, chosen_image
from hpcrun.plan.types import Dependency, Place, Plan, Section
from hpcrun.plan.variables import check_variables, inherited_notes
from hpcrun.spec.cluster import Cluster
from hpcrun.spec.job import DeepSpeed, JobSpec
from hpcrun.spec.rules import settle_framework

REFERENCE_TRAINER = "train_gpt.py"
# python -m looks into the working folder first, which has the code as it is now.
RUN_MODULE = (
    "import os, runpy, sys; sys.path[0] = os.environ['HPCRUN_CODE_DIR']; del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def build_plan(
    spec: JobSpec,
    cluster: Cluster,
    place: Place,
    *,
    extra_args: Sequence[str] = (),
    after: Dependency | None = None,
    deepspeed_given: Given | None = None,
) -> Plan:
    """Decide everything about a run.

    ``extra_args`` are the arguments after ``--`` on the command line, passed on as typed but for
    known placeholders; ``after`` is what the run comes after; ``deepspeed_given`` is what is known
    of the user's own DeepSpeed JSON. Raises SpecError with all problems, and InputError for what
    the cluster cannot give.
    """
    spec = settle_framework(spec)
    problems: list[Problem] = check_launcher(spec)
    notes: list[str] = []
    given = deepspeed_given or Given()
    topology = build_topology(spec, cluster, problems)
    launcher = decide_launcher(spec, place.hosts)
    tasks_per_node = topology.ranks_per_node if launcher.task == "rank" else 1
    if not topology.gpus_per_node:
        cluster = structs.replace(cluster, accelerator="cpu")
    deepspeed = spec.deepspeed
    if deepspeed is not None and spec.precision is None:
        spec = structs.replace(spec, precision=given_precision(deepspeed, given.file))
    precision = decide_precision(spec, cluster, problems)
    world_size = topology.nodes * topology.ranks_per_node
    batch = spec.batch
    copies = _model_copies(world_size, deepspeed, given, problems)
    effective = batch.micro_batch_per_gpu * batch.gradient_accumulation_steps * copies
    in_place = not spec.snapshot or _program_kind(spec) == "command"
    code_dir = place.project_dir if in_place else place.code_dir
    values = _values(
        spec, cluster, place, topology, code_dir=code_dir, effective=effective, precision=precision
    )
    if after is not None and after.checkpoint_dir is not None:
        values["after_checkpoint_dir"] = after.checkpoint_dir
    config: dict[str, Any] | None = None
    if deepspeed is not None:
        values["deepspeed_config"] = f"{place.run_dir}/deepspeed.json"
        training = _training(spec, deepspeed, values, effective, problems)
        config = compose_deepspeed_config(deepspeed, training, file=given.file)
        notes += [given.note] if given.note else []
        if given.file is not None or deepspeed.config:
            from hpcrun.plan.deepspeed_check import check_deepspeed_config  # here: few bring keys

            check_deepspeed_config(config, deepspeed, training, given, problems, notes)
        notes += optimizer_notes(config, training, given)
        values["zero_stage"] = str(stage_of(config))
        if names_node(config):
            values["deepspeed_config"] = f"{LOCAL_DIR}/deepspeed.json"
    name = spec.name or "job"
    accelerate: dict[str, Any] | None = None
    if launcher.name == "accelerate":
        values["accelerate_config"] = f"{place.run_dir}/accelerate.yaml"
        accelerate = build_accelerate_config(
            spec,
            precision=precision,
            nodes=topology.nodes,
            ranks_per_node=topology.ranks_per_node,
            deepspeed_config=values.get("deepspeed_config"),
            problems=problems,
        )
        if names_node(accelerate):
            values["accelerate_config"] = f"{LOCAL_DIR}/accelerate.yaml"
    program = _program(spec, place, code_dir, values, problems)
    program += [fill_known(word, values) for word in extra_args]
    environment = _environment(spec, cluster, topology, place, values, problems, code_dir)
    setup = build_setup(spec, cluster, place, values, problems)
    environment = node_sections(environment, inside=setup.container is not None)
    _check_env(spec, cluster, place, problems, notes)
    notes += framework_notes(spec, accelerator=cluster.accelerator, world_size=world_size)
    notes += switch_notes(spec, extra_args)
    directives = build_directives(
        spec,
        cluster,
        topology,
        place,
        tasks_per_node=tasks_per_node,
        after=after.job_id if after is not None else None,
        problems=problems,
    )
    if problems:
        raise SpecError(problems)
    return Plan(
        hpcrun_version=__version__,
        run_id=place.run_id,
        name=name,
        description=spec.description,
        cluster=cluster.name,
        created=place.created,
        run_dir=place.run_dir,
        project_dir=place.project_dir,
        checkpoint_dir=values["checkpoint_dir"],
        python=place.python,
        launcher=launcher.name,
        framework=decide_framework(spec),
        accelerator=cluster.accelerator,
        precision=precision,
        nodes=topology.nodes,
        gpus_per_node=topology.gpus_per_node,
        ranks_per_node=topology.ranks_per_node,
        tasks_per_node=tasks_per_node,
        world_size=world_size,
        cpus_per_rank=topology.cpus_per_rank,
        micro_batch_per_gpu=batch.micro_batch_per_gpu,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        effective_batch=effective,
        fabric=decide_fabric(spec, cluster),
        program=program,
        reference_trainer=_program_kind(spec) == "reference",
        snapshot=not in_place,
        directives=directives,
        environment_kind=spec.environment or cluster.environment,
        environment=environment,
        setup=setup,
        secrets=spec.secrets,
        deepspeed_config=config,
        accelerate_config=accelerate,
        hosts=place.hosts,
        log_patterns=spec.log_patterns,
        notes=[*topology.notes, *notes],
    )


def _values(
    spec: JobSpec,
    cluster: Cluster,
    place: Place,
    topology: Topology,
    *,
    code_dir: str,
    effective: int,
    precision: str,
) -> dict[str, str]:
    """Return the values of placeholders and HPCRUN_* variables."""
    return {
        "run_id": place.run_id,
        "run_dir": place.run_dir,
        "project_dir": place.project_dir,
        "cache_dir": place.cache_dir,
        "local_dir": LOCAL_DIR,
        "code_dir": code_dir,
        "checkpoint_dir": place.checkpoint_dir or f"{place.run_dir}/checkpoints",
        "nodes": str(topology.nodes),
        "gpus_per_node": str(topology.gpus_per_node),
        "ranks_per_node": str(topology.ranks_per_node),
        "world_size": str(topology.nodes * topology.ranks_per_node),
        "micro_batch_per_gpu": str(spec.batch.micro_batch_per_gpu),
        "gradient_accumulation_steps": str(spec.batch.gradient_accumulation_steps),
        "effective_batch": str(effective),
        "precision": precision,
        "activation_checkpointing": "true" if spec.activation_checkpointing else "false",
        "backend": "nccl" if cluster.accelerator == "cuda" else "gloo",
        "device": cluster.accelerator,
        "launcher": decide_launcher(spec, place.hosts).name,
        "fabric": decide_fabric(spec, cluster),
    }


def _program_kind(spec: JobSpec) -> str:
    if spec.script is not None:
        return "script"
    if spec.module is not None:
        return "module"
    return "command" if spec.command is not None else "reference"


def _reads_precision(spec: JobSpec, values: Mapping[str, str]) -> bool:
    """Return whether anything of the run trains in the plan's precision, as far as can be seen."""
    texts = [*spec.args, *spec.env.values(), *(spec.command or [])]
    return (
        spec.precision is not None
        or _program_kind(spec) == "reference"
        or decide_framework(spec) in ON_ACCELERATE
        or "deepspeed_config" in values
        or any("{precision}" in text for text in texts)
    )


def _model_copies(
    world_size: int, deepspeed: DeepSpeed | None, given: Given, problems: list[Problem]
) -> int:
    """Return how many copies of the model see samples of their own."""
    together = model_parallel(deepspeed, given.file) if deepspeed is not None else 1
    if world_size % together:
        message = f"{together} ranks hold one copy of the model together, and {world_size} ranks "
        message += "are no multiple of that"
        problems.append(Problem("deepspeed", message))
    return max(1, world_size // together)


def _training(
    spec: JobSpec,
    deepspeed: DeepSpeed,
    values: Mapping[str, str],
    effective: int,
    problems: list[Problem],
) -> Training:
    """Return what DeepSpeed's JSON must agree with."""
    nvme = deepspeed.offload.nvme_path or "{local_dir}"
    return Training(
        framework=decide_framework(spec),
        precision=values["precision"],
        micro_batch_per_gpu=spec.batch.micro_batch_per_gpu,
        gradient_accumulation_steps=spec.batch.gradient_accumulation_steps,
        effective_batch=effective,
        nvme_path=fill(nvme, values, "deepspeed.offload.nvme_path", problems),
        own_optimizer=_program_kind(spec) == "reference",
    )


def _program(
    spec: JobSpec,
    place: Place,
    code_dir: str,
    values: Mapping[str, str],
    problems: list[Problem],
) -> list[str]:
    """Return the command line of every rank."""

    def filled(texts: Sequence[str], key: str) -> list[str]:
        return [fill(text, values, f"{key}[{i}]", problems) for i, text in enumerate(texts)]

    args = filled(spec.args, "args")
    kind = _program_kind(spec)
    if kind == "command":
        return filled(spec.command or [], "command") + args
    if kind == "module":
        in_place = code_dir == place.project_dir
        start = ["-m"] if in_place else ["-c", RUN_MODULE]
        return [place.python, *start, spec.module or "", *args]
    if kind == "reference":
        return [place.python, f"{place.code_dir}/{REFERENCE_TRAINER}", *args]
    script = posixpath.join(place.project_dir, spec.script or "")
    inside = posixpath.relpath(script, place.project_dir)
    if not inside.startswith("../"):
        script = f"{code_dir}/{inside}"
    return [place.python, script, *args]


def _environment(
    spec: JobSpec,
    cluster: Cluster,
    topology: Topology,
    place: Place,
    values: Mapping[str, str],
    problems: list[Problem],
    code_dir: str,
) -> list[Section]:
    """List all variables, in sections; a later section wins, and the user's are the last."""

    def user_section(
        block: Literal["environment", "nccl", "job_environment"],
        title: str,
        env: Mapping[str, str],
        path: str,
    ) -> Section | None:
        filled = {k: fill(v, values, f"{path}.{k}", problems) for k, v in env.items()}
        return Section(block=block, title=title, variables=filled) if filled else None

    sections = [
        run_section(dict(values)),
        process_section(
            topology,
            place,
            code_dir=None if _program_kind(spec) == "command" else code_dir,
            image=chosen_image(spec, cluster),
        ),
        accelerator_section(
            cluster,
            topology,
            accelerate_deepspeed=decide_framework(spec) in ON_ACCELERATE
            and "deepspeed_config" in values,
        ),
        framework_section(
            spec,
            place.run_id,
            precision=values["precision"],
            deepspeed_config=values.get("deepspeed_config"),
        ),
        gpu_section(
            spec, cluster, precision=values["precision"], is_read=_reads_precision(spec, values)
        ),
        hub_section(cluster),
        *nccl_sections(decide_fabric(spec, cluster), cluster.accelerator, is_seen=not place.hosts),
        user_section("environment", f"Cluster {cluster.name}", cluster.env, "cluster env"),
        user_section("nccl", "The job's NCCL settings", spec.nccl.env, "nccl.env"),
        user_section("job_environment", "The job", spec.env, "env"),
        debug_section(place.run_dir, cluster.accelerator) if place.debug else None,
    ]
    return _without_overridden([section for section in sections if section is not None])


def _check_env(
    spec: JobSpec, cluster: Cluster, place: Place, problems: list[Problem], notes: list[str]
) -> None:
    """Check variables of the user's own, and note where the output of --debug is."""
    fabric = decide_fabric(spec, cluster)
    for env, path in (
        (cluster.env, f"cluster {cluster.name}: env"),
        (spec.nccl.env, "nccl.env"),
        (spec.env, "env"),
    ):
        check_variables(env, path, fabric=fabric, problems=problems, notes=notes)
    if (spec.environment or cluster.environment) == "inherit" and cluster.accelerator == "cuda":
        notes += inherited_notes(place.inherited, fabric)
    if place.debug:
        notes += debug_notes(cluster.accelerator)


def _without_overridden(sections: Sequence[Section]) -> list[Section]:
    """Leave out what a later section sets again: every line does something."""
    kept: list[Section] = []
    later: set[str] = set()
    for section in reversed(sections):
        variables = {k: value for k, value in section.variables.items() if k not in later}
        if not section.fabrics:  # these are alternatives: none takes from another
            later |= section.variables.keys()
        if variables or section.prepend:
            kept.append(structs.replace(section, variables=variables))
    return kept[::-1]
