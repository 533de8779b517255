"""A complete job without Slurm: the real plan, templates and job script, with stubs of srun etc.

It is fast enough to run for every mutation of a guard. tests/cluster verifies the stubs' behaviour
on a real Slurm.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from hpcrun.assets import shipped_folder
from hpcrun.plan.build import build_plan
from hpcrun.plan.types import Plan
from hpcrun.render.environment import open_templates
from hpcrun.render.files import render_files
from hpcrun.runs.layout import create_run_folder
from tests.cluster import probe
from tests.plan.making import PLACE, cluster, job
from tests.render.sbatch_grammar import read_script
from tests.waiting import until

HERE = Path(__file__).parent
PROBE = Path(probe.__file__)
# Ports are derived from it, and other tests run in parallel.
JOB_ID = os.getpid()
HOSTS = {"n1": "127.0.0.2", "n2": "127.0.0.3"}


class Job:
    """A run folder, and its batch script as started by Slurm on the first node.

    ``text`` is the job file without its program, which is ``script`` (the probe by default), and
    without a launcher, which is srun.
    """

    def __init__(
        self,
        folder: Path,
        text: str = "",
        profile: str = "",
        *,
        script: Path = PROBE,
        mark: str = "",
    ) -> None:
        self.folder, self.mark = folder, mark
        self.bin = folder / "bin"
        self.bin.mkdir()
        # Pipes in /dev/shm are named after it, and other tests run in parallel.
        run_id = f"20261120-081455-train-{uuid.uuid4().hex[:4]}"
        self.run_dir = folder / run_id
        place = structs.replace(
            PLACE,
            run_id=run_id,
            run_dir=str(self.run_dir),
            project_dir=str(folder),
            cache_dir=str(folder / "cache"),
            python=str(self.bin / "python"),
        )
        message = f"{text}\n" + ("" if "command:" in text else f"script: {script}\n")
        if "launcher:" not in text:
            message += "launcher: srun\n"
        (folder / "disk").mkdir()
        profile = f"accelerator: cpu\nlocal_dir: {folder}/disk\n{profile}"
        self.plan: Plan = build_plan(job(message), cluster(profile), place)
        create_run_folder(self.run_dir)
        for file in render_files(self.plan, open_templates(None)):
            (self.run_dir / file.name).write_text(file.text, errors="surrogateescape")
        for name in ("srun", "scontrol"):
            self.stand_in(name, f'exec {sys.executable} -S {HERE / name}.py "$@"')
        self.stand_in(
            "python",
            '[ "$2" != deepspeed.launcher.runner ] || '
            f'set -- {HERE}/deepspeed_runner.py "${{@:3}}"\n'
            f'exec {sys.executable} "$@"',
        )

    def stand_in(self, name: str, body: str) -> None:
        """Put a command first on the job's PATH."""
        (self.bin / name).write_text(f"#!/bin/bash\n{body}\n")
        (self.bin / name).chmod(0o755)

    def start(
        self, job_id: int = JOB_ID, restarts: int = 0, hosts: Mapping[str, str] = HOSTS, **env: str
    ) -> subprocess.Popen[bytes]:
        """Start the batch script like slurmstepd, with output according to its directives."""
        directives = dict(read_script((self.run_dir / "job.sbatch").read_bytes()))
        log = self.run_dir / str(directives["output"])
        names = list(hosts)[: self.plan.nodes]
        environ = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_NODELIST": ",".join(names),
            "SLURM_JOB_NUM_NODES": str(len(names)),
            "SLURMD_NODENAME": names[0],
            "STAND_IN_ADDRESSES": ",".join(f"{name}={hosts[name]}" for name in names),
            "STAND_IN_GPUS": str(self.plan.gpus_per_node),
            "STAND_IN_MARK": self.mark,  # identifies its processes
            **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
            **env,
        }
        with log.open("ab" if directives.get("open-mode") == "append" else "wb") as out:
            return subprocess.Popen(
                ["bash", str(self.run_dir / "job.sbatch")],
                cwd=self.run_dir,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def go(self, **options: Any) -> int:
        """Run the job to its end; return its exit code."""
        return self.finish(self.start(**options))

    def finish(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end; a hanging job is killed with all its processes, which is an error."""
        try:
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise

    def until(self, there: Callable[[], Any], what: str) -> None:
        """Wait until a condition holds."""
        until(there, lambda: f"{what}\n{self.log()}")

    def log(self) -> str:
        """Return all output of the job, its nodes and its ranks."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')}"
            for path in sorted((self.run_dir / "logs").rglob("*.log"))
        )

    def shown(self, attempt: int = 0) -> list[dict[str, Any]]:
        """Return the reports of the probe, by rank."""
        files = (self.run_dir / "probe").glob(f"{attempt}-rank-*.json")
        found = [json.loads(file.read_text()) for file in files]
        return sorted(found, key=lambda shown: shown["rank"])

    def record(self, name: str = "end.json", attempt: int = 0) -> Any:
        """Return a record of the attempt."""
        return json.loads((self.run_dir / "attempts" / str(attempt) / name).read_text())


def in_harness(call: str, folder: Path | None = None, **env: str) -> str:
    """Call functions of the job script in bash, with stubs of ``folder``; return the output."""
    templates = shipped_folder("templates")
    text = (templates / "harness.sh").read_text()
    text = text.replace("${BASH_SOURCE[0]%/*}/records.sh", str(templates / "records.sh"))
    functions, end, _ = text.partition("\nmode=$1\n")
    assert end, "the harness begins its work with mode=$1"
    path = f"{folder}:{os.environ['PATH']}" if folder else os.environ["PATH"]
    done = subprocess.run(
        ["bash", "-c", f"{functions}\n{call}"],
        env={"PATH": path, "HPCRUN_ATTEMPT": "0", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout
