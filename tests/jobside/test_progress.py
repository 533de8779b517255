"""Progress detection in many log formats: only hung runs count as stalled."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcrun.jobside.progress import LogReader, Progress, read_step
from hpcrun.jobside.stall import StallWatch
from tests.jobside.watched_job import Doer

LOGS = Path(__file__).parents[1] / "curves" / "logs"
# Logs of programs that fail or hang.
NOT_HEALTHY = {"ddp_failed", "no_training"}


def loss(step: int) -> float:
    return 2.0 + 1 / (1 + step) + 0.01 * math.sin(step)


def clock(step: int) -> str:
    seconds = 7 * step
    return f"2026-11-20 {8 + seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


# A line of each format for a step.
FORMS: dict[str, Callable[[int], str]] = {
    "trainer 4": lambda n: (
        f"{{'loss': {loss(n):.4f}, 'grad_norm': {n % 7 + 1}.5, 'learning_rate': 5e-05, "
        f"'epoch': {n / 1e6:.4f}}}"
    ),
    "trainer 4, an epoch that stays": lambda n: (
        f"{{'loss': {loss(n):.4f}, 'learning_rate': 4.9e-05, 'epoch': 0.0}}"
    ),
    "trainer 5": lambda n: (
        f"{{'loss': '{loss(n):.4f}', 'grad_norm': '1.2', 'learning_rate': '5e-05', 'epoch': '0.0'}}"
    ),
    "trainer with a bar": lambda n: (
        f"  0%|          | {n}/1000000 [{n // 60:02}:{n % 60:02}<99:00:00,  3.01it/s]"
    ),
    "trl grpo": lambda n: (
        f"{{'num_tokens': {4096.0 * n}, 'completions/mean_length': 64.0, 'reward': {loss(n):.3f}, "
        f"'kl': 0.0, 'epoch': 0.01}}"
    ),
    "llama-factory": lambda n: (
        f"{{'loss': {loss(n):.4f}, 'learning_rate': 5.0e-05, 'epoch': 0.0, 'throughput': 1234.56}}"
    ),
    "axolotl": lambda n: f"{{'loss': '{loss(n):.4g}', 'ppl': '7.1', 'epoch': '0.00'}}",
    "megatron": lambda n: (
        f" [{clock(n)}] iteration {n:8d}/  500000 | consumed samples: {n * 256:12d} | elapsed time "
        f"per iteration (ms): 1234.5 | learning rate: 1.0E-04 | lm loss: {loss(n):.6E} |"
    ),
    "gpt-neox": lambda n: (
        f"{clock(n)} samples/sec: 12.1 | iteration {n:8d}/  320000 | elapsed time per iteration "
        f"(ms): 99.9 | lm_loss: {loss(n):.6E} | loss scale: 1.0 |"
    ),
    "open_clip": lambda n: (
        f"{clock(n)} | INFO | Train Epoch: 0 [{n * 64:8d}/9000000 ({n / 1e5:.0f}%)] Data (t): 0.1 "
        f"Batch (t): 0.3, 198.2/s LR: 0.0005 Logit Scale: 14.2 Loss: {loss(n):.4f} ({loss(n):.3f})"
    ),
    "imagenet": lambda n: (
        f"Epoch: [0][{n:6d}/90000]\tTime  0.312 ( 0.401)\tLoss {loss(n):.4e} ({loss(n):.4e})\t"
        "Acc@1   0.78 (  0.51)"
    ),
    "deit": lambda n: (
        f"Epoch: [0]  [{n:6d}/90000]  eta: 1:02:03  lr: 0.000100  loss: {loss(n):.4f} (6.9)  "
        "time: 0.4  data: 0.0003  max mem: 9876"
    ),
    "verl": lambda n: (
        f"step:{n} - global_seqlen/min:1000 - actor/pg_loss:{loss(n):.4f} - perf/time_per_step:61.2"
    ),
    "composer": lambda n: f"[batch={n}/100000]:\n\t Train loss/train/total: {loss(n):.4f}",
    "composer bar": lambda n: (
        f"train          Epoch   0:    1%|| {n}/90000 [00:10<21:00, 9.1ba/s, loss/train/total=2.3]"
    ),
    "wenet": lambda n: (
        f"{clock(n)},123 DEBUG TRAIN Batch 0/{n} loss {loss(n):.6f} loss_att 60.1 lr 0.00010 rank 0"
    ),
    "lightning rich": lambda n: (
        f"Epoch 0/9   ━━━╸━━━━━━━━━━━━ {n}/90000 0:00:{n % 60:02} • 1:00:00 9.12it/s v_num: 0.000"
    ),
    "step with commas": lambda n: f"step: {900 + n:,} loss 2.5",
    "step with underscores": lambda n: f"step {900 + n:_} loss 2.5",
    "scientific steps": lambda n: f"step={n * 1e3:.6e}, loss={loss(n):.3f}",
    "torchtitan": lambda n: (
        f"\x1b[36m[titan] {clock(n)},001 - root - INFO - \x1b[31mstep: {n:2}  \x1b[32mloss: "
        f"{loss(n):7.4f}  \x1b[38;2;180;60;0mmemory: 61.2GiB(64%)  \x1b[34mtps: 7,000\x1b[39m"
    ),
    "mmengine": lambda n: (
        f"{clock(n).replace('-', '/')} - mmengine - INFO - Epoch(train)  [1][{n:6d}/90000]  lr: "
        f"1.0000e-02  eta: 1 day, 2:03:04  time: 0.3  memory: 1234  loss: {loss(n):.4f}"
    ),
    "timm": lambda n: (
        f"Train: 0 [{n:6d}/90000 (  0%)]  Loss: {loss(n):#.3g} (6.93)  Time: 0.512s,  500.0/s  "
        "LR: 1.000e-04  Data: 0.011 (0.100)"
    ),
    "keras 3": lambda n: (
        f"\x1b[1m{n}/90000\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━━━━━━━\x1b[0m \x1b[1m9:59\x1b[0m "
        f"26ms/step - accuracy: 0.1 - loss: {loss(n):.4f}"
    ),
    "keras 2": lambda n: (
        f"{n}/90000 [{'=' * (n % 20)}>......] - ETA: 9:59 - loss: {loss(n):.4f} - accuracy: 0.2"
    ),
    "espnet": lambda n: (
        f"[node1] {clock(n)},123 (trainer:755) INFO: 1epoch:train:{n * 50 - 49}-{n * 50}batch: "
        f"iter_time=0.01, loss_ctc=90.1, loss={loss(n):.3f}, acc=0.21, train_time=0.9"
    ),
    "xgboost": lambda n: f"[{n}]\ttrain-rmse:{loss(n):.5f}\teval-rmse:{loss(n) + 1:.5f}",
    "lightgbm": lambda n: f"[{n}]\tvalid_0's l2: {loss(n):.5f}",
    "catboost": lambda n: f"{n}:\tlearn: {loss(n):.7f}\ttotal: 1.2s\tremaining: 9m 3s",
    "csv": lambda n: f"{n},{loss(n):.6f},0.0001,{n * 512}",
    "table": lambda n: f"| {n:6d} | {loss(n):8.4f} | 1.00e-04 |",
    "numbers alone": lambda n: f"{n} {loss(n):.4f}",
    "losses alone": lambda n: f"{loss(n):.6f}",
    "fairseq": lambda n: (
        f"{clock(n)} | INFO | train_inner | epoch 001:  {n} / 99999 loss={loss(n):.3f}, ppl=99, "
        f"wps=12345, ups=3.1, num_updates={n}, lr=1e-05, gnorm=1.2, wall=100"
    ),
    "detectron2": lambda n: (
        f"[{clock(n)[5:]} d2.utils.events]: eta: 1:02:03  iter: {n}  total_loss: {loss(n):.3f}  "
        "time: 0.2131  data_time: 0.0071  lr: 0.00025  max_mem: 2034M"
    ),
    "nanogpt": lambda n: f"iter {n}: loss {loss(n):.4f}, time 123.45ms, mfu 40.12%",
    "deepspeed": lambda n: (
        f"[{clock(n)},001] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[1e-05]"
    ),
    "stable-baselines": lambda n: f"|    total_timesteps   | {n * 2048}       |",
    "rllib": lambda n: f"iter: {n} episode_reward_mean: {loss(n):.2f}",
    "spacy": lambda n: f"  0  {n * 200:7d}   {loss(n):8.2f}   {loss(n) * 3:8.2f}   71.22",
    "jax": lambda n: f"I1120 08:14:55.123456 140 logging_writer.py:48] [{n}] loss={loss(n):.5f}",
    "maxtext": lambda n: (
        f"completed step: {n}, seconds: 2.1, TFLOP/s/device: 99.1, total_weights: 65, loss: 2.1"
    ),
    "json": lambda n: f'{{"step": {n}, "loss": {loss(n):.4f}, "time": {1.7e9 + 7 * n}}}',
    "mllog": lambda n: (
        f':::MLLOG {{"time_ms": {1700000000000 + 7000 * n}, "key": "loss", "value": {loss(n):.4f}, '
        f'"metadata": {{"samples_count": {n * 16}}}}}'
    ),
    "a language of its own": lambda n: f"Schritt {n}: Verlust {loss(n):.3f}",
    "items": lambda n: f"processed {n * 32} of many",
    "torchtune": lambda n: f"1|{n}|Loss: {loss(n):.6f}:   1%|| {n}/90000 [00:09<9:00:00, 1.1s/it]",
    "dots": lambda n: "." if n % 60 else ".\n",
}


def recorded() -> dict[str, list[str]]:
    found = {}
    for path in sorted(LOGS.iterdir()):
        if path.suffix != ".yaml" and path.stem not in NOT_HEALTHY:
            text = path.read_bytes().decode("utf-8", "replace")
            found[path.name] = [line for line in re.split("[\r\n]+", text) if line.strip()]
    return found


RECORDED = recorded()
# Seconds per step, and hours of such a run.
RATES = [(2, 2.0 if os.environ.get("HPCRUN_TEST_ALL") else 0.5), (45, 2.0)]


class Replay:
    """A log that is written while a watcher looks at it, in simulated time."""

    def __init__(self, folder: Path) -> None:
        for name in ("attempts/0", "logs/0"):
            (folder / name).mkdir(parents=True)
        self.log = folder / "logs" / "0" / "rank-0.log"
        self.watch = StallWatch({"HPCRUN_RUN_DIR": str(folder)}, lambda _: None, Doer([]))
        self.now = 1_700_000_000.0

    def look(self, text: str = "") -> bool:
        """Write, advance half a minute and poll; return True if the run counts as stalled."""
        with self.log.open("a") as file:
            file.write(text)
        self.now += 30
        self.watch.look(self.now)
        return self.watch.reports > 0

    def seconds_until_stalled(self) -> int:
        for number in range(1, 400):
            if self.look():
                return 30 * number
        raise AssertionError("never stalled")


def chunks(form: Callable[[int], str], every: int, hours: float) -> Iterator[str]:
    """Return the output of a run per half minute, with a step every given number of seconds."""
    end = "" if form is FORMS["dots"] else "\n"
    before = 0
    for at in range(30, int(hours * 3600), 30):
        count = at // every
        yield "".join(form(n) + end for n in range(before + 1, count + 1))
        before = count


@pytest.mark.parametrize(("every", "hours"), RATES)
@pytest.mark.parametrize("name", FORMS)
def test_only_a_stopped_run_is_stalled(name: str, every: int, hours: float, tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    for number, text in enumerate(chunks(FORMS[name], every, hours)):
        assert not replay.look(text), (number, text)
    limit = replay.watch.limit()
    # An unknown format may be slower than it appears, so it gets the startup limit.
    assert limit <= 1800
    assert replay.seconds_until_stalled() <= limit + 30


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_log_is_stalled_only_after_its_end(name: str, tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    for line in RECORDED[name]:
        assert not replay.look(line + "\n"), line
    assert replay.seconds_until_stalled() <= replay.watch.limit() + 30


def test_enough_log_formats_are_replayed() -> None:
    assert len(FORMS) + len(RECORDED) >= 110


@pytest.mark.parametrize(
    "noise",
    [
        "[rank0]:[W1128 13:{n:02}:01 ProcessGroupNCCL.cpp:1250] waited {n} s for rank 3 (step 40)",
        "WARNING {clock} still waiting for the data loader, attempt {n}",
        "retrying the store ({n})",
        "GPU 0: util {n}%, memory {n} MiB, temperature {n}",
        "Epoch 0/9   ━━━━╸━━━━━━━ 40/90000 0:{n:02}:01 • 1:00:00 {n}.12it/s",
        "heartbeat {n}",
    ],
)
def test_repeated_output_of_a_hung_run_is_no_progress(noise: str, tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    for step in range(40):
        assert not replay.look(f"step {step + 1} loss {loss(step):.3f}\n")
    found = 0
    for n in range(100):
        if replay.look(noise.format(n=n % 60, clock=clock(n)) + "\n"):
            found = found or 30 * (n + 1)
    assert 1200 <= found <= 1260


def test_full_bar_does_not_define_the_progress_of_later_output(tmp_path: Path) -> None:
    """A bar shows the loading of data; the training then prints no recognizable progress."""
    replay = Replay(tmp_path)
    for n in range(1, 21):
        assert not replay.look(
            f"Map: {5 * n}%|   | {n * 50}/1000 [00:0{n % 10}<00:01, 50.1 it/s]\r"
        )
    for n in range(200):
        assert not replay.look(f"wrote {'abcdefghij'[n % 10]}.png\n")


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("step 40 loss 2.5", 40),
        ("[2026-11-20 10:00:00] Step: 40/1000 | loss 2.5", 40),
        ("{'loss': 2.5, 'step': 40}", 40),
        ('{"global_step": 40, "loss": 2.5}', 40),
        (" iteration       40/     100 | consumed samples", 40),
        ("iter 40: loss 2.5, time 12.3ms", 40),
        ("  4%|4         | 40/1000 [00:12<04:48,  3.3it/s]", 40),
        ("step: 1,950", 1950),
        ("step 1_950", 1950),
        ("step=1.950000e+03", 1950),
        ("\x1b[31mstep: 40  \x1b[32mloss: 2.1", 40),
        ("Epoch: [0][  40/90000]\tTime 0.3", 40),
        ("step:40 - actor/pg_loss:0.1", 40),
        ("{'loss': 2.5, 'epoch': 3.2}", None),
        ("batch_size: 8, 12 steps/s, ETA 3 h, 4/8 done", None),
        ("", None),
    ],
)
def test_step_is_read_from_a_line(text: str, step: int | None) -> None:
    assert read_step(text) == step


def test_log_is_read_from_the_last_position(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"step 1 lo")
    reader = LogReader(str(log))
    assert reader.has_moved() and reader.progress.step == 1
    with log.open("ab") as file:
        file.write(b"ss 2\nstep 2 loss 2\n\0\xff\n")
    assert reader.has_moved() and reader.progress.step == 2
    assert not reader.has_moved()
    log.write_bytes(b"step 7 loss 3\n")  # truncated, and begun anew
    assert reader.has_moved() and reader.progress.step == 7
    log.write_bytes(b"x" * 3_000_000 + b"\nstep 8 loss 3\n")
    assert reader.has_moved() and reader.progress.step == 8


def test_progress_detection_is_fast() -> None:
    """Half a minute of the fastest logs costs little, whatever their content."""
    import time

    lines = [FORMS[name](n) for n in range(40) for name in FORMS]
    begun = time.process_time()
    progress = Progress()
    for line in lines:
        progress.feed(line)
    assert time.process_time() - begun < 2  # about 0.15
    progress.feed("step " * 100_000 + "1")
    progress.feed("1" * 100_000)
    progress.feed("[=" * 100_000)
    assert time.process_time() - begun < 3
