"""Lines that are metrics, and lines that only look like metrics."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.curves.lines.generic import read_generic
from hpcrun.curves.lines.line import read_line
from hpcrun.curves.lines.log_reader import LogReader
from hpcrun.curves.report.parsed import Samples
from hpcrun.curves.row import Row
from hpcrun.curves.store import Store
from tests.curves.parsing import parse_chunks

# Line -> step, {name: value}.
MEASURED: list[tuple[str, int | None, dict[str, float]]] = [
    (
        '{"step": 3, "loss": 2.1, "lr": 1e-4, "grad_norm": 1.5, "tokens_per_second": 21000.0, '
        '"step_seconds": 0.19, "memory_allocated_bytes": 459000000}',
        3,
        {
            "loss": 2.1,
            "lr": 1e-4,
            "grad_norm": 1.5,
            "tokens_per_second": 21000.0,
            "step_seconds": 0.19,
            "memory_bytes": 459000000,
        },
    ),
    ('{"step": 50, "eval_loss": 1.9}', 50, {"eval_loss": 1.9}),
    ("step: 1,000, loss: 2.5", 1000, {"loss": 2.5}),
    ("step 1,000, loss 2.5", 1000, {"loss": 2.5}),
    ("step:3\tloss:2.5", 3, {"loss": 2.5}),
    ("step 3 loss 2.5 tok/s 1234", 3, {"loss": 2.5, "tokens_per_second": 1234}),
    (
        "step 3 ppl 9.5 loss 2.5 samples/s 12",
        3,
        {"loss": 2.5, "samples_per_second": 12, "ppl": 9.5},
    ),
    (
        "step 3: loss 2.5 | throughput 99 tok/s 12.5 ms",
        3,
        {"loss": 2.5, "tokens_per_second": 99},
    ),
    # A rate without a key may be in thousands, in parentheses, and followed by other names.
    *(
        (
            f"step 3 loss 2.5 {rate} mfu 40.5%",
            3,
            {"loss": 2.5, "tokens_per_second": 37500, "mfu": 40.5},
        )
        for rate in ("37.5k tok/s", "37.5 K tokens/sec", "37500 tok/s", "(37.5k tokens/s)")
    ),
    ("step 3 loss 2.5 (611.5 examples/sec)", 3, {"loss": 2.5, "samples_per_second": 611.5}),
    ("step 3 loss 2.5 (3.25 sec)", 3, {"loss": 2.5}),
    # Of a metric that is summarized by its mean and spread, the mean counts.
    ('{"step": 3, "Loss/x": {"mean": 2.5, "std": 0.25, "n": 7}}', 3, {"Loss/x": 2.5}),
    ("step 3 loss 2.5 loss_std 0.25", 3, {"loss": 2.5, "loss_std": 0.25}),
    # A second loss of an evaluation is one of that evaluation, too.
    (
        '{"step": 3, "split": "val", "loss": 1.5, "average_loss": 2.5}',
        3,
        {"eval_loss": 1.5, "eval_average_loss": 2.5},
    ),
    ('{"loss": 1.5}', None, {"loss": 1.5}),
    ('{"global_step": 40, "step": 4, "train_loss": 1.5}', 40, {"loss": 1.5}),
    ('{"step": 4, "loss": 1.5, "train_loss": 1.6}', 4, {"loss": 1.5, "train_loss": 1.6}),
    ('{"step": 4, "Loss": 1.5}', 4, {"loss": 1.5}),
    ('{"step": 4, "loss": -Infinity}', 4, {"loss": -math.inf}),
    ('{"step": 4, "loss": 1.5, "done": true, "tag": "x", "t": {"a": 1}}', 4, {"loss": 1.5}),
    ('{"step": 4, "loss": 1.5, "reward/mean": 0.5}', 4, {"loss": 1.5, "reward/mean": 0.5}),
    ('{"step": 4, "split": "val", "loss": 1.5, "lr": 0.1}', 4, {"eval_loss": 1.5, "lr": 0.1}),
    ('{"step": null, "loss": 1.5}', None, {"loss": 1.5}),
    ('[rank0]: {"step": 4, "loss": 1.5}', 4, {"loss": 1.5}),
    ("Step # 10  loss= 2.31", 10, {"loss": 2.31}),
    ("ep02 it0010 loss=2.31", 10, {"loss": 2.31}),
    ("Train loss 10 2.310000 Grad Norm 1.500000", 10, {"loss": 2.31, "grad_norm": 1.5}),
    (
        "epoch 0 iter 10  lr = 0.5 loss = 2.31 * 1  time = 3",
        10,
        {"loss": 2.31, "lr": 0.5, "time": 3},
    ),
    ("Epoch: [1/9][10/90] Batch 0.25 (0.3) Remain 0:10:12 Loss 2.31", 10, {"loss": 2.31}),
    ("step=10 loss=2.31 lr=1e-4", 10, {"loss": 2.31, "lr": 1e-4}),
    ("step=10,loss=2.31,lr=1e-4", 10, {"loss": 2.31, "lr": 1e-4}),
    ("step: 10, loss: 2.31", 10, {"loss": 2.31}),
    ("Step: 10 | Loss: 2.31 | Grad Norm: 1.5", 10, {"loss": 2.31, "grad_norm": 1.5}),
    ("step = 10, loss = 2.31", 10, {"loss": 2.31}),
    ("Iteration: 10/500, train loss: 2.31, ETA: 1:02:03", 10, {"loss": 2.31}),
    ("epoch: 2, step: 10, val_loss: 2.31", 10, {"eval_loss": 2.31}),
    ("step=1e3 loss=2", 1000, {"loss": 2.0}),
    ("step=10 loss=nan", 10, {"loss": math.nan}),
    ("step=10 loss=NaN", 10, {"loss": math.nan}),
    ("step=10 loss=-inf", 10, {"loss": -math.inf}),
    ("step=10 loss=Infinity", 10, {"loss": math.inf}),
    ("step=10 loss=.5 host=gpu-01 eta=0:10:00", 10, {"loss": 0.5}),
    ("step=10 loss=2.5 step_time=250ms", 10, {"loss": 2.5, "step_seconds": 0.25}),
    ("step=10 loss=2.5 step_time_ms=250", 10, {"loss": 2.5, "step_seconds": 0.25}),
    ("step=10 loss=2.5 step_time=0.25", 10, {"loss": 2.5, "step_time": 0.25}),
    ("step=10 loss=2.5 memory=2GiB", 10, {"loss": 2.5, "memory_bytes": 2.0**31}),
    ("step=10 loss=2.5 mem=2GB", 10, {"loss": 2.5, "memory_bytes": 2e9}),
    ("step=10 loss=2.5 eta=12h", 10, {"loss": 2.5}),
    ("loss: 2.31", None, {"loss": 2.31}),
    ("validation loss: 2.31", None, {"eval_loss": 2.31}),
    ("loss=2.31 lr=0.1", None, {"loss": 2.31, "lr": 0.1}),
    ("0: step=10 loss=2.5", 10, {"loss": 2.5}),
    ("  0: step=10 loss=2.5", 10, {"loss": 2.5}),
    ("[rank0]: step=10 loss=2.5", 10, {"loss": 2.5}),
    ("[default0]:step=10 loss=2.5", 10, {"loss": 2.5}),
    ("0: [rank0]: INFO: step=10 loss=2.5", 10, {"loss": 2.5}),
    ("INFO:root:step=10 loss=2.5", 10, {"loss": 2.5}),
    ("INFO:train.loop:step=10 loss=2.5", 10, {"loss": 2.5}),
    ("2026-11-20 08:04:09,098 - train - INFO - step=10 loss=2.5", 10, {"loss": 2.5}),
    ("2026-11-20 08:04:09 | INFO | step=10 | loss=2.5", 10, {"loss": 2.5}),
    ("2026-11-20T08:04:09.098Z step=10 loss=2.5", 10, {"loss": 2.5}),
    ("11/20/2026 08:04:09 - INFO - __main__ - step=10 loss=2.5", 10, {"loss": 2.5}),
    ("11/20 08:04:09 step=10 loss=2.5", 10, {"loss": 2.5}),
    ("[2026-11-20 08:04:09,098] [INFO] [t.py:7:log] step=10 loss=2.5", 10, {"loss": 2.5}),
    ("2026-11-20 08:04:09 - step: 10 - loss: 2.5", 10, {"loss": 2.5}),
    ("\x1b[32mstep=10\x1b[0m \x1b[1mloss=2.5\x1b[0m", 10, {"loss": 2.5}),
    ("\x1b]0;title\x07step=10 loss=2.5", 10, {"loss": 2.5}),
    ("\t 10%|#   | 3/30\rstep=10 loss=2.5", 10, {"loss": 2.5}),
    ("step=0 loss=2.5", 0, {"loss": 2.5}),
    # an unknown name next to others, without a separator
    ("epoch=1 step=5/120 loss=0.6 host_gb 0.4", 5, {"loss": 0.6, "host_gb": 0.4}),
    ("step 5 loss 0.6 perf/roofline 0.4", 5, {"loss": 0.6, "perf/roofline": 0.4}),
    ("[5/120] host_gb 0.4 loss 0.6 lr 0.1", 5, {"host_gb": 0.4, "loss": 0.6, "lr": 0.1}),
]

NOT_MEASURED = [
    # prose
    "the loss: 2.31 is too high, step: 3",
    "Starting at step: 10, the loss was 2.31",
    "Saving checkpoint at step=300 loss=2.1",
    "Final loss: 2.31 after 300 steps",
    "best step: 300, loss: 2.1",
    "Note: loss: 2.3",
    "step 10 of 100",
    "Error: loss=nan, step=3 (see above)",
    "loss scale: 65536",
    "Attempted loss scale: 65536, reducing to 32768",
    "loss: see the wiki",
    "step 3 see loss_fn 2 lines above the loss",
    "step 5 loss 0.6 and then host_gb 0.4",
    "step 5 warmup_steps 100 host_gb 0.4",
    "train_loop 3 loss 2.5 in step 4",
    # invalid or ambiguous numbers
    "step=10 loss=1e999",
    "step=10 loss=2.3.1",
    "step=10 loss=0x10",
    "step=-1 loss=2.5",
    "step=1.5 loss=2.5",
    "step=nan loss=2.5",
    "step=9007199254740993 loss=2.5",
    "step: 10, loss: 2,310",
    "step=10 loss=2.5/3",
    "step=10 loss=",
    "loss",
    "loss=",
    "=2.5 step=1",
    # configurations and environments
    "lr=1e-4",
    "step: 30, lr: 0.1, gamma: 0.1",
    "steps=1000 lr=1e-4 warmup_steps=100",
    "max_steps: 100, lr: 0.1, save_steps: 10",
    "    loss: 0.5",
    "loss: 0.5,",
    "loss: cross_entropy",
    "LOSS=2.5",
    "loss_weight: 2.5",
    "chosen: 1.5, rejected: 0.5, loss: 0.69",
    "  - loss: 0.5",
    "- loss: 0.5",
    "STEP=10 LR=0.1",
    '{"config": {"step": 3, "loss": 2.1}}',
    '{"parameter_hash": "ab12", "rank": 0}',
    '{"step": 30, "gamma": 0.1, "lr": 0.1}',
    '{"learning_rate": 0.1, "max_steps": 100, "loss": "mse"}',
    '{"step": 3, "checkpoint_bytes": 12345}',
    '{"step": 3, "loss": null}',
    '{"step": 3, "loss": true}',
    '{"step": 3, "loss": [2.1]}',
    '{"step": true, "loss": 2.1}',
    '{"step": -3, "loss": 2.1}',
    '{"step": "three", "loss": 2.1}',
    '{"step": 3, "loss": 1e999}',
    '{"step": 3, "loss": 2.1',
    '{"step": 3, "loss": 2.1} trailing',
    '"step": 3, "loss": 2.1',
    '  "loss": 2.1,',
    "[" * 50_000 + '"loss": 1',
    '{"loss": ' + "[" * 20_000 + "]" * 20_000 + "}",
    # source code, tracebacks and commands
    "loss = 2.0",
    "    loss = 0.0",
    "train(step=3, loss=2.1)",
    "TrainOutput(global_step=100, training_loss=2.1)",
    "def train(step=3, loss=2.1):",
    "if step == 3: loss = 2.1",
    "python train.py --step=3 --loss=2.1",
    "+ step=3 loss=2.1",
    "export step=3 loss=2.1",
    'print(f"step={step} loss={loss}")',
    "step={step} loss={loss}",
    "Namespace(step=3, loss=2.1)",
    "# step=3 loss=2.1",
    "    # step: 3, loss: 2.1",
    "    loss = 1.5  # loss: 2.1 at step 4",
    "step: 1,000,2, loss: 2.5",
    "raise ValueError(loss=2.1)",
    # URLs and paths
    "https://example.org/?step=3&loss=2.1",
    "url=https://example.org/?step=3&loss=2.1",
    "https://example.org/ step=3 loss=2.1",
    "/runs/step=3/loss=2.1",
    "runs/step=3,loss=2.1.ckpt",
    "Saved to step=3-loss=2.1.ckpt",
]


def row_of(line: str) -> Row | None:
    """Read what stands behind a line's last carriage return, as a terminal shows it.

    What is a measurement only if it recurs is none here.
    """
    shown = read_line(line.rpartition("\r")[2])
    row = shown[1] if shown is not None and isinstance(shown[1], Row) else None
    return row if row is not None and row.is_sure else None


def test_step_in_thousands_is_marked_as_rounded() -> None:
    row = row_of("step:1K smpl:32K ep:101 epch:2.53 loss:1.226 grdn:34.825 lr:1.0e-05 updt_s:0.502")
    assert row is not None and (row.step, row.epoch, row.is_rounded) == (1000, 2.53, True)
    values = {"loss": 1.226, "grad_norm": 34.825, "lr": 1e-5, "step_seconds": 0.502}
    assert dict(row.values) == pytest.approx(values)


@pytest.mark.parametrize(
    ("line", "step", "epoch"),
    [
        ("Epoch: 2, global_step=25600", 25600, 2.0),
        ("[step=20/739328,epoch=0]", 20, 0.0),
        ("[epoch=1/2][batch=3/4]:", 3, 1.0),
        (" ---- batch: 010 ----", 10, None),
        ("   --> TIME: 2026-11-20 08:04:09 -- STEP: 24/36 -- GLOBAL_STEP: 1000025", 1000025, None),
    ],
)
def test_line_with_only_step_and_epoch_is_a_heading(
    line: str, step: int, epoch: float | None
) -> None:
    row = row_of(line)
    assert row is not None and (row.step, row.epoch, row.values) == (step, epoch, ())
    assert row_of(f"{line} saving") is None


@pytest.mark.parametrize(("line", "step", "values"), MEASURED, ids=[m[0][:50] for m in MEASURED])
def test_line_is_read(line: str, step: int | None, values: dict[str, float]) -> None:
    row = row_of(line)
    assert row is not None
    assert row.step == step
    assert dict(row.values) == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize(
    ("line", "step", "epoch", "values"),
    [
        ("- Train metrics: accuracy: 0.52 ; loss: 00nan", None, None, {"loss": math.nan}),
        ("step: 5, loss: -0inf", 5, None, {"loss": -math.inf}),
        ("[Epoch 3/500][  10:391]  Loss: 6.7 CE: 0.5 LR: 0.001", 10, 3.0, {"loss": 6.7}),
        ("[step 10/500][12:37] loss: 2.5", 10, None, {"loss": 2.5}),
        ("  [TRAIN DATA] avg. acc: 0.8 | avg. loss: 0.75", None, None, {"loss": 0.75}),
        (
            "epochs: 2, step: 7, lr: 0.1, loss: [landmark: 0.0499],sample/s: 294",
            7,
            2.0,
            {"loss": 0.0499},
        ),
        ("cur_epoch :   3|1000, weighted_loss : 86.4, loss : 6.5", None, 3.0, {"loss": 6.5}),
    ],
)
def test_unusual_lines_are_read(
    line: str, step: int | None, epoch: float | None, values: dict[str, float]
) -> None:
    read = read_line(line)
    assert read is not None and isinstance(row := read[1], Row)
    assert (row.step, row.epoch) == (step, epoch)
    assert {name: dict(row.values)[name] for name in values} == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize("line", NOT_MEASURED, ids=[line[:50] for line in NOT_MEASURED])
def test_look_alike_yields_nothing(line: str) -> None:
    assert row_of(line) is None


@pytest.mark.slow
def test_source_code_yields_no_values() -> None:
    """Python's own library, code and prose: nothing is trained in it."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [*library.glob("*.py"), *library.glob("[a-e]*/*.py")]
    assert len(files) > 100
    for path in files:
        reader = LogReader()
        pieces = [*reader.feed(path.read_bytes()), *reader.finish()]
        store = Store()
        store.begin(0)
        store.add(pieces)
        assert all(not log.forms and not log.marks for log in store.proven_logs()), path


