"""What hpcrun's templates say, as Python; written by ``make templates``, not by hand."""

# fmt: off
# ruff: noqa
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcrun.plan.setup import uses_modules
from hpcrun.render.quoting import FILTERS, indent


def _array_sbatch(values: Mapping[str, Any]) -> str:
    after = values["after"]
    before = values["before"]
    plan = values["plan"]
    said: list[str] = []
    def commands(lines: Any, init: Any) -> str:
        said: list[str] = []
        if (init and uses_modules(lines)):
            said.append('init_modules\n')
        said.append('begin_commands # one that fails ends the job\n')
        for line in lines:
            said.append(str(line))
            said.append('\n')
        said.append('end_commands')
        return "".join(said)
    def sections(block: Any) -> str:
        said: list[str] = []
        for section in plan.environment:
            if not (((section.block == block) and (not section.fabrics))):
                continue
            said.append('# ---- ')
            said.append(str(FILTERS["comment"](section.title)))
            said.append('\n')
            if section.comment:
                said.append('# ')
                said.append(str(FILTERS["comment"](section.comment)))
                said.append('\n')
            for (name, value,) in section.prepend.items():
                said.append('export ')
                said.append(str(name))
                said.append('=')
                said.append(str(FILTERS["bash"](value)))
                said.append('"$')
                said.append(str('{'))
                said.append(str(name))
                said.append(':+:$')
                said.append(str(name))
                said.append('}"\n')
            said.append(str(exports(section, '')))
            said.append('\n')
        return "".join(said)
    def exports(section: Any, indent: Any) -> str:
        said: list[str] = []
        for (name, value,) in section.variables.items():
            said.append(str(indent))
            said.append('export ')
            said.append(str(name))
            said.append('=')
            if (name in section.keeps):
                said.append('"$')
                said.append(str('{'))
                said.append(str(name))
                said.append(':-')
                said.append(str(value))
                said.append('}"')
            else:
                said.append(str(FILTERS["bash"](value)))
            if (name in section.reasons):
                said.append(' # ')
                said.append(str(FILTERS["comment"](section.reasons[name])))
            said.append('\n')
        return "".join(said)
    said.append('#!/bin/bash\n# ')
    said.append(str(FILTERS["comment"](plan.name)))
    if plan.description:
        said.append(': ')
        said.append(str(FILTERS["comment"](plan.description)))
    said.append('\n# Run ')
    said.append(str(plan.run_id))
    said.append(' on cluster ')
    said.append(str(FILTERS["comment"](plan.cluster)))
    said.append(', written by hpcrun ')
    said.append(str(plan.hpcrun_version))
    said.append('.\n')
    for (option, value,) in plan.directives:
        said.append('#SBATCH --')
        said.append(str(option))
        if (not (value is None)):
            said.append('=')
            said.append(str(FILTERS["sbatch"](value)))
        said.append('\n')
    said.append('\n')
    said.append("# The array's tasks are runs of their own: here each becomes its run, whose folder has the rest.\nexport HPCRUN_RUN_DIR=")
    said.append(str(FILTERS["bash"](before)))
    said.append('"$SLURM_ARRAY_TASK_ID"')
    said.append(str(FILTERS["bash"](after)))
    said.append('\nexec bash -- "$HPCRUN_RUN_DIR/harness.sh" batch\n')
    return "".join(said)


