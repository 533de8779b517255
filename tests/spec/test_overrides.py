"""--set: the grammar of job files, as an additional layer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.errors import SpecError
from hpcrun.spec.job import Batch, JobSpec, Resources
from tests.spec.reading import problems, read


def test_override_values_are_read_like_file_values() -> None:
    spec = read(
        "args: [a]\nresources: {nodes: 1, time: 1:00}",
        "resources.nodes=2",
        "args=[--lr, 1e-4]",
        "deepspeed.config.zero_optimization.reduce_bucket_size=5e7",
        "batch={micro_batch_per_gpu: 4}",
        "resources.account=012345",
        "resources.time=24:00:00",
        "env.URL=a=b&c=d",
        'env.EMPTY=""',
        "slurm.exclusive=true",
        "snapshot=false",
        "description='a: b'",
        " name = x ",
    )
    assert spec.resources == Resources(nodes=2, account="012345", time="24:00:00")
    assert spec.args == ["--lr", "1e-4"]
    assert spec.deepspeed is not None
    assert spec.deepspeed.config == {"zero_optimization": {"reduce_bucket_size": 5e7}}
    assert spec.framework == "deepspeed"
    assert spec.batch == Batch(micro_batch_per_gpu=4)
    assert spec.env == {"URL": "a=b&c=d", "EMPTY": ""}
    assert spec.slurm == {"exclusive": True}
    assert (spec.snapshot, spec.description, spec.name) == (False, "a: b", "x")


@pytest.mark.parametrize(
    "value",
    [
        "run #3", "#3", "&x", "*x", "!x", "a  b", "two\nlines", "x ", "a: b", "- x", "| x", "> x",
        "% x", "@x", "`x`", "{run_dir}/out", "it's", 'say "hi"', "a, b", "x]", "tab\tx", "? x",
    ],
)  # fmt: skip
def test_text_of_an_override_is_kept_as_it_is_typed(value: str) -> None:
    assert read("", f"env.NOTE={value}").env == {"NOTE": value}
    assert read("", f"description={value}").description == value


@pytest.mark.parametrize(
    ("override", "env"),
    [
        ("env.A= x ", {"A": "x"}),
        ("env.A='x # y'", {"A": "x # y"}),
        ("env={A: x} # all", {"A": "x"}),
        ("env.A=~", {"A": None}),
        ('env.A="~"', {"A": "~"}),
    ],
)
def test_quotes_and_brackets_have_their_meaning_in_yaml(
    override: str, env: dict[str, str | None]
) -> None:
    assert read("", override).env == env


def test_numbers_of_an_override_may_have_blanks_around() -> None:
    assert read("", "resources.nodes= 2 ", "resources.gpus_per_node=4 ").resources.nodes == 2


def test_later_overrides_take_precedence() -> None:
    spec = read("", "script=a.py", "script=b.py", "env.A=1", "env={A: 2, B: 3}", "env.B=4")
    assert (spec.script, spec.env) == ("b.py", {"A": "2", "B": "4"})
    assert read("env: {A: 0}", "env.A=1", "env.A=").env == {}
    assert read("env: {A: 0}", "env.A=", "env.A=1").env == {"A": "1"}
    assert read("batch: {micro_batch_per_gpu: 3}", "batch=", "name=x").batch == Batch()


def test_keys_with_dots_can_be_quoted() -> None:
    spec = read("", 'deepspeed.config."a.b=c".d=1')
    assert spec.deepspeed is not None
    assert spec.deepspeed.config == {"a.b=c": {"d": 1}}


def test_program_override_replaces_program_and_arguments() -> None:
    spec = read("script: a.py\nargs: [x]", "module=pkg")
    assert spec == JobSpec(module="pkg")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("foo", "foo: expected KEY=VALUE, as in resources.nodes=2"),
        ("", "expected KEY=VALUE, as in resources.nodes=2"),
        ("=3", "=3: expected KEY=VALUE, as in resources.nodes=2"),
        ("a..b=3", "a..b=3: expected KEY=VALUE, as in resources.nodes=2"),
        ("args[2]=x", "args[2]=x: a list is given as a whole, as in args=[a, b]"),
        ("args.2=x", "args.2: args is a list, given as a whole, as in args=[a, b]"),
        ("script.x=1", "script.x: script is text; it has no keys"),
        ("launcher.x=1", "launcher.x: launcher is text; it has no keys"),
        ("resources.nodes.x=1", "resources.nodes.x: resources.nodes is a whole number; "
         "it has no keys"),
        ("snapshot.x=1", "snapshot.x: snapshot is true or false; it has no keys"),
        ("env.A.x=1", "env.A.x: env.A is text; it has no keys"),
        ("deepspeed.config.a.b.c=1", "deepspeed.config.a.b.c: deepspeed.config.a is 5 "
         "(job.yaml:3); set deepspeed.config.a as a whole"),
        ("resource.nodes=1", "resource.nodes: unknown key; did you mean resources?"),
        ("resources.node=1", "resources.node: unknown key; did you mean nodes?"),
        (
            "sweep.lr=1",
            "sweep.lr: expected a list, as in [a, b], or a range, as in {log: [1e-5, 1e-2]}; got 1",
        ),
        ("extends=base", "extends: only a file can extend a job; --set gives values"),
        ("resources.nodes=x", "resources.nodes: expected a whole number; got x"),
        ("resources.nodes=", None),
        ("args=[a", "args: expected , or ] here, in a list that [ opened; it starts on line 1"),
        ("env.Z=", 'env.Z: expected text, got nothing; write "" for empty text'),
        ("env={A: 1, A: 2}", "env.A: key given twice; once is enough"),
        ("name=\udcff", "name: byte 0xff is not UTF-8"),
        ("env.A=" + "[" * 99, "env.A: nested deeper than 64 levels"),
        ("deepspeed.config." + ".".join("a" * 99) + "=1", "'deepspeed.config." + "a." * 21
         + "a'...: nested deeper than 64 levels"),
    ],
)  # fmt: skip
def test_every_invalid_override_is_reported(override: str, expected: str | None) -> None:
    text = "resources: {nodes: 2}\ndeepspeed:\n  config: {a: 5}"
    if "a.a.a" in override:
        text = ""
    if expected is None:
        assert read(text, override).resources.nodes == 1
    else:
        assert problems(text, override) == [f"--set: {expected}"]


def test_two_programs_in_overrides_are_refused() -> None:
    assert problems("command: [x]", "script=a.py", "module=b") == [
        "--set: module: script is given too; a job has one of script, module, command"
    ]


def test_contradicting_overrides_are_refused() -> None:
    assert problems("", "deepspeed.config.a=1", "deepspeed.config.a.b=2") == [
        "--set: deepspeed.config.a.b: deepspeed.config.a is 1 (--set); "
        "set deepspeed.config.a as a whole"
    ]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(list('abe.="[]{}: nv\n~x')), max_size=30))
def test_random_overrides_are_accepted_or_reported(override: str) -> None:
    for prefix in ("", "env.", "deepspeed.config.", "args="):
        try:
            read("env: {a: 1}", prefix + override)
        except SpecError as error:
            assert {problem.source for problem in error.problems} == {"--set"}
