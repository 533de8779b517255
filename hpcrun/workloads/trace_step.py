"""Trace the memory of the second training step of a script, without weights or a GPU.

Run in the Python of the job, which needs torch but not hpcrun::

    python trace_step.py REPORT.json SCRIPT.py [ARGUMENTS...]
    python trace_step.py REPORT.json -m MODULE [ARGUMENTS...]

Parameters, and all tensors that the script moves to a GPU, become fake tensors: they have a shape
and a format but no numbers. Operations on them are counted instead of computed. Other tensors, such
as those of data sets, are real. The process ends after the second step of the optimizer.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import sys
import sysconfig
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPUS = max(int(os.environ.get("HPCRUN_TRACE_GPUS_PER_NODE", "1")), 1)
WORLD_SIZE = max(int(os.environ.get("WORLD_SIZE", "1")), 1)
GPU_BYTES = int(os.environ.get("HPCRUN_TRACE_GPU_BYTES", str(80 * 2**30)))
FAKE = FakeTensorMode(allow_non_fake_inputs=True)
CPU = torch.device("cpu")
CUDA = torch.device("cuda:0")


class Ledger(TorchDispatchMode):
    """Count the bytes of live fake storages by role, and the peaks of a step.

    Attributes:
        other: Bytes of storages that are no parameter, gradient or optimizer state.
        peak: The maximum of ``other`` in this step before the optimizer.
        at_backward: ``other`` at the start of the backward pass.
        at_end: ``other`` when nearly all gradients exist.
        step_peak: The maximum of ``other`` while the optimizer runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.states: set[int] = set()
        self.other = 0
        self.optimizing = False
        self.depth = 0
        self.reset()

    def reset(self) -> None:
        """Start the peaks of the next step."""
        self.peak = self.at_backward = self.at_end = self.step_peak = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count its new storages."""
        kwargs = kwargs or {}
        if not any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
            return function(*args, **kwargs)
        LEDGER.depth += 1
        try:
            outputs = run_fake(function, args, kwargs)
        finally:
            LEDGER.depth -= 1
        for output in tree_leaves(outputs):
            if isinstance(output, FakeTensor):
                self.add(output)
        return outputs

    def add(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        self.sizes[key] = storage.nbytes()
        self.other += self.sizes[key]
        if self.optimizing:
            self.step_peak = max(self.step_peak, self.other)
        else:
            self.peak = max(self.peak, self.other)
        weakref.finalize(storage, self._remove, key)

    def mark(self, tensor: torch.Tensor) -> None:
        """Count a tensor as a state of the model instead of an activation."""
        if not isinstance(tensor, FakeTensor):
            return
        key = tensor.untyped_storage()._cdata
        self.add(tensor)
        if key not in self.states:
            self.states.add(key)
            self.other -= self.sizes[key]

    def _remove(self, key: int) -> None:
        size = self.sizes.pop(key, 0)
        if key in self.states:
            self.states.discard(key)
        else:
            self.other -= size


def fake_like(shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
    """Create a fake tensor."""
    with FAKE:
        return torch.empty(tuple(shape), dtype=dtype)


def _all_selected(indices: Any) -> list[Any]:
    """Replace boolean masks by indices of all elements, the largest result that is possible."""
    found: list[Any] = []
    for index in indices:
        if index is not None and index.dtype == torch.bool:
            found += [fake_like([index.numel()], torch.int64) for _ in range(index.dim())]
        else:
            found.append(index)
    return found


def run_fake(function: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on fake tensors; assume a result where it depends on their numbers."""
    aten = torch.ops.aten
    name = function.overloadpacket
    if name is aten._local_scalar_dense:
        return assumed_number(args[0])
    if name is aten.equal:
        return True
    if name is aten.nonzero:
        return fake_like([args[0].numel(), args[0].dim()], torch.int64)
    if name is aten.masked_select:
        return fake_like([args[1].numel()], args[0].dtype)
    indexes = name in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
    if indexes and any(each is not None and each.dtype == torch.bool for each in args[1]):
        args = (args[0], _all_selected(args[1]), *args[2:])
    if name in (aten._unique2, aten.unique_dim, aten.unique_consecutive):
        values = args[0]
        counts = fake_like([values.numel()], torch.int64)
        return (
            fake_like([values.numel()], values.dtype),
            fake_like(values.shape, torch.int64),
            counts,
        )
    return function(*args, **kwargs)


def assumed_number(tensor: Any) -> Any:
    """Return the number that replaces an element of a fake tensor."""
    if tensor.dtype == torch.bool:
        return getattr(tensor, "_assumed_true", False)
    return 1.0 if tensor.dtype.is_floating_point else 1


def is_cuda(value: Any) -> bool:
    """Tell whether a device or a string names a GPU; the numbers of devices count too."""
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


