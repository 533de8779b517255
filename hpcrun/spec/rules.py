"""Rules that types cannot express: reserved names, and fields that depend on each other."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from msgspec import structs

from hpcrun.errors import Problem
from hpcrun.spec.job import DeepSpeed, JobSpec, Notify, Resources, Role
from hpcrun.spec.search import read_search
from hpcrun.spec.yaml12 import Node, is_null, join_path, parse_plain_value

PROGRAMS = ("script", "module", "command")
# The largest size of a range of nodes: a plan is made for each number in it.
MAX_NODE_COUNTS = 64
# Groups of a log pattern that give a line's position; every other group is a metric.
_POSITION_GROUPS = frozenset({"step", "epoch", "total", "rank"})

# hpcrun sets the ranks and the rendezvous: a user's value would split the job.
OWNED_VARIABLES = r"HPCRUN_.*|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT"

# sbatch options that duplicate a field. Only the field sets them, so that plan and directive agree.
# ``false`` removes the directive, for sites that forbid it.
FIELD_OF_OPTION = {
    "account": "resources.account",
    "cpus-per-gpu": "resources.cpus_per_gpu",
    "cpus-per-task": "resources.cpus_per_gpu",
    "gpus": "resources.gpus_per_node",
    "gpus-per-node": "resources.gpus_per_node",
    "gpus-per-socket": "resources.gpus_per_node",
    "gpus-per-task": "resources.gpus_per_node",
    "gres": "resources.gpus_per_node",
    "ntasks-per-gpu": "resources.gpus_per_node",
    "ntasks-per-node": "resources.gpus_per_node",
    "partition": "resources.partition",
    "time": "resources.time",
    "tres-per-task": "resources.gpus_per_node",
}

# The same for directives that hpcrun requires.
FIELD_OF_NEEDED_OPTION = {
    "job-name": "name",
    "nodes": "resources.nodes",
    "ntasks": "resources.gpus_per_node",
}

# Unsupported sbatch options, each with the reason or the alternative.
_LOG_REASON = "what the job prints is in its run's logs, where hpcrun logs finds it"
_OUTPUT_REASON = "hpcrun reads sbatch's answer itself"
_NO_SUBMISSION_REASON = "it prints something, and submits nothing"
_GPU_BINDING_REASON = (
    "a rank must see all GPUs of its node, or NCCL finds no way between them; where the site's "
    "ranks see one each: launcher: srun and srun: {gpus-per-task: 1, gpu-bind: closest}"
)
REFUSED = {
    "array": "a job of many runs is a sweep, as in sweep: {lr: [1e-4, 3e-4]}",
    "chdir": "Slurm's folder of a job is its run's, by which hpcrun finds it; the script starts in "
    "the project",
    "clusters": "hpcrun asks one Slurm about its runs: write a profile for each (slurm_conf)",
    "error": _LOG_REASON,
    "gpu-bind": _GPU_BINDING_REASON,
    "help": _NO_SUBMISSION_REASON,
    "het-group": "a job has one kind of nodes; roles with resources of their own have others",
    "input": "a batch job has nothing to read; args and env reach the script",
    "no-kill": "the remaining ranks would wait forever for the lost one",
    "open-mode": "it is append: a requeued attempt must not wipe the log before it",
    "output": _LOG_REASON,
    "parsable": _OUTPUT_REASON,
    "quiet": _OUTPUT_REASON,
    "signal": "survive: {save_before_end: 5m} asks the ranks to save so long before the end",
    "test-only": "hpcrun submit --test-only",
    "tres-bind": _GPU_BINDING_REASON,
    "usage": _NO_SUBMISSION_REASON,
    "version": _NO_SUBMISSION_REASON,
    "wait": "hpcrun submit --wait",
    "wrap": "a command is a job of its own: hpcrun submit -- COMMAND",
}

# srun's options for the step of the ranks (srun.1, 20.11 to 26.05), and those of known plugins (the
# container engine and uenv of docs.cscs.ch). Sites may have more.
SRUN_OPTIONS = frozenset(
    {
        "accel-bind",
        "acctg-freq",
        "bcast",
        "bcast-exclude",
        "compress",
        "container",
        "container-id",
        "core-spec",
        "cores-per-socket",
        "cpu-bind",
        "cpu-freq",
        "disable-status",
        "distribution",
        "environment",
        "epilog",
        "exact",
        "extra-node-info",
        "gpu-bind",
        "gpu-freq",
        "gpus-per-task",
        "gres-flags",
        "hint",
        "mem",
        "mem-bind",
        "mem-per-cpu",
        "mem-per-gpu",
        "mpi",
        "msg-timeout",
        "network",
        "ntasks-per-core",
        "ntasks-per-socket",
        "oom-kill-step",
        "overcommit",
        "overlap",
        "profile",
        "prolog",
        "propagate",
        "resv-ports",
        "send-libs",
        "slurmd-debug",
        "sockets-per-node",
        "switches",
        "task-epilog",
        "task-prolog",
        "thread-spec",
        "threads-per-core",
        "treewidth",
        "uenv",
        "unbuffered",
        "verbose",
        "view",
        "wait",
    }
)
# srun options that hpcrun sets itself, each with the reason or the alternative.
_STEP_REASON = "it is the world's, which hpcrun lays out"
REFUSED_OF_SRUN = {
    "chdir": "the script starts in the project",
    "cpus-per-task": "set resources.cpus_per_gpu instead",
    "error": _LOG_REASON,
    "export": "env, or environment: clean",
    "gres": "set resources.gres instead",
    "help": _NO_SUBMISSION_REASON,
    "het-group": "a job has one kind of nodes; roles with resources of their own have others",
    "input": "nothing can be typed; args and env reach the script",
    "jobid": "the step is the job's own",
    "kill-on-bad-exit": "it is 1: the remaining ranks would wait forever for the lost one",
    "label": _LOG_REASON,
    "multi-prog": "every rank runs the job's program",
    "no-kill": "the remaining ranks would wait forever for the lost one",
    "nodelist": "set slurm.nodelist instead",
    "nodes": _STEP_REASON,
    "ntasks": _STEP_REASON,
    "ntasks-per-gpu": _STEP_REASON,
    "ntasks-per-node": _STEP_REASON,
    "output": _LOG_REASON,
    "pty": "the ranks have no terminal; hpcrun shell RUN opens one beside them",
    "relative": _STEP_REASON,
    "test-only": "hpcrun submit --test-only",
    "tres-bind": "set gpu-bind instead",
    "usage": _NO_SUBMISSION_REASON,
    "version": _NO_SUBMISSION_REASON,
}

# Names that a profile's ``rename`` may give hpcrun's options (plan.directives has the grammar).
RENAMES = {
    "gres": ("gpus-per-node", "gpus"),
    "mem": ("mem-per-cpu", "mem-per-gpu"),
    "cpus-per-task": ("cpus-per-gpu",),
    "ntasks-per-node": ("ntasks",),
    "constraint": ("prefer",),
}


def list_programs(layer: Node) -> list[str]:
    """List which of script, module and command a layer sets, in file order."""
    return [key for key, node in layer.entries.items() if key in PROGRAMS and not is_null(node)]


def check_one_program(layer: Node, problems: list[Problem]) -> None:
    """Refuse two programs in one layer; between layers, the upper program replaces the lower."""
    named = list_programs(layer)
    for key in named[1:]:
        message = f"{named[0]} is given too; a job has one of {', '.join(PROGRAMS)}"
        problems.append(layer.entries[key].problem(key, message))


def check_names(tree: Node, problems: list[Problem], *, job: bool) -> None:
    """Refuse environment variables and Slurm options that hpcrun or other fields set."""
    judges = [
        ("env", _check_owned_variable),
        ("nccl.env", _check_owned_variable),
        ("slurm", _check_sbatch_option),
        ("srun", _check_srun_option),
        ("resources.gres", _check_gres),
        ("rename", _check_rename),
    ]
    for role in _find_node(tree, "roles").entries if job else ():
        judges += [
            (f"roles.{role}.env", _check_owned_variable),
            (f"roles.{role}.nccl.env", _check_owned_variable),
            (f"roles.{role}.srun", _check_srun_option),
            (f"roles.{role}.slurm", _check_sbatch_option),
            (f"roles.{role}.resources.gres", _check_gres),
        ]
    for path, judge in judges:
        for name, node in _find_node(tree, *path.split(".")).entries.items():
            if message := judge(name, node, job):
                problems.append(node.problem(join_path(path, name), message))
    for index, node in enumerate(_find_node(tree, "secrets").items):
        if message := _check_owned_variable(node.text, node, job):
            problems.append(node.problem(join_path("secrets", index), message))


def _check_owned_variable(name: str, _: Node, __: bool) -> str:
    owned = re.fullmatch(OWNED_VARIABLES, name)
    return "hpcrun sets this variable itself" if owned else ""


def _check_rename(option: str, node: Node, _: bool) -> str:
    known, leave = RENAMES.get(option), f"slurm: {{{option}: false}} leaves it out"
    if known is None:
        return f"hpcrun can rename {', '.join(RENAMES)}; {leave}"
    choice = " or ".join(known)
    if node.text == "gpus-per-task":
        return f"each rank would see one GPU only; use {choice}"
    return "" if node.text in known else f"expected {choice}; got {node.text or 'nothing'}; {leave}"


def _check_gres(name: str, _: Node, __: bool) -> str:
    return "set resources.gpus_per_node instead" if name.split(":")[0] == "gpu" else ""


def _check_srun_option(option: str, node: Node, _: bool) -> str:
    if option in REFUSED_OF_SRUN:
        return f"srun gets it from hpcrun: {REFUSED_OF_SRUN[option]}"
    if option in SRUN_OPTIONS:
        return ""
    if option in FIELD_OF_OPTION or option in FIELD_OF_NEEDED_OPTION:
        return "an option of the whole job, not of srun's step: see slurm"
    close = difflib.get_close_matches(option, SRUN_OPTIONS, 1, cutoff=0.8)
    return f"srun has no such option; did you mean {close[0]}?" if close else ""


def _check_sbatch_option(option: str, node: Node, job: bool) -> str:
    if option == "gpu-bind" and node.text == "none":
        return ""  # with none, each rank sees all GPUs
    field, drop = FIELD_OF_NEEDED_OPTION.get(option), ""
    if option in FIELD_OF_OPTION and parse_plain_value(node) is not False:
        field, drop = FIELD_OF_OPTION[option], "; false drops the line"
    if field is None:
        return REFUSED.get(option, "")
    own = field.rpartition(".")[2]
    if job or own in ("account", "partition"):
        return f"set {field if job else own} instead{drop}"
    return f"a job sets it, as {field}{drop}"


def check_log_patterns(tree: Node, problems: list[Problem]) -> None:
    """Refuse invalid regular expressions, and those without a group for a metric."""
    for index, item in enumerate(_find_node(tree, "log_patterns").items):
        if not isinstance(item.value, str):
            continue
        try:
            names = re.compile(item.text).groupindex
        except re.error as error:
            message = f"not a regular expression: {error}"
        else:
            if names.keys() - _POSITION_GROUPS:
                continue
            message = "names no value; give one a name, as in (?P<loss>[0-9.]+)"
        problems.append(item.problem(join_path("log_patterns", index), message))


def infer_framework(spec: JobSpec) -> JobSpec:
    """Infer the deepspeed section from the framework, or the framework from launcher or section.

    >>> infer_framework(JobSpec(framework="deepspeed")).deepspeed == DeepSpeed()
    True
    """
    if spec.framework == "deepspeed" and spec.deepspeed is None:
        return structs.replace(spec, deepspeed=DeepSpeed())
    own = spec.launcher or (spec.accelerate and "accelerate")
    if spec.framework is None and own == "accelerate":
        return structs.replace(spec, framework="accelerate")
    if spec.framework is None and spec.deepspeed is not None:
        return structs.replace(spec, framework="deepspeed")
    return spec


def check_nodes(spec: JobSpec, tree: Node, problems: list[Problem]) -> None:
    """Refuse a range of nodes that is empty or too large."""
    counts = spec.resources.counts
    if 1 <= len(counts) <= MAX_NODE_COUNTS:
        return
    message = f"{spec.resources.nodes}: the smaller number comes first"
    if counts:
        message = (
            f"{spec.resources.nodes}: {len(counts)} numbers of nodes; {MAX_NODE_COUNTS} at most"
        )
    problems.append(_find_node(tree, "resources", "nodes").problem("resources.nodes", message))


def check_sweep(spec: JobSpec, tree: Node, problems: list[Problem]) -> None:
    """Check the settings and ranges of a sweep, and keys that a job without a sweep ignores."""
    search, found = read_search(spec.sweep)
    if spec.sweep and not (spec.sweep_keys or found):
        found = [("search", "no key to vary, as in lr: {log: [1e-5, 1e-2]}")]
    elif search.method != "grid" and not (search.space or found):
        found = [("search", f"{search.method} has no key to vary, as in lr: {{log: [1e-5, 1e-2]}}")]
    for key, message in found:
        at = _find_node(tree, "sweep", key)
        problems.append(at.problem(join_path("sweep", key), message))
    if search.parallel is not None and spec.sweep_limit != JobSpec().sweep_limit:
        message = "sweep.parallel is set, too; remove one of the two"
        problems.append(_find_node(tree, "sweep_limit").problem("sweep_limit", message))
    for key in ("sweep_part", "sweep_exclude"):
        if getattr(spec, key) and not (spec.sweep_keys or found):
            message = "the job has no sweep; remove it"
            problems.append(_find_node(tree, key).problem(key, message))


def check_deepspeed(spec: JobSpec, tree: Node, problems: list[Problem]) -> None:
    """Refuse a deepspeed section that torch ignores, and offload that needs a higher ZeRO stage."""
    known = {problem.path for problem in problems}
    uncertain = {"", "extends", "framework", "deepspeed", "deepspeed.zero_stage"}
    section = spec.deepspeed
    if section is None or known & uncertain:
        return
    if spec.framework == "torch":
        message = "torch, but there is a deepspeed section; remove one of the two"
        problems.append(_find_node(tree, "framework").problem("framework", message))
        return
    stage = _effective_zero_stage(section)
    if stage is None:
        return
    offload = section.offload
    for part, least in (
        ("param", 0 if offload.param == "none" else 3),
        ("optimizer", {"none": 0, "cpu": 1, "nvme": 3}[offload.optimizer]),
    ):
        if stage < least:
            needed = "3" if least == 3 else "1, 2 or 3"
            message = f"needs zero_stage {needed}; it is {stage}"
            node = _find_node(tree, "deepspeed", "offload", part)
            problems.append(node.problem(f"deepspeed.offload.{part}", message))


def check_no_deepspeed(spec: JobSpec, layers: Sequence[Node], problems: list[Problem]) -> None:
    """Refuse ``deepspeed: null`` with framework deepspeed, which would use a default JSON."""
    named = [layer.entries["deepspeed"] for layer in layers if "deepspeed" in layer.entries]
    if named and is_null(named[0]) and spec.framework == "deepspeed":
        message = "null, but framework deepspeed trains with it; set framework too, as torch"
        problems.append(named[0].problem("deepspeed", message))


# Channels whose target is a URL that lets everybody who knows it send messages.
_SECRET_TARGETS = ("slack", "discord", "teams", "webhook", "apprise")


def check_notify(notify: Notify, tree: Node, problems: list[Problem]) -> None:
    """Refuse URLs of webhooks in files that are recorded, shared and committed."""
    for channel in notify.to or []:
        for kind, target in channel.items() if isinstance(channel, dict) else ():
            if kind in _SECRET_TARGETS and not re.match(r"\$[A-Za-z_]|[~/]", target):
                message = (
                    f"{kind}: the URL is a secret: write a variable, as in ${kind.upper()}_URL, or "
                    f"a file that only you can read, as in ~/.config/hpcrun/{kind}.url"
                )
                problems.append(_find_node(tree, "notify", "to").problem("notify.to", message))


# {name.host} or {name.port} in the texts of a role.
_ROLE_REFERENCE = re.compile(r"(?<!\{)\{([A-Za-z_][A-Za-z0-9_]*)\.(?:host|port)\}")
# Keys of a job that have another meaning with roles, or none, and what to do instead.
_NOT_WITH_ROLES = {
    "script": "each role has its own program: move it into a role",
    "module": "each role has its own program: move it into a role",
    "command": "each role has its own program: move it into a role",
    "args": "each role has its own program: move them into a role",
    "sweep": "a sweep of jobs with roles is not supported: submit the job with --set for each",
    "sweep_combinations": "a sweep of jobs with roles is not supported: submit the job with --set "
    "for each",
    "resources.nodes": "each role has its own number of nodes (nodes), and the job has their sum",
    "survive.spare_nodes": "a job with roles cannot have spare nodes: remove it",
}


def check_roles(spec: JobSpec, tree: Node, problems: list[Problem]) -> None:
    """Refuse roles without a program, keys that do not apply, and references that cannot work."""
    if any(problem.path.split(".")[0] in ("roles", "extends") for problem in problems):
        return
    for path, message in _NOT_WITH_ROLES.items() if spec.roles else ():
        node = _find_node(tree, *path.split("."))
        if node.value and not is_null(node):
            problems.append(node.problem(path, message))
    mains = [name for name, role in spec.roles.items() if role.main]
    for name in mains[1:]:
        message = f"role {mains[0]} is the main one, too; a job has one main role"
        problems.append(
            _find_node(tree, "roles", name, "main").problem(f"roles.{name}.main", message)
        )
    for name, role in spec.roles.items():
        path = f"roles.{name}"
        node = _find_node(tree, "roles", name)
        own: list[Problem] = []
        check_one_program(node, own)
        if not list_programs(node):
            message = f"a role has one of {', '.join(PROGRAMS)}"
            problems.append(node.problem(path, message))
        whole = spec.resources.gpus_per_node
        for key in ("resources", "slurm") if role.has_own_nodes else ():
            if getattr(role, key) is not None and (message := _find_own_nodes_fault(spec, name)):
                problems.append(_find_node(node, key).problem(f"{path}.{key}", message))
        if role.gpus is not None and role.gpus > whole:
            message = f"{role.gpus}, and a node has {whole} (resources.gpus_per_node)"
            problems.append(_find_node(node, "gpus").problem(f"{path}.gpus", message))
        if role.ready is not None and role.ready.startswith("log:"):
            try:
                re.compile(role.ready[len("log:") :])
            except re.error as error:
                message = f"not a regular expression: {error}"
                problems.append(_find_node(node, "ready").problem(f"{path}.ready", message))
        check_deepspeed(infer_framework(spec.for_role(name)), node, own)
        for problem in own:
            problem.path = f"{path}.{problem.path}"
        problems += own
    _check_role_references(spec, tree, problems)


def _find_own_nodes_fault(spec: JobSpec, name: str) -> str:
    """Return why a role cannot have nodes of its own kind, or ""."""
    role = spec.roles[name]
    if name == spec.main_role:
        return "the main role has the nodes of the job: set it beside roles"
    if role.gpus is not None:
        return "gpus is for roles that share the nodes of the job: remove it"
    if role.resources is not None and role.resources.nodes != Resources().nodes:
        return "a role has its number of nodes itself: nodes beside resources"
    if role.resources is not None and role.resources.time is not None:
        return "the time limit is that of the job: set resources.time beside roles"
    if spec.survive.when:
        return (
            "survive does not restart heterogeneous jobs: remove survive.when, or give all roles "
            "nodes of one kind"
        )
    return ""


def list_role_references(role: Role) -> list[str]:
    """List the roles to which a role refers, as in {server.host}; itself is not one of them.

    >>> list_role_references(Role(args=["--url", "http://{server.host}:{server.port}/v1"]))
    ['server']
    """
    setup = role.setup
    texts = [*(role.command or []), *role.args, *(value or "" for value in role.env.values())]
    texts += [*setup.commands, *setup.node_commands] if setup is not None else []
    return list(dict.fromkeys(name for text in texts for name in _ROLE_REFERENCE.findall(text)))


def _check_role_references(spec: JobSpec, tree: Node, problems: list[Problem]) -> None:
    """Refuse references to unknown roles, and roles that would wait for each other."""
    known = len(problems)
    waits = {name: list_role_references(role) for name, role in spec.roles.items()}
    for name, others in waits.items():
        for other in others:
            if other in waits and other != name:
                continue
            node, message = _find_reference(_find_node(tree, "roles", name), other)
            if other == name:
                message = (
                    f"{{{other}.host}}: the role's own host and port are {{host}} and {{port}}"
                )
            else:
                close = difflib.get_close_matches(other, waits, 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(waits)}"
                message = f"{{{other}.host}}: there is no role {other}; {hint}"
            problems.append(node.problem(f"roles.{name}", message))
    circle = find_circle(waits) if len(problems) == known else []
    if circle:
        node = _find_node(tree, "roles", circle[0])
        message = (
            f"{' -> '.join([*circle, circle[0]])}: each waits until the next one is ready; one of "
            "them can read the address of another from its environment, without waiting: "
            f"HPCRUN_ROLE_{circle[1 % len(circle)].upper()}_HOST and _PORT"
        )
        problems.append(node.problem(f"roles.{circle[0]}", message))


def _find_reference(node: Node, name: str) -> tuple[Node, str]:
    """Return the text below a node that refers to a role; the node itself if none is found."""
    inner = [*node.entries.values(), *node.items]
    if isinstance(node.value, str) and name in _ROLE_REFERENCE.findall(node.text):
        return node, node.text
    for each in inner:
        found = _find_reference(each, name)
        if found[1]:
            return found
    return node, ""


def find_circle(waits: Mapping[str, Sequence[str]]) -> list[str]:
    """Return names that wait for each other in a circle, or [].

    >>> find_circle({"a": ["b"], "b": ["c"], "c": ["b"]}), find_circle({"a": ["b"], "b": []})
    (['b', 'c'], [])
    """
    left = dict(waits)
    while free := [name for name, others in left.items() if not any(o in left for o in others)]:
        for name in free:
            del left[name]
    if not left:
        return []
    path = [next(iter(left))]
    while True:
        following = next(other for other in left[path[-1]] if other in left)
        if following in path:
            return path[path.index(following) :]
        path.append(following)


def _effective_zero_stage(section: DeepSpeed) -> int | None:
    """Return the ZeRO stage of ``config``, which is merged last, else of the field, else 2.

    None means that the user's own file sets it.

    >>> _effective_zero_stage(DeepSpeed(zero_stage=2, config={"zero_optimization": {"stage": 3}}))
    3
    >>> _effective_zero_stage(DeepSpeed()), _effective_zero_stage(DeepSpeed(config_file="ds.json"))
    (2, None)
    """
    zero = section.config.get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, dict) else None
    whole = isinstance(stage, (int, float)) and not isinstance(stage, bool) and stage == stage // 1
    if whole and stage is not None:
        return int(stage)
    if section.zero_stage is None:
        return None if section.config_file else 2
    return section.zero_stage


def _find_node(tree: Node, *keys: str) -> Node:
    """Return the node under a path of keys; an empty node if the path does not exist."""
    node: Node | None = tree
    for key in keys:
        node = node.entries.get(key) if node else None
    return node or Node("", tree.source, tree.line)
