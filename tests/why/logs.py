"""Logs for the tests of failure diagnosis, created from text and read like real logs."""

from __future__ import annotations

from hpcrun.why.ends import EndRecords
from hpcrun.why.fixes import JobSettings
from hpcrun.why.judge import FailureEvidence, diagnose
from hpcrun.why.reading import LogFindings, LogReader
from hpcrun.why.rule import Diagnosis

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.14 GiB of which 1.04 GiB is free."
)
STEPS = "".join(f"step {step} loss 2.{step}\n" for step in range(40))


def traceback(error: str, prefix: str = "", at: str = "train.py") -> str:
    """Return a traceback as Python prints it, with a prefix on each line."""
    lines = [
        "Traceback (most recent call last):",
        f'  File "{at}", line 12, in <module>',
        "    raise RuntimeError('Address already in use')",
        *error.split("\n"),
    ]
    return "".join(f"{prefix}{line}\n" for line in lines)


CHILD = (
    "E0101 12:00:00.000000 42 torch/distributed/elastic/multiprocessing/api.py:869] failed "
    "(exitcode: 1) local_rank: 0 (pid: 4242) of binary: /usr/bin/python\n"
    + traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", at="torchrun")
)
LINES = STEPS.count("\n")


def read(text: str, name: str = "x.log", block: int = 1 << 20) -> LogFindings:
    """Read the text of a log in blocks of whole lines."""
    data = text.encode()
    reader = LogReader(name, len(data))
    rest = b""
    for at in range(0, len(data), block):
        piece = rest + data[at : at + block]
        cut = piece.rfind(b"\n") + 1
        reader.read(piece[:cut])
        rest = piece[cut:]
    if rest:
        reader.read(rest)
    return reader.finish()


def judge(
    *texts: str, records: EndRecords | None = None, job: JobSettings | None = None
) -> Diagnosis:
    """Diagnose why a job with these logs failed."""
    logs = [read(text, f"{index}.log") for index, text in enumerate(texts)]
    return diagnose(
        FailureEvidence(logs=logs, records=records or EndRecords(), job=job or JobSettings())
    )


def told(*texts: str, records: EndRecords | None = None) -> tuple[str, str, int | None, int | None]:
    """Return id, class, line and rank of the cause."""
    cause = judge(*texts, records=records).cause
    return (cause.id, cause.cls, cause.line, cause.rank) if cause else ("", "", None, None)