# Operations that autocast runs in fp32 on GPUs but not on CPUs (aten/src/ATen/autocast_mode.h,
# AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE).
FP32_ON_GPUS = {
    *(functional.layer_norm, functional.group_norm, functional.softmax, torch.softmax),
    *(torch.Tensor.softmax, functional.log_softmax, torch.log_softmax, torch.Tensor.log_softmax),
    *(functional.cross_entropy, functional.nll_loss, functional.mse_loss, functional.l1_loss),
    *(functional.smooth_l1_loss, functional.kl_div, functional.softplus, functional.normalize),
    *(torch.pow, torch.Tensor.pow, torch.Tensor.__pow__, torch.exp, torch.Tensor.exp, torch.log),
    *(torch.Tensor.log, torch.rsqrt, torch.Tensor.rsqrt, torch.sum, torch.Tensor.sum),
    *(torch.prod, torch.cumsum, torch.Tensor.cumsum, torch.norm, torch.Tensor.norm),
    functional.cosine_similarity,
}
_CONSTRUCTORS = set(_device_constructors()) - {torch.from_file}
_LIKE = {
    *(torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like, torch.rand_like),
    *(torch.randn_like, torch.randint_like),
    *(torch.Tensor.new_empty, torch.Tensor.new_zeros, torch.Tensor.new_ones),
    *(torch.Tensor.new_full, torch.Tensor.new_tensor),
}


class Devices(TorchFunctionMode):
    """Emulate GPUs: replace their tensors by fake ones, and their kernels by what those keep."""

    def __init__(self) -> None:
        super().__init__()
        self.default_is_cuda = False

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a function of torch."""
        kwargs = dict(kwargs or {})
        first = args[0] if args else None
        is_fake = isinstance(first, FakeTensor)
        name = getattr(function, "__name__", "")
        if name == "_parse_to" and type(first) is int:
            args = (CUDA, *args[1:])
        if function in _CONSTRUCTORS:
            return self._construct(function, args, kwargs)
        if function in _LIKE and "device" in kwargs:
            to_cuda = is_cuda(kwargs.pop("device"))
            with FAKE if to_cuda and not is_fake else contextlib.nullcontext():
                return function(*args, **kwargs)
        if isinstance(first, torch.Tensor):
            if function in (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu):
                return self._move(function, first, args[1:], kwargs)
            if is_fake and (found := self._read(function, name, first, args, kwargs)) is not None:
                return found[0]
            if function is torch.Tensor.pin_memory:
                return first
            if function is torch.Tensor.record_stream:
                return None
        if function is torch.Tensor.backward:
            if "gradient" in kwargs:
                kwargs["grad_tensors"] = kwargs.pop("gradient")
            with self:  # recomputed blocks and hooks run in the backward pass
                return torch.autograd.backward(first, *args[1:], **kwargs)
        if function in FP32_ON_GPUS and is_fake and is_autocasting():
            args, kwargs = tree_map(to_fp32, (args, kwargs))
            with torch.autocast("cpu", enabled=False):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    def _construct(self, function: Any, args: Any, kwargs: Any) -> Any:
        device = kwargs.pop("device", None)
        if function is torch.tensor or function is torch.as_tensor:
            made = function(*args, **kwargs)
            if (is_cuda(device) or self.default_is_cuda) and not isinstance(made, FakeTensor):
                return move(made)
            return made
        wanted = is_cuda(device) or (device is None and self.default_is_cuda)
        if wanted or isinstance(device, int):
            kwargs.pop("pin_memory", None)
            with FAKE:
                made = function(*args, **kwargs)
            LEDGER.add(made) if isinstance(made, torch.Tensor) else None
            return made
        if device is not None:
            kwargs["device"] = device
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    def _move(self, function: Any, tensor: torch.Tensor, args: Any, kwargs: Any) -> Any:
        """Run ``to``, ``cuda`` or ``cpu``; a fake tensor remains one on the CPU."""
        if function is torch.Tensor.cpu:
            return tensor
        if function is torch.Tensor.cuda:
            return move(tensor)
        kwargs.pop("non_blocking", None)
        device = kwargs.pop("device", None)
        rest = []
        for index, value in enumerate(args):
            if index == 0 and type(value) in (str, torch.device, int):
                device = value
            elif index == 0 and value is None:
                pass
            elif isinstance(value, FakeTensor):
                device = CUDA
                rest.append(value.dtype)
            elif type(value) is bool and index > 0:
                pass  # non_blocking and copy
            else:
                rest.append(value)
        wanted = is_cuda(device) or (type(device) is int)
        if device is not None and not wanted and str(device) == "meta":
            kwargs["device"] = device
        moved = move(tensor) if wanted else tensor
        return moved.to(*rest, **kwargs) if rest or kwargs else moved

    def _read(
        self, function: Any, name: str, tensor: Any, args: Any, kwargs: Any
    ) -> tuple[Any] | None:
        """Answer what depends on the numbers of a fake tensor; None if nothing does."""
        if name in ("__bool__", "__nonzero__", "item", "__float__", "__int__", "__index__"):
            number = assumed_number(tensor)
            kinds = {"__float__": float, "__int__": int, "__index__": int, "__bool__": bool}
            return (kinds.get(name, lambda it: it)(number),)
        if name == "tolist":
            return (to_numpy(tensor).tolist(),)
        if name in ("numpy", "__array__"):
            return (to_numpy(tensor),)
        if name == "__format__":
            return (format(assumed_number(tensor), args[1]) if tensor.dim() == 0 else "tensor",)
        if name == "__repr__":
            return (f"tensor(traced, shape={tuple(tensor.shape)}, dtype={tensor.dtype})",)
        if name in ("isfinite", "any", "all", "allclose", "__deepcopy__"):
            if name == "allclose":
                return (True,)
            if name == "__deepcopy__":
                copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
                if isinstance(tensor, nn.Parameter):
                    copied = nn.Parameter(copied.detach(), tensor.requires_grad)
                args[1][id(tensor)] = copied
                return (copied,)
            result = function(*args, **kwargs)
            result._assumed_true = name == "isfinite" or getattr(tensor, "_assumed_true", False)
            return (result,)
        if name == "type" and len(args) > 1 and isinstance(args[1], str):
            return (
                tensor.to(
                    getattr(torch, args[1].rpartition(".")[2].removesuffix("Tensor").lower())
                ),
            )
        return None


is_autocasting = torch.is_autocast_cpu_enabled


def to_fp32(value: Any) -> Any:
    """Convert a tensor of 16 bits to fp32."""
    is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_half else value


def to_numpy(tensor: Any) -> Any:
    """Return an array of ones in the shape of a fake tensor."""
    import numpy

    kind = tensor.dtype
    if kind == torch.bfloat16:
        raise TypeError("Got unsupported ScalarType BFloat16")
    return numpy.ones(tuple(tensor.shape), str(kind).removeprefix("torch."))


def move(tensor: torch.Tensor) -> torch.Tensor:
    """Return the fake tensor of a real one, as if it were on a GPU."""
    if isinstance(tensor, FakeTensor):
        return tensor
    found = fake_like(tensor.shape, tensor.dtype)
    if tensor.requires_grad:
        found.requires_grad_(True)
    LEDGER.add(found)
    return found


class _Attention(torch.autograd.Function):
    """A fused attention: it keeps queries, keys, values, the output and a log-sum-exp."""

    @staticmethod
    def forward(context: Any, query: Any, key: Any, value: Any) -> Any:
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        context.save_for_backward(query, key, value, output, sums)
        return output

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        query, key, value, *_ = context.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def attend(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
    """Compute a fused attention, in 16 bits under autocast."""
    if is_autocasting():
        kind = torch.get_autocast_dtype("cpu")
        query, key, value = (each.to(kind) for each in (query, key, value))
    return _Attention.apply(query, key, value)


def pretend_device() -> None:
    """Let fake tensors tell scripts that they are on a GPU, but not torch's own kernels."""
    device = FakeTensor.device.fget

    def get_device(self: Any) -> Any:
        return device(self) if LEDGER.depth else CUDA

    FakeTensor.device = property(get_device)
    FakeTensor.is_cuda = property(lambda _: True)


