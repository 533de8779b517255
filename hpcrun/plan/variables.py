"""Environment variables without the intended effect: unread, renamed or harmful ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from msgspec import Struct

from hpcrun.plan.findings import Findings

On = r"(?i)(1|true|yes|on|y)"


class VariableRule(Struct, frozen=True):
    """A message about variables whose name and value match; NAME stands for the variable.

    Attributes:
        refused: True if the job would certainly fail, or use resources of other jobs.
        fabrics: The rule applies only to these fabrics.
        several_nodes: The rule applies only to jobs on several nodes.
    """

    name: str
    message: str
    value: str = r"(?s).*"
    refused: bool = False
    fabrics: tuple[str, ...] = ()
    several_nodes: bool = False


NOTHING = "nothing reads it"
_TUNED = f"{NOTHING} any more: NCCL chooses by itself"
_DIAGNOSIS = "a switch for diagnosis; remove it when the cause is found"

# The first matching rule applies; the comment above each gives the source.
RULES = [
    # ---- Unread variables
    # In no commit of NCCL's history, nor in torch or DeepSpeed; pytorch#135352
    VariableRule(
        "NCCL_TIMEOUT",
        f"{NOTHING}: a collective's time-out is timeout= of init_process_group, "
        "DEEPSPEED_TIMEOUT (minutes) for DeepSpeed, ddp_timeout for the Trainer",
    ),
    # Not in DeepSpeed 0.19.8
    VariableRule(
        "DEEPSPEED_LOG_LEVEL",
        f"{NOTHING}: hpcrun writes log_level: info into DeepSpeed's JSON; "
        "deepspeed: {config: {log_level: ...}} sets another",
    ),
    # Not in DeepSpeed 0.19.8, nor in Accelerate 1.15
    VariableRule("DEEPSPEED_HOSTFILE", f"{NOTHING}: the job's hostfile is $HPCRUN_HOSTFILE"),
    # NCCL user guide: removed in 2.4.0
    VariableRule("NCCL_IB_CUDA_SUPPORT", f"{NOTHING} any more: GPUDirect is used where it can be"),
    # NCCL user guide: renamed in 2.4.0
    VariableRule("NCCL_IB_GDR_LEVEL", f"{NOTHING} any more: it is NCCL_NET_GDR_LEVEL now"),
    # NCCL user guide: removed in 2.3 and 2.5; NCCL_RINGS is not in 2.30's sources
    VariableRule("NCCL_(LL|TREE|SINGLE_RING)_THRESHOLD|NCCL_RINGS", _TUNED),
    # NCCL user guide: deprecated in 2.2.12; not in 2.30's sources
    VariableRule("NCCL_CHECKS_DISABLE", f"{NOTHING} any more: leave it out"),
    # templates/harness.sh, rank
    VariableRule(
        "NODE_RANK|GROUP_RANK|LOCAL_WORLD_SIZE",
        "without effect: each rank gets the value of its own node",
    ),
    # ---- Old names
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp
    VariableRule(
        "NCCL_(ASYNC_ERROR_HANDLING|BLOCKING_WAIT|DESYNC_DEBUG|ENABLE_TIMING"
        "|USE_TENSOR_REGISTER_ALLOCATOR_HOOK)",
        "its old name: TORCH_NAME since torch 2.2",
    ),
    # ---- Variables that fail the job or use the resources of other jobs
    # gres.conf(5): without ConstrainDevices nothing but this variable keeps jobs apart
    VariableRule(
        "(CUDA|ROCR|HIP)_VISIBLE_DEVICES",
        "Slurm assigns the job's GPUs; this selects others, perhaps another job's: remove it",
        value=r"(?s).*\S.*",
        refused=True,
    ),
    # NCCL user guide, Debugging; NCCL_NET=IB without a device is an error
    VariableRule(
        "NCCL_IB_DISABLE",
        "on InfiniBand or RoCE NCCL would find no network; nccl: {fabric: ethernet} trains "
        "over TCP",
        value=On,
        refused=True,
        fabrics=("infiniband", "roce", "auto"),
    ),
    # NCCL user guide, NCCL_SOCKET_IFNAME
    VariableRule(
        "(NCCL|GLOO)_SOCKET_IFNAME",
        "the loopback interface does not reach other nodes; remove it: each node detects its own",
        value=r"=?lo",
        refused=True,
        several_nodes=True,
    ),
    # ---- Harmful in production
    # NCCL user guide, NCCL_NET
    VariableRule(
        "NCCL_IB_DISABLE",
        "not needed: NCCL_NET=Socket, which hpcrun sets, is TCP already",
        value=On,
        fabrics=("ethernet",),
    ),
    # NCCL user guide, Debugging
    VariableRule(
        "NCCL_IB_DISABLE",
        "a switch for diagnosis: over TCP an InfiniBand machine is many times slower; "
        "nccl: {fabric: ethernet} sets it on purpose",
        value=On,
    ),
    # NCCL user guide, Debugging
    VariableRule(
        "NCCL_(P2P|P2P_DIRECT|SHM)_DISABLE",
        f"it turns off NVLink, or shared memory: {_DIAGNOSIS}",
        value=On,
    ),
    # NCCL user guide, Debugging: not to be retained in scripts
    # docs.cscs.ch, NCCL: since NCCL 2.27 LL128 is slower on Slingshot, and ^LL128 turns it off
    VariableRule(
        "NCCL_(ALGO|PROTO|NTHREADS|BUFFSIZE)",
        f"NCCL chooses it by the topology: {_DIAGNOSIS}",
        value=r"(?s)(?!\^LL128$).*",
    ),
    # NCCL user guide: -1 (dynamic) since 2.21
    VariableRule(
        "NCCL_IB_GID_INDEX",
        "NCCL 2.21 and later finds it on each node; a fixed one is wrong on the next",
    ),
    # NCCL user guide, NCCL_DEBUG_FILE
    VariableRule(
        "NCCL_DEBUG_FILE",
        "processes overwrite each other's file: it needs %h and %p, as --debug sets it",
        value=r"(?s)(?!/dev/)(?!.*%p).*",
    ),
    # aws-ofi-nccl, doc/efa-env-var.md
    VariableRule(
        "RDMAV_FORK_SAFE|FI_EFA_FORK_SAFE|FI_EFA_USE_DEVICE_RDMA",
        "not needed with aws-ofi-nccl 1.7 and later, which sets what EFA wants",
    ),
    # torch.distributed, Debugging torch.distributed applications
    VariableRule(
        "TORCH_DISTRIBUTED_DEBUG",
        "it checks every collective, slowly; hpcrun submit --debug sets it for one run",
        value="(?i)detail",
    ),
    # CUDA C++ Programming Guide, CUDA environment variables
    VariableRule(
        "CUDA_LAUNCH_BLOCKING", f"each kernel waits for the one before: {_DIAGNOSIS}", value=On
    ),
    # DeepSpeed 0.19.8, constants.py
    VariableRule("DEEPSPEED_TIMEOUT", "it is in minutes", value="[0-9]{4,}"),
]
_SPELLED = re.compile(r"(NCCL|TORCH_NCCL|TORCH_FR|FI_(CXI|EFA|MR|HMEM|PROVIDER))_?[A-Z0-9_]*")


def check_variables(
    env: Mapping[str, str], path: str, fabric: str, found: Findings, *, gpus: int = 0
) -> None:
    """Report problems of the user's variables; ``path`` is the key that sets them.

    ``gpus`` is the number of GPUs per node that the job uses, if it has whole nodes.

    >>> found = Findings()
    >>> check_variables({"NCCL_SOCKET_IFNAMES": "eth0"}, "env", "auto", found)
    >>> found.notes
    ['env.NCCL_SOCKET_IFNAMES: nothing reads it; did you mean NCCL_SOCKET_IFNAME?']
    """
    for name, value in env.items():
        rule = find_rule(name, value, fabric)
        if gpus and name.endswith("_VISIBLE_DEVICES"):
            listed = value.count(",") + 1
            if listed >= gpus and value == ",".join(map(str, range(listed))):
                continue
        if rule is None:
            meant = suggest_variable(name)
            if meant:
                found.notes.append(f"{path}.{name}: {NOTHING}; did you mean {meant}?")
            continue
        message = rule.message.replace("NAME", name)
        if rule.refused:
            found.refuse(f"{path}.{name}", message)
        else:
            found.notes.append(f"{path}.{name}: {message}")


def inherited_notes(environ: Mapping[str, str], fabric: str) -> list[str]:
    """Return notes on inherited variables that harm the job; Slurm sets the GPU variables again."""
    notes: list[str] = []
    for name, value in environ.items():
        rule = find_rule(name, value, fabric)
        if rule is not None and not name.endswith("_VISIBLE_DEVICES"):
            message = rule.message.replace("NAME", name)
            notes.append(f"{name} of your shell is passed to the job: {message}")
        elif name == "NCCL_NET":
            notes.append(
                f"{name}={value} of your shell is passed to the job, and takes precedence there"
            )
    return notes


def replaced_notes(environ: Mapping[str, str], values: Mapping[str, str]) -> list[str]:
    """Return notes on inherited variables that the job replaces by values of hpcrun.

    >>> replaced_notes({"A": "1", "HOME": "/h"}, {"A": "2"})
    ['A=1 of your shell is replaced by 2; to keep it: env: {A: 1}']
    """
    return [
        f"{name}={environ[name]} of your shell is replaced by {value}; to keep it: "
        f"env: {{{name}: {environ[name]}}}"
        for name, value in values.items()
        if environ.get(name, value) != value
    ]


def find_rule(name: str, value: str, fabric: str) -> VariableRule | None:
    """Return the first rule that matches a variable on this fabric."""
    for rule in RULES:
        if (
            re.fullmatch(rule.name, name)
            and re.fullmatch(rule.value, value)
            and (not rule.fabrics or fabric in rule.fabrics)
            and not (rule.several_nodes and fabric == "single-node")
        ):
            return rule
    return None


def suggest_variable(name: str) -> str | None:
    """Return the name that was meant, if nothing reads this one and it is nearly another.

    >>> names = ("NCCL_MIN_CHANNELS", "NCCL_DEBUG", "NCCL_OF_A_PLUGIN")
    >>> [suggest_variable(name) for name in names]
    ['NCCL_MIN_NCHANNELS', None, None]
    """
    if name in KNOWN_NAMES or not _SPELLED.fullmatch(name):
        return None
    close = difflib.get_close_matches(name, KNOWN_NAMES, 1, cutoff=0.9)
    return close[0] if close else None


# ---- names that programs read ----------------------------------------------------------------


# Each without its NCCL_; a few are of plugins, or name NCCL's folders.
_NCCL = """
ALGO ALLGATHERV_ENABLE ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CGA_CLUSTER_SIZE CHECK_MODE
CHECK_POINTERS CHUNK_SIZE COLLNET_ENABLE COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_ID
COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CONF_FILE CONNECT_ROUND_MAX_PEERS
CROSS_NIC CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE DEBUG_SUBSYS
DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS DEV_API_JIT DISABLE_MEM_MANAGER DMABUF_ENABLE
ELASTIC_BUFFER_REGISTER ENABLE_VERSION_CHECK ENV_PLUGIN GDAKI_USE_RELIABLE_DB GDRCOPY_ENABLE
GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE GDR_FLUSH_DISABLE GRAPH_DUMP_FILE
GRAPH_FILE GRAPH_HELPER_DISABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER GRAPH_STREAM_ORDERING
GROUP_CUDA_STREAM HOME HOSTID IBEXT_DISABLE IBVERBS_LIB IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY
IB_ADDR_RANGE IB_AR_THRESHOLD IB_DATA_DIRECT IB_DEVICE_PCI_ORDER IB_DISABLE IB_ECE_ENABLE
IB_FIFO_TC IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_MERGE_VFS IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT
IB_MQP_RETRY_SLEEP_MSEC IB_OOO_RQ IB_PCI_RELAXED_ORDERING IB_PKEY
IB_PREPOST_RECEIVE_WORK_REQUESTS IB_QPS_PER_CONNECTION IB_QUERY_PORT_SPEED
IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM
IB_ROUTABLE_FLID_GID_INDEX IB_SL IB_SPLIT_DATA_ON_QPS IB_SUBNET_AWARE_ROUTING
IB_SUBNET_PREFIX_LEN IB_TC IB_TIMEOUT IB_USE_INLINE IB_WARN_RAIL_LOCAL IGNORE_COLLNET_MISMATCH
IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P IGNORE_NET_MISMATCH INCLUDE_DIR IPC_USE_ABSTRACT_SOCKET
L1_SHARED_MEMORY_CARVEOUT LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL
LEGACY_CUDA_REGISTER LIBRARY LIB_DIR LL128_BUFFSIZE LL128_C2C LL128_NTHREADS LL_BUFFSIZE
LOCAL_REGISTER LSA_TEAM_SIZE MAX_CTAS MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS MEM_SYNC_DOMAIN
MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS MNNVL_CLIQUE_ID MNNVL_CROSS_CLIQUE
MNNVL_ENABLE MNNVL_RAIL_PER_HOST MNNVL_SCATTER_NETS_ENABLE MNNVL_UUID MULTI_RANK_GPU_ENABLE
MULTI_SEGMENT_REGISTER NCHANNELS_PER_NET_PEER NET NETDEVS_POLICY NET_DISABLE_INTRA
NET_FORCE_FLUSH NET_FORCE_MERGE NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_MERGE_LEVEL
NET_MERGE_POLICY NET_OPTIONAL_RECV_COMPLETION NET_OVERHEAD NET_PLUGIN NET_SHARED_BUFFERS
NET_SHARED_COMMS NO_CACHE NSOCKS_PERTHREAD NTHREADS NUM_RMA_CTX NVB_DISABLE NVB_PRECONNECT
NVLINK_UTIL_CENTRIC_SCHED_ENABLE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE NVLS_ENABLE
NVLS_NCHANNELS NVTX_DISABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE
P2P_EPOCH_ENABLE P2P_LEVEL P2P_LL_THRESHOLD P2P_MAX_PEERS P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE
P2P_PCI_CHUNKSIZE P2P_PER_CHANNEL_NET_BW P2P_PXN_LEVEL P2P_READ_ENABLE P2P_SCHEDULE_GROUP_SIZE
P2P_USE_CUDA_MEMCPY PAT_ENABLE PLUGIN_P2P PROFILER_PLUGIN PROGRESS_APPENDOP_FREQ PROTO
PROXY_APPEND_BATCH_SIZE PROXY_CPUSET PXN_C2C PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR
REPORT_CONNECT_PROGRESS RMA_DISABLE RMA_PLUGIN RMA_PROXY_QUEUE_SIZE ROOT RUNTIME_CONNECT
SET_CPU_STACK_SIZE SET_STACK_SIZE SET_THREAD_NAME SHADOW_MEMPOOL_MAX_SIZE SHARP_DISABLE
SHARP_GROUP_SIZE_THRESH SHM_DISABLE SHM_LOCALITY SINGLE_PROC_MEM_REG_ENABLE SOCKET_FAMILY
SOCKET_IFNAME SOCKET_INLINE SOCKET_MAGIC SOCKET_MIN_TASKSIZE SOCKET_NTHREADS
SOCKET_POLL_TIMEOUT_MSEC SOCKET_RCVBUF SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SOCKET_SNDBUF
THREAD_THRESHOLDS TOPO_DUMP_FILE TOPO_FILE TUNER_CONFIG_FILE TUNER_PLUGIN UCX_RNDV_THRESH
UCX_TLS UID_STAGGER_RATE UID_STAGGER_THRESHOLD UNPACK_DOUBLE_NCHANNELS VERSION WIN_ENABLE
WIN_STRIDE WORK_ARGS_BYTES WORK_FIFO_BYTES
"""

# Each without its TORCH_.
_TORCH = """
FR_BUFFER_SIZE FR_CPP_STACK FR_DUMP_DYNAMIC_FILE_NAME FR_DUMP_ON_TIMEOUT FR_DUMP_TEMP_FILE
NCCL_ASYNC_ERROR_HANDLING NCCL_AVOID_RECORD_STREAMS NCCL_BCAST_UNIQUEID NCCL_BLOCKING_WAIT
NCCL_COORD_CHECK_MILSEC NCCL_CUDA_EVENT_CACHE NCCL_DEBUG_INFO_PIPE_FILE
NCCL_DEBUG_INFO_TEMP_FILE NCCL_DESYNC_DEBUG NCCL_DUMP_ON_TIMEOUT NCCL_ENABLE_MONITORING
NCCL_ENABLE_TIMING NCCL_EXTRA_DUMP_ON_EXEC NCCL_HEARTBEAT_TIMEOUT_SEC NCCL_HIGH_PRIORITY
NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN NCCL_NAN_CHECK NCCL_NONBLOCKING_TIMEOUT
NCCL_PROPAGATE_ERROR NCCL_RANKS_PER_ROOT NCCL_RETHROW_CUDA_ERRORS
NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING NCCL_TRACE_BUFFER_SIZE NCCL_TRACE_CPP_STACK
NCCL_USE_COMM_NONBLOCKING NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK NCCL_WAIT_TIMEOUT_DUMP_MILSEC
"""

# Each without its FI_.
_FI = """
CXI_ATS CXI_ATS_MLOCK_MODE CXI_CNTR_SPIN_BEFORE_YIELD CXI_CNTR_TRIG_CMDQ CXI_CNTR_WB
CXI_CQ_FILL_PERCENT CXI_CQ_POLICY CXI_CTRL_RX_EQ_MAX_SIZE CXI_DEFAULT_CQ_SIZE
CXI_DEFAULT_RX_SIZE CXI_DEFAULT_TX_SIZE CXI_DEFAULT_VNI CXI_DEVICE_NAME
CXI_DISABLE_ALT_READ_CMDQ CXI_DISABLE_CQ_HUGETLB CXI_DISABLE_CUDA_SYNC_MEMOPS
CXI_DISABLE_EQ_HUGETLB CXI_DISABLE_HMEM_DEV_REGISTER CXI_DISABLE_HOST_REGISTER
CXI_DISABLE_NON_INJECT_AMO_IDC CXI_DISABLE_NON_INJECT_MSG_IDC CXI_DISABLE_NON_INJECT_RMA_IDC
CXI_EAGER_SIZE CXI_ENABLE_TRIG_OP_LIMIT CXI_ENABLE_WRITEDATA CXI_EQ_ACK_BATCH_SIZE
CXI_FC_RETRY_USEC_DELAY CXI_FORCE_DEV_REG_COPY CXI_FORCE_ODP CXI_FORCE_ZE_HMEM_SUPPORT
CXI_HYBRID_POSTED_RECV_PREEMPTIVE CXI_HYBRID_PREEMPTIVE CXI_HYBRID_RECV_PREEMPTIVE
CXI_HYBRID_UNEXPECTED_MSG_PREEMPTIVE CXI_LLRING_MODE CXI_MR_CACHE_EVENTS_DISABLE_LE_POLL_NSECS
CXI_MR_CACHE_EVENTS_DISABLE_POLL_NSECS CXI_MR_MATCH_EVENTS CXI_MR_TARGET_ORDERING
CXI_MSG_LOSSLESS CXI_ODP CXI_OFLOW_BUF_COUNT CXI_OFLOW_BUF_MAX_CACHED CXI_OFLOW_BUF_MIN_POSTED
CXI_OFLOW_BUF_SIZE CXI_OPTIMIZED_MRS CXI_PROV_KEY_CACHE CXI_RDZV_EAGER_SIZE CXI_RDZV_GET_MIN
CXI_RDZV_PROTO CXI_RDZV_THRESHOLD CXI_REQ_BUF_MAX_CACHED CXI_REQ_BUF_MAX_COUNT
CXI_REQ_BUF_MIN_POSTED CXI_REQ_BUF_SIZE CXI_RNR_APPEND_RETRY_TIMEOUT_US CXI_RNR_MAX_TIMEOUT_US
CXI_RX_MATCH_MODE CXI_SAFE_DEVMEM_COPY_THRESHOLD CXI_SW_RX_TX_INIT_MAX EFA_CQ_SIZE
EFA_ENABLE_SHM_TRANSFER EFA_FORK_SAFE EFA_IFACE EFA_INTERNAL_RX_REFILL_THRESHOLD
EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE EFA_INTER_MIN_READ_MESSAGE_SIZE EFA_INTER_MIN_READ_WRITE_SIZE
EFA_MAX_MEMCPY_SIZE EFA_MAX_TIMEOUT EFA_MR_CACHE_ENABLE EFA_MR_MAX_CACHED_COUNT
EFA_MR_MAX_CACHED_SIZE EFA_MTU_SIZE EFA_RECVWIN_SIZE EFA_RUNT_SIZE EFA_RX_COPY_OOO
EFA_RX_COPY_UNEXP EFA_RX_SIZE EFA_RX_WINDOW_SIZE EFA_SHM_AV_SIZE EFA_SHM_MAX_MEDIUM_SIZE
EFA_TIMEOUT_INTERVAL EFA_TRACK_MR EFA_TX_QUEUE_SIZE EFA_TX_SIZE EFA_USE_DATA_PATH_DIRECT
EFA_USE_DEVICE_RDMA EFA_USE_HUGE_PAGE EFA_USE_UNSOLICITED_WRITE_RECV EFA_USE_ZCPY_RX
HMEM_CUDA_USE_DMABUF HMEM_CUDA_USE_GDRCOPY HMEM_DISABLE_P2P HMEM_ROCR_USE_DMABUF LOG_INTERVAL
LOG_LEVEL LOG_LOCATION LOG_LOCATION_MODE LOG_PROV LOG_SUBSYS MR_CACHE_MAX_COUNT
MR_CACHE_MAX_SIZE MR_CACHE_MONITOR PROVIDER PROVIDER_PATH UNIVERSE_SIZE
"""

KNOWN_NAMES = frozenset(
    [f"NCCL_{name}" for name in _NCCL.split()]
    + [f"TORCH_{name}" for name in _TORCH.split()]
    + [f"FI_{name}" for name in _FI.split()]
)
