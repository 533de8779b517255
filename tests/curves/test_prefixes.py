"""Line prefixes, and the time stamps in them."""

from __future__ import annotations

import calendar
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.curves.lines.prefixes import strip_prefixes
from hpcrun.curves.lines.times import find_time, read_time

MESSAGE = "step=1 loss=2"


@pytest.mark.parametrize(
    ("prefix", "rank", "label"),
    [
        ("[rank0]: ", 0, None),
        ("[rank0]:[rank0]: ", 0, None),
        ("[default3]:", 3, None),
        ("[Rank 2] ", 2, None),
        ("[rank: 4] ", 4, None),
        ("[1,5]<stdout>:", 5, None),
        ("[1,5]<stderr>:", 5, None),
        ("[1,mpirank:5,algo-1]<stdout>:", 5, None),
        ("2026-11-20T08:04:09.123456789Z stdout F ", None, None),
        ("I20261120 08:04:09 1234 dinov2 helpers.py:102] ", None, None),
        ("2026-11-20 08:04:09,123\tINFO train.py:317 in record_metrics -- ", None, None),
        ("12: ", None, 12),
        (" 0: ", None, 0),
        ("[3]:", None, 3),
        ("0: [rank1]: ", 1, 0),
        ("node1: ", None, None),
        ("gpu-a100-07.cluster: ", None, None),
        ("10.0.0.1: ", None, None),
        ("(worker pid=123, ip=10.0.0.1) ", None, None),
        ("\x1b[36m(TaskRunner pid=625502)\x1b[0m ", None, None),
        ("trainer-1  | ", None, None),
        ("stderr: ", None, None),
        ("GPU 3: ", 3, None),
        ("INFO:root:", None, None),
        ("INFO: ", None, None),
        ("[INFO] ", None, None),
        ("WARNING:tensorflow:", None, None),
        ("2026-11-20 08:04:09 ", None, None),
        ("2026-11-20 08:04:09,098 - train - INFO - ", None, None),
        ("2026-11-20 08:04:09.098 | INFO     | trainer.loop:run:12 - ", None, None),
        ("2026-11-20T08:04:09.098Z ", None, None),
        ("2026-01-24,15:34:58 | INFO | ", None, None),
        ("[2026-11-20 08:04:09,098] [INFO] [engine.py:12:step] [Rank 7] ", 7, None),
        ("[2026-11-20 08:04:09][INFO][trainer] ", None, None),
        ("11/20 08:04:09 - mmengine - INFO - ", None, None),
        ("[11/20 08:04:09 d2.utils.events]: ", None, None),
        ("I1120 08:04:09.123456 4242 train.py:12] ", None, None),
        ("[rank0]:I0124 15:34:58.736000 98415 torch/nn/distributed.py:1529] ", 0, None),
        ("Nov 20 08:04:09 node7 train[123]: ", None, None),
        ("[titan] 2026-11-20 08:04:09,098 - root - INFO - ", None, None),
        ("[NeMo I 2026-11-20 08:04:09 trainer:12] ", None, None),
        ("INFO 11-20 08:04:09 trainer.py:12] ", None, None),
        ("INFO - 11/20/26 08:04:09 - 0:00:12 - ", None, None),
        ("Fri Nov 20 08:04:09 2026 ", None, None),
        ("08:04:09 | ", None, None),
        # the same parts in other orders, joined by other marks
        ("2026-11-20 08:04:09,098:INFO: ", None, None),
        ("08:04:09,098:INFO: - ", None, None),
        ("20261120-08:04:09     ", None, None),
        ("[11.20.26|08:04:09] \t", None, None),
        ("Fri, 20 Nov 2026 08:04:09 train.py[line:227] INFO ", None, None),
        ("- train_net.py[line:177] - INFO:", None, None),
        ("- train_net.py[line:177] - INFO: ", None, None),
        ("2026-11-20 08:04:09 train.py(12) INFO: ", None, None),
        ("INFO [train.py:12] 2026-11-20 08:04:09 > ", None, None),
        ("[INFO 11/20/2026 08:04:09 AM ", None, None),
        ("2026-11-20 08:04:09,098 DBNet INFO: ", None, None),
        ("2026-11-20 08:04:09 [INFO]:    ", None, None),
        ("INFO:2026-11-20 08:04:09,098:", None, None),
        ("2026-11-20 08:04:09,098 [4711] INFO ", None, None),
        ("20-Nov-26 08:04:09 - ", None, None),
        ("20.11.2026 08:04:09 ", None, None),
        ("[1795161849.098] ", None, None),
        ("1795161849.098 ", None, None),
        ("trainer - INFO - ", None, None),
        ("root: INFO: ", None, None),
        ("root:INFO: ", None, None),
        ("<INFO> ", None, None),
        ("INFO> ", None, None),
        ("[10:04:09] --> ", None, None),
    ],
)
def test_prefixes_are_stripped(prefix: str, rank: int | None, label: int | None) -> None:
    line = strip_prefixes(prefix + MESSAGE)
    assert (line.text, line.rank, line.label) == (MESSAGE, rank, label)


