"""Convert an sbatch script to a job file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from msgspec import Struct, field

from hpcrun.convert.followed import follow_last_script, list_inner_scripts
from hpcrun.convert.preamble import (
    NOT_EXPORTED,
    BackgroundStatement,
    Preamble,
    PreambleReader,
    Statement,
    changes_files,
    depends_on,
    is_read_by_programs,
    list_needs,
)
from hpcrun.convert.program import ConvertedProgram, convert_program
from hpcrun.convert.remarks import Remark, Remarks
from hpcrun.convert.resources import Request, convert_directives
from hpcrun.lint import (
    LaunchedProgram,
    LaunchOption,
    Script,
    SourcedFile,
    find_programs,
    list_training,
    parse_script,
    parse_srun,
)
from hpcrun.plan import escape_placeholders, uses_modules
from hpcrun.secrets import Masker, contains_secret
from hpcrun.spec import format_comment, format_flow
from hpcrun.text import is_whole_number

INDEX = "SLURM_ARRAY_TASK_ID"
# The most values of an array for which the script is evaluated; more are passed as a number.
_MOST_INDICES = 256
# Variables that a job of hpcrun has, too, with the same values.
_SAME = {"HOME", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NAME", "SLURM_GPUS_ON_NODE"}
_SETUP = {
    *("cd", "pushd", "source", ".", "conda", "mamba", "micromamba", "module", "ml", "export"),
    "set",
}
# Commands that may define variables, arrays and functions.
_DEFINING = {"source", ".", "eval"}
# Statements among them that activate an environment, or define the function conda.
_ACTIVATING = re.compile(
    r"""(?:source|\.)\s+(?:[^\s;&|]*/bin/|["']?)activate\b["']?"""
    r"""|(?:source|\.)\s+[^\s;&|]*/etc/profile\.d/(?:conda|mamba)\.sh\b["']?"""
    r"""|eval\s[^\n;&|]*(?:mamba|conda)\b[^\n;&|]*\bhook\b"""
    r"""|eval\s+"?\$\{?__(?:mamba|conda)_setup\b"""
)
_KNOWN_PROGRAMS = {
    "torchrun",
    "deepspeed",
    "accelerate",
    "python",
    "mpirun",
    "horovodrun",
    "script",
}
# Commands that prepare a training, or print.
_PREPARING = {
    *_SETUP,
    *("mkdir", "cp", "mv", "rm", "ln", "chmod", "touch", "cat", "tar", "unzip", "rsync", "wget"),
    *("curl", "git", "pip", "pip3", "uv", "python", "virtualenv", "venv", "deactivate", "rmdir"),
    *("echo", "printf", "date", "hostname", "nvidia-smi", "pwd", "which", "env", "ls", "sleep"),
    *("wait", "exit", "return", "trap", "unset", "ulimit", "umask", "eval", "exec", "set", "shopt"),
    *("alias", "declare", "local", "readonly", "test", "[", ":", "true", "false", "kill", "srun"),
    *("scontrol", "squeue", "sbatch", "scancel", "sstat", "sacct", "spack", "popd", "read", "df"),
    *("free", "lscpu", "uname", "whoami", "nvcc", "nproc", "uptime", "id", "grep", "sed", "awk"),
}
_TESTS = {"[", "test", "grep", "egrep", "command", "which", "type", "true", "false", "diff", "cmp"}
# Commands that display the output of the training, or write it to a file.
_DISPLAYS = {"tee", "cat", "ts", "grep", "egrep", "stdbuf", "sed", "awk", "tr"}
_LINE = 100  # the width of a line of the job file


class Conversion(Struct):
    """A script as a job.

    Attributes:
        job: The keys of the job file, in their order.
        remarks: All lines of the script that the job file does not repeat, in order.
        before: The program as the script starts it; "" if none was found.
        after: The program as the job starts it.
    """

    name: str
    job: dict[str, Any] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    before: str = ""
    after: str = ""
    request: Request = field(default_factory=Request)

    @property
    def missing(self) -> list[Remark]:
        """The statements that the job lacks."""
        return [one for one in self.remarks if one.effect == "missing"]

    @property
    def is_complete(self) -> bool:
        """True if the job does all that the script does."""
        return not self.missing


def convert_script(
    text: str,
    name: str,
    *,
    project: str,
    home: str,
    folder: str = "",
    arguments: Sequence[str] = (),
    gpu_types: Mapping[str, str] | None = None,
    read_file: Callable[[str], SourcedFile | None] | None = None,
) -> Conversion:
    """Convert an sbatch script.

    Args:
        name: The name of the job if the script has none.
        project: The folder of the project, in which jobs start.
        folder: The directory from which the script is submitted; default: the project.
        home: The user's home directory.
        arguments: The arguments of the script.
        gpu_types: The profile's name for each type in --gres.
        read_file: Read a script that the last command runs, which is then converted with it.

    >>> text = "#!/bin/bash\\n#SBATCH --gres=gpu:2\\nsrun torchrun --nproc-per-node 2 t.py -n 1\\n"
    >>> made = convert_script(text, "a", project="/p", home="/h")
    >>> made.job["script"], made.job["args"], made.job["launcher"], made.is_complete
    ('t.py', ['-n', '1'], 'torchrun', True)
    """
    values = {"HOME": home, "SLURM_SUBMIT_DIR": folder or project}
    followed = follow_last_script(text, read_file) if read_file is not None else None
    text = followed.text if followed is not None else text
    first = parse_script(text, variables=values, arguments=arguments, keeps_expansions=True)
    remarks = Remarks(first)
    made = Conversion(name=name)
    request = convert_directives(first, remarks, dict(gpu_types or {}))
    values |= _known_variables(request)
    script = parse_script(text, variables=values, arguments=arguments, keeps_expansions=True)
    remarks.script = script
    made.request = request
    if request.name and "%" not in request.name:
        made.job["name"] = request.name
    if not arguments:
        _report_arguments(script, remarks)
    if script.tree is not None:
        _report_changed_arguments(script, remarks)
    _report_surroundings(script, request, remarks)
    start = request.folder or (folder if folder not in ("", project) else "")
    body = _read_body(script, remarks, request, project, start, home, text, values, arguments)
    made.job |= body.program
    made.before, made.after = body.before, body.after
    made.job["resources"] = request.resources
    if body.env:
        made.job["env"] = body.env
    nccl: dict[str, Any] = {"fabric": body.fabric} if body.fabric else {}
    if body.nccl:
        nccl["env"] = body.nccl
    if nccl:
        made.job["nccl"] = nccl
    if body.secrets:
        made.job["secrets"] = sorted(set(body.secrets))
    if request.environment:
        made.job["environment"] = request.environment
    if body.setup:
        made.job["setup"] = body.setup
    if request.survive:
        made.job["survive"] = request.survive
    if body.sweep:
        made.job |= body.sweep
        if request.limit is not None or request.indices:
            made.job["sweep_limit"] = request.limit or len(request.indices or [])
    if request.slurm:
        made.job["slurm"] = request.slurm
    if body.srun:
        made.job["srun"] = body.srun
    _mask_secrets(made, remarks)
    found = map(followed.locate, remarks.found) if followed is not None else remarks.found
    made.remarks = sorted(found)
    return made


def _mask_secrets(made: Conversion, remarks: Remarks) -> None:
    """Mask the secrets in a job, whose file others can read, and report their keys."""
    masker = Masker()

    def mask(value: Any, before: str = "") -> Any:
        if isinstance(value, dict):
            return {key: mask(one, f"{key}=") for key, one in value.items()}
        if isinstance(value, list):
            options = ["", *(f"{one} " if str(one).startswith("-") else "" for one in value)]
            return [mask(one, options[at]) for at, one in enumerate(value)]
        if not isinstance(value, str):
            return value
        masked = masker.text(value)
        is_value = not re.search(r"\s", value) and before and masker.text(before) == before
        return "***" if masked == value and is_value and contains_secret(before + value) else masked

    for key, value in made.job.items():
        if key == "secrets" or (masked := mask(value)) == value:
            continue
        made.job[key] = masked
        reason = "it contains a secret: let the program read a variable that secrets: names"
        remarks.missing(0, f"{key}: {format_flow(masked)}", reason)
    made.before, made.after = masker.text(made.before), _format_program(made.job)


def _known_variables(request: Request) -> dict[str, str]:
    """Return the variables of Slurm that the directives determine."""
    found: dict[str, str] = {}
    if is_whole_number(request.nodes):
        found |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), request.nodes)
    if request.cpus is not None:
        found["SLURM_CPUS_PER_TASK"] = str(request.cpus)
    if request.tasks is not None and is_whole_number(request.nodes):
        found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = str(request.tasks * int(request.nodes))
        found["SLURM_NTASKS_PER_NODE"] = found["SLURM_TASKS_PER_NODE"] = str(request.tasks)
    if request.gpus:
        found["SLURM_GPUS_ON_NODE"] = found["SLURM_GPUS_PER_NODE"] = str(request.gpus)
    if request.total_gpus:
        found["SLURM_GPUS"] = str(request.total_gpus)
    if request.name and "%" not in request.name:
        found["SLURM_JOB_NAME"] = request.name
    return found


