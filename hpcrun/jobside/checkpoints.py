"""Find a run's checkpoints, detect incomplete ones, and remove those that newer ones replace.

A checkpoint is a folder with files of a framework, a folder whose name has a step or ends in
``.ckpt``, or a file. A file is checked by its first and last bytes only, since checkpoints are
large, numerous, and stored on a network file system.
"""

import errno
import heapq
import io
import json
import os
import pickle
import re
import shutil
import stat
import struct
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Set,
    Tuple,
)

DATA_FILE = re.compile(r"\.(pt|pth|tar|bin|ckpt|pkl|npz|safetensors|distcp)$")
_WRITING_SUFFIX = re.compile(r"\.(partial|part|tmp|incomplete)$")
# Words in names of incomplete files: _tmp_step-200, step-200.writing, 3.orbax-tmp-17.
_WRITING_WORD = re.compile(
    r"(?<![a-z])(tmp|temp|partial|incomplete|writing|unfinished|inprogress|saving)(?![a-z0-9])"
)
_WRITING_NAME = re.compile(r"^(part|partial|tmp|temp|incomplete)$|^(part|tmp)-")
_STEP = re.compile(r"(?:^|[^a-z])(steps?)[-_=.]?([0-9]{1,18})")
_OTHER = re.compile(
    r"(?:^|[^a-z])(checkpoint|ckpt|iter|iteration|epoch|state|update|batch|tokens?)[-_=.]?"
    r"([0-9]{1,18}(?:\.[0-9]{1,9})?[kmbt]?(?![a-z0-9]))"
)
_OTHER_PLAIN = re.compile(
    r"(?:^|[^a-z])(checkpoint|ckpt|iter|iteration|epoch|state|update|batch)[-_=.]?([0-9]{1,18})"
)
_EPOCH = re.compile(r"(?:^|[^a-z])(?:epoch|ep)[-_=.]?([0-9]{1,18})")
_AT_THE_END = re.compile(
    r"(?:^|[^0-9.])([0-9]{1,18})(?:\.(?:pt|pth|tar|bin|ckpt|pkl|npz|safetensors|distcp))?$"
)
# Files that are part of a checkpoint, but no checkpoint of their own.
_PART = re.compile(
    r"^(optimizer|scheduler|scaler|rng_state|random_states|training_args)|-of-[0-9]+\."
)
_NAMED = re.compile(r"^(checkpoint|ckpt|snapshot|state|resume)")
_BEST = re.compile(r"(^|[^a-z])best|universal")
_METRIC = re.compile(r"[0-9]\.[0-9]|loss|acc|metric|score|val")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Folders in which experiment trackers store media and copies.
_MEDIA = frozenset(("wandb", "media", "images", "videos", "__pycache__"))
_HEAD_BYTES = 4 << 20  # limit for searches of a number or name in a file
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}

Say = Callable[[str], None]


class File(NamedTuple):
    """An entry of a checkpoint's folder."""

    is_plain: bool
    is_dangling: bool
    size: int
    time: int


class Unit:
    """A file or folder that is a checkpoint or a part of one; ``path`` is relative to the root."""

    def __init__(self, path: str, is_folder: bool) -> None:
        self.path = path
        self.is_folder = is_folder
        self.files: Dict[str, File] = {}
        self.time = 0
        self.name = path.rpartition("/")[2]
        self.is_unfinished = is_unfinished(self.name)
        self.shape = re.sub("[0-9]+", "0", path)


def is_unfinished(name: str) -> bool:
    """Return True if the name marks an incomplete file or folder.

    >>> [is_unfinished(name) for name in ("step-3.tmp", "_tmp_step-3", "temp0.7-step3", "part-4")]
    [True, True, False, True]
    """
    name = name.lower()
    return bool(
        _WRITING_NAME.search(name) or _WRITING_SUFFIX.search(name) or _WRITING_WORD.search(name)
    )


# ---- Discovery -----------------------------------------------------------------------------------


def find_units(root: str, marker: str = "") -> List[Unit]:
    """Find all checkpoints below a folder, in no particular order."""
    files: Dict[str, File] = {}
    folders: Dict[str, bool] = {}
    marked: Set[str] = set()
    _scan(root, ".", files, folders)
    for path in files:
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder, True)
        if (
            name in ("trainer_state.json", marker or "/")
            or re.search(r"^random_states_.*\.pkl$|mp_rank_[0-9].*_states\.pt$", name)
            or name.endswith((".metadata", ".distcp"))
        ):
            # These are parts of the parent folder.
            last = folder.rpartition("/")[2]
            if last.startswith(("pytorch_model", "optimizer")) or last in ("model", "optim"):
                folder = folder.rpartition("/")[0]
            # At the end of a training, the Trainer also writes its state next to its checkpoints.
            if path != "./trainer_state.json":
                marked.add(folder)
    unit_of = {folder: _unit_folder(folder, marked) for folder in folders}
    units: Dict[str, Unit] = {}
    has_data = set()
    for path in sorted(files):
        entry, folder = files[path], path.rpartition("/")[0]
        at = unit_of[folder]
        lower = path.lower()
        name = path.rpartition("/")[2]
        if at:
            inside = path[len(at) + 1 :]
        else:
            is_file = entry.is_plain and (DATA_FILE.search(lower) or _WRITING_SUFFIX.search(lower))
            if not is_file or _PART.search(name.lower()):
                continue
            at, inside = path, name
        if at not in units:
            units[at] = Unit(at[2:] or ".", at != path)
        if DATA_FILE.search(lower) or at == path:
            has_data.add(at)
        unit = units[at]
        unit.files[inside] = entry
        unit.time = max(unit.time, entry.time)
    return [units[at] for at in sorted(has_data)]


