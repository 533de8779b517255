"""Run a training script until some steps of its optimizer are done, and record memory and time.

``hpcrun fit JOB --measure`` starts each rank of a job with this program, which runs the script
unchanged::

    python measure_step.py STEPS SCRIPT [ARGUMENT...]
    python measure_step.py STEPS -m MODULE [ARGUMENT...]

The record of a rank is ``measured/rank-RANK.json`` in the run's directory. After the last step the
process ends at once with exit code 0, so that nothing of the script that follows a step is run.
Until then Python code must not change files outside of the run's directory, caches and temporary
directories: checkpoints and outputs of the real run remain as they are.

Standard library and the script's own torch (2.0 and later); Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import platform
import resource
import runpy
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Iterator

# A rank that has finished waits this long for the others, whose last messages may need it.
WAIT_FOR_OTHERS_S = 60.0


class Recorder:
    """Counts the steps of a rank's optimizers, and ends the process after the last one."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.wanted = folder, steps
        self.rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
        self.world = int(os.environ.get("HPCRUN_WORLD_SIZE") or "1")
        self.begun = time.monotonic()
        self.counts: dict[int, int] = {}
        self.ends: list[float] = []
        self.has_engine = False
        # By optimizer, and by name.
        self.parts: dict[int, dict[str, int]] = {}
        self.peaks: dict[int, tuple[int, int]] = {}
        self.is_done = False

    # ---- steps ---------------------------------------------------------------------------------

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """Measure the gradients, which a script may free after the step."""
        gradients = [each.grad for each in list_parameters(optimizer) if each.grad is not None]
        if not self.has_engine:
            self.parts.setdefault(id(optimizer), {})["gradients"] = sum_bytes(gradients)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Count a step of an optimizer of torch. DeepSpeed's engine counts its own."""
        trained = list_parameters(optimizer)
        states = [value for state in optimizer.state.values() for value in list_tensors(state)]
        parts = self.parts.setdefault(id(optimizer), {})
        parts["optimizer"] = sum_bytes(states)
        parts["master weights" if self.has_engine else "parameters"] = sum_bytes(trained)
        if self.has_engine:
            return
        self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        # Several optimizers, as of a GAN: all that made a first step before any made its second.
        if self.counts[id(optimizer)] > len(self.ends):
            self.end_step()
        if min(self.counts.values()) >= self.wanted:
            self.finish("")

    def after_engine_step(self, engine: Any) -> None:
        """Count a step of DeepSpeed's engine that ends the accumulation of gradients."""
        shards = [getattr(each, "ds_tensor", each) for each in engine.module.parameters()]
        self.parts.setdefault(id(engine), {})["parameters"] = sum_bytes(shards)
        self.end_step()
        if len(self.ends) >= self.wanted:
            self.finish("")

    def end_step(self) -> None:
        """Note the time of a step, when the GPU has done it."""
        cuda = find_cuda()
        if cuda is not None:
            cuda.synchronize()
        self.ends.append(time.monotonic())

    # ---- the record ----------------------------------------------------------------------------

    def read_peaks(self) -> None:
        """Merge the peaks of torch's allocator on each GPU: bytes in tensors, bytes reserved."""
        cuda = find_cuda()
        for device in range(cuda.device_count() if cuda is not None else 0):
            known = self.peaks.get(device, (0, 0))
            peaks = cuda.max_memory_allocated(device), cuda.max_memory_reserved(device)
            if peaks[1]:
                self.peaks[device] = max(known[0], peaks[0]), max(known[1], peaks[1])

    def add_parts(self) -> dict[str, int]:
        """Add up the parts of all optimizers."""
        names = {name: 0 for parts in self.parts.values() for name in parts}
        return {name: sum(each.get(name, 0) for each in self.parts.values()) for name in names}

    def build_record(self, error: str) -> dict[str, Any]:
        """Return the record of this rank; sizes are in bytes."""
        self.read_peaks()
        times = [self.begun, *self.ends]
        found = {
            "rank": int(self.rank),
            "host": platform.node(),
            "error": error,
            "seconds": [round(end - start, 4) for start, end in zip(times, times[1:])],
            # Linux counts in kB.
            "host_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "parts": self.add_parts(),
        }
        torch = sys.modules.get("torch")
        if torch is not None:
            found["torch"] = str(torch.__version__)
        cuda = find_cuda()
        if cuda is not None and self.peaks:
            device = max(self.peaks, key=lambda each: self.peaks[each][1])
            free, total = cuda.mem_get_info(device)
            found.update(
                gpu=cuda.get_device_name(device),
                gpu_memory=total,
                peak_allocated=self.peaks[device][0],
                peak_reserved=self.peaks[device][1],
                # The CUDA context, NCCL, and other processes on this GPU.
                outside=max(total - free - cuda.memory_reserved(device), 0),
            )
        return found

    def finish(self, error: str) -> None:
        """Write the record, wait for the other ranks, and end the process."""
        if self.is_done:
            return
        self.is_done = True
        record = self.build_record(error)
        path = self.folder / f"rank-{self.rank}.json"
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(record) + "\n", encoding="utf-8")
        new.replace(path)
        sys.stdout.flush()
        sys.stderr.flush()
        if error:
            return
        deadline = time.monotonic() + WAIT_FOR_OTHERS_S
        while time.monotonic() < deadline:
            if len(list(self.folder.glob("rank-*.json"))) >= self.world:
                break
            time.sleep(0.2)
        os._exit(0)


