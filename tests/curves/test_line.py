"""The line reader: output of frameworks and users, launcher prefixes, damage."""

from __future__ import annotations

import json
import math
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.curves.lines.document import read_document
from hpcrun.curves.lines.formats.known import FORMATS
from hpcrun.curves.lines.line import NEEDLES, read_line, read_mark, split_records
from hpcrun.curves.lines.tables import read_head
from hpcrun.curves.row import Mark, Row, TableHead
from tests.curves.printed import PRINTED, PROSE, Printed

IDS = [printed.line[:60] for printed in PRINTED]


def row_of(line: str, table: TableHead | None = None) -> Row | None:
    """Return the row of a line that is one by itself, whatever else the log holds."""
    shown = read_line(line, table)
    row = shown[1] if shown is not None and isinstance(shown[1], Row) else None
    return row if row is not None and row.is_sure else None


@pytest.mark.parametrize("printed", PRINTED, ids=IDS)
def test_line_is_read(printed: Printed) -> None:
    row = row_of(split_records(printed.line.encode())[-1].decode())
    assert row is not None
    assert (row.step, row.epoch, row.scope.split) == (printed.step, printed.epoch, printed.split)
    values = dict(row.values)
    assert {name: values.get(name) for name in printed.values} == pytest.approx(printed.values)
    if "loss" not in printed.values:
        assert "loss" not in values


@pytest.mark.parametrize("line", PROSE, ids=[line[:60] for line in PROSE])
def test_other_lines_yield_nothing(line: str) -> None:
    assert row_of(line) is None


EXAMPLES = [printed.line for printed in PRINTED] + [form.example for form in FORMATS]


def test_every_example_contains_a_needle() -> None:
    lines = [line.lower().encode() for line in EXAMPLES]
    assert [line for line in lines if not any(needle in line for needle in NEEDLES)] == []


@pytest.mark.parametrize("line", EXAMPLES, ids=[line[:60] for line in EXAMPLES])
def test_reading_is_independent_of_the_digits(line: str) -> None:
    """With other digits a line says the same of other values: templates build on that."""
    first = row_of(line)
    # Exponents are kept, and so is the fraction of a count printed as 794.0.
    changed = re.sub(
        r"[eE][-+]?\d+|\.0+(?!\d)|(\d)",
        lambda digit: "3475869152"[int(digit[1])] if digit[1] else digit[0],
        line,
    )
    other = row_of(changed)
    assert first is not None and other is not None
    assert (first.scope.split, first.bar, len(first.values)) == (
        other.scope.split,
        other.bar,
        len(other.values),
    )
    assert (first.step is None, first.epoch is None) == (other.step is None, other.epoch is None)


@pytest.mark.slow
@given(st.sampled_from(EXAMPLES), st.lists(st.tuples(st.integers(0, 300), st.characters())))
def test_damage_does_not_crash(line: str, damage: list[tuple[int, str]]) -> None:
    letters = list(line)
    for place, letter in damage:
        letters[place % len(letters)] = letter
    read_line("".join(letters))


@given(st.sampled_from(EXAMPLES), st.integers(0, 300))
def test_truncated_line_does_not_crash(line: str, end: int) -> None:
    read_line(line[:end])
    read_line(line[end:])


WORDS = st.sampled_from(
    [
        *("the", "a", "loss", "step", "is", "of", "at", "3", "2.5", "was", "we", "train", "and"),
        *("epoch", "too", "high,", "model.", "then", "loss:", "step:", "(see)", "after", "lr"),
        *("best", "it", "our", "when", "results", "for", "with", "validation"),
    ]
)