def _scan(
    root: str, folder: str, files: Dict[str, File], folders: Dict[str, bool], depth: int = 0
) -> None:
    try:
        entries = list(os.scandir(os.path.join(root, folder) if folder != "." else root))
    except OSError:
        return
    for entry in entries:
        if _CONTROL.search(entry.name):
            continue
        path = folder + "/" + entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _MEDIA and depth < 40:
                    _scan(root, path, files, folders, depth + 1)
                continue
            info = entry.stat(follow_symlinks=False)
            is_dangling = False
            if stat.S_ISLNK(info.st_mode):
                try:
                    entry.stat()
                except OSError:
                    is_dangling = True
        except OSError:
            continue
        files[path] = File(stat.S_ISREG(info.st_mode), is_dangling, info.st_size, info.st_mtime_ns)


def _unit_folder(folder: str, marked: Set[str]) -> str:
    """Return the outermost folder on a path that is a checkpoint; "" if there is none."""
    at = "."
    for name in folder.split("/")[1:]:
        at += "/" + name
        lower = name.lower()
        if (
            at in marked
            or is_unfinished(name)
            or re.match(r"^[0-9]+$", name)
            or name.endswith(".ckpt")
            or name in ("last", "latest")
            or _STEP.search(lower)
            or _OTHER_PLAIN.search(lower)
            or _OTHER.search(lower)
        ):
            return at
    return "." if "." in marked else ""


# ---- Order ---------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """The sort position of a checkpoint; ``step`` is None if its name has none."""

    unit: Unit
    word: str
    step: Optional[float]
    epoch: Optional[int]


def order_units(units: List[Unit]) -> List[Unit]:
    """Order checkpoints, the newest first.

    Within a folder they are ordered by step if all have one of the same kind, else by time; a step
    that counts within an epoch is compared after the epoch. Folders (stages of a training,
    versions) are ordered by time. Checkpoints without a step (an export of the weights), the best
    so far, and those derived from another checkpoint count only if there is nothing else, except
    names such as last.ckpt and ckpt.pt.
    """
    tiers: Tuple[Dict[str, List[_Place]], Dict[str, List[_Place]]] = ({}, {})
    has_finished = [False, False]
    for unit in units:
        name = unit.name.lower()
        if name.endswith((".old", ".stale")):
            continue
        place, tier = _place(unit, name)
        if unit.is_unfinished:
            if place.step is None:
                continue
        else:
            has_finished[tier] = True
        tiers[tier].setdefault(unit.path.rpartition("/")[0], []).append(place)
    groups = []
    for number, group in enumerate(tiers[0 if has_finished[0] else 1].values()):
        ordered: List[Tuple[int, int, int, Unit]] = []
        latest = 0
        for unit in reversed(_order_group(group)):
            latest = max(latest, unit.time)
            ordered.append((-latest, number, -len(ordered), unit))
        groups.append(reversed(ordered))
    # The folder in which something was written last goes first, until its newest is used up.
    return [unit for _, _, _, unit in heapq.merge(*groups)]


def parse_position(name: str) -> Tuple[str, Optional[float]]:
    """Return what the number in the name of a checkpoint counts, and the number.

    >>> parse_position("epoch=1-step=40.ckpt"), parse_position("model_0012.pt")
    (('step', 40), ('model', 12))
    """
    name = name.lower()
    if re.match("last|latest", name):
        return "", None
    match = _STEP.search(name) or _OTHER.search(name) or _OTHER_PLAIN.search(name)
    if match:
        return match.group(1), read_number(match.group(2))
    at_end = _AT_THE_END.search(name)
    if at_end:
        return name[: at_end.start()] or "number", read_number(at_end.group(1))
    return "", None


def _place(unit: Unit, name: str) -> Tuple[_Place, int]:
    tier = 0
    word, step = parse_position(name)
    if step is None and not re.match("last|latest", name) and not _NAMED.search(name):
        tier = 1
    if _BEST.search(name):
        tier = 1
    epoch = _EPOCH.search(name)
    return _Place(unit, word, step, int(epoch.group(1)) if epoch else None), tier


def _order_group(group: List[_Place]) -> List[Unit]:
    finished = [place for place in group if not place.unit.is_unfinished]
    words = {place.word for place in finished}
    if len(words) == 1 and all(place.step is not None for place in finished):
        has_epoch = "step" in words.pop() and all(p.epoch is not None for p in group)

        def key(place: _Place) -> Tuple[float, float, int]:
            return (place.epoch or 0) if has_epoch else 0, place.step or 0, place.unit.time

        group = sorted(group, key=key, reverse=True)
    else:
        group = sorted(group, key=lambda place: (place.unit.time, place.step or 0), reverse=True)
    return [place.unit for place in group]


