"""The roles of a job as processes on this machine, without Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hpcrun.jobside.roles import RoleRunner, find_port, route_address
from hpcrun.jobside.roles import run_roles as supervise_roles
from tests.jobside.slurm_commands import StandIns
from tests.jobside.slurm_commands import slurm as slurm
from tests.waiting import PATIENCE

SERVE = """
import http.server, os
http.server.HTTPServer(("127.0.0.1", int(os.environ["HPCRUN_PORT"])),
                       http.server.SimpleHTTPRequestHandler).serve_forever()
"""
ASK = """
import os, urllib.request
urllib.request.urlopen("http://{}:{}/".format(
    os.environ["HPCRUN_ROLE_SERVER_HOST"], os.environ["HPCRUN_ROLE_SERVER_PORT"])).read()
"""
HTTP = "http://{host}:{port}/"


def run_roles(
    tmp_path: Path,
    programs: dict[str, str],
    *,
    ready: str | None = HTTP,
    within: int = int(PATIENCE),
    runner: str = "",
) -> tuple[int, dict[str, Any], str, list[dict[str, Any]]]:
    """Run programs as roles, of which the last one is main and waits for the first.

    Returns the exit code, the states, the messages, and the failures in their order.
    """
    names, run = list(programs), tmp_path / "run"
    (run / "attempts/0/failures").mkdir(parents=True)
    plans = []
    for name, code in programs.items():
        is_main, is_first = name == names[-1], name == names[0]
        folder = run if is_main else run / "roles" / name
        (folder / "logs/0").mkdir(parents=True)
        (folder / "program.py").write_text(code)
        log = '"$HPCRUN_RUN_DIR/logs/0/rank-0.log"'
        command = f'exec {sys.executable} "$HPCRUN_RUN_DIR/program.py" >{log} 2>&1\n'
        (folder / "job.sbatch").write_text(command)
        plan = {"name": name, "is_main": is_main, "nodes": [0], "gpus": 0}
        plan["ready"] = ready if is_first else None
        plan["waits_for"] = names[:1] if is_main else []
        plans.append({**plan, "ready_within": within})
    (run / "roles.json").write_text(json.dumps(plans))
    environ = {"PATH": os.environ["PATH"], "HPCRUN_RUN_DIR": str(run), "HPCRUN_ATTEMPT": "0"}
    argv = [sys.executable, "-m", "hpcrun.jobside", "run_roles"]
    if runner:
        argv = ["bash", "-c", runner, "-", *argv]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    states = json.loads((run / "attempts/0/roles.json").read_text())
    files = sorted((run / "attempts/0/failures").glob("*.json"))
    failures = [json.loads(file.read_text()) for file in files]
    return done.returncode, states, done.stdout + done.stderr, failures


def test_the_main_role_starts_when_the_server_answers_and_ends_it(tmp_path: Path) -> None:
    slow = f"import time\ntime.sleep(1)\n{SERVE}"
    code, states, said, failures = run_roles(tmp_path, {"server": slow, "train": ASK})
    assert (code, failures) == (0, [])
    assert {name: each["state"] for name, each in states.items()} == {
        "server": "ended",
        "train": "ended",
    }
    assert "role server is ready after" in said


def test_a_failed_role_ends_the_job_with_its_code_and_its_record(tmp_path: Path) -> None:
    dies = "import sys, time\nprint('up', flush=True)\ntime.sleep(1)\nsys.exit(3)"
    programs = {"server": dies, "train": "import time; time.sleep(60)"}
    code, states, said, failures = run_roles(tmp_path, programs, ready="log:^up")
    assert code == 3
    assert "hpcrun: role server on" in said and "ended with exit code 3" in said
    assert [(each["role"], each["exit_code"]) for each in failures] == [("server", 3)]
    assert states["server"]["state"] == "failed"


def test_a_role_that_is_never_ready_ends_the_job_with_the_last_answer(tmp_path: Path) -> None:
    programs = {"server": "import time; time.sleep(60)", "train": ASK}
    code, states, said, failures = run_roles(tmp_path, programs, within=1)
    assert code == 1 and states["train"]["state"] == "waiting"
    assert "was not ready within 1 s (http://127.0.0.1:" in said
    assert "Connection refused" in said
    assert failures[0]["role"] == "server"


def test_a_role_that_ends_before_it_is_ready_ends_the_job(tmp_path: Path) -> None:
    code, _, said, _ = run_roles(tmp_path, {"server": "pass", "train": ASK})
    assert code == 1 and "ended before it was ready" in said


def test_role_that_answers_another_protocol_is_not_ready(tmp_path: Path) -> None:
    other = """