@pytest.mark.parametrize(
    "text",
    [
        "[10/90] loss=2",
        "[Epoch 3][Batch 9] loss=2",
        "[step 10] loss=2",
        "[ 50/1251 ( 4%)] loss=2",
        "[1,  2000] loss: 2.187",
        "loss_0: 2.5",
        "step:3\tloss:2.5",
        "global_step:3\tloss:2.5",
        "Epoch: 3",
        "epoch 3: loss 2",
        "step1: loss 2",
        "top1: 76.5 top5: 93.0",
        "f1: 0.5 recall: 0.5",
        "- loss: 0.5",
        "10/90 loss: 0.5",
        "2.31 INFO",
        "[3] loss: 0.5",
        "1234567.5 loss",
        "--> loss: 0.5",
    ],
)
def test_measurements_are_not_stripped(text: str) -> None:
    assert strip_prefixes(text).text == text


def test_indentation_is_kept() -> None:
    assert strip_prefixes("0:     loss = 0.0").text == "    loss = 0.0"
    assert strip_prefixes("[rank1]:   loss: 0.5").text == "  loss: 0.5"


def test_split_in_a_prefix_is_kept() -> None:
    assert strip_prefixes("[2026-11-20 08:04:09,098][train_inner][INFO] - {}").tag == "train_inner"
    assert strip_prefixes("2026-11-20 08:04:09 | INFO | valid | loss 2").tag == "valid"


def test_trailing_source_location_is_stripped() -> None:
    assert strip_prefixes("INFO     step=1 loss=2       train.py:123").text == MESSAGE
    assert strip_prefixes("step=1 loss=2    (2490449:logging.py:145)").text == MESSAGE