@pytest.mark.slow
@given(st.lists(WORDS, min_size=3, max_size=14))
@settings(max_examples=300)
def test_prose_yields_only_named_losses(words: list[str]) -> None:
    """Words in any order: where a row comes out, its numbers stand behind their names."""
    line = " ".join(words)
    row = row_of(line)
    if row is None:
        return
    for name, value in row.values:
        number = f"{value:g}"
        word = name.rpartition("_")[2].split(" ")[-1].split(".")[-1]
        # The split may be in between ("loss train 3"), and so may a parenthesis ("loss (see) 3").
        between = (
            r"(?: \(see\))?[:.,]? (?:is |was |(?:at |for |after |of )?"
            r"(?:(?:step|epoch)(?: [\d.]+:?|:) (?:is |was )?)?)(?:(?:train|validation) )?"
        )
        behind = re.search(re.escape(word) + between + re.escape(number), line)
        assert behind or re.search(rf"{re.escape(number)} (?:(?:train|validation) )?{word}", line)


@pytest.mark.parametrize("pair", ["0.5/0.75", "3 of 2.5", "[0.5, 0.75]", "1,000/2.5", "nan/3"])
def test_split_before_a_pair_of_numbers_is_harmless(pair: str) -> None:
    row = row_of(f"epoch 3 train: {pair} loss: 2.5")
    assert row is None or dict(row.values)["loss"] == 2.5


@given(st.text(max_size=200))
def test_any_text_does_not_crash(text: str) -> None:
    read_line(text)


@given(st.binary(max_size=200))
def test_any_bytes_do_not_crash(data: bytes) -> None:
    read_line(data.decode("utf-8", "replace"))


HOSTILE = [
    "[" * 65536,
    "{" * 65536,
    "(" * 65536,
    "loss " * 13000,
    "loss: " * 10000,
    "loss: 1 " * 8000,
    "step 1 loss 2 a " * 4000,
    "a " * 32000,
    "a.b-c/" * 10000,
    "1 " * 32000,
    "1," * 32000,
    "1:" * 32000,
    "=" * 65536,
    "- " * 32000,
    "| " * 32000,
    "{'loss': 1, " * 5000,
    "{'loss': {'a': " * 4000,
    "'epoch': " * 7000,
    "{'" + "'epoch': " * 7000,
    '{"loss": ' * 7000,
    "{'a': tensor(" * 5000,
    "{'a': \"" + "\\" * 60000,
    "12/100 [00:10<01:20, " * 3000,
    "12/100 [00:10<01:20, 1.1it/s, " + "[" * 60000,
    "12/100 [00:10<01:20, 1.1it/s, " + "a=[1] " * 10000,
    "Epoch " * 10000,
    "Epoch 1" + " " * 65000 + "x",
    "resuming from " * 4000,
    "loaded checkpoint " * 3500,
    "step" + " " * 65000 + "1",
    "[INFO] " * 9000,
    "2026-11-20 08:04:09 " * 3000,
    "\x1b[" * 30000,
    "\x1b]" + "a" * 65000,
    "-" * 65000 + "loss",
    " " * 65000 + "loss: 1",
    "a,step,loss" * 6000,
    "epoch,loss," * 6000,
    "validation loss at " * 3000,
    "s:0 trl:" * 8000,
    "1/2 - 3s - loss: " * 4000,
    " 1/2  1G" + " 1.5" * 15000,
    "OVERFLOW! loss scale " * 3000,
    "step:1 - " * 7000,
]


@pytest.mark.slow
@pytest.mark.parametrize("line", HOSTILE, ids=[line[:24] for line in HOSTILE])
def test_hostile_lines_are_read_in_linear_time(line: str) -> None:
    """64 KiB in a moment, whatever is in them; by the square it would be a minute."""
    yolo = TableHead("columns", ("Epoch", "gpu_mem", "box", "total"))
    for table in (None, yolo):
        assert min(_seconds(line, table) for _ in range(3)) < 1


def _seconds(line: str, table: TableHead | None) -> float:
    begin = time.process_time()
    read_line(line, table)
    return time.process_time() - begin


@pytest.mark.parametrize("bar", ["5/9 [00:01<00:09,  1.5it/s]", "3it [1:02:03, 2.5s/it, loss=0.5]"])
def test_dictionary_next_to_a_bar_is_a_separate_record(bar: str) -> None:
    logged, drawn = b"{'loss': 2.5}", f" 56%|##  | {bar}".encode()
    assert split_records(drawn + logged) == [drawn, logged]
    assert split_records(logged + drawn) == [logged, drawn]
    assert split_records(b"[08:04:09]" + logged) == [b"[08:04:09]" + logged]


