"""preflight.sh: the checks of a node before its ranks start, with recorded answers."""

from __future__ import annotations

import doctest
import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcrun.assets import build_archive, shipped_folder
from hpcrun.runs.ends import read_warnings
from tests.hardware_node import Node
from tests.harness_job import Job
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

PREFLIGHT = shipped_folder("templates") / "preflight.sh"
PROGRAM = runpy.run_path(str(PREFLIGHT.with_suffix(".py")))

# Rows as nvidia-smi --format=csv,noheader,nounits prints them, in the order of gpu_fields: of an
# H100 (driver 570), of a V100 (driver 470, which knows no compute_cap and no gpu_recovery_action).
FIELDS = [
    "compute_cap",
    "name",
    "index",
    "pci.bus_id",
    "mig.mode.current",
    "memory.total",
    "memory.used",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.failure",
    "remapped_rows.pending",
    "retired_pages.pending",
    "gpu_recovery_action",
]
H100 = "9.0, NVIDIA H100 80GB HBM3, 0, 00000000:3B:00.0, Disabled, 81559, 4, 0, No, No, [N/A], None"
V100 = "Tesla V100-SXM2-32GB, 0, 00000000:15:00.0, [N/A], 32510, 0, 0, [N/A], [N/A], No"
OLD = ("compute_cap", "gpu_recovery_action")
XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid='<unknown>', name=<unknown>, {}"


def row(**changed: str) -> str:
    """Return the row of an H100 with other values."""
    cells = dict(zip(FIELDS, H100.split(", "), strict=True))
    return ", ".join((cells | {key.replace("__", "."): v for key, v in changed.items()}).values())


class Gpus(Node):
    """A node whose nvidia-smi rejects unknown fields, as old drivers do."""

    def smi(
        self, *rows: str, unknown: tuple[str, ...] = (), code: int = 0, all_gpus: int | None = None
    ) -> None:
        listed = len(rows) if all_gpus is None else all_gpus
        script = '#!/bin/bash\nif [ "$1" = --list-gpus ]; then\n'
        script += "".join(f"echo 'GPU {n}: NVIDIA H100 (UUID: GPU-{n})'\n" for n in range(listed))
        script += "exit\nfi\n"
        for field in unknown:
            message = f'Field "{field}" is not a valid field to query.'
            script += f"[[ ,${{1#*=}}, != *,{field},* ]] || {{ echo '{message}'; exit 2; }}\n"
        script += 'printf "%s\\n" "$*" >>"${0%/*}/../asked"\n'
        script += "".join(f'printf "%s\\n" "{line}"\n' for line in rows) + f"exit {code}\n"
        self.tool("nvidia-smi", script)

    def tool(self, name: str, script: str) -> None:
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def look(self, call: str, **env: str) -> list[str]:
        """What a function of preflight.sh prints, where the job wants one GPU."""
        script = f'. "{PREFLIGHT}"; {call}'
        run_dir = Path(env.get("HPCRUN_RUN_DIR", self.root))
        if not (run_dir / "jobside.sh").exists():
            (run_dir / "jobside.pyz").write_bytes(build_archive(frozenset({"nodes"})))
            shutil.copy(PREFLIGHT.with_name("jobside.sh"), run_dir)
        env = {"HPCRUN_RUN_DIR": str(run_dir), "HPCRUN_JOB_PYTHON": sys.executable, **env}
        env = {"HPCRUN_DEVICE": "cuda", "HPCRUN_GPUS_PER_NODE": "1", **env}
        done = self._bash(["bash", "-uc", script, "x", str(self.root)], HPCRUN_ATTEMPT="0", **env)
        assert done.stderr == ""
        return done.stdout.splitlines()

    def gpus_of(self, *rows: str, **env: str) -> list[str]:
        self.smi(*rows)
        return self.look("look_at_gpus 60", **env)


@pytest.fixture
def node(tmp_path: Path) -> Gpus:
    made = Gpus(tmp_path / "it's a $(node)")
    made.tool("dmesg", "#!/bin/bash\n")
    return made


