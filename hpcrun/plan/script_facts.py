"""What a training script takes, as far as its text shows: options, variables, modules.

The script is read as a tree, and never run.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from hpcrun.plan.script_parsers import (
    ARGPARSE,
    DATACLASSES,
    READERS,
    Nodes,
    Option,
    called,
    constant,
    help_text,
    is_main_guard,
    text_of,
)

_VARIABLE = r"\bHPCRUN_[A-Z_]*"
# Of these not all options can be seen: fire and tyro make them of a function, hydra of files.
OPEN_PARSERS = ("click", "absl", "hydra", "fire", "typer", "tyro")
# Keywords for a batch size, or for the steps over which gradients are accumulated.
BATCH_KEYWORDS = frozenset(
    {"per_device_train_batch_size", "batch_size", "train_batch_size", "micro_batch_size"}
)
STEPS_KEYWORDS = frozenset({"gradient_accumulation_steps", "accumulate_grad_batches"})
_PRECISIONS = ("mixed_precision", "precision", "bf16", "fp16")
# How Accelerate, the Trainer and Lightning write number formats.
PRECISION_WORDS = {
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "16", "16-mixed", "16-true"), "fp16"),
    **dict.fromkeys(("no", "fp32", "float32", "32", "32-true"), "fp32"),
}
_WORLD = re.compile(
    r"world|(num|n)_?(gpu|process|proc|rank|device|replica|worker)s?\b|ngpus|device_count|\bdp_size"
    r"|num_processes|get_world_size"
)
# Calls that load what a checkpoint holds, and keywords by which the Trainer and Lightning do.
_LOADING = frozenset(
    {"load_checkpoint", "load_state", "load_sharded", "load_state_dict", "get_last_checkpoint"}
    | {"load_from_checkpoint", "load_file", "restore"}
)
_LIBRARY_LOADS = ("torch.load", "dcp.load", "np.load", "numpy.load", "pickle.load", "joblib.load")
RESUME_KEYWORDS = frozenset({"resume_from_checkpoint", "ckpt_path"})
# By these a script takes its rank and world from Slurm, and not from its launcher.
_SLURM_RANKS = frozenset({"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"})
_TRAINERS = ("Trainer", "Accelerator", "LightningCLI", "Fabric")
# What decides how the Trainer's ranks join, where a script says it itself.
_WATCHED = frozenset({"deepspeed", "deepspeed_plugin", "hf_ds_config", "ddp_backend", "use_cpu"})
# Calls that read a file whose first word is its name.
_LOADERS = frozenset({"open", "load", "read_text", "run_path", "spec_from_file_location", "Path"})
# As in get_config("./config/model.yaml"), of a helper of the project's.
_READING = re.compile(r"conf|cfg|load|read|from_(?:yaml|json|toml|file)", re.IGNORECASE)
_OF_PATHS = ("abspath", "realpath", "normpath", "dirname", "join", "str", "fspath", "Path")
_HERE = re.compile(
    r"\((?:str\()?('\.?'|os\.getcwd\(\)|os\.path\.abspath\('\.'\)|Path\.cwd\(\))\)+$"
)
_CODE = re.compile(r"(?!/|~|\w+://).*\.(py|ya?ml|toml|ini|cfg)")


class ScriptFacts(Struct, frozen=True, kw_only=True):
    """What was read off a script.

    ``parser`` is what reads its command line ("" where nothing that is known does). ``certain``: it
    surely does, and takes ``options`` as they are; ``plain``: these are all that it takes, with
    ``positionals``, arguments without a dash. ``variables`` are the environment variables that its
    text names, ``imports`` the modules that it imports anywhere. ``numbers`` are those that its
    calls get for a batch (BATCH_KEYWORDS, STEPS_KEYWORDS), written out; ``precisions`` are keywords
    by which they set a number format themselves, with that format, "" where it is not written out.
    ``trainers``: which Trainer, Accelerator, LightningCLI or Fabric it makes. ``is_program``: it
    does something when it is run. ``live``: lines and expressions by which it reaches for code in
    the folder that it is started in;
    ``beside``: paths, from its own folder, that it finds by ``__file__``. ``gives``: which of
    deepspeed, deepspeed_plugin, hf_ds_config, ddp_backend and use_cpu it gives a value of its own;
    ``configs``: by which of them it gives a DeepSpeed configuration, and which. ``divided``
    are names of values that it divides by the number of ranks, ``loaded`` those that it gives a
    data loader as batch_size. ``loads`` are calls that load a checkpoint, and keywords that have a
    framework do so; ``slurm`` are Slurm's variables for the rank and the world that it names.
    """

    parser: str = ""
    certain: bool = False
    plain: bool = False
    abbreviates: bool = True
    options: list[Option] = []
    variables: list[str] = []
    imports: list[str] = []
    numbers: list[tuple[str, int]] = []
    precisions: list[tuple[str, str]] = []
    positionals: list[Option] = []
    trainers: list[str] = []
    names_local_rank: bool = False
    is_program: bool = False
    gives: list[str] = []
    configs: list[tuple[str, str]] = []
    live: list[tuple[int, str]] = []
    beside: list[str] = []
    divided: list[str] = []
    loaded: list[str] = []
    loads: list[str] = []
    slurm: list[str] = []


def read_script(tree: ast.Module) -> ScriptFacts:
    """Read a script's facts off its tree.

    >>> text = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr')"
    >>> facts = read_script(ast.parse(text + "; p.parse_args()"))
    >>> facts.parser, facts.plain, facts.options[0].names
    ('argparse', True, ['--lr'])
    """
    nodes = Nodes(tree)
    imports = list(_imports(nodes))
    calls = nodes.of(ast.Call)
    parser = _parser(calls, imports)
    texts = [node.value for node in nodes.of(ast.Constant) if isinstance(node.value, str)]
    numbers = [
        (keyword.arg, constant(keyword.value))
        for call in calls
        for keyword in call.keywords
        if keyword.arg and keyword.arg in BATCH_KEYWORDS | STEPS_KEYWORDS
        if type(constant(keyword.value)) is int
    ]
    reading = READERS[parser](nodes) if parser in READERS else None
    return ScriptFacts(
        parser=parser,
        certain=reading is not None and reading.certain,
        plain=reading is not None and reading.plain,
        abbreviates=reading is None or reading.abbreviates,
        options=reading.options if reading else list(_options_elsewhere(calls, parser)),
        # Names in the text that look like variables, whether they are read or not.
        variables=sorted({name for text in texts for name in re.findall(_VARIABLE, text)}),
        imports=list(dict.fromkeys(imports)),
        numbers=list(dict.fromkeys(numbers)),
        precisions=[
            (keyword.arg, _format_of(keyword.arg, keyword.value))
            for call in calls
            for keyword in call.keywords
            if keyword.arg in _PRECISIONS
            if not isinstance(keyword.value, ast.Constant) or keyword.value.value
        ],
        positionals=reading.positionals if reading else [],
        trainers=[name for name in map(called, calls) if name.endswith(_TRAINERS)],
        names_local_rank="LOCAL_RANK" in texts,
        gives=sorted(_WATCHED & set(_given_names(nodes))),
        configs=sorted(set(_own_configs(nodes))),
        is_program=any(
            is_main_guard(node) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
            for node in tree.body
        ),
        live=sorted(set(_live(nodes))),
        beside=sorted(set(_beside(nodes))),
        divided=sorted(set(_divided(nodes))),
        loaded=sorted(set(_loaded(nodes))),
        loads=sorted(set(_loads(nodes))),
        slurm=sorted(_SLURM_RANKS & set(texts)),
    )


def _name_of(node: ast.expr) -> str:
    """Return the last name of a value: of args.batch_size and config["batch_size"] batch_size."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return text_of(node.slice)
    if isinstance(node, ast.Call) and called(node) in ("int", "float", "getattr") and node.args:
        return text_of(node.args[-1]) or _name_of(node.args[0])
    return node.id if isinstance(node, ast.Name) else ""