def test_epoch_end_after_a_message_and_a_bar_is_a_record() -> None:
    drawn = b"499/500 [======>.] - ETA: 0s - loss: 0.398Epoch 00004: val_acc improved, saving to m"
    ended = b"500/500 [========] - 51s 102ms/step - loss: 0.3986 - val_loss: 0.3770"
    assert split_records(drawn + ended) == [drawn, ended]
    assert split_records(ended) == [ended]
    assert split_records(b"epoch: 1 [lr 0.1] " + ended) == [b"epoch: 1 [lr 0.1] " + ended]


def test_two_records_on_a_line_are_split() -> None:
    line = b"[rank1]: step 5/30 loss 3.5[rank0]: step 5/30 loss 7.5"
    shown = [row_of(record.decode()) for record in split_records(line)]
    assert [(row.rank, row.values) for row in shown if row] == [
        (1, (("loss", 3.5),)),
        (0, (("loss", 7.5),)),
    ]
    cut = b"[default1]:step 18 loss [default0]:step 16 loss 2.5"  # what torchrun's tee begins with
    assert [row_of(record.decode()) is not None for record in split_records(cut)] == [False, True]
    assert split_records(b"[rank0]: [rank0]: step=1 loss=2") == [b"[rank0]: [rank0]: step=1 loss=2"]


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("Epoch 3/20", Mark(epoch=3.0)),
        ("Epoch: 3", Mark(epoch=3.0)),
        ("Epoch 3 Summary:", Mark(epoch=3.0)),
        ("Epoch: 03 | Epoch Time: 0m 12s", Mark(epoch=3.0, seconds=12.0)),
        ("epoch 3 >>>>>>>>>", Mark(epoch=3.0)),
        ("Entering Epoch:3", Mark(epoch=3.0)),
        ("Epoch 3/20 started", Mark(epoch=3.0)),
        ("Epoch 3 begins | lr=0.0095", Mark(epoch=3.0)),
        ("Epoch 14, lr=4.8905121702311534e-05", Mark(epoch=14.0)),
        ("Epoch 03/20  ||  LR: 1.20e-05", Mark(epoch=3.0)),
        ("Epoch 3 of 20 took 12.5s", Mark(epoch=3.0)),
        ("Epoch 3 out of 20 ", Mark(epoch=3.0)),
        ("Epoch: [3 | 20] LR: 0.100000", Mark(epoch=3.0)),
        ("=>> Epoch 3 Metrics ===", Mark(epoch=3.0)),
        ("Epoch 3 starting, Learning Rate: 0.1", Mark(epoch=3.0)),
        ("#####EPOCH 3/100 #####", Mark(epoch=3.0)),
        ("Eval epoch: 3", Mark(epoch=3.0, split="eval")),
        ("-- Validation epoch 3/9 --", Mark(epoch=3.0, split="eval")),
        ("Test Epoch 3", Mark(epoch=3.0, split="test")),
        ("Training epoch: 3", Mark(epoch=3.0)),
        ("===== Starting epoch 0 ... =====", Mark(epoch=0.0)),
        ("begin training epoch 1", Mark(epoch=1.0)),
        ("Beginning of Epoch 1/16, Total Micro Batches 460", Mark(epoch=1.0)),
        ("[rank0]: Epoch [3/20]", None),
        (
            "slurmstepd: error: *** JOB 1234 ON gpu-01 CANCELLED AT 2026-03-25T10:34:07 DUE TO "
            "PREEMPTION ***",
            Mark(restart=True),
        ),
        (
            "slurmstepd: error: *** JOB 1234 ON gpu-01 CANCELLED AT 2026-03-25T10:34:07 DUE TO "
            "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
            Mark(restart=True),
        ),
        (
            "slurmstepd: error: *** JOB 1234 ON gpu-01 CANCELLED AT 2026-03-25T10:34:07 DUE TO "
            "TIME LIMIT ***",
            None,
        ),
        ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-03-25T10:34:07 ***", None),
        (
            "so the end was: *** STEP 12.0 ON n CANCELLED AT 2026-03-25T10:34:07 DUE TO PREEMPTION",
            Mark(restart=True),
        ),
        ("Resuming training from checkpoint at step 500", Mark(restart=True, step=500)),
        ("Resuming training from /runs/a/checkpoint-500", Mark(restart=True, step=500)),
        ("  Continuing training from global step 500", Mark(restart=True, step=500)),
        (
            "successfully loaded checkpoint from /c [ t 1/2, p 1/1 ] at iteration 500",
            Mark(restart=True, step=500),
        ),
        ("=> loaded checkpoint 'best.pth' (epoch 5)", Mark(restart=True)),
        ("Loaded checkpoint c.pt (epoch 3 @ 1200 updates)", Mark(restart=True, step=1200)),
        ("resume: None", None),
        ("resume_from_checkpoint: True", None),
        ("Epoch 44: early stopping", Mark(ends=True)),
        ("EarlyStopping counter: 3 out of 5", None),
        ("Epoch 5 took 12.3s", Mark(seconds=12.3)),
        ("Epoch 5 training time: 1:00:03", Mark(seconds=3603.0)),
        ("Training time 0:15:19", Mark(ends=True, seconds=919.0)),
        ("Epoch 3/20 of the past", None),
        ("resuming is not possible", None),
        ("    resumed from the saved state.", None),
        ("    epoch = 0", Mark(epoch=0.0)),
        ("+++ Epoch 1 +++", Mark(epoch=1.0)),
        ("Epoch(0/6)", Mark(epoch=0.0)),
        ("===> Resuming from checkpoint /runs/a", Mark(restart=True)),
    ],
)
def test_marks_are_read(line: str, mark: Mark | None) -> None:
    shown = read_line(line)
    if mark is None:
        assert shown is None or line.startswith("[rank0]")
    else:
        assert shown == ("mark", mark)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Step: 1000", 1000),
        ("-----Iteration: 1000-----", 1000),
        ("current step: 21th step", 21),
        ("          Learning iteration 5/1500          ", 5),
        ("[rank0]: === Starting iteration 12/90 ===", 12),
        ("Training step 7:", 7),
        ("Step 3 of the guide", None),
        ("steps = 5", None),
        ("Step 2: install the driver", None),
    ],
)
def test_step_heading_is_a_row_without_values(line: str, step: int | None) -> None:
    row = row_of(line)
    assert (row.step, row.values) == (step, ()) if step and row else row is None


