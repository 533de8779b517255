"""Facts about a training script: options, environment variables, imports.

The script is parsed and never run.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from hpcrun.plan.script_parsers import (
    ARGPARSE,
    DATACLASS_PARSERS,
    PARSER_MODELS,
    NodeIndex,
    ParserOption,
    callee_name,
    constant_value,
    find_hydra_config,
    is_main_guard,
    string_value,
)

_VARIABLE = r"\bHPCRUN_[A-Z_]*"
# Static analysis finds only some options of these: fire and tyro derive them from functions, hydra
# from files.
OPEN_PARSERS = ("click", "absl", "hydra", "fire", "typer", "tyro")
# Keyword arguments for a batch size and for gradient accumulation steps.
BATCH_KEYWORDS = frozenset(
    {"per_device_train_batch_size", "batch_size", "train_batch_size", "micro_batch_size"}
)
STEPS_KEYWORDS = frozenset({"gradient_accumulation_steps", "accumulate_grad_batches"})
_PRECISIONS = ("mixed_precision", "precision", "bf16", "fp16")
# Spellings of number formats in Accelerate, the Trainer and Lightning.
PRECISION_WORDS = {
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "16", "16-mixed", "16-true"), "fp16"),
    **dict.fromkeys(("no", "fp32", "float32", "32", "32-true"), "fp32"),
}
_RANK_COUNT = re.compile(
    r"world|(num|n)_?(gpu|process|proc|rank|device|replica|worker)s?\b|ngpus|device_count|\bdp_size"
    r"|num_processes|get_world_size"
)
# Calls that load a checkpoint, and keywords that make the Trainer and Lightning load one.
_CHECKPOINT_CALLS = frozenset(
    {"load_checkpoint", "load_state", "load_sharded", "load_state_dict", "get_last_checkpoint"}
    | {"load_from_checkpoint", "load_file", "restore"}
)
_LIBRARY_LOADS = ("torch.load", "dcp.load", "np.load", "numpy.load", "pickle.load", "joblib.load")
RESUME_KEYWORDS = frozenset({"resume_from_checkpoint", "ckpt_path"})
# A script that reads these takes its rank and world size from Slurm instead of its launcher.
_SLURM_RANKS = frozenset({"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"})
_TRAINERS = ("Trainer", "Accelerator", "LightningCLI", "Fabric")
# Settings that determine how the Trainer's ranks join, if a script sets them itself.
_BACKEND_SETTINGS = frozenset(
    {"deepspeed", "deepspeed_plugin", "hf_ds_config", "ddp_backend", "use_cpu"}
)
# Functions that read the file that their first argument names.
_FILE_READERS = frozenset(
    {"open", "load", "read_text", "run_path", "spec_from_file_location", "Path"}
)
# Functions of the project that read a file, such as get_config("./config/model.yaml").
_CONFIG_READER = re.compile(r"conf|cfg|load|read|from_(?:yaml|json|toml|file)", re.IGNORECASE)
_PATH_FUNCTIONS = ("abspath", "realpath", "normpath", "dirname", "join", "str", "fspath", "Path")
_CURRENT_FOLDER = re.compile(
    r"\((?:str\()?('\.?'|os\.getcwd\(\)|os\.path\.abspath\('\.'\)|Path\.cwd\(\))\)+$"
)
_CODE_FILE = re.compile(r"(?!/|~|\w+://).*\.(py|ya?ml|toml|ini|cfg)")


class ScriptFacts(Struct, frozen=True, kw_only=True):
    """Facts that static analysis of a script finds.

    Attributes:
        parser: The library that parses the command line; "" if none is recognised.
        is_certain: True if the parser is surely used and ``options`` are exactly as listed.
        is_complete: True if ``options`` and ``positionals`` are all that the parser accepts.
        abbreviates: True if the parser accepts unique prefixes of options.
        commands: Names of the subcommands; ParserOption.command says which one has an option.
        parses: True if the parser is created whenever the file is run, or used when imported.
        variables: HPCRUN_* variables that the text names, read or not.
        imports: Modules imported anywhere in the script.
        numbers: Literal integers passed for BATCH_KEYWORDS and STEPS_KEYWORDS.
        precisions: Keywords that set a number format, with that format; "" if it is no literal.
        positionals: Arguments without a dash.
        trainers: Names of the Trainer, Accelerator, LightningCLI or Fabric classes that it calls.
        is_program: True if running the script has an effect.
        own_settings: The members of _BACKEND_SETTINGS to which the script assigns its own value.
        deepspeed_configs: Keywords that pass a DeepSpeed configuration, with its value.
        uncopied_reads: Lines and expressions that read code from the working folder, where the
            project lies, instead of the run's copy.
        sibling_paths: Paths relative to the script's folder that it builds from ``__file__``.
        finds_root: It finds the root of its project by rootutils or a similar library.
        divided_names: Names of values that it divides by the number of ranks.
        loader_batch_names: Names of values that it passes to a data loader as batch_size.
        folder_names: Names of values that it uses as folders: in os.path.join(), os.makedirs() ...
        checkpoint_loads: Calls that load a checkpoint, and keywords that make a framework load one.
        slurm_rank_variables: Slurm's variables for rank and world size that it names.
        assigned_variables: Environment variables that it sets to a literal: line, name, value, and
            whether it does so only where the variable is not set.
        trainer_shape: Keywords that set Lightning's devices and nodes, with literal numbers.
        auto_devices: Lightning chooses the number of devices.
        is_ray_driver: It starts Ray's workers, which train.
        names_ranks: It names something that joins the processes of a job.
        calls_backward: It calls backward() on a loss, so the training loop is its own.
        hydra_config: Folder and name of Hydra's configuration, if literals say them and all of it
            is in files.
    """

    parser: str = ""
    is_certain: bool = False
    is_complete: bool = False
    abbreviates: bool = True
    options: list[ParserOption] = []
    commands: list[str] = []
    parses: bool = False
    variables: list[str] = []
    imports: list[str] = []
    numbers: list[tuple[str, int]] = []
    precisions: list[tuple[str, str]] = []
    positionals: list[ParserOption] = []
    trainers: list[str] = []
    names_local_rank: bool = False
    is_program: bool = False
    own_settings: list[str] = []
    deepspeed_configs: list[tuple[str, str]] = []
    uncopied_reads: list[tuple[int, str]] = []
    sibling_paths: list[str] = []
    finds_root: bool = False
    divided_names: list[str] = []
    loader_batch_names: list[str] = []
    folder_names: list[str] = []
    checkpoint_loads: list[str] = []
    slurm_rank_variables: list[str] = []
    assigned_variables: list[tuple[int, str, str, bool]] = []
    trainer_shape: list[tuple[str, int]] = []
    auto_devices: bool = False
    is_ray_driver: bool = False
    names_ranks: bool = False
    calls_backward: bool = False
    hydra_config: tuple[str, str] | None = None


def read_script(tree: ast.Module, *, is_imported: bool = False) -> ScriptFacts:
    """Collect the facts about a script from its syntax tree.

    Args:
        is_imported: The file is a module of the project that the script imports.

    >>> text = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr')"
    >>> facts = read_script(ast.parse(text + "; p.parse_args()"))
    >>> facts.parser, facts.is_complete, facts.options[0].names
    ('argparse', True, ['--lr'])
    """
    nodes = NodeIndex(tree, is_imported=is_imported)
    imports = list(_find_imports(nodes))
    calls = nodes.of_type(ast.Call)
    parser = _detect_parser(calls, imports)
    texts = [node.value for node in nodes.of_type(ast.Constant) if isinstance(node.value, str)]
    numbers = [
        (keyword.arg, constant_value(keyword.value))
        for call in calls
        for keyword in call.keywords
        if keyword.arg and keyword.arg in BATCH_KEYWORDS | STEPS_KEYWORDS
        if type(constant_value(keyword.value)) is int
    ]
    model = PARSER_MODELS[parser](nodes) if parser in PARSER_MODELS else None
    return ScriptFacts(
        parser=parser,
        is_certain=model is not None and model.is_certain,
        is_complete=model is not None and model.is_complete,
        abbreviates=model is None or model.abbreviates,
        options=model.options if model else list(_find_other_options(calls, parser)),
        # Any name in the text that looks like a variable counts, whether it is read or not.
        commands=model.commands if model else [],
        parses=model is not None and model.parses,
        variables=sorted({name for text in texts for name in re.findall(_VARIABLE, text)}),
        imports=list(dict.fromkeys(imports)),
        numbers=list(dict.fromkeys(numbers)),
        precisions=[
            (keyword.arg, _parse_precision(keyword.arg, keyword.value))
            for call in calls
            for keyword in call.keywords
            if keyword.arg in _PRECISIONS
            if not isinstance(keyword.value, ast.Constant) or keyword.value.value
        ],
        positionals=model.positionals if model else [],
        trainers=[name for name in map(callee_name, calls) if name.endswith(_TRAINERS)],
        names_local_rank="LOCAL_RANK" in texts,
        own_settings=sorted(_BACKEND_SETTINGS & set(_find_set_names(nodes))),
        deepspeed_configs=sorted(set(_find_deepspeed_configs(nodes))),
        is_program=any(
            is_main_guard(node) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
            for node in tree.body
        ),
        uncopied_reads=sorted(set(_find_uncopied_reads(nodes))),
        sibling_paths=sorted(set(_find_sibling_paths(nodes))),
        finds_root=not {"rootutils", "pyrootutils", "pyprojroot"}.isdisjoint(
            name.partition(".")[0] for name in imports
        ),
        divided_names=sorted(set(_find_divided_names(nodes))),
        loader_batch_names=sorted(set(_find_loader_batch_names(nodes))),
        folder_names=sorted(set(_find_folder_names(calls))),
        checkpoint_loads=sorted(set(_find_checkpoint_loads(nodes))),
        slurm_rank_variables=sorted(_SLURM_RANKS & set(texts)),
        assigned_variables=sorted(set(_find_assigned_variables(nodes))),
        trainer_shape=[
            (word.arg, constant_value(word.value))
            for call in calls
            if callee_name(call) in ("Trainer", "Fabric")
            for word in call.keywords
            if word.arg in ("devices", "num_nodes") and type(constant_value(word.value)) is int
        ],
        auto_devices=any(
            callee_name(call) in ("Trainer", "Fabric") and _chooses_devices(call) for call in calls
        ),
        is_ray_driver=_starts_ray(calls, imports),
        names_ranks=_names_ranks(nodes, imports, texts),
        calls_backward=any(
            isinstance(call.func, ast.Attribute) and call.func.attr == "backward" for call in calls
        ),
        hydra_config=find_hydra_config(nodes) if parser == "hydra" else None,
    )


def _find_assigned_variables(nodes: NodeIndex) -> Iterator[tuple[int, str, str, bool]]:
    """Yield the literals in os.environ[...] = ..., setdefault(), update() and os.putenv().

    What is set only under a condition about the environment is a default, as by setdefault().
    """
    fallbacks = {
        id(node)
        for test in nodes.of_type(ast.If)
        if "environ" in ast.unparse(test.test) or "getenv" in ast.unparse(test.test)
        for node in ast.walk(test)
    }
    found: list[ast.Assign | ast.Call] = [*nodes.of_type(ast.Assign), *nodes.of_type(ast.Call)]
    for node in found:
        for key, value, is_default in _find_environ_items(node):
            name, literal = string_value(key), constant_value(value)
            if isinstance(value, ast.Call) and callee_name(value) == "str" and len(value.args) == 1:
                literal = constant_value(value.args[0])
            if name and isinstance(literal, str | int) and not isinstance(literal, bool):
                yield node.lineno, name, str(literal), is_default or id(node) in fallbacks


def _find_environ_items(node: ast.Assign | ast.Call) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield name and value of each variable that a node sets, and whether it is a default."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                yield target.slice, node.value, False
    elif isinstance(node.func, ast.Attribute):
        method, args = node.func.attr, node.args
        is_environ = _is_environ(node.func.value)
        if len(args) == 2 and (method == "putenv" or (method == "setdefault" and is_environ)):
            yield args[0], args[1], method == "setdefault"
        elif method == "update" and is_environ:
            for word in node.keywords:
                if word.arg:
                    yield ast.Constant(word.arg), word.value, False
            for given in args:
                if isinstance(given, ast.Dict):
                    for key, value in zip(given.keys, given.values, strict=True):
                        if key is not None:
                            yield key, value, False


def _is_environ(node: ast.expr) -> bool:
    """Return True for os.environ, or environ imported from os."""
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


# Libraries that never join the processes of a job.
_INERT_LIBRARIES = frozenset(
    {"torch", "torchvision", "torchaudio", "torchtext", "numpy", "scipy", "pandas", "sklearn"}
    | {"matplotlib", "seaborn", "PIL", "cv2", "skimage", "imageio", "tqdm", "yaml", "einops"}
    | {"tensorboard", "tensorboardX", "wandb", "tiktoken", "omegaconf", "click", "typer", "fire"}
    | {"absl", "hydra", "datasets", "tokenizers", "sentencepiece", "nltk", "networkx", "h5py"}
    | {"librosa", "soundfile", "regex", "requests", "psutil", "rich", "timm", "gym", "gymnasium"}
    | {"tyro", "loguru", "pydantic", "safetensors", "pyarrow", "polars", "numba", "sympy", "zarr"}
    | {"pettingzoo", "minigrid", "ale_py", "mujoco", "envpool", "supersuit", "procgen"}
    | {"__future__", "typing_extensions", "dotenv", "tabulate", "termcolor", "colorama"}
)
# Libraries that may join them although the training loop is the script's own.
_JOINING_LIBRARY = re.compile(
    r"accelerate|bagua|byteps|catalyst|colossalai|composer|dask|deepspeed|detectron2|fairscale|fairseq"
    r"|hivemind|horovod|ignite|jax|lightning|lightning_fabric|megatron|mmcv|mmengine|mpi4py|nemo"
    r"|oneflow|petals|pyspark|pytorch_lightning|ray|smdistributed|torch_xla|torchft|torchrec"
    r"|torchtitan|.*(dist|parallel|mpi|slurm|comm|torchrun|idr_).*"
)
JOINING_WORDS = (
    r"distributed|Distributed|FullySharded|init_process_group|LOCAL_RANK|\bRANK\b|WORLD_SIZE|SLURM_PROCID"
    r"|SLURM_NTASKS|OMPI_COMM_WORLD|device_mesh|fully_shard|torchelastic|FSDP|world_size"
)


def _names_ranks(nodes: NodeIndex, imports: Sequence[str], texts: Sequence[str]) -> bool:
    words = [*imports, *texts, *(one.id for one in nodes.of_type(ast.Name))]
    words += [one.attr for one in nodes.of_type(ast.Attribute)]
    words += [word.arg or "" for word in nodes.of_type(ast.keyword)]
    return any(re.search(JOINING_WORDS, word) for word in words)


def is_single_process(
    imports: Collection[str], own: Collection[str], *, calls_backward: bool = False
) -> bool:
    """Return True if no imported library joins processes.

    Args:
        own: The packages of the project and of the standard library.
        calls_backward: The training loop is the script's own, so an unknown library does not train.

    >>> is_single_process(["os", "torch.nn", ".net", "model"], ["model", "os"])
    True
    >>> is_single_process(["torch", "unidecode"], []), is_single_process(["jax"], [])
    (False, False)
    >>> is_single_process(["torch", "unidecode"], [], calls_backward=True)
    True
    >>> is_single_process(["torch", "horovod.torch"], [], calls_backward=True)
    False
    """
    tops = {name.partition(".")[0] for name in imports if not name.startswith(".")}
    others = tops - _INERT_LIBRARIES - set(own)
    may_join = any(map(_JOINING_LIBRARY.fullmatch, others)) if calls_backward else bool(others)
    return "torch" in tops and not may_join


def _starts_ray(calls: Sequence[ast.Call], imports: Sequence[str]) -> bool:
    """Return True if a script starts Ray, or one of Ray's trainers or tuners."""
    if "ray" not in {name.partition(".")[0] for name in imports}:
        return False
    names = {ast.unparse(call.func) for call in calls}
    trainers = {"TorchTrainer", "LightningTrainer", "TransformersTrainer", "DataParallelTrainer"}
    return "ray.init" in names or bool({*trainers, "Tuner"} & {x.rpartition(".")[2] for x in names})