def test_healthy_gpus_are_asked_once_and_nothing_is_said(node: Gpus) -> None:
    found = node.gpus_of(H100, row(index="1"), HPCRUN_GPUS_PER_NODE="2", CUDA_VISIBLE_DEVICES="0,1")
    name = "9.0, NVIDIA H100 80GB HBM3"
    assert found == [f"gpus: {name};{name}"]
    asked = (node.root / "asked").read_text().splitlines()
    assert asked == [f"--query-gpu={','.join(FIELDS)} --format=csv,noheader,nounits --id=0,1"]


def test_only_suspicious_gpus_start_a_python(node: Gpus) -> None:
    shutil.copy(PREFLIGHT.with_name("jobside.sh"), node.root)  # without an archive
    assert node.gpus_of(H100) == ["gpus: 9.0, NVIDIA H100 80GB HBM3"]
    node.smi(V100, V100, unknown=OLD)
    names = ", Tesla V100-SXM2-32GB;, Tesla V100-SXM2-32GB"
    assert node.look("look_at_gpus 60", HPCRUN_GPUS_PER_NODE="2") == [f"gpus: {names}"]
    bad = row(remapped_rows__failure="Yes")
    assert node.gpus_of(bad) == [
        f"its GPUs are not judged, because no Python 3.6 or newer answers: {bad}"
    ]


def test_after_a_rank_failed_its_log_and_the_driver_tell_whether_its_gpu_broke(node: Gpus) -> None:
    """Asked once a node; other errors of CUDA's are the program's own."""
    run = node.root / "run"
    attempt, log = run / "attempts/0", run / "logs/0/rank-3.log"
    attempt.mkdir(parents=True)
    log.parent.mkdir(parents=True)
    asked = {"HPCRUN_RUN_DIR": str(run), "HPCRUN_PREFLIGHT": "true", "RANK": "3"}
    examine = 'host=n1 attempt_dir="$1/run/attempts/0"; examine_node'

    def examined(words: str) -> list[str]:
        log.write_text(f"RuntimeError: CUDA error: {words}\n")
        found = node.look(examine, **asked)
        assert node.look(examine, **asked) == []
        (attempt / "examined-n1").rmdir()
        return found

    said = "hpcrun: error: n1 is not fit for this job: "
    node.smi(H100)
    assert examined("an illegal memory access was encountered") == []
    ecc = "uncorrectable ECC error"
    assert examined(f"{ecc} encountered") == [said + ecc]
    node.smi("GPU is lost", code=15)
    assert examined("unspecified launch failure") == [f"{said}nvidia-smi: GPU is lost"]


def test_fields_that_an_old_driver_does_not_know_are_left_out(node: Gpus) -> None:
    node.smi(V100, unknown=OLD)
    assert node.look("look_at_gpus 60") == ["gpus: , Tesla V100-SXM2-32GB"]
    node.smi('Field \\"nonsense\\" is not a valid field to query.', code=2)
    assert node.look("look_at_gpus 60") == [
        'nvidia-smi failed: Field "nonsense" is not a valid field to query.'
    ]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"gpu_recovery_action": "Reset"}, "the driver asks for: Reset"),
        ({"gpu_recovery_action": "Reboot"}, "the driver asks for: Reboot"),
        (
            {"remapped_rows__failure": "Yes"},
            "its memory cannot be repaired: row remapping has failed",
        ),
    ],
)
def test_sure_defects_of_a_gpu(node: Gpus, changed: dict[str, str], why: str) -> None:
    assert node.gpus_of(H100, row(index="5", **changed))[-1] == f"bad: GPU 5: {why}"