def _divided(nodes: Nodes) -> Iterator[str]:
    """Yield names of values that are divided by something that is called like a number of ranks."""
    for node in nodes.of(ast.BinOp):
        if isinstance(node.op, ast.Div | ast.FloorDiv) and _WORLD.search(ast.unparse(node.right)):
            inside = (each for each in ast.walk(node.left) if isinstance(each, ast.expr))
            yield from map(_name_of, inside)
    for change in nodes.of(ast.AugAssign):
        is_division = isinstance(change.op, ast.Div | ast.FloorDiv)
        if is_division and _WORLD.search(ast.unparse(change.value)):
            yield _name_of(change.target)


def _loaded(nodes: Nodes) -> Iterator[str]:
    for call in nodes.of(ast.Call):
        if "Loader" in called(call):
            yield from (_name_of(word.value) for word in call.keywords if word.arg == "batch_size")
            yield from (_name_of(each) for each in call.args[1:2])


def _loads(nodes: Nodes) -> Iterator[str]:
    for call in nodes.of(ast.Call):
        is_of_library = called(call) == "load" and ast.unparse(call.func) in _LIBRARY_LOADS
        if called(call) in _LOADING or is_of_library:
            yield called(call)
        for word in call.keywords:
            if word.arg in RESUME_KEYWORDS and not _is_nothing(word.value):
                yield word.arg