def adopt_parser(facts: ScriptFacts, modules: Sequence[ScriptFacts]) -> ScriptFacts:
    """Return a script's facts with the parser of a module that it imports, if it has none.

    The parser is not certain, because the module may have several.
    """
    if facts.parser:
        return facts
    own = next((one for one in modules if one.parses and (one.options or one.positionals)), None)
    if own is None:
        return facts
    return structs.replace(
        facts,
        parser=own.parser,
        is_certain=False,
        is_complete=False,
        abbreviates=own.abbreviates,
        options=own.options,
        positionals=own.positionals,
        commands=own.commands,
    )


def select_command(facts: ScriptFacts, command: str) -> ScriptFacts:
    """Return the facts with only the options of a subcommand, and those of the program itself."""
    if not facts.commands:
        return facts
    keep = ("", command)
    return structs.replace(
        facts,
        options=[option for option in facts.options if option.command in keep],
        positionals=[option for option in facts.positionals if option.command in keep],
    )


def _last_name(node: ast.expr) -> str:
    """Return the last name in an expression: batch_size in args.batch_size."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return string_value(node.slice)
    if (
        isinstance(node, ast.Call)
        and callee_name(node) in ("int", "float", "getattr")
        and node.args
    ):
        return string_value(node.args[-1]) or _last_name(node.args[0])
    return node.id if isinstance(node, ast.Name) else ""


def _find_divided_names(nodes: NodeIndex) -> Iterator[str]:
    """Yield names of values divided by an expression that looks like a number of ranks."""
    for node in nodes.of_type(ast.BinOp):
        if isinstance(node.op, ast.Div | ast.FloorDiv) and _RANK_COUNT.search(
            ast.unparse(node.right)
        ):
            inside = (each for each in ast.walk(node.left) if isinstance(each, ast.expr))
            yield from map(_last_name, inside)
    for change in nodes.of_type(ast.AugAssign):
        is_division = isinstance(change.op, ast.Div | ast.FloorDiv)
        if is_division and _RANK_COUNT.search(ast.unparse(change.value)):
            yield _last_name(change.target)


def _find_loader_batch_names(nodes: NodeIndex) -> Iterator[str]:
    """Yield names of values passed to a data loader as batch_size."""
    for call in nodes.of_type(ast.Call):
        if "Loader" in callee_name(call):
            yield from (
                _last_name(word.value) for word in call.keywords if word.arg == "batch_size"
            )
            yield from (_last_name(each) for each in call.args[1:2])


def _find_checkpoint_loads(nodes: NodeIndex) -> Iterator[str]:
    """Yield calls and keywords that load a checkpoint."""
    for call in nodes.of_type(ast.Call):
        is_of_library = callee_name(call) == "load" and ast.unparse(call.func) in _LIBRARY_LOADS
        if callee_name(call) in _CHECKPOINT_CALLS or is_of_library:
            yield callee_name(call)
        for word in call.keywords:
            if word.arg in RESUME_KEYWORDS and not _is_falsy(word.value):
                yield word.arg


def _is_falsy(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def _parse_precision(keyword: str, value: ast.expr) -> str:
    """Return the number format that a keyword's value sets; "" if it is unknown."""
    given = constant_value(value)
    if keyword in ("bf16", "fp16"):
        return keyword if given is True else ""
    return PRECISION_WORDS.get(str(given).lower(), "")