@pytest.mark.parametrize(
    ("head", "row", "values"),
    [
        ("epoch,train_loss,val_loss", "3,0.5,0.75", {"loss": 0.5, "eval_loss": 0.75}),
        ("epoch, lr-AdamW, step, train_loss, val_loss", "0,,9,2.5,", {"loss": 2.5}),
        ("lr-Adam,step,train_loss,epoch", "0.25,49,,", {"lr": 0.25}),
        (
            "adv,n_updates,vf_loss,tcount,loss",
            "1.5,3,2.0,9,2.5",
            {"loss": 2.5, "vf_loss": 2.0, "adv": 1.5, "tcount": 9.0},
        ),
        ('"Step","run - train/loss"', '"30","2.5"', {"loss": 2.5}),
        ("Step\tTraining Loss\tValidation Loss", "500\t2.5\tNo log", {"loss": 2.5}),
        (
            "epoch     train_loss  valid_loss  accuracy  time",
            "0         0.50        0.75        0.900     00:12",
            {"loss": 0.5, "eval_loss": 0.75, "accuracy": 0.9},
        ),
        ("| epoch | loss | acc |", "| 1 | 2.5 | 0.5 |", {"loss": 2.5, "acc": 0.5}),
        ("┃ step ┃ loss ┃", "│ 10 │ 2.5 │", {"loss": 2.5}),
        ("│ step │ loss │", "│ 10 │ 2.5 │", {"loss": 2.5}),
        ("║ epoch ║ loss ║", "║ 1 ║ 2.5 ║", {"loss": 2.5}),
        ("step train_loss val_loss", "10 2.5 2.6", {"loss": 2.5, "eval_loss": 2.6}),
        ("step,loss", "10,nan", {"loss": math.nan}),
        (
            "Step\tLR\tTrain Loss\tVal. Loss\t",
            "3.0|0.1|2.5|2.75|",
            {"lr": 0.1, "loss": 2.5, "eval_loss": 2.75},
        ),
        (",step,loss", "0,10,2.5", {"loss": 2.5}),
        (
            "Epoch\t\tStep\t\tBox-loss\t\tMask-loss",
            "2\t\t30\t\t2.5\t\t0.75",
            {"Box-loss": 2.5, "Mask-loss": 0.75},
        ),
        (
            "E    #       LOSS NER  ENTS_F",
            "  0     200        9.5   10.00",
            {"LOSS NER": 9.5, "ENTS_F": 10},
        ),
        (
            "epoch    train_loss    valid_loss     dur",
            "1        2.5       2.75  0.12",
            {"loss": 2.5, "eval_loss": 2.75, "dur": 0.12},
        ),
        ("# step loss", "10 2.5", {"loss": 2.5}),
        (
            "epoch       main/loss   val/loss",
            "1           2.5         2.75",
            {"loss": 2.5, "eval_loss": 2.75},
        ),
        (
            "Epoch,Train_loss,Val_loss",
            "1,\"tensor(2.5, device='cuda:0', grad_fn=<Div0>)\",\"tensor(2.75, device='cuda:0')\"",
            {"loss": 2.5, "eval_loss": 2.75},
        ),
    ],
)
def test_table_rows_are_read_by_their_head(head: str, row: str, values: dict[str, float]) -> None:
    shown = read_line(head)
    assert shown is not None and isinstance(shown[1], TableHead)
    read = row_of(row, shown[1])
    assert read is not None and dict(read.values) == pytest.approx(values, nan_ok=True)
    assert row_of("some other line", shown[1]) is None
    assert row_of(row) is None


