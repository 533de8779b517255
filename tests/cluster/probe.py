"""Report the environment of a rank; with --world, also verify that all ranks form one world.

This test program imports only the standard library (and torch for gloo). It writes
$HPCRUN_RUN_DIR/probe/ATTEMPT-rank-R.json.

    probe.py [--world sockets|gloo] [--wait-for FILE] [--hold SECONDS] [--until FILE] [WORDS ...]

--world: every rank learns from all others which run and attempt they belong to. ``sockets`` is what
torch's store does, in small: rank 0 listens on MASTER_PORT, the others connect to MASTER_ADDR.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

CONNECT_SECONDS = 300.0


def text(value: str) -> str:
    """Return any bytes as Latin-1 text, so that JSON preserves them."""
    return os.fsencode(value).decode("latin-1")


def number(*names: str) -> int | None:
    """Read the first of some variables that is set."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), None)


def look(words: list[str]) -> dict[str, Any]:
    """Return the environment of this process."""
    status = Path("/proc/self/status").read_text()
    allowed = next(line for line in status.splitlines() if line.startswith("Cpus_allowed_list"))
    environ = os.environ
    return {
        "rank": number("RANK"),
        "local_rank": number("LOCAL_RANK"),
        "world_size": number("WORLD_SIZE"),
        "local_world_size": number("LOCAL_WORLD_SIZE"),
        "node_rank": number("NODE_RANK", "GROUP_RANK"),
        "host": os.uname().nodename,
        "cpus": sorted(os.sched_getaffinity(0)),
        "cpus_allowed": allowed.split()[1],
        "gpus": environ.get("CUDA_VISIBLE_DEVICES"),
        "threads": environ.get("OMP_NUM_THREADS"),
        "master": [environ.get("MASTER_ADDR"), number("MASTER_PORT")],
        "gloo_interface": environ.get("GLOO_SOCKET_IFNAME"),
        "nccl_interface": environ.get("NCCL_SOCKET_IFNAME"),
        "run": Path(environ["HPCRUN_RUN_DIR"]).name,
        "attempt": int(environ["HPCRUN_ATTEMPT"]),
        "cwd": text(str(Path.cwd())),
        "argv": [text(word) for word in words],
        "environ": {text(name): text(value) for name, value in environ.items()},
    }


def gather_by_sockets(me: dict[str, Any]) -> list[dict[str, Any]]:
    """Report to rank 0, and receive the reports of all ranks."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    world_size = int(os.environ["WORLD_SIZE"])
    if me["rank"] != 0:
        with connect(address, port) as peer, peer.makefile("rw") as stream:
            send(stream, me)
            return list(json.loads(stream.readline()))
    all_shown = [me]
    with socket.create_server(("", port)) as server:
        server.settimeout(CONNECT_SECONDS)
        streams = []
        while len(all_shown) < world_size:
            stream = server.accept()[0].makefile("rw")
            line = stream.readline()
            if not line:  # the harness of another node, which looks whether this one can be reached
                stream.close()
                continue
            streams.append(stream)
            all_shown.append(json.loads(line))
        for stream in streams:
            send(stream, all_shown)
            stream.close()
    return all_shown


def connect(address: str, port: int) -> socket.socket:
    """Connect to a server that may not be there yet."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            peer = socket.create_connection((address, port), 5)
            peer.settimeout(CONNECT_SECONDS)
            return peer
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def send(stream: Any, value: object) -> None:
    """Write a line of JSON."""
    stream.write(json.dumps(value) + "\n")
    stream.flush()


def gather_by_gloo(me: dict[str, Any]) -> list[dict[str, Any]]:
    """Gather over torch.distributed, as a training would."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    all_shown: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_shown, me)
    dist.destroy_process_group()
    return all_shown


def wait_for(path: str) -> None:
    """Wait until a file is there."""
    while not Path(path).exists():
        time.sleep(0.02)


def main() -> None:
    """Report, and meet the other ranks if requested."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", choices=["sockets", "gloo"])
    parser.add_argument("--wait-for", metavar="FILE")
    parser.add_argument("--hold", type=float, default=0.0)
    parser.add_argument("--until", metavar="FILE")
    options, words = parser.parse_known_args()
    shown = look(words)
    if options.wait_for:
        wait_for(options.wait_for)
    if options.world:
        me = {key: shown[key] for key in ("run", "attempt", "rank", "host")}
        gather = gather_by_gloo if options.world == "gloo" else gather_by_sockets
        shown["world"] = gather(me)
        if any(other["run"] != me["run"] for other in shown["world"]):
            sys.exit(f"a world of several runs: {shown['world']}")
    folder = Path(os.environ["HPCRUN_RUN_DIR"]) / "probe"
    folder.mkdir(exist_ok=True)
    target = folder / f"{shown['attempt']}-rank-{shown['rank']}.json"
    part = target.with_name(f".{target.name}.{os.getpid()}")
    part.write_text(json.dumps(shown))
    part.replace(target)
    print(f"rank {shown['rank']} of {shown['world_size']} on {shown['host']}")
    time.sleep(options.hold)
    if options.until:
        wait_for(options.until)


if __name__ == "__main__":
    main()
