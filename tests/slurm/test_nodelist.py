"""The grammar of node lists: examples, and comparison with the real scontrol on random input."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hpcrun.errors import InputError
from hpcrun.slurm.hosts import HOST_LIMIT, compress_hosts, expand_hosts, expand_node_counts
from tests.needs import require_command

Ask = Callable[[str, Sequence[str]], list[str]]

# scontrol needs a readable configuration, but no slurmctld.
CONFIGURATION = "ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n"
BETWEEN = "between-two"


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Expand many expressions with one call of the real scontrol."""
    require_command("scontrol")
    conf: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text(CONFIGURATION)

    def ask(what: str, expressions: Sequence[str]) -> list[str]:
        done = subprocess.run(
            ["scontrol", "show", what, f",{BETWEEN},".join(expressions)],
            env={**os.environ, "SLURM_CONF": str(conf)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        listed = ",".join(done.stdout.splitlines())
        return listed.split(f",{BETWEEN},")

    return ask


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ""),
        (",, ,", ""),
        ("node1", "node1"),
        ("[8-11]", "8 9 10 11"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[098-102]", "n098 n099 n100 n101 n102"),
        ("n[8-011]", "n8 n9 n10 n11"),
        ("n[01-3]", "n01 n02 n03"),
        ("n[1,1,02]", "n1 n1 n02"),
        ("a,b[1-2] c\t d,", "a b1 b2 c d"),
        ("r[1-2]n[01-02,07]", "r1n01 r1n02 r1n07 r2n01 r2n02 r2n07"),
        ("a[1-2][3-4]", "a13 a14 a23 a24"),
        ("a[1-2]b[3-4]c[5-6]", "a1b3c5 a1b3c6 a2b3c5 a2b3c6 a1b4c5 a1b4c6 a2b4c5 a2b4c6"),
    ],
)
def test_expand_returns_all_hosts(text: str, hosts: str, scontrol: Ask) -> None:
    assert expand_hosts(text) == hosts.split()
    if hosts:
        assert scontrol("hostnames", [text]) == [hosts.replace(" ", ",")]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[1-2]-ib", "n1-ib n2-ib"),
        ("r[1-2]n[01-02]-ib,x", "r1n01-ib r1n02-ib r2n01-ib r2n02-ib x"),
        ("[1-2]a", "1a 2a"),
    ],
)
def test_expand_accepts_a_suffix_after_the_last_bracket(text: str, hosts: str) -> None:
    """Slurm accepts these since 23.11; older releases refuse them."""
    assert expand_hosts(text) == hosts.split()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[3-1]", "the range 3-1 runs backwards"),
        ("n[]", "an empty range"),
        ("n[1,]", "an empty range"),
        ("n[,1]", "an empty range"),
        ("n[x]", "'x' is neither a number nor a range"),
        ("n[-3]", "'-3' is neither a number nor a range"),
        ("n[1-2-3]", "'1-2-3' is neither a number nor a range"),
        ("n[1:3]", "'1:3' is neither a number nor a range"),
        ("n[000x111]", "'000x111' is neither a number nor a range"),
        ("n[1-65537]", "65,537 hosts; a node list may have 65,536 in all"),
    ],
)
def test_expand_refuses_what_slurm_refuses(text: str, message: str, scontrol: Ask) -> None:
    with pytest.raises(InputError) as caught:
        expand_hosts(text)
    assert message in str(caught.value)
    assert "Invalid hostlist:" in scontrol("hostnames", [text])[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[1-2", "the bracket [ is not closed (character 2)"),
        ("n1-2]", "a ] without its [ (character 5)"),
        ("a[[1-2]]", "the bracket [ is not closed (character 2)"),
        ("a[1-2]],b", "a ] without its [ (character 7)"),
        ("n[1 -2]", "'1 -2' is neither a number nor a range"),
        ("n[5-]", "'5-' is neither a number nor a range"),
        ("n[99999999999999999999]", "a number of more than 18 digits"),
        ("n[" + "1" * 65 + "]", "neither a number nor a range"),
        ("n[1-9][1-9999]", "89,991 hosts"),
        ("n[1-65536],m", "65,536 in all"),
        ("n[1-2]{gpu}", "cannot hold '{'"),
        ("(null)", "cannot hold '('"),
        ("-w", "cannot begin with '-'"),
        ("n\u00e9[1-2]", "cannot hold '\u00e9'"),
        ("n" * 300, "longer than a host name's 253 characters"),
        ("n[" + "1," * 10**5, "n[1,1,1"),
    ],
)
def test_expand_refuses_invalid_and_ambiguous_names(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        expand_hosts(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 250


# ---- against scontrol

number = st.integers(0, 1100)
width = st.integers(1, 4)


@st.composite
def one_range(draw: st.DrawFn) -> str:
    first, padding = draw(number), draw(width)
    if draw(st.booleans()):
        return f"{first:0{padding}d}"
    # The padding of the second number has no effect.
    return f"{first:0{padding}d}-{first + draw(st.integers(0, 12)):0{draw(width)}d}"


group = st.lists(one_range(), min_size=1, max_size=3).map(lambda words: f"[{','.join(words)}]")
word = st.sampled_from(["n", "gpu-", "r1", "a.b-", "X_", "rack07", ""])
plain = st.tuples(word, st.sampled_from(["n", "0", "007", "10", "x-y"])).map("".join)
bracketed = st.lists(st.tuples(word, group).map("".join), min_size=1, max_size=3).map("".join)
expression = st.lists(st.one_of(plain, bracketed), min_size=1, max_size=4).map(",".join)
hosts = st.lists(
    st.tuples(word, st.sampled_from(["n", "x"]), st.sampled_from(["", "%d", "%02d", "%03d"]))
    .map("".join)
    .flatmap(
        lambda name: st.tuples(number, st.integers(1, 4)).map(
            lambda run: [name % i if "%" in name else name for i in range(run[0], sum(run))]
        )
    ),
    min_size=1,
    max_size=5,
).map(lambda runs: [name for run in runs for name in run])
# Many expressions per call of scontrol; shrinking such a list would take minutes.
few = settings(max_examples=8, deadline=None, phases=[Phase.generate])


def many(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=60, max_size=60)


def differing(asked: Sequence[Any], ours: Sequence[str], slurms: Sequence[str]) -> list[Any]:
    assert len(asked) == len(slurms)
    return [three for three in zip(asked, ours, slurms, strict=True) if three[1] != three[2]][:3]


@pytest.mark.slow
@few
@given(expressions=many(expression))
def test_expand_agrees_with_scontrol(scontrol: Ask, expressions: list[str]) -> None:
    ours = [",".join(expand_hosts(text)) for text in expressions]
    assert differing(expressions, ours, scontrol("hostnames", expressions)) == []


@pytest.mark.slow
@few
@given(lists=many(hosts))
def test_compress_agrees_with_scontrol(scontrol: Ask, lists: list[list[str]]) -> None:
    ours = [compress_hosts(names) for names in lists]
    written = [",".join(names) for names in lists]
    assert [expand_hosts(text) for text in ours] == lists
    assert differing(ours, written, scontrol("hostnames", ours)) == []
    assert differing(written, ours, scontrol("hostlist", written)) == []


@given(st.text(alphabet="n0189[]-, x", max_size=30))
def test_expand_accepts_or_refuses_any_text(text: str) -> None:
    try:
        found = expand_hosts(text)
    except InputError:
        return
    assert expand_hosts(compress_hosts(found)) == found


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ("n1 n02 n3", "n[1,02,3]"),
        ("n08 n9", "n[08,9]"),
        ("n9 n10 n011", "n[9-10,011]"),
        ("n3 n2 n2", "n[3,2,2]"),
        ("8 9", "[8-9]"),
        ("n1-ib n2-ib", "n1-ib,n2-ib"),  # Slurm before 23.11 does not support a suffix
        ("n1 m1 n2", "n1,m1,n2"),
    ],
)
def test_compress_returns_ranges(hosts: str, text: str, scontrol: Ask) -> None:
    assert compress_hosts(hosts.split()) == text
    assert scontrol("hostlist", [",".join(hosts.split())]) == [text]


def test_compress_splits_ranges_beyond_the_limit() -> None:
    names = [f"n{i}" for i in range(HOST_LIMIT + 1)]
    assert compress_hosts(names) == "n[0-65535,65536]"
    assert compress_hosts([]) == ""


def test_ten_thousand_hosts_are_expanded_and_compressed_quickly() -> None:
    took = []
    for _ in range(3):
        start = time.process_time()
        found = expand_hosts("r[1-10]n[0001-1000]")
        took.append(time.process_time() - start)
        assert len(found) == 10_000
    assert min(took) < 1  # seconds of CPU; 0.03 when idle


@pytest.mark.parametrize(
    ("text", "counts"),
    [("1", [1]), ("72(x2),36", [72, 72, 36]), ("8(x4)", [8] * 4), ("0,2", [0, 2])],
)
def test_expand_counts_accepts_slurms_notation(text: str, counts: list[int]) -> None:
    assert expand_node_counts(text) == counts


@pytest.mark.parametrize("text", ["", "x", "72(x2", "72x2", "-1", "1,,2", "1(x0)", "1(x999999999)"])
def test_expand_counts_refuses_other_text(text: str) -> None:
    with pytest.raises(InputError, match="not a list of counts"):
        expand_node_counts(text)