# Lines that are measurements if they recur; {} is the number.
RECURRING = [
    "loss: {}, rec_loss: 0.2",
    "loss={}, orth_loss=0.0018, total_loss=2.8637",
    "kl: 0.01, lr_multiplier: 1.0, loss: {}, entropy: 4.37",
    "kl:0.01113,lr_multiplier:1.000,loss:{},entropy:4.37",
    "Loss: {} Loss_u: 4.9e-03 Loss_v: 1.1e-02 L2: 1.097e+00",
    "Epoch 3 in static graph | Ave Loss: {}",
    "step 5: loss {} BPC, time 12.5ms",
    "epoch 1 our training of today has loss: {}",
    "Train 7, loss: {}, train acc: 0.95",
    # A number without a name is ignored.
    "Epoch  1 completed out of  20 loss:  {}",
    "Epoch 3 out of 10, loss {}",
    "| epoch 3 |  5000 samples | lr 0.1 | mean loss {}",
    "steps 100, seconds for 50 batch: 12.34 , loss: {}",
    "Epoch 3 [100/400] {} C.E. Loss, 50.5% Acc",
    "[3,    25/ 300] - Class: 7.1 -Encoder loss: 1.5 [lr: 7.52e-05] (1256.1 ms) loss: {}",
    "│   train_loss = {}",
    "-> Epoch 3 Finalizada | Train Loss: {}",
    "Train loss: box_loss=0.25, cls_loss=0.50, total={}",
    "06/02 10:11:12 AM train 100 {} 34.375000 62.500000",
]
# Lines that are measurements in any position.
EVIDENT = [
    "Epoch 0 Update 100 Cost {} PD 0.07 UD 1.4",
    "epoch 1 loss {} recall 0.2 ndcg 0.1",
    "[Epoch 0/30, Batch 5/73] [Losses: x 0.27, y 0.25, conf 4.5, total {}, recall: 0.5]",
    "[Fold 1 Ep 001] tr_loss={} tr_auc=0.49 | val_auc=0.36 thr=0.62 | 2.5s",
    "Epoch 3 | Ave Loss: {}",
    "Avg loss: {}",
    "[epoch:  9, iter:  60,100, lr:(1.930e-04,)] l_pix: {}",
    "Train: [0/50][0/6]\teta 0:08:30 lr 0.1\ttot_loss {} (0.5)\tmem 0MB",
]


