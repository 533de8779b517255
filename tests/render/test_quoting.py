"""Quoting preserves every word, in the real bash and in a port of sbatch's grammar."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcrun.plan.setup import literal
from hpcrun.render.quoting import quote_bash, quote_comment, quote_expanded, quote_word
from hpcrun.slurm.commands import quote_directive
from tests.needs import require_command
from tests.render.sbatch_grammar import Unbalanced, read_arguments

# Any text that a file name, an argument or a variable can contain: no NUL; bytes that are not UTF-8
# are represented by surrogates as in os.fsdecode.
BYTES = "".join(chr(code) for code in range(0xDC80, 0xDD00))
TEXT = st.text(
    st.one_of(
        st.sampled_from("'\"\\$`!#;&|<>(){}[]*?~ \t\n\r\x07\x1b\x7f-=%^é€😀\x80\x9f\u2028" + BYTES),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    )
)
# Without text that check_carried refuses.
CARRIED = st.text(
    st.one_of(
        st.sampled_from("'\"\\#$`;:=%,[] -é\t\x7f" + BYTES),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\x1e\x1f"),
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@settings(deadline=None, max_examples=80)
@given(st.lists(TEXT, min_size=1, max_size=12))
@example(["", "a", "it's", "a\nb'\\", "$HOME", "!!", "\udcff", "\udcc3\udca9", "é\n", "\x01" + "7"])
def test_quoted_words_keep_their_bytes_in_bash(locale: str, words: list[str]) -> None:
    script = "printf '%s\\0' " + " ".join(map(quote_bash, words))
    done = subprocess.run(
        ["bash", "--norc", "-c", script.encode("utf-8", "surrogateescape")],
        env={"PATH": os.environ["PATH"], "LC_ALL": locale},
        capture_output=True,
        check=True,
    )
    assert done.stdout.split(b"\0")[:-1] == [w.encode("utf-8", "surrogateescape") for w in words]


@given(TEXT)
def test_quoted_word_is_one_line_without_control_characters(text: str) -> None:
    assert not [char for char in quote_bash(text) if ord(char) < 32 or ord(char) == 127]


def asked(words: list[str], **env: str) -> list[bytes]:
    """Return quoted words as bash expands them."""
    done = subprocess.run(
        ["bash", "--norc", "-c", b"printf '%s\\0' " + os.fsencode(" ".join(words))],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        check=True,
    )
    return done.stdout.split(b"\0")[:-1]


NODE = {"HPCRUN_LOCAL_DIR": "/its $(own)\n'disk'", "HPCRUN_ARCHITECTURE": "x-y"}
PIECES = st.lists(TEXT | st.sampled_from(["${HPCRUN_LOCAL_DIR}", "${HPCRUN_ARCHITECTURE}"]))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.lists(PIECES.map("".join), min_size=1, max_size=8))
@example(
    ["$HPCRUN_LOCAL_DIR", "${HPCRUN_LOCAL_DIR}", "${HPCRUN_LOCAL_DIRS}", "$${HPCRUN_LOCAL_DIR}'"]
)
def test_node_expands_only_its_two_names(words: list[str]) -> None:
    wanted = []
    for word in words:
        parts = re.split(r"\$\{(HPCRUN_LOCAL_DIR|HPCRUN_ARCHITECTURE)\}", word)
        wanted.append("".join(NODE[part] if i % 2 else part for i, part in enumerate(parts)))
    assert asked([quote_word(word) for word in words], **NODE) == [*map(os.fsencode, wanted)]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.lists(TEXT, min_size=1, max_size=8))
@example(["~/x", "$HOME", "$$", "a$$b", ""])
def test_path_of_hpcrun_is_not_expanded(words: list[str]) -> None:
    paths = [f"/{word}" for word in words]
    assert asked([quote_expanded(literal(path)) for path in paths]) == [*map(os.fsencode, paths)]


def test_path_of_a_node_is_expanded_on_the_node() -> None:
    env = {"HOME": "/home/a b", "TMPDIR": "/t $x"}
    words = ["~/d", "$TMPDIR/${TMPDIR}x", "$$TMPDIR", "a~/", "/plain"]
    assert [word.decode() for word in asked([*map(quote_expanded, words)], **env)] == [
        *("/home/a b/d", "/t $x//t $xx", "$TMPDIR", "a~/", "/plain")
    ]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        asked([quote_expanded("$NO_SUCH/x")])
    assert b"NO_SUCH: not set on this node" in caught.value.stderr


@given(TEXT)
def test_comment_is_one_line(text: str) -> None:
    comment = quote_comment(text)
    comment.encode()
    assert not [char for char in comment if ord(char) < 32 or ord(char) == 127]


@pytest.mark.slow
@given(CARRIED)
@example('it\'s "run" #3 \\ x')
@example("\\")
@example("")
def test_quoted_directives_keep_their_value_in_sbatch(value: str) -> None:
    line = os.fsencode(f"--option={quote_directive(value)}")
    assert read_arguments(line) == [os.fsencode(f"--option={value}")]
    assert read_arguments(line + b" --next") == [os.fsencode(f"--option={value}"), b"--next"]


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        # As read by Slurm 22.05: tests/captured/22.05.8/squeue/all.json has the name.
        (rb'--job-name="pipe|and, \"quotes\""', [b'--job-name=pipe|and, "quotes"']),
        (b"--job-name=run#3", [b"--job-name=run"]),
        (b"--a='b # c'", [b"--a=b # c"]),
        (b"  -J x   # y", [b"-J", b"x"]),
        (rb"--a='it\'s'", [b"--a=it's"]),
        (rb"--a=b\ c\#d", [b"--a=b", b"c#d"]),
        (b"", []),
    ],
)
def test_sbatch_grammar_parses_examples(line: bytes, arguments: list[bytes]) -> None:
    assert read_arguments(line) == arguments


def test_unmatched_quote_is_fatal_in_sbatch() -> None:
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


@pytest.mark.slow
def test_quoted_directives_keep_their_value_in_the_real_sbatch(tmp_path: Path) -> None:
    require_command("sbatch")
    # sbatch parses the script and prints the options before it fails to reach a controller.
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