@pytest.mark.parametrize(
    ("changed", "warning"),
    [
        ({"gpu_recovery_action": "Drain and Reset"}, "the driver asks for: Drain and Reset"),
        ({"remapped_rows__pending": "Yes"}, "a repair of its memory waits for a reset"),
        (
            {"retired_pages__pending": "Yes"},
            "a bad page of its memory is retired at the next reboot only",
        ),
        (
            {"ecc__errors__uncorrected__volatile__total": "3"},
            "3 uncorrected ECC errors since the driver was loaded",
        ),
        ({"memory__used": "70122"}, "70122 of its 81559 MB are in use by something else"),
    ],
)
def test_what_a_job_may_survive_is_a_warning(
    node: Gpus, changed: dict[str, str], warning: str
) -> None:
    assert node.gpus_of(row(**changed)) == [f"GPU 0: {warning}", "gpus: 9.0, NVIDIA H100 80GB HBM3"]


@pytest.mark.parametrize("field", FIELDS[3:])
@pytest.mark.parametrize("value", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", ""])
def test_what_a_driver_does_not_know_is_no_fault(node: Gpus, field: str, value: str) -> None:
    found = node.gpus_of(row(**{field.replace(".", "__"): value}))
    assert found == ["gpus: 9.0, NVIDIA H100 80GB HBM3"]


def test_warnings_of_nvidia_smi_are_no_gpus(node: Gpus) -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
    found = node.gpus_of(H100, warning)
    assert found == [f"nvidia-smi: {warning}", "gpus: 9.0, NVIDIA H100 80GB HBM3"]
    node.smi(H100, warning, all_gpus=1)
    found = node.look("look_at_gpus 60", HPCRUN_GPUS_PER_NODE="2")
    assert found[-1] == "bad: nvidia-smi shows 1 of the 2 GPUs"


def test_a_gpu_that_is_missing(node: Gpus) -> None:
    assert node.gpus_of(H100, HPCRUN_GPUS_PER_NODE="8") == ["bad: nvidia-smi shows 1 of the 8 GPUs"]
    node.smi("No devices were found", code=6, all_gpus=0)
    assert node.look("look_at_gpus 60") == ["bad: nvidia-smi shows 0 of the 1 GPUs"]
    # Slices are not GPUs; and where Slurm gave none, the node is not to blame.
    for env in ({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}):
        found = node.gpus_of(H100, HPCRUN_GPUS_PER_NODE="2", **env)
        assert not [line for line in found if line.startswith("bad")]
    mig = node.gpus_of(row(mig__mode__current="Enabled"), HPCRUN_GPUS_PER_NODE="2")
    assert mig == ["gpus: 9.0, NVIDIA H100 80GB HBM3"]


def test_gpus_that_are_there_under_other_numbers(node: Gpus) -> None:
    said = "nvidia-smi shows {} of the 2 GPUs (CUDA_VISIBLE_DEVICES=6,7)"
    env = {"HPCRUN_GPUS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "6,7"}
    node.smi(H100, all_gpus=2)
    assert node.look("look_at_gpus 60", **env)[0] == said.format(1)
    node.smi("No devices were found", code=6, all_gpus=2)
    assert node.look("look_at_gpus 60", **env) == [said.format(0)]
    node.smi("No devices were found", code=6, all_gpus=0)
    assert node.look("look_at_gpus 60", **env, HPCRUN_IN_IMAGE="1") == [said.format(0)]


@pytest.mark.parametrize(
    ("message", "code", "in_image"),
    [
        (
            "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the "
            "system to recover this GPU",
            15,
            True,
        ),
        ("Unable to determine the device handle for GPU0: 0000:3B:00.0: Unknown Error", 255, True),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
            "sure that the latest NVIDIA driver is installed and running.",
            9,
            False,
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", 18, False),
    ],
)
def test_a_driver_that_fails(node: Gpus, message: str, code: int, in_image: bool) -> None:
    node.smi(message, code=code)
    assert node.look("look_at_gpus 60") == [f"bad: nvidia-smi: {message}"]
    # In an image the driver's library may be the image's own.
    bad = "bad: nvidia-smi: " if in_image else "nvidia-smi failed: "
    assert node.look("look_at_gpus 60", HPCRUN_IN_IMAGE="1") == [f"{bad}{message}"]


def test_other_failures_of_nvidia_smi_end_no_job(node: Gpus) -> None:
    node.smi("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", code=12)
    [line] = node.look("look_at_gpus 60")
    assert line.startswith("nvidia-smi failed: NVIDIA-SMI couldn't find")
    node.smi(code=3)
    assert node.look("look_at_gpus 60") == ["nvidia-smi failed: "]


@pytest.mark.slow
def test_a_driver_that_hangs_is_not_waited_for(node: Gpus) -> None:
    # As in the kernel: it takes no signal.
    node.tool("nvidia-smi", "#!/bin/bash\ntrap '' TERM INT HUP PIPE\nexec sleep 60 >&- 2>&- 3>&-\n")
    begun = time.monotonic()
    found = node.look("exec 3>&1; (exec 2>/dev/null 3>&-; look_at_gpus 1) | head -n 2 >&3; exit 0")
    assert found == [
        "the GPU driver is slow: nvidia-smi had no answer after 1 s",
        "bad: the GPU driver does not answer: nvidia-smi hung for 1 s, twice",
    ]
    assert time.monotonic() - begun < 50


@pytest.mark.slow
def test_a_driver_that_is_slow_once_ends_nothing(node: Gpus) -> None:
    node.smi(H100)
    smi, first = (
        node.bin / "nvidia-smi",
        '#!/bin/bash\n[ -e "$0.again" ] || { : >"$0.again"; sleep 2; }',
    )
    smi.write_text(smi.read_text().replace("#!/bin/bash", first))
    assert node.look("look_at_gpus 1") == [
        "the GPU driver is slow: nvidia-smi had no answer after 1 s",
        "gpus: 9.0, NVIDIA H100 80GB HBM3",
    ]


def test_errors_of_these_gpus_in_the_kernels_log(node: Gpus) -> None:
    def log(*lines: str) -> list[str]:
        text = "".join(f"[   12.3] {line}\n" for line in lines)
        (node.root / "log").write_text(text)
        node.tool("dmesg", '#!/bin/bash\ncat "${0%/*}/../log"\n')
        return [x for x in node.gpus_of(H100) if "gpus: " not in x]

    fallen = XID.format(79, "GPU has fallen off the bus.")
    what = "Xid 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    assert log(fallen) == [f"the GPU at 0000:3b:00: the kernel's log has {what}"]
    # A program's error; another GPU's; one before the driver was loaded again.
    assert log(XID.format(31, "MMU Fault"), XID.format(13, "Graphics Exception")) == []
    assert log(fallen.replace("3b", "86")) == []
    assert log(fallen, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15") == []


def test_amds_gpus_are_counted(node: Gpus) -> None:
    nodes = node.root / "sys/class/kfd/kfd/topology/nodes"
    assert node.look('look_at_amd "$1" 2') == []
    for number, gpu_id in enumerate(("0", "0", "38281", "51500")):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "gpu_id").write_text(f"{gpu_id}\n")
    assert node.look('look_at_amd "$1" 2') == []
    assert node.look('look_at_amd "$1" 8') == ["bad: the kernel shows 2 of the 8 AMD GPUs"]


def plug(node: Gpus, *ports: tuple[str, str, str]) -> None:
    for name, state, rate in ports:
        node.rdma(name, "InfiniBand", "mlx5_core", state)
        port = node.root / "sys/class/infiniband" / name / "ports/1"
        (port / "rate").write_text(f"{rate}\n")


NDR = "400 Gb/sec (4X NDR)"


def test_node_without_ports_is_bad_if_the_first_node_has_some(node: Gpus) -> None:
    plug(node, ("mlx5_0", "4: ACTIVE", NDR), ("mlx5_1", "1: DOWN", NDR))
    assert node.look('ports "$1"') == [f"1 InfiniBand {NDR}"]

    def lacks_ports(there: str, **env: str) -> bool:
        env = {"HPCRUN_NODE_RANK": "1", "HPCRUN_FIRST_NODE": there, **env}
        return node.look('lacks_ports "$1" && echo it does || :', **env) == ["it does"]

    two = f"2 InfiniBand {NDR}"
    assert not lacks_ports(two, NCCL_NET="IB")
    port = node.root / "sys/class/infiniband/mlx5_0/ports/1/state"
    port.write_text("1: DOWN\n")
    assert lacks_ports(two, NCCL_NET="IB")
    # Over Ethernet, and where no node has any, nobody misses them.
    assert not lacks_ports(two, NCCL_NET="Socket") and not lacks_ports("", NCCL_NET="IB")


def compare(node: Gpus, seconds: float, *, late: float = 0.0) -> list[str]:
    """What a node whose clock is so many seconds ahead is warned of, by a first node like it.

    Its answer may be late, with the time from before the delay or after it.
    """
    plug(node, ("mlx5_0", "4: ACTIVE", NDR))
    wait = f"sleep {abs(late)}"
    node.tool(
        "date",
        f"#!/bin/bash\nexec 3>>'{node.root.parent}/asked'\necho asked >&3\n"
        f"{wait if late > 0 else ''}\n{shutil.which('date')} -d '{seconds} seconds' \"$@\"\n"
        f"{wait if late < 0 else ''}\n",
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 2), "HPCRUN_NODES": "2"}
    env |= {"HPCRUN_PREFLIGHT": "true", "HPCRUN_RUN_DIR": str(node.root)}
    call = 'HPCRUN_NODE_RANK=0 compare_node "$1" &\nHPCRUN_NODE_RANK=1 compare_node "$1"\nwait'
    found = node.look(call, **env)
    assert (node.root.parent / "asked").read_text() == "asked\n"
    return found


def test_node_sends_nothing_to_another_program_at_the_port(node: Gpus) -> None:
    plug(node, ("mlx5_0", "4: ACTIVE", NDR))
    received: list[bytes] = []

    def answer() -> None:
        with server.accept()[0] as connection:
            connection.sendall(b"SSH-2.0-other\n")
            received.append(connection.recv(100))

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = threading.Thread(target=answer)
        thread.start()
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 2), "HPCRUN_NODES": "2"}
        assert node.look('HPCRUN_NODE_RANK=1 compare_node "$1"', **env) == []
        thread.join()
    assert received == [b""]


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "way"), [(-5, "behind"), (5, "ahead of")])
def test_a_clock_that_is_off(node: Gpus, seconds: float, way: str) -> None:
    [found] = compare(node, seconds)
    shown = re.fullmatch(f"its clock is at least ([0-9.]+) s {way} the first node's", found)
    assert shown is not None and 1 <= float(shown[1]) <= 5, found