import os, socket
listener = socket.create_server(("127.0.0.1", int(os.environ["HPCRUN_PORT"])))
while True:
    connection = listener.accept()[0]
    connection.recv(1000)
    connection.sendall(b"SSH-2.0-server\\r\\n\\r\\n")
    connection.close()
"""
    code, states, said, failures = run_roles(tmp_path, {"server": other, "train": ASK}, within=1)
    assert code == 1 and states["train"]["state"] == "waiting"
    assert "the response is not HTTP" in said and "Traceback" not in said
    assert failures[0]["role"] == "server"


def test_error_of_the_supervision_ends_all_roles_and_is_recorded(tmp_path: Path) -> None:
    breaks = """
import os, time
run = os.environ["HPCRUN_RUN_DIR"]
open(run + "/pid", "w").write(str(os.getpid()))
os.mkdir(run + "/../../attempts/0/roles.json.part")
print("up", flush=True)
time.sleep(60)
"""
    programs = {"server": breaks, "train": "import time; time.sleep(60)"}
    code, _, said, failures = run_roles(tmp_path, programs, ready="log:^up")
    assert code == 1 and "the roles can no longer be supervised: IsADirectoryError" in said
    assert [each["exit_code"] for each in failures] == [1]
    server = int((tmp_path / "run/roles/server/pid").read_text())
    assert not Path(f"/proc/{server}").exists()


def test_role_of_several_nodes_has_an_address_for_the_other_nodes(slurm: StandIns) -> None:
    """Both roles start on the first node."""
    slurm.answer("scontrol show hostnames", "n1\nn2")
    slurm.answer("scontrol --oneliner show node n1", "NodeName=n1 NodeAddr=192.0.2.1")
    plan: dict[str, Any] = {
        "is_main": False,
        "gpus": 0,
        "ready": None,
        "waits_for": [],
        "ready_within": 9,
    }
    server = {**plan, "name": "server", "nodes": [0]}
    train = {**plan, "name": "train", "nodes": [0, 1], "is_main": True}
    (slurm.run / "roles.json").write_text(json.dumps([server, train]))
    environ = {**os.environ, **slurm.environ, "SLURM_JOB_NODELIST": "n[1-2]"}
    runner = RoleRunner(environ, slurm.said.append, slurm.said.append)
    runner._find_addresses()
    assert [role.address for role in runner.roles] == ["192.0.2.1", "192.0.2.1"]


def test_a_role_without_readiness_may_end_before_the_main_one(tmp_path: Path) -> None:
    programs = {"prepare": "pass", "train": "import time; time.sleep(1.5)"}
    code, states, _, _ = run_roles(tmp_path, programs, ready=None)
    assert code == 0 and states["prepare"]["state"] == "ended"


def test_a_stop_by_the_batch_script_ends_all_roles(tmp_path: Path) -> None:
    programs = {"server": SERVE, "train": "import time; time.sleep(60)"}
    stop = '"$@" & sleep 3; kill $!; while kill -0 $! 2>/dev/null; do wait $!; done; wait $!'
    code, _, _, failures = run_roles(tmp_path, programs, runner=stop)
    assert (code, failures) == (143, [])


def test_ports_differ_between_roles_and_attempts() -> None:
    ports = {find_port("4711", attempt, role) for attempt in range(3) for role in range(3)}
    assert len(ports) == 9 and all(12000 <= port < 30000 for port in ports)


def test_the_address_on_the_route_to_this_machine_is_loopback() -> None:
    assert route_address("127.0.0.1") == "127.0.0.1"


def test_job_whose_nodes_slurm_does_not_name_fails_with_one_message(slurm: StandIns) -> None:
    slurm.answer("scontrol show hostnames", "", code=1, error="Unable to contact slurm controller")
    plan = {"name": "train", "is_main": True, "nodes": [0, 1], "gpus": 0, "ready": None}
    plans = [plan | {"waits_for": [], "ready_within": 1}]
    (slurm.run / "roles.json").write_text(json.dumps(plans))
    environ = {**os.environ, **slurm.environ, "SLURM_JOB_NODELIST": "n[1-2]"}
    assert supervise_roles(environ, slurm.said.append, slurm.said.append) == 1
    message = "hpcrun: error: no role was started: Slurm does not name the job's nodes (n[1-2])"
    assert slurm.said == [message]