def _find_imports(nodes: NodeIndex) -> Iterator[str]:
    for plain in nodes.of_type(ast.Import):
        yield from (alias.name for alias in plain.names)
    for node in nodes.of_type(ast.ImportFrom):
        start = "." * node.level + (node.module or "")
        yield start
        # An imported name may be a submodule.
        dot = "" if start.endswith(".") else "."
        yield from (f"{start}{dot}{alias.name}" for alias in node.names if alias.name != "*")


def _detect_parser(calls: list[ast.Call], imports: list[str]) -> str:
    modules = {name.partition(".")[0] for name in imports}
    names = {callee_name(call) for call in calls}
    for name, parser in DATACLASS_PARSERS.items():
        if name in names:
            return parser
    if "ArgumentParser" in names and ARGPARSE in modules:
        return ARGPARSE
    return next((name for name in OPEN_PARSERS if name in modules), "")


def _find_other_options(calls: list[ast.Call], parser: str) -> Iterator[ParserOption]:
    """Yield the options that absl scripts define; the list may be incomplete."""
    for call in calls:
        words = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        texts = [word for word in words if isinstance(word, str)]
        if parser == "absl" and callee_name(call).startswith("DEFINE_") and texts:
            yield ParserOption(
                [f"--{texts[0]}"], number=_int_value(*call.args[1:2]), help=texts[-1]
            )