def _report_arguments(script: Script, remarks: Remarks) -> None:
    """Report parameters of the script, which are empty without arguments."""
    functions = [
        (one.start_byte, one.end_byte)
        for one in script.tree.root_node.children
        if one.type == "function_definition"
    ]
    first_set = next((one.start for one in script.commands if _sets_arguments(one)), None)
    for use in script.uses:
        inside = any(start <= use.start < end for start, end in functions)
        if first_set is not None and use.start > first_set:
            return
        if re.fullmatch(r"[1-9]", use.name) and not use.default and not inside:
            line = script.text.split("\n")[script.line_of(use.start) - 1].strip()
            fix = "give the arguments: hpcrun init SCRIPT -- ARGUMENTS"
            remarks.missing(use.start, line, f"${use.name} is an argument of the script; {fix}")
            return


def _sets_arguments(command: Any) -> bool:
    """Return True for ``set -- A B``."""
    return command.name == "set" and command.args[:1] == ["--"] and not command.branch


def _report_changed_arguments(script: Script, remarks: Remarks) -> None:
    """Report parameters of the script after a loop or branch that shifts them."""
    for node in script.tree.root_node.children:
        inside = [one for one in script.commands if node.start_byte <= one.start < node.end_byte]
        if node.type == "function_definition" or not any(
            one.branch
            and not one.substituted
            and not one.function
            and (one.name == "shift" or (one.name == "set" and one.args[:1] == ["--"]))
            for one in inside
        ):
            continue
        for use in script.uses:
            if use.start >= node.end_byte and re.fullmatch(r"[1-9@*#]", use.name):
                line = script.text.split("\n")[script.line_of(use.start) - 1].strip()
                reason = f"${use.name} is what a loop or branch above leaves of the arguments"
                remarks.missing(use.start, line, reason)
                return


