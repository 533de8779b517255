"""The checks of a rank: compare its training with the job, and record its usage.

``rank_start.py`` loads this module from ``hook.pyz`` when the rank imports the first of the modules
that are checked. Standard library only; Python 3.6 and later.
"""

import contextlib
import functools
import importlib.util
import json
import os
import sys
import time
from typing import Any, Dict, List, Tuple

# The ranks of these communicate without torch.distributed.
OTHER_MEANS = ("horovod", "mpi4py", "ray", "jax", "tensorflow")
APART = (
    "hpcrun: {found}, and the job has {world} ranks: each would train by itself, and write over "
    "the others' checkpoints. A script that takes its ranks from Slurm needs launcher: srun. If "
    "the ranks are to train apart: preflight: false"
)


def world_size() -> int:
    """Return the number of the job's ranks."""
    return int(os.environ.get("HPCRUN_WORLD_SIZE", "1"))


# ---- torch.distributed, torch.optim, Lightning ---------------------------------------------------


def check_process_group(module: Any) -> None:
    """Raise an error for a process group whose size differs from the job's."""
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        size = module.get_world_size()
        if size != world_size():
            found = "this process group has {} rank{}".format(size, "" if size == 1 else "s")
            raise RuntimeError(APART.format(found=found, world=world_size()))
        note_joined()
        return made

    module.init_process_group = init_process_group


def note_joined() -> None:
    """Record that the ranks form a group, for the check of the logs (lone_ranks.py)."""
    with contextlib.suppress(KeyError, OSError):
        attempt = "{HPCRUN_RUN_DIR}/attempts/{HPCRUN_ATTEMPT}".format_map(os.environ)
        if world_size() > 1 and os.environ["RANK"] == "0":
            open(attempt + "/joined", "w").close()


def check_first_step(module: Any) -> None:
    """Raise an error at an optimizer's first step in a rank without a process group."""
    register = getattr(module, "register_optimizer_step_pre_hook", None)  # since torch 2.0
    if register is None or world_size() == 1:
        return

    checked = []  # type: List[bool]

    def before_step(*_: Any) -> None:
        # The hook is not removed, because torch is iterating over all hooks here.
        if checked:
            return
        checked.append(True)
        distributed = sys.modules.get("torch.distributed")
        joined = distributed is not None and distributed.is_initialized()
        if not joined and not any(name in sys.modules for name in OTHER_MEANS):
            raise RuntimeError(
                APART.format(found="this rank trains without a process group", world=world_size())
            )

    register(before_step)


def check_lightning(module: Any) -> None:
    """Raise an error for a Lightning Trainer whose size differs from the job's."""
    original = module.Trainer.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        size = self.world_size
        if size != world_size():
            found = "Lightning's Trainer has {} rank{}".format(size, "" if size == 1 else "s")
            hint = " Trainer(num_nodes=..., devices=...) takes {nodes} and {ranks_per_node}."
            raise RuntimeError(APART.format(found=found, world=world_size()) + hint)

    module.Trainer.__init__ = __init__


# ---- DeepSpeed -----------------------------------------------------------------------------------


def check_engine(module: Any) -> None:
    """Compare the configuration of a DeepSpeed engine that trains with the job's."""
    original = module.DeepSpeedEngine.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        config = kwargs.get("config_class")
        trains = kwargs.get("optimizer") is not None or getattr(config, "optimizer_name", None)
        if config is not None and trains:
            report(differences(config, job_config()))
        original(self, *args, **kwargs)

    module.DeepSpeedEngine.__init__ = __init__


def job_config() -> Dict[str, Any]:
    """Load the job's DeepSpeed JSON; empty if there is none."""
    try:
        with open(os.environ["HPCRUN_DEEPSPEED_CONFIG"], encoding="utf-8") as file:
            config = json.load(file)
            return config if isinstance(config, dict) else {}
    except (KeyError, OSError, ValueError):
        return {}


def differences(config: Any, job: Dict[str, Any]) -> List[Tuple[str, Any, Any]]:
    """List the differences of a DeepSpeedConfig to the job's JSON: name, its value, the job's."""
    zero = getattr(config, "zero_config", None)
    found = {
        name: getattr(config, name, None)
        for name in (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        )
    }
    wanted = {name: job.get(name) for name in found}
    section = job.get("zero_optimization") or {}
    stage = getattr(zero, "stage", None)
    found["ZeRO stage"] = None if stage is None else int(stage)
    wanted["ZeRO stage"] = section.get("stage")
    for part in ("offload_optimizer", "offload_param"):
        if zero is not None and hasattr(zero, part):
            device = getattr(getattr(zero, part), "device", None)
            found[part] = str(getattr(device, "value", device) or "none")
            wanted[part] = (section.get(part) or {}).get("device", "none")
    for name, attribute in (("bf16", "bfloat16_config"), ("fp16", "float16_config")):
        enabled = getattr(getattr(config, attribute, None), "enabled", None)
        found[name] = enabled
        wanted[name] = (job.get(name) or {}).get("enabled", False if job else None)
    return [
        (name, found[name], value)
        for name, value in wanted.items()
        if value not in (None, "auto") and found[name] not in (None, "auto", value)
    ]