def find_cuda() -> Any:
    """Return torch.cuda if the process uses a GPU."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def list_parameters(optimizer: Any) -> list[Any]:
    """List the tensors that an optimizer updates, also those that it has only states of."""
    listed = [each for group in optimizer.param_groups for each in group["params"]]
    listed += [each for each in optimizer.state if hasattr(each, "element_size")]
    return list({id(each): each for each in listed}.values())


def list_tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in a state of an optimizer."""
    if hasattr(value, "element_size"):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from list_tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from list_tensors(each)


def sum_bytes(tensors: list[Any]) -> int:
    """Sum up tensors of this rank: on its GPU, or in a process without one, in host memory."""
    local = [getattr(each, "_local_tensor", each) for each in tensors]
    if find_cuda() is not None:
        local = [each for each in local if each.device.type != "cpu"]
    return sum(each.numel() * each.element_size() for each in local)


# ---- imports of the script -----------------------------------------------------------------------


def hook_optimizers(module: Any) -> None:
    """Follow the steps of all optimizers of torch."""
    if not hasattr(module, "register_optimizer_step_post_hook"):
        sys.exit("hpcrun: fit --measure needs torch 2.0 or later")
    module.register_optimizer_step_pre_hook(RECORDER.before_step)
    module.register_optimizer_step_post_hook(RECORDER.after_step)


def hook_engine(module: Any) -> None:
    """Follow the steps of DeepSpeed's engine, whose optimizer may step several times in each."""
    kind = module.DeepSpeedEngine
    # The method that both its own step() and pipelines call, once for all accumulated passes.
    start, step = kind.__init__, kind._take_model_step

    @functools.wraps(start)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        RECORDER.has_engine = True
        start(self, *args, **kwargs)

    @functools.wraps(step)
    def _take_model_step(self: Any, *args: Any, **kwargs: Any) -> None:
        step(self, *args, **kwargs)
        RECORDER.after_engine_step(self)

    kind.__init__, kind._take_model_step = __init__, _take_model_step


def hook_peaks(module: Any) -> None:
    """Read the peaks before the script resets them."""
    for name in ("reset_peak_memory_stats", "reset_max_memory_allocated"):

        def build(original: Any) -> Any:
            @functools.wraps(original)
            def reset(*args: Any, **kwargs: Any) -> Any:
                RECORDER.read_peaks()
                return original(*args, **kwargs)

            return reset

        setattr(module, name, build(getattr(module, name)))


def hook_save(module: Any) -> None:
    """Check the file of torch.save, which libtorch opens."""
    save = module.save

    @functools.wraps(save)
    def check_and_save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        GUARD.check(f)
        return save(obj, f, *args, **kwargs)

    module.save = check_and_save