def parsed(line: str, numbers: Sequence[float], name: str = "loss") -> list[float]:
    """Return the losses stored from a log of one line repeated with these numbers."""
    store, reader = Store(), LogReader()
    store.begin(0)
    for number in numbers:
        store.add(reader.feed((line.format(number) + "\n").encode()))
    return [sample.value for sample in Samples(store) if sample.name == name]


@pytest.mark.parametrize("line", RECURRING)
def test_unclear_measurement_is_accepted_after_recurring(line: str) -> None:
    assert parsed(line, [2.75, 2.5, 2.25, 2.125]) == [2.75, 2.5, 2.25, 2.125]
    assert parsed(line, [2.75, 2.5]) == []  # twice is no proof
    assert parsed(line, [2.5, 2.5, 2.5, 2.5]) == []  # a setting that is printed again
    assert parsed(line, [5, 7, 6, 3]) == []  # games won and lost


@pytest.mark.parametrize("line", ["Current learning rate: {}", "learning rate is {}"])
def test_learning_rate_on_its_own_line_is_read(line: str) -> None:
    both = f"epoch {{0}} loss 0.{{0}}5\n{line}"

    def rates(line: str, *rates: float) -> list[float]:
        store, reader = Store(), LogReader()
        store.begin(0)
        for epoch, rate in enumerate(rates):
            text = line.replace("{0}", str(epoch)).replace("{}", str(rate))
            store.add(reader.feed(f"{text}\n".encode()))
        return [sample.value for sample in Samples(store) if sample.name == "lr"]

    assert rates(both, 0.1, 0.01, 0.001) == [0.1, 0.01, 0.001]
    assert rates(both, 0.1, 0.1, 0.1) == []  # a setting
    assert rates(line, 0.1, 0.01, 0.001) == []  # of a sweep