def report(found: List[Tuple[str, Any, Any]]) -> None:
    """Stop if the framework should have used the job's configuration, else warn."""
    if not found:
        return
    listed = ", ".join("{} {} (job: {})".format(*each) for each in found)
    text = (
        f"hpcrun: the script trains with another DeepSpeed configuration than the job's: {listed}. "
        "Take the script's own out, or the job's deepspeed section"
    )
    if "ACCELERATE_DEEPSPEED_CONFIG_FILE" in os.environ:
        raise RuntimeError(text)
    if os.environ.get("RANK") == "0":
        sys.stderr.write("warning: " + text + "\n")


# ---- usage ---------------------------------------------------------------------------------------

# The record is also written while data is loaded, because a process that is killed runs no exit
# handlers: after 1, 2, 4 ... seconds, and then at this interval.
USAGE_INTERVAL_S = 60.0


class Usage:
    """The GPU memory of this rank, and the time that it waited for its data loaders."""

    def __init__(self) -> None:
        self.peaks = {}  # type: Dict[int, Tuple[int, int]]
        self.batches = 0
        self.data_seconds = 0.0
        self.begun = self.ended = self.due = 0.0

    def read_peaks(self) -> None:
        """Merge the peaks of torch's allocator: bytes in tensors, and bytes reserved for them."""
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return
        for device in range(cuda.device_count()):
            known = self.peaks.get(device, (0, 0))
            peaks = cuda.max_memory_allocated(device), cuda.max_memory_reserved(device)
            if peaks[1]:
                self.peaks[device] = max(known[0], peaks[0]), max(known[1], peaks[1])

    def add_batch(self, begun: float, ended: float) -> None:
        """Count a batch that the script waited for; the first one starts the workers."""
        if not self.batches:
            self.begun = ended
        else:
            self.data_seconds += ended - begun
        self.batches += 1
        self.ended = ended
        if ended >= self.due:
            self.due = ended + min(USAGE_INTERVAL_S, max(1.0, ended - self.begun))
            self.write()

    def record(self) -> Dict[str, Any]:
        """Return the record; empty if nothing was measured."""
        found = {}  # type: Dict[str, Any]
        if self.peaks:
            device = max(self.peaks, key=lambda each: self.peaks[each][1])
            allocated, reserved = self.peaks[device]
            properties = sys.modules["torch"].cuda.get_device_properties(device)
            found.update(
                peak_allocated=allocated,
                peak_reserved=reserved,
                gpu=str(properties.name),
                gpu_memory=int(properties.total_memory),
            )
        if self.batches > 1:
            found.update(
                batches=self.batches,
                data_seconds=round(self.data_seconds, 3),
                loop_seconds=round(self.ended - self.begun, 3),
            )
        return found

    def write(self) -> None:
        """Write the record to the attempt's directory; errors must not disturb the training."""
        if os.environ.get("HPCRUN_RANK_HOOK") != str(os.getpid()):  # a forked child process
            return
        with contextlib.suppress(Exception):  # the interfaces of torch differ between versions
            self.read_peaks()
            found = self.record()
            if not found:
                return
            folder = "{}/attempts/{}/usage".format(
                os.environ["HPCRUN_RUN_DIR"], os.environ["HPCRUN_ATTEMPT"]
            )
            os.makedirs(folder, exist_ok=True)
            path = "{}/rank-{}.json".format(folder, os.environ["RANK"])
            with open(path + ".new", "w", encoding="utf-8") as file:
                json.dump(found, file)
            os.replace(path + ".new", path)


USAGE = Usage()


def keep_peaks(module: Any) -> None:
    """Read the peaks of GPU memory before the script resets them."""

    def build(original: Any) -> Any:
        @functools.wraps(original)
        def reset(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # as in Usage.write()
                USAGE.read_peaks()
            return original(*args, **kwargs)

        return reset

    for name in ("reset_peak_memory_stats", "reset_max_memory_allocated"):
        setattr(module, name, build(getattr(module, name)))


def time_loading(module: Any) -> None:
    """Measure how long the script waits for each batch of a data loader."""
    kind = module._BaseDataLoaderIter
    original = kind.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        begun = time.monotonic()
        batch = original(self)
        USAGE.add_batch(begun, time.monotonic())
        return batch

    kind.__next__ = __next__
    if hasattr(kind, "next"):
        kind.next = __next__


# ---- import hook ---------------------------------------------------------------------------------


def find_checked_module(name: str, check: str) -> Any:
    """Find a module through the other finders; the function of this name runs after its import."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return spec
    original = spec.loader.exec_module

    def exec_module(module: Any) -> None:
        original(module)
        try:
            globals()[check](module)
        except (AttributeError, TypeError) as error:  # a version with another interface
            sys.stderr.write(f"hpcrun: {name} is not checked: {error}\n")

    setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - of this loader alone
    return spec