AT = calendar.timegm((2026, 11, 20, 8, 4, 9))
OF_DAY = 8 * 3600 + 4 * 60 + 9.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-20 08:04:09 step", AT),
        ("2026-11-20T08:04:09Z step", AT),
        ("[2026-11-20 08:04:09,250] [INFO] step", AT + 0.25),
        ("2026/11/20 08:04:09 step", AT),
        ("2026-11-20T08:04:09+01:00", AT - 3600),
        ("2026-11-20 08:04:09 -0530", AT + 5.5 * 3600),
        ("11/20/2026 08:04:09 - INFO", AT),
        ("20/11/2026 08:04:09 - INFO", AT),
        ("11/20/2026 08:04:09 PM", AT + 12 * 3600),
        ("11/20/26 08:04:09", AT),
        ("20 Nov 2026 08:04:09 INFO", AT),
        ("20-Nov-26 08:04:09 INFO", AT),
        ("20.11.2026 08:04:09 INFO", AT),
        ("20261120-08:04:09 INFO", AT),
        ("Fri Nov 20 08:04:09 2026 step", AT),
        ('{"time": "2026-11-20T08:04:09Z", "loss": 2}', AT),
        ("\x1b[32m2026-11-20 08:04:09\x1b[0m step", AT),
        (
            "11/20 08:04:09 - mmengine",
            (31 + 29 + 31 + 30 + 31 + 30 + 31 * 2 + 30 + 31 + 19) * 86400 + OF_DAY,
        ),
        ("I0101 08:04:09.5 123 f.cc:1] step", OF_DAY + 0.5),
        ("Jan  1 08:04:09 node7 train[1]: step", OF_DAY),
        ("[08:04:09] step", OF_DAY),
        ("08:04:09.250 [I] step", OF_DAY + 0.25),
        ("step 1 eta 08:04:09", None),
        ("step 1 loss 2", None),
        ("5/10 [08:04:09<01:02:03, 1.1it/s]", None),
        ("2026-13-20 08:04:09", None),
        ("2026-11-20 08:64:09", None),
    ],
)
def test_time_stamps_are_parsed(text: str, seconds: float | None) -> None:
    assert read_time(text) == (None if seconds is None else pytest.approx(seconds, abs=1e-6))


def test_time_stamp_position_is_found() -> None:
    text = "[rank0]: [2026-11-20 08:04:09,098] [INFO] step 3"
    span = find_time(text)
    assert span is not None and text[slice(*span)] == "2026-11-20 08:04:09,098"


@pytest.mark.slow
@given(st.datetimes(datetime(2000, 1, 1), datetime(2050, 1, 1)))
def test_dates_match_the_standard_library(moment: datetime) -> None:
    seconds = calendar.timegm(moment.timetuple())
    assert read_time(f"{moment:%Y-%m-%d %H:%M:%S} step") == seconds
    assert read_time(f"{moment:%d %b %Y %H:%M:%S} step") == seconds
    assert read_time(f"{moment:%Y%m%d-%H:%M:%S} step") == seconds


@given(st.text(max_size=120))
def test_random_text_does_not_crash(text: str) -> None:
    read_time(text)
    strip_prefixes(text)


@pytest.mark.parametrize(
    ("stamp", "date"),
    [
        ("11.10.2025 08:04:09", datetime(2025, 10, 11, 8, 4, 9, tzinfo=timezone.utc)),
        ("[01.02.24 00:00:01]", datetime(2024, 2, 1, 0, 0, 1, tzinfo=timezone.utc)),
        ("31.12.2025, 23:59:59", datetime(2025, 12, 31, 23, 59, 59, tzinfo=timezone.utc)),
        ("10.13.2025 08:04:09", datetime(2025, 10, 13, 8, 4, 9, tzinfo=timezone.utc)),
        ("2025.11.10 08:04:09", datetime(2025, 11, 10, 8, 4, 9, tzinfo=timezone.utc)),
    ],
)
def test_dotted_dates_are_read_day_first(stamp: str, date: datetime) -> None:
    assert read_time(f"{stamp} step=3 loss=2.5") == date.timestamp()


def test_duration_with_dotted_dates_is_correct() -> None:
    stamps = [f"{day:02d}.12.2025 12:00:00" for day in range(9, 16)]
    times = [read_time(f"{stamp} - INFO - step=3 loss=2.5") for stamp in stamps]
    assert times[0] is not None and times[-1] == times[0] + 6 * 86400


@pytest.mark.parametrize(
    "source",
    [
        *("eval.py:12", "val.py", "eval:12", "test01", "test-node1", "test_runner.cc", "val 3"),
        *("dev2", "test3", "eval.utils", "dev.trainer", "test.logging"),
    ],
)
def test_source_or_host_or_count_in_brackets_names_no_evaluation(source: str) -> None:
    line = strip_prefixes(f"[{source}] loss 2.5")
    assert (line.tag, line.data) == ("", "")