def read_number(text: str) -> float:
    """Read a number of a name, which may be decimal and have a unit.

    >>> read_number("0400"), read_number("9.5b"), read_number("12k")
    (400, 9500000000.0, 12000.0)
    """
    if text.isdecimal():
        return int(text)
    unit = _UNITS.get(text[-1])
    return float(text[:-1]) * unit if unit else float(text)


# ---- Completeness --------------------------------------------------------------------------------


class Damage(Exception):
    """The reason why a checkpoint is unusable."""


class Verdict(NamedTuple):
    """The result of a check; ``state`` is whole, damaged, or ranks (of another world size)."""

    state: str
    unit: Unit
    reason: str


def judge(root: str, world: int, marker: str = "") -> Iterator[Verdict]:
    """Check the checkpoints below a folder, the newest first."""
    judged = Judge(root, world, marker)
    return map(judged.verdict, judged.order)


class Judge:
    """Checks the checkpoints below a folder, each one once."""

    def __init__(self, root: str, world: int, marker: str = "") -> None:
        self.root, self.world, self.marker = root, world, marker
        self.order = order_units(find_units(root, marker))
        self.known: Dict[str, Verdict] = {}
        self.alike: Dict[str, List[Unit]] = {}
        for unit in self.order:
            self.alike.setdefault(unit.shape, []).append(unit)

    def verdict(self, unit: Unit) -> Verdict:
        if unit.path not in self.known:
            reason = ""
            try:
                older: List[Unit] = []
                if unit.is_folder:
                    alike = self.alike[unit.shape]
                    older = alike[alike.index(unit) + 1 :]
                _Check(self.root, self.world, self.marker, unit, older).run()
            except Damage as error:
                reason = str(error)
            except (OSError, ValueError) as error:
                reason = "it cannot be read: {}".format(error)
            state = "whole" if not reason else "ranks" if reason.endswith(" ranks") else "damaged"
            self.known[unit.path] = Verdict(state, unit, reason)
        return self.known[unit.path]