def replace_kernels() -> None:
    """Replace functions whose GPU kernels keep other tensors than their CPU kernels."""
    attention, dropout = functional.scaled_dot_product_attention, functional.dropout

    def scaled_dot_product_attention(query: Any, *args: Any, **kwargs: Any) -> Any:
        compute = attend if isinstance(query, FakeTensor) else attention
        return compute(query, *args, **kwargs)

    def drop(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not isinstance(input, FakeTensor):
            return dropout(input, p, training, inplace)
        # GPUs keep a mask of one byte per number.
        return torch.native_dropout(input, p, True)[0] if training and p else input

    functional.scaled_dot_product_attention = scaled_dot_product_attention
    functional.dropout = drop


class References:
    """Weak references to objects by identity, because tensors compare by their numbers."""

    def __init__(self) -> None:
        self._by_id: dict[int, weakref.ref[Any]] = {}

    def add(self, item: Any) -> None:
        """Add an object, until it is freed."""
        key = id(item)
        self._by_id[key] = weakref.ref(item, lambda _: self._by_id.pop(key, None))

    def __contains__(self, item: Any) -> bool:
        """Tell whether the object was added."""
        return id(item) in self._by_id

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the objects that still exist."""
        return iter([item for each in list(self._by_id.values()) if (item := each()) is not None])


LEDGER = Ledger()
DEVICES = Devices()
PARAMETERS = References()
MODULES = References()


class Report:
    """What the trace has found so far, and its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps = self.passes = 0
        self.before = 0
        self.hooked = References()
        self.strategy = "none"
        self.stage: int | None = None
        self.precision = ""
        self.notes: list[str] = []
        self.last: dict[str, Any] = {}
        self.checkpointing = False
        self.keeps_gradients: bool | None = None

    def start_forward(self) -> None:
        """Record whether gradients of the first step exist when the second one starts."""
        if self.steps and self.keeps_gradients is None:
            self.keeps_gradients = any(each.grad is not None for each in PARAMETERS)

    def start_backward(self) -> None:
        """Record what is live when a backward pass starts."""
        self.passes += 1
        if self.passes > 2:  # more accumulated passes need no more memory
            return
        gc.collect()
        for parameter in PARAMETERS:
            LEDGER.mark(parameter)
            if parameter.requires_grad and parameter.is_leaf and parameter not in self.hooked:
                self.hooked.add(parameter)
                parameter.register_post_accumulate_grad_hook(self._add_gradient)
        if self.steps == 0:
            LEDGER.peak = max(LEDGER.other, 0)
        LEDGER.at_backward = max(LEDGER.at_backward, LEDGER.other)

    def _add_gradient(self, parameter: Any) -> None:
        LEDGER.mark(parameter.grad)
        LEDGER.at_end = LEDGER.other

    def before_step(self) -> None:
        """Start to count what the optimizer creates."""
        for parameter in PARAMETERS:
            if parameter.grad is not None:
                LEDGER.mark(parameter.grad)
        LEDGER.step_peak = LEDGER.other
        self.before = LEDGER.other
        LEDGER.optimizing = True

    def after_step(self, optimizer: Any) -> None:
        """Record the step, and end the process after the second one."""
        LEDGER.optimizing = False
        self.passes = 0
        gc.collect()
        states = 0
        for state in optimizer.state.values():
            for value in tree_leaves(state):
                if isinstance(value, torch.Tensor):
                    LEDGER.mark(value)
                    states += value.numel() * value.element_size()
        self.last = self._collect(optimizer, states)
        self.steps += 1
        if self.steps >= 2:
            self.finish("")
        LEDGER.reset()

    def _collect(self, optimizer: Any, states: int) -> dict[str, Any]:
        trained = {
            id(each): each
            for group in optimizer.param_groups
            for each in group["params"]
            if each.requires_grad
        }
        frozen = [each for each in PARAMETERS if id(each) not in trained and not is_meta(each)]
        formats: dict[str, int] = {}
        for each in trained.values():
            kind = str(each.dtype).removeprefix("torch.")
            formats[kind] = formats.get(kind, 0) + each.numel()
        gradients = sum(
            each.grad.numel() * each.grad.element_size()
            for each in trained.values()
            if each.grad is not None
        )
        every = [*trained.values(), *frozen]
        return {
            "trained": sum(each.numel() for each in trained.values()),
            "trained_formats": formats,
            "frozen": sum(each.numel() for each in frozen),
            "frozen_bytes": sum(each.numel() * each.element_size() for each in frozen),
            "gradient_bytes": gradients,
            "optimizer": type(optimizer).__name__,
            "optimizer_bytes": states,
            "activations": LEDGER.at_backward,
            "peak": LEDGER.peak,
            "at_end": LEDGER.at_end,
            "step_temporary": max(LEDGER.step_peak - self.before, 0),
            "largest_parameter": max((each.numel() for each in every), default=0),
            "largest_layer": largest_layer(MODULES),
        }

    def finish(self, error: str, where: str = "") -> None:
        """Write the report, and end the process at once."""
        found = {
            "version": 1,
            "steps": self.steps,
            "error": error,
            "where": where,
            "strategy": self.strategy,
            "zero_stage": self.stage,
            "autocast": self.precision,
            "checkpointing": self.checkpointing,
            "keeps_gradients": bool(self.keeps_gradients),
            "torch": str(torch.__version__),
            "notes": self.notes,
            **self.last,
        }
        self.path.write_text(json.dumps(found, indent=1), encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if self.steps else 1)


def is_meta(tensor: Any) -> bool:
    """Tell whether a tensor has no numbers on any device."""
    return not isinstance(tensor, FakeTensor)


def largest_layer(modules: Iterable[Any]) -> int:
    """Count the parameters of the largest repeated block or single module."""
    largest = 0
    for module in modules:
        with contextlib.suppress(RuntimeError):
            own = sum(each.numel() for each in module._parameters.values() if each is not None)
            largest = max(largest, own)
            if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
                for child in module:
                    largest = max(largest, sum(each.numel() for each in child.parameters()))
    return largest


REPORT: Report


def patch(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute if it exists."""
    if hasattr(owner, name):
        setattr(owner, name, value)


def returning(value: Any) -> Callable[..., Any]:
    """Return a function that accepts all arguments and returns a value."""
    return lambda *_, **__: value


class _Idle:
    """Stand for streams, events and contexts of CUDA."""

    device = CUDA
    device_index = 0
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __call__(self, function: Any) -> Any:
        return function

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 1.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return returning(None)


def patch_cuda() -> None:
    """Emulate ``torch.cuda``."""
    cuda = torch.cuda
    properties = types.SimpleNamespace(
        name="traced GPU", total_memory=GPU_BYTES, major=8, minor=0, multi_processor_count=108
    )
    values = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "device_count": GPUS,
        "current_device": 0,
        "get_device_name": properties.name,
        "get_device_properties": properties,
        "get_device_capability": (8, 0),
        "get_arch_list": ["sm_80"],
        "mem_get_info": (GPU_BYTES, GPU_BYTES),
        "get_rng_state_all": [],
        "memory_stats": {},
        "memory_summary": "",
        "utilization": 0,
        "set_per_process_memory_fraction": None,
    }
    for name, value in values.items():
        setattr(cuda, name, returning(value))
    for name in (
        *("init", "_lazy_init", "set_device", "synchronize", "empty_cache", "ipc_collect"),
        *("manual_seed", "manual_seed_all", "seed", "seed_all", "reset_peak_memory_stats"),
        *("reset_max_memory_allocated", "reset_max_memory_cached", "set_rng_state"),
        *("set_rng_state_all", "set_stream", "reset_accumulated_memory_stats"),
    ):
        setattr(cuda, name, returning(None))
    for name in (
        *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
        *("memory_cached", "max_memory_cached"),
    ):
        setattr(cuda, name, lambda *_, **__: LEDGER.other)
    for name in ("Stream", "Event", "device", "stream", "StreamContext", "device_of"):
        setattr(cuda, name, _Idle)
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, _Idle)
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.nvtx = _Idle()
    torch.set_default_device = set_default_device
    torch.Generator = _Generator
    patch(torch.cuda.amp, "GradScaler", _Scaler)
    patch(torch.amp, "GradScaler", _Scaler)
    accelerator = getattr(torch, "accelerator", None)
    for name in dir(accelerator):
        if name[0] != "_" and isinstance(getattr(accelerator, name), types.FunctionType):
            setattr(accelerator, name, returning(None))
    patch(accelerator, "is_available", returning(True))
    patch(accelerator, "current_accelerator", returning(torch.device("cuda")))
    patch(accelerator, "device_count", returning(GPUS))
    patch(accelerator, "current_device_index", returning(0))
    patch(accelerator, "current_stream", _Idle)
    original = torch.autocast.__init__

    def start(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if is_cuda(device_type):
            if not args and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.float16  # the default on GPUs
            device_type = "cpu"
        original(self, device_type, *args, **kwargs)
        if self._enabled:
            REPORT.precision = str(self.fast_dtype).removeprefix("torch.")

    torch.autocast.__init__ = start
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        asked = getattr(torch, name, None)
        if asked is not None:
            setattr(torch, name, lambda *_, _asked=asked: _asked("cpu"))
    patch(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu"))
    patch(torch, "compile", lambda model=None, **_: model if model else lambda it: it)
    patch(nn.Module, "compile", returning(None))


class _Store:
    """A store in which all ranks have set what this rank has set."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.value: Any = b""

    def set(self, _: str, value: Any) -> None:
        self.value = value.encode() if isinstance(value, str) else value

    def get(self, _: str) -> Any:
        return self.value

    def wait(self, *_: Any) -> None:
        pass

    def add(self, _: str, amount: int) -> int:
        return WORLD_SIZE * amount


class _Generator(torch._C.Generator):
    """A generator on the CPU, whatever device is asked for."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, device="cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _Scaler:
    """A gradient scaler that scales nothing."""

    def __init__(self, *_: Any, **settings: Any) -> None:
        self._enabled = settings.get("enabled", True)

    def scale(self, loss: Any) -> Any:
        return loss

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    def unscale_(self, *_: Any) -> None:
        pass

    def update(self, *_: Any) -> None:
        pass

    def get_scale(self) -> float:
        return 1.0

    def is_enabled(self) -> bool:
        return bool(self._enabled)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: Any) -> None:
        pass


def set_default_device(device: Any) -> None:
    """Remember the default device of new tensors."""
    DEVICES.default_is_cuda = is_cuda(device)


def patch_modules() -> None:
    """Make parameters fake when they are created, and follow steps of optimizers."""
    create = nn.Parameter.__new__

    def new_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        is_real = isinstance(data, torch.Tensor) and not isinstance(data, FakeTensor)
        if is_real and data.device.type != "meta":
            data = fake_like(data.shape, data.dtype)
        made = create(cls, data, requires_grad)
        if isinstance(made, FakeTensor):
            PARAMETERS.add(made)
            LEDGER.mark(made)
        return made

    nn.Parameter.__new__ = staticmethod(new_parameter)
    start = nn.Module.__init__

    def new_module(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        MODULES.add(self)

    nn.Module.__init__ = new_module
    nn.Module._apply = apply_to_module
    load = nn.Module.load_state_dict

    def load_state(self: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        return (
            returning(None)()
            if isinstance(state, _NoWeights)
            else load(self, state, *args, **kwargs)
        )

    nn.Module.load_state_dict = load_state
    backward = torch.autograd.backward

    def start_backward(*args: Any, **kwargs: Any) -> Any:
        REPORT.start_backward()
        return backward(*args, **kwargs)

    torch.autograd.backward = start_backward
    nn.modules.module.register_module_forward_pre_hook(lambda *_: REPORT.start_forward())
    patch(torch.hub, "load_state_dict_from_url", returning(_NoWeights()))
    patch(torch, "save", returning(None))
    from torch.optim import optimizer

    optimizer.register_optimizer_step_pre_hook(lambda *_: REPORT.before_step())
    optimizer.register_optimizer_step_post_hook(lambda it, *_: REPORT.after_step(it))
    from torch.utils import checkpoint

    recompute = checkpoint.checkpoint

    def note_checkpoint(*args: Any, **kwargs: Any) -> Any:
        REPORT.checkpointing = True
        kwargs["preserve_rng_state"] = False
        return recompute(run_emulated(args[0]), *args[1:], **kwargs)

    def run_emulated(function: Any) -> Any:
        """Emulate GPUs also when the backward pass runs the block again."""

        def run(*args: Any, **kwargs: Any) -> Any:
            active = any(mode is DEVICES for mode in _get_current_function_mode_stack())
            with contextlib.nullcontext() if active else DEVICES:
                return function(*args, **kwargs)

        return run

    checkpoint.checkpoint = note_checkpoint
    torch.nn.utils.clip_grad_norm_ = clip_gradients
    from torch.utils import data

    create_loader = data.DataLoader.__init__

    def new_loader(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor"):
            kwargs.pop(name, None)
        kwargs.pop("multiprocessing_context", None)
        create_loader(self, *args[:5], **kwargs)

    data.DataLoader.__init__ = new_loader


def apply_to_module(self: Any, function: Any, recurse: bool = True) -> Any:
    """Convert the tensors of a module in place; torch cannot swap fake ones with references."""
    if recurse:
        for child in self.children():
            child._apply(function)
    with torch.no_grad():
        for parameter in self._parameters.values():
            if parameter is not None:
                parameter.data = function(parameter).detach()
                LEDGER.mark(parameter)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = function(buffer)
    return self


class _NoWeights(dict):  # type: ignore[type-arg]
    """Stand for weights that are not downloaded."""


def clip_gradients(parameters: Any, *_: Any, **__: Any) -> Any:
    """Return a norm; clipping needs no lasting memory."""
    return fake_like((), torch.float32)


def patch_distributed() -> None:
    """Emulate a process group of which this process is rank 0."""
    dist = torch.distributed
    if not dist.is_available():
        return
    state = {"ready": False}

    def start(*_: Any, **__: Any) -> None:
        state["ready"] = True

    def copy(outputs: Any, value: Any, *_: Any, **__: Any) -> None:
        for index in range(len(outputs)):
            outputs[index] = value

    values: dict[str, Any] = {
        "init_process_group": start,
        "is_initialized": lambda: state["ready"],
        "get_rank": returning(0),
        "get_world_size": returning(WORLD_SIZE),
        "get_backend": returning("nccl"),
        "get_node_local_rank": returning(0),
        "new_group": returning(None),
        "destroy_process_group": returning(None),
        "all_gather_object": copy,
        "gather_object": lambda value, outputs=None, *_, **__: copy(outputs or [], value),
        "is_nccl_available": returning(True),
        "_get_default_store": _Store,
        "PrefixStore": lambda _, store: store,
        "TCPStore": _Store,
        "FileStore": _Store,
        "monitored_barrier": returning(None),
        "get_global_rank": lambda group, rank: rank,
        "get_process_group_ranks": lambda group: list(range(WORLD_SIZE)),
    }
    for name in (
        *("all_reduce", "reduce", "broadcast", "barrier", "broadcast_object_list", "all_gather"),
        *("all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "gather", "scatter"),
        *("all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv"),
    ):
        values[name] = returning(_Idle())
    for owner in (dist, dist.distributed_c10d):
        for name, value in values.items():
            patch(owner, name, value)
    nn.parallel.DistributedDataParallel = wrapper("ddp")
    nn.parallel.distributed.DistributedDataParallel = nn.parallel.DistributedDataParallel
    nn.DataParallel = nn.parallel.DataParallel = wrapper("none")
    with contextlib.suppress(ImportError):
        from torch.distributed import fsdp

        for name in ("FullyShardedDataParallel", "fully_shard"):
            if hasattr(fsdp, name):
                made = wrapper("fsdp")
                setattr(
                    fsdp, name, made if name[0] == "F" else lambda it, *_, **__: note("fsdp", it)
                )


def note(strategy: str, module: Any) -> Any:
    """Remember how a module is distributed."""
    if strategy != "none":
        REPORT.strategy = strategy
    return module


def wrapper(strategy: str) -> Any:
    """Return a class that wraps a module as DDP does, without communication."""

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module, *_: Any, **__: Any) -> None:
            super().__init__()
            self.module = note(strategy, module)
            self.require_backward_grad_sync = True

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            yield

        def clip_grad_norm_(self, *_: Any, **__: Any) -> Any:
            return fake_like((), torch.float32)

    Wrapper.__name__ = Wrapper.__qualname__ = {
        "ddp": "DistributedDataParallel",
        "fsdp": "FullyShardedDataParallel",
    }.get(strategy, "DataParallel")
    return Wrapper


class Engine(nn.Module):
    """Stand for DeepSpeed's engine: the model in its format, and steps of its optimizer."""

    def __init__(self, model: nn.Module, optimizer: Any, config: dict[str, Any]) -> None:
        super().__init__()
        self.module = model
        self.config = config
        REPORT.strategy = "deepspeed"
        zero = config.get("zero_optimization")
        REPORT.stage = int(zero.get("stage", 0)) if isinstance(zero, dict) else 0
        self.dtype = torch.float32
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            section = config.get(name)
            if isinstance(section, dict) and section.get("enabled") is True:
                self.dtype = dtype
                model.to(dtype)
        self.optimizer = optimizer
        self.device = CUDA
        self.local_rank = self.global_rank = 0
        self.world_size = self.dp_world_size = WORLD_SIZE
        self.global_steps = self.micro_steps = self.skipped_steps = self.global_samples = 0
        accumulation = config.get("gradient_accumulation_steps")
        self.accumulation = accumulation if isinstance(accumulation, int) else 1
        self.lr_scheduler: Any = None
        self.training_dataloader: Any = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the model, or a function that does nothing."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("module")
            if module is not None and hasattr(module, name):
                return getattr(module, name)
            if name.startswith("__"):
                raise
            return {
                "train_micro_batch_size_per_gpu": returning(
                    self.config.get("train_micro_batch_size_per_gpu", 1)
                ),
                "train_batch_size": returning(self.config.get("train_batch_size", 1)),
                "gradient_accumulation_steps": returning(self.accumulation),
                "zero_optimization_stage": returning(REPORT.stage),
                "get_lr": returning([0.0]),
                "get_global_grad_norm": returning(1.0),
                "load_checkpoint": returning((None, {})),
                "no_sync": contextlib.nullcontext,
                "bfloat16_enabled": returning(self.dtype == torch.bfloat16),
                "fp16_enabled": returning(self.dtype == torch.float16),
            }.get(name, returning(None))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; DeepSpeed casts floating inputs to its format in fp16 and bf16."""
        return self.module(*args, **kwargs)

    def backward(self, loss: Any, *_: Any, **__: Any) -> Any:
        """Run the backward pass."""
        loss.backward()
        return loss

    def is_gradient_accumulation_boundary(self) -> bool:
        """Tell whether the next step updates the weights."""
        return (self.micro_steps + 1) % self.accumulation == 0

    def step(self, *_: Any, **__: Any) -> None:
        """Update the weights after the last of the accumulated passes."""
        self.micro_steps += 1
        if self.micro_steps % self.accumulation == 0:
            self.global_steps += 1
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.lr_scheduler is not None:
                self.lr_scheduler.step()


def start_deepspeed(
    args: Any = None,
    model: Any = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    config: Any = None,
    config_params: Any = None,
    collate_fn: Any = None,
    **_: Any,
) -> tuple[Any, Any, Any, Any]:
    """Stand for ``deepspeed.initialize``."""
    found = config or config_params or getattr(args, "deepspeed_config", None) or {}
    if isinstance(found, str | os.PathLike):
        found = json.loads(Path(found).read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        found = dict(getattr(found, "_param_dict", {}))
    if callable(optimizer) and not hasattr(optimizer, "step"):
        optimizer = optimizer(list(model.parameters()))
    engine = Engine(model, optimizer, found)
    if optimizer is None or type(optimizer).__module__.startswith("accelerate"):
        trained = [
            each
            for each in model_parameters or model.parameters()
            if isinstance(each, dict) or each.requires_grad
        ]
        engine.optimizer = torch.optim.AdamW(trained, lr=1e-4)
    scheduler = lr_scheduler(engine.optimizer) if callable(lr_scheduler) else lr_scheduler
    engine.lr_scheduler = scheduler
    loader = None
    if training_data is not None:
        size = found.get("train_micro_batch_size_per_gpu", 1)
        loader = torch.utils.data.DataLoader(training_data, batch_size=size, collate_fn=collate_fn)
    return engine, engine.optimizer, loader, scheduler


def patch_deepspeed(module: Any) -> None:
    """Replace DeepSpeed's engine and its optimizers, which need compiled operators."""
    module.initialize = start_deepspeed
    module.init_distributed = lambda *_, **__: torch.distributed.init_process_group()
    with contextlib.suppress(AttributeError):
        module.zero.Init = _Idle
        module.zero.GatheredParameters = _Idle
        module.comm.init_distributed = module.init_distributed
        for name, value in (
            ("is_initialized", returning(True)),
            ("get_rank", returning(0)),
            ("get_world_size", returning(WORLD_SIZE)),
            ("barrier", returning(None)),
            ("all_reduce", returning(None)),
            ("broadcast", returning(None)),
        ):
            setattr(module.comm, name, value)
    with contextlib.suppress(ImportError, AttributeError):
        from deepspeed.ops import adam

        adam.FusedAdam = adam.DeepSpeedCPUAdam = _Adam
    with contextlib.suppress(ImportError, AttributeError):
        module.checkpointing.checkpoint = lambda function, *args: torch.utils.checkpoint.checkpoint(
            function, *args, use_reentrant=True
        )


class _Adam(torch.optim.AdamW):
    """Stand for DeepSpeed's Adam."""

    def __init__(self, parameters: Any, lr: float = 1e-3, **_: Any) -> None:
        super().__init__(parameters, lr=lr)


def patch_transformers(module: Any) -> None:
    """Build models from their configuration instead of loading weights."""
    from transformers import AutoConfig, PreTrainedModel

    @classmethod  # type: ignore[misc]
    def build(cls: Any, name: Any = None, *_: Any, config: Any = None, **kwargs: Any) -> Any:
        known = {key: kwargs[key] for key in ("subfolder", "cache_dir") if key in kwargs}
        loader = cls.config_class or AutoConfig
        config = loader.from_pretrained(name, **known) if config is None else config
        dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
        if isinstance(dtype, str):
            dtype = (
                getattr(torch, dtype, None) if dtype != "auto" else getattr(config, "dtype", None)
            )
        attention = kwargs.get("attn_implementation")
        if attention and "flash" in attention:
            attention = "sdpa"
        if kwargs.get("quantization_config") or kwargs.get("load_in_4bit"):
            REPORT.notes.append("the model is traced without its quantization")
        for key, value in kwargs.items():
            if hasattr(config, key) and key not in ("dtype", "torch_dtype"):
                setattr(config, key, value)
        options = {"attn_implementation": attention} if attention else {}
        model = cls._from_config(config, dtype=dtype or torch.float32, **options)
        model.eval()
        loading = kwargs.get("output_loading_info")
        return (model, {}) if loading else model

    PreTrainedModel.from_pretrained = build
    with contextlib.suppress(ImportError, AttributeError):
        from transformers import Trainer

        for name in ("save_model", "_save_checkpoint", "_load_optimizer_and_scheduler", "evaluate"):
            patch(Trainer, name, returning({}))


def patch_diffusers(module: Any) -> None:
    """Build models from their configuration instead of loading weights."""
    from diffusers.models.modeling_utils import ModelMixin

    @classmethod  # type: ignore[misc]
    def build(cls: Any, name: Any, *_: Any, subfolder: Any = None, **kwargs: Any) -> Any:
        model = cls.from_config(cls.load_config(name, subfolder=subfolder))
        dtype = kwargs.get("torch_dtype")
        return model.to(dtype) if dtype is not None else model

    ModelMixin.from_pretrained = build


def patch_timm(module: Any) -> None:
    """Create models without their weights."""
    create = module.create_model

    def build(*args: Any, **kwargs: Any) -> Any:
        kwargs["pretrained"] = False
        return create(*args, **kwargs)

    module.create_model = build


def patch_accelerate(module: Any) -> None:
    """Let Accelerate clip and gather without numbers."""
    from accelerate import Accelerator

    Accelerator.clip_grad_norm_ = lambda self, *_, **__: fake_like((), torch.float32)
    Accelerator.save_state = returning(None)
    Accelerator.gather = lambda self, value: value
    Accelerator.gather_for_metrics = lambda self, value, *_, **__: value
    Accelerator.reduce = lambda self, value, *_, **__: value
    Accelerator.wait_for_everyone = returning(None)


def patch_torchvision(module: Any) -> None:
    """Replace data sets that are not on this machine by random images of the same size."""
    from torchvision import datasets

    sizes = {
        "MNIST": (60000, (1, 28, 28), 10),
        "FashionMNIST": (60000, (1, 28, 28), 10),
        "CIFAR10": (50000, (3, 32, 32), 10),
        "CIFAR100": (50000, (3, 32, 32), 100),
        "ImageFolder": (100000, (3, 256, 256), 1000),
        "ImageNet": (100000, (3, 256, 256), 1000),
    }
    for name, (count, size, classes) in sizes.items():
        setattr(datasets, name, _images(datasets, name, count, size, classes))


def _images(datasets: Any, name: str, count: int, size: Any, classes: int) -> Any:
    original = getattr(datasets, name)

    def open_or_make(root: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = {key: value for key, value in kwargs.items() if key != "download"}
        try:
            return original(root, *args, **wanted)
        except (RuntimeError, OSError):
            remember(f"{name} is not on this machine: random images of {size[1]} x {size[2]}")
            options = {
                key: kwargs[key] for key in ("transform", "target_transform") if key in kwargs
            }
            transform = next((each for each in args if callable(each)), None)
            made = datasets.FakeData(count, size, classes, **({"transform": transform} | options))
            made.classes = [str(index) for index in range(classes)]
            return made

    return open_or_make


def patch_numpy(module: Any) -> None:
    """Replace files of tokens that are not on this machine by zeros."""
    open_file = module.memmap

    def open_or_make(path: Any, dtype: Any = "uint8", mode: str = "r+", **kwargs: Any) -> Any:
        try:
            return open_file(path, dtype=dtype, mode=mode, **kwargs)
        except FileNotFoundError:
            remember(f"{path} is not on this machine: a million zeros")
            return module.zeros(kwargs.get("shape") or 1_000_000, dtype)

    module.memmap = open_or_make


def remember(text: str) -> None:
    """Add a note to the report, once."""
    if text not in REPORT.notes:
        REPORT.notes.append(text)


class _Silent:
    """An object that accepts everything and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


def patch_wandb(module: Any) -> None:
    """Log nothing."""
    for name in ("init", "log", "watch", "finish", "save", "define_metric"):
        patch(module, name, _Silent())


PATCHES: dict[str, Callable[[Any], None]] = {
    "deepspeed": patch_deepspeed,
    "transformers": patch_transformers,
    "diffusers": patch_diffusers,
    "accelerate": patch_accelerate,
    "timm": patch_timm,
    "torchvision": patch_torchvision,
    "wandb": patch_wandb,
}


class Importer(importlib.abc.MetaPathFinder):
    """Patch libraries when the script imports them."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Find a library, and patch it after it was loaded."""
        if name not in PATCHES:
            return None
        change = PATCHES[name]
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def load(module: Any) -> None:
            with torch._C.DisableTorchFunction():
                execute(module)
            change(module)

        spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec


def describe_error(error: BaseException) -> tuple[str, str]:
    """Return an error's text, and the last line of the user's code before it."""
    libraries = {
        sysconfig.get_path("purelib"),
        sysconfig.get_path("stdlib"),
        str(Path(torch.__file__).parents[1]),
    }
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        each
        for each in frames
        if not each.filename.startswith(("<", *(str(path) for path in libraries)))
        and Path(each.filename) != Path(__file__)
    ]
    where = f"{own[-1].filename}:{own[-1].lineno}" if own else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}".rstrip(": "), where


def main() -> None:
    """Run the script."""
    global REPORT
    path, *words = sys.argv[1:]
    warnings.filterwarnings("ignore", message=".*is_autocast_cpu_enabled")
    REPORT = Report(Path(path))
    os.environ.update(
        HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", WANDB_MODE="disabled", TQDM_DISABLE="1",
        TOKENIZERS_PARALLELISM="false", MASTER_ADDR="127.0.0.1", MASTER_PORT="1", RANK="0",
        LOCAL_RANK="0", WORLD_SIZE=str(WORLD_SIZE), LOCAL_WORLD_SIZE=str(GPUS),
        CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    patch_cuda()
    pretend_device()
    replace_kernels()
    patch_modules()
    patch_distributed()
    with contextlib.suppress(ImportError):
        import numpy

        patch_numpy(numpy)
    sys.meta_path.insert(0, Importer())
    try:
        with LEDGER, DEVICES:
            if words[0] == "-m":
                sys.argv = words[1:]
                sys.path.insert(0, str(Path.cwd()))
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv = words
                sys.path.insert(0, str(Path(words[0]).resolve().parent))
                runpy.run_path(words[0], run_name="__main__")
        REPORT.finish("" if REPORT.steps else "the script ended before a step of an optimizer")
    except SystemExit as error:
        REPORT.finish(
            "" if REPORT.steps else f"the script ended before a step of an optimizer: {error.code}"
        )
    except BaseException as error:
        traceback.print_exc()
        REPORT.finish(*describe_error(error))


if __name__ == "__main__":
    main()