def test_mean_number_of_steps_is_no_counter() -> None:
    """Not even where it happens to be whole."""
    row = read_generic("[ 230] ep=2300 steps=112.0 ploss=-0.5")
    assert row is not None and (row.step, row.epoch) == (230, 2300.0)


def test_evaluation_in_a_sentence_is_read() -> None:
    line = "The result of a network with a head is test acc: 76.82%, loss: {}"
    assert parsed(line, [2.75, 2.5, 2.25], "test_loss") == [2.75, 2.5, 2.25]
    assert parsed(line, [2.75, 2.5, 2.25]) == []


@pytest.mark.parametrize("line", EVIDENT)
def test_any_metric_name_is_accepted_after_a_step(line: str) -> None:
    assert parsed(line, [2.75]) == [2.75]


@pytest.mark.parametrize(
    "line",
    [
        "Validation result (greedy) at epoch 1, step 600: bleu: 1.5, loss: {}",
        "evl set : loss {}",
        "Epoch 3, test acc: 76.8%, loss: {}",
        "epoch: 0, 3/313, eval_acc: 37.5, loss: {}",
    ],
)
def test_evaluation_loss_is_accepted_at_once(line: str) -> None:
    name = "test_loss" if "test" in line else "eval_loss"
    assert parsed(line, [2.75], name) == [2.75]
    assert parsed(line, [2.75]) == []