class _Check:
    """The checks of one checkpoint; each raises Damage with a reason."""

    def __init__(self, root: str, world: int, marker: str, unit: Unit, alike: List[Unit]) -> None:
        self.world, self.marker, self.unit, self.alike = world, marker, unit, alike
        path = os.path.join(root, unit.path) if unit.path != "." else root
        self.folder = path if unit.is_folder else os.path.dirname(path)
        self.have = {name: entry.size for name, entry in unit.files.items()}
        self.data: List[str] = []
        self.has_weights = False
        self.tags: Set[str] = set()

    def run(self) -> None:
        if self.unit.is_unfinished:
            raise Damage("it was not finished")
        self.list_files()
        if self.unit.is_folder:
            if self.marker:
                self.need(self.marker)
            self.check_framework()
            self.check_deepspeed()
            self.check_shards()
            self.check_older()
        for name in self.data:
            self.check_ends(name)

    def list_files(self) -> None:
        unfinished = []
        for name in sorted(self.unit.files):
            entry = self.unit.files[name]
            folder, _, base = name.rpartition("/")
            if entry.is_dangling:
                raise Damage("{} is a link to nothing".format(name))
            if _WRITING_SUFFIX.search(base):
                unfinished.append(name)
            if not entry.is_plain or base == self.marker:
                continue
            if re.search(r"mp_rank_[0-9].*_states\.pt$", base):
                self.tags.add(folder + "/" if folder else "")
                self.has_weights = True
            elif not base.endswith((".json", ".metadata")):
                if not DATA_FILE.search(name.lower()):
                    continue
                if not _PART.search(base) or "-of-" in base:
                    self.has_weights = True
            if not entry.size:
                raise Damage("{} is empty".format(name))
            self.data.append(name)
        for name in unfinished:
            # If the complete file also exists, this one belongs to a later, failed attempt to
            # overwrite it.
            if not self.have.get(name.rpartition(".")[0]):
                raise Damage("{} was not finished".format(name))

    def has(self, pattern: str) -> bool:
        """Return True if a file name matches the pattern at its beginning."""
        compiled = re.compile(pattern)
        return any(compiled.match(name) for name in self.have)

    def need(self, name: str) -> None:
        if name not in self.have:
            raise Damage("{} is missing".format(name))

    def check_framework(self) -> None:
        """Check for the files that the Trainer of transformers and Accelerate write.

        The Trainer's last file on rank 0 is its state (Trainer._save_checkpoint); Accelerate's last
        files are the random states (checkpointing.py).
        """
        is_trainer = self.has(r"trainer_state\.json|training_args\.bin|rng_state") or (
            re.search(r"(^|/)checkpoint-[0-9]+$", self.unit.path)
            and self.has(r"config\.json|adapter_config\.json")
            and not self.has("optimizer|random_states_")
        )
        older = self.alike[0].files if self.alike else {}
        if is_trainer:
            self.need("trainer_state.json")
            self.need_weights()
            if self.has("global_step"):
                self.need("latest")  # the Trainer makes DeepSpeed write it
            if not self.has("optimizer|scheduler|rng_state|global_step"):
                return  # save_only_model
            if not self.has("optimizer|global_step"):
                raise Damage("optimizer.pt is missing")
            if not self.has("global_step"):
                self.need("scheduler.pt")
            if not self.has(r"rng_state\.pth"):
                self.check_ranks("rng_state_", ".pth")
        elif self.has("random_states_|pytorch_model/|pytorch_model_fsdp") or (
            self.has(r"optimizer\.bin")
            and self.has(r"model\.safetensors|pytorch_model\.bin")
            # A custom script may also write both files.
            and (not older or any(name.startswith("random_states_") for name in older))
        ):
            self.need_weights()
            self.check_ranks("random_states_", ".pkl")

    def need_weights(self) -> None:
        if not self.has_weights:
            raise Damage("it has no weights")

    def check_ranks(self, prefix: str, suffix: str) -> None:
        """Check that each rank has written its file.

        An earlier run's rank count is accepted if the previous checkpoint has as many files.
        """
        older = self.alike[0].files if self.alike else {}
        rank = _count_from_zero(self.have, prefix, suffix)
        if rank >= self.world:
            return
        before = _count_from_zero(older, prefix, suffix)
        count = sum(name.startswith(prefix) and name.endswith(suffix) for name in self.have)
        if not (count == rank and rank > 0):
            self.need("{}{}{}".format(prefix, rank, suffix))
        if rank != before:
            raise Damage("it has the random states of {} of {} ranks".format(rank, self.world))

    def check_deepspeed(self) -> None:
        """Check for the files of all ranks (runtime/engine.py: _get_ckpt_name).

        ``latest`` proves nothing: rank 0 writes it while other ranks may still be writing.
        """
        for tag in sorted(self.tags):
            quoted = re.escape(tag)
            sharded = self.has(quoted + r"zero_pp_rank_[0-9]+_mp_rank_00_model_states\.pt")
            optims = ""
            for prefix in ("zero_pp_rank_", "bf16_zero_pp_rank_", "fp16_zero_pp_rank_"):
                if self.has(quoted + prefix + r"[0-9]+_mp_rank_[0-9]+_optim_states\.pt"):
                    optims = prefix
            ranks = 0
            while self.has(quoted + r"(zero_pp_rank_[0-9]+_)?mp_rank_{:02d}_".format(ranks)):
                ranks += 1
            first = "{}{}mp_rank_00_model_states.pt".format(tag, "zero_pp_rank_0_" * sharded)
            self.need(first)
            if self.has(quoted + "zero/"):
                # A universal checkpoint is stored by parameter, not by rank (ds_to_universal.py).
                self.need(tag + "zero/optimizer_state.pt")
                for name in sorted(self.have):
                    if name.startswith(tag + "zero/") and "/" in name[len(tag) + 5 :]:
                        self.need(name.rpartition("/")[0] + "/fp32.pt")
                continue
            head = _read(os.path.join(self.folder, first), _HEAD_BYTES)
            dp = pickled_number(head, "dp_world_size") or self.world // max(ranks, 1)
            # With MiCS one group of ranks writes for all.
            group = pickled_number(head, "mics_shard_size") if sharded else None
            if group and group < dp:
                dp = group
            if not optims and pickled_number(head, "stage"):
                raise Damage("it has no optimizer states")
            for model in reversed(range(ranks)):
                if not sharded:
                    self.need("{}mp_rank_{:02d}_model_states.pt".format(tag, model))
                for rank in range(dp):
                    part = "{}_mp_rank_{:02d}".format(rank, model)
                    if sharded:
                        self.need("{}zero_pp_rank_{}_model_states.pt".format(tag, part))
                    if optims:
                        self.need("{}{}{}_optim_states.pt".format(tag, optims, part))

    def check_shards(self) -> None:
        """Check for the files that an index lists, and for those that Lightning writes last."""
        for name in sorted(self.have):
            folder, slash, base = name.rpartition("/")
            folder += slash
            at = os.path.join(self.folder, name)
            if base.endswith(".index.json"):
                found = re.findall(rb'"([^"/]*\.(?:safetensors|bin))"', _read(at))
                for shard in sorted(set(found)):
                    self.need(folder + os.fsdecode(shard))
            elif re.match(r"(model|pytorch_model|adapter_model)-.*-of-", base):
                self.need(
                    "{}{}.{}.index.json".format(
                        folder, base.partition("-")[0], base.rpartition(".")[2]
                    )
                )
            elif base.endswith(".distcp"):
                # torch.distributed.checkpoint: the last file that it writes (filesystem.py) lists
                # the others.
                if not self.has(re.escape(folder) + r"(__[0-9]+)?\.metadata"):
                    raise Damage("{}.metadata is missing".format(folder))
            elif base.endswith(".metadata"):
                record = _read(at)
                for shard in sorted(set(re.findall(rb"__[0-9]*_[0-9]*\.distcp", record))):
                    self.need(folder + os.fsdecode(shard))
                for shard, size in sorted(_shard_sizes(record).items()):
                    if self.have.get(folder + shard, size) < size:
                        raise Damage("{} is cut off".format(folder + shard))
        if self.unit.path.endswith(".ckpt"):
            if self.has(r"\.metadata"):
                self.need("meta.pt")
            if self.has("checkpoint/"):
                self.need("latest")
        if "latest" in self.have:
            tag = _read(os.path.join(self.folder, "latest")).decode("utf-8", "replace")
            if not self.has(re.escape(tag.rstrip("\n")) + "/"):
                raise Damage("latest names what is not there")

    def check_older(self) -> None:
        """Check that all data files exist that every older checkpoint of the same kind has.

        For a custom format nothing else shows which file is written last. (checkpoint.json is the
        record of hpcrun's own trainer. Other JSON may belong to an evaluation, which is written
        later.)
        """
        if not self.alike:
            return
        names = _shapes(self.have)
        others = [_shapes(other.files) for other in self.alike]
        for shape in sorted(others[0]):
            is_data = DATA_FILE.search(shape.lower()) or shape == "checkpoint.json"
            if is_data and shape not in names and all(shape in other for other in others):
                raise Damage("it has no {}, as the ones before it have".format(shape))

    def check_ends(self, name: str) -> None:
        """Detect a truncated file by its first and last bytes."""
        size, path = self.have[name], os.path.join(self.folder, name)
        if size < 22:
            self.check_small(name, path)
            return
        with open(path, "rb") as file:
            head = file.read(16)
            file.seek(-22, os.SEEK_END)
            tail = file.read(22)
            is_cut = False
            if name.endswith(".safetensors"):
                file.seek(0)
                _check_safetensors(name, size, head, file.read)
            elif name.endswith(".json"):
                is_cut = head[:1] in (b"{", b"[") and not _is_json_end(tail)
            elif head[:4] == b"PK\3\4":
                # zip, as written by torch.save: its directory is at the end.
                is_cut = tail[:4] != b"PK\5\6"
            elif head.startswith(bytes.fromhex("80028a0a6cfc9c46f9")):
                pass  # torch.save's old format has no recognizable end
            elif head[:1] == b"\x80" and 2 <= head[1] <= 5:
                # pickle: ends with a dot; a frame states its size.
                frame = struct.unpack("<I", head[3:7])[0] + 11 if head[2:3] == b"\x95" else 0
                is_cut = tail[-1:] != b"." or frame > size
            elif head[:4] == b"\0\0\0\0" and name.endswith((".pt", ".pth", ".ckpt")):
                raise Damage("{} begins with zeros".format(name))
        if is_cut:
            raise Damage("{} is cut off".format(name))

    def check_small(self, name: str, path: str) -> None:
        content = _read(path)
        is_cut = False
        if name.endswith(".json"):
            text = content.rstrip(b"\n")
            is_cut = text[:1] in (b"{", b"[") and text[-1:] not in (b"}", b"]")
        elif name.endswith((".pkl", ".bin", ".tar", ".npz")):
            pass  # may be this short
        elif name.endswith(".safetensors"):
            is_cut = True
        else:
            # The beginning of a zip or pickle; a custom script may also write a short text.
            is_cut = content[:1] in (b"P", b"\x80")
        if is_cut:
            raise Damage("{} is cut off".format(name))