def _int_value(node: ast.expr | None = None) -> int | None:
    value = constant_value(node)
    return value if type(value) is int else None


def _find_set_names(nodes: NodeIndex) -> Iterator[str]:
    """Yield keywords and dataclass fields to which the script assigns its own value."""
    for call in nodes.of_type(ast.Call):
        if callee_name(call) == "DeepSpeedPlugin":
            yield "deepspeed_plugin"
        yield from (word.arg for word in call.keywords if word.arg and _is_own_value(word.value))
    for field in nodes.of_type(ast.AnnAssign):
        value = field.value
        if isinstance(value, ast.Call) and callee_name(value) == "field":
            value = {word.arg: word.value for word in value.keywords}.get("default")
        if isinstance(field.target, ast.Name) and value is not None and _is_own_value(value):
            yield field.target.id


def _find_deepspeed_configs(nodes: NodeIndex) -> Iterator[tuple[str, str]]:
    """Yield keywords that pass a DeepSpeed configuration, with the value.

    The value is a string literal such as a file name, "{...}" for a dictionary, and "" for any
    other expression.
    """
    for call in nodes.of_type(ast.Call):
        for word in call.keywords:
            if word.arg in ("deepspeed", "hf_ds_config") and _is_own_value(word.value):
                is_map = isinstance(word.value, ast.Dict)
                yield word.arg, "{...}" if is_map else string_value(word.value)