PROSE = [
    "the loss of {} is too high: 3",
    "batch_size: 32, lr: 0.1, foo: 1, loss: {}",
    "Saved checkpoint at step 300 with loss {}",
    "best at step 3, loss: {}, acc: 0.5",
    "Epoch 5 best loss {} so far",
    "Lowest loss {} was reached at epoch 5",
    "Restoring epoch 5, loss {}",
    "ValueError: loss={}, step=3",
    "Trial 3 with lr=0.1 - final loss: {}",
    "Pretrained model - loss: {}, perplexity: 8.5",
    "Layer 3: loss {}",
    "lr: 0.1, wd: 0.01, hidden: 64, loss: {}",
    "profit: 12.5, loss: {}, trades: 8",
    "packet loss {}% at step 3 of the test",
    "expected loss {} at step 3, found another",
]


@pytest.mark.parametrize("line", PROSE)
def test_recurring_prose_and_settings_yield_nothing(line: str) -> None:
    assert parsed(line, [2.75, 2.5, 2.25, 2.125]) == []


def test_clear_lines_take_precedence_over_unclear_ones() -> None:
    lines = "".join(
        f"step: {n}, loss: {n}.5\n" + f"epoch {n} until now has loss: 0.{n}5\n" for n in range(1, 9)
    )
    run = parse_chunks("x", [(0, [lines.encode()])])
    assert run.curve.values("loss") == [n + 0.5 for n in range(1, 9)]