def _job_sbatch(values: Mapping[str, Any]) -> str:
    kept = values["kept"]
    plan = values["plan"]
    pyxis = values["pyxis"]
    srun = values["srun"]
    said: list[str] = []
    def commands(lines: Any, init: Any) -> str:
        said: list[str] = []
        if (init and uses_modules(lines)):
            said.append('init_modules\n')
        said.append('begin_commands # one that fails ends the job\n')
        for line in lines:
            said.append(str(line))
            said.append('\n')
        said.append('end_commands')
        return "".join(said)
    def sections(block: Any) -> str:
        said: list[str] = []
        for section in plan.environment:
            if not (((section.block == block) and (not section.fabrics))):
                continue
            said.append('# ---- ')
            said.append(str(FILTERS["comment"](section.title)))
            said.append('\n')
            if section.comment:
                said.append('# ')
                said.append(str(FILTERS["comment"](section.comment)))
                said.append('\n')
            for (name, value,) in section.prepend.items():
                said.append('export ')
                said.append(str(name))
                said.append('=')
                said.append(str(FILTERS["bash"](value)))
                said.append('"$')
                said.append(str('{'))
                said.append(str(name))
                said.append(':+:$')
                said.append(str(name))
                said.append('}"\n')
            said.append(str(exports(section, '')))
            said.append('\n')
        return "".join(said)
    def exports(section: Any, indent: Any) -> str:
        said: list[str] = []
        for (name, value,) in section.variables.items():
            said.append(str(indent))
            said.append('export ')
            said.append(str(name))
            said.append('=')
            if (name in section.keeps):
                said.append('"$')
                said.append(str('{'))
                said.append(str(name))
                said.append(':-')
                said.append(str(value))
                said.append('}"')
            else:
                said.append(str(FILTERS["bash"](value)))
            if (name in section.reasons):
                said.append(' # ')
                said.append(str(FILTERS["comment"](section.reasons[name])))
            said.append('\n')
        return "".join(said)
    said.append('#!/bin/bash\n# ')
    said.append(str(FILTERS["comment"](plan.name)))
    if plan.description:
        said.append(': ')
        said.append(str(FILTERS["comment"](plan.description)))
    said.append('\n# Run ')
    said.append(str(plan.run_id))
    said.append(' on cluster ')
    said.append(str(FILTERS["comment"](plan.cluster)))
    said.append(', written by hpcrun ')
    said.append(str(plan.hpcrun_version))
    said.append('.\n')
    for (option, value,) in plan.directives:
        said.append('#SBATCH --')
        said.append(str(option))
        if (not (value is None)):
            said.append('=')
            said.append(str(FILTERS["sbatch"](value)))
        said.append('\n')
    said.append('\n')
    said.append('# The harness claims this attempt, then runs the rest of this file and records how it ends.\nexport HPCRUN_RUN_DIR=')
    said.append(str(FILTERS["bash"](plan.run_dir)))
    said.append('\n[ "${1-}" = body ] || exec bash -- "$HPCRUN_RUN_DIR/harness.sh" batch\n\n')
    said.append(str(sections('run')))
    if plan.secrets:
        said.append('# ---- Secrets\n# shellcheck disable=SC1091 # written at submission, removed at the end\n. "$HPCRUN_RUN_DIR/secrets.env" || exit 1 # ')
        said.append(str(', '.join(plan.secrets)))
        said.append('\n\n')
    if ((((plan.setup.modules or plan.setup.venv) or plan.setup.conda) or plan.setup.commands) or kept):
        said.append('# ---- Setup, once, on the first node\n# shellcheck disable=SC1091 # it lies beside this file\n. "$HPCRUN_RUN_DIR/setup.sh" || exit 1\n')
        for module in plan.setup.modules:
            said.append('load_module ')
            said.append(str(FILTERS["bash"](module)))
            said.append('\n')
        if plan.setup.uv:
            said.append('uv_sync ')
            said.append(str(FILTERS["bash"](plan.project_dir)))
            said.append(' ')
            said.append(str(FILTERS["bash"](plan.setup.venv)))
            if plan.setup.offline:
                said.append(' --offline')
            said.append('\n')
        elif plan.setup.venv:
            said.append('activate_venv ')
            said.append(str(FILTERS["bash"](plan.setup.venv)))
            said.append('\n')
        elif plan.setup.conda:
            said.append('activate_conda ')
            said.append(str(FILTERS["bash"](plan.setup.conda)))
            said.append('\n')
        if plan.setup.commands:
            said.append(str(commands(plan.setup.commands, (not plan.setup.modules))))
            said.append('\n')
        said.append('\n')
    said.append(str(sections('environment')))
    said.append(str(sections('nccl')))
    if (((plan.fabric == 'auto') and (plan.accelerator == 'cuda')) and (not plan.hosts)):
        said.append('# ---- The network, as this node, the job\'s first, shows it; nccl: {fabric: ...} says it instead\nHPCRUN_FABRIC=$(bash -- "$HPCRUN_RUN_DIR/hardware.sh" fabric)\nexport HPCRUN_FABRIC\ncase $HPCRUN_FABRIC in\n')
        for section in plan.environment:
            if not (section.fabrics):
                continue
            said.append(str(' | '.join(section.fabrics)))
            said.append(')\n')
            said.append(str(exports(section, '    ')))
            said.append('    ;;\n')
        said.append('esac\n\n')
    said.append(str(sections('job_environment')))
    said.append(': >"$HPCRUN_RUN_DIR/attempts/$HPCRUN_ATTEMPT/launched" # the setup is done\n\n')
    said.append('# ---- Launch: node.sh in each task\ncd -- ')
    said.append(str(FILTERS["bash"](plan.project_dir)))
    said.append(' || exit 1\n')
    if kept:
        said.append('mkdir -p -- "$HPCRUN_CACHE_DIR" || exit 1 # it is mounted, so it must be there\n# The image\'s own values of these would win: node.sh sets them again inside.\nkeep ')
        said.append(str(' '.join(kept)))
        said.append('\n')
    said.append('exec bash -- "$HPCRUN_RUN_DIR/harness.sh" launch \\\n    ')
    said.append(str(' \\\n    '.join(([' '.join([FILTERS['bash'](one) for one in srun])] + pyxis))))
    said.append('\n')
    return "".join(said)


