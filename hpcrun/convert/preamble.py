"""Convert the statements before the training: modules, environments, variables, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from hpcrun.convert.remarks import Effect, Remarks
from hpcrun.lint import OPEN, Assignment, Command, Script, count_gpus_per_node
from hpcrun.plan import looks_secret
from hpcrun.text import is_whole_number

# Variables that hpcrun sets for every rank.
_OWNED = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|NODE_RANK|LOCAL_WORLD_SIZE"
)
# Commands that only print, whose output nothing in the script reads.
_PRINTS = {
    *("echo", "printf", "date", "hostname", "nvidia-smi", "rocm-smi", "pwd", "which", "env"),
    *("printenv", "whoami", "uname", "lscpu", "free", "df", "sinfo", "squeue", "scontrol", "nvcc"),
    *("ds_report", "uptime", "id", "ls", "lspci", "nproc", "type", "clear", "cat"),
}
# Commands that do not change the modules and environments that are set up after them.
_NEUTRAL = {
    *("mkdir", "touch", "ulimit", "cp", "rm", "ln", "mv", "chmod", "umask", "[", "test", "cd"),
    *("pushd", "tar", "unzip", "rsync", "wget", "curl", "git", "sleep", "wait"),
}
_MOVES = {"cd", "pushd", "popd"}
# Commands whose output may be displayed: they change nothing.
_READS = {
    *("basename", "dirname", "wc", "head", "tail", "grep", "sed", "awk", "cut", "tr", "sort"),
    *("seq", "python", "python3", "expr", "realpath", "readlink", "getconf", "bc", "tput"),
}
# Variables that programs read, which may be in the environment of the submitting shell.
_READ_BY_PROGRAMS = re.compile(
    r"(OMP|MKL|OPENBLAS|NUMEXPR|KMP|GOMP|NCCL|RCCL|GLOO|UCX|FI|CUDA|ROCR|HIP|TORCH|PYTORCH|PYTHON|HF"
    r"|TRANSFORMERS|TOKENIZERS|WANDB|XLA|TF|JAX|TRITON|DS|DEEPSPEED|ACCELERATE|XDG|LD)_?\w*"
    r"|TMPDIR|TMP|TEMP"
)
_ALWAYS_EXPORTED = {"PATH", "HOME", "USER", "SHELL", "LANG", "LOGNAME", "SLURM_EXPORT_ENV"}
_INDEX = "SLURM_ARRAY_TASK_ID"
_LAUNCHERS = re.compile(r"torchrun|accelerate launch|torch\.distributed|deepspeed|commands\.launch")

NOT_EXPORTED = (
    "not exported: the training gets this value only if the shell from which you submit exports "
    "the variable"
)
_EXPORTS = re.compile(r"export\b|(declare|typeset)\s+(-\w+\s+)*-\w*x")

SECRET = (
    "secrets: a job file holds no values of secrets: export the variable in the shell from which "
    "you submit"
)


class Statement(Struct):
    """A statement of a script.

    Attributes:
        text: Its text.
        assigns: The variables that it assigns.
        uses: The variables that it expands.
        export: Export the variable that it assigns.
        exports: Variables to export after a statement that is not an assignment.
        aborts: The script ends, or its training does not start, if this fails.
    """

    start: int
    end: int
    text: str
    assigns: set[str] = field(default_factory=set)
    uses: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    export: bool = False
    is_plain: bool = False  # an assignment that is not exported
    is_array: bool = False
    exports: list[str] = field(default_factory=list)
    moves: bool = False  # it changes the directory
    aborts: bool = False
    if_text: str = ""  # ``A && B`` as ``if A; then B; fi``, which does not fail with A


class BackgroundStatement(Struct):
    """A statement with the ``&`` after it, in place of its node."""

    statement: Any
    start_byte: int
    end_byte: int
    type: str = "background"


class Preamble(Struct):
    """The converted statements before the program.

    Attributes:
        kept: Statements that are carried over as commands, in order.
        secrets: Variables whose values are secrets; the job file has only their names.
        background: Those of ``kept`` that run in the background.
        folder: The statement that changes to the training's directory; "" for the project.
        wanders: ``folder`` is not all: the directory depends on several statements or on the job.
        owned: Exports of ranks and world size, which hpcrun sets unless the job is a bare command.
        shell: Statements that concern only the shell of the script, e.g. ``set -e``, in order. A
            job whose command is the text of the script has them, too.
        expansion: Those of ``kept`` that change how bash expands words, e.g. ``shopt -s nullglob``.
        aliases: The names of aliases.
        only_in_shell: Remarks that do not apply if the command of the job is the script's text.
    """

    modules: list[str] = field(default_factory=list)
    module_paths: list[str] = field(default_factory=list)
    venv: str = ""
    conda: str = ""
    env: dict[str, str] = field(default_factory=dict)
    nccl: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    fabric: str = ""
    kept: list[Statement] = field(default_factory=list)
    background: list[Statement] = field(default_factory=list)
    folder: str = ""
    aborts: bool = False  # set -e
    owned: list[Statement] = field(default_factory=list)
    wanders: bool = False
    shell: list[Statement] = field(default_factory=list)
    expansion: list[Statement] = field(default_factory=list)
    aliases: set[str] = field(default_factory=set)
    only_in_shell: list[tuple[int, str, Effect, str]] = field(default_factory=list)

    @property
    def needs_text(self) -> bool:
        """True if only the text of the script does all that the script does."""
        effects = {effect for _, _, effect, _ in self.only_in_shell}
        return bool(self.background) or "missing" in effects


def describe_statement(script: Script, start: int, end: int) -> Statement:
    """Return a statement with the variables and functions that it uses and sets."""
    text = script.data[start:end].decode("utf-8", "surrogateescape")
    inside = [one for one in script.assignments if start <= one.start < end]
    commands = [one for one in script.commands if start <= one.start < end]
    made = Statement(start, end, text)
    made.assigns = {one.name for one in inside if not one.prefix}
    made.uses = {one.name for one in script.uses if start <= one.start < end}
    # Text in single quotes may be read by another shell.
    made.uses |= set(re.findall(r"\$\{?([A-Za-z_]\w*)", text))
    if "${!" in text:  # the variable that another one names
        made.uses |= {one.name for one in script.assignments}
    if re.search(r"\(\(|\[|\blet\b", text):  # arithmetic, in which names need no dollar sign
        names = {one.name for one in script.assignments} | {_INDEX}
        made.uses |= names & set(re.findall(r"[A-Za-z_]\w*", text))
    made.calls = {one.name for one in commands}
    if found := re.match(r"\s*(?:function\s+)?([\w-]+)\s*(?:\(\)|\{)", text):
        made.functions = {found[1]} & script.functions
    if commands and commands[0].name in ("read", "mapfile", "readarray", "getopts"):
        made.assigns |= {word for word in commands[0].args if re.fullmatch(r"[A-Za-z_]\w*", word)}
        is_list = commands[0].name in ("mapfile", "readarray") or "-a" in commands[0].args
        made.is_array = is_list and commands[0].name != "getopts"
    made.is_array |= any(one.items is not None for one in inside)
    made.is_array |= any(re.match(rb"\w+\[", script.data[one.start : one.end]) for one in inside)
    if commands and commands[0].name == "printf" and commands[0].args[:1] == ["-v"]:
        made.assigns |= set(commands[0].args[1:2])
    return made


class PreambleReader:
    """Converts statements one after the other."""

    def __init__(self, script: Script, remarks: Remarks, project: str, training_start: int) -> None:
        self.script, self.remarks, self.project = script, remarks, project
        self.training_start = training_start
        self.made = Preamble()
        # A command that is not converted may change the environment of those below it.
        self.has_commands = False
        # So may the search paths that a script sets before it loads a module.
        self.paths: set[str] = set()
        self.conda_home = ""
        self.conda_hooks: list[tuple[Statement, str]] = []
        self.commands: set[str] = set()
        self.exported = set(_ALWAYS_EXPORTED)
        self.exports_all = False
        self.functions: dict[str, Any] = {}
        flags = re.search(r"^#!.*?sh\s+-(\w+)", script.text.split("\n", 1)[0])
        if flags and (options := "".join(sorted(set(flags[1]) & set("aef")))):
            self._read_flags(Statement(0, 0, f"set -{options}"), [f"-{options}"])

    def start_in(self, folder: str) -> None:
        """Begin in another directory than the project's folder."""
        self.made.folder = shlex.join(["cd", "--", folder])
        self.made.kept.append(Statement(0, 0, self.made.folder, moves=True))

    def read(self, node: Any) -> None:
        """Convert one statement."""
        script = self.script
        start, end = node.start_byte, node.end_byte
        one = describe_statement(script, start, end)
        kind = node.type
        commands = [each for each in script.commands if start <= each.start < end]
        own = [each for each in commands if not each.substituted]
        one.aborts = self.made.aborts or _precedes(node, self.training_start)
        self._report_effects(one, node)
        if kind == "variable_assignment":
            self._assignment(one, exported=False)
        elif kind == "declaration_command":
            self._assignment(one, exported=bool(_EXPORTS.match(one.text)))
            one.is_plain = False  # another export of its variables is a statement of its own
        elif kind == "unset_command":
            self._keep(one)
        elif kind == "command" and own:
            self._command(one, own[0])
        elif kind == "redirected_statement" and own and own[0].name == "exec" and not own[0].args:
            self._redirect_shell(one)
        elif kind == "redirected_statement" and len(own) == 1 and self._only_prints(one, own[0]):
            self.remarks.replaced(start, one.text, "it only prints")
        elif kind == "background":
            self._keep(one)
            self.made.background.append(one)
        elif kind == "list":
            self._list(one, node)
        elif (
            kind == "pipeline"
            and own
            and all(each.name in _PRINTS | {"head", "tail", "grep", "tee", "sort"} for each in own)
            and ">" not in one.text
            and "tee" not in one.text
        ):
            self.remarks.replaced(start, one.text, "it only prints")
        else:
            self._keep(one)

    def _list(self, one: Statement, node: Any) -> None:
        first, operator, last = node.children[0], node.children[1].type, node.children[-1]
        data = self.script.data
        if self._ends_without(node):
            before = len(self.made.kept)
            self.read(first)  # a directory that does not exist ends the job, too
            for each in self.made.kept[before:]:
                each.end = one.end  # as text, the statement is complete
                each.aborts = True
            return
        if operator == "&&" and "<<" not in one.text:
            parts = [data[each.start_byte : each.end_byte].decode() for each in (first, last)]
            one.if_text = f"if {parts[0]}; then {parts[1]}; fi"
        self._keep(one)

    def _report_effects(self, one: Statement, node: Any) -> None:
        """Report what a statement, or a function that it calls, does to the shell of the script."""
        if node.type == "function_definition":
            name = node.child_by_field_name("name")
            self.functions[name.text.decode() if name is not None else ""] = node
            return
        if node.type == "background":
            return
        if node.type == "list" and self._ends_without(node):
            return  # its first command is read on its own
        nodes = self._list_executed(node)
        names = set().union(*(_names_of(each) for each in nodes))
        if "eval" in names:
            names |= set(re.findall(r"\b(?:cd|pushd)\b", one.text))
        is_plain_move = node.type == "command" and _names_of(node) & {"cd", "pushd"}
        if names & _MOVES:
            one.moves = True
            self.made.wanders |= not is_plain_move
        if any(_has_background(each) for each in nodes):
            self.made.background.append(one)
        if any(_may_succeed(each) for each in nodes):
            reason = "a job whose setup ends is a failed one, and so the job fails where this exits"
            self.made.only_in_shell.append((one.start, one.text, "missing", reason))

    def _list_executed(self, node: Any) -> list[Any]:
        """Return a statement, and the functions that it calls."""
        found, names = [node], _names_of(node)
        while called := [self.functions[name] for name in names if name in self.functions]:
            called = [each for each in called if each not in found]
            if not called:
                break
            found += called
            names = set().union(*(_names_of(each) for each in called))
        return found

    def _redirect_shell(self, one: Statement) -> None:
        """Convert ``exec >FILE``, which redirects all that is below it."""
        self.made.shell.append(one)
        effect: Effect = "replaced"
        reason = "each rank has its own log: hpcrun logs"
        if re.search(r"\d*<(?!\s*/dev/null)", one.text.replace("<(", "(")):
            effect, reason = "missing", "the training would read it as its input"
        elif re.search(r"[\d}][<>]|\{\w+\}>", re.sub(r"\b[12]>", ">", one.text)):
            effect, reason = "missing", "the training would have it as an open file"
        self.made.only_in_shell.append((one.start, one.text, effect, reason))

    def _ends_without(self, node: Any) -> bool:
        """Return True for ``cd FOLDER || exit 1``, perhaps with a message."""
        last = node.children[-1]
        others = {
            each.name
            for each in self.script.commands
            if last.start_byte <= each.start < last.end_byte
        }
        return (
            node.children[1].type == "||"
            and bool(_names_of(node.children[0]) & _MOVES)
            and "exit" in others
            and others <= {"exit", "echo", "printf"}
        )

    def _only_prints(self, one: Statement, command: Command) -> bool:
        inner = [
            each.name
            for each in self.script.commands
            if each.substituted and one.start <= each.start < one.end
        ]
        if not set(inner) <= _PRINTS | _READS:
            return False
        targets = command.redirects
        is_here = all(re.fullmatch(r"\d?>&\d|2?>\s*/dev/null", each.strip()) for each in targets)
        return is_here and command.name in _PRINTS and not _changes_state(command)

    def _keep(self, one: Statement) -> None:
        self.has_commands |= bool(one.functions or one.calls - _NEUTRAL or not one.calls)
        self.made.kept.append(one)

    # ---- variables

    def _assignment(self, one: Statement, *, exported: bool) -> None:
        inside = [
            each
            for each in self.script.assignments
            if one.start <= each.start < one.end and not each.prefix
        ]
        exported = exported or self.exports_all or bool(one.assigns & self.exported)
        # Slurm exports the job's GPUs.
        exported |= any(name.endswith("_VISIBLE_DEVICES") for name in one.assigns)
        if exported:
            names = set(re.findall(r"[A-Za-z_]\w*", one.text)) if not inside else set()
            self.exported |= one.assigns | names
            self.paths |= {name for name in one.assigns if _is_search_path(name)}
        if one.assigns == {"IFS"}:
            self.made.shell.append(one)
            reason = "the words of the program are split at blanks"
            self.made.only_in_shell.append((one.start, one.text, "missing", reason))
            return
        appends = "+=" in one.text.split("=")[0] + "="
        if appends and exported and len(inside) == 1 and inside[0].items is None:
            one.uses |= one.assigns
            one.exports = sorted(one.assigns)
            self.made.kept.append(one)
            return
        if len(inside) != 1 or inside[0].items is not None or appends:
            one.export = exported
            one.is_plain = not exported
            if not inside and exported:  # export NAME
                names = set(re.findall(r"[A-Za-z_]\w*", one.text.removeprefix("export")))
                one.uses |= names
                if names and all(_OWNED.fullmatch(name) for name in names):
                    self.remarks.replaced(one.start, one.text, "hpcrun sets it for every rank")
                    return
            self.made.kept.append(one)
            return
        (each,) = inside
        name, value = each.name, each.value
        if value.constant and looks_secret(name, value.text):
            self.made.secrets.append(name)
            self.remarks.changed(one.start, f"{name}=***", SECRET)
        elif _OWNED.fullmatch(name) and exported:
            if not name.startswith("MASTER_"):
                self.made.owned.append(one)
            self.remarks.replaced(one.start, one.text, "hpcrun sets it for every rank")
        elif name.endswith("_VISIBLE_DEVICES") and exported:
            self._visible_devices(one, value.text)
        elif name == "NCCL_IB_DISABLE" and value.text == "1" and exported:
            self.made.fabric = "ethernet"
            self.remarks.changed(one.start, one.text, "nccl: {fabric: ethernet}")
        elif exported and value.constant and not _is_search_path(name):
            self._constant(one, each)
        else:
            if not exported and value.constant and self._is_inherited(name):
                self._set_if_exported(one, name)
                return
            is_command = bool(_LAUNCHERS.search(one.text)) or bool(one.uses & self.commands)
            if is_command and OPEN in value.text:
                self.commands.add(name)  # the command of the training, which is in the job
                exported = False
            one.export, one.is_plain = exported, not exported
            self.made.kept.append(one)

    def _is_inherited(self, name: str) -> bool:
        """Return True for a variable that only the programs read, if the shell has exported it."""
        exports = rf"(export|declare|typeset|env)\b[^\n]*\b{name}\b"
        return (
            is_read_by_programs(name)
            and not self.script.uses_of(name)
            and not re.search(exports, self.script.text)
        )

    def _set_if_exported(self, one: Statement, name: str) -> None:
        self.remarks.changed(one.start, one.text, NOT_EXPORTED)
        one.text = f'[ -z "${{{name}+x}}" ] || {one.text}'
        self.made.kept.append(one)

    def _visible_devices(self, one: Statement, value: str) -> None:
        devices = value.replace(" ", "").split(",")
        gpus = count_gpus_per_node(self.script)
        if OPEN in value or (
            all(is_whole_number(word) for word in devices) and len(devices) == gpus
        ):
            reason = "Slurm assigns the job's GPUs; this could select those of another job"
            self.remarks.changed(one.start, one.text, reason)
        else:
            reason = f"Slurm assigns the job's GPUs, of which the script requests {gpus or 'none'}"
            self.remarks.missing(one.start, one.text, reason)

    def _constant(self, one: Statement, each: Assignment) -> None:
        env = self.made.nccl if each.name.startswith("NCCL_") else self.made.env
        env[each.name] = each.value.text
        one.export = True
        # A command below may read it: then the export itself is kept.
        self.made.kept.append(one)

    # ---- commands

    def _command(self, one: Statement, command: Command) -> None:
        name, args = command.name, command.args
        words = command.words[1:]
        constant = all(word.constant for word in words)
        if name in ("module", "ml") and constant:
            self._module(one, name, args)
        elif name == "export":  # an export that the grammar reads as a command
            self._keep(one)
        elif name in ("source", ".") and words:
            self._source(one, args)
        elif name in ("conda", "mamba", "micromamba", "activate"):
            self._conda(one, args)
        elif name == "eval" and re.search(r"(conda|mamba)\b.*\bhook\b", one.text):
            if self.has_commands:
                self._keep(one)
            else:
                self._replace_hook(one, "hpcrun finds conda by itself")
        elif name in ("cd", "pushd"):
            self._change_folder(one, command)
        elif name == "shopt":
            self.made.expansion.append(one)
            self._keep(one)
        elif name == "alias":
            self.made.aliases |= {word.split("=")[0] for word in args}
            self._keep(one)
        elif name == "set":
            self._set(one, args)
        elif name == "trap":
            self._trap(one, args)
        elif name == "wait" and self.made.background:
            self.made.background = []  # the commands above have ended
            self._keep(one)
        elif name in ("sleep", "wait", "true", ":") and not one.assigns and name != ":":
            self.remarks.replaced(one.start, one.text, "not needed")
        elif name == "python" or re.fullmatch(r"python[0-9.]*", name):
            if args[:1] in (["--version"], ["-V"]):
                self.remarks.replaced(one.start, one.text, "it only prints")
            else:
                self._keep(one)
        elif self._only_prints(one, command):
            self.remarks.replaced(one.start, one.text, "it only prints")
        else:
            self._keep(one)

    def _module(self, one: Statement, name: str, args: Sequence[str]) -> None:
        words = [word for word in args if word not in ("-q", "-s", "--quiet", "--silent")]
        verb, rest = ("load", words) if name == "ml" else (words[:1] or [""], words[1:])
        if name == "ml" and words[:1] in (["load"], ["purge"], ["use"], ["unload"], ["list"]):
            verb, rest = words[0], words[1:]
        verb = verb if isinstance(verb, str) else verb[0]
        while rest and rest[0] in ("-a", "--append"):
            rest = rest[1:]
        if verb in ("list", "avail", "spider", "show", "whatis") or not verb:
            self.remarks.replaced(one.start, one.text, "it only prints")
        elif verb == "purge" and not self.has_commands and not self.made.modules:
            self.remarks.replaced(
                one.start,
                one.text,
                "hpcrun does not unload the modules of your shell: submit from one without "
                "modules, or set environment: clean",
            )
        elif (
            verb in ("load", "add")
            and not (self.has_commands or self.paths)
            and not self._has_python()
        ):
            self.made.modules += rest
        elif verb == "use" and not self.has_commands and not self.made.modules:
            self.made.module_paths += rest
        else:
            self._keep(one)

    def _has_python(self) -> bool:
        return bool(self.made.venv or self.made.conda)

    def _source(self, one: Statement, args: Sequence[str]) -> None:
        path = args[0]
        if path == "activate" and len(args) > 1:
            self._conda(one, ["activate", *args[1:]])
        elif found := re.fullmatch(r"(.*)/bin/activate", path):
            is_known = OPEN not in found[1] and (
                not self.made.folder or found[1].startswith(("/", "~"))
            )
            if len(args) > 1:  # source .../anaconda3/bin/activate NAME
                self.conda_home = found[1]
                self._conda(one, ["activate", *args[1:]])
            elif is_known and not self._is_ordered() and not self._has_python():
                self.made.venv = found[1]
            else:
                self._keep(one)
        elif found := re.fullmatch(r"(.*)/etc/profile\.d/conda\.sh", path):
            if self.has_commands or OPEN in found[1]:
                self._keep(one)
            else:
                self.conda_home = found[1]
                self.conda_hooks.append((one, ""))
        elif re.fullmatch(r"(~|\$HOME|.*)/\.(bashrc|bash_profile|profile)", path):
            if self.has_commands:
                self._keep(one)
            else:
                self._replace_hook(
                    one,
                    "the job inherits the variables of the submitting shell, and hpcrun finds "
                    "conda by itself",
                )
        elif re.fullmatch(r"/etc/profile(\.d/(modules|lmod|z00_lmod)\.(ba)?sh)?", path):
            self.remarks.replaced(one.start, one.text, "hpcrun finds the module command by itself")
        else:
            reason = f"a directory to which {args[0]} changes is not the training's"
            if not self.made.wanders:
                self.made.only_in_shell.append((one.start, one.text, "changed", reason))
            self._keep(one)

    def _is_ordered(self) -> bool:
        """Return True if statements above an activation change what it does."""
        return self.has_commands or "PATH" in self.paths

    def _replace_hook(self, one: Statement, reason: str) -> None:
        self.conda_hooks.append((one, reason))
        self.remarks.replaced(one.start, one.text, reason)

    def _keep_hooks(self) -> None:
        """Keep the statements that define conda, which an activation among the commands needs."""
        for one, reason in self.conda_hooks:
            self.remarks.drop(one.start, reason)
            self.made.kept.append(one)
        self.made.kept.sort(key=lambda one: one.start)
        self.conda_hooks = []

    def _conda(self, one: Statement, args: Sequence[str]) -> None:
        if args[:1] == ["deactivate"]:
            if self._has_python() or self.has_commands:
                self._keep(one)
            else:
                self.remarks.replaced(one.start, one.text, "no environment is active")
            return
        names = [word for word in args[1:] if not word.startswith("-")]
        is_plain = args[:1] == ["activate"] and len(names) == 1 and OPEN not in names[0]
        if not is_plain or self._is_ordered() or self._has_python():
            self._keep_hooks()
            self._keep(one)
            return
        name = names[0]
        if self.conda_home and "/" not in name:
            home = self.conda_home
            name = home if name == "base" else f"{home}/envs/{name}"
        self.made.conda = name.rstrip("/")

    def _change_folder(self, one: Statement, command: Command) -> None:
        words = command.words[1:]
        target = words[0].text if words else ""
        if target == "--" and len(words) > 1:
            target = words[1].text
        if target.rstrip("/") in (".", self.project) and not self.made.folder:
            self.remarks.replaced(one.start, one.text, "a job starts in the folder of the project")
            return
        self.made.wanders |= bool(self.made.folder) or target == "-"
        self.made.folder = one.text
        self._keep(one)

    def _set(self, one: Statement, args: Sequence[str]) -> None:
        if not args or args[0] == "--" or not args[0].startswith(("-", "+")):
            self._keep(one)  # the positional parameters
            return
        self._read_flags(one, args)

    def _read_flags(self, one: Statement, args: Sequence[str]) -> None:
        """Convert the options of the shell."""
        added = "".join(word[1:] for word in args if re.fullmatch(r"-\w+", word))
        removed = "".join(word[1:] for word in args if re.fullmatch(r"\+\w+", word))
        self.made.aborts = "e" not in removed and (
            self.made.aborts or "e" in added or "errexit" in args
        )
        self.made.shell.append(one)
        if "a" in added + removed or "allexport" in args:
            self.exports_all = "a" in added or ("allexport" in args and "+o" not in args)
            self._keep(one)
        elif "f" in added + removed or "noglob" in args:
            self.made.expansion.append(one)
            self._keep(one)
        elif one.end:
            reason = "a command of setup that fails ends the job"
            self.made.only_in_shell.append((one.start, one.text, "replaced", reason))

    def _trap(self, one: Statement, args: Sequence[str]) -> None:
        handler = one.text + "".join(
            self.functions[name].text.decode("utf-8", "replace")
            for name in self.functions
            if args and re.search(rf"\b{re.escape(name)}\b", args[0])
        )
        signals = any(re.search("USR1|TERM|USR2|CONT", word) for word in args[1:])
        if re.search(r"requeue|sbatch|\bkill\b", handler) or (signals and not args[0].strip()):
            self.remarks.replaced(one.start, one.text, "survive: the harness handles signals")
        else:
            self.made.shell.append(one)
            self.made.only_in_shell.append((one.start, one.text, "missing", "the job has no traps"))


def is_read_by_programs(name: str) -> bool:
    """Return True for a variable with a meaning to training programs and their libraries."""
    return bool(_READ_BY_PROGRAMS.fullmatch(name))


def _precedes(node: Any, start: int) -> bool:
    """Return True for ``A`` in ``A && B`` if a command that starts at this byte is in B."""
    after = node.next_sibling if node.type != "background" else None
    if after is None or after.type != "&&":
        return False
    while node.parent is not None and node.parent.type == "list":
        node = node.parent
    return bool(node.start_byte <= start < node.end_byte)


def _names_of(node: Any) -> set[str]:
    """Return the commands that run in this shell."""
    if node.type in ("subshell", "command_substitution", "pipeline"):
        return set()
    name = node.child_by_field_name("name") if node.type == "command" else None
    found = {name.text.decode("utf-8", "surrogateescape")} if name is not None else set()
    return found.union(*(_names_of(child) for child in node.children))


def _has_background(node: Any) -> bool:
    """Return True if a part of a statement, but not all of it, runs in the background."""
    if node.type == "command_substitution":
        return False
    if node.type == "command" and _names_of(node) == {"coproc"}:
        return True
    return any(child.type == "&" or _has_background(child) for child in node.children)


def _may_succeed(node: Any) -> bool:
    """Return True if a statement may end the script with success, by ``exit 0``."""
    if node.type in ("subshell", "command_substitution", "pipeline"):
        return False
    if node.type == "command" and _names_of(node) == {"exit"}:
        return node.text.split()[1:] in ([], [b"0"])
    if node.type == "list" and node.children[1].type == "||" and node.children[-1].text == b"exit":
        return _may_succeed(node.children[0])
    return any(_may_succeed(child) for child in node.children)


