"""The first and the last step of real logs: the job and `hpcrun status` read the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hpcrun.jobside.ends import Attempts
from hpcrun.monitor.progress import steps_of
from hpcrun.runs.layout import RunFolder

LOGS = Path(__file__).parents[1] / "curves" / "logs"
MAX_BYTES = 12_000  # the longer ones are of formats that the others have, too
# Where the job and `status` differ, what the job reads. None: unknown, so that nothing is decided
# by the steps.
BAR_FROM_0 = (
    *("accelerate_steps", "hf4_bar", "hf5_bar", "hf5_buffered", "hf5_every_step", "hf5_nan"),
    *("trl_dpo", "trl_grpo", "trl_sft"),
)
STEP_WITHOUT_LOSS = (
    *("ddp_torchrun", "hf4_trainer_state", "hf5_trainer_state", "nanogpt", "olmo", "sb3_table"),
    "accelerate_epochs",  # the epochs
)
SEVERAL_IN_ONE_LOG = ("ddp_tee", "hf4_resumed", "hf5_resumed", "reference_resumed")
UNKNOWN_TO_THE_JOB = ("fairseq_json", "llmc_main_log", "mlperf_mllog")
CONSTANT = ("accelerate_text", "lightning_rich")
DIFFERENT = {
    *(*BAR_FROM_0, *STEP_WITHOUT_LOSS),
    *(*SEVERAL_IN_ONE_LOG, *UNKNOWN_TO_THE_JOB, *CONSTANT),
}
NAMES = sorted(path.stem for path in LOGS.glob("*.log") if path.stat().st_size < MAX_BYTES)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    for folder in ("attempts/0", "logs/0"):
        (tmp_path / folder).mkdir(parents=True)
    return RunFolder(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_job_and_status_read_the_same_steps(run: RunFolder, name: str) -> None:
    shutil.copyfile(LOGS / f"{name}.log", run.logs / "0" / "rank-0.log")
    read = Attempts({"HPCRUN_RUN_DIR": str(run.path)}).steps(0)
    job = (None, None) if read is None else tuple(read)
    first, last = steps_of(run, 0)
    if name not in DIFFERENT:
        assert job == (first, last)
    elif name in (*SEVERAL_IN_ONE_LOG, *UNKNOWN_TO_THE_JOB, *CONSTANT):
        assert job == (None, None)
    elif name in BAR_FROM_0:
        assert job[0] == 0 and last in (None, job[1])
    else:
        assert job[0] is not None


@pytest.mark.parametrize(
    "epochs", ["step {} loss 2.5", "Epoch {epoch} batch {} loss 2.5", "it {}: loss=2.5"]
)
def test_counter_that_restarts_with_each_epoch_is_no_step(run: RunFolder, epochs: str) -> None:
    lines = [epochs.format(n, epoch=epoch) for epoch in range(3) for n in range(0, 50, 10)]
    (run.logs / "0" / "rank-0.log").write_text("\n".join(lines) + "\n")
    assert Attempts({"HPCRUN_RUN_DIR": str(run.path)}).steps(0) is None
    assert steps_of(run, 0) == (None, None)
