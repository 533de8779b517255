"""What --debug adds to one run: the switches that say more, and keep traces."""

from __future__ import annotations

from hpcrun.plan.types import Section


def debug_section(run_dir: str, accelerator: str) -> Section:
    """Diagnosis switches. They cost time, and never become part of the job.

    The names of the flight recorder are torch's old ones, which 2.13 reads as well.
    """
    rows = [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "collectives that do not match are told"),
        ("TORCH_CPP_LOG_LEVEL", "INFO", "without it DETAIL stays silent; and the store's words"),
        ("TORCH_SHOW_CPP_STACKTRACES", "1", "where in torch an error was raised"),
        ("PYTHONFAULTHANDLER", "1", "Python's own stack when a signal ends it"),
        ("LOGLEVEL", "INFO", "torchrun's own words"),
    ]
    if accelerator == "cuda":
        # %h and %p are NCCL's; a % of the folder's own is doubled (its src/debug.cc).
        logs = f"{run_dir}/logs"
        nccl_log = f"{logs.replace('%', '%%')}/nccl-%h-%p.log"
        rows += [
            ("NCCL_DEBUG", "INFO", "what NCCL finds and chooses"),
            ("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV,NET", "its network, and what it reads"),
            ("NCCL_DEBUG_FILE", nccl_log, "one for each process"),
            ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", "collectives that are remembered"),
            ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "they are written when one hangs, to"),
            ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", f"{logs}/nccl-trace-", "a file for each rank"),
            ("TORCH_NCCL_DESYNC_DEBUG", "1", "and which rank lags behind"),
        ]
    return Section(
        block="job_environment",
        title="Diagnosis, for this run alone (--debug)",
        variables={name: value for name, value, _ in rows},
        reasons={name: why for name, _, why in rows},
        comment="It costs time: not for the runs that count.",
    )


def debug_notes(accelerator: str) -> list[str]:
    """Say where what --debug brings to light is found."""
    if accelerator != "cuda":
        return ["--debug: torch says more in the logs"]
    return [
        "--debug: torch says more in the logs; NCCL's words are in the run's logs/nccl-HOST-PID.log"
    ]