def test_truncated_last_line_yields_no_new_metric() -> None:
    lines = b"".join(b"step %d: loss 2.%d BPC, mfu 5.5%%\n" % (n, n) for n in range(1, 6))
    run = parse_chunks("x", [(0, [lines + b"step 6: loss 2.6 BPC, mfu 5."])])
    assert run.curve.values("loss")[-1] == 2.6


def test_loss_under_another_name_is_found() -> None:
    line = "Step {}: {} = {}.5\n"
    names = ("Train accuracy", "Cross entropy")
    log = "".join(line.format(n, name, n) for n in range(5) for name in names)
    curve = parse_chunks("x", [(0, [log.encode()])]).curve
    assert (curve.steps("loss"), curve.values("loss")) == ([*range(5)], [n + 0.5 for n in range(5)])
    assert curve.notes == ("no metric named loss: using Cross entropy",)
    called = parse_chunks("x", [(0, [log.encode(), b"Step 5: loss = 1.5\n"])]).curve
    assert (called.values("loss"), len(called.values("Cross entropy"))) == ([1.5], 5)


@pytest.mark.parametrize(
    "line",
    [
        "   2  {0} / 900 {1} = {0}.5 time = 2026-01-02 03:04:05.678901\n"
        "   2  {0} / 900 loss_box = 1.5 time = 2026-01-02 03:04:05.678999\n",
        "2026_01_02_03_04_05 [Step] {0} [Parts] loss_box 1.5 cls_loss 0.{0} box_error 4"
        " {1} {0}.5\n",
    ],
)
@pytest.mark.parametrize("name", ["whole_loss", "loss_overall", "loss_combined"])
def test_total_loss_is_the_loss(line: str, name: str) -> None:
    text = "".join(line.format(n, name) for n in range(100, 500, 100))
    curve = parse_chunks("x", [(0, [text.encode()])]).curve
    assert curve.steps("loss") == [*range(100, 500, 100)]
    assert curve.values("loss") == [n + 0.5 for n in range(100, 500, 100)]


