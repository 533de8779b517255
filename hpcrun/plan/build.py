"""Build a Plan from a JobSpec and a Cluster: all decisions in one place."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import structs

from hpcrun.errors import SpecError
from hpcrun.plan import deepspeed, environment, launchers
from hpcrun.plan.batch import decide_batch
from hpcrun.plan.directives import build_directives, build_topology
from hpcrun.plan.findings import Findings
from hpcrun.plan.gpus import decide_precision, with_gpu_type
from hpcrun.plan.job import LOCAL_DIR, RESUME, Job, fill_known_placeholders
from hpcrun.plan.roles import count_nodes, own_role, role_values, share_step
from hpcrun.plan.setup import build_setup
from hpcrun.plan.survive import build_survive
from hpcrun.plan.types import Dependency, Plan, PlanInputs, RolePlan
from hpcrun.spec import Batch, Cluster, JobSpec, infer_framework
from hpcrun.version import __version__

REFERENCE_TRAINER = "train_gpt.py"
# python -m would search the working directory first, which has the current code, not the copy.
RUN_MODULE = (
    "import os, runpy, sys; sys.path[0] = os.environ['HPCRUN_CODE_DIR']; del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def build_plan(
    spec: JobSpec,
    cluster: Cluster,
    place: PlanInputs,
    *,
    extra_args: Sequence[str] = (),
    after: Dependency | None = None,
    deepspeed_input: deepspeed.DeepSpeedInput | None = None,
    job_spec: JobSpec | None = None,
) -> Plan:
    """Make all decisions about a run.

    Args:
        spec: The job.
        cluster: The cluster profile.
        place: Names, times and directories of the run.
        extra_args: Arguments after ``--`` on the command line, passed on as typed except that known
            placeholders are filled.
        after: The jobs that the run waits for.
        deepspeed_input: The user's own DeepSpeed JSON, and DeepSpeed's response to it.
        job_spec: The whole job, if ``spec`` is that of one of its roles.

    Raises:
        SpecError: With all problems of the job.
        InputError: If the cluster cannot provide what the job requests.
    """
    given = deepspeed_input or deepspeed.DeepSpeedInput()
    job = _decide_values(with_gpu_type(infer_framework(spec), cluster), cluster, place, given)
    spec, topology, launcher, found = job.spec, job.topology, job.launcher, job.found
    tasks_per_node = topology.ranks_per_node if launcher.task == "rank" else 1
    if after is not None and after.checkpoint_dir is not None:
        job.values["after_checkpoint_dir"] = after.checkpoint_dir
    deepspeed_config = _build_deepspeed_config(job, given)
    accelerate_config = _build_accelerate_config(job)
    program = _build_program(job)
    program += [fill_known_placeholders(word, job.values) for word in extra_args]
    sections = environment.build_environment(job)
    setup = build_setup(job)
    sections = environment.node_sections(sections, inside=setup.container is not None)
    environment.check_environment(job, sections)
    found.notes += launchers.activation_checkpointing_notes(spec, extra_args)
    survive = build_survive(job)
    roles = place.roles
    if not roles:
        directives = build_directives(
            job, tasks_per_node, survive, after=after.terms if after else None
        )
        step = launchers.build_step(job, tasks_per_node, directives)
    else:
        own = own_role(place)
        of_component = spec if own.group or job_spec is None else job_spec
        whole_spec = _with_all_nodes(of_component, roles, own.group)
        whole = build_topology(whole_spec, cluster, Findings())
        of_all = structs.replace(
            job, topology=whole, spec=structs.replace(spec, resources=whole_spec.resources)
        )
        directives = build_directives(of_all, 1, survive, after=after.terms if after else None)
        step = launchers.build_step(job, tasks_per_node, directives)
        if own.shares_nodes:
            step = share_step(job, step, whole, own)
        if own.group:
            step = [*step, ("het-group", str(own.group))]
        elif not own.is_main:
            directives = []
    launcher_args = launchers.build_launcher_args(job)
    if found.problems:
        raise SpecError(found.problems)
    return Plan(
        hpcrun_version=__version__,
        run_id=place.run_id,
        name=spec.name or "job",
        description=spec.description,
        cluster=cluster.name,
        created=place.created,
        run_dir=place.run_dir,
        project_dir=place.project_dir,
        checkpoint_dir=job.values["checkpoint_dir"],
        python=place.python,
        launcher=launcher.name,
        launcher_args=launcher_args,
        framework=job.framework,
        accelerator=job.cluster.accelerator,
        precision=job.precision,
        nodes=topology.nodes,
        gpus_per_node=topology.gpus_per_node,
        ranks_per_node=topology.ranks_per_node,
        tasks_per_node=tasks_per_node,
        world_size=topology.world_size,
        cpus_per_rank=topology.cpus_per_rank,
        micro_batch_per_gpu=job.batch.micro_batch_per_gpu,
        gradient_accumulation_steps=job.batch.gradient_accumulation_steps,
        effective_batch=job.batch.effective,
        fabric=job.fabric,
        program=program,
        reference_trainer=job.program == "reference",
        snapshot=job.code_dir != place.project_dir,
        directives=directives,
        components=place.components,
        step=step,
        environment_kind=spec.environment or cluster.environment,
        environment=sections,
        setup=setup,
        secrets=spec.secrets,
        unset=environment.unset_variables(job),
        deepspeed_config=deepspeed_config,
        zero_keys=deepspeed.find_zero_keys(spec.deepspeed) if spec.deepspeed else {},
        accelerate_config=accelerate_config,
        hosts=place.hosts,
        log_patterns=spec.log_patterns,
        preflight=spec.preflight,
        survive=survive,
        notes=found.notes,
        runs_per_job=place.runs_per_job,
        node_range=place.node_range,
        group=spec.group,
        ends_with=spec.ends_with,
        provenance=place.provenance,
        role=place.role,
        roles=[] if roles and not own_role(place).is_main else roles,
        search=place.search,
        trial=place.trial,
    )


def _decide_values(
    spec: JobSpec, cluster: Cluster, place: PlanInputs, given: deepspeed.DeepSpeedInput
) -> Job:
    """Decide the values that all parts of the plan depend on."""
    found = Findings()
    launchers.check_launcher(spec, found)
    if place.runs_per_job > 1:
        launchers.check_shared_job(spec, cluster, found)
    topology = build_topology(spec, cluster, found, place.runs_per_job)
    # Ranks that share one copy of the model train on the same samples.
    section = spec.deepspeed
    together = deepspeed.model_parallel(section, given.file) if section is not None else 1
    if topology.world_size % together:
        message = f"{together} ranks hold one copy of the model together, and "
        found.refuse("deepspeed", f"{message}{topology.world_size} ranks are no multiple of that")
    rocm = cluster.accelerator == "rocm" and topology.gpus_per_node > 0
    if rocm:
        cluster = structs.replace(cluster, accelerator="cuda")
    if not topology.gpus_per_node:
        cluster = structs.replace(cluster, accelerator="cpu")
    batch_key = "batch.effective"
    if section is not None:
        if spec.precision is None:
            spec = structs.replace(spec, precision=deepspeed.given_precision(section, given.file))
        if spec.batch == Batch():
            spec = structs.replace(spec, batch=deepspeed.given_batch(section, given.file))
            start = f"{section.config_file}: " if given.file is not None else "deepspeed.config."
            batch_key = f"{start}{deepspeed.BATCH_KEYS[0]}"
    program = _decide_program(spec)
    in_place = not spec.snapshot or program == "command"
    job = Job(
        spec=spec,
        cluster=cluster,
        place=place,
        topology=topology,
        launcher=launchers.decide_launcher(spec, place.hosts),
        framework=launchers.decide_framework(spec),
        program=program,
        precision=decide_precision(spec, cluster, found),
        # Programs in different roles may join one NCCL communicator.
        fabric=environment.decide_fabric(_with_all_nodes(spec, place.roles), cluster),
        batch=decide_batch(
            spec.batch, max(1, topology.world_size // together), found, where=batch_key
        ),
        code_dir=place.project_dir if in_place else place.code_dir,
        values={},
        found=found,
        asks_for_deepspeed=section is not None or given.elsewhere != "",
        rocm=rocm,
    )
    job.values.update(_build_placeholders(job))
    return job


def _with_all_nodes(spec: JobSpec, roles: Sequence[RolePlan], group: int | None = None) -> JobSpec:
    """Return the job of a role with the number of nodes of the whole job, or of a component."""
    if not roles:
        return spec
    resources = structs.replace(spec.resources, nodes=count_nodes(roles, group))
    return structs.replace(spec, resources=resources)


def _build_placeholders(job: Job) -> dict[str, str]:
    spec, place, topology = job.spec, job.place, job.topology
    return {
        "run_id": place.run_id,
        "run_dir": place.run_dir,
        "project_dir": place.project_dir,
        "cache_dir": place.cache_dir,
        "local_dir": LOCAL_DIR,
        "code_dir": job.code_dir,
        # The default is a directory inside the run directory.
        "checkpoint_dir": place.checkpoint_dir
        or posixpath.normpath(posixpath.join(place.run_dir, spec.checkpoint.dir or "checkpoints")),
        "resume": RESUME,
        "nodes": str(topology.nodes),
        "gpus_per_node": str(topology.gpus_per_node),
        "ranks_per_node": str(topology.ranks_per_node),
        "world_size": str(topology.world_size),
        "micro_batch_per_gpu": str(job.batch.micro_batch_per_gpu),
        "gradient_accumulation_steps": str(job.batch.gradient_accumulation_steps),
        "effective_batch": str(job.batch.effective),
        "precision": job.precision,
        "activation_checkpointing": "true" if spec.activation_checkpointing else "false",
        "backend": "nccl" if job.cluster.accelerator == "cuda" else "gloo",
        "device": job.cluster.accelerator,
        "launcher": job.launcher.name,
        "fabric": job.fabric,
        **role_values(place),
    }


def _decide_program(spec: JobSpec) -> Literal["script", "module", "command", "reference"]:
    if spec.script is not None:
        return "script"
    if spec.module is not None:
        return "module"
    return "command" if spec.command is not None else "reference"


def _build_deepspeed_config(job: Job, given: deepspeed.DeepSpeedInput) -> dict[str, Any] | None:
    """Build the DeepSpeed JSON, and check it if it contains the user's own keys."""
    section = job.spec.deepspeed
    if section is None:
        return None
    job.values["deepspeed_config"] = f"{job.place.run_dir}/deepspeed.json"
    nvme = section.offload.nvme_path or "{local_dir}"
    leaves_open = job.framework in deepspeed.FILLS_OPEN_VALUES
    training = deepspeed.RequestedTraining(
        framework=job.framework,
        precision=job.spec.precision if leaves_open else job.precision,
        batch=_batch_for_deepspeed(job, every=not leaves_open),
        nvme_path=job.fill(nvme, "deepspeed.offload.nvme_path"),
        own_optimizer=job.program == "reference" or given.own_optimizer,
    )
    if given.file is not None or section.config:
        from hpcrun.plan.deepspeed_check import refuse_dotted_keys  # rarely needed

        known = len(job.found.problems)
        refuse_dotted_keys(section.config, None, job.found)
        if given.file is not None:
            refuse_dotted_keys(given.file.value, section.config_file, job.found)
        if len(job.found.problems) > known:
            return None  # other checks need nested keys
    config = deepspeed.compose_deepspeed_config(section, training, file=given.file)
    job.found.notes += [given.note] if given.note else []
    if given.file is not None or section.config:
        from hpcrun.plan.deepspeed_check import check_deepspeed_config  # rarely needed

        check_deepspeed_config(config, job, training, given)
    job.found.notes += deepspeed.optimizer_notes(config, training)
    job.values["zero_stage"] = str(deepspeed.zero_stage_of(config))
    if environment.uses_node_folder(config):
        job.values["deepspeed_config"] = f"{LOCAL_DIR}/deepspeed.json"
    return config