def _is_own_value(value: ast.expr) -> bool:
    """Return True unless a value is empty or comes from arguments, as args.deepspeed does."""
    is_passed_on = isinstance(value, ast.Attribute | ast.Subscript)
    return not is_passed_on and ast.unparse(value) not in ("None", "False", "''")


def _find_uncopied_reads(nodes: NodeIndex) -> Iterator[tuple[int, str]]:
    """Yield lines and expressions that import or read code from the working folder."""
    for call in nodes.of_type(ast.Call):
        function, name = call.func, callee_name(call)
        if isinstance(function, ast.Attribute) and _is_sys_path(function.value):
            text = ast.unparse(call)
            # The run's copy precedes an appended project folder on the path.
            is_last = name == "append" and _CURRENT_FOLDER.search(text)
            if not is_last and any(map(_is_relative_to_cwd, call.args[-1:])):
                yield call.lineno, text
        elif (name in _FILE_READERS or _CONFIG_READER.search(name)) and _CODE_FILE.fullmatch(
            string_value(next(iter(call.args), None))
        ):
            yield call.lineno, string_value(call.args[0])
    for node in nodes.of_type(ast.Assign):
        if _is_sys_path(node.targets[0]) and _is_relative_to_cwd(node.value):
            yield node.lineno, ast.unparse(node)


