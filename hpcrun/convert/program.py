"""Convert the command that starts the training: launcher, ranks, container, program, arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from hpcrun.convert.preamble import SECRET
from hpcrun.convert.remarks import Effect
from hpcrun.convert.resources import Request
from hpcrun.convert.words import expand_marks, quote_literal, quote_word, used_names
from hpcrun.lint import (
    CLOSE,
    CONTAINERS,
    OPEN,
    LaunchedProgram,
    LaunchOption,
    Script,
    count_gpus_of,
    parse_srun,
    skip_image,
)
from hpcrun.plan import escape_placeholders, looks_secret
from hpcrun.spec import REFUSED_OF_SRUN
from hpcrun.text import is_whole_number

# Options of launchers that hpcrun sets, with dashes.
_OWNED = {
    *("nnodes", "nproc-per-node", "node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-id"),
    *("master-addr", "master-port", "standalone", "log-dir", "use-env", "no-use-env", "rdzv-conf"),
    *("hostfile", "num-nodes", "num-gpus", "no-ssh", "launcher", "force-multi"),
    *("num-machines", "num-processes", "machine-rank", "main-process-ip", "main-process-port"),
    *("multi-gpu", "same-network", "role", "tee", "redirects", "nproc", "gpu-ids", "num-nodes"),
}
# Those of them that do nothing else; the training gets the same without them.
_LOGS_OF_SRUN = {"output", "error", "label", "unbuffered"}
# Options of srun that describe the layout of the job, or its output.
_OWNED_OF_SRUN = {
    *("nodes", "ntasks", "ntasks-per-node", "tasks-per-node", "cpus-per-task", "output", "error"),
    *("label", "unbuffered", "kill-on-bad-exit", "jobid", "export", "job-name", "exclusive"),
    *("wait", "gpus-per-node", "gpus", "gres", "gpus-per-task", "nodelist", "exact", "overlap"),
    *("mem", "verbose", "comment", "partition", "account", "cpu-bind-verbose"),
}
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
# Commands that start the program without any effect on it.
_PLAIN_WRAPPERS = {"time", "nohup", "exec", "command", "setsid", "unbuffer", "catchsegv", "stdbuf"}
# Those that change how it runs.
_WRAPPERS = {
    *("timeout", "numactl", "nsys", "ncu", "nice", "ionice", "xvfb-run", "shifter", "podman-hpc"),
    *("uv", "poetry", "pipenv", "pixi", "hatch", "pdm", "conda", "mamba", "micromamba"),
}
# Those of them that are often functions of the shell, which a rank lacks.
_SHELL_FUNCTIONS = {"conda", "mamba", "micromamba"}
_CPU_BIND = {"cpu_bind": "cpu-bind", "mem_bind": "mem-bind"}


class ConvertedProgram(Struct):
    """The program of a job.

    Attributes:
        program: The keys ``script``, ``module`` or ``command``, and ``args``.
        args: The arguments of the program.
        shell_text: The command of a rank as text for bash.
        needs_shell: Only bash can expand some of the words.
        is_text: ``shell_text`` has several commands.
        uses: Variables that the words expand.
        python: The Python of the ranks, if the script names its path.
        problem: Why the job cannot start the ranks as the script does; "" if it can.
    """

    program: dict[str, Any] = field(default_factory=dict)
    args: list[str] = field(default_factory=list)
    launcher: str = ""
    launcher_args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    srun: dict[str, Any] = field(default_factory=dict)
    container: dict[str, Any] = field(default_factory=dict)
    shell_text: str = ""
    needs_shell: bool = False
    is_text: bool = False
    uses: set[str] = field(default_factory=set)
    uses_index: bool = False
    problem: str = ""
    python: str = ""
    remarks: list[tuple[int, str, Effect, str]] = field(default_factory=list)

    def describe_head(self) -> str:
        """Return all of the program but its arguments, to compare the tasks of an array."""
        head = {key: value for key, value in self.program.items() if key != "args"}
        if "command" in head:
            head["command"] = head["command"][:1]
        return f"{head} {self.launcher_args} {self.env} {self.srun} {self.container}"

    def set_args(self, args: Sequence[str]) -> None:
        """Replace the arguments."""
        if "command" in self.program:
            head = self.program["command"][: len(self.program["command"]) - len(self.args)]
            self.program["command"] = [*head, *args]
        else:
            self.program["args"] = list(args)
            if not args:
                del self.program["args"]
        self.args = list(args)


def convert_program(
    program: LaunchedProgram, script: Script, request: Request, home: str
) -> ConvertedProgram:
    """Convert a program; ``problem`` says why that is impossible."""
    made = ConvertedProgram()
    if OPEN in program.kind or program.kind.startswith("$"):
        made.problem = "the program depends on the job"
        return made
    _convert_step(program, made, request)
    made.env = {k: escape_placeholders(v, ()) for k, v in program.env.items() if OPEN not in v}
    if len(made.env) != len(program.env):
        made.problem = "a variable before the command depends on the job"
    for name in [
        one for one in made.env if re.fullmatch(r"RANK|LOCAL_RANK|WORLD_SIZE|MASTER_.*", one)
    ]:
        del made.env[name]
    for name in [one for one, value in made.env.items() if looks_secret(one, value)]:
        del made.env[name]
        made.secrets.append(name)
        made.remarks.append((program.command.start, f"{name}=***", "changed", SECRET))
    devices = made.env.pop("CUDA_VISIBLE_DEVICES", None)
    is_plain = program.step is None and program.inner is None and not program.container
    starts_itself = is_plain and program.kind not in ("torchrun", "accelerate", "deepspeed")
    if devices is not None and not starts_itself:
        made.problem = "CUDA_VISIBLE_DEVICES selects GPUs: Slurm assigns those of the job"
    wrapper = _find_wrapper(program)
    if wrapper and not _list_with_wrapper(program):
        reason = f"the program starts without {wrapper.split()[0]}"
        made.remarks.append((program.command.start, wrapper, "missing", reason))
    _convert_container(program, made)
    if program.kind in ("torchrun", "accelerate", "deepspeed"):
        words = _convert_launcher(program, made, request)
    elif program.kind == "python":
        words = _convert_python(program, made, request)
    elif program.kind in ("mpirun", "horovodrun"):
        made.problem = f"{program.kind} starts the ranks: hpcrun has no such launcher"
        return made
    else:
        words = _convert_command(program, made, request)
    if made.problem:
        return made
    if devices is not None:
        words = ["env", f"CUDA_VISIBLE_DEVICES={devices}", *words]
    if program.inner is not None and _has_more(program.inner):
        # The text of bash -c with all of its commands.
        if program.kind in ("torchrun", "accelerate", "deepspeed"):
            made.problem = f"bash -c runs other commands beside {program.kind}"
            return made
        text = program.inner.text.translate({0xE00A: OPEN, 0xE00B: CLOSE})
        made.uses = used_names([text], in_shell=True)
        made.uses_index = "SLURM_ARRAY_TASK_ID" in made.uses
        made.shell_text, made.needs_shell, made.is_text = expand_marks(text), True, True
        return made
    unquoted = _list_unquoted(program, words)
    splitting = [word for word in words if word in unquoted]
    is_open = any(re.search(r"(?<!\\)[*?\[]|\{[^}]*(,|\.\.)[^}]*\}", word) for word in splitting)
    made.uses = used_names(words, in_shell=program.in_shell)
    made.uses_index = "SLURM_ARRAY_TASK_ID" in made.uses
    made.needs_shell = (
        any(OPEN in word or (program.in_shell and "$" in word) for word in words) or is_open
    )
    made.shell_text = " ".join(
        quote_literal(word)
        if is_open and word in splitting and OPEN not in word
        else quote_word(word, splits=word in unquoted, in_shell=program.in_shell)
        for word in words
    )
    if made.launcher:
        _set_python(program, made, home)
    if not made.needs_shell:
        _set_program(program, made, [_expand_home(word, home, unquoted) for word in words])
    return made


def _set_python(program: LaunchedProgram, made: ConvertedProgram, home: str) -> None:
    """Set the Python of a program that the launcher of the job starts."""
    words = [one.text for one in program.command.words]
    if program.inner is not None:
        words = [
            word for one in program.inner.commands for word in (each.text for each in one.words)
        ]
    words = words[: len(words) - len(program.args)] if program.args else words
    for word in words:
        folder, _, name = word.rpartition("/")
        is_python = bool(_PYTHON.fullmatch(name))
        if not (is_python or name in ("torchrun", "accelerate", "deepspeed")):
            continue
        if OPEN in word or "$" in word:
            made.problem = f"the path of {name} depends on the job"
        elif folder:
            made.python = _expand_home(f"{folder}/{name if is_python else 'python'}", home, {word})
            if word.startswith("~"):
                made.python = home + made.python.removeprefix("~")
        options = words[words.index(word) + 1 :]
        options = options[: options.index("-m")] if "-m" in options else []
        if is_python and program.kind != "python" and any(x != "-u" for x in options):
            reason = f"options of Python reach {program.kind}, not its ranks"
            shown = " ".join([name, *options])
            made.remarks.append((program.command.start, shown, "replaced", reason))
        return


def _find_wrapper(program: LaunchedProgram) -> str:
    """Return the words of the first command around a program ; "" if there is none."""
    commands = [program.command]
    if program.inner is not None:
        commands += [one for one in program.inner.commands if one.words and not one.substituted]
    for command in commands:
        words = [one.text for one in command.words]
        while words:
            name = words[0].rsplit("/", 1)[-1]
            if name == "srun":
                words = parse_srun(words[1:])[1]
            elif name in CONTAINERS and words[1:2] in (["exec"], ["run"]):
                words = skip_image(words[2:])
            elif name == "env" and words[1:] and words[1].startswith("-"):
                return " ".join(expand_marks(word) for word in words[:2])
            elif name == "env" or name in _PLAIN_WRAPPERS or re.match(r"-|[A-Za-z_]\w*=", name):
                words = words[1:]
            else:
                break
        if words and words[0].rsplit("/", 1)[-1] in _WRAPPERS:
            end = next(
                (i for i, word in enumerate(words) if word.rsplit("/", 1)[-1] == program.kind),
                len(words) - len(program.args),
            )
            return " ".join(expand_marks(word) for word in words[: max(1, end)])
    return ""


def _list_with_wrapper(program: LaunchedProgram) -> list[str]:
    """Return the words of a rank from the first command around its program on.

    They are empty without such a command, and if the job starts the program in another way.
    """
    is_launcher = program.kind in ("torchrun", "accelerate", "deepspeed")
    if program.inner is not None or program.container or is_launcher:
        return []
    words = [one.text for one in program.command.words]
    while words:
        name = words[0].rsplit("/", 1)[-1]
        if name == "srun":
            words = parse_srun(words[1:])[1]
        elif name == "env" and words[1:] and words[1].startswith("-"):
            return []
        elif name == "env" or name in _PLAIN_WRAPPERS or re.match(r"-|[A-Za-z_]\w*=", name):
            words = words[1:]
        else:
            return words if name in _WRAPPERS - _SHELL_FUNCTIONS else []
    return []


def _has_more(inner: Script) -> bool:
    """Return True if the text of ``bash -c`` does more than to start a program."""
    commands = [one for one in inner.commands if one.words and not one.substituted]
    return len(commands) > 1 or any(not one.prefix for one in inner.assignments)


def _list_unquoted(program: LaunchedProgram, words: Sequence[str]) -> set[str]:
    """Return the words that bash splits at blanks."""
    if program.inner is None:
        return {one.text for one in program.command.words if not one.quoted}
    # The inner shell reads the values of variables as its own text.
    marks = {0xE00A: OPEN, 0xE00B: CLOSE}
    inner = [word for one in program.inner.commands for word in one.words]
    quoted = {one.text.translate(marks) for one in inner if one.quoted}
    return set(words) - quoted


def _expand_home(word: str, home: str, unquoted: set[str]) -> str:
    return home + word[1:] if word in unquoted and re.match(r"~(/|$)", word) else word


def _set_program(program: LaunchedProgram, made: ConvertedProgram, words: Sequence[str]) -> None:
    """Set the keys of the program from its words."""
    escaped = [escape_placeholders(word, ()) for word in words]
    if not made.launcher:
        made.program = {"command": escaped}
        made.args = escaped[1:]
        return
    # python [-u] SCRIPT, or python -m MODULE
    rest = list(escaped)
    if rest and _PYTHON.fullmatch(rest[0]):
        rest = rest[1:]
        while rest and re.fullmatch("-[uB]+", rest[0]):
            rest = rest[1:]
        if rest and rest[0].startswith("-") and rest[0] != "-m":  # options of Python
            made.program, made.args = {"command": escaped}, escaped[1:]
            return
    elif program.kind not in ("torchrun", "accelerate", "deepspeed"):
        made.program, made.args = {"command": escaped}, escaped[1:]
        return
    if rest[:1] == ["-m"] and len(rest) > 1:
        made.program, made.args = {"module": rest[1]}, rest[2:]
    elif rest:
        made.program, made.args = {"script": rest[0]}, rest[1:]
    if made.args:
        made.program["args"] = list(made.args)


def _gives_all_gpus(option: LaunchOption, request: Request) -> bool:
    """Return True if srun gives the ranks of a node all GPUs of the job there."""
    if OPEN in option.value or request.gpus is None:
        return True  # a variable of Slurm; the number is that of the job
    gpus = count_gpus_of(option.value)
    if option.name == "gpus" and is_whole_number(request.nodes):
        return gpus == request.gpus * int(request.nodes)
    if option.name == "gpus-per-task":
        return gpus is not None and gpus * (request.tasks or 1) == request.gpus
    return gpus == request.gpus or (option.name == "gres" and "gpu" not in option.value)


def _convert_step(program: LaunchedProgram, made: ConvertedProgram, request: Request) -> None:
    step = program.step
    if step is None:
        return
    text = "srun"
    for one in step.options:
        name = _CPU_BIND.get(one.name, one.name)
        if name == "?":
            made.problem = "the options of srun depend on the job"
        elif name.startswith("container-"):
            key = name.removeprefix("container-")
            if key == "image":
                made.container |= {"image": one.value, "runtime": "pyxis"}
            elif key == "mounts":
                made.container["mounts"] = one.value.split(",")
            else:
                options = made.container.setdefault("options", [])
                options.append(f"--{name}={one.value}" if one.value else f"--{name}")
        elif name == "export" and one.value.upper() not in ("", "ALL"):
            reason = "the ranks have the variables of the job: set those of this program in env:"
            shown = f"srun --export={one.value}"
            made.remarks.append((program.command.start, shown, "missing", reason))
        elif name in _OWNED_OF_SRUN or name in ("het-group", "relative", "gpu-bind", "accel-bind"):
            shown = f"{text} --{name}{'=' if one.value else ''}{one.value}"
            if name in ("het-group", "relative"):
                made.problem = f"srun --{name}"
            elif name in _LOGS_OF_SRUN:
                reason = "each rank has its own log: hpcrun logs"
                made.remarks.append((program.command.start, shown, "replaced", reason))
            elif name == "cpus-per-task" and one.value != str(request.cpus or ""):
                reason = "the ranks of a node have all CPUs of the job: resources.cpus_per_gpu"
                made.remarks.append((program.command.start, shown, "changed", reason))
            elif name in ("mem", "nodelist"):
                reason = "the ranks have what the job has: set it in slurm"
                made.remarks.append((program.command.start, shown, "changed", reason))
            elif name.startswith(("gpus", "gres")) and not _gives_all_gpus(one, request):
                made.problem = f"srun --{name}={one.value}: the ranks have all GPUs of the job"
            elif name in ("gpu-bind", "accel-bind"):
                reason = "each rank sees all GPUs of its node, and LOCAL_RANK selects its own"
                made.remarks.append((program.command.start, shown, "changed", reason))
        elif name == "multi-prog":
            made.problem = "srun --multi-prog: each rank has its own program"
        elif name in REFUSED_OF_SRUN or name == "time":
            reason = REFUSED_OF_SRUN.get(name, "set resources.time")
            shown = f"{text} --{name}{'=' if one.value else ''}{one.value}"
            made.remarks.append((program.command.start, shown, "missing", reason))
        else:
            made.srun[name] = one.value or True
    if made.container and any(OPEN in str(x) for x in made.container.values()):
        made.problem = "the options of the container depend on the job"


def _convert_container(program: LaunchedProgram, made: ConvertedProgram) -> None:
    """Convert ``singularity exec [options] IMAGE``."""
    if not program.container:
        return
    words = [one.text for one in program.command.words]
    start = next((i for i, word in enumerate(words) if word.rsplit("/", 1)[-1] in CONTAINERS), None)
    if start is None or words[start + 1 : start + 2] not in (["exec"], ["run"]):
        made.problem = "the container's runtime: see setup.container"
        return
    options, mounts, index = [], [], start + 2
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        name, equals, value = word.partition("=")
        index += 1
        if name in ("-B", "--bind", "--overlay", "-H", "--home", "--pwd", "--env", "-S"):
            if not equals and index < len(words):
                value = words[index]
                index += 1
            if name in ("-B", "--bind"):
                mounts += value.split(",")
            else:
                options.append(f"{name}={value}")
        elif name in ("--nv", "--rocm"):
            continue
        else:
            options.append(word)
    if index >= len(words):
        made.problem = "the container has no image"
        return
    made.container = {"image": words[index], "runtime": "apptainer"}
    if mounts:
        made.container["mounts"] = mounts
    if options:
        made.container["options"] = options
    if any(OPEN in word for word in [words[index], *mounts, *options]):
        made.problem = "the options of the container depend on the job"


def _convert_launcher(
    program: LaunchedProgram, made: ConvertedProgram, request: Request
) -> list[str]:
    """Convert torchrun, accelerate launch or deepspeed; return the words of a rank."""
    kind, gpus = program.kind, request.gpus or 0
    nodes = int(request.nodes) if is_whole_number(request.nodes) else 0
    if program.step is None and nodes > 1 and kind != "deepspeed":
        made.problem = f"{kind} starts only on the first node: there is no srun before it"
        return []
    if program.step is not None and _tasks_of_step(program, request) != 1:
        made.problem = f"srun starts {kind} more than once on a node"
        return []
    ranks = _count_ranks(program, request)
    if ranks is None:
        made.problem = f"the number of processes of {kind} depends on the job"
    elif ranks != max(1, gpus):
        made.problem = (
            f"{kind} starts {ranks} processes on each node with {gpus} GPUs: hpcrun starts one "
            "for each GPU"
        )
    given = program.get("nnodes", "num-machines", "num-nodes")
    if nodes > 1 and program.step is not None and not made.problem:
        if given is None and kind == "torchrun":
            made.problem = "torchrun has no --nnodes: each node would train on its own"
        elif given is not None and is_whole_number(given) and given != request.nodes:
            made.problem = f"{kind} starts on {given} nodes, but the job has {request.nodes}"
    made.launcher = kind
    for one in program.options:
        if one.name in _OWNED or one.name == "module":
            continue
        name = f"--{one.name.replace('-', '_')}" if kind != "torchrun" else f"--{one.name}"
        made.launcher_args.append(f"{name}={one.value}" if one.value else name)
        if one.name == "config-file" and kind == "accelerate":
            made.launcher_args.pop()
            made.problem = "accelerate's configuration file: set accelerate: {config_file: FILE}"
    if any(OPEN in word for word in made.launcher_args):
        made.problem = "the options of the launcher depend on the job"
    words = list(program.args)
    is_module = any(one.name == "module" for one in program.options)
    if any(one.name == "no-python" for one in program.options):
        made.launcher_args = [x for x in made.launcher_args if "no" not in x[:5]]
        return words
    return ["python", *(["-m"] if is_module and words[:1] != ["-m"] else []), *words]


def _count_ranks(program: LaunchedProgram, request: Request) -> int | None:
    """Return the processes that a launcher starts on each node."""
    gpus = request.gpus or 0
    if program.kind == "torchrun":
        value = program.get("nproc-per-node", "nproc")
        if value in ("gpu", "auto"):
            return max(1, gpus)
        return 1 if value is None else int(value) if is_whole_number(value) else None
    if program.kind == "accelerate":
        value = program.get("num-processes")
        if value is None:
            return max(1, gpus)
        nodes = int(request.nodes) if is_whole_number(request.nodes) else 0
        return int(value) // nodes if is_whole_number(value) and nodes else None
    value = program.get("num-gpus")
    return max(1, gpus) if value is None else int(value) if is_whole_number(value) else None


def _tasks_of_step(program: LaunchedProgram, request: Request) -> int | None:
    """Return the tasks of srun on each node."""
    step = program.step
    if step is None:
        return 1
    own = step.get("ntasks-per-node") or step.get("tasks-per-node")
    total, nodes = step.get("ntasks"), step.get("nodes") or request.nodes
    if own is not None:
        return int(own) if is_whole_number(own) else None
    if total is not None:
        known = is_whole_number(total) and is_whole_number(nodes) and int(nodes)
        return -(-int(total) // int(nodes)) if known else None
    return request.tasks


def _convert_python(
    program: LaunchedProgram, made: ConvertedProgram, request: Request
) -> list[str]:
    """Convert Python that srun or the batch shell starts; return the words of a rank."""
    _choose_step(program, made, request, "python")
    return _own_words(program)


def _own_words(program: LaunchedProgram) -> list[str]:
    """Return the words of the command inside srun, containers and wrappers."""
    if program.in_shell:
        return ["python", *program.args]
    if words := _list_with_wrapper(program):
        return words
    words = [one.text for one in program.command.words]
    count = len(program.args)
    if program.kind == "python":
        found = [i for i, word in enumerate(words[: len(words) - count]) if _PYTHON.fullmatch(word)]
        return words[found[-1] :] if found else ["python", *program.args]
    # The words before the arguments: the program and its own options.
    start = len(words) - count
    while start > 0 and words[start - 1].startswith("-") and start > 1:
        start -= 1
    return words[max(0, start - 1) :]


def _convert_command(
    program: LaunchedProgram, made: ConvertedProgram, request: Request
) -> list[str]:
    """Convert a command that is not Python; return its words."""
    _choose_step(program, made, request, program.kind)
    if program.kind == "script" or not program.in_shell:
        return _own_words(program)
    return [program.kind, *program.args]


def _choose_step(
    program: LaunchedProgram, made: ConvertedProgram, request: Request, what: str
) -> None:
    """Decide how the ranks start: by srun, one for each GPU, or one on each node."""
    tasks, gpus = _tasks_of_step(program, request), request.gpus or 0
    nodes = program.step.get("nodes") if program.step else None
    if program.step is None and not request.is_single_node:
        made.problem = f"{what} starts only on the first node: there is no srun before it"
    elif nodes is not None and is_whole_number(nodes) and nodes != request.nodes:
        made.problem = f"srun starts {what} on {nodes} of {request.nodes} nodes"
    elif tasks is None:
        made.problem = "the number of tasks depends on the job"
    elif program.step is None:  # a command, once on the node
        if request.tasks and request.tasks > 1:
            shown = f"{request.tasks} tasks"
            reason = "one task with the CPUs of all of them: SLURM_NTASKS is 1 in the program"
            made.remarks.append((program.command.start, shown, "changed", reason))
    elif tasks == gpus or (tasks == 1 and gpus == 0):
        made.launcher = "srun"
    elif tasks != 1:
        made.problem = (
            f"srun starts {tasks} tasks on each node with {gpus} GPUs: hpcrun starts one for each "
            "GPU"
        )