def test_unnamed_index_column_is_the_step_without_another() -> None:
    for head, step in ((",loss,val_loss", 7), (",epoch,loss", None)):
        shown = read_line(head)
        assert shown is not None and isinstance(shown[1], TableHead)
        row = row_of("7,2.5,2.75", shown[1])
        assert row is not None and row.step == step


def test_table_cell_may_be_a_fraction() -> None:
    prefix = "2026-11-20 08:04:09 [INFO]: "
    shown = read_line(f"{prefix}   Epoch       Batch       box      conf     total  nTargets")
    assert shown is not None and isinstance(shown[1], TableHead)
    for step in (0, 40):
        row = row_of(
            f"{prefix}    2/29{step:>8}/165     0.172      1.99       149      81.4", shown[1]
        )
        assert row is not None and (row.step, row.total, row.epoch) == (step, 165, 2.0)
        assert dict(row.values) == {"box": 0.172, "conf": 1.99, "loss": 149, "nTargets": 81.4}
    assert row_of(f"{prefix}Extracting 40/438, # of instances 2641", shown[1]) is None


def test_table_row_may_have_an_extra_empty_cell() -> None:
    shown = read_line("EPOCH\tTIME\tLEARNING_RATE\tTRAIN_LOSS\tDEV_LOSS\tDEV_F1")
    assert shown is not None and isinstance(shown[1], TableHead)
    row = row_of("3\t17:54:34\t0.1000\t14.25\t\t_\t0.5", shown[1])
    assert row is not None and row.epoch == 3
    assert dict(row.values) == {"lr": 0.1, "loss": 14.25, "DEV_F1": 0.5}
    assert row_of("3\t17:54:34\t0.1000\t14.25\t2.5\t_\t0.5", shown[1]) is None


