"""Overrides that the check rejects are rejected by Hydra itself, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from hpcrun.plan.hydra_overrides import check_hydra_overrides

pytestmark = pytest.mark.slow

FILES = {
    "config": """\
defaults:
  - _self_
  - model: small
  - optimizer@opt: adam
  - data/set: a
  - optional extra: none
  - base
  - override model/head: wide
lr: 1
trainer: {steps: 3, tags: [1], sub: null, ref: "${lr}"}
""",
    "base": "seed: 1\ntrainer: {gpus: 2}\n",
    "model/small": "defaults:\n  - head: thin\ndepth: 2\nnet: {w: 1}\n",
    "model/big": "# @package _global_\nmodel: {width: 3}\nbigger: 1\n",
    "model/head/thin": "h: 1\n",
    "model/head/wide": "hh: 1\n",
    "optimizer/adam": "beta: 1\n",
    "optimizer/sgd": "momentum: 1\n",
    "data/set/a": "path: x\n",
    "data/set/b": "# @package data\nroot: x\n",
    "alternative": "x: {}\ny: 3\n",
}
WRONG = [
    "lrr=2",
    "trainer.stepz=1",
    "model.dept=1",
    "model=bigg",
    "opt.momentum=1",
    "data.path=1",
    "data.root=1",
    "model.head.h=1",
    "~lrr",
    "extra=foo",
]
RIGHT = [
    *("lr=2", "trainer.steps=1", "trainer.tags=[2]", "trainer.sub=1", "trainer.ref=1", "seed=1"),
    *("model.depth=1", "opt.beta=1", "data.set.path=1", "data/set=b", "trainer.gpus=1", "~lr"),
    *("model.head.hh=1", "model/head=thin", "+new=1", "++model.new=1", "model.net.w=1"),
    *("optimizer@opt=sgd", "hydra.run.dir=.", "hydra/job_logging=none", "model.net={w: 2}"),
]


def hydra_error(folder: Path, name: str, overrides: list[str]) -> str:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder), version_base="1.3"):
        try:
            compose(name, overrides)
        except Exception as error:
            return str(error)
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conf")
    for name, text in FILES.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_wrong_overrides_are_found(folder: Path) -> None:
    for word in WRONG:
        assert hydra_error(folder, "config", [word]), word
        assert len(check_hydra_overrides("config", FILES, [word])) == 1, word


def test_valid_overrides_are_accepted(folder: Path) -> None:
    for word in RIGHT:
        assert hydra_error(folder, "config", [word]) == "", word
        assert check_hydra_overrides("config", FILES, [word]) == [], word


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("config", "data/set=b"),
        ("config", "model=big"),
        ("config", "model/head=thin"),
        ("alternative", "model=big"),
        pytest.param("alternative", "data/set=b", marks=pytest.mark.thorough),
        pytest.param("alternative", "model/head=thin", marks=pytest.mark.thorough),
    ],
)
def test_no_override_is_rejected_that_hydra_accepts(folder: Path, name: str, choice: str) -> None:
    for word in [*RIGHT, *WRONG]:
        if check_hydra_overrides(name, FILES, [choice, word]):
            assert hydra_error(folder, name, [choice, word]), (choice, word)


@pytest.mark.parametrize(
    "overrides",
    [
        ["+db=postgresql", "db.timeout=20"],
        ["+experiment=e", "m.y=3", "seed=1"],
        ["+logger=wandb", "logger.p=x"],
        ["db@backup=pg", "backup.port=3"],
        ["opt@model.opt=sgd", "model.opt.momentum=3"],
        ["+opt.lr=1", "opt.lr=3"],
        ["+a.b={c: 1}", "a.b.c=3"],
    ],
)
def test_key_that_another_override_adds_is_accepted(tmp_path: Path, overrides: list[str]) -> None:
    files = {
        "config": "defaults: [_self_, {db@backup: my}, {opt@model.opt: adam}]\n"
        "seed: 0\nlogger: null\nopt: {}\n",
        "db/postgresql": "timeout: 1\n",
        "db/my": "host: x\n",
        "db/pg": "port: 1\n",
        "opt/adam": "beta: 1\n",
        "opt/sgd": "momentum: 1\n",
        "experiment/e": "# @package _global_\nm: {y: 1}\n",
        "logger/wandb": "p: 1\n",
    }
    for name, text in files.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert hydra_error(tmp_path, "config", overrides) == ""
    assert check_hydra_overrides("config", files, overrides) == []


def test_key_is_checked_beside_another_that_is_added() -> None:
    overrides = ["+trainer.new=1", "trainer.stepz=1"]
    assert len(check_hydra_overrides("config", FILES, overrides)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "defaults: [schema]\nlr: 1",  # registered in Python
        "defaults: [{model: '${kind}'}]\nlr: 1",
        "defaults: [{model: [small, big]}, {no: list, at: all}]",
        "lr: !!python/name:os.system",
        "- lr",
        "lr: [1",
    ],
)
def test_unknown_configuration_is_not_checked(text: str) -> None:
    assert check_hydra_overrides("config", {**FILES, "config": text}, ["lrr=1", "x.y=2"]) == []