def _report_surroundings(script: Script, request: Request, remarks: Remarks) -> None:
    """Report what the script expects from the call of sbatch."""
    for use in script.uses:
        line = script.text.split("\n")[script.line_of(use.start) - 1].strip()
        if use.name == INDEX and request.indices is None and not use.default:
            fix = "add #SBATCH --array=..., and call hpcrun init again"
            remarks.missing(
                use.start, line, f"the index of an array, which the script lacks: {fix}"
            )
            return
        if use.name in ("0", "BASH_SOURCE") and not line.startswith(("echo", "#")):
            remarks.missing(use.start, line, "the job is not the script, whose path this is")
            return


class _Body(Struct):
    """The converted statements of a script."""

    program: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    nccl: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    fabric: str = ""
    setup: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, Any] = field(default_factory=dict)
    srun: dict[str, Any] = field(default_factory=dict)
    before: str = ""
    after: str = ""


# ---- the statements ------------------------------------------------------------------------------


def _list_statements(script: Script) -> list[Any]:
    """Return the top-level statements; ``cd A && B`` counts as two."""
    children = script.tree.root_node.children
    found: list[Any] = []
    for node, follows in zip_longest(children, children[1:]):
        if follows is not None and follows.type == "&":
            found.append(BackgroundStatement(node, node.start_byte, follows.end_byte))
        else:
            found += _split_list(node)
    return found


def _split_list(node: Any) -> list[Any]:
    """Split ``A && B`` if B would not run on its own after a failure of A.

    A command of setup that fails ends the job, if it sets something up. Others, and tests, decide
    whether B runs.
    """
    if node.type == "list" and node.children[1].type == "&&":
        left, right = node.children[0], node.children[-1]
        if _sets_up(left) or (_echoes(right) and not _tests(left)):
            return [*_split_list(left), *_split_list(right)]
    return [node] if node.is_named and node.type != "comment" else []


def _text_of(script: Script, node: Any) -> str:
    return script.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")


def _name_of(node: Any) -> str:
    name = node.child_by_field_name("name") if node.type == "command" else None
    return name.text.decode("utf-8", "surrogateescape") if name is not None else ""


def _sets_up(node: Any) -> bool:
    if node.type == "redirected_statement":
        return _sets_up(node.children[0])
    if node.type == "list":
        is_and = node.children[1].type == "&&"
        return is_and and _sets_up(node.children[0]) and _sets_up(node.children[-1])
    is_assignment = node.type == "variable_assignment" and not re.search(rb"[$]\(|`", node.text)
    return is_assignment or node.type == "declaration_command" or _name_of(node) in _SETUP


def _echoes(node: Any) -> bool:
    return _name_of(node) in ("echo", "printf", "date") and b"$(" not in node.text


def _tests(node: Any) -> bool:
    is_test = node.type in ("test_command", "negated_command", "compound_statement")
    return is_test or _name_of(node) in _TESTS or any(_tests(child) for child in node.children)


def _find_program(script: Script) -> list[LaunchedProgram]:
    """Return the programs that train; else what srun or a shell starts."""
    found = list_training(script)
    starts = [one for one in find_programs(script) if one.command.name not in ("source", ".")]
    if not found:
        found = [
            one
            for one in starts
            if (one.step is not None and one.kind not in ("hostname", "nvidia-smi", "echo", "srun"))
            or one.kind == "script"
            or "/" in one.command.name
        ]
    if not found:
        mains = [one for one in starts if not one.command.branch and not one.command.function]
        found = [one for one in mains if one.kind not in _PREPARING]
    launched = [one for one in found if one.step is not None or one.kind != "python"]
    # Plain Python commands before a launcher prepare something.
    last = launched[-1] if launched and found[-1] is launched[-1] else None
    return [one for one in found if last is None or one in launched]


