"""The Python API on a real Slurm: the program of docs/api.md, waits, threads, JSON."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

from tests.cluster.site import Site
from tests.json_schemas import check_json
from tests.source import ROOT

DOCUMENT = (ROOT / "docs" / "api.md").read_text()
TRAIN = """
import sys
words = sys.argv[::-1]  # the last one counts
lr = float(words[words.index("--lr") - 1])
for step in range(1, 21):
    print(f"step={step} loss={2 + abs(lr - 0.01) + 1 / step:.4f}", flush=True)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def start(site: Site, program: str, **options: object) -> subprocess.Popen[str]:
    """Start a user's program in the project, with warnings as errors."""
    (site.project / "program.py").write_text(program)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "program.py"],
        cwd=site.project,
        env=site.environ() | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(site: Site, program: str) -> str:
    process = start(site, program)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert err == ""
    return out


def test_program_of_the_api_document_runs(site: Site) -> None:
    """All code of docs/api.md, as one program."""
    (site.project / "train.py").write_text(TRAIN)
    for text in blocks("yaml"):
        name = text.split("\n", 1)[0].removeprefix("# ")
        (site.project / name).parent.mkdir(exist_ok=True)
        (site.project / name).write_text(text)
    checks = """
assert best.values == {"lr": "0.01"}, best.values
assert dry.plan.world_size == 4 and dry.plan.effective_batch == 32
assert [s.state for s in hpcrun.wait([*runs, second, *sweep])] == ["COMPLETED"] * 6
assert run.cancel() is False
"""
    out = run(site, "\n".join(blocks("python")) + checks)
    assert re.search(
        r"^<Run \d{8}-\d{6}-pretrain-\w{4}, job \d+>\n32\nCOMPLETED 0 20 2\.05$", out, re.M
    )
    assert "job: resources.gpus: unknown key" in out
    assert "#SBATCH --nodes=2" in out


PLAIN = """
import hpcrun
def job(script, **more):
    return {"command": ["bash", "-c", script], "resources": {"gpus_per_node": 0}, **more}
"""


def test_runs_work_in_threads_processes_and_event_loops(site: Site) -> None:
    """Submitted by threads in an event loop, pickled to a process, awaited twice concurrently."""
    program = (
        PLAIN
        + """
import asyncio, pickle, subprocess, sys
async def main():
    made = await asyncio.gather(*(
        asyncio.to_thread(hpcrun.submit, job(f"exit {n}")) for n in range(4)
    ))
    assert len({run.id for run in made}) == 4
    first, second = await asyncio.gather(
        asyncio.to_thread(hpcrun.wait, made), asyncio.to_thread(hpcrun.wait, made[::-1])
    )
    assert [s.exit_code for s in first] == [0, 1, 2, 3], first
    assert [s.state for s in second] == ["FAILED"] * 3 + ["COMPLETED"], second
    data = pickle.dumps(made[3])
    assert b"PYTHONPATH" not in data
    told = subprocess.run(
        [sys.executable, "-c",
         "import pickle, sys; print(pickle.load(sys.stdin.buffer).status().exit_code)"],
        input=data, stdout=subprocess.PIPE, check=True,
    )
    assert told.stdout == b"3\\n"
asyncio.run(main())
"""
    )
    assert run(site, program) == ""


def test_ctrl_c_ends_only_the_waiting(site: Site) -> None:
    program = (
        PLAIN
        + """
run = hpcrun.submit(job("until [ -e go ]; do sleep 0.1; done"))
print(run.id, flush=True)
try:
    run.wait(timeout=0.2)
except hpcrun.WaitTimeout as error:
    assert isinstance(error, TimeoutError) and error.exit_code == 124
    print(error, flush=True)
run.wait()
"""
    )
    process = start(site, program)
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    assert " after 0.2 s" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    err = process.communicate()[1]
    assert process.returncode == -signal.SIGINT, err
    assert err.rstrip().endswith("KeyboardInterrupt")
    (site.project / "go").touch()
    ended = f"assert hpcrun.find({run_id!r}).wait(60).ok"
    run(site, f"import hpcrun\n{ended}\nassert hpcrun.find({run_id!r}).cancel() is False")


def test_runs_of_two_clusters_are_awaited_together(site: Site, bare_site: Site) -> None:
    """One program in another folder awaits runs of two clusters together."""
    (bare_site.project / "sub").mkdir()
    (bare_site.project / "sub" / "j.yaml").write_text(
        "command: [pwd]\nresources: {gpus_per_node: 0}\n"
    )
    program = (
        PLAIN
        + f"""
from pathlib import Path
there = Path({str(bare_site.project)!r})
far = hpcrun.submit("sub/j.yaml", cwd=there)
near = hpcrun.submit(job("true", name="near"))
assert [s.state for s in hpcrun.wait([far, near])] == ["COMPLETED"] * 2
assert [s.run_id for s in hpcrun.status_of([near, far])] == [near.id, far.id]
assert str(there) in list(far.logs())
assert hpcrun.find(far.id, cwd=there) == far
"""
    )
    run(site, program)


def test_json_of_all_commands_conforms_to_the_schemas(site: Site) -> None:
    """One job and one sweep, with every command that reads them."""
    job = "command: [bash, -c, 'echo step=1 loss=2.5']\nresources: {gpus_per_node: 0}\n"
    (site.project / "j.yaml").write_text(job)
    (site.project / "s.yaml").write_text(job + "sweep: {env.X: [1, 2]}\n")

    def shown(*argv: str, verb: str = "", codes: tuple[int, ...] = (0,)) -> list[dict[str, object]]:
        done = site.hpcrun(*argv, "--json")
        assert done.returncode in codes, done.stderr
        lines = [done.stdout] if argv[0] != "logs" else done.stdout.splitlines()
        values = [json.loads(line) for line in lines]
        for value in values:
            check_json(verb or argv[0], value)
        return values

    shown("submit", "./j.yaml", "--dry-run")
    shown("submit", "./j.yaml", "--test-only")
    shown("submit", "./s.yaml", "--dry-run")
    one = shown("submit", "./j.yaml", "--wait")[0]
    many = shown("submit", "./s.yaml", "--wait")[0]
    for word in (one["job_id"], many["job_id"]):
        assert isinstance(word, str)
        shown("status", word)
        shown("show", word)
    shown("status")
    shown("wait", str(one["job_id"]), str(many["job_id"]))
    shown("parse", str(one["job_id"]), str(many["job_id"]))
    shown("cancel", str(one["job_id"]), str(many["job_id"]))
    assert any(line["line"] == "step=1 loss=2.5" for line in shown("logs", str(one["job_id"])))
    shown("compare", str(many["job_id"]))
    shown("hostfile", str(one["job_id"]), "--slots", "2")
    refused = site.hpcrun("submit", "./j.yaml", "--partition", "nowhere", "--json")
    assert (refused.returncode, refused.stdout) == (3, "")
    check_json("error", json.loads(refused.stderr.splitlines()[-1]))