def _is_nothing(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def _format_of(keyword: str, value: ast.expr) -> str:
    """Return the number format that a keyword's value names: bf16, fp16 or fp32; "" unknown."""
    given = constant(value)
    if keyword in ("bf16", "fp16"):
        return keyword if given is True else ""
    return PRECISION_WORDS.get(str(given).lower(), "")


def _imports(nodes: Nodes) -> Iterator[str]:
    for plain in nodes.of(ast.Import):
        yield from (alias.name for alias in plain.names)
    for node in nodes.of(ast.ImportFrom):
        start = "." * node.level + (node.module or "")
        yield start
        # A name may be a module of the package.
        dot = "" if start.endswith(".") else "."
        yield from (f"{start}{dot}{alias.name}" for alias in node.names if alias.name != "*")


def _parser(calls: list[ast.Call], imports: list[str]) -> str:
    modules = {name.partition(".")[0] for name in imports}
    names = {called(call) for call in calls}
    for name, parser in DATACLASSES.items():
        if name in names:
            return parser
    if "ArgumentParser" in names and ARGPARSE in modules:
        return ARGPARSE
    return next((name for name in OPEN_PARSERS if name in modules), "")


def _options_elsewhere(calls: list[ast.Call], parser: str) -> Iterator[Option]:
    """Yield options of other readers of command lines; never known to be all."""
    for call in calls:
        words = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        texts = [word for word in words if isinstance(word, str)]
        if parser == "click" and called(call) == "option":
            names = [part for word in texts for part in word.split("/")]
            given = {word.arg: word.value for word in call.keywords}
            default = given.get("default")
            names = [name for name in names if name.startswith("-")]
            number, about = _whole(default), help_text(given.get("help"))
            yield Option(names, default=text_of(default), number=number, help=about)
        elif parser == "absl" and called(call).startswith("DEFINE_") and texts:
            yield Option([f"--{texts[0]}"], number=_whole(*call.args[1:2]), help=texts[-1])


def _whole(node: ast.expr | None = None) -> int | None:
    value = constant(node)
    return value if type(value) is int else None


def _given_names(nodes: Nodes) -> Iterator[str]:
    """Yield names of keywords and a dataclass' fields that get a value of the script's own."""
    for call in nodes.of(ast.Call):
        if called(call) == "DeepSpeedPlugin":
            yield "deepspeed_plugin"
        yield from (word.arg for word in call.keywords if word.arg and _is_own(word.value))
    for field in nodes.of(ast.AnnAssign):
        value = field.value
        if isinstance(value, ast.Call) and called(value) == "field":
            value = {word.arg: word.value for word in value.keywords}.get("default")
        if isinstance(field.target, ast.Name) and value is not None and _is_own(value):
            yield field.target.id


def _own_configs(nodes: Nodes) -> Iterator[tuple[str, str]]:
    """Yield keywords by which a script gives a DeepSpeed configuration, with what it gives.

    That is a text, as a file's name; "{...}" for a dictionary; "" for what is not written out.
    """
    for call in nodes.of(ast.Call):
        for word in call.keywords:
            if word.arg in ("deepspeed", "hf_ds_config") and _is_own(word.value):
                is_map = isinstance(word.value, ast.Dict)
                yield word.arg, "{...}" if is_map else text_of(word.value)


def _is_own(value: ast.expr) -> bool:
    handed_on = isinstance(value, ast.Attribute | ast.Subscript)
    return not handed_on and ast.unparse(value) not in ("None", "False", "''")


def _live(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Yield lines and expressions that import, or read code, from the working folder."""
    for call in nodes.of(ast.Call):
        function, name = call.func, called(call)
        if isinstance(function, ast.Attribute) and _is_search_path(function.value):
            text = ast.unparse(call)
            # Of what is in the project itself the copy, which is on the path, comes before.
            is_last = name == "append" and _HERE.search(text)
            if not is_last and any(map(_starts_here, call.args[-1:])):
                yield call.lineno, text
        elif (name in _LOADERS or _READING.search(name)) and _CODE.fullmatch(
            text_of(next(iter(call.args), None))
        ):
            yield call.lineno, text_of(call.args[0])
    for node in nodes.of(ast.Assign):
        if _is_search_path(node.targets[0]) and _starts_here(node.value):
            yield node.lineno, ast.unparse(node)


def _is_search_path(node: ast.expr) -> bool:
    """Return whether an expression is sys.path, or an entry of it."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path"


def _starts_here(node: ast.expr) -> bool:
    """Return whether a path starts at the folder that the script is started in."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value[:1] not in ("/", "~")
    if isinstance(node, (ast.List, ast.BinOp)):
        first = [node.left] if isinstance(node, ast.BinOp) else node.elts
        return any(map(_starts_here, first))
    if isinstance(node, ast.Attribute):
        return node.attr == "curdir" or (node.attr == "parent" and _starts_here(node.value))
    if not isinstance(node, ast.Call):
        return False
    if called(node) in ("getcwd", "cwd"):
        return True
    if node.args:
        return called(node) in _OF_PATHS and _starts_here(node.args[0])
    return isinstance(node.func, ast.Attribute) and _starts_here(node.func.value)


def _beside(nodes: Nodes) -> Iterator[str]:
    """Yield paths that are made of ``__file__`` and plain names, from the script's folder."""
    known: dict[str, str] = {}
    for node in nodes.of(ast.Assign):
        place = _from_file(node.value, known)
        if place is not None and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = place
    for made in (*nodes.of(ast.BinOp), *nodes.of(ast.Call)):
        place = _from_file(made, known)
        if place and not place.endswith("."):
            yield posixpath.normpath(place)


def _from_file(node: ast.expr, known: Mapping[str, str]) -> str | None:
    """Return a path from a script's folder; "" is the script, None what is no such path."""
    start: ast.expr
    more: list[ast.expr] = []
    up = 0
    if isinstance(node, ast.Name):
        return "" if node.id == "__file__" else known.get(node.id)
    if isinstance(node, ast.BinOp):
        start, more = node.left, [node.right]
    elif isinstance(node, ast.Attribute) and node.attr == "parent":
        start, up = node.value, 1
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        index = constant(node.slice)
        start, up = node.value.value, index + 1 if type(index) is int else -1
    elif isinstance(node, ast.Call) and node.args and called(node) in _OF_PATHS:
        start, more, up = node.args[0], node.args[1:], int(called(node) == "dirname")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        start, more = node.func.value, node.args
    else:
        return None
    place, names = _from_file(start, known), [constant(each) for each in more]
    if place is None or not 0 <= up < 9 or not all(isinstance(name, str) for name in names):
        return None
    for _ in range(up):
        place = f"{place}/.." if place else "."
    return "/".join([place, *names]) if place else place