def _read_body(
    script: Script,
    remarks: Remarks,
    request: Request,
    project: str,
    folder: str,
    home: str,
    text: str,
    values: Mapping[str, str],
    arguments: Sequence[str],
) -> _Body:
    body = _Body()
    call = _Call(arguments, values)
    statements = _list_statements(script)
    programs = _find_program(script)
    places = [_index_of(statements, one.command.start) for one in programs]
    if not programs:
        remarks.missing(0, text.split("\n")[0], "no program that trains was found: set script")
        body.program = {"command": ["true"]}
        return body
    last = places[-1]
    first = min(places)
    reader = PreambleReader(script, remarks, project, programs[-1].command.start)
    if folder:
        reader.start_in(folder)
    for node in statements[:first]:
        reader.read(node)
    preamble = reader.made
    below = statements[last + 1 :]
    after = [one for one in below if not _is_idle(script, one, remarks)]
    program = programs[-1]
    node = statements[last]
    if node.type == "background" and any(
        script.data[one.start_byte : one.end_byte].split()[:1] == [b"wait"] for one in below
    ):
        node = node.statement  # as in the foreground
    body.before = " ".join(_text_of(script, node).split())
    sourced = _find_sourced_name(script, preamble, program, node)
    is_simple = (
        len(programs) == 1
        and not after
        and not program.command.branch
        and _is_simple(node, program.command.start)
        and not (preamble.needs_text and _can_run_as_text(request, script))
    )
    converted: ConvertedProgram | None = None
    problem = (
        "the program is in a loop, branch or pipeline, in the background or reads stdin, or there "
        "are several"
    )
    if is_simple:
        converted = convert_program(program, script, request, home)
        first_word = program.command.name
        if first_word in script.functions | preamble.aliases:
            converted.problem = f"{first_word} is a function or an alias of the script"
        if sourced and not converted.problem:
            converted.problem = (
                f"{sourced} may be a function or an array of a file that the script sources"
            )
        if converted.problem:
            problem, converted = converted.problem, None
        else:
            _report_redirections(script, node, remarks)
    _report_inner_scripts(script, statements[first].start_byte, remarks)
    if request.indices is not None:
        owned = bool(converted and not converted.launcher and preamble.owned)
        is_text = bool(preamble.folder or preamble.wanders or owned)
        single = None if is_text else converted
        _convert_array(body, single, request, text, values, arguments, home)
    if converted is None:
        texts = _texts_without_srun(script, preamble, statements[first:])
        if texts is not None and _can_run_as_text(request, script):
            _run_as_text(body, script, texts, statements[first], request, call, remarks)
            body.setup = _format_setup(preamble, [], call)
            _set_variables(body, preamble, [])
        else:
            for one in after:
                shown = _text_of(script, one)
                remarks.missing(one.start_byte, shown, "it runs after the training")
            if not after:
                remarks.missing(program.command.start, body.before, problem)
            body.program = {"command": ["bash", "-c", escape_placeholders(body.before, ())]}
            _report_shell(preamble, remarks)
            kept = _select_commands(preamble, set())
            _set_variables(body, preamble, kept)
            body.setup = _format_setup(preamble, kept, call)
        body.after = _format_program(body.program)
        return body
    _finish(body, converted, preamble, call, request.indices, remarks)
    return body


def _report_inner_scripts(script: Script, start: int, remarks: Remarks) -> None:
    """Report scripts that a command of the job runs, in which srun would wait for that command."""
    commands = [one for one in script.commands if one.start >= start]
    for one in list_inner_scripts(commands):
        shown = " ".join(word.text for word in one.words)
        remarks.assumed(one.start, shown, "this script is not read: it must not call srun itself")


def _find_sourced_name(
    script: Script, preamble: Preamble, program: LaunchedProgram, node: Any
) -> str:
    """Return a name of the training's line that only a sourced file can define as more than a text.

    Functions and arrays cannot be exported to a rank as variables can.
    """
    if not any(_may_define(one) for one in preamble.kept):
        return ""
    name = program.command.name
    is_known = "/" in name or program.kind in _KNOWN_PROGRAMS or program.step is not None
    if not is_known and name not in script.functions:
        return name
    assigned = {one.name for one in script.assignments}
    for found in re.findall(r"\$\{#?(\w+)\[", _text_of(script, node)):
        if found not in assigned:
            return str(found)
    return ""


def _may_define(statement: Statement) -> bool:
    """Return True if a statement may define variables, arrays and functions of the script."""
    if not statement.calls & _DEFINING:
        return False
    rest = _ACTIVATING.sub("", statement.text)
    return re.search(r"(?<![^\s;&|({`])(?:source|eval|\.)\s", rest) is not None


def _export_sourced_variables(script: Script, kept: Sequence[Statement], names: set[str]) -> None:
    """Export the variables of the training's line that only a sourced file can set."""
    sources = [one for one in kept if _may_define(one)]
    assigned = {name for one in kept for name in one.assigns}
    assigned |= {one.name for one in script.assignments}
    unknown = {one for one in names - assigned if re.fullmatch(r"[A-Za-z_]\w*", one)}
    unknown = {one for one in unknown if not re.match(r"SLURM_|HPCRUN_|START_FOLDER", one)}
    if sources and unknown:
        sources[-1].exports = sorted({*sources[-1].exports, *unknown})


def _index_of(statements: Sequence[Any], start: int) -> int:
    return next(
        (i for i, one in enumerate(statements) if one.start_byte <= start < one.end_byte),
        len(statements) - 1,
    )


def _is_simple(node: Any, start: int) -> bool:
    """Return True for a command that reads no input, and whose output is only displayed."""
    while node.type in ("redirected_statement", "pipeline"):
        first, *rest = node.children
        if any(_reads(child) for child in rest if node.type == "redirected_statement"):
            return False
        if node.type == "pipeline" and not all(
            _name_of(child.children[0] if child.type == "redirected_statement" else child)
            in _DISPLAYS
            for child in rest
            if child.is_named
        ):
            return False
        node = first
    is_simple = node.type == "command" and node.start_byte <= start < node.end_byte
    return is_simple and not any(_reads(child) for child in node.children)


