"""A stub of ``python -m deepspeed.launcher.runner --no_ssh`` with the behaviour of DeepSpeed.

It follows deepspeed/launcher/runner.py and launch.py of 0.19.8: without a hostfile it warns and
trains only on this node; with one it renumbers the visible GPUs from 0; it returns only positive
exit codes, so that a killed launcher exits with 0. tests/cluster runs the real one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Start this node's ranks and wait for them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hostfile", default="/job/hostfile")
    for name in ("--node_rank", "--master_addr", "--master_port"):
        parser.add_argument(name, required=True)
    for name in ("--no_ssh", "--no_local_rank", "--no_python"):
        parser.add_argument(name, action="store_true", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    slots = {"localhost": len(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(","))}
    node = int(args.node_rank)
    if Path(args.hostfile).exists():
        lines = Path(args.hostfile).read_text().split("\n")
        slots = {host: int(n) for host, _, n in (line.partition(" slots=") for line in lines) if n}
    else:
        print("Unable to find hostfile, will proceed with training with local resources only.")
        node = 0
    counts = list(slots.values())
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(counts[node]))),
        "MASTER_ADDR": args.master_addr,
        "MASTER_PORT": args.master_port,
        "WORLD_SIZE": str(sum(counts)),
        "LOCAL_SIZE": str(counts[node]),
    }
    if os.environ.get("STAND_IN_KILLED"):
        return 0
    ranks = [
        subprocess.Popen(
            args.command,
            env=os.environ | {"RANK": str(sum(counts[:node]) + n), "LOCAL_RANK": str(n)},
        )
        for n in range(counts[node])
    ]
    return max(0, *(rank.wait() for rank in ranks))


if __name__ == "__main__":
    sys.exit(main())
