"""Parsing, writing, converting and refusing hostfiles in each format."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.errors import InputError, SpecError
from hpcrun.render.hostfile import Form, Host, format_hostfile, parse_hostfile
from tests.source import ROOT


def read(text: str, form: Form | None = None) -> list[tuple[str, int | None, int | None]]:
    return [(h.name, h.slots, h.max_slots) for h in parse_hostfile(text, "pool", form)]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1 slots=4\n", [("n1", 4, None)]),
        ("\ufeff# pool\r\n\r\n  n1\tslots=4 # four\r\n", [("n1", 4, None)]),
        ("n1 slots=4\nn2 slots=2", [("n1", 4, None), ("n2", 2, None)]),
        ("n1 slots=4 max_slots=8\nn2 slots=2\n", [("n1", 4, 8), ("n2", 2, None)]),
        ("n1 slots = 4 max-slots = 8\n", [("n1", 4, 8)]),
        ("n1 cpu=4\nn1 count=2 count_max=9\n", [("n1", 6, 9)]),
        ("n1 max_slots=3\nn1 max_slots=9\nn1 max_slots=2\n", [("n1", 3, 9)]),
        ("n1 slots=4 max_slots=4\nn1 slots=4 max_slots=4\n", [("n1", 8, 8)]),
        ("n1 max_slots=8\nn1\nn2\n", [("n1", 2, 8), ("n2", 1, None)]),
        ("n1:4\nn2\nn1:2\n", [("n1", 6, None), ("n2", 1, None)]),
        ("n1\nn2\n", [("n1", None, None), ("n2", None, None)]),
        ("n2\nn1\nn2\nn2\n", [("n2", 3, None), ("n1", 1, None)]),
        ("n[1-2]\nlogin\n", [("n1", None, None), ("n2", None, None), ("login", None, None)]),
        ("n1,n2", [("n1", None, None), ("n2", None, None)]),
        ("10.0.0.7:2\n", [("10.0.0.7", 2, None)]),
    ],
)
def test_format_is_detected_from_the_lines(
    text: str, hosts: list[tuple[str, int | None, int | None]]
) -> None:
    assert read(text) == hosts


def test_format_can_be_specified() -> None:
    assert read("n1 slots=4\nn1 slots=2\n", "openmpi") == [("n1", 6, None)]
    assert read("n1\nn2\n", "openmpi") == [("n1", 1, None), ("n2", 1, None)]
    assert read("n1\n", "mpich") == [("n1", 1, None)]


@pytest.mark.parametrize(
    ("text", "form", "problems"),
    [
        ("", None, ["pool: no host in it"]),
        ("# nobody\n", None, ["pool: no host in it"]),
        ("n1 slots=0\n", None, ["pool:1: slots=0: slots are a number from 1 to 65536"]),
        ("n1 slots=99999\n", None, ["pool:1: slots=99999: slots are"]),
        ("n1:\nn2:x\nn3:0", None, ["pool:1: n1:: slots", "pool:2: n2:x", "pool:3: n3:0"]),
        ("n1 slots=x\n", None, ["pool:1: n1: unexpected word 'slots=x'"]),
        ("n1 slots=1 slots=2\n", None, ["pool:1: n1: unexpected word 'slots=2'"]),
        ("n1 slots=4 max_slots=2\n", None, ["pool:1: n1: max_slots=2 is less than slots=4"]),
        ("n1:4 max_slots=8\n", None, ["pool:1: n1: unexpected word 'max_slots=8'"]),
        ("n1:4 user=me\n", None, ["pool:1: n1: unexpected word 'user=me'"]),
        ("me@n1 slots=4\n", None, ["pool:1: me@n1: user names belong in ~/.ssh/config"]),
        ("-oX slots=4\n", None, ["pool:1: -oX: a host name cannot begin with '-'"]),
        ("n1;x slots=4\n", None, ["pool:1: n1;x: a host name cannot hold ';'"]),
        ("n[1-2 slots=4\n", None, ["pool:1: n[1-2 slots=4: the bracket [ is not closed"]),
        (
            "n1 slots=4\nn1 slots=4\n",
            None,
            ["pool:2: n1: appears twice, first on line 1; DeepSpeed refuses that"],
        ),
        ("n[1-2]\nn2\n", None, ["pool:2: n2: appears twice, first on line 1"]),
        ("n1 slots=4\nn2\n", None, ["pool:2: n2: no slots, where other lines have them"]),
        ("n1 slots=4\nn2:4\n", None, ["pool:2: n2: a line in mpich format among lines in"]),
        ("n1 slots=4 max_slots=8\n", "deepspeed", ["pool:1: n1: a line in openmpi format"]),
        ("n1 slots=4\n", "mpich", ["pool:1: n1: a line in deepspeed format"]),
        ("n1:2\n", "plain", ["pool:1: n1: a line in mpich format"]),
    ],
)
def test_parse_hostfile_reports_all_problems(
    text: str, form: Form | None, problems: list[str]
) -> None:
    with pytest.raises(SpecError) as caught:
        parse_hostfile(text, "pool", form)
    found = [str(problem) for problem in caught.value.problems]
    assert len(found) == len(problems)
    for shown, expected in zip(found, problems, strict=True):
        assert shown.startswith(expected)


UNEVEN = [Host("n08", 4, 8), Host("n09", 2), Host("x", 1)]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("deepspeed", "n08 slots=4\nn09 slots=2\nx slots=1\n"),
        ("openmpi", "n08 slots=4 max_slots=8\nn09 slots=2\nx slots=1\n"),
        ("mpich", "n08:4\nn09:2\nx:1\n"),
        ("plain", "n08\nn09\nx\n"),
        ("slurm", "n[08-09],x\n"),
    ],
)
def test_format_hostfile_writes_every_format(form: Form, text: str) -> None:
    assert format_hostfile(UNEVEN, form) == text
    assert [host.name for host in parse_hostfile(text, "pool", form)] == ["n08", "n09", "x"]


@pytest.mark.parametrize(
    ("hosts", "form", "message"),
    [
        ([], "slurm", "no hosts are named"),
        ([Host("a", 1), Host("b", 1), Host("a", 1)], "deepspeed", "a: the host is named twice"),
        ([Host("a"), Host("a")], "plain", "a: the host is named twice"),
        ([Host("a", 1), Host("b")], "openmpi", "b: the number of slots of a host is not given"),
        ([Host("a", 4), Host("b", 0)], "mpich", "b: no slot on this host"),
    ],
)
def test_format_hostfile_refuses_what_a_format_cannot_express(
    hosts: list[Host], form: Form, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        format_hostfile(hosts, form)
    assert str(caught.value).startswith(message)


names = st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,8}[0-9]{0,3}", fullmatch=True), unique=True)


@pytest.mark.slow
@given(
    names.filter(bool),
    st.lists(st.integers(1, 65536), min_size=20),
    st.sampled_from(get_args(Form)),
)
def test_written_hostfile_is_parsed_to_the_same_hosts(
    hosts: list[str], slots: list[int], form: Form
) -> None:
    pool = [Host(name, slots[i % len(slots)]) for i, name in enumerate(hosts)]
    again = parse_hostfile(format_hostfile(pool, form), "pool", form)
    assert again == (pool if form not in ("plain", "slurm") else [Host(name) for name in hosts])


@given(st.text(alphabet="n12 =:[]-,#\nslotmax_", max_size=60))
def test_parse_hostfile_accepts_or_refuses_any_text(text: str) -> None:
    try:
        hosts = parse_hostfile(text, "pool")
    except SpecError:
        return
    assert hosts and len({host.name for host in hosts}) == len(hosts)


def test_example_hostfile_has_deepspeeds_format() -> None:
    text = (ROOT / "hostfiles" / "lab-2x4").read_text()
    assert read(text, "deepspeed") == [("lab1", 4, None), ("lab2", 4, None)]


@pytest.mark.slow
def test_deepspeed_reads_written_hostfiles(tmp_path: Path) -> None:
    """DeepSpeed's reader returns the same hosts, and refuses the same errors of its format."""
    (tmp_path / "good").write_text(format_hostfile(UNEVEN, "deepspeed"))
    (tmp_path / "twice").write_text("n1 slots=4\nn1 slots=4\n")
    program = (
        "import json, sys; from deepspeed.launcher.runner import fetch_hostfile\n"
        "print(json.dumps(fetch_hostfile(sys.argv[1])))"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", program, tmp_path / name],
            capture_output=True,
            text=True,
            check=False,
        )
        for name in ("good", "twice")
    ]
    assert json.loads(answers[0].stdout.splitlines()[-1]) == {"n08": 4, "n09": 2, "x": 1}
    assert "multiple entries for n1" in answers[1].stderr