def _reads(node: Any) -> bool:
    """Return True for a redirection of standard input."""
    if node.type in ("heredoc_redirect", "herestring_redirect"):
        return True
    is_input = node.type == "file_redirect" and any(one.type == "<" for one in node.children)
    return is_input and b"/dev/null" not in node.text


def _report_shell(preamble: Preamble, remarks: Remarks) -> None:
    """Report the statements whose effect ends with the shell of the setup.

    Among them are commands in the background, which setup would wait for or outlive.
    """
    for remark in preamble.only_in_shell:
        remarks.add(*remark)
    for one in preamble.background:
        remarks.missing(one.start, one.text, "it runs in the background, beside the training")
    preamble.kept = [one for one in preamble.kept if one not in preamble.background]
    preamble.background = []


def _is_idle(script: Script, node: Any, remarks: Remarks) -> bool:
    """Report a statement after the program without effect, and return True."""
    reader = PreambleReader(script, remarks, "", training_start=-1)
    text = _text_of(script, node)
    words = text.split()
    is_end = (
        words[:1] in (["exit"], ["wait"])
        or words[:2]
        in (
            ["conda", "deactivate"],
            ["source", "deactivate"],
            ["module", "unload"],
        )
        or words == ["deactivate"]
        or text.startswith(("kill ", "pkill ", "dcgmi "))
    )
    if is_end:
        remarks.replaced(node.start_byte, text, "the job ends with its program")
        return True
    before = len(reader.made.kept)
    if node.type in ("command", "redirected_statement", "pipeline"):
        found = len(remarks.found)
        reader.read(node)
        if len(reader.made.kept) == before and len(remarks.found) > found:
            return True
    if node.type == "variable_assignment":
        remarks.replaced(node.start_byte, text, "nothing reads it")
        return True
    return False


def _report_redirections(script: Script, node: Any, remarks: Remarks) -> None:
    if node.type == "pipeline" or node.type == "redirected_statement":
        text = _text_of(script, node)
        found = re.search(r"(\d?>&?\s*\S+|\|\s*tee\b.*)\s*$", text)
        if found:
            remarks.replaced(node.start_byte, found[0], "each rank has its own log: hpcrun logs")


# ---- the job -------------------------------------------------------------------------------------


def _finish(
    body: _Body,
    converted: ConvertedProgram,
    preamble: Preamble,
    call: _Call,
    indices: Sequence[int] | None,
    remarks: Remarks,
) -> None:
    """Join the program with the commands on which it depends."""
    _report_shell(preamble, remarks)
    names = set(converted.uses) if converted.needs_shell else set()
    if not converted.launcher:
        names |= {name for one in preamble.owned for name in one.uses}
    if preamble.wanders:
        _export_folder(preamble, remarks.script)
    needs_folder = bool(preamble.folder)
    if needs_folder:
        names |= set(re.findall(r"\$\{?([A-Za-z_]\w*)", preamble.folder))
    kept = _select_commands(preamble, names)
    if indices is not None and converted.uses - names and _depend_on_index(kept, names):
        # A variable of the ranks depends on the index, so each task evaluates the script's lines.
        names |= converted.uses
        kept = _select_commands(preamble, names)
    arrays = _list_shell_statements(remarks.script, converted, names, preamble.kept)
    if arrays:
        # Each rank evaluates them, from the values that the setup has computed.
        names |= {name for one in arrays for name in one.uses}
        kept = _select_commands(preamble, names)
    by_index = [] if indices is None else _depend_on_index(kept, names)
    for one in arrays:
        if not (one.is_plain or one.functions) and changes_files(one):
            reason = "its commands would run in the setup and again in each rank"
            remarks.missing(one.start, one.text, reason)
    _export_sourced_variables(remarks.script, kept, names)
    moving = [one for one in by_index if one.moves]
    if moving and not preamble.wanders:
        needs_folder = False  # it is among the lines of each task
    elif moving:
        reason = "the training's directory depends on the index of the array"
        remarks.missing(moving[0].start, moving[0].text, reason)
    if by_index and indices is not None:
        body.sweep = _sweep_over_index(indices)
    kept = [one for one in kept if one not in by_index]
    owned = [] if converted.launcher else preamble.owned
    for one in owned:
        remarks.found = [each for each in remarks.found if each.text != " ".join(one.text.split())]
    _set_variables(body, preamble, kept)
    if preamble.conda or preamble.venv or preamble.modules or kept or preamble.module_paths:
        body.setup = _format_setup(preamble, kept, call)
    if converted.container:
        body.setup["container"] = converted.container
    if converted.python and converted.python.rpartition("/bin/")[0] != preamble.venv:
        body.setup["python"] = converted.python
    body.env |= converted.env
    body.secrets += converted.secrets
    body.srun = converted.srun
    launcher: dict[str, Any] = {}
    if converted.launcher:
        launcher["launcher"] = converted.launcher
        if converted.launcher_args:
            launcher["launcher_args"] = converted.launcher_args
    by_number = "array_task_id" in body.sweep.get("sweep", {})
    if arrays or by_number or needs_folder or owned or converted.needs_shell:
        expansion = [one for one in preamble.expansion if one not in by_index]
        lines = [_format_line(one) for one in (*expansion, *(by_index or arrays), *owned)]
        if needs_folder:
            aborts = any(one.aborts for one in preamble.kept if one.moves)
            lines.append(f"{preamble.folder} || exit" if aborts else preamble.folder)
        text = converted.shell_text.strip()
        lines.append(text if converted.is_text else f"exec {text}")
        lines = call.prepare(lines)
        text = escape_placeholders("\n".join(lines), ())
        if by_number:
            text = f"export {INDEX}={{array_task_id}}\n{text}"
        body.program = {"command": ["bash", "-c", text], **launcher}
    else:
        body.program = {**converted.program, **launcher}
    for start, text, effect, reason in converted.remarks:
        remarks.add(start, text, effect, reason)
    _report_unused(preamble, kept, body, remarks)
    body.after = _format_program(body.program)


