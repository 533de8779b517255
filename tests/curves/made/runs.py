"""Runs of real frameworks: their programs, packages and resulting logs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

from tests.curves.made.truth import RESTART, read_notes, summarise

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = "tests.curves.made.programs"
VERSIONS = (
    "import json, importlib.metadata as m; print(json.dumps({d.metadata['Name'].lower()"
    ".replace('_', '-'): d.version for d in m.distributions() if d.metadata['Name']}))"
)


class RunFailed(Exception):
    """A program did not end as it should; what it said."""


class Run(NamedTuple):
    """A log that a program makes.

    ``attempts``: arguments of each start; ``needs``: distributions as name or name==PREFIX, the
    first is the framework; ``launcher``: python, torchrun, tee (torchrun --tee 3), or srun (the
    lines of each rank behind its number); ``apart``: stdout and stderr in a file each; ``collect``:
    the log is this file of the run and not what it prints; ``between``: what the scheduler says
    when it ends an attempt; ``cut``: bytes that are missing at the end; ``fails``: the last attempt
    ends badly, which is why it is there; ``json_lines``: it prints its truth itself.
    """

    name: str
    program: str
    attempts: tuple[str, ...]
    needs: tuple[str, ...]
    launcher: str = "python"
    apart: bool = False
    buffered: bool = False
    collect: str = ""
    between: str = ""
    cut: int = 0
    json_lines: bool = False
    fails: bool = False
    stepless: bool = False
    warnings: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()
    note: str = ""


class Interpreter(NamedTuple):
    """A Python and the distributions that it has."""

    path: str
    versions: dict[str, str]

    def has(self, need: str) -> bool:
        """Return True if a distribution is installed in the required version."""
        name, _, version = need.partition("==")
        return self.versions.get(name, "").startswith(version) and name in self.versions


def interpreters() -> list[Interpreter]:
    """Return this Python and those in MADE_PYTHONS, with their installed packages."""
    paths = [sys.executable, *filter(None, os.environ.get("MADE_PYTHONS", "").split(":"))]
    return [
        Interpreter(path, json.loads(subprocess.check_output([path, "-c", VERSIONS])))
        for path in paths
    ]


def make(run: Run, python: Interpreter) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Run a program to its log files and its entry in the index."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        truth = home / "truth.jsonl"
        streams = [b"", b""]
        notes: list[dict[str, Any]] = []
        for number, arguments in enumerate(run.attempts):
            if number:
                notes.append(RESTART)
                streams[-run.apart] += run.between.encode()
            code, *message = _start(run, python, arguments.split(), home, truth)
            if number == len(run.attempts) - 1 and (code != 0) != run.fails:
                raise RunFailed(f"it ended with {code}:\n{b''.join(message).decode()}")
            streams = [before + new for before, new in zip(streams, message, strict=True)]
            notes += _printed(message[0]) if run.json_lines else read_notes(truth)
            truth.unlink(missing_ok=True)
        if run.collect:
            streams[0] = (home / run.collect).read_bytes()
        texts = [_scrub(text, home, python) for text in streams]
        if run.cut:
            texts[0] = texts[0][: -run.cut]
    files = {f"{run.name}.log": texts[0]}
    if run.apart:
        files = {f"{run.name}.out": texts[0], f"{run.name}.err": texts[1]}
    main = run.needs[0].partition("==")[0]
    entry = {
        "name": run.name,
        "files": list(files),
        "framework": f"{main} {python.versions[main]}",
        "made_by": f"programs/{run.program}.py {' + '.join(run.attempts)}".strip(),
        **summarise(notes, stepless=run.stepless),
        "warnings": list(run.warnings),
    }
    if run.ambiguous:
        entry["ambiguous"] = list(run.ambiguous)
    if run.note:
        entry["note"] = run.note
    return files, entry


def _start(
    run: Run, python: Interpreter, arguments: list[str], home: Path, truth: Path
) -> tuple[int, bytes, bytes]:
    environment = {
        "PATH": f"{Path(python.path).parent}:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "MADE_TRUTH": str(truth),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        **({} if run.buffered else {"PYTHONUNBUFFERED": "1"}),
    }
    program = ["-m", f"{PROGRAMS}.{run.program}", *arguments]
    if run.program.endswith(".py"):
        program = [str(ROOT / run.program), *arguments]
    elif run.launcher in ("torchrun", "tee"):
        tee = ["--tee", "3"] if run.launcher == "tee" else []
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", *tee]
        program = [*launcher, "--master-port", "29511", *program]
    if run.launcher == "srun":
        return 0, _labelled([python.path, *program], home, environment), b""
    done = subprocess.run(
        [python.path, *program],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if run.apart else subprocess.STDOUT,
    )
    return done.returncode, done.stdout, done.stderr or b""


def _labelled(argv: list[str], home: Path, environment: dict[str, str]) -> bytes:
    """Run two ranks and merge their lines as they come, each behind its rank, as srun -l does."""
    lines: list[bytes] = []

    def follow(rank: int) -> None:
        here = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}
        process = subprocess.Popen(
            argv,
            cwd=home,
            env={**environment, **here, **there},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        lines.extend(b"%d: %s" % (rank, line) for line in process.stdout)
        process.wait(60)

    ranks = [threading.Thread(target=follow, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return b"".join(lines)


def _printed(text: bytes) -> list[dict[str, Any]]:
    """Return the records of a program that prints JSON, a record a line."""
    lines = [line for line in text.decode().splitlines() if line.startswith('{"step"')]
    return [json.loads(line.replace("memory_allocated_bytes", "memory_bytes")) for line in lines]


def _scrub(text: bytes, home: Path, python: Interpreter) -> bytes:
    """Remove details of the machine that created the log."""
    prefix = Path(python.path).parent.parent
    base = subprocess.check_output([python.path, "-c", "import sys; print(sys.base_prefix)"])
    for found, instead in (
        (str(home), "/scratch/run"),
        (str(prefix), "/opt/conda/envs/train"),
        (base.decode().strip(), "/opt/conda"),
        (str(ROOT / "tests/curves/made"), "/home/user/project"),
        (str(ROOT), "/home/user/project"),
        ("tests.curves.made.programs.", "train."),
        (socket.gethostname(), "node01"),
        (str(Path.home()), "/home/user"),
        (tempfile.gettempdir() + "/", "/scratch/tmp/"),
    ):
        text = text.replace(found.encode(), instead.encode())
    return text
