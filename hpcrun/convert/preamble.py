"""Convert the statements before the training: modules, environments, variables, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from hpcrun.convert.remarks import Remarks
from hpcrun.lint import OPEN, Assignment, Command, Script
from hpcrun.plan import looks_secret

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
_INDEX = "SLURM_ARRAY_TASK_ID"
_LAUNCHERS = re.compile(r"torchrun|accelerate launch|torch\.distributed|deepspeed|commands\.launch")

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
        folder: The directory to which the script changes; "" for the project.
        owned: Exports of ranks and world size, which hpcrun sets unless the job is a bare command.
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
    if re.search(r"\(\(|\[|\blet\b", text):  # arithmetic, in which names need no dollar sign
        names = {one.name for one in script.assignments} | {_INDEX}
        made.uses |= names & set(re.findall(r"[A-Za-z_]\w*", text))
    made.calls = {one.name for one in commands}
    if found := re.match(r"\s*(?:function\s+)?([\w-]+)\s*(?:\(\)|\{)", text):
        made.functions = {found[1]} & script.functions
    if commands and commands[0].name in ("read", "mapfile", "readarray", "getopts"):
        made.assigns |= {word for word in commands[0].args if re.fullmatch(r"[A-Za-z_]\w*", word)}
    return made


class PreambleReader:
    """Converts statements one after the other."""

    def __init__(self, script: Script, remarks: Remarks, project: str) -> None:
        self.script, self.remarks, self.project = script, remarks, project
        self.made = Preamble()
        # A command that is not converted may change the environment of those below it.
        self.has_commands = False
        self.conda_home = ""
        self.commands: set[str] = set()

    def start_in(self, folder: str) -> None:
        """Begin in another directory than the project's folder."""
        self.made.folder = shlex.join(["cd", "--", folder])
        self.made.kept.append(Statement(0, 0, self.made.folder))

    def read(self, node: Any) -> None:
        """Convert one statement."""
        script = self.script
        start, end = node.start_byte, node.end_byte
        one = describe_statement(script, start, end)
        kind = node.type
        commands = [each for each in script.commands if start <= each.start < end]
        own = [each for each in commands if not each.substituted]
        if kind == "variable_assignment":
            self._assignment(one, exported=False)
        elif kind == "declaration_command":
            self._assignment(one, exported=one.text.startswith("export"))
        elif kind == "unset_command":
            self._keep(one)
        elif kind == "command" and own:
            self._command(one, own[0])
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
        others = {
            each.name for each in self.script.commands if last.start_byte <= each.start < one.end
        }
        if operator == "||" and _names_of(first) & _MOVES and others <= {"exit", "echo", "return"}:
            self.read(first)  # a directory that does not exist ends the job, too
            return
        if _names_of(node) & _MOVES:
            reason = "the training may start in another directory: change it without a condition"
            self.remarks.missing(one.start, one.text, reason)
        if operator == "&&" and "<<" not in one.text:
            parts = [data[each.start_byte : each.end_byte].decode() for each in (first, last)]
            one.if_text = f"if {parts[0]}; then {parts[1]}; fi"
        self._keep(one)

    def _only_prints(self, one: Statement, command: Command) -> bool:
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
        if len(inside) != 1 or inside[0].items is not None or "+=" in one.text.split("=")[0] + "=":
            one.export = exported
            one.is_plain = not exported
            one.is_array = any(each.items is not None for each in inside)
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
            is_command = bool(_LAUNCHERS.search(one.text)) or bool(one.uses & self.commands)
            if is_command and OPEN in value.text:
                self.commands.add(name)  # the command of the training, which is in the job
                exported = False
            one.export, one.is_plain = exported, not exported
            self.made.kept.append(one)

    def _visible_devices(self, one: Statement, value: str) -> None:
        devices = value.replace(" ", "").split(",")
        if all(word.isdigit() for word in devices) or OPEN in value:
            reason = "Slurm assigns the job's GPUs; this could select those of another job"
            self.remarks.changed(one.start, one.text, reason)
        else:
            self.remarks.missing(one.start, one.text, "Slurm assigns the job's GPUs")

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
                self.remarks.replaced(one.start, one.text, "hpcrun finds conda by itself")
        elif name in ("cd", "pushd"):
            self._change_folder(one, command)
        elif name == "set":
            self._set(one, args)
        elif name == "trap":
            self._trap(one, args)
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
        elif verb in ("load", "add") and not self.has_commands and not self._has_python():
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
            elif is_known and not self.has_commands and not self._has_python():
                self.made.venv = found[1]
            else:
                self._keep(one)
        elif found := re.fullmatch(r"(.*)/etc/profile\.d/conda\.sh", path):
            if self.has_commands or OPEN in found[1]:
                self._keep(one)
            else:
                self.conda_home = found[1]
        elif re.fullmatch(r"(~|\$HOME|.*)/\.(bashrc|bash_profile|profile)", path):
            if self.has_commands:
                self._keep(one)
            else:
                self.remarks.replaced(
                    one.start,
                    one.text,
                    "the job inherits the variables of the submitting shell, and hpcrun finds "
                    "conda by itself",
                )
        elif re.fullmatch(r"/etc/profile(\.d/(modules|lmod|z00_lmod)\.(ba)?sh)?", path):
            self.remarks.replaced(one.start, one.text, "hpcrun finds the module command by itself")
        else:
            self._keep(one)

    def _conda(self, one: Statement, args: Sequence[str]) -> None:
        if args[:1] == ["deactivate"]:
            if self._has_python() or self.has_commands:
                self._keep(one)
            else:
                self.remarks.replaced(one.start, one.text, "no environment is active")
            return
        names = [word for word in args[1:] if not word.startswith("-")]
        is_plain = args[:1] == ["activate"] and len(names) == 1 and OPEN not in names[0]
        if not is_plain or self.has_commands or self._has_python():
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
        self.made.folder = one.text
        self._keep(one)

    def _set(self, one: Statement, args: Sequence[str]) -> None:
        flags = "".join(word[1:] for word in args if re.fullmatch(r"-[a-z]+", word))
        if "e" in flags or "errexit" in args:
            self.made.aborts = True
        if set(flags) <= set("exuovE"):
            reason = "a command of setup that fails ends the job"
            self.remarks.replaced(one.start, one.text, reason)
        else:
            self._keep(one)

    def _trap(self, one: Statement, args: Sequence[str]) -> None:
        if "requeue" in one.text or any(re.search("USR1|TERM|USR2|CONT", x) for x in args[1:]):
            self.remarks.replaced(one.start, one.text, "survive: the harness handles signals")
        else:
            self.remarks.missing(one.start, one.text, "the job has no traps")


def _names_of(node: Any) -> set[str]:
    """Return the commands that run in this shell."""
    if node.type in ("subshell", "command_substitution"):
        return set()
    name = node.child_by_field_name("name") if node.type == "command" else None
    found = {name.text.decode("utf-8", "surrogateescape")} if name is not None else set()
    return found.union(*(_names_of(child) for child in node.children))


def _changes_state(command: Command) -> bool:
    """Return True for a command with a printing name that changes something."""
    if command.name == "scontrol":
        return command.args[:1] != ["show"]
    if command.name == "nvidia-smi":
        return any(re.match("-(pm|c|pl|ac|lgc|mig)", word) for word in command.args)
    if command.name == "env":
        return bool(command.args)
    return False


def _is_search_path(name: str) -> bool:
    return name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CPATH", "LIBRARY_PATH")


def depends_on(names: set[str], statements: Sequence[Statement]) -> list[Statement]:
    """Return the statements on which some variables or functions depend, in order."""
    wanted, found = set(names), []
    for one in reversed(statements):
        if one.assigns & wanted or one.functions & wanted:
            found.append(one)
            wanted |= one.uses | one.calls
    return found[::-1]