def test_unusual_text_after_a_loss_is_harmless() -> None:
    line = "Step {}: loss: {}.5, val loss: 1.5, NDCG: {{'ndcg@5': 0.4}}, Hits: {{'hits@5': 0.{}}}\n"
    text = "".join(line.format(n, 9 - n, n) for n in range(1, 9))
    curve = parse_chunks("x", [(0, [text.encode()])]).curve
    assert curve.values("loss") == [9 - n + 0.5 for n in range(1, 9)]
    assert curve.values("eval_loss") == [1.5] * 8


@pytest.mark.parametrize("name", ["contrastive loss", "loss_pixel"])
def test_only_loss_is_the_loss_under_any_name(name: str) -> None:
    text = "".join(f"epoch {n}/9, {name}: {5 - n / 4}, acc: 0.5\n" for n in range(1, 10))
    curve = parse_chunks("x", [(0, [text.encode()])]).curve
    assert curve.values("loss") == [5 - n / 4 for n in range(1, 10)]
    assert curve.notes == (f"no metric named loss: using {name}",)
    two = text.replace("acc", "align loss")
    curve = parse_chunks("x", [(0, [two.encode()])]).curve
    assert curve.values("loss") == curve.values(name) == [5 - n / 4 for n in range(1, 10)]
    assert curve.notes[0].endswith("; --metric plots another (align loss)")


def test_losses_of_two_networks_without_steps_are_read() -> None:
    for line in ("Generator Loss: {}.5, Discriminator Loss: 514.8540\n", "{} [D loss: {}.5]\n"):
        text = "".join(line.format(n, n) for n in range(9))
        curve = parse_chunks("x", [(0, [text.encode()])]).curve
        assert curve.values("loss") == [n + 0.5 for n in range(9)]


