"""Trace the memory of one training step of a model, without gradients and optimizer states.

A dispatch mode counts the bytes of all live storages that operations create. Models run under
FakeTensorMode, so nothing is allocated; ViT, whose forward reads a value, runs on real tensors.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hpcrun.workloads.trace_step import FP32_ON_GPUS, attend, to_fp32


class LiveStorages(TorchDispatchMode):  # type: ignore[misc]
    """Count the bytes of live storages, and their peak.

    Attributes:
        live: Bytes of all storages that operations created and that still exist.
        peak: The maximum of ``live``.
    """

    def __init__(self, existing: list[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in existing}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count its new storages."""
        outputs = function(*args, **(kwargs or {}))
        for output in tree_leaves(outputs):
            if isinstance(output, torch.Tensor):
                self._add(output.untyped_storage())
        return outputs

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.live += self._sizes[key]
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)


class AutocastOfGpus(TorchFunctionMode):  # type: ignore[misc]
    """Run operations in fp32 that autocast runs in fp32 on GPUs, but not on CPUs."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a function of torch."""
        kwargs = kwargs or {}
        if function is torch.nn.functional.scaled_dot_product_attention:
            return attend(*args[:3])
        if function in FP32_ON_GPUS:
            args, kwargs = tree_map(to_fp32, (args, kwargs))
            with torch.autocast("cpu", enabled=False):
                return function(*args, **kwargs)
        return function(*args, **kwargs)


def trace_peak(
    factory: str,
    config: Any,
    inputs: dict[str, tuple[tuple[int, ...], bool]],
    *,
    attention: str,
    checkpointing: bool,
    autocast: bool = False,
    real: bool = False,
) -> int:
    """Return the peak of activations, logits and transient tensors of a step in bf16.

    Weights are in bf16, or with autocast in fp32; then their 16-bit copies count too.

    Args:
        factory: The class of transformers that builds the model.
        inputs: Name, shape, and whether the numbers are floats.
    """
    kind = torch.float32 if autocast else torch.bfloat16
    with contextlib.nullcontext() if real else FakeTensorMode(allow_non_fake_inputs=True):
        model = getattr(transformers, factory).from_config(
            config, attn_implementation=attention, dtype=kind
        )
        model.train()
        if checkpointing:
            # Modes for functions do not apply to what the backward pass recomputes.
            contexts = (contextlib.nullcontext(), AutocastOfGpus()) if autocast else None
            model.gradient_checkpointing_enable(
                {"use_reentrant": False, "context_fn": lambda: contexts} if contexts else None
            )
        tensors = {
            name: torch.zeros(shape, dtype=kind if is_float else torch.long)
            for name, (shape, is_float) in inputs.items()
        }
        for parameter in model.parameters():
            if parameter.requires_grad:  # gradients are model states
                parameter.register_post_accumulate_grad_hook(
                    lambda tensor: setattr(tensor, "grad", None)
                )
        live = LiveStorages([*model.parameters(), *model.buffers(), *tensors.values()])
        with live, AutocastOfGpus() if autocast else contextlib.nullcontext():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                output = model(**tensors)
                loss = output.loss if "labels" in tensors else output.logits.float().mean()
            gc.collect()
            loss.backward()
    return live.peak