def _batch_for_deepspeed(job: Job, *, every: bool) -> dict[str, int]:
    """Return the batch sizes under DeepSpeed's names; unless ``every``, only those the job sets."""
    batch, sizes = job.spec.batch, job.batch
    is_micro_set = every or batch.sets_micro_batch
    are_steps_set = every or batch.sets_accumulation
    values = (
        sizes.effective if is_micro_set and are_steps_set else None,
        sizes.micro_batch_per_gpu if is_micro_set else None,
        sizes.gradient_accumulation_steps if are_steps_set else None,
    )
    named = zip(deepspeed.BATCH_KEYS, values, strict=True)
    return {key: value for key, value in named if value is not None}


def _build_accelerate_config(job: Job) -> dict[str, Any] | None:
    if job.launcher.name != "accelerate":
        return None
    job.values["accelerate_config"] = f"{job.place.run_dir}/accelerate.yaml"
    config = launchers.build_accelerate_config(job)
    if environment.uses_node_folder(config):
        job.values["accelerate_config"] = f"{LOCAL_DIR}/accelerate.yaml"
    return config


def _build_program(job: Job) -> list[str]:
    spec, place = job.spec, job.place

    def filled(texts: Sequence[str], key: str) -> list[str]:
        return [job.fill(text, f"{key}[{i}]") for i, text in enumerate(texts)]

    args = filled(spec.args, "args")
    if job.program == "command":
        return filled(spec.command or [], "command") + args
    if job.program == "module":
        in_place = job.code_dir == place.project_dir
        start = ["-m"] if in_place else ["-c", RUN_MODULE]
        return [place.python, *start, spec.module or "", *args]
    if job.program == "reference":
        return [place.python, f"{place.code_dir}/{REFERENCE_TRAINER}", *args]
    script = posixpath.join(place.project_dir, spec.script or "")
    inside = posixpath.relpath(script, place.project_dir)
    if not inside.startswith("../"):
        script = f"{job.code_dir}/{inside}"
    return [place.python, script, *args]