def test_unlimited_counter_encloses_a_limited_one() -> None:
    line = "iteration:{} step:{}/400, NER loss:{}.5\n"
    places = [(around, step) for around in (1, 2, 3) for step in (100, 200, 300, 400)]
    text = "".join(line.format(*place, n) for n, place in enumerate(places))
    curve = parse_chunks("x", [(0, [text.encode()])]).curve
    assert curve.steps("loss") == [*range(100, 1300, 100)]


@pytest.mark.parametrize(("encoding", "epoch"), [("utf-8", "轮"), ("gb18030", "个epoch")])
def test_chinese_lines_are_read(encoding: str, epoch: str) -> None:
    text = "模型训练开始\n" + "".join(f"第{n}{epoch} 损失：{5 - n / 4}\n" for n in range(1, 10))
    curve = parse_chunks("x", [(0, [text.encode(encoding)])]).curve
    assert curve.values("loss") == [5 - n / 4 for n in range(1, 10)]
    assert curve.steps("loss") == [*range(1, 10)]


def test_overall_loss_is_chosen_among_several() -> None:
    line = "Epoch: [0]  [{}/90]  eta: 0:04:30  edge_loss: 0.1 (0.1)  predict_loss: {} (0.5)\n"
    text = "".join(line.format(n, n + 0.5) for n in range(1, 10))
    curve = parse_chunks("x", [(0, [text.encode()])]).curve
    assert curve.values("loss") == [n + 0.5 for n in range(1, 10)]
    suggestion = "--metric plots another (edge_loss)"
    assert curve.notes == (f"no metric named loss: using predict_loss; {suggestion}",)


def test_second_loss_of_an_evaluation_is_no_training_loss() -> None:
    row = row_of('{"split": "val", "step": 3, "eval_loss": 0.5, "loss": 0.75}')
    assert row is not None and "loss" not in dict(row.values)


def test_first_of_several_learning_rates_is_used() -> None:
    row = row_of("Iteration: 3, Generator Learning Rate: 2e-4, Discriminator lr: 1e-4, loss: 0.5")
    assert row is not None and dict(row.values)["lr"] == 2e-4
    row = row_of("step: 3, min_lr: 2e-4, loss: 0.5")
    assert row is not None and "lr" not in dict(row.values)


def test_output_of_another_process_after_a_bar_is_harmless() -> None:
    bar = "Epoch 0:  31%|### | {}/39 [00:35<02:33,  3.31s/it, v_num=29, train_loss={}]"
    log = "".join(bar.format(n, n + 0.5) + "\r" for n in range(1, 9))
    log += bar.format(9, 9.5) + "[rank: 2] Received SIGTERM: 15\n"
    curve = parse_chunks("x", [(0, [log.encode()])]).curve
    assert (curve.steps("loss"), curve.values("loss")[-1]) == ([*range(1, 10)], 9.5)


@pytest.mark.parametrize(
    ("line", "step", "epoch", "values"),
    [
        # The time of a batch is no batch number; two parts of a loss follow it.
        (
            "(3/9) LR: 0.5 | Batch: 0.25s | ETA: 3min | Loss: 1.5 | Loss(map/edge): 1.25/0.25",
            3,
            None,
            {"lr": 0.5, "step_seconds": 0.25, "loss": 1.5},
        ),
        ("【train】 epoch:2 3/9 loss:1.5", 3, 2.0, {"loss": 1.5}),
        ("Epoch: 02, trloss: 1.5, valloss: 1.25", None, 2.0, {"loss": 1.5, "eval_loss": 1.25}),
    ],
)
def test_other_training_lines_are_read(
    line: str, step: int | None, epoch: float | None, values: dict[str, float]
) -> None:
    logged = f"2026-11-20 08:04:09,098 - INFO - main.py - fit - 58 - {line}"
    for text in (line, logged):
        row = row_of(text)
        assert row is not None and (row.step, row.epoch, row.scope.split) == (step, epoch, "train")
        assert dict(row.values) == values