def _list_shell_statements(
    script: Script, converted: ConvertedProgram, names: set[str], kept: Sequence[Statement]
) -> list[Statement]:
    """Return the statements that each rank evaluates: arrays and functions cannot be exported.

    Among them are those that assign variables which the others change, because they are evaluated
    twice: ``n += 1`` must begin with the same value again.
    """
    words = set(re.findall(r"[\w-]+", converted.shell_text)) if converted.needs_shell else set()
    found = [one for one in depends_on(names, kept) if one.is_array]
    found += [one for one in kept if one.functions & words & script.functions]
    while True:
        own = [one for one in found if not one.functions]
        changed = {name for one in own for name in one.assigns}
        called = {name for one in found for name in one.calls}
        every = [
            one
            for one in kept
            if one in found
            or (one.assigns & changed and not one.functions)
            or one.functions & called
        ]
        if len(every) == len(found):
            return every
        found = every


def _export_folder(preamble: Preamble, script: Script) -> None:
    """Pass on the directory in which the setup ends, because several statements decide it."""
    name = "START_FOLDER"
    while script.exports(name) or script.uses_of(name):
        name += "_"
    preamble.kept.append(Statement(len(script.data), len(script.data), f"export {name}=$PWD"))
    preamble.folder = f'cd -- "${name}"'


def _depend_on_index(kept: Sequence[Statement], names: set[str]) -> list[Statement]:
    """Return the statements that each task of an array evaluates, with those that they need."""
    tainted, found = {INDEX}, []
    for one in kept:
        if one.uses & tainted:
            tainted |= one.assigns
            found.append(one)
    if not found:
        return []
    wanted = {name for one in found for name in one.uses | one.calls}
    needed = depends_on(wanted | names, kept)
    return [one for one in kept if one in found or one in needed]


def _sweep_over_index(indices: Sequence[int]) -> dict[str, Any]:
    return {"sweep": {"array_task_id": [str(index) for index in indices]}}


def _select_commands(preamble: Preamble, names: set[str]) -> list[Statement]:
    """Return the statements that the job needs, without assignments that nothing reads."""
    kept: list[Statement] = []
    wanted = set(names)
    arrays = {name for one in preamble.kept if one.is_array for name in one.assigns}
    for one in reversed(preamble.kept):
        is_constant = one.export and one.assigns & (preamble.env.keys() | preamble.nccl.keys())
        is_assignment = one.is_plain or is_constant
        if is_assignment and not one.assigns & wanted:
            continue
        if one.functions and not one.functions & wanted:
            continue
        if one.is_plain and one.assigns and one.assigns <= names and not one.is_array:
            one.export = True  # the ranks read it
        elif not one.export:
            one.exports = sorted(one.assigns & names - arrays)
        kept.append(one)
        wanted |= list_needs(one, preamble.kept)
    return kept[::-1]


def _set_variables(body: _Body, preamble: Preamble, kept: Sequence[Statement]) -> None:
    in_commands = {name for one in kept for name in one.assigns}
    body.env = {
        k: escape_placeholders(v, ()) for k, v in preamble.env.items() if k not in in_commands
    }
    body.nccl = {
        k: escape_placeholders(v, ()) for k, v in preamble.nccl.items() if k not in in_commands
    }
    body.fabric = preamble.fabric
    body.secrets = list(preamble.secrets)


class _Call(Struct, frozen=True):
    """The call of sbatch: the arguments of the script, and the variables that Slurm sets."""

    arguments: Sequence[str]
    values: Mapping[str, str]

    def prepare(self, lines: list[str]) -> list[str]:
        """Set ``$1`` and so on before lines that read them."""
        text, first = "\n".join(lines), []
        if re.search(r"\$([1-9@*#]|\{[1-9@*][^\w]|\{#\})", text):
            first.append(shlex.join(["set", "--", *self.arguments]))
        for name, value in self.values.items():
            if name not in _SAME and re.search(rf"\b{name}\b", text):
                first.append(f"{name}={shlex.quote(value)}")
        return [*first, *lines]


