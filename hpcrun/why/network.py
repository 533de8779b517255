"""Failure rules: NCCL, the rendezvous, launchers that report a failed process, Slurm."""

from __future__ import annotations

from hpcrun.why.rule import SYMPTOM, WEAK, FailureRule

_TORCH = "torch/distributed/elastic/multiprocessing/errors/__init__.py"
_REQ = "SchedMD/slurm src/slurmd/slurmstepd/req.c"

NETWORK = [
    FailureRule(
        id="nccl_no_iface",
        cls="nccl",
        title="NCCL or gloo found none of the network interfaces it was configured to use",
        patterns=(
            "Bootstrap : no socket interface found",
            "NET/Socket : no interface found",
            "NET/IB : No IP interface found",
            r"Unable to find (?:address|interface) for: \S+",
            "No interface matching",
            r"ifname \S+ not found",
            "[Cc]ould not find any (?:socket )?interface",
        ),
        needles=("interface", "Unable to find", "ifname"),
        fixes=(
            "unset NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME: hpcrun sets them on each node",
            "run `ip -br addr` on every node",
        ),
        verdict="fix",
        message="Bootstrap : no socket interface found",
        example="n1:8:99 [0] bootstrap.cc:103 NCCL WARN Bootstrap : no socket interface found",
        unlike="NCCL INFO Bootstrap : Using interface eth0",
        source="NVIDIA/nccl src/bootstrap.cc",
    ),
    FailureRule(
        id="nccl_invalid_usage",
        cls="nccl",
        title="two ranks use the same GPU",
        patterns=(
            r"Duplicate GPU detected ?: rank (\d+) and rank (\d+) both on CUDA device",
            "Multiple Ranks are using the same GPU",
        ),
        needles=("Duplicate GPU", "Multiple Ranks", "invalid usage"),
        fixes=(
            "call `torch.cuda.set_device(LOCAL_RANK)` before any other CUDA call",
            "start one rank per GPU",
        ),
        verdict="fix",
        message="Duplicate GPU detected",
        example=(
            "n1:8:99 [0] init.cc:871 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 "
            "both on CUDA device 7000"
        ),
        unlike="NCCL WARN no error: each rank has its GPU",
        source="NVIDIA/nccl src/init.cc",
    ),
    FailureRule(
        id="nccl_version_mismatch",
        cls="nccl",
        title="the nodes have different NCCL versions",
        patterns=("Mismatched NCCL version detected", "NCCL version mismatch"),
        needles=("NCCL version",),
        fixes=(
            "use the same environment on all nodes",
            "remove other NCCL libraries from LD_LIBRARY_PATH",
        ),
        verdict="fix",
        message="Mismatched NCCL version detected",
        example=(
            "NCCL WARN Mismatched NCCL version detected : rank 0 version 22705 rank 8 version 22005"
        ),
        unlike="NCCL version 2.27.5, no error",
        source="NVIDIA/nccl src/bootstrap.cc",
    ),
    FailureRule(
        id="nccl_ib",
        cls="nccl",
        kind=WEAK,
        title="an InfiniBand or RoCE connection between nodes failed, or the peer died first",
        patterns=(
            r"NET/IB ?: ?Got completion (?:from peer \S+ )?with (?:status|error)",
            r"Got completion with error (\d+)",
            r"NCCL WARN Call to ibv_\w+ failed",
        ),
        needles=("NET/IB", "Got completion", "ibv_"),
        fixes=(
            "check whether another rank failed first",
            "`ulimit -l` on the nodes must be unlimited",
            "{without_node}",
        ),
        verdict="exclude_node",
        message="Got completion from peer ... with status",
        example=(
            "n1:8:99 [0] transport/net_ib.cc:1795 NCCL WARN NET/IB: Got completion from peer "
            "10.0.0.2<33333> with status=IBV_WC_RETRY_EXC_ERR(12)"
        ),
        unlike="NCCL INFO NET/IB : Using [0]mlx5_0:1/IB",
        source="NVIDIA/nccl src/transport/net_ib.cc",
    ),
    FailureRule(
        id="nccl_conn_exceeded",
        cls="nccl",
        kind=WEAK,
        title=(
            "NCCL could not connect to another rank: it died, or an interface or a firewall "
            "blocks the connection"
        ),
        patterns=("exceeded (?:retries/timeouts|error retry count)",),
        needles=("exceeded",),
        fixes=(
            "check which rank failed first",
            "`nccl: {env: {NCCL_SOCKET_IFNAME: eth0}}`: the interface between the nodes",
        ),
        message="exceeded error retry count",
        example=(
            "n1:8:99 [0] misc/socket.cc:553 NCCL WARN socketPollConnect: connect to "
            "10.0.0.2<40123> returned Connection refused, exceeded error retry count after "
            "35 attempts"
        ),
        unlike="NCCL INFO Call to connect returned Connection refused, retrying",
        source="NVIDIA/nccl src/misc/socket.cc",
    ),
    FailureRule(
        id="nccl_conn_refused",
        cls="nccl",
        kind=SYMPTOM,
        title=(
            "NCCL could not connect to another rank: it died earlier, or an interface or a "
            "firewall blocks the connection"
        ),
        patterns=(
            (
                r"NCCL WARN .*(?:[Cc]onnect to \S+|Call to connect) (?:returned"
                "|failed ?:) (?P<why>Connection refused|Connection timed out"
                "|No route to host|Network is unreachable)"
            ),
        ),
        needles=("connect to", "Connect to", "Call to connect"),
        fixes=(
            "check whether another rank failed first",
            (
                "`nccl: {env: {NCCL_SOCKET_IFNAME: ...}}`: the interface with the route to "
                "the other nodes"
            ),
        ),
        message="Call to connect returned Connection refused",
        example=(
            "n1:8:99 [0] misc/socket.cc:441 NCCL WARN Call to connect returned Connection "
            "refused, error"
        ),
        unlike="n1:8:99 [0] NCCL INFO Call to connect returned Connection refused, retrying",
        source="NVIDIA/nccl src/misc/socket.cc",
    ),
    FailureRule(
        id="nccl_ib_async",
        cls="nccl",
        kind=WEAK,
        title="a network adapter of the node reports a fault: {why}",
        patterns=(r"NET/IB ?: ?\S+ async fatal event: (?P<why>.+)",),
        needles=("async fatal event",),
        fixes=("{without_node}", "report the node to the site's support"),
        verdict="exclude_node",
        message="async fatal event",
        example=(
            "n1:8:99 [0] NCCL WARN NET/IB : mlx5_0:1 async fatal event: local catastrophic error"
        ),
        unlike=(
            "n1:8:99 [0] NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)"
        ),
        source="NVIDIA/nccl src/transport/net_ib.cc",
    ),
    FailureRule(
        id="nccl_truncated",
        cls="nccl",
        title="ranks called different collectives, or the same one with different shapes",
        patterns=(
            r"Message truncated ?: received (\d+) bytes instead of (\d+)",
            "Detected mismatch between collectives on ranks",
            "Mismatch between collective operation types",
            "Detected mismatched collectives",
        ),
        needles=("Message truncated", "ollective", "mismatch"),
        fixes=(
            "all ranks must call the same collectives in the same order",
            (
                "`--set env.TORCH_DISTRIBUTED_DEBUG=DETAIL` names the collectives if the "
                "message does not"
            ),
        ),
        message=(
            "Message truncated : received N bytes instead of N / Detected mismatch between "
            "collectives on ranks"
        ),
        example="NCCL WARN Message truncated : received 1024 bytes instead of 256",
        unlike="Message truncated, no error",
        source="NVIDIA/nccl src/transport/net_socket.cc",
    ),
    FailureRule(
        id="nccl_watchdog",
        cls="nccl",
        kind=WEAK,
        title=(
            "a collective timed out: some rank did not join it; it crashed, waits for data, "
            "or saves alone"
        ),
        patterns=(
            "Watchdog caught collective operation timeout",
            r"watchdog got stuck for \d+ seconds",
            r"Rank (?P<rank>\d+) failed to pass monitoredBarrier",
            "some NCCL operations have failed or timed out",
            "Timeout at NCCL work",
            "monitoredBarrier.*(?:timed out|failed)",
            r"WorkNCCL\(.*timed out",
            "heartbeat monitor timed out",
        ),
        needles=(
            "collective operation timeout",
            "watchdog",
            "monitoredBarrier",
            "Monitored Barrier",
            "NCCL operations",
            "NCCL work",
            "WorkNCCL",
            "heartbeat monitor",
            "onitored",
        ),
        fixes=(
            "`hpcrun logs --err JOB`: the missing rank has a different SeqNum",
            (
                "for long work on rank 0: `init_process_group(timeout=...)`; NCCL_TIMEOUT "
                "has no effect"
            ),
        ),
        message="Watchdog caught collective operation timeout",
        example=(
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=24, "
            "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600083 "
            "milliseconds before timing out."
        ),
        unlike="the watchdog is on, timeout 600 s",
        source=(
            "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
        ),
    ),
    FailureRule(
        id="nccl_timeout_dump",
        cls="nccl",
        kind=SYMPTOM,
        title="the process group was aborted after an error or a timeout",
        patterns=(
            "Received a dump signal due to a collective timeout",
            "NCCL communicator was aborted",
            "Process group watchdog thread terminated with exception",
        ),
        needles=(
            "dump signal",
            "communicator was aborted",
            "Timeout waiting for",
            "terminated due to",
        ),
        example="RuntimeError: NCCL communicator was aborted on rank 1.",
        unlike="NCCL communicator was made",
        source="torch ProcessGroupNCCL.cpp",
    ),
    FailureRule(
        id="nccl_id_store",
        cls="rendezvous",
        kind=SYMPTOM,
        title="rank 0 died before the process group was created",
        patterns=(r"retrieving ncclUniqueId from \[0\] via c10d key-value store",),
        needles=("ncclUniqueId",),
        example=(
            "[8] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
            "c10d key-value store by key '0', but store->get('0') got error: Connection "
            "reset by peer"
        ),
        unlike="error-free: ncclUniqueId was made",
        source="torch ProcessGroupNCCL.cpp",
    ),
    FailureRule(
        id="nccl_remote_exit",
        cls="nccl",
        kind=SYMPTOM,
        title="the connection to another rank was lost: that rank died earlier",
        patterns=(
            "Connection closed by (?:remote )?peer",
            "remote process exited or there was a network error",
            "Connection reset by peer",
            "Call to recv from",
            r"^(?:\S+\.)?BrokenPipeError",
            r"^(?:\S+\.)?ConnectionResetError",
            "Socket closed",
        ),
        needles=(
            "remote peer",
            "remote process",
            "Connection reset",
            "Connection closed",
            "Broken pipe",
            "Socket closed",
            "socket was closed",
            "Call to recv",
            "BrokenPipe",
            "ConnectionReset",
        ),
        fixes=("see the first failure",),
        message="Connection reset by peer",
        example=(
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
            "[10.77.0.11]:38785: Connection reset by peer"
        ),
        unlike="the connection was reset on purpose, no error",
        source="NVIDIA/nccl src/misc/socket.cc",
    ),
    FailureRule(
        id="nccl_error",
        cls="nccl",
        kind=WEAK,
        title="an NCCL call failed: the network, the GPU, or the peer died first",
        patterns=(
            "unhandled (?:system|cuda) error",
            "nccl(?:System|Internal|UnhandledCuda|Remote)Error",
            "internal error - please report this issue to the NCCL",
            "ncclInvalidUsage",
            r"NCCL [Ee]rror (?:in|\d)",
        ),
        needles=(
            "unhandled",
            "ncclSystemError",
            "ncclInternalError",
            "ncclUnhandledCudaError",
            "ncclInvalidUsage",
            "NCCL error",
            "internal error - please",
            "ncclRemoteError",
            "NCCL Error",
        ),
        fixes=(
            "`hpcrun submit JOB --debug` makes NCCL log the call",
            "see also the first failure",
        ),
        message="unhandled system error",
        example=(
            "torch.distributed.DistBackendError: NCCL error in: "
            "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled system "
            "error (run with NCCL_DEBUG=INFO for details)"
        ),
        unlike="NCCL INFO unhandled: 0",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
    FailureRule(
        id="eaddrinuse",
        cls="port",
        title=(
            "the port is in use: by another job, a leftover process, or a second launcher on "
            "the node"
        ),
        patterns=(
            "EADDRINUSE",
            "[Aa]ddress already in use",
            r"[Pp]ort (?P<port>\d+) is already in use",
            "Tried to launch distributed communication on port",
        ),
        needles=(
            "EADDRINUSE",
            "ddress already in use",
            "already in use",
            "distributed communication on port",
        ),
        fixes=(
            "unset MASTER_PORT: hpcrun derives it from the job id and skips ports in use",
            "start one launcher per node",
        ),
        message="EADDRINUSE",
        example=(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on "
            "any local network address. port: 29500, useIpv6: false, code: -98, name: "
            "EADDRINUSE, message: address already in use"
        ),
        unlike="the address is in use by rank 0, no error",
        source="torch c10d socket.cpp",
    ),
    FailureRule(
        id="store_timeout",
        cls="rendezvous",
        kind=WEAK,
        title=(
            "not all ranks joined the rendezvous: a node did not start, or the address is "
            "unreachable"
        ),
        patterns=(
            "The client socket has (?:timed out after|failed to connect to)",
            r"Timed out after (\d+) seconds waiting for clients",
            "Socket Timeout",
            r"wait timeout after (\d+)ms",
            "Timed out initializing process group in store based barrier",
            "RendezvousTimeoutError",
            "RendezvousConnectionError",
            "RendezvousClosedError",
            "The connection to the C10d store has failed",
        ),
        needles=(
            "client socket",
            "clients joined",
            "Socket Timeout",
            "wait timeout after",
            "Timed out initializing process group",
            "timed out after",
            "waiting for clients",
            "Rendezvous",
            "C10d store",
        ),
        fixes=(
            "`hpcrun logs --node 1 JOB` and so on: find the node without output",
            (
                "MASTER_ADDR, or the rendezvous endpoint, must be the first node's; one "
                "launcher must run on each node"
            ),
        ),
        message="Timed out after N seconds waiting for clients / RendezvousTimeoutError",
        example=(
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for "
            "clients. 1/2 clients joined."
        ),
        unlike="the client socket has connected to node1, port 29500; timeout 600",
        source="torch c10d TCPStore.cpp",
    ),
    FailureRule(
        id="gloo_connect",
        cls="rendezvous",
        kind=WEAK,
        title="gloo could not connect the ranks: one died, or it chose the wrong interface",
        patterns=(
            "Gloo connectFullMesh failed",
            r"^(?:\S+\.)?ConnectionRefusedError\b",
            r"gloo/transport/tcp/\S+\] .*(?:Connection refused|[Cc]onnect timeout|timed out)",
            r"\[enforce fail at .*gloo.*\]",
        ),
        needles=("connectFullMesh", "gloo", "Gloo"),
        fixes=(
            "see the first failure",
            "unset GLOO_SOCKET_IFNAME: hpcrun sets it on each node",
        ),
        message="Gloo connectFullMesh failed",
        example=(
            "RuntimeError: Gloo connectFullMesh failed with "
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"
        ),
        unlike="gloo is connected, no error",
        source="https://github.com/pytorch/gloo",
    ),
    FailureRule(
        id="env_missing_rank",
        cls="rendezvous",
        title="the script was started without a launcher",
        patterns=(
            r"environment variable (?P<name>\w+) expected, but not set",
            "requires the LOCAL_RANK environment variable",
        ),
        needles=("expected, but not set", "LOCAL_RANK environment"),
        fixes=("use `script:` instead of `command:`", "or `launcher: srun`"),
        verdict="fix",
        message="environment variable RANK expected, but not set",
        example=(
            "ValueError: Error initializing torch.distributed using env:// rendezvous: "
            "environment variable RANK expected, but not set"
        ),
        unlike="the environment variable RANK is set; errors: 0",
        source="torch/distributed/rendezvous.py",
    ),
    FailureRule(
        id="no_process_group",
        cls="rendezvous",
        title="torch.distributed is used before init_process_group()",
        patterns=("[Dd]efault process group has not been initialized",),
        needles=("process group has not been initialized",),
        fixes=(
            (
                "call `torch.distributed.init_process_group()` first, and start the script "
                "by a launcher"
            ),
        ),
        verdict="fix",
        message="Default process group has not been initialized",
        example=(
            "ValueError: Default process group has not been initialized, please make sure to "
            "call init_process_group."
        ),
        unlike="the process group has been initialized, no error",
        source="torch/distributed/distributed_c10d.py",
    ),
    FailureRule(
        id="mpi4py_missing",
        cls="import",
        title="DeepSpeed found no ranks in its environment and tried MPI",
        patterns=("No module named '?mpi4py'?",),
        needles=("mpi4py",),
        fixes=("use a launcher: `launcher: torchrun`", "or `pip install mpi4py`"),
        message="No module named 'mpi4py'",
        example="ModuleNotFoundError: No module named 'mpi4py'",
        unlike="mpi4py is there, no error",
        source="deepspeed comm/comm.py",
    ),
    FailureRule(
        id="mpi_start",
        cls="rendezvous",
        title="MPI could not start its ranks",
        patterns=(
            "There are not enough slots available in the system",
            "ORTE (?:was unable to|has lost communication)",
            "ORTE daemon has unexpectedly failed",
            "OPAL ERROR",
            "PMI2?_Init failed",
            "PMIX ERROR",
            "It looks like MPI_INIT failed",
            "was not compiled with (?:SLURM's )?PMI support",
            "Fatal error in (?:P?MPI_Init|internal_Init)",
        ),
        needles=(
            "slots available",
            "ORTE",
            "PMIx",
            "PMI",
            "MPI_INIT",
            "MPI_Init",
            "PRTE",
            "OPAL",
            "internal_Init",
            "Fatal error in",
        ),
        fixes=(
            "request as many tasks as ranks",
            "`srun --mpi=list` shows what this Slurm supports",
        ),
        message="There are not enough slots available in the system",
        example="There are not enough slots available in the system to satisfy the 8",
        unlike="ORTE is used, no error",
        source="https://docs.open-mpi.org/en/main/launching-apps/slurm.html",
    ),
    FailureRule(
        id="ddp_unused",
        cls="code_error",
        title="DDP: some parameters received no gradient",
        patterns=("Expected to have finished reduction in the prior iteration",),
        needles=("finished reduction in the prior iteration",),
        fixes=("`find_unused_parameters=True`", "or freeze these parameters"),
        message="Expected to have finished reduction in the prior iteration",
        example=(
            "RuntimeError: Expected to have finished reduction in the prior iteration before "
            "starting a new one."
        ),
        unlike="finished the prior iteration, no error",
        source="torch/csrc/distributed/c10d/reducer.cpp",
    ),
    FailureRule(
        id="local_rank_arg",
        cls="code_error",
        title="the launcher adds --local_rank, which the script does not accept",
        patterns=("unrecognized arguments:.* --local[_-]rank",),
        needles=("--local",),
        fixes=("`launcher: torchrun`", "or add the argument to the script"),
        message="unrecognized arguments: --local_rank",
        example="train.py: error: unrecognized arguments: --local_rank=3",
        unlike="train.py: error: unrecognized arguments: --lr",
        source="deepspeed launcher/launch.py",
    ),
    FailureRule(
        id="ds_hostfile",
        cls="other",
        title="the deepspeed launcher rejects its hostfile, or sees no GPU",
        patterns=(
            "Hostfile .*(?:is not formatted correctly|contains multiple entries)",
            "Hostfile contains a bad entry",
            r"No slot '?\S+'? specified on host",
            "Unable to proceed, no GPU resources available",
            "Cannot specify num_nodes/gpus with include/exclude",
        ),
        needles=("ostfile", "no GPU resources", "No slot", "num_nodes/gpus"),
        fixes=("write lines as `host slots=8`", "`launcher: torchrun`"),
        verdict="fix",
        message="Unable to proceed, no GPU resources available",
        example="RuntimeError: Unable to proceed, no GPU resources available",
        unlike="Hostfile is used; errors: 0",
        source="deepspeed launcher/runner.py",
    ),
    FailureRule(
        id="ds_ssh",
        cls="rendezvous",
        title="the launcher cannot reach the other nodes over SSH",
        patterns=(
            "was not reachable via ssh",
            r"launcher '(\w+)' not installed",
            "Host key verification failed",
            r"Permission denied \(publickey",
        ),
        needles=(
            "reachable via ssh",
            "not installed",
            "Host key verification",
            "Permission denied (publickey",
        ),
        fixes=("`launcher: torchrun`, which needs no SSH", "or SSH keys between the nodes"),
        verdict="fix",
        message="was not reachable via ssh",
        example=(
            "RuntimeError: Using hostfile at hf but host=node1 was not reachable via ssh. If "
            "you are running with a single node please remove hf or setup passwordless ssh."
        ),
        unlike="node1 is reachable via ssh; errors: 0",
        source="deepspeed launcher/runner.py:491",
    ),
    FailureRule(
        id="ssh_host",
        cls="rendezvous",
        verdict="fix",
        title="SSH could not resolve the host name {name}",
        patterns=(
            (
                r"ssh: Could not resolve hostname (?!(?:\w+\.)*(?:github|gitlab|bitbucket|hf|"
                r"huggingface)\.)(?P<name>\S+?):"
            ),
            r"cannot be reached (?:by|over|via) (?:ssh|SSH)",
        ),
        needles=("Could not resolve hostname", "cannot be reached"),
        fixes=(
            (
                "use a host name or address that this machine can resolve, or an entry in "
                "`~/.ssh/config`"
            ),
            "for the ranks of a job: `launcher: torchrun`, which needs no SSH",
        ),
        message="ssh: Could not resolve hostname",
        example="ssh: Could not resolve hostname node07: Name or service not known",
        unlike="ssh: Could not resolve hostname github.com: Temporary failure in name resolution",
        source="OpenSSH ssh.c",
    ),
    FailureRule(
        id="torchrun_child",
        cls="other",
        kind=SYMPTOM,
        title="a launcher reports that a process failed (a consequence, not the cause)",
        patterns=(
            "ChildFailedError",
            r"Root Cause \(first observed failure\)",
            "CalledProcessError",
            r"torch\.multiprocessing\.spawn\.ProcessRaisedException",
        ),
        needles=(
            "ChildFailedError",
            "first observed failure",
            "CalledProcessError",
            "ProcessRaisedException",
            "ProcessExitedException",
        ),
        fixes=(
            "`hpcrun status JOB` names the process",
            (
                "torchrun's exit codes: -9 SIGKILL (memory), -6 abort, -11 segmentation "
                "fault, -15 terminated by the launcher"
            ),
        ),
        message="ChildFailedError",
        example="torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        unlike="no child failed with an error",
        source=_TORCH,
    ),
    FailureRule(
        id="torchrun_sigterm",
        cls="cancelled",
        kind=SYMPTOM,
        title="a process was asked to terminate",
        patterns=(
            r"SignalException: Process (\d+) got signal: (\d+)",
            r"Sending process \d+ closing signal",
            "is killed by signal: Terminated",
            r"terminated with signal SIG(?:TERM|INT|HUP)\b",
            "(?:[Rr]eceived|[Cc]aught|got) (?:signal )?(?:SIGTERM|SIGINT|signal 15)",
            r"Received Signals\.SIGTERM",
            r"exitcode ?: -15\b",
            r"exits with return code = -15\b",
            r"\(SIGTERM\) received by PID",
        ),
        needles=(
            "SignalException",
            "closing signal",
            "signal: Terminated",
            "SIGTERM",
            "SIGINT",
            "exitcode",
            "return code",
            "signal 15",
            "signal SIG",
        ),
        fixes=("a consequence, not the cause: see `hpcrun status`",),
        message="SignalException ... got signal: 15",
        example=(
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4242 got "
            "signal: 15"
        ),
        unlike="handler for SIGTERM installed; errors: 0",
        source="torch/distributed/elastic/multiprocessing/api.py",
    ),
    FailureRule(
        id="terminated",
        cls="cancelled",
        kind=SYMPTOM,
        title="a process of the script was terminated (SIGTERM)",
        patterns=(
            "^FatalError: `Termination signal` is detected",
            (
                r"^(?:\S+: line \d+: )?\s*(?:\d+ )?Terminated(?:\s{2,}(?!\s|(?:nvidia-smi"
                r"|tensorboard|tail|sleep|top|ssh|watch)\b)|$)"
            ),
        ),
        needles=("Terminated", "Termination signal"),
        example="Terminated",
        unlike="./run.sh: line 9: 4711 Terminated              tail -f log",
        source="bash",
    ),
    FailureRule(
        id="torchrun_exit",
        cls="other",
        kind=SYMPTOM,
        title="a launcher reports that a process failed (a consequence, not the cause)",
        patterns=(
            r"^\s*exitcode\s*:\s*(?P<code>-?\d+)",
            r"failed \(exitcode: (?P<code2>-?\d+)\) local_rank: (?P<rank>\d+)",
            r"exits with return code = (?P<code3>-?\d+)",
            r"Killing subprocess \d+",
        ),
        needles=("exitcode", "failed (exitcode", "return code", "Killing subprocess"),
        example=(
            "E0101 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: "
            "1) local_rank: 3 (pid: 4242) of binary: /usr/bin/python"
        ),
        unlike="return code 0, no error",
        source="deepspeed launcher/launch.py:259",
    ),
    FailureRule(
        id="ray_actor",
        cls="other",
        kind=SYMPTOM,
        title="a Ray worker died",
        patterns=(
            "The actor died unexpectedly",
            (
                r"ray\.exceptions\.(?:RayTaskError\((?:RayActor|Actor\w+"
                r"|WorkerCrashed)Error\)|RayActorError|ActorDiedError|ActorUnavailableError"
                "|WorkerCrashedError)"
            ),
            "A worker died or was killed",
        ),
        needles=(
            "actor died",
            "RayActorError",
            "ActorDiedError",
            "worker died",
            "RayTaskError",
            "Worker crashed",
            "ActorUnavailable",
            "WorkerCrashed",
            "RayTask",
        ),
        fixes=("see its own log below /tmp/ray/session_latest/logs",),
        message="The actor died unexpectedly before finishing this task",
        example=(
            "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task."
        ),
        unlike="the actor is alive, no error",
        source="https://docs.ray.io/en/latest/ray-core/fault_tolerance/actors.html",
    ),
    FailureRule(
        id="ray_node",
        cls="node_fail",
        title="a Ray node died",
        patterns=(r"node with node id:? \S+ .*has been marked dead",),
        needles=("marked dead",),
        example=(
            "The node with node id: ab12 and address: 10.0.0.2 and node name: 10.0.0.2 has "
            "been marked dead because the detector has missed too many heartbeats from it."
        ),
        unlike="no node was marked dead; errors: 0",
        source="https://docs.ray.io",
    ),
    FailureRule(
        id="ucx",
        cls="nccl",
        kind=WEAK,
        title="a message between ranks failed: the network, or the peer died first",
        patterns=(
            r"UCX\s+ERROR",
            "ucx (?:send|recv) failed",
            "libfabric:.*(?:error|failed)",
            r"Fatal error in P?MPI_\w+: ",
            r"\bMPI_ERR_\w+: ",
            r"mlx5: \S+: got completion with error",
        ),
        needles=(
            "UCX  ERROR",
            "UCX ERROR",
            "ucx send failed",
            "ucx recv failed",
            "libfabric:",
            "Fatal error in",
            "MPI_ERR",
            "mlx5: ",
            "UCX",
        ),
        fixes=(
            "check whether another rank failed first",
            "set `UCX_TLS` and `FI_PROVIDER` as the site recommends",
        ),
        message="UCX ERROR",
        example=(
            "[1580511823.093576] [cgpu17:53890:1]  mm_xpmem.c:85  UCX  ERROR Failed to "
            "attach xpmem apid 0x20000d282"
        ),
        unlike="UCX  DEBUG no error",
        source="https://openucx.readthedocs.io",
    ),
    FailureRule(
        id="mpi_abort",
        cls="other",
        kind=SYMPTOM,
        title="MPI reports that a process failed (a consequence, not the cause)",
        patterns=(
            r"MPI_ABORT was invoked on rank (?P<rank>\d+)",
            (
                r"process rank (?P<rank2>\d+) with PID \d+ on node (?P<host>\S+) exited on "
                r"signal (?P<signal>\d+)"
            ),
            r"Primary job\s+terminated normally, but",
            "mpirun (?:detected|noticed) that",
            "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
            "application called MPI_Abort",
            r"Process name: \[\[\d+,\d+\],(?P<rank3>\d+)\]",
        ),
        needles=(
            "MPI_ABORT",
            "MPI_Abort",
            "mpirun",
            "mpiexec",
            "prterun",
            "exited on signal",
            "BAD TERMINATION",
            "terminated normally",
            "Process name",
            "noticed that",
            "MPI",
        ),
        example="MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
        unlike="mpirun: no error",
        source="https://docs.open-mpi.org",
    ),
    FailureRule(
        id="srun_exit",
        cls="other",
        kind=SYMPTOM,
        title="a launcher reports that a task failed (a consequence, not the cause)",
        patterns=(
            (
                r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)[\d,\-]*: (?:Exited with "
                r"exit code (?P<code>\d+)|Terminated|Aborted|Hangup)"
            ),
            r"pdsh@\S+: (?P<host2>\S+): ssh exited with exit code (?P<code2>\d+)",
            r"^Exited with exit code (?P<code3>\d+)\.$",
        ),
        needles=("srun: error:", "xited with exit code"),
        example="srun: error: node02: tasks 8-15: Exited with exit code 1",
        unlike="srun: job 4711 queued and waiting for resources",
        source="SchedMD/slurm src/plugins/launch/slurm/launch_slurm.c:429 (22.05); pdsh; LSF",
    ),
    FailureRule(
        id="srun_killed",
        cls="oom_host",
        kind=SYMPTOM,
        title=(
            "rank {rank} on {host} was killed (SIGKILL): out of host memory, or another rank "
            "died first"
        ),
        patterns=(r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)[\d,\-]*: Killed",),
        needles=("srun: error:",),
        fixes=("{more_memory}", "check which rank failed first"),
        verdict="ask",
        example="srun: error: node07: task 3: Killed",
        unlike="srun: error: node07: task 3: Exited with exit code 137",
        source="SchedMD/slurm src/plugins/launch/slurm/launch_slurm.c",
    ),
    FailureRule(
        id="srun_wait",
        cls="other",
        kind=WEAK,
        title=(
            "srun ended the remaining tasks {seconds} s after the first one had exited "
            "(srun --wait)"
        ),
        patterns=(r"srun: First task exited (?P<seconds>\d+)s ago",),
        needles=("First task exited",),
        fixes=(
            "let all ranks end at about the same time, also if some have fewer batches; the last "
            "lines of their logs show what they were doing",
            "`srun: {wait: 0}` lets the tasks end at any time",
        ),
        message="First task exited Ns ago",
        example="srun: First task exited 600s ago",
        unlike="srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        source="SchedMD/slurm src/srun/libsrun/launch.c",
    ),
    FailureRule(
        id="srun_crash",
        cls="code_error",
        kind=WEAK,
        title="rank {rank} on {host} crashed: {how}",
        patterns=(
            (
                r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)[\d,\-]*: "
                "(?P<how>Segmentation fault|Floating point exception|Illegal instruction)"
            ),
        ),
        needles=("srun: error:",),
        fixes=("`--set env.PYTHONFAULTHANDLER=1` shows where",),
        example="srun: error: node02: task 3: Segmentation fault (core dumped)",
        unlike="srun: error: node07: task 3: Killed",
        source="SchedMD/slurm src/plugins/launch/slurm/launch_slurm.c",
    ),
]