class _Inert(Dict[Any, Any]):
    """Stands for any object in a pickle of unknown origin, of which only the state is kept."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def append(self, _: Any) -> None:
        """Ignore the items of what is a list elsewhere."""


class _InertUnpickler(pickle.Unpickler):
    """Reads a pickle without importing or calling anything that it names."""

    def find_class(self, module: str, name: str) -> Any:
        return _Inert


def _shard_sizes(record: bytes) -> Dict[str, int]:
    """Return the least size of each file that a .metadata of torch.distributed.checkpoint lists.

    A file may hold several tensors, each a file of torch.save in itself, so that its end does not
    show that others are missing. Of an unknown form the result is empty.
    """
    sizes: Dict[str, int] = {}
    try:
        metadata = _InertUnpickler(io.BytesIO(record)).load()
        stored = metadata.state["storage_data"]
        for info in stored.values():
            name, end = info.state["relative_path"], info.state["offset"] + info.state["length"]
            if isinstance(name, str) and isinstance(end, int):
                sizes[name] = max(end, sizes.get(name, 0))
    except Exception:  # whatever a pickle may contain
        return {}
    return sizes


def _read(path: str, most: int = 256 << 20) -> bytes:
    with open(path, "rb") as file:
        return file.read(most)


def _count_from_zero(names: Mapping[str, object], prefix: str, suffix: str) -> int:
    rank = 0
    while "{}{}{}".format(prefix, rank, suffix) in names:
        rank += 1
    return rank


def _shapes(names: Mapping[str, object]) -> FrozenSet[str]:
    return frozenset(re.sub("[0-9]+", "0", name) for name in names)


def pickled_number(head: bytes, key: str) -> Optional[int]:
    """Parse a number in a dictionary by its key, from the beginning of a torch.save file.

    Its zip starts with the uncompressed pickle: a key is preceded by its length, and followed by a
    memo opcode (q, r).
    """
    name = key.encode()
    at = head.find(struct.pack("<I", len(name)) + name)
    while at >= 0:
        rest = head[at + 4 + len(name) :][:10]
        match = re.match(rb"(?s)(?:q.|r....)(?:K(.)|M(..)|J(....))", rest)
        if match:
            return int.from_bytes(next(g for g in match.groups() if g is not None), "little")
        if rest[:1] in (b"q", b"r"):
            return None
        at = head.find(struct.pack("<I", len(name)) + name, at + 1)
    return None


def _is_json_end(tail: bytes) -> bool:
    """Return True for the end of JSON; the last bracket of indented JSON is not indented."""
    text = tail.rstrip(b" \t\n\r")
    if text[-1:] not in (b"}", b"]"):
        return False
    before = text[:-1]
    return not re.search(rb"(^|\n)[ \t]+$", before)


def _check_safetensors(name: str, size: int, head: bytes, read: Callable[[int], bytes]) -> None:
    """Check the structure of a safetensors file (safetensors/src/tensor.rs).

    The file has eight bytes with the size of the header; the header, in JSON, with the end of each
    tensor; and the data, without holes.
    """
    (length,) = struct.unpack("<Q", head[:8])
    if length >= 1 << 32:
        raise Damage("{} has no header of safetensors".format(name))
    if length + 8 > size:
        raise Damage("{} is cut off".format(name))
    try:
        header = json.loads(read(8 + length)[8:].decode("utf-8"))
        ends = [
            int(tensor["data_offsets"][1])
            for key, tensor in header.items()
            if key != "__metadata__"
        ]
    except (ValueError, AttributeError, KeyError, TypeError, IndexError):
        raise Damage("{} has no header of safetensors".format(name))
    wanted = 8 + length + max(ends or [0])
    if wanted != size:
        raise Damage("{} has {} bytes of {}".format(name, size, wanted))


# ---- The newest checkpoint -----------------------------------------------------------------------


def newest_checkpoint(root: str, world: int, marker: str = "", say: Say = lambda _: None) -> str:
    """Return the path of the newest complete checkpoint, or ""."""
    if not root or not os.path.isdir(root):
        return ""
    judged = Judge(root, world, marker)
    peers = Peers(judged)
    fallback: Optional[Unit] = None
    for unit in judged.order:
        verdict = judged.verdict(unit)
        reason = verdict.reason or peers.missing_part(unit)
        if not reason:
            return absolute(root, unit)
        say("hpcrun: checkpoint {} is damaged ({}): passed over".format(unit.name, reason))
        # Fallback: a checkpoint by fewer ranks lacks at most random states.
        if verdict.state == "ranks" and fallback is None:
            fallback = unit
    if fallback is None:
        return ""
    say("hpcrun: checkpoint {} is used all the same: no other is whole".format(fallback.name))
    return absolute(root, fallback)


def absolute(root: str, unit: Unit) -> str:
    """Return the absolute path of a checkpoint."""
    root = os.path.abspath(root)
    return root if unit.path == "." else root + "/" + unit.path


class Peers:
    """Groups files and folders of one checkpoint: of ranks and components."""

    def __init__(self, judged: Judge) -> None:
        self.judged, order = judged, judged.order
        self.named = {unit.path: parse_name(unit.path) for unit in order}
        self.series: Dict[str, Dict[Tuple[int, ...], Unit]] = {}
        self.by_identity: Dict[Tuple[int, ...], List[Unit]] = {}
        for unit in order:
            name = self.named[unit.path]
            if name.identity:
                self.series.setdefault(name.series, {}).setdefault(name.identity, unit)
                self.by_identity.setdefault(name.identity, []).append(unit)

    def missing_part(self, unit: Unit) -> str:
        """Return a part that the two previous checkpoints had but this one lacks."""
        own = self.named[unit.path]
        earlier = sorted(i for i in self.series.get(own.series, {}) if i < own.identity)
        if not own.identity or not earlier:
            return ""
        mine = self.series[own.series]
        before = mine[earlier[-1]]
        start = mine[earlier[-2]].time if len(earlier) > 1 else -1
        if not start < before.time <= unit.time:
            return ""
        for peer in self.by_identity[earlier[-1]]:
            series = self.series[self.named[peer.path].series]
            # Another stage of the training has the same steps at another time.
            if peer is before or not start < peer.time <= unit.time:
                continue
            if len(earlier) > 1 and earlier[-2] not in series:
                continue  # not saved each time
            found = series.get(own.identity)
            if found is None:
                return "it lacks what {} was for the one before".format(peer.name)
            verdict = self.judged.verdict(found)
            if verdict.state != "whole":
                return "{}: {}".format(found.name, verdict.reason)
        return ""


# ---- Pruning -------------------------------------------------------------------------------------

_NUMBER = re.compile(r"([^0-9]*)([0-9]+)")
_WORD = re.compile(r"([a-z]+)[-_=.:]?$")
# fmt: off
_PROGRESS = frozenset((
    "step", "steps", "globalstep", "epoch", "epochs", "ep", "iter", "iters", "iteration", "it",
    "ba", "batch", "batches", "update", "updates", "token", "tokens", "sample", "samples",
))
_WEAK = frozenset(("checkpoint", "ckpt", "state", "snapshot"))
_FIXED = frozenset((
    "rank", "fold", "seed", "shard", "part", "version", "v", "node", "worker", "mp", "tp", "pp",
    "dp", "gpu", "cv", "split",
))
# fmt: on


class Name(NamedTuple):
    """The parts of a checkpoint's path.

    Attributes:
        identity: Its numbers of progress, which sort by age.
        series: The path without them.
        shape: The series without numbers of unknown meaning.
        has_word: A word such as ``step`` precedes its number.
    """

    identity: Tuple[int, ...]
    series: str
    shape: str
    has_word: bool


def parse_name(path: str) -> Name:
    """Separate the numbers of progress in a path from those of ranks, folds and the like.

    >>> parse_name("rank0/step_0300.pt")
    Name(identity=(300,), series='rank0/step_#.pt', shape='rank0/step_#.pt', has_word=True)
    >>> parse_name("run7/ema_12.pt")
    Name(identity=(12,), series='run7/ema_#.pt', shape='run*/ema_#.pt', has_word=False)
    """
    folder, slash, name = path.rpartition("/")
    # Map an incomplete file to the name that it will get.
    name = re.sub(r"^(part|tmp)-", "", _WRITING_SUFFIX.sub("", name))
    path = folder + slash + name
    texts, numbers, kinds = [], [], []
    end = 0
    for match in _NUMBER.finditer(path):
        word = _WORD.search(match.group(1).lower())
        text = word.group(1) if word else ""
        kind = (
            "progress" if text in _PROGRESS else "weak" if text in _WEAK
            else "fixed" if text in _FIXED else "unknown"
        )  # fmt: skip
        texts.append(match.group(1))
        numbers.append(match.group(2))
        kinds.append(kind if len(match.group(2)) <= 18 else "unknown")
        end = match.end()
    has_word = "progress" in kinds
    if not has_word:
        # Use the number of the checkpoint, or else the last number of the name.
        chosen = [n for n, kind in enumerate(kinds) if kind == "weak"]
        if not chosen:
            in_name = len(folder + slash)
            at, starts = 0, []
            for text, number in zip(texts, numbers):
                starts.append(at + len(text))
                at += len(text) + len(number)
            chosen = [
                n for n, kind in enumerate(kinds) if kind == "unknown" and starts[n] >= in_name
            ]
        if chosen and len(numbers[chosen[-1]]) <= 18:
            kinds[chosen[-1]] = "progress"
    identity = []
    series = shape = ""
    for text, number, kind in zip(texts, numbers, kinds):
        if kind == "progress":
            identity.append(int(number))
        series += text + ("#" if kind == "progress" else number)
        shape += text + ("#" if kind == "progress" else number if kind == "fixed" else "*")
    return Name(tuple(identity), series + path[end:], shape + path[end:], has_word)


class _Set:
    """All files and folders with the same identity, which form one checkpoint."""

    def __init__(self) -> None:
        self.parts: Dict[str, Unit] = {}
        self.members: List[Unit] = []
        self.shapes: Set[str] = set()
        self.first = self.last = 0

    def add(self, unit: Unit, name: Name) -> None:
        self.first = min(self.first, unit.time) if self.members else unit.time
        self.last = max(self.last, unit.time)
        self.parts[name.series] = unit
        self.members.append(unit)
        self.shapes.add(name.shape)

    def has_all_files_of(self, other: "_Set") -> bool:
        """Return True if no kind of data file is rarer here: a rank's file may be missing."""
        for series, unit in other.parts.items():
            mine = _count_kinds(self.parts[series]) if series in self.parts else {}
            if any(mine.get(kind, 0) < n for kind, n in _count_kinds(unit).items()):
                return False
        return True


