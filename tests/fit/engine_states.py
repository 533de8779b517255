"""Train two steps with real DeepSpeed engines on CPU ranks, and print the live tensors by role.

Reads a JSON list of cases: {"name", "config", "ranks", "hidden", "layers"}. Prints a line of JSON
for each: {"name", "params", "moments": {moment: {role: bytes}}}, as seen by rank 0.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed

# The optimizers import it late, and with it torch's compiler: once here instead of in each rank.
import deepspeed.runtime.zero.muon.muon_optimizer
import torch


def storage_bytes(tensors: Any, seen: set[int]) -> int:
    """Return the bytes of the storages that are not in ``seen`` yet."""
    total = 0
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta":
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors_in(each)]
    return []


def bytes_by_role(engine: Any) -> dict[str, int]:
    """Return the bytes of all live tensors of this process by role."""
    seen: set[int] = set()
    outer, params = engine.optimizer, list(engine.module.parameters())
    inner = getattr(outer, "optimizer", outer)
    buckets = [
        tensor
        for bucket in getattr(outer, "ipg_buckets", {}).values()
        for tensor in tensors_in(bucket.buffer)
    ]
    masters = [
        tensor
        for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")
        for tensor in tensors_in(getattr(outer, name, []))
    ]
    for name in ("fp32_groups_flat", "fp32_groups", "fp32_groups_flat_partition"):
        masters += tensors_in(getattr(outer, name, []))
    gradients = [tensor.grad for tensor in [*params, *masters] if tensor.grad is not None]
    gradients += tensors_in(getattr(outer, "averaged_gradients", {}))
    gradients += tensors_in(getattr(outer, "fp32_groups_gradients_flat", []))
    gradients += tensors_in(getattr(outer, "grad_partitions_flat_buffer", None))
    shards = [getattr(param, "ds_tensor", None) for param in params]
    shards += tensors_in(getattr(outer, "param_buffer_of_bit16_for_cpu_offload_groups", []))
    roles = {
        "buckets": buckets,
        "parameters": [*params, *tensors_in(shards)],
        "master": masters,
        "optimizer": tensors_in(dict(inner.state)),
        "gradients": gradients,
    }
    found = {role: storage_bytes(tensors, seen) for role, tensors in roles.items()}
    with torch.no_grad():
        rest = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    found["other"] = storage_bytes(rest, seen)
    return found


def train(config: dict[str, Any], hidden: int, layers: int) -> dict[str, Any]:
    """Train two steps; return the bytes at several moments by role."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed("gloo")
    model = torch.nn.Sequential(*(torch.nn.Linear(hidden, hidden) for _ in range(layers)))
    count = sum(param.numel() for param in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    dtype = next(engine.module.parameters()).dtype
    del model, optimizer
    moments = {"start": bytes_by_role(engine)}
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    step_of = inner.step

    def step(*args: Any, **kwargs: Any) -> Any:
        answer = step_of(*args, **kwargs)
        moments["step"] = bytes_by_role(engine)
        return answer

    def measure(_module: Any, _gradients: Any, _outputs: Any) -> None:
        moments[f"backward {micro_step}"] = bytes_by_role(engine)

    inner.step = step
    engine.module[0].register_full_backward_hook(measure)
    for _ in range(2):
        for micro_step in range(config["gradient_accumulation_steps"]):
            data = torch.ones(1, hidden, dtype=dtype, requires_grad=True)
            loss = engine(data).float().mean()
            engine.backward(loss)
            del loss, data
            for _ in range(4):  # Gloo's threads release the last bucket when they have other work.
                torch.distributed.barrier()
            gc.collect()
            moments[f"after backward {micro_step}"] = bytes_by_role(engine)
            engine.step()
    return {"params": count, "moments": moments}


def run_rank(case: dict[str, Any], rank: int, port: int) -> None:
    """Run one rank of a case in this process; rank 0 prints the result."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(case["ranks"]),
        "LOCAL_SIZE": str(case["ranks"]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    answer = train(case["config"], case["hidden"], case["layers"])
    if rank == 0:
        print(json.dumps({"name": case["name"], **answer}), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    """Fork the ranks of each case, because importing DeepSpeed takes far longer than a case."""
    # Looking for tensors among everything that was imported takes longer than the training.
    gc.collect()
    gc.freeze()
    for case in json.load(sys.stdin):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        ranks = []
        for rank in range(case["ranks"]):
            pid = os.fork()
            if pid == 0:
                try:
                    run_rank(case, rank, port)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            ranks.append(pid)
        for pid in ranks:
            os.waitpid(pid, 0)
        # DeepSpeed leaves 67 MB of shared memory for each rank.
        for buffer in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):
            buffer.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