def _format_setup(preamble: Preamble, kept: Sequence[Statement], call: _Call) -> dict[str, Any]:
    setup: dict[str, Any] = {}
    for key in ("module_paths", "modules", "venv", "conda"):
        if value := getattr(preamble, key):
            setup[key] = value
    commands = []
    while kept and kept[-1].text == preamble.folder:
        kept = kept[:-1]  # nothing below it depends on the directory
    for one in kept:
        text = one.text.strip()
        if one.is_plain and one.export and "{" in text:  # export expands braces
            text = f"{text}\nexport {' '.join(sorted(one.assigns))}"
        elif one.is_plain and one.export:
            text = f"export {text}"
        elif one.if_text and preamble.aborts:
            text = one.if_text  # a test that fails does not end the script
        elif _may_fail(one) and not preamble.aborts:
            text = f"{text} || true"
        commands.append(text)
        if one.exports:
            commands.append(f"export {' '.join(one.exports)}")
    if commands:
        setup["commands"] = call.prepare(commands)
    return setup


def _format_line(one: Statement) -> str:
    """Return a statement as a line of a shell without ``set -e``."""
    may_end = one.moves or _may_fail(one)
    if not one.aborts or not may_end or one.text.startswith("!"):
        return one.text
    return f"{one.if_text or one.text} || exit"


def _may_fail(one: Statement) -> bool:
    """Return True for a statement whose failure the script ignores."""
    first = one.text.split()[0] if one.text.split() else ""
    changes = (
        *("cd", "pushd", "source", ".", "conda", "module", "ml"),
        *("export", "eval", "unset", "set"),
    )
    is_assignment = one.is_plain or re.match(r"\w+\+?=", first) is not None
    is_constant = is_assignment and not re.search(r"[$`]\(|`", one.text)
    return (
        not is_constant
        and not one.functions
        and first not in changes
        and "<<" not in one.text  # a here-document ends with its own line
        and not re.search(r"\|\|[^\n]*$|&\s*$", one.text)
    )


def _report_unused(
    preamble: Preamble, kept: Sequence[Statement], body: _Body, remarks: Remarks
) -> None:
    """Report the assignments and functions of the script that nothing in the job reads."""
    named = body.env.keys() | body.nccl.keys()
    for one in preamble.kept:
        if one not in kept and not one.assigns & named:
            text = str(body.program.get("command", ""))
            inside = any(name in text for name in one.assigns | one.functions)
            if one.is_plain and any(is_read_by_programs(name) for name in one.assigns):
                remarks.changed(one.start, one.text, NOT_EXPORTED)
            elif not inside:
                reason = "its value is in the job, or hpcrun determines it"
                remarks.replaced(one.start, one.text, reason)


# ---- arrays --------------------------------------------------------------------------------------


def _convert_array(
    body: _Body,
    converted: ConvertedProgram | None,
    request: Request,
    text: str,
    values: Mapping[str, str],
    arguments: Sequence[str],
    home: str,
) -> None:
    """Convert an array to a sweep: over values that the index selects, else over the index.

    Args:
        converted: The program, whose arguments may become the sweep's; None if bash starts it.
    """
    indices = request.indices or []
    if converted is not None and len(indices) <= _MOST_INDICES:
        rows: list[ConvertedProgram] = []
        for index in indices:
            own = {**values, INDEX: str(index)}
            one = parse_script(text, variables=own, arguments=arguments, keeps_expansions=True)
            programs = _find_program(one)
            row = convert_program(programs[-1], one, request, home) if len(programs) == 1 else None
            if row is None or row.needs_shell or row.uses:
                rows = []
                break
            rows.append(row)
        is_same = rows and len({(len(row.args), row.describe_head()) for row in rows}) == 1
        if is_same and any(row.args != rows[0].args for row in rows):
            converted.program, converted.args = rows[0].program, rows[0].args
            _sweep_over_values(body, converted, [row.args for row in rows])
            return
    body.sweep = _sweep_over_index(indices)


