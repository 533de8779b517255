"""Hostfiles as pools: parsing, the shape of a job, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from hpcrun.actions.run import (
    HostPool,
    adapt_to_pool,
    check_can_run_here,
    fit_to_pool,
    load_host_pool,
)
from hpcrun.context import load_context
from hpcrun.errors import InputError
from hpcrun.spec.job import Batch
from tests.plan.making import job, plan


def pool(folder: Path, text: str) -> HostPool:
    (folder / "pool").write_text(text)
    return load_host_pool(load_context({"HOME": str(folder)}, folder), "pool")


@pytest.mark.parametrize(
    "text",
    [
        "lab1 slots=4\nlab2 slots=4\n",
        "# two\n\nlab1:4\nlab2:4\n",
        "lab1 slots=4 max_slots=8\nlab2 slots=4",
    ],
)
def test_every_hostfile_format_is_parsed(tmp_path: Path, text: str) -> None:
    assert pool(tmp_path, text) == HostPool("pool", ["lab1", "lab2"], 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lab1\nlab2\n", "how many GPUs?"),
        ("lab1 slots=4\nlab2 slots=2\n", "uneven slots (lab1 4, lab2 2)"),
        ("lab1 slots=4\nlab1 slots=4\n", "lab1"),
        ("", "host"),
    ],
)
def test_invalid_hostfiles_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        pool(tmp_path, text)
    assert words in str(caught.value)


def test_missing_hostfile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--hostfile nowhere: no such file"):
        load_host_pool(load_context({"HOME": str(tmp_path)}, tmp_path), "nowhere")


def test_job_without_resources_uses_the_whole_pool() -> None:
    lab = HostPool("lab", ["a", "b"], 4)
    for text in ("script: a.py", "script: a.py\nresources: {nodes: 2, gpus_per_node: 4}"):
        resources = fit_to_pool(lab, job(text)).resources
        assert (resources.nodes, resources.gpus_per_node) == (2, 4)


def test_job_without_gpus_has_one_process_per_host() -> None:
    for text in ("command: [hostname]\nresources: {gpus_per_node: 0}",
                 "command: [hostname]\nresources: {nodes: 2, gpus_per_node: 0}"):  # fmt: skip
        resources = fit_to_pool(HostPool("lab", ["a", "b"], 4), job(text)).resources
        assert (resources.nodes, resources.gpus_per_node) == (2, 0)


def test_resources_that_contradict_the_pool_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        fit_to_pool(HostPool("lab", ["a", "b"], 4), job("script: a.py\nresources: {nodes: 3}"))
    assert "3 node(s) with 1 GPU(s) each, and lab has 2 with 4" in caught.value.message
    assert caught.value.fix.startswith("--nodes 2 --gpus-per-node 4")


def test_pool_fixes_the_node_count_of_a_range_and_keeps_the_batch() -> None:
    text = "script: a.py\nresources: {nodes: 2-4, gpus_per_node: 4}"
    # A batch chosen by the program is the same on any number of hosts.
    assert fit_to_pool(HostPool("lab", ["a", "b"], 4), job(text)).batch == Batch()
    one, text = text, f"{text}\nbatch: {{gradient_accumulation_steps: 1}}"
    two = fit_to_pool(HostPool("lab", ["a", "b"], 4), job(text))
    assert (two.resources.nodes, two.batch.gradient_accumulation_steps) == (2, 2)
    three = HostPool("lab", ["a", "b", "c"], 4)
    with pytest.raises(InputError) as caught:
        fit_to_pool(three, job(text))
    assert "2-4: on the 3 of lab no whole number" in caught.value.message
    assert caught.value.fix.startswith("--set batch.gradient_accumulation_steps=3, ")
    of_three = fit_to_pool(three, job(f"{one}\nbatch: {{gradient_accumulation_steps: 3}}"))
    assert of_three.batch.gradient_accumulation_steps == 4


def test_hostfile_inside_an_allocation_is_refused(tmp_path: Path) -> None:
    context = load_context({"HOME": str(tmp_path), "SLURM_JOB_ID": "7"}, tmp_path)
    with pytest.raises(InputError, match="this is a Slurm allocation"):
        adapt_to_pool(context, HostPool("lab", ["a"], 1))


def test_unsupported_options_of_hostfile_jobs_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = load_context({"HOME": str(tmp_path)}, tmp_path)
    where = adapt_to_pool(context, HostPool("lab", ["a", "b"], 1))
    made = plan("script: a.py\nresources: {nodes: 2}")
    with pytest.raises(InputError, match="launcher: srun: there is no Slurm"):
        check_can_run_here(where, structs.replace(made, launcher="srun"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no ssh here"):
        check_can_run_here(where, made)
    for name in ("ssh", "pdsh"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    check_can_run_here(where, made)
    by_pdsh = structs.replace(made, launcher="pdsh")
    check_can_run_here(where, by_pdsh)
    with pytest.raises(InputError, match="passes this folder's name to shells unquoted"):
        check_can_run_here(where, structs.replace(by_pdsh, run_dir="/scratch/my runs/x"))