def _is_sys_path(node: ast.expr) -> bool:
    """Return True for sys.path and its entries."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path"


def _is_relative_to_cwd(node: ast.expr) -> bool:
    """Return True if a path is relative to the working folder."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value[:1] not in ("/", "~")
    if isinstance(node, (ast.List, ast.BinOp)):
        first = [node.left] if isinstance(node, ast.BinOp) else node.elts
        return any(map(_is_relative_to_cwd, first))
    if isinstance(node, ast.Attribute):
        return node.attr == "curdir" or (node.attr == "parent" and _is_relative_to_cwd(node.value))
    if not isinstance(node, ast.Call):
        return False
    if callee_name(node) in ("getcwd", "cwd"):
        return True
    if node.args:
        return callee_name(node) in _PATH_FUNCTIONS and _is_relative_to_cwd(node.args[0])
    return isinstance(node.func, ast.Attribute) and _is_relative_to_cwd(node.func.value)


def _find_folder_names(calls: Sequence[ast.Call]) -> Iterator[str]:
    """Yield names such as out in os.path.join(args.out, "model.pt") and os.makedirs(args.out)."""
    for call in calls:
        name = callee_name(call)
        is_join = name == "join" and isinstance(call.func, ast.Attribute) and len(call.args) > 1
        if call.args and (is_join or name in ("makedirs", "mkdir", "save_pretrained")):
            first = call.args[0]
            if isinstance(first, ast.Attribute):
                yield first.attr
            elif isinstance(first, ast.Name):
                yield first.id


