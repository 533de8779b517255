"""A job whose stall detection is called at chosen times."""

from __future__ import annotations


class Doer:
    """What a watcher does about a stall, noted and not done."""

    def __init__(self, out: list[str]) -> None:
        self.out = out

    def take_stacks(self) -> bool:
        self.out.append("took")
        return True

    def list_steps(self, job: str) -> list[str]:
        assert job == "7_3"
        return ["7.batch", "7.extern", "7.0", "7.1"]

    def cancel_slurm_step(self, step: str) -> bool:
        self.out.append(f"scancel {step}")
        return True
