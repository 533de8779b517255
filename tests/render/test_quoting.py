"""Every word arrives as it was given: bash is really asked, sbatch's grammar is ported."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcrun.render.quoting import quote_bash, quote_comment
from hpcrun.slurm.sbatch import quote_directive
from tests.render.sbatch_grammar import Unbalanced, read_arguments

# Any text that a file name, an argument or a variable can hold: no NUL; bytes that are not UTF-8
# are the surrogates that os.fsdecode makes of them.
BYTES = "".join(chr(code) for code in range(0xDC80, 0xDD00))
TEXT = st.text(
    st.one_of(
        st.sampled_from("'\"\\$`!#;&|<>(){}[]*?~ \t\n\r\x07\x1b\x7f-=%^é€😀\x80\x9f\u2028" + BYTES),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    )
)
# Without what check_carried refuses.
CARRIED = st.text(
    st.one_of(
        st.sampled_from("'\"\\#$`;:=%,[] -é\t\x7f" + BYTES),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\x1e\x1f"),
    )
)


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@settings(deadline=None, max_examples=80)
@given(st.lists(TEXT, min_size=1, max_size=12))
@example(["", "a", "it's", "a\nb'\\", "$HOME", "!!", "\udcff", "\udcc3\udca9", "é\n", "\x01" + "7"])
def test_bash_gives_the_bytes_back(locale: str, words: list[str]) -> None:
    script = "printf '%s\\0' " + " ".join(map(quote_bash, words))
    done = subprocess.run(
        ["bash", "--norc", "-c", script.encode("utf-8", "surrogateescape")],
        env={"PATH": os.environ["PATH"], "LC_ALL": locale},
        capture_output=True,
        check=True,
    )
    assert done.stdout.split(b"\0")[:-1] == [w.encode("utf-8", "surrogateescape") for w in words]


@given(TEXT)
def test_a_quoted_word_is_one_line_without_control_characters(text: str) -> None:
    assert not [char for char in quote_bash(text) if ord(char) < 32 or ord(char) == 127]


@given(TEXT)
def test_a_comment_is_one_line(text: str) -> None:
    comment = quote_comment(text)
    comment.encode()
    assert not [char for char in comment if ord(char) < 32 or ord(char) == 127]


@given(CARRIED)
@example('it\'s "run" #3 \\ x')
@example("\\")
@example("")
def test_sbatch_reads_the_value_back(value: str) -> None:
    line = os.fsencode(f"--option={quote_directive(value)}")
    assert read_arguments(line) == [os.fsencode(f"--option={value}")]
    assert read_arguments(line + b" --next") == [os.fsencode(f"--option={value}"), b"--next"]


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        # As Slurm 22.05 took it: tests/captured/22.05.8/squeue/all.json has the name.
        (rb'--job-name="pipe|and, \"quotes\""', [b'--job-name=pipe|and, "quotes"']),
        (b"--job-name=run#3", [b"--job-name=run"]),
        (b"--a='b # c'", [b"--a=b # c"]),
        (b"  -J x   # y", [b"-J", b"x"]),
        (rb"--a='it\'s'", [b"--a=it's"]),
        (rb"--a=b\ c\#d", [b"--a=b", b"c#d"]),
        (b"", []),
    ],
)
def test_the_ported_grammar(line: bytes, arguments: list[bytes]) -> None:
    assert read_arguments(line) == arguments


def test_a_lone_quote_is_fatal_to_sbatch() -> None:
    with pytest.raises(Unbalanced):
        read_arguments(b"--job-name=it's")


OPTIONS = {
    "job-name": 'it\'s "run" #3 \\ x',
    "comment": "a;b $HOME `c` $(d) # e",
    "reservation": "\\",
    "wckey": "  ünïcödé  ",
    "account": "#1",
    "constraint": "[a&b]*2|c",
    "partition": "'",
    "chdir": '/a"b/c d',
}


def test_the_real_sbatch_reads_the_values_back(tmp_path: Path) -> None:
    if shutil.which("sbatch") is None and os.environ.get("CI") != "true":
        pytest.skip("no sbatch here")
    # It reads the script and says what it understood before it finds nobody to send it to.
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nMessageTimeout=2\n"
        "AuthInfo=socket=/nonexistent\nNodeName=n\nPartitionName=p Nodes=n\n"
    )
    lines = [f"#SBATCH --{name}={quote_directive(value)}\n" for name, value in OPTIONS.items()]
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n" + "".join(lines) + "true\n")
    done = subprocess.run(
        ["sbatch", "-vv", "job.sbatch"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "SLURM_CONF": str(tmp_path / "slurm.conf")},
        capture_output=True,
        text=True,
        check=False,
    )
    shown = [line.removeprefix("sbatch: ") for line in done.stderr.splitlines()]
    understood = {name.strip(): value for name, _, value in (s.partition(" : ") for s in shown)}
    assert {name: understood.get(name) for name in OPTIONS} == OPTIONS