def _chooses_devices(call: ast.Call) -> bool:
    """Return True if a call of Lightning's Trainer leaves the number of devices to Lightning."""
    given = {word.arg: ast.unparse(word.value) for word in call.keywords}
    # **settings may contain the number.
    return None not in given and given.get("devices", "-1") in ("-1", "'-1'", "'auto'")


def _find_sibling_paths(nodes: NodeIndex) -> Iterator[str]:
    """Yield paths built from ``__file__`` and literals, relative to the script's folder."""
    known: dict[str, str] = {}
    for node in nodes.of_type(ast.Assign):
        place = _resolve_from_file(node.value, known)
        if place is not None and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = place
    for made in (*nodes.of_type(ast.BinOp), *nodes.of_type(ast.Call)):
        place = _resolve_from_file(made, known)
        if place and not place.endswith("."):
            yield posixpath.normpath(place)


def _resolve_from_file(node: ast.expr, known: Mapping[str, str]) -> str | None:
    """Return a path relative to a script's folder; "" for the script, None for other values."""
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
        index = constant_value(node.slice)
        start, up = node.value.value, index + 1 if type(index) is int else -1
    elif isinstance(node, ast.Call) and node.args and callee_name(node) in _PATH_FUNCTIONS:
        start, more, up = node.args[0], node.args[1:], int(callee_name(node) == "dirname")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        start, more = node.func.value, node.args
    else:
        return None
    place, names = _resolve_from_file(start, known), [constant_value(each) for each in more]
    if place is None or not 0 <= up < 9 or not all(isinstance(name, str) for name in names):
        return None
    for _ in range(up):
        place = f"{place}/.." if place else "."
    return "/".join([place, *names]) if place else place