@pytest.mark.parametrize("seconds", [-0.9, 0.9])
def test_a_clock_that_is_nearly_right(node: Gpus, seconds: float) -> None:
    assert compare(node, seconds) == []


@pytest.mark.slow
@pytest.mark.parametrize("late", [1.3, -1.3])
def test_node_that_answers_late_has_no_wrong_clock(node: Gpus, late: float) -> None:
    assert compare(node, 0, late=late) == []


# ---- in the job


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "tool"), [(0, "python3"), (1, "sleep")])
@pytest.mark.parametrize("bad", [False, True])
def test_the_end_of_a_node_waits_for_no_clock(
    tmp_path: Path, rank: int, tool: str, bad: bool
) -> None:
    """Who asks for the time, or tells it, holds the output that srun waits for; here for ever."""
    made, node = Job(tmp_path / "run"), Gpus(tmp_path / "node")
    clocks, sleep = made.run.path / "clocks", shutil.which("sleep")
    node.tool(tool, f'#!/bin/bash\ntouch "{clocks}"\nexec {sleep} 1000\n')
    later = f'until [ -e "{clocks}" ]; do {sleep} 0.1; done\n'
    made.write(f"{later}echo trained")
    node.tool("nvidia-smi", f"#!/bin/bash\n{later}echo GPU is lost\nexit 15\n")
    (made.run.path / "logs/0").mkdir()
    (made.run.path / "attempts/0/failures").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {"PATH": f"{node.bin}:{os.environ['PATH']}", "HPCRUN_RUN_DIR": str(made.run.path)}
    env |= {"HPCRUN_NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"SLURM_NODEID": str(rank), "SLURM_PROCID": str(rank), "HPCRUN_PREFLIGHT": "true"}
    env |= {"HPCRUN_TEST_MARK": made.mark, "HPCRUN_DEVICE": "cuda", "HPCRUN_ATTEMPT": "0"}
    env |= {"HPCRUN_GPUS_PER_TASK": "1"} if bad else {}
    harness = str(made.run.path / "harness.sh")
    done = subprocess.run(
        ["bash", harness, "node"],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == bad, made.log()
    assert ("trained" in made.log()) != bad and "Terminated" not in made.log()
    until(lambda: not made.processes(), "the end of its processes")


def test_a_node_that_fails_ends_the_attempt_and_is_recorded(tmp_path: Path) -> None:
    made, node = Job(tmp_path / "run"), Gpus(tmp_path / "node")
    why = "Unable to determine the device handle for GPU 0: GPU is lost"
    node.smi(why, code=15)
    (made.run.path / "plan.json").write_text('{\n "run_id": "r",\n "cluster": "o\\"b",\n "x": 1\n}')
    setup = "export HPCRUN_PREFLIGHT=true HPCRUN_GPUS_PER_NODE=1 HPCRUN_DEVICE=cuda"
    made.write(setup=setup)
    env = {"PATH": f"{node.bin}:{os.environ['PATH']}", "SLURMD_NODENAME": "n-7"}
    code, out = made.go(b"", **env)
    said = f"hpcrun: error: n-7 is not fit for this job: nvidia-smi: {why}\n"
    assert code == 1 and said in out and said in made.log() and "trained" not in made.log()
    assert (made.run.path / "attempts/0/bad/n-7").read_text() == f"nvidia-smi: {why}\n"
    # Without Slurm nobody could leave it out.
    assert not (made.run.path / "cache").exists()
    bad = f'. "{PREFLIGHT.with_name("records.sh")}"; . "{PREFLIGHT}"; bad_node "$1"'
    env |= {"SLURM_JOB_ID": "7", "HPCRUN_CACHE_DIR": str(tmp_path / "cache"), "HPCRUN_ATTEMPT": "0"}
    env |= {"HPCRUN_RUN_DIR": str(made.run.path), "HPCRUN_PREFLIGHT": "true"}
    text = 'a "quote", a \\ and\na line'
    begun = int(time.time())
    subprocess.run(["bash", "-uc", bad, "x", text], env=env, check=True)
    record = json.loads((tmp_path / "cache/bad-nodes/n-7").read_text())
    assert begun <= record.pop("at") <= time.time()
    assert record == {
        "node": "n-7",
        "why": text.replace("\n", " "),
        "run_id": "run",
        "user": record["user"],
        "cluster": 'o"b',
    }


def test_a_warning_ends_nothing(tmp_path: Path) -> None:
    made, node = Job(tmp_path / "run"), Gpus(tmp_path / "node")
    node.smi(row(memory__used="70122"))
    made.write(setup="export HPCRUN_PREFLIGHT=true HPCRUN_GPUS_PER_NODE=1 HPCRUN_DEVICE=cuda")
    code, out = made.go(b"", PATH=f"{node.bin}:{os.environ['PATH']}", SLURMD_NODENAME="n-7")
    said = "hpcrun: warning: n-7: GPU 0: 70122 of its 81559 MB are in use by something else\n"
    assert code == 0 and said in out and said in made.log()
    assert read_warnings(made.run.path / "attempts/0") == [said.split(maxsplit=2)[2].strip()]


def test_what_the_batch_log_has_stays(tmp_path: Path) -> None:
    node, log = Gpus(tmp_path / "node"), tmp_path / "batch.log"
    log.write_text("before\n")
    node.smi(row(memory__used="70122"))
    env = {"HPCRUN_RUN_DIR": str(tmp_path), "HPCRUN_PREFLIGHT": "true", "BATCH": str(log)}
    said = node.look('host=n-7; exec {batch}>>"$BATCH"; preflight "$batch"', **env)
    assert log.read_text().splitlines() == ["before", *said] and len(said) == 1


def test_one_question_serves_all_who_want_to_know(tmp_path: Path) -> None:
    made, node = Job(tmp_path / "run"), Gpus(tmp_path / "node")
    node.smi(row(compute_cap="7.0", name="Tesla V100-SXM2-32GB"))
    made.write(setup="export HPCRUN_PREFLIGHT=true HPCRUN_GPUS_PER_NODE=1 HPCRUN_DEVICE=cuda")
    code, _ = made.go(b"", PATH=f"{node.bin}:{os.environ['PATH']}", HPCRUN_NEEDS_BF16="1")
    assert code == 1 and "Tesla V100-SXM2-32GB has no bf16 units" in made.log()
    assert len((node.root / "asked").read_text().splitlines()) == 1


# ---- preflight: full


def test_the_comparison_is_as_its_examples_say() -> None:
    for name in ("judge", "rounds"):
        found = doctest.DocTestFinder(recurse=False).find(PROGRAM[name], name, globs=dict(PROGRAM))
        [test] = found
        assert test.examples and not doctest.DocTestRunner().run(test).failed


class Store:
    """What nodes tell each other; who asks waits."""

    def __init__(self) -> None:
        self.told: dict[str, Future[str]] = {}

    def set(self, key: str, value: str) -> None:
        self.told.setdefault(key, Future()).set_result(value)

    def get(self, key: str) -> str:
        return self.told.setdefault(key, Future()).result(60)


@pytest.mark.parametrize(
    ("rates", "links", "why"),
    [
        ([9], 2, {}),
        ([1, 9], 4, {}),
        (
            [1, 1.2, 1],
            6,
            {2: "its network reaches 0.12 of the speed of the others: 1.2 of 10 GB/s"},
        ),
    ],
)
def test_a_slow_network_is_measured_again(
    rates: list[float], links: int, why: dict[int, str]
) -> None:
    """Three nodes; the links of node 2 have the given rates, one by measurement."""
    store, measured = Store(), Counter[int]()

    def node(me: int) -> Any:
        def measure(name: str, pair: tuple[int, int]) -> float:
            measured[me] += 1
            return rates[int(name[0])] if 2 in pair else 10

        return PROGRAM["compare"](store, me, 3, [f"n-{me}", ["cpu"], [1]], measure)

    with ThreadPoolExecutor(3) as nodes:
        assert list(nodes.map(node, range(3))) == [(["n-0", "n-1", "n-2"], why)] * 3
    assert measured == {0: links, 1: links, 2: links}


@pytest.mark.parametrize(
    ("program", "said", "code"),
    [
        ("print('bad: slow')", "hpcrun: error: n-7 is not fit for this job: slow", 1),
        ("import torchless", "hpcrun: warning: n-7: its speed could not be measured", 0),
        ("print('multiplies at 9 TFLOP/s')", "hpcrun: preflight: multiplies at 9 TFLOP/s", 0),
        ("print('a library has a word')", "\na library has a word\n", 0),
    ],
)
def test_what_cannot_be_measured_ends_nothing(
    tmp_path: Path, program: str, said: str, code: int
) -> None:
    (tmp_path / "preflight.py").write_text(program)
    env = {"HPCRUN_RUN_DIR": str(tmp_path), "HPCRUN_ATTEMPT": "0", "SLURMD_NODENAME": "n-7"}
    env |= {"HPCRUN_PREFLIGHT": "full", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", str(PREFLIGHT), "measure", sys.executable],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said in f"\n{done.stdout}" and done.returncode == code
    assert (tmp_path / "attempts/0/bad/n-7").exists() == (code == 1)