def _count_kinds(unit: Unit) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for name in unit.files if unit.is_folder else ():
        if DATA_FILE.search(name.lower()):
            kind = re.sub("[0-9]", "", name)  # same for all ranks and steps
            found[kind] = found.get(kind, 0) + 1
    return found


def prune(
    root: str,
    world: int,
    keep: int,
    marker: str = "",
    newer_than: Optional[str] = None,
    resumed: str = "",
    say: Say = lambda _: None,
) -> None:
    """Remove older checkpoints of this run that complete newer ones certainly replace.

    Files or folders of ranks, components and folds with the same progress form one checkpoint. It
    is complete if each series of names (rank0_step#.pt, ema/#.pt ...) has a complete member, and is
    removed once ``keep`` complete ones are newer by number and by time.

    Args:
        newer_than: A file of this run: checkpoints older than it belong to another run.
        resumed: The checkpoint that this attempt resumed from.
    """
    if not os.path.isdir(root):
        return
    keep, limit = max(keep, 1), -1.0
    if newer_than:
        try:
            limit = os.stat(newer_than).st_mtime
        except OSError:
            pass
    families: Dict[int, Dict[Tuple[int, ...], _Set]] = {}
    series_of: Dict[int, Set[str]] = {}
    of_shape: Dict[Tuple[int, str], Set[str]] = {}
    newest: Optional[Unit] = None
    may_be_ranks = True
    for verdict in judge(root, world, marker):
        unit = verdict.unit
        if verdict.state == "whole" and newest is None:
            newest = unit
        name = parse_name(unit.path)
        if not name.identity or _METRIC.search(unit.name):
            continue
        try:
            if os.stat(absolute(root, unit)).st_mtime <= limit:
                continue
        except OSError:
            continue
        family = len(name.identity)
        series_of.setdefault(family, set()).add(name.series)
        # Paths that differ in a number of unknown meaning, which may be a rank or a step.
        of_shape.setdefault((family, name.shape), set()).add(name.series)
        # Without a word for progress, the numbers 0 to ``world`` - 1 may be ranks.
        may_be_ranks &= not name.has_word and name.identity[-1] < world
        if verdict.state == "whole":
            families.setdefault(family, {}).setdefault(name.identity, _Set()).add(unit, name)
    if newest is None:
        return
    kept = _Kept(root, newest, resumed)
    unclear: List[Unit] = []
    for family, sets in families.items():
        complete = {
            identity: found
            for identity, found in sets.items()
            if set(found.parts) == series_of[family]
        }
        for identity in sorted(sets, reverse=True):
            found = sets[identity]
            later = [other for other in sets if other > identity]
            if len(later) < keep:
                continue
            newer = 0
            for other in later:
                by = complete.get(other)
                if by and by.first >= found.first and by.last >= found.last:
                    newer += by.has_all_files_of(found)
            is_clear = not any(len(of_shape[family, shape]) > 1 for shape in found.shapes)
            if is_clear and identity in complete and newer >= keep and not may_be_ranks:
                if newest not in found.members and not any(map(kept.has, found.members)):
                    for unit in found.members:
                        _remove(root, unit, keep, say)
            elif len(later) > keep:
                unclear.append(found.members[0])
    if unclear:
        say(
            "hpcrun: kept {} older checkpoints ({} ...): it is not certain that complete newer"
            " ones replace them".format(len(unclear), unclear[0].name)
        )


