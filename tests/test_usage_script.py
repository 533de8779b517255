"""The script of a usage step, run as srun runs it: what it says, and that it always ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hpcrun.actions.usage import UsageLines
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.usage import NodeSeries, read_node_usage
from tests.needs import require_command
from tests.source import ROOT
from tests.waiting import PATIENCE, until

SCRIPT = ROOT / "templates" / "usage.sh"
SMI = """\
#!/bin/sh
[ "$1" = --query-gpu=index,uuid,utilization.gpu,memory.used,memory.total,power.draw,\
temperature.gpu ] && [ "$2" = --format=csv,noheader,nounits ] || exit 6
echo "0, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, 97, 61234, 81920, 311.42, 64"
"""


def start(text: str = "", **environ: str) -> subprocess.Popen[bytes]:
    kept = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"}
    return subprocess.Popen(
        ["bash", "-c", text or SCRIPT.read_text()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=kept | environ,
        bufsize=0,
    )


def ask(step: subprocess.Popen[bytes], reader: UsageLines) -> None:
    """Ask once, and read the answer to its end."""
    assert step.stdin is not None
    assert step.stdout is not None
    step.stdin.write(b"\n")
    while (line := step.stdout.readline()) and not line.endswith(b" end\n"):
        reader.feed(line.decode())
    reader.feed(line.decode())


def test_this_machine_by_its_kernel() -> None:
    step, reader = start(), UsageLines()
    ask(step, reader)
    deadline = time.monotonic() + PATIENCE
    while reader.uses()[0].cpus_busy is None and time.monotonic() < deadline:
        ask(step, reader)
    # The job goes first, whatever gets short.
    assert Path(f"/proc/{step.pid}/oom_score_adj").read_text() == "1000\n"
    assert os.getpriority(os.PRIO_PROCESS, step.pid) == 19
    out, err = step.communicate()
    (use,) = reader.uses()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (use.node, use.cpu_of, use.memory_of) == ("n1", "node", "node")
    assert use.cpus is not None
    assert use.cpus == os.cpu_count()
    assert use.cpus_busy is not None
    assert 0 <= use.cpus_busy <= use.cpus
    assert use.memory_total is not None
    assert abs(use.memory_total - total) < total / 20
    assert use.memory_used is not None
    assert 0 < use.memory_used < use.memory_total
    assert (step.returncode, out, err) == (0, b"", b"")


def test_gpus_by_nvidia_smi(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    step, reader = (
        start(PATH=f"{tmp_path}:{os.environ['PATH']}", CUDA_VISIBLE_DEVICES="0"),
        UsageLines(),
    )
    ask(step, reader)
    step.communicate()
    (gpu,) = reader.uses()[0].gpus
    assert (gpu.index, gpu.utilization, gpu.temperature_celsius) == (0, 97, 64)


@pytest.mark.parametrize("version", ["2", "1"])
def test_the_jobs_own_use_where_it_has_a_control_group(tmp_path: Path, version: str) -> None:
    """The files of both versions of control groups, at another place than the kernel's."""
    job = "/slurm/uid_0/job_7" if version == "1" else "/system.slice/slurmstepd.scope/job_7"
    below = f"{job}/step_0/task_0"
    if version == "2":
        lines = f"0::{below}\n"
        files = {
            f"{job}/cpu.stat": "usage_usec 4000000\nuser_usec 1\n",
            f"{job}/memory.current": "5000\n",
            f"{job}/memory.max": "max\n",
            f"{job}/memory.stat": "anon 1\ninactive_file 1000\n",
        }
    else:
        lines = f"5:cpu,cpuacct:{below}\n4:memory:{below}\n1:name=systemd:/\n0::/\n"
        files = {
            f"/cpu,cpuacct{job}/cpuacct.usage": "4000000000\n",
            f"/memory{job}/memory.usage_in_bytes": "5000\n",
            f"/memory{job}/memory.limit_in_bytes": "9223372036854771712\n",
            f"/memory{job}/memory.stat": "cache 9\ntotal_inactive_file 1000\n",
        }
    for name, text in files.items():
        path = tmp_path / "cgroup" / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(lines)
    script = SCRIPT.read_text().replace("/sys/fs/cgroup", f"{tmp_path}/cgroup")
    step, reader = (
        start(script.replace("/proc/self/cgroup", f"{tmp_path}/own"), SLURM_CPUS_ON_NODE="16"),
        UsageLines(),
    )
    ask(step, reader)
    step.communicate()
    (use,) = reader.uses()
    assert (use.cpus, use.cpu_of, use.memory_of, use.memory_used) == (16, "job", "job", 4000)
    assert use.memory_total is not None
    assert use.memory_total > 1 << 27  # the node's: the job has no limit


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_is_no_failure(number: signal.Signals) -> None:
    step = start()
    ask(step, UsageLines())
    step.send_signal(number)
    assert step.wait() == 0
    step.communicate()