def _changes_state(command: Command) -> bool:
    """Return True for a command with a printing name that changes something."""
    if command.name == "scontrol":
        return command.args[:1] != ["show"]
    if command.name == "nvidia-smi":
        return any(re.match("-(pm|c|pl|ac|lgc|mig)", word) for word in command.args)
    if command.name == "env":
        return bool(command.args)
    if command.name == "printf":
        return command.args[:1] == ["-v"]
    return False


def _is_search_path(name: str) -> bool:
    return name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CPATH", "LIBRARY_PATH")


def changes_files(one: Statement) -> bool:
    """Return True if a statement may run commands that do more than read and print."""
    reads = _PRINTS | _READS | {"mapfile", "readarray", "read", "[", "[[", "test", "find"}
    return bool(one.calls - reads) or ">" in one.text.replace("2>/dev/null", "")


def depends_on(names: set[str], statements: Sequence[Statement]) -> list[Statement]:
    """Return the statements on which some variables or functions depend, in order."""
    wanted, found = set(names), []
    for one in reversed(statements):
        if one.assigns & wanted or one.functions & wanted:
            found.append(one)
            wanted |= list_needs(one, statements)
    return found[::-1]


def list_needs(statement: Statement, statements: Sequence[Statement]) -> set[str]:
    """Return the variables and commands of a statement, and of the functions that it calls.

    A function may be defined before what it uses.
    """
    found = statement.uses | statement.calls
    while True:
        called = [one for one in statements if one.functions & found]
        more = found.union(*(one.uses | one.calls for one in called))
        if more == found:
            return found
        found = more
