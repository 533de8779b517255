"""Find the programs that a script starts, and the launchers that start them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from hpcrun.lint.script import CLOSE, OPEN, Command, Script, mark, parse_script, show
from hpcrun.text import is_whole_number

# Options of srun with a value as a separate word.
_SRUN_LONG = """
account acctg-freq bb bbf begin chdir cluster-constraint clusters comment constraint container
core-spec cores-per-socket cpu-bind cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
dependency distribution epilog error exclude export extra-node-info gpu-bind gpu-freq gpus
gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input job-name jobid licenses
mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network
nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
open-mode output partition power prolog profile qos relative reservation signal sockets-per-node
switches task-epilog task-prolog tasks-per-node thread-spec threads-per-core time time-min tmp
tres-bind tres-per-task wait wckey container-image container-mounts container-name
container-workdir container-env environment uenv view cpu_bind accel-bind mem_bind
"""
_SRUN_VALUES = frozenset(_SRUN_LONG.split())
_SRUN_SHORT = {
    "A": "account",
    "B": "extra-node-info",
    "c": "cpus-per-task",
    "C": "constraint",
    "d": "dependency",
    "D": "chdir",
    "e": "error",
    "G": "gpus",
    "i": "input",
    "J": "job-name",
    "L": "licenses",
    "m": "distribution",
    "M": "clusters",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "r": "relative",
    "S": "core-spec",
    "t": "time",
    "T": "threads",
    "w": "nodelist",
    "W": "wait",
    "x": "exclude",
}
_SRUN_FLAGS = {
    "E": "preserve-env",
    "H": "hold",
    "I": "immediate",
    "K": "kill-on-bad-exit",
    "k": "no-kill",
    "l": "label",
    "O": "overcommit",
    "Q": "quiet",
    "s": "oversubscribe",
    "u": "unbuffered",
    "v": "verbose",
    "X": "disable-status",
    "Z": "no-allocate",
    "b": "batch",
}
# Options of launchers without a value; all others take one.
_FLAGS = {
    "torchrun": """standalone no-python run-path use-env use_env module m
        no-use-env no_python virtual-local-rank""",
    "deepspeed": """module no_python no_local_rank no_ssh no_ssh_check force_multi
        enable_each_rank_log bind_cores_to_rank save_pid elastic_training""",
    "accelerate": """multi_gpu cpu tpu use_xpu quiet debug use_deepspeed use_fsdp use_megatron_lm
        same_network module m no_python use_cpu dynamo_use_dynamic use_parallelism_config""",
}
_LAUNCHER_FLAGS = {
    name: frozenset(word.replace("_", "-") for word in text.split())
    for name, text in _FLAGS.items()
}
_SHORT = {"torchrun": {"m": "module", "r": "redirects", "t": "tee"}}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
# Commands that start another one, with their options that take a value.
_WRAPPERS = {
    "time": "",
    "nohup": "",
    "exec": "a",
    "command": "",
    "setsid": "",
    "stdbuf": "i o e",
    "nice": "n",
    "ionice": "c n",
    "catchsegv": "",
    "unbuffer": "",
    "xvfb-run": "n s",
    "numactl": "N m C p cpunodebind membind physcpubind preferred interleave",
    "timeout": "k s signal kill-after",
    "nsys": "o t s w output trace sample force-overwrite cuda-memory-usage capture-range",
    "ncu": "o k c",
}
CONTAINERS = ("singularity", "apptainer")
TRAINERS = ("torchrun", "deepspeed", "accelerate", "python", "mpirun", "horovodrun")


class LaunchOption(Struct, frozen=True):
    """An option of a launcher or of srun."""

    name: str
    value: str


class Step(Struct):
    """A call of srun."""

    options: list[LaunchOption]
    command: Command

    def get(self, name: str) -> str | None:
        """Return the value of an option; None if it is not given."""
        found = [one.value for one in self.options if one.name == name]
        return found[-1] if found else None


class LaunchedProgram(Struct):
    """A program that the script starts.

    Attributes:
        kind: torchrun, deepspeed, accelerate, python, mpirun, script, or the name of the command.
        options: The options of the launcher, with dashes for underscores.
        args: The words after the launcher's options: the program and its arguments.
        command: The command of the script in which it is.
        step: The srun that starts it, if any.
        in_shell: It is inside ``bash -c '...'``.
        env: Variables set for this program only, in words before it.
        module: The module by which Python starts the launcher, e.g. torch.distributed.launch.
        inner: The command inside ``bash -c``.
    """

    kind: str
    options: list[LaunchOption]
    args: list[str]
    command: Command
    step: Step | None = None
    in_shell: bool = False
    env: dict[str, str] = {}
    module: str = ""
    container: bool = False
    inner: Script | None = None

    def get(self, *names: str) -> str | None:
        """Return the value of the first of these options that is given."""
        for name in names:
            found = [one.value for one in self.options if one.name == name]
            if found:
                return found[-1]
        return None

    def number(self, *names: str) -> int | None:
        """Return the value of an option if it is a whole number."""
        value = self.get(*names)
        return int(value) if value is not None and is_whole_number(value) else None


def find_programs(script: Script) -> list[LaunchedProgram]:
    """Return the programs that a script starts, in order.

    >>> script = parse_script("#!/bin/bash\\nsrun -N2 bash -c 'torchrun --nnodes 2 t.py'\\n")
    >>> [(one.kind, one.get("nnodes"), one.step.get("nodes")) for one in find_programs(script)]
    [('torchrun', '2', '2')]
    """
    if "programs" not in script.cache:
        found: list[LaunchedProgram] = []
        for command in script.commands:
            if command.words and not command.substituted:
                words = _call_wrapper(script, [word.text for word in command.words])
                env = {one.name: one.value.text for one in command.prefix}
                found += unwrap(words, command, env=env, variables=script.exported)
        script.cache["programs"] = found
    programs: list[LaunchedProgram] = script.cache["programs"]
    return programs


def _call_wrapper(script: Script, words: list[str]) -> list[str]:
    """Return the words of the command that a function of the script runs with its arguments.

    >>> script = parse_script('run() { srun -n2 "$@"; }\\nrun python t.py\\n')
    >>> _call_wrapper(script, ["run", "python", "t.py"])
    ['srun', '-n2', 'python', 't.py']
    """
    for _ in range(4):  # a wrapper may call another one
        inner = script.wrappers.get(words[0])
        if inner is None:
            break
        at = inner.index(mark("@"))
        words = [*inner[:at], *words[1:], *inner[at + 1 :]]
    return words


def unwrap(
    words: Sequence[str],
    command: Command,
    *,
    step: Step | None = None,
    in_shell: bool = False,
    env: dict[str, str] | None = None,
    container: bool = False,
    inner: Script | None = None,
    variables: Mapping[str, str] | None = None,
    depth: int = 0,
) -> list[LaunchedProgram]:
    """Return the programs that a command starts, through wrappers, containers and shells."""
    words = list(words)
    env = dict(env or {})
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.S):
        name, value = words.pop(0).split("=", 1)
        env[name] = value
    if not words or depth > 8:
        return []
    name = words[0].rsplit("/", 1)[-1]

    def again(rest: Sequence[str], **changes: object) -> list[LaunchedProgram]:
        place: dict[str, object] = {
            "step": step,
            "in_shell": in_shell,
            "env": env,
            "container": container,
            "inner": inner,
            "variables": variables,
            "depth": depth + 1,
        }
        return unwrap(rest, command, **{**place, **changes})  # type: ignore[arg-type]

    if name == "srun":
        options, rest = parse_srun(words[1:])
        new = Step(options, command)
        if not rest:
            return [LaunchedProgram("srun", [], [], command, step=new, env=env)]
        return again(rest, step=new)
    if name in ("bash", "sh", "zsh") and (text := _shell_text(words)) is not None:
        return _in_shell(text, command, step, env, container, variables, depth)
    if name in ("bash", "sh", "source", "."):
        return [
            LaunchedProgram(
                "script", [], words[1:], command, step, in_shell, env, "", container, inner
            )
        ]
    if name == "env":
        rest = words[1:]
        while rest and (rest[0].startswith("-") or "=" in rest[0]):
            word = rest.pop(0)
            if word in ("-u", "--unset", "-C") and rest:
                rest.pop(0)
            elif "=" in word and not word.startswith("-"):
                key, value = word.split("=", 1)
                env[key] = value
        return again(rest)
    if name in _WRAPPERS:
        rest = words[1:]
        values = _WRAPPERS[name].split()
        if name == "nsys" and rest[:1] in (["profile"], ["launch"]):
            rest = rest[1:]
        while rest and rest[0].startswith("-"):
            word = rest.pop(0)
            if "=" not in word and word.lstrip("-") in values and rest:
                rest.pop(0)
        if name == "timeout":
            rest = rest[1:]
        return again(rest) if rest else []
    if name in CONTAINERS and len(words) > 2 and words[1] in ("exec", "run"):
        rest = skip_image(words[2:])
        return again(rest, container=True) if rest else []
    if name in ("shifter", "podman-hpc"):
        rest = words[1:]
        while rest and rest[0].startswith("-"):
            rest.pop(0)
        return again(rest, container=True) if rest else []
    if name == "uv" and words[1:2] == ["run"]:
        rest = words[2:]
        while rest and rest[0].startswith("-"):
            word = rest.pop(0)
            if word in ("--with", "--project", "--python", "-p", "--extra", "--group") and rest:
                rest.pop(0)
            if word in ("-m", "--module") and rest:
                return again(["python", "-m", *rest])
        return again(rest) if rest else []
    if name in ("poetry", "pipenv", "pixi", "hatch", "pdm") and words[1:2] == ["run"]:
        return again(words[2:])
    if name in ("conda", "mamba", "micromamba") and words[1:2] == ["run"]:
        rest = words[2:]
        while rest and rest[0].startswith("-"):
            word = rest.pop(0)
            if word in ("-n", "-p", "--name", "--prefix") and rest:
                rest.pop(0)
        return again(rest)
    module = ""
    if re.fullmatch(r"python[0-9.]*", name):
        rest = words[1:]
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
            word = rest.pop(0)
            if word in ("-W", "-X") and rest:
                rest.pop(0)
        if rest[:1] == ["-m"] and len(rest) > 1:
            module = rest[1]
            launcher = _MODULES.get(module)
            if launcher is None:
                args = ["-m", *rest[1:]]
                return [
                    LaunchedProgram(
                        "python",
                        _python_flags(words),
                        args,
                        command,
                        step,
                        in_shell,
                        env,
                        module,
                        container,
                        inner,
                    )
                ]
            name, words = launcher, [launcher, *rest[2:]]
        else:
            return [
                LaunchedProgram(
                    "python",
                    _python_flags(words),
                    rest,
                    command,
                    step,
                    in_shell,
                    env,
                    "",
                    container,
                    inner,
                )
            ]
    if name == "accelerate" and not module:
        if words[1:2] != ["launch"]:
            return [
                LaunchedProgram(name, [], words[1:], command, step, in_shell, env, "", container)
            ]
        words = words[1:]
    if name in _LAUNCHER_FLAGS:
        options, args = parse_launcher(name, words[1:])
        return [
            LaunchedProgram(
                name, options, args, command, step, in_shell, env, module, container, inner
            )
        ]
    if name in ("mpirun", "mpiexec", "orterun", "horovodrun", "ibrun"):
        kind = "horovodrun" if name == "horovodrun" else "mpirun"
        return [
            LaunchedProgram(kind, [], words[1:], command, step, in_shell, env, "", container, inner)
        ]
    return [
        LaunchedProgram(name, [], words[1:], command, step, in_shell, env, "", container, inner)
    ]


def _python_flags(words: Sequence[str]) -> list[LaunchOption]:
    flags = []
    for word in words[1:]:
        if not word.startswith("-") or word in ("-m", "-c"):
            break
        flags.append(LaunchOption(word.lstrip("-"), ""))
    return flags


def _shell_text(words: Sequence[str]) -> str | None:
    """Return the text of ``bash -c TEXT``, or None."""
    for index, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-zA-Z]*c", word):
            return words[index + 1] if index + 1 < len(words) else None
        if not word.startswith(("-", "+")):
            return None
    return None


def _in_shell(
    text: str,
    command: Command,
    step: Step | None,
    env: dict[str, str],
    container: bool,
    variables: Mapping[str, str] | None,
    depth: int,
) -> list[LaunchedProgram]:
    """Return the programs that the text of ``bash -c`` starts.

    In their words, marks stand for what the batch script does not know. Variables that the inner
    shell expands, in each task, are written as ``$NAME``.
    """
    outside = {ord(OPEN): "\ue00a", ord(CLOSE): "\ue00b"}
    known = {name: value.translate(outside) for name, value in (variables or {}).items()}
    script = parse_script(text.translate(outside), "bash -c", variables=known)

    def defer(word: str) -> str:
        return show(word).translate({0xE00A: OPEN, 0xE00B: CLOSE})

    found: list[LaunchedProgram] = []
    for one in script.commands:
        if one.words and not one.substituted:
            words = [defer(word.text) for word in one.words]
            own = {**env, **{each.name: defer(each.value.text) for each in one.prefix}}
            found += unwrap(
                words,
                command,
                step=step,
                in_shell=True,
                env=own,
                container=container,
                inner=script,
                depth=depth + 1,
            )
    return found


def skip_image(words: Sequence[str]) -> list[str]:
    """Return the words after the image of ``singularity exec [options] IMAGE``."""
    flags = {
        *(
            "--nv",
            "--rocm",
            "--cleanenv",
            "-e",
            "--containall",
            "-C",
            "--contain",
            "-c",
            "--writable",
        ),
        *(
            "--writable-tmpfs",
            "--no-home",
            "--fakeroot",
            "-f",
            "--ipc",
            "-i",
            "--pid",
            "-p",
            "--net",
        ),
        *("-n", "--nvccli", "--userns", "-u", "--compat", "--disable-cache", "--no-init", "-w"),
        *("--no-privs", "--keep-privs", "--no-umask", "--sharens", "--no-eval", "--unsquash"),
    }
    index = 0
    while index < len(words) and words[index].startswith("-"):
        index += 1 if words[index] in flags or "=" in words[index] else 2
    return list(words[index + 1 :])


def parse_srun(words: Sequence[str]) -> tuple[list[LaunchOption], list[str]]:
    """Return srun's options and the command that it starts.

    >>> options, rest = parse_srun(["-n4", "--mem", "1G", "--kill-on-bad-exit=1", "-l", "python"])
    >>> [(one.name, one.value) for one in options], rest
    ([('ntasks', '4'), ('mem', '1G'), ('kill-on-bad-exit', '1'), ('label', '')], ['python'])
    """
    words = list(words)
    options: list[LaunchOption] = []
    while words:
        unknown = re.fullmatch(f"{OPEN}\\w+{CLOSE}", words[0])
        if unknown and len(words) > 1 and words[1].startswith("-"):
            options.append(LaunchOption("?", words.pop(0)))  # a variable with options
            continue
        if not words[0].startswith("-") or words[0] == "-":
            break
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name in _SRUN_VALUES and words:
                value = words.pop(0)
            options.append(LaunchOption(name.replace("_", "-"), value))
            continue
        letter, rest = word[1], word[2:]
        if letter in _SRUN_SHORT:
            value = rest or (words.pop(0) if words else "")
            options.append(LaunchOption(_SRUN_SHORT[letter], value))
        elif letter in "KkI" and re.fullmatch(r"=?\d+", rest or "x"):
            options.append(LaunchOption(_SRUN_FLAGS[letter], rest.lstrip("=")))
        else:
            options.append(LaunchOption(_SRUN_FLAGS.get(letter, letter), ""))
            if rest:
                words.insert(0, f"-{rest}")
    # A variable with unknown options may come before the program.
    while len(words) > 1 and re.fullmatch(f"{OPEN}\\w+{CLOSE}", words[0]):
        options.append(LaunchOption("?", words.pop(0)))
    return options, words


def parse_launcher(name: str, words: Sequence[str]) -> tuple[list[LaunchOption], list[str]]:
    """Return the options of a launcher, with dashes for underscores, and the program.

    >>> parse_launcher("torchrun", ["--nproc_per_node", "4", "--standalone", "-m", "a.b", "1"])
    ([LaunchOption(name='nproc-per-node', value='4'), LaunchOption(name='standalone', value=''), \
LaunchOption(name='module', value='a.b')], ['a.b', '1'])
    """
    words = list(words)
    options: list[LaunchOption] = []
    flags = _LAUNCHER_FLAGS[name]
    while words and words[0].startswith("-"):
        word = words.pop(0)
        key, equals, value = word.lstrip("-").partition("=")
        key = key.replace("_", "-")
        if key in ("m", "module"):
            options.append(LaunchOption("module", words[0] if words else ""))
            break
        if not equals and key not in flags and words:
            value = words.pop(0)
        options.append(LaunchOption(key, value))
    return options, words


def split_shell(text: str) -> list[str]:
    """Return the words of a text, or the text itself if it has an open quote."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