def _remove(root: str, unit: Unit, keep: int, say: Say) -> None:
    path = absolute(root, unit)
    # Rename first: a partly removed checkpoint would count as damaged.
    other = os.path.join(os.path.dirname(path), ".hpcrun-removed-" + unit.name)
    try:
        os.rename(path, other)
        if unit.is_folder:
            shutil.rmtree(other)
        else:
            os.unlink(other)
    except OSError as error:
        if error.errno != errno.ENOENT:
            say("hpcrun: checkpoint {} cannot be removed: {}".format(unit.name, error.strerror))
        return
    say("hpcrun: removed checkpoint {}; newer ones that are whole: {}".format(unit.name, keep))


class _Kept:
    """Checkpoints that are kept whatever their age.

    These are the one that this attempt resumed from, targets of links and of files like ``latest``,
    and the one that the newest checkpoint records as the best (best_model_checkpoint in the
    Trainer's trainer_state.json, best_model_path in Lightning's checkpoints).
    """

    def __init__(self, root: str, newest: Unit, resumed: str) -> None:
        self.root, self.resumed = root, resumed
        self.links: List[Tuple[str, str]] = []
        self.names: List[Tuple[str, str]] = []
        for folder, folders, files in os.walk(root):
            for name in folders + files:
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    self.links.append((path, os.path.realpath(path) + "/"))
                elif name.startswith(("latest", "last", "best")) and name in files:
                    self._read_pointer(path)
        at = absolute(root, newest)
        parts = ("", "trainer_state.json", "meta.pt", "checkpoint/mp_rank_00_model_states.pt")
        self.records = b""
        for part in parts:
            path = os.path.join(at, part) if part else at
            if os.path.isfile(path):
                self.records += _read(path, _HEAD_BYTES) + b"\n"

    def _read_pointer(self, path: str) -> None:
        try:
            if os.path.getsize(path) <= 512:
                line = os.fsdecode(_read(path)).partition("\n")[0]
                self.names.append((path, line.rpartition("/")[2]))
        except OSError:
            pass

    def has(self, unit: Unit) -> bool:
        path = absolute(self.root, unit)
        if path == self.resumed:
            return True
        inside, real = path + "/", os.path.realpath(path) + "/"
        if any(target.startswith(real) and not at.startswith(inside) for at, target in self.links):
            return True
        if any(name == unit.name and not at.startswith(inside) for at, name in self.names):
            return True
        best = "/" + re.sub("[^0-9A-Za-z_-]", ".", unit.name) + r"([^0-9]|$)"
        return bool(re.search(best.encode(), self.records, re.MULTILINE))


