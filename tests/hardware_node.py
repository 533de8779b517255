"""A node whose hardware commands are replaced by scripts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcrun.assets import shipped_folder

HARDWARE = shipped_folder("templates") / "hardware.sh"


class Node:
    """A node: its network cards in /sys, and its nvidia-smi."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir(parents=True)

    def rdma(self, name: str, layer: str, driver: str = "mlx5_core", *states: str) -> None:
        """Add a verbs device with a port for each state."""
        device = self.root / "sys/class/infiniband" / name
        for number, state in enumerate(states or ("4: ACTIVE",), 1):
            port = device / "ports" / str(number)
            port.mkdir(parents=True)
            (port / "link_layer").write_text(f"{layer}\n")
            (port / "state").write_text(f"{state}\n")
        target = self.root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (device / "device").mkdir()
        (device / "device" / "driver").symlink_to(target)

    def cxi(self, name: str, interface: str, state: str = "up") -> None:
        """Add a Slingshot card."""
        folder = self.root / "sys/class/cxi" / name / "device/net" / interface
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(f"{state}\n")

    def gpus(self, *lines: str, code: int = 0) -> None:
        """Make nvidia-smi print these lines as its GPUs, and record its arguments."""
        smi = self.bin / "nvidia-smi"
        listed = "".join(f"printf '%s\\n' '{line}'\n" for line in lines)
        asked = 'printf "%s\\n" "$*" >"${0%/*}/../asked"'
        smi.write_text(f"#!/bin/bash\n{asked}\n{listed}exit {code}\n")
        smi.chmod(0o755)

    def place(self, address: str, cpus: str) -> None:
        """Add a GPU in a slot next to some CPUs."""
        slot = self.root / "sys/bus/pci/devices" / address
        slot.mkdir(parents=True)
        (slot / "local_cpulist").write_text(f"{cpus}\n")

    def cpus(self, allowed: Iterable[int], threads: int) -> None:
        """Set the CPUs of a process; CPU N and N + ``threads`` are one core."""
        status = self.root / "proc/self/status"
        status.parent.mkdir(parents=True)
        status.write_text(f"Cpus_allowed:\tff\nCpus_allowed_list:\t{','.join(map(str, allowed))}\n")
        for cpu in allowed:
            folder = self.root / f"sys/devices/system/cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            core = cpu % threads
            (folder / "thread_siblings_list").write_text(f"{core},{core + threads}\n")

    def bound(self, rank: int, ranks: int, kind: str = "exclusive", **env: str) -> set[int]:
        """Bind a rank as the harness does; return the CPUs given to taskset."""
        taskset = self.bin / "taskset"
        taskset.write_text('#!/bin/bash\necho "pid 1\'s new affinity list: $2"\n')
        taskset.chmod(0o755)
        script = (
            f'say() {{ echo "$*"; }}; host=n1; . "{HARDWARE}"; HPCRUN_GPU_CPUS=$(gpu_cpus "$1"); '
            'bind_rank "$1"'
        )
        told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "HPCRUN_RANKS_PER_NODE": str(ranks)}
        argv = ["bash", "-uc", script, "hpcrun", str(self.root)]
        done = self._bash(argv, HPCRUN_BINDING=kind, **told, **env)
        assert done.stderr == "" and done.stdout.startswith(f"rank {rank} on n1: CPUs ")
        return {int(cpu) for cpu in done.stdout.split("CPUs ")[1].split(";")[0].split(",")}

    def fabric(self, **env: str) -> tuple[str, str]:
        done = self._bash(["bash", str(HARDWARE), "fabric", str(self.root)], **env)
        assert done.returncode == 0
        return done.stdout.strip(), done.stderr.strip()

    def check(self, call: str, **env: str) -> tuple[str, dict[str, str]]:
        """Call a function as the harness does; return its error message and exported variables."""
        script = f'error() {{ echo "$*" >&2; }}; host=n1; . "{HARDWARE}"; {call} || exit 1; env -0'
        done = self._bash(["bash", "-uc", script, "hpcrun", str(self.root)], **env)
        assert bool(done.returncode) == bool(done.stderr)
        if done.returncode:
            return done.stderr.removeprefix("n1: ").strip(), {}
        return "", dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)

    def _bash(self, argv: Sequence[str], **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.bin}:{os.environ['PATH']}"
        return subprocess.run(
            argv, env={"PATH": path, **env}, capture_output=True, text=True, check=False
        )