@pytest.mark.slow
def test_it_ends_when_nobody_asks_any_more() -> None:
    """The lease, shortened from a minute; the input stays open, as where srun was killed."""
    text = SCRIPT.read_text()
    assert "read -r -t 60 _" in text
    step = start(text.replace("read -r -t 60 _", "read -r -t 0.3 _"))
    ask(step, UsageLines())
    assert step.wait() == 0
    step.communicate()


def test_what_was_asked_while_it_was_busy_is_answered_once() -> None:
    step = start()
    out, _ = step.communicate(b"\n" * 50)
    assert 1 <= out.count(b" end\n") <= 2


def test_shellcheck_has_nothing_to_say() -> None:
    require_command("shellcheck")
    scripts = [str(SCRIPT)]
    done = subprocess.run(["shellcheck", "-s", "bash", *scripts], capture_output=True, text=True)
    assert done.stdout == ""


# ---- the record of a run

LOOPING_SMI = """\
#!/bin/bash
query=uuid,memory.total,utilization.gpu,memory.used,power.draw
[[ $1 == --query-gpu=$query && $3 == --loop=* ]] || exit 6
{start}
while :; do
    echo "GPU-aaaa, 81920, 90, 61234, 311.42"
    echo "GPU-bbbb, 81920, [Not Supported], 4, [N/A]"
    sleep 0.1
done
"""


def record(
    folder: Path, smi: str | None, samples: int, *, seconds: float = 0, **environ: str
) -> list[NodeSeries]:
    """Record for at least some seconds and until there are as many samples; read the record."""
    path = os.environ["PATH"]
    if smi is not None:
        (folder / "bin").mkdir()
        (folder / "bin" / "nvidia-smi").write_text(smi)
        (folder / "bin" / "nvidia-smi").chmod(0o755)
        path = f"{folder / 'bin'}:{path}"
    run = RunFolder(folder)
    for name in ("usage/0", "attempts/0"):
        (folder / name).mkdir(parents=True)
    process = subprocess.Popen(
        ["bash", str(SCRIPT), "record", str(folder / "usage" / "0" / "node-0")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": path, "SLURMD_NODENAME": "n1", "HPCRUN_SAMPLE_S": "0.1", **environ},
    )
    time.sleep(seconds)
    until(lambda: any(len(node.times) >= samples for node in read_node_usage(run)), "samples")
    process.send_signal(signal.SIGUSR1)  # --signal reaches all processes of a step
    begun = time.monotonic()
    output, _ = process.communicate()
    assert (process.returncode, output) == (0, b"")
    assert time.monotonic() - begun < 10
    return read_node_usage(run)


def test_use_of_gpus_is_recorded_until_the_job_ends(tmp_path: Path) -> None:
    (node,) = record(tmp_path, LOOPING_SMI.format(start="echo $$ >${0%/*}/pid"), 4)
    assert (node.node, node.rank, node.cpu_of) == ("n1", 0, "node")
    assert node.cpus == os.cpu_count()
    assert node.cpus_busy is not None and 0 <= node.cpus_busy <= (node.cpus or 0) * 1.1
    assert node.memory_peak == max(each for each in node.memories if each is not None)
    first, second = node.gpus
    assert (first.name, first.utilization, first.power_watts) == ("GPU-aaaa", 90.0, 311.0)
    assert (first.memory_peak, first.memory_total) == (61234 << 20, 81920 << 20)
    assert (second.name, second.utilization, second.power_watts) == ("GPU-bbbb", None, None)
    pid = (tmp_path / "bin" / "pid").read_text().strip()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of nvidia-smi")


@pytest.mark.parametrize("start", ["exit 9", "sleep 60", "echo 'No devices were found'; exit 6"])
def test_host_is_recorded_if_nvidia_smi_fails(tmp_path: Path, start: str) -> None:
    (node,) = record(tmp_path, LOOPING_SMI.format(start=start), 4)
    assert node.gpus == [] and node.memory_peak


def test_host_without_gpus_is_recorded(tmp_path: Path) -> None:
    (node,) = record(tmp_path, None, 4)
    assert node.gpus == [] and node.memory_peak


def test_lines_of_a_long_run_have_several_samples(tmp_path: Path) -> None:
    (node,) = record(tmp_path, None, 9, seconds=2, HPCRUN_SAMPLE_S="0.02")
    assert len(node.times) < 45
