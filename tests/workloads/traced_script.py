"""A training script for the tracer, with what scripts on GPUs often do."""

import argparse
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--fail", action="store_true")
args = parser.parse_args()

assert torch.cuda.is_available() and torch.cuda.is_bf16_supported()
torch.cuda.set_device(0)
torch.distributed.init_process_group("nccl")
device = torch.device("cuda", torch.distributed.get_rank())
layers = [nn.Linear(1024, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 1024)]
model = DistributedDataParallel(nn.Sequential(*layers).to(device), device_ids=[0])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
assert next(model.parameters()).is_cuda and next(model.parameters()).device.type == "cuda"
if args.fail:
    raise ValueError("no data in /scratch")
for step in range(100):
    batch = torch.randn(args.batch, 1024, pin_memory=True).cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(batch), batch)
    if not torch.isfinite(loss) or loss.item() > 1e9:
        sys.exit("the loss is not finite")
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    selected = batch[batch > 0].float().mean().cpu().numpy()
    print(f"step {step} loss {loss:.3f} norm {float(norm):.2f} {selected}", flush=True)
    if step > 5:
        sys.exit("the trace has not stopped")