def hook_save_file(module: Any) -> None:
    """Check the file of safetensors.torch.save_file, which Rust opens."""
    save = module.save_file

    @functools.wraps(save)
    def check_and_save(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        GUARD.check(filename)
        return save(tensors, filename, *args, **kwargs)

    module.save_file = check_and_save


class Importer:
    """Calls a function after the import of each of these modules."""

    HOOKS: dict[str, Callable[[Any], None]] = {
        "torch.optim.optimizer": hook_optimizers,
        "torch.cuda.memory": hook_peaks,
        "torch.serialization": hook_save,
        "safetensors.torch": hook_save_file,
        "deepspeed.runtime.engine": hook_engine,
    }

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module through the other finders."""
        hook = self.HOOKS.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            hook(module)

        setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - of this loader alone
        return spec


# ---- files ---------------------------------------------------------------------------------------

# Variables with directories of caches, which any run of a script may fill.
CACHES = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE"),
    *("TRANSFORMERS_CACHE", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"),
    *("TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR", "MPLCONFIGDIR"),
)
# The same in the home directory.
HOME_CACHES = (".cache", ".config", ".triton", ".nv", ".deepspeed")
# Audit events of Python (docs.python.org, "Audit events table") with the paths that they change.
CHANGES = {
    **dict.fromkeys(("os.mkdir", "os.rmdir", "os.remove", "os.truncate", "os.chmod"), (0,)),
    **dict.fromkeys(("shutil.rmtree", "os.chown"), (0,)),
    **dict.fromkeys(("os.rename", "shutil.move"), (0, 1)),
    **dict.fromkeys(("os.link", "os.symlink"), (1,)),
}
# Where an event has the directories to which its paths are relative.
FOLDERS = {"os.mkdir": (2,), "os.rmdir": (1,), "os.remove": (1,), "os.rename": (2, 3)}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Guard:
    """Refuses changes of files outside of the run, caches and temporary directories."""

    def __init__(self, run_dir: Path, rank: str) -> None:
        self.report = run_dir / "measured" / f"refused-{rank}"
        home = os.path.expanduser("~")
        allowed = [str(run_dir), os.environ.get("HPCRUN_LOCAL_DIR", "")]
        allowed += [os.environ.get(name, "") for name in CACHES]
        allowed += [os.path.join(home, name) for name in HOME_CACHES]
        allowed += [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev", "/proc"]
        # The most specific directory decides.
        self.folders = {os.path.realpath(each): True for each in allowed if each}
        self.folders.update((os.path.realpath(each), False) for each in (os.getcwd(), home))

    def check_event(self, event: str, args: tuple[Any, ...]) -> None:
        """Check an audit event."""
        if event == "open":
            if args[2] & WRITING:
                self.check(args[0])
            return
        for index, place in enumerate(CHANGES.get(event, ())):
            folders = FOLDERS.get(event, ())
            folder = args[folders[index]] if index < len(folders) else -1
            path = args[place]
            if event == "os.mkdir" and os.path.isdir(path):
                continue  # fails, or is ignored with exist_ok
            self.check(path, folder)

    def check(self, path: Any, folder: int = -1) -> None:
        """Raise PermissionError for a path that the script must not change."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return  # an open file, which was checked when it was opened
        name = os.fsdecode(path)
        if folder is not None and folder >= 0:
            with contextlib.suppress(OSError):
                name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
        real = os.path.realpath(name)
        if self.is_allowed(real):
            return
        with contextlib.suppress(OSError):
            self.report.write_text(real + "\n", encoding="utf-8", errors="surrogateescape")
        raise PermissionError(f"hpcrun: fit --measure does not let the script change {real}")

    def is_allowed(self, real: str) -> bool:
        """Return True for a path in a directory that the script may change."""
        folder = real
        while folder not in self.folders and folder != "/":
            folder = os.path.dirname(folder)
        if self.folders.get(folder, False):
            return True
        with contextlib.suppress(OSError):
            kind = os.stat(real).st_mode
            return not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)  # a device or a pipe
        return False


RECORDER: Recorder
GUARD: Guard


def replace_first_folder(folder: Path) -> None:
    """Put a directory on the path instead of that of this program."""
    if not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH, since Python 3.11
        sys.path[0] = str(folder)


def main() -> None:
    """Run the script."""
    global RECORDER, GUARD
    if sys.version_info < (3, 8):
        sys.exit("hpcrun: fit --measure needs Python 3.8 or later in the job")
    steps, *words = sys.argv[1:]
    run_dir = Path(os.environ["HPCRUN_RUN_DIR"])
    folder = run_dir / "measured"
    folder.mkdir(exist_ok=True)
    sys.dont_write_bytecode = True  # in the project
    RECORDER = Recorder(folder, int(steps))
    GUARD = Guard(run_dir, RECORDER.rank)
    sys.addaudithook(GUARD.check_event)
    sys.meta_path.insert(0, Importer())
    process = os.getpid()
    error = "the script ended before"
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            replace_first_folder(Path.cwd())
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            replace_first_folder(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        error = f"the script ended before, with {end.code}"
        raise
    except BaseException as cause:
        error = f"{type(cause).__name__}: {cause}"
        raise
    finally:
        if os.getpid() == process:  # not a forked worker
            RECORDER.finish(error)


if __name__ == "__main__":
    main()