def _sweep_over_values(body: _Body, converted: ConvertedProgram, rows: list[list[str]]) -> None:
    """Sweep over the arguments in which the tasks differ; there is at least one."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    differing = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    args = list(rows[0])
    keys: dict[int, str] = {}
    for i in differing:
        option = args[i - 1] if i else ""
        joined = re.match(r"(--?[\w-]+)=", args[i])
        label = joined[1] if joined else option if option.startswith("-") else f"argument {i}"
        key = re.sub(r"\W", "_", label.lstrip("-")) or "value"
        key = key if key[0].isalpha() else f"v_{key}"
        while key in keys.values():
            key += "_"
        keys[i] = key
        prefix = (
            f"{joined[1]}="
            if joined and all(x.startswith(f"{joined[1]}=") for x in columns[i])
            else ""
        )
        columns[i] = [
            word.removeprefix(prefix).replace("{{", "{").replace("}}", "}") for word in columns[i]
        ]
        args[i] = f"{prefix}{{{key}}}"
    converted.set_args(args)
    converted.needs_shell = False  # the values replace the variables in its words
    if len(differing) == 1:
        body.sweep = {"sweep": {keys[differing[0]]: columns[differing[0]]}}
    else:
        body.sweep = {
            "sweep_combinations": [
                {keys[i]: columns[i][n] for i in differing} for n in range(len(rows))
            ]
        }


# ---- several programs on one node ----------------------------------------------------------------


def _can_run_as_text(request: Request, script: Script) -> bool:
    """Return True if the statements can be the command of a job, which is one task on one node."""
    starts_tasks = any(
        re.fullmatch(r"srun|mpirun|mpiexec|horovodrun|prun", word.text.rsplit("/", 1)[-1])
        for command in script.commands
        for word in command.words
    )
    return request.is_single_node and (request.tasks == 1 or not starts_tasks)


def _texts_without_srun(
    script: Script, preamble: Preamble, nodes: Sequence[Any]
) -> list[str] | None:
    """Return the statements without srun; None if a step cannot be replaced by its command.

    The command of a job is a step, in which srun would wait for the end of that step.
    """
    known = preamble.env.keys() | preamble.nccl.keys()
    # Another assignment in the text would replace the value of the job.
    known -= {name for one in preamble.kept if not one.export for name in one.assigns}
    places = [
        (one.start, one.end, one.text)
        for one in (*preamble.kept, *preamble.shell)
        if not (one.export and one.assigns & known)
    ]
    # Those without a place in the script, e.g. for an option of its first line, come first.
    places.sort(key=lambda place: place[:2])
    places += [(one.start_byte, one.end_byte, "") for one in nodes]
    texts = []
    for start, end, alone in places:
        if start == end:
            texts.append(alone)
            continue
        data, at = b"", start
        for one in script.commands:
            if not start <= one.start < end or one.name != "srun":
                continue
            options, rest = parse_srun([word.text for word in one.words[1:]])
            if not rest or not _is_one_task(options):
                return None
            inner = one.words[len(one.words) - len(rest)]
            data += script.data[at : one.start]
            at = inner.start
        text = (data + script.data[at:end]).decode("utf-8", "surrogateescape")
        if re.search(r"\bsrun\b", text):
            return None
        texts.append(text)
    return texts


def _is_one_task(options: Sequence[LaunchOption]) -> bool:
    """Return True if srun starts a command once, as on a job with one task."""
    for one in options:
        if one.name in ("ntasks", "ntasks-per-node", "nodes") and one.value != "1":
            return False
        if one.name == "?" or one.name.startswith(("container", "het-group")):
            return False
    return True


def _run_as_text(
    body: _Body,
    script: Script,
    texts: Sequence[str],
    first: Any,
    request: Request,
    call: _Call,
    remarks: Remarks,
) -> None:
    """Run the statements from the first program on as a text for bash."""
    lines = call.prepare(list(texts))
    if uses_modules(lines):  # a step has no functions of the batch shell
        lines = ['. "$HPCRUN_RUN_DIR/setup.sh" && init_modules', *lines]
    text = escape_placeholders("\n".join(lines), ())
    if body.sweep:
        body.sweep = _sweep_over_index(request.indices or [])
        text = f"export {INDEX}={{array_task_id}}\n{text}"
    body.program = {"command": ["bash", "-c", text]}
    shown = _text_of(script, first).split("\n")[0]
    if request.tasks != 1:
        reason = "one task with the CPUs of all of them: SLURM_NTASKS is 1 in the programs"
        remarks.changed(first.start_byte, f"{request.tasks} tasks", reason)
    remarks.changed(
        first.start_byte, shown, "this and the lines below are the job's command, as they are"
    )


def _format_program(program: Mapping[str, Any]) -> str:
    if "command" in program:
        shown = " ".join(str(word) for word in program["command"])
    else:
        first = program.get("script") or f"-m {program.get('module')}"
        shown = " ".join([first, *program.get("args", [])])
    launcher = program.get("launcher")
    return f"{launcher}: {shown}" if launcher else shown


# ---- the file ------------------------------------------------------------------------------------


def format_converted_job(made: Conversion, source: str, schema: str) -> str:
    """Write the job file."""
    lines = [
        f"# yaml-language-server: $schema={schema}",
        format_comment(f"Converted from {source} by `hpcrun init`."),
        f"description: {format_flow(f'converted from {source}')}",
    ]
    for one in made.missing:
        lines.append(format_comment(f"not converted: line {one.line}: {one.text}: {one.reason}"))
    for key, value in made.job.items():
        lines += _format_key(key, value, "")
    return "\n".join(lines) + "\n"


def _format_key(key: str, value: Any, indent: str) -> list[str]:
    flow = format_flow(value)
    if len(flow) + len(indent) + len(key) <= _LINE - 2 and "\\n" not in flow:
        return [f"{indent}{key}: {flow}"]
    if isinstance(value, dict):
        lines = [f"{indent}{key}:"]
        for name, one in value.items():
            lines += _format_key(name, one, f"{indent}  ")
        return lines
    if isinstance(value, list):
        lines = [f"{indent}{key}:"]
        for one in value:
            if isinstance(one, str) and _fits_block(one):
                lines.append(f"{indent}  - |-")
                lines += [f"{indent}    {line}".rstrip() for line in one.split("\n")]
            else:
                lines.append(f"{indent}  - {format_flow(one)}")
        return lines
    return [f"{indent}{key}: {flow}"]


def _fits_block(text: str) -> bool:
    """Return True for several lines that YAML can hold as a literal block."""
    return (
        "\n" in text
        and not text.startswith((" ", "\n", "\t"))
        and not text.endswith("\n")
        and "\t" not in text.split("\n")[0][:1]
        and all(char.isprintable() or char in "\n\t" for char in text)
    )