def free_bytes(folder: str) -> Optional[int]:
    """Return the free disk space of a folder that the user can use, in bytes."""
    try:
        info = os.statvfs(folder)
    except OSError:
        return None
    return info.f_bavail * info.f_frsize


def size_of(path: str) -> int:
    """Return the total size of a file, or of all files below a folder."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def warn_of_room(folder: str, size: int, say: Say) -> None:
    """Warn if the disk may lack space for another checkpoint of this size."""
    free = free_bytes(folder)
    if free is not None and free < size * 6 // 5:
        say(
            "hpcrun: {} has {}B free: the next checkpoint may need {}B".format(
                folder, _si(free), _si(size)
            )
        )


def _si(number: float) -> str:
    """Format a number of bytes briefly.

    >>> _si(999), _si(1500), _si(21e9)
    ('999', '1.5K', '21G')
    """
    for unit in ("", "K", "M", "G", "T", "P"):
        if number < 1000 or unit == "P":
            text = "{:.1f}".format(number) if unit and number < 10 else "{:.0f}".format(number)
            return text + unit
        number /= 1000.0
    raise AssertionError


def mark_of(path: str) -> str:
    """Return a fingerprint of a checkpoint, since some programs overwrite the previous one."""
    if not path:
        return ""
    times = [os.lstat(path).st_mtime_ns] if os.path.isfile(path) else []
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                times.append(os.lstat(os.path.join(folder, name)).st_mtime_ns)
            except OSError:
                continue
    return "{} {}".format(path, max(times) if times else "")