SLURM = [
    FailureRule(
        id="time_limit",
        cls="time_limit",
        title="the time limit was reached",
        patterns=(
            "TERM_RUNLIMIT: ",
            "SLURM status is: 'TIMEOUT'",
            r"PBS: job killed: walltime \d+ exceeded limit",
            (
                r"(?:\*\*\* (?:JOB|STEP) \S+ ON (?P<host>\S+) )?CANCELLED AT (\S+) (?:DUE TO "
                "TIME LIMIT|due to time limit)"
            ),
        ),
        needles=(
            "DUE TO TIME LIMIT",
            "due to time limit",
            "TERM_RUNLIMIT",
            "SLURM status is",
            "exceeded limit",
            "walltime",
        ),
        fixes=("{more_time}",),
        message="DUE TO TIME LIMIT",
        example=(
            "slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2026-11-20T08:00:03 DUE "
            "TO TIME LIMIT ***"
        ),
        unlike=(
            "slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2026-11-20T08:00:03 DUE "
            "TO PREEMPTION ***"
        ),
        source=_REQ,
    ),
    FailureRule(
        id="preempted",
        cls="preempted",
        title="preempted by a job with higher priority",
        patterns=(r"CANCELLED AT (\S+) DUE TO PREEMPTION",),
        needles=("DUE TO PREEMPTION",),
        fixes=("{again}", "`survive: {when: [preempted]}` restarts the run automatically"),
        message="DUE TO PREEMPTION",
        example=(
            "slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2026-11-20T08:00:03 DUE "
            "TO PREEMPTION ***"
        ),
        unlike="slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2026-11-20T08:00:03 ***",
        source=_REQ,
    ),
    FailureRule(
        id="node_fail",
        cls="node_fail",
        title="a node died",
        patterns=(
            r"(?:ON (?P<host>\S+) )?CANCELLED AT (\S+) DUE TO NODE FAILURE",
            "cancelled by node failure",
            r"Node failure on (?P<host2>\S+)",
            r"job \S+ has been revoked",
        ),
        needles=(
            "DUE TO NODE FAILURE",
            "cancelled by node failure",
            "Node failure on",
            "has been revoked",
        ),
        fixes=("{without_node}",),
        message="DUE TO NODE FAILURE",
        example=(
            "slurmstepd: error: *** STEP 4711.0 ON node01 CANCELLED AT 2026-11-20T08:00:03 "
            "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
        ),
        unlike="slurmstepd: error: node01: no failure",
        source=_REQ,
    ),
    FailureRule(
        id="requeued",
        cls="preempted",
        title="the job was requeued",
        patterns=(r"CANCELLED AT (\S+) (?:DUE TO|due to) (?:JOB REQUEUE|job requeue)",),
        needles=("DUE TO JOB REQUEUE", "due to job requeue", "REQUEUE", "job requeue"),
        fixes=("nothing to do: it starts again",),
        verdict="requeue",
        message="DUE TO JOB REQUEUE",
        example=(
            "slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2026-11-20T08:00:03 DUE "
            "TO JOB REQUEUE ***"
        ),
        unlike="slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2026-11-20T08:00:03 ***",
        source=_REQ,
    ),
    FailureRule(
        id="cancelled",
        cls="cancelled",
        kind=WEAK,
        title="the job was cancelled by its user or an administrator",
        patterns=(
            r"\*\*\* JOB (\S+) ON (?P<host>\S+) CANCELLED AT (\S+?)(?: DUE to SIGNAL \w+)? \*\*\*",
            "TERM_OWNER: ",
            "^s(?:run|alloc): (?:error: )?Job has been cancelled",
            "Unable to allocate resources: Job/step already completing",
        ),
        needles=(
            "CANCELLED AT",
            "TERM_OWNER",
            "Job has been cancelled",
            "Job/step already completing",
        ),
        fixes=("`sacct -X -j JOB -o state%30` shows the uid of the user who cancelled it",),
        message="CANCELLED AT",
        example="slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2026-11-20T08:00:03 ***",
        unlike=(
            "slurmstepd: error: *** STEP 4711.0 ON node01 CANCELLED AT 2026-11-20T08:00:03 ***"
        ),
        source=_REQ,
    ),
    FailureRule(
        id="step_cancelled",
        cls="cancelled",
        kind=SYMPTOM,
        title="the step was terminated after one of its tasks failed, or by a cancel",
        patterns=(
            r"\*\*\* STEP (\S+) ON (?P<host>\S+) CANCELLED AT (\S+?) \*\*\*",
            r"FAILED \(non-zero exit code or other failure mode\)",
            "DUE TO TASK FAILURE",
            "STEPD TERMINATED ON",
        ),
        needles=(
            "CANCELLED AT",
            "non-zero exit code or other",
            "TASK FAILURE",
            "STEPD TERMINATED",
        ),
        example=(
            "slurmstepd: error: *** STEP 4711.0 ON node01 CANCELLED AT 2026-11-20T08:00:03 ***"
        ),
        unlike="slurmstepd: error: *** JOB 4711 ON node01 COMPLETED",
        source=_REQ,
    ),
    FailureRule(
        id="ctrl_c",
        cls="cancelled",
        kind=WEAK,
        title="interrupted with Ctrl-C",
        patterns=(
            r"^(?:Detected )?KeyboardInterrupt\b",
            r"\b(?:[Rr]eceived|[Cc]aught) SIGINT\b",
            r"\bSIGINT (?:received|caught)\b",
        ),
        needles=("KeyboardInterrupt", "SIGINT"),
        message="KeyboardInterrupt",
        example="KeyboardInterrupt",
        unlike="except KeyboardInterrupt:",
        source="CPython",
    ),
    FailureRule(
        id="execve",
        cls="missing_file",
        title="the program {path} could not be started on the node: {how}",
        patterns=(
            (
                r"error: execve\(\): (?:bad interpreter\((?P<path>[^)]*)\)"
                r"|(?P<path2>\S+)): (?P<how>No such file or directory|Permission denied"
                "|Exec format error)"
            ),
        ),
        needles=("execve()",),
        fixes=(
            "`setup:` names the modules and the environment; every node must see them",
            "use an absolute path",
        ),
        message="execve(): NAME: No such file or directory",
        example="slurmstepd: error: execve(): torchrun: No such file or directory",
        unlike="error: could not run torchrun",
        source="SchedMD/slurm src/slurmd/slurmstepd/task.c:537",
    ),
    FailureRule(
        id="chdir",
        cls="missing_file",
        kind=WEAK,
        title="the node cannot access the directory {path} that the job was submitted from",
        patterns=("couldn't chdir to `(?P<path>[^']*)'",),
        needles=("couldn't chdir",),
        fixes=("submit from a shared file system",),
        message="couldn't chdir to",
        example=(
            "slurmstepd: error: couldn't chdir to `/scratch/me/run': No such file or "
            "directory: going to /tmp instead"
        ),
        unlike="error: chdir was not called",
        source="SchedMD/slurm src/slurmd/slurmstepd/mgr.c:1603",
    ),
    FailureRule(
        id="stdout_open",
        cls="missing_file",
        title="the job's output file could not be opened: {path}",
        patterns=(r"Could not open (?:stdout|stderr|output|error) file (?P<path>\S+?):",),
        needles=("Could not open",),
        fixes=("create the directory before sbatch",),
        message="Could not open stdout file",
        example=(
            "slurmstepd: error: Could not open stdout file /scratch/me/logs/4711.out: No "
            "such file or directory"
        ),
        unlike="Could not open the cache: no error",
        source="SchedMD/slurm src/slurmd/slurmstepd/io.c:1042",
    ),
    FailureRule(
        id="prolog",
        cls="node_fail",
        title="a node could not start the job",
        patterns=(
            r"Prolog failure on node (?P<host>\S+)",
            "Job prolog failed",
            "TaskProlog failed",
            r"Task launch for \S+ failed on node (?P<host2>\S+?):",
        ),
        needles=("rolog", "credential expired", "Task launch", "slurm_recv", "lost connection"),
        fixes=("{without_node}", "report the node to the site's support"),
        message="Task launch for StepId=N failed on node NAME",
        example=(
            "srun: error: Task launch for StepId=4711.0 failed on node node03: Job "
            "credential expired"
        ),
        unlike="Prolog ran without an error",
        source="SchedMD/slurm src/slurmd/slurmd/req.c:2730",
    ),
    FailureRule(
        id="slurmctld_silent",
        cls="other",
        title="slurmctld did not respond when srun started the ranks",
        patterns=(
            (
                r"(?:Unable to (?:create step|confirm allocation) for job \d+"
                "|Job step creation failed): Unable to contact slurm controller"
            ),
        ),
        needles=("contact slurm controller",),
        fixes=(
            "submit the job again: slurmctld was down or busy",
            "`scontrol ping` shows whether it responds",
        ),
        verdict="requeue",
        message="Unable to confirm allocation for job N: Unable to contact slurm controller",
        example=(
            "srun: error: Unable to confirm allocation for job 4711: Unable to contact slurm "
            "controller (connect failure)"
        ),
        unlike=(
            "srun: error: Unable to create step for job 4711: Requested node configuration "
            "is not available"
        ),
        source="SchedMD/slurm src/common/slurm_errno.c",
    ),
    FailureRule(
        id="step_create",
        cls="other",
        title="srun could not start: {why}",
        patterns=(
            r"Unable to create step for job (?:\d+): (?P<why>(?!Unable to contact).+)",
            "Unable to allocate resources: (?!Job/step already)(?P<why2>.+)",
            r"Unable to confirm allocation for job (?:\d+): (?P<why3>(?!Unable to contact).+)",
        ),
        needles=(
            "Unable to create step",
            "Unable to allocate resources",
            "Unable to confirm allocation",
        ),
        fixes=("srun must not request more than the job has", "`--overlap` for a second step"),
        verdict="fix",
        message="Unable to create step for job N",
        example=(
            "srun: error: Unable to create step for job 29986033: Memory required by task is "
            "not available"
        ),
        unlike="srun: job 4711 step creation temporarily disabled",
        source="https://github.com/eth-cscs/DLA-Future/issues/337",
    ),
    FailureRule(
        id="sub_nodes_down",
        cls="node_fail",
        kind=WEAK,
        title="the requested nodes or partition are down, drained or reserved",
        patterns=(
            r"Required node not available \(down, drained or reserved\)",
            r"Required partition not available \(inactive or drain\)",
            "Partition in DOWN state",
        ),
        needles=(
            "Required node not available",
            "Required partition not available",
            "Partition in DOWN state",
        ),
        fixes=(
            "`sinfo -R` shows why",
            "remove `slurm: {nodelist: ...}`, or use another partition",
        ),
        verdict="requeue",
        message="Required node not available",
        example="srun: Required node not available (down, drained or reserved)",
        unlike="srun: error: node07: task 3: Killed",
        source="SchedMD/slurm src/common/slurm_errno.c",
    ),
    FailureRule(
        id="sub_script",
        cls="other",
        title="sbatch rejects the script: {why}",
        patterns=(
            "Batch script contains DOS line breaks",
            "This does not look like a batch script",
            "Batch script is empty",
            "contains only whitespace",
            "Invalid directive found in batch script: ?(?P<why>.*)",
        ),
        needles=(
            "DOS line breaks",
            "look like a batch script",
            "Batch script is empty",
            "contains only whitespace",
            "Invalid directive found",
        ),
        fixes=("`dos2unix FILE` for Windows line endings; the first line must begin with #!",),
        verdict="fix",
        message="Batch script contains DOS line breaks",
        example="sbatch: error: Batch script contains DOS line breaks (\\r\\n)",
        unlike="sbatch: the batch script is read, no error",
        source="SchedMD/slurm src/sbatch/sbatch.c",
    ),
    FailureRule(
        id="sbatch_refused",
        cls="other",
        title="Slurm refused the job: {why}",
        patterns=("(?:sbatch|srun|salloc): error: Batch job submission failed: (?P<why>.+)",),
        needles=("submission failed",),
        verdict="fix",
        example="sbatch: error: Batch job submission failed: Invalid partition name specified",
        unlike="Submitted batch job 4711, no error",
        source="SchedMD/slurm src/common/slurm_errno.c",
    ),
]