@pytest.mark.parametrize(
    "line",
    [
        "the step, the loss",
        "loss",
        "step loss",
        "def f(step, loss):",
        "loss, optimizer, step = a, b",
        "epoch step and then the loss",
    ],
)
def test_other_lines_are_no_table_head(line: str) -> None:
    shown = read_line(line)
    assert shown is None or line == "step loss"


def test_document_with_several_column_objects_is_read() -> None:
    losses = [4.5, 4.25, 4.0]
    document = {
        "run": {"lr": 0.1, "steps": [10, 20]},
        "epoch": {"x": [0, 1], "val_iter_loss": [2.5, 2.25]},
        "iter": {"x": [0, 1, 2], "train_iteration_loss": losses},
    }
    rows = read_document(json.dumps(document)) or []
    evaluated = [row for row in rows if row.scope.split == "eval"]
    assert [(row.epoch, row.values) for row in evaluated] == [
        (0.0, (("eval_loss", 2.5),)),
        (1.0, (("eval_loss", 2.25),)),
    ]
    trained = [(row.step, dict(row.values)["loss"]) for row in rows if row.scope.split == "train"]
    assert trained == [*enumerate(losses)]


@pytest.mark.parametrize("key", ["epoch_{}", "{}"])
def test_document_with_an_object_per_epoch_is_read(key: str) -> None:
    document = {key.format(epoch): {"train_loss": 5.5 - epoch} for epoch in range(1, 4)}
    rows = read_document(json.dumps(document)) or []
    assert [(row.epoch, row.values) for row in rows] == [
        (epoch, (("loss", 5.5 - epoch),)) for epoch in (1.0, 2.0, 3.0)
    ]


def test_tensorboard_export_is_read() -> None:
    document = {"runs/Mar03/loss/train": [[1677844801.5, 0, 2.5], [1677844802.5, 1, 2.25]]}
    rows = read_document(json.dumps(document)) or []
    assert [(row.step, row.values) for row in rows] == [
        (0, (("loss", 2.5),)),
        (1, (("loss", 2.25),)),
    ]


def test_patterns_are_fast_after_unusual_blanks() -> None:
    for blank in ("\xa0", "\u2003", "\u3000", " ", "=", "★"):
        assert read_mark(blank * 60 + "epoch loss") is None


def test_non_english_words_in_any_case_do_not_crash() -> None:
    for line in ("kayip: 0.5 epoch", "VALİDASİ epoch 3", "KAYIP: 2.5", "ſtrata epoch"):
        read_line(line)
    assert read_line("[1]\ttrain-rmse:1,233.5\teval-rmse:0.9") is not None


def test_document_with_a_list_per_split_is_read() -> None:
    points = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0}]
    rows = read_document(json.dumps({"train": points, "val": points})) or []
    assert [(row.scope.split, row.step) for row in rows] == [
        ("train", 1), ("train", 2), ("eval", 1), ("eval", 2)
    ]  # fmt: skip


def test_separators_alone_are_no_table_head() -> None:
    assert [read_head(text) for text in ("|   |", ",,", "\t")] == [None] * 3


def test_names_followed_by_numbers_are_no_table_head() -> None:
    row = row_of("kl:0.02,loss:8.8,entropy:4.2")
    assert row is not None and dict(row.values) == {"kl": 0.02, "loss": 8.8, "entropy": 4.2}


@pytest.mark.parametrize("between", ["", "   "])
def test_text_after_a_bar_is_a_separate_record(between: str) -> None:
    bar = b" 75%|###   | 45/60 [00:01<00:00, 27.59it/s]"
    for line in (
        b"slurmstepd: error: *** JOB 47 ON n01 CANCELLED AT 2026-11-20T08:14:55 DUE TO PREEMPTION",
        b"INFO:root:step 45 | loss:2.5 lr:6e-06",
        b"wandb: Tracking run with wandb version 0.21.1",
    ):
        whole = between.encode() + line
        assert split_records(bar + whole) == [bar, whole]
    assert split_records(bar + b"\x1b[A") == [bar + b"\x1b[A"]
    assert split_records(bar + b"  ") == [bar + b"  "]