def _node_sh(values: Mapping[str, Any]) -> str:
    apptainer = values["apptainer"]
    plan = values["plan"]
    program_lines = values["program_lines"]
    said: list[str] = []
    def commands(lines: Any, init: Any) -> str:
        said: list[str] = []
        if (init and uses_modules(lines)):
            said.append('init_modules\n')
        said.append('begin_commands # one that fails ends the job\n')
        for line in lines:
            said.append(str(line))
            said.append('\n')
        said.append('end_commands')
        return "".join(said)
    said.append('#!/bin/bash\n# Runs ')
    if (plan.launcher in ('srun', 'pdsh',)):
        said.append('as every rank')
    elif (plan.launcher == 'none'):
        said.append('once on every node')
    else:
        said.append('once on every node, then as every rank')
    said.append(', started by the harness, which has set\n# MASTER_ADDR, MASTER_PORT and HPCRUN_NODE_RANK and sends the output to logs/.\n')
    python = (plan.python or 'python3')
    if (plan.launcher not in ('srun', 'pdsh', 'none',)):
        said.append('if [ "${1-}" = rank ]; then\n    exec bash -- "$HPCRUN_RUN_DIR/harness.sh" rank \\\n        ')
        said.append(str(' \\\n        '.join(program_lines)))
        said.append('\nfi\n')
    said.append('\n')
    said.append('# ---- This node: its own folder, copies and commands\n# shellcheck disable=SC1091 # they lie beside this file\n. "$HPCRUN_RUN_DIR/setup.sh" && . "$HPCRUN_RUN_DIR/local.sh" || exit 1\n')
    if apptainer:
        said.append('if [ -z "${HPCRUN_INSIDE-}" ]; then\n')
    outside, said = said, []
    said.append('local_folder ')
    said.append(str(FILTERS["expanded"](plan.setup.local_dir)))
    said.append(' ')
    said.append(str(plan.tasks_per_node))
    said.append(' # HPCRUN_LOCAL_DIR; the harness removes it\n')
    if (plan.setup.stage or plan.setup.own_files):
        said.append('if first_on_node copied; then\n')
        for (source, target,) in plan.setup.stage:
            said.append('    stage ')
            said.append(str(FILTERS["expanded"](source)))
            said.append(' ')
            said.append(str(FILTERS["bash"](target)))
            said.append('\n')
        for file in plan.setup.own_files:
            said.append('    own_copy ')
            said.append(str(file))
            said.append('\n')
        said.append('    done_on_node copied\nfi\n')
    inside, said = "".join(said), outside
    said.append(indent(inside, (4 if apptainer else 0), first=True))
    if apptainer:
        said.append('    runtime=$(find_apptainer) || exit 1\n    # Values stay as they are: no `$` in them is taken for a shell\'s.\n    export HPCRUN_INSIDE=1 APPTAINER_NO_EVAL=1 SINGULARITY_NO_EVAL=1\n    exec "$runtime" exec \\\n        ')
        said.append(str(' \\\n        '.join(apptainer)))
        said.append(' \\\n        bash -- "$HPCRUN_RUN_DIR/node.sh"\nfi\n')
    if plan.setup.container:
        said.append("restore # the job's variables, over the image's\n")
    for section in plan.environment:
        if not ((section.block == 'node')):
            continue
        for (name, value,) in section.prepend.items():
            said.append('export ')
            said.append(str(name))
            said.append('=')
            said.append(str(FILTERS["word"](value)))
            said.append('"$')
            said.append(str('{'))
            said.append(str(name))
            said.append(':+:$')
            said.append(str(name))
            said.append('}"\n')
        for (name, value,) in section.variables.items():
            said.append('export ')
            said.append(str(name))
            said.append('=')
            said.append(str(FILTERS["word"](value)))
            said.append('\n')
    if plan.setup.node_commands:
        said.append('if first_on_node ready; then\n')
        said.append(str(commands(plan.setup.node_commands, True)))
        said.append('\ndone_on_node ready\nfi\n')
    if ((plan.nodes > 1) and (plan.setup.stage or plan.setup.node_commands)):
        said.append('meet_nodes ')
        said.append(str(plan.nodes))
        said.append(' # no launcher waits as long as a copy may take\n')
    said.append('\n')
    said.append('# ---- Launch\n')
    if (plan.launcher == 'srun'):
        said.append('export RANK=${SLURM_PROCID:-0} LOCAL_RANK=${SLURM_LOCALID:-0} WORLD_SIZE=${SLURM_NTASKS:-1}\nexec bash -- "$HPCRUN_RUN_DIR/harness.sh" rank \\\n    ')
        said.append(str(' \\\n    '.join(program_lines)))
        said.append('\n')
    elif (plan.launcher == 'pdsh'):
        said.append('exec bash -- "$HPCRUN_RUN_DIR/harness.sh" rank \\\n    ')
        said.append(str(' \\\n    '.join(program_lines)))
        said.append('\n')
    elif (plan.launcher == 'none'):
        said.append('exec \\\n    ')
        said.append(str(' \\\n    '.join(program_lines)))
        said.append('\n')
    else:
        said.append("# Launchers rewrite $$ and ${local_rank} in words that they pass on: they get none of yours.\n# shellcheck disable=SC2016 # the rank's shell expands it\n")
        if (plan.launcher == 'torchrun'):
            said.append('exec ')
            said.append(str(FILTERS["bash"](python)))
            said.append(' -m torch.distributed.run \\\n    --nnodes=')
            said.append(str(plan.nodes))
            said.append(' --nproc_per_node=')
            said.append(str(plan.ranks_per_node))
            said.append(' --node_rank="$HPCRUN_NODE_RANK" \\\n    --rdzv_backend=static --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \\\n    --no_python bash -c \'exec bash -- "$HPCRUN_RUN_DIR/node.sh" rank\'\n')
        elif (plan.launcher == 'deepspeed'):
            said.append('exec ')
            said.append(str(FILTERS["bash"](python)))
            said.append(' -m deepspeed.launcher.runner \\\n    --hostfile="$HPCRUN_HOSTFILE" --no_ssh --node_rank="$HPCRUN_NODE_RANK" \\\n    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \\\n    --no_local_rank --no_python bash -c \'exec bash -- "$HPCRUN_RUN_DIR/node.sh" rank\'\n')
        else:
            config = ('$HPCRUN_LOCAL_DIR' if ('accelerate.yaml' in plan.setup.own_files) else '$HPCRUN_RUN_DIR')
            said.append('exec ')
            said.append(str(FILTERS["bash"](python)))
            said.append(' -m accelerate.commands.launch \\\n    --config_file="')
            said.append(str(config))
            said.append('/accelerate.yaml" --machine_rank="$HPCRUN_NODE_RANK" \\\n    --rdzv_backend=static --main_process_ip="$MASTER_ADDR" --main_process_port="$MASTER_PORT" \\\n    --no_python bash -c \'exec bash -- "$HPCRUN_RUN_DIR/node.sh" rank\'\n')
    return "".join(said)


RENDER = {"array.sbatch": _array_sbatch, "job.sbatch": _job_sbatch, "node.sh": _node_sh}
