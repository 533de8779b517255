"""Failure rules: GPU memory, host memory, drivers and hardware, numerics."""

from __future__ import annotations

from hpcrun.why.rule import ERROR, WEAK, FailureRule

_OOM = "torch c10/cuda/CUDACachingAllocator.cpp"
_XID = "https://docs.nvidia.com/deploy/xid-errors/index.html"

MEMORY = [
    FailureRule(
        # In a container the process id may be the process's own; the memory that the message
        # reports for "this process" shows that.
        id="cuda_oom_shared",
        cls="oom_gpu",
        title="out of GPU memory: another process on the same GPU uses {size}",
        patterns=(
            (
                r"out of memory\. Tried to allocate .* Process \d+ has (?P<size>[1-9][\d.]* "
                r"GiB) memory in use\. .*this process has (?!17179869184)"
            ),
        ),
        needles=("out of memory",),
        fixes=(
            "`hpcrun shell JOB -- nvidia-smi` shows which processes use the GPU",
            "call `torch.cuda.set_device(LOCAL_RANK)` before any other CUDA call",
            "{smaller_batch}",
        ),
        example=(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
            "has a total capacity of 79.14 GiB of which 1.04 GiB is free. Process 4711 has "
            "60.00 GiB memory in use. Including non-PyTorch memory, this process has 18.10 "
            "GiB memory in use."
        ),
        unlike=(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
            "has a total capacity of 79.14 GiB of which 1.04 GiB is free. Process 4711 has "
            "78.10 GiB memory in use. Including non-PyTorch memory, this process has "
            "17179869184.00 GiB memory in use."
        ),
        source="torch c10/cuda/CUDACachingAllocator.cpp, reportProcessMemoryInfo",
    ),
    FailureRule(
        id="cuda_oom",
        cls="oom_gpu",
        title="out of GPU memory ({size} more requested)",
        patterns=(
            (
                r"(?:CUDA|HIP|XPU|MPS|NPU) (?:backend )?out of memory(?: \([^)]*\))?\. Tried "
                r"to allocate (?P<size>[\d.]+ \w+)"
            ),
        ),
        needles=("Tried to allocate",),
        fixes=(
            "{smaller_batch}",
            "{less_memory}",
            (
                'if much memory is "reserved but unallocated": `env: '
                "{PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True}`"
            ),
        ),
        message="CUDA out of memory",
        example=(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
            "has a total capacity of 79.14 GiB of which 1.04 GiB is free."
        ),
        unlike="if CUDA is out of memory, a smaller batch is tried",
        source=_OOM,
    ),
    FailureRule(
        id="cuda_oom_raw",
        cls="oom_gpu",
        title=(
            "out of GPU memory outside PyTorch's allocator: NCCL's buffers, another process "
            "on this GPU, or all ranks on GPU 0"
        ),
        patterns=(
            (
                r"(?:CUDA|Cuda|cuda|HIP|hip)\w*[ _](?:error|failure|driver error"
                "|call).{0,60}[: ]'?out of memory"
            ),
            "CUDA_ERROR_OUT_OF_MEMORY",
            "(?:cuda|hip)ErrorMemoryAllocation",
            "hipErrorOutOfMemory",
            "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
            "cudaMalloc (?:retry )?failed: out of memory",
            r"(?:runtime error \(2\) ?:|cudaSuccess \(2 vs\. 0\)) +out of memory",
            r"torch\.(?:cuda\.)?OutOfMemoryError\b",
            r"cupy\S*\.OutOfMemoryError",
            r"\bC(?:UDA|uda)\w*: allocation failed",
            "^RuntimeError: CUDA out of memory",
            (
                r"(?:NCCL WARN .*|^)Failed to CUDA "
                r"(?:calloc|host alloc|malloc|calloc async) (\d+) bytes"
            ),
        ),
        needles=(
            "ut of memory",
            "OUT_OF_MEMORY",
            "OutOfMemory",
            "out-of-memory",
            "MemoryAllocation",
            "OUT_OF_DEVICE_MEMORY",
            "allocation failed",
            "Failed to CUDA",
        ),
        fixes=(
            "`hpcrun shell JOB -- nvidia-smi` shows which processes use the GPU",
            "call `torch.cuda.set_device(LOCAL_RANK)` before any other CUDA call",
            "{smaller_batch}",
        ),
        message="CUDA error: out of memory / Failed to CUDA calloc",
        example="RuntimeError: CUDA error: out of memory",
        unlike="errors on CUDA: when it runs out of memory a smaller batch is tried",
        source="torch c10/cuda/CUDAException.cpp",
    ),
    FailureRule(
        id="xla_oom",
        cls="oom_gpu",
        title="out of GPU memory (JAX or TensorFlow)",
        patterns=(
            "RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate|XLA|Ran out)",
            "OOM when allocating tensor",
            r"^(?:\S+\.)?ResourceExhaustedError",
            "RESOURCE_EXHAUSTED.*(?:out of memory|allocat)",
            r"Ran out of memory in memory space \w+",
        ),
        needles=(
            "RESOURCE_EXHAUSTED",
            "OOM when allocating",
            "ran out of memory trying",
            "Ran out of memory",
            "Resource exhausted",
            "ResourceExhausted",
        ),
        fixes=(
            "reduce the batch size per device",
            '`env: {XLA_PYTHON_CLIENT_PREALLOCATE: "false"}` if other processes use the GPU',
        ),
        message="RESOURCE_EXHAUSTED: Out of memory",
        example=(
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while "
            "trying to allocate 17179869184 bytes."
        ),
        unlike="RESOURCE_EXHAUSTED is an error code of gRPC",
        source="https://docs.jax.dev/en/latest/gpu_memory_allocation.html",
    ),
    FailureRule(
        id="kv_cache",
        cls="oom_gpu",
        title="no GPU memory left for the KV cache",
        patterns=(
            "No available memory for the cache blocks",
            "is larger than the maximum number of tokens that can be stored in KV cache",
            "larger than the available KV cache memory",
        ),
        needles=("cache blocks", "KV cache"),
        fixes=(
            "increase `gpu_memory_utilization`",
            "reduce `max_model_len`",
            "use more GPUs for tensor parallelism",
        ),
        message="No available memory for the cache blocks",
        example=(
            "ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine."
        ),
        unlike="INFO # GPU blocks: 2048, KV cache 12 GiB",
        source="https://github.com/vllm-project/vllm/issues/2248",
    ),
    FailureRule(
        id="cublas_alloc",
        cls="oom_gpu",
        title="no GPU memory left for cuBLAS or cuDNN",
        patterns=("CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)", "CUDNN_STATUS_ALLOC_FAILED"),
        needles=("CUBLAS_STATUS", "CUDNN_STATUS"),
        fixes=(
            "{smaller_batch}",
            "if a device-side assertion failed earlier: a token id is beyond the vocabulary",
        ),
        message="CUBLAS_STATUS_ALLOC_FAILED",
        example=(
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
            "`cublasCreate(handle)`"
        ),
        unlike="CUBLAS_STATUS_SUCCESS, no error",
        source="torch aten/src/ATen/cuda/CUDABlas.cpp",
    ),
    FailureRule(
        id="slurm_oom",
        cls="oom_host",
        title="the job exceeded its host memory limit (not GPU memory)",
        patterns=(
            r"Detected (\d+) oom[_-]kill event(?:s|\(s\))? in (\S+?)",
            "oom-kill:constraint=",
            "Some of the step tasks have been OOM Killed",
            r"(?:Step(?:Id)?[=\s]?\S+|Job \d+) exceeded (?:job )?memory limit",
            "Exceeded (?:job|step) memory limit",
            "TERM_MEMLIMIT: ",
            "SLURM status is: 'OUT_OF_MEMORY'",
            "PBS: job killed: mem .*exceeded limit",
            "Memory cgroup out of memory: Kill(?:ed)? process",
        ),
        needles=(
            "oom_kill",
            "oom-kill",
            "OOM Killed",
            "oom_reaper",
            "oom_kill event",
            "oom-kill event",
            "memory limit",
            "memory usage limit",
            "TERM_MEMLIMIT",
            "SLURM status is",
            "exceeded limit",
            "Memory cgroup out of memory",
        ),
        fixes=(
            "{more_memory}",
            "reduce the number of data loader workers",
            "avoid CPU offload; load the model on one rank only",
        ),
        message="oom_kill / exceeded memory limit",
        example=(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step "
            "tasks have been OOM Killed."
        ),
        unlike="oom_kill_disable 0, under_oom 0: no error",
        source="SchedMD/slurm src/plugins/task/cgroup/task_cgroup_memory.c",
    ),
    FailureRule(
        id="srun_oom",
        cls="oom_host",
        title="rank {rank} was killed: out of host memory (not GPU memory)",
        patterns=(r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)[\d,\-]*: Out Of Memory",),
        needles=("Out Of Memory",),
        fixes=("{more_memory}", "reduce the number of data loader workers"),
        example="srun: error: node07: task 3: Out Of Memory",
        unlike="srun: error: node07: task 3: Exited with exit code 1",
        source="SchedMD/slurm tag 22-05-8 src/plugins/launch/slurm/launch_slurm.c:415",
    ),
    FailureRule(
        id="cpu_alloc",
        cls="oom_host",
        title="out of host memory",
        patterns=(
            "DefaultCPUAllocator: (?:can't allocate|not enough) memory",
            "^RuntimeError: can't alloc$",
            r"^(?:\S+\.)?_?(?:Array)?MemoryError\b",
            r"\[Errno 12\] Cannot allocate memory",
            "cannot allocate vector of size",
            "std::bad_alloc",
            r"Unable to allocate [\d.]+ [KMGTP]iB",
            "fork: (?:retry: )?Cannot allocate memory",
            "due to the node running low on memory",
            r"ray\.exceptions\.OutOfMemoryError",
            r"java\.lang\.OutOfMemoryError",
            r"Out of memory: Kill(?:ed)? process \d+",
        ),
        needles=(
            "DefaultCPUAllocator",
            "can't alloc",
            "MemoryError",
            "Errno 12]",
            "bad_alloc",
            "Unable to allocate",
            "annot allocate memory",
            "annot allocate vector",
            "running low on memory",
            "OutOfMemoryError",
            "Out of memory: Kill",
        ),
        fixes=(
            "{more_memory}",
            "load the model on one rank only (`low_cpu_mem_usage`)",
            "reduce the number of workers per node, such as the data loader's",
        ),
        message=(
            "DefaultCPUAllocator: can't allocate memory / Task was killed due to the node "
            "running low on memory"
        ),
        example=(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 56000000000 bytes."
        ),
        unlike="except MemoryError:  # retried",
        source="torch c10/core/impl/alloc_cpu.cpp",
    ),
    FailureRule(
        id="semaphore",
        cls="shm",
        title="/dev/shm is full: a semaphore for processes could not be created",
        patterns=(r"[Nn]o space left on device",),
        needles=("o space left on device",),
        frames=r"SemLock|synchronize\.py|shared_memory\.py|_posixshmem",
        fixes=(
            "reduce the number of data loader workers",
            "remove leftover files from /dev/shm, or use another node",
        ),
        example=(
            "Traceback (most recent call last):\n"
            '  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__\n'
            "    sl = self._semlock = _multiprocessing.SemLock(\n"
            "OSError: [Errno 28] No space left on device"
        ),
        unlike=(
            "Traceback (most recent call last):\n"
            '  File "/home/u/train.py", line 57, in save\n'
            "    torch.save(state, path)\n"
            "OSError: [Errno 28] No space left on device"
        ),
        source="CPython Modules/_multiprocessing/semaphore.c",
    ),
    FailureRule(
        id="dl_bus_error",
        cls="shm",
        title="/dev/shm is full, often in a container",
        patterns=(
            "is killed by signal: Bus error",
            r"exit codes of the workers are \{[^}]*SIGBUS",
            r"insufficient shared memory \(shm\)",
            r"out of shared memory\. Please try to raise your shared memory limit",
            "Error while (?:creating|attaching to) shared memory segment",
            "ncclShmOpen.*No space left",
            "[Nn]o space left on device.*/dev/shm",
            "/dev/shm.*[Nn]o space left on device",
        ),
        needles=(
            "signal: Bus error",
            "codes of the workers",
            "shared memory",
            "shared memory segment",
            "ncclShm",
            "/dev/shm",
        ),
        fixes=(
            "reduce the number of data loader workers",
            "mount the host's /dev/shm into the container, or make it larger",
        ),
        message=(
            "DataLoader worker ... killed by signal: Bus error / Error while creating shared "
            "memory segment"
        ),
        example=(
            "RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It "
            "is possible that dataloader's workers are out of shared memory."
        ),
        unlike="uses shared memory between workers: no error",
        source="torch/utils/data/_utils/signal_handling.py",
    ),
    FailureRule(
        id="shm_open",
        cls="shm",
        title="shared memory could not be allocated: /dev/shm is full, or too many files are open",
        patterns=(
            (
                "unable to (?:mmap|open shared memory object|resize file"
                "|write to file) ?(?!.*No such file)"
            ),
        ),
        needles=(
            "shared memory object",
            "unable to mmap",
            "unable to resize file",
            "unable to write to file",
        ),
        fixes=(
            "`setup: {node_commands: [ulimit -n 65536]}`",
            "`torch.multiprocessing.set_sharing_strategy('file_system')`",
        ),
        message="unable to open shared memory object",
        example=(
            "RuntimeError: unable to open shared memory object </torch_30997_2076642173> in "
            "read-write mode: Too many open files (24)"
        ),
        unlike="RuntimeError: unable to open file <model.pt> in read-only mode",
        source="https://github.com/pytorch/pytorch/issues/14768",
    ),
    FailureRule(
        id="dl_worker_killed",
        cls="oom_host",
        title="a worker process was killed, most likely because the host ran out of memory",
        patterns=(
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed",
            r"exit codes of the workers are \{[^}]*SIGKILL",
        ),
        needles=("is killed by signal: Killed", "codes of the workers"),
        fixes=("reduce the number of data loader workers", "{more_memory}"),
        message="DataLoader worker ... killed by signal: Killed",
        example="RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed.",
        unlike="RuntimeError: DataLoader worker (pid 4242) is killed by signal: Terminated.",
        source="torch/utils/data/dataloader.py",
    ),
    FailureRule(
        id="dl_worker_gone",
        cls="oom_host",
        kind=WEAK,
        title=(
            "data loader workers exited: often out of host memory, or an exception in a "
            "worker (see above in the log)"
        ),
        patterns=(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) exited unexpectedly",),
        needles=("exited unexpectedly",),
        fixes=("reduce the number of data loader workers", "{more_memory}"),
        example="RuntimeError: DataLoader worker (pid(s) 4242, 4243) exited unexpectedly",
        unlike="Pin memory thread exited unexpectedly",
        source="torch/utils/data/dataloader.py",
    ),
    FailureRule(
        id="killed",
        cls="oom_host",
        kind=WEAK,
        title="a process was killed by SIGKILL, most likely because the host ran out of memory",
        patterns=(
            (
                r"^(?:\S+: line \d+: )?\s*(?:\d+ )?Killed(?:: 9)?(?:\s|$)(?!by|because"
                r"|process|\s*(?:nvidia-smi|tensorboard|tail|sleep|top|ssh|watch)\b)"
            ),
            r"\] \d+ Killed\b",
            r"[Pp]rocess .*(?:SIGKILL|signal 9\b)",
            "signal: 9/KILL",
        ),
        needles=("Killed", "SIGKILL", "signal 9", "9/KILL"),
        fixes=("{more_memory}", "reduce the number of data loader workers"),
        verdict="ask",
        message="Killed",
        example=(
            "/var/spool/slurmd/job4711/slurm_script: line 12: 31337 Killed                  "
            "python train.py"
        ),
        unlike="./run.sh: line 9: 4711 Killed                  nvidia-smi dmon > gpu.txt",
        source="bash; Linux mm/oom_kill.c",
    ),
    FailureRule(
        id="oom_guess",
        cls="oom_host",
        kind=WEAK,
        title="a rank was killed by SIGKILL, most likely because the host ran out of memory",
        patterns=(
            r"exitcode\s*: -9\b",
            r"exits with return code = -9\b",
            r"Signal 9 \(SIGKILL\)",
            r"exited on signal 9\b",
            r"exit code:? ?137\b",
            "returned non-zero exit status 137",
            r"died with <Signals\.SIGKILL",
        ),
        needles=(
            "SIGKILL",
            "exitcode",
            "return code",
            "signal 9",
            "Out of memory",
            "Signal 9",
            "exit code",
            "exit status 137",
        ),
        fixes=("{more_memory}", "reduce the number of data loader workers"),
        verdict="ask",
        example="  exitcode  : -9 (pid: 4242)",
        unlike="  exitcode  : 1 (pid: 4242)",
        source=(
            "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/errors/__init__.py"
        ),
    ),
]

GPUS = [
    FailureRule(
        id="driver_old",
        cls="driver",
        title="torch requires a newer CUDA driver than the node has",
        patterns=(
            "not implemented for CUDA below version",
            r"The NVIDIA driver on your system is too old \(found version (\d+)\)",
            "CUDA driver version is insufficient for CUDA runtime version",
            "PTX was compiled with an unsupported toolchain",
        ),
        needles=(
            "driver on your system is too old",
            "CUDA below version",
            "driver version is insufficient",
            "unsupported toolchain",
        ),
        fixes=("install a torch built for an older CUDA", "use nodes with a newer driver"),
        message="The NVIDIA driver on your system is too old",
        example=(
            "RuntimeError: The NVIDIA driver on your system is too old (found version "
            "11040). Please update your GPU driver"
        ),
        unlike="UserWarning: the driver is new",
        source="torch/cuda/__init__.py",
    ),
    FailureRule(
        id="no_gpu",
        cls="driver",
        title=(
            "the process sees no GPU: the job requested none, torch is a CPU build, or the "
            "container lacks --nv"
        ),
        patterns=(
            "Found no NVIDIA driver on your system",
            "No (?:CUDA|HIP) GPUs are available",
            "no CUDA-capable device is detected",
            r"libcuda\.so\.1: cannot open shared object file(?!.*dlerror)",
            "Torch not compiled with CUDA enabled",
            "No visible GPU devices",
            "could not select device driver",
            "^NVIDIA-SMI has failed because",
            "couldn't communicate with the NVIDIA driver",
            r"torch\.cuda\.is_available\(\) is False",
            "error from cudaGetDeviceCount",
            "forward compatibility was attempted",
            "cannot find any torch accelerator",
        ),
        needles=(
            "NVIDIA driver",
            "No CUDA GPUs",
            "CUDA-capable device is detected",
            "libcuda.so",
            "CUDA enabled",
            "no NVIDIA GPU",
            "No visible GPU",
            "select device driver",
            "HIP GPUs",
            "NVIDIA-SMI has failed",
            "is_available() is False",
            "cudaGetDeviceCount",
            "forward compatibility",
            "any torch accelerator",
        ),
        fixes=(
            "`resources.gpus_per_node`",
            "`hpcrun shell JOB -- python -c 'import torch; print(torch.version.cuda)'`",
        ),
        message="No CUDA GPUs are available",
        example="RuntimeError: No CUDA GPUs are available",
        unlike="Error-free: 8 CUDA GPUs are available",
        source="torch/cuda/__init__.py",
    ),
    FailureRule(
        id="gpu_too_old",
        cls="driver",
        title="the GPU model does not support an operation: {why}",
        patterns=(
            r"(?P<why>FlashAttention[\w-]* only supports (?:\w+ )*GPUs[^.]*)",
            r"(?P<why2>only supports Ampere GPUs[^.]*)",
            r"(?P<why3>[Yy]our setup doesn't support bf16/gpu)",
        ),
        needles=("only supports", "support bf16/gpu"),
        fixes=(
            "request a newer GPU: `resources.gpu_type` (Ampere or later)",
            'or use another attention implementation, as `attn_implementation="sdpa"`',
            "or `precision: fp16`",
        ),
        message="FlashAttention only supports Ampere GPUs or newer",
        example="RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        unlike="INFO FlashAttention is used; errors: 0",
        source="https://github.com/Dao-AILab/flash-attention",
    ),
    FailureRule(
        id="invalid_ordinal",
        cls="driver",
        title=(
            "a rank selects a GPU that it cannot see: more ranks than GPUs on the node, or "
            "each task sees only one GPU"
        ),
        patterns=(
            "invalid device ordinal",
            r"Invalid device id\b",
            "device >= 0 && device < num_gpus",
        ),
        needles=("invalid device ordinal", "Invalid device id", "invalid device ID", "num_gpus"),
        fixes=(
            "`resources.gpus_per_node`: one rank per GPU",
            "remove `gpus-per-task` from `slurm:`",
        ),
        message="invalid device ordinal",
        example="RuntimeError: CUDA error: invalid device ordinal",
        unlike="device ordinal 3, no error",
        source="https://github.com/NVIDIA/nccl-tests/issues/300",
    ),
    FailureRule(
        id="no_kernel_image",
        cls="driver",
        title="torch or an extension was not built for this GPU model",
        patterns=(
            "no kernel image is available for execution on the device",
            "cudaErrorNoKernelImageForDevice",
            "CUDA error: invalid device function",
            "device kernel image is invalid",
        ),
        needles=(
            "no kernel image",
            "kernel image is invalid",
            "is not compatible with the current PyTorch",
            "NoKernelImage",
            "invalid device function",
        ),
        fixes=(
            "install another torch build",
            "set `TORCH_CUDA_ARCH_LIST` when building your own extensions",
        ),
        message="no kernel image is available for execution on the device",
        example=(
            "RuntimeError: CUDA error: no kernel image is available for execution on the device"
        ),
        unlike="the kernel image is available for execution, no error",
        source="torch/cuda/__init__.py",
    ),
    FailureRule(
        id="xid",
        cls="driver",
        title=(
            "the NVIDIA driver reports Xid {number} on GPU {gpu} (48, 63, 64, 74, 79, 94, 95 "
            "are hardware faults)"
        ),
        patterns=(r"NVRM: Xid \((?P<gpu>[^)]*)\): (?P<number>\d+)",),
        needles=("NVRM: Xid",),
        fixes=("{without_node}", "report the node to the site's support"),
        verdict="exclude_node",
        message="Xid",
        example="NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
        unlike="Xid errors: 0",
        source=_XID,
    ),
    FailureRule(
        id="gpu_lost",
        cls="driver",
        title=(
            "a GPU of the node or its memory is defective, or its driver is in an "
            "inconsistent state"
        ),
        patterns=(
            "GPU is lost",
            "fallen off the bus",
            "Unable to determine the device handle for GPU",
            "cudaErrorDevicesUnavailable",
            "CUDA error: unknown error",
            "CUDA unknown error",
            r"nvmlDeviceGetHandleBy\w+\((\d+)\) failed: (.+)",
            r"nvmlInit(?:_v2)?\(\) failed",
            "Failed to initialize NVML: Unknown Error",
            "uncorrectable (?:NVLink|ECC) error",
            r"\*\*\* .*UNCORRECTABLE MEMORY ERROR",
            "cudaErrorECCUncorrectable",
            "Driver/library version mismatch",
            "cudaErrorSystemDriverMismatch",
            "system has unsupported display driver",
            "Error 802: system not yet initialized",
            "cudaErrorSystemNotReady",
        ),
        needles=(
            "GPU is lost",
            "fallen off the bus",
            "device handle for GPU",
            "DevicesUnavailable",
            "CUDA error: unknown error",
            "nvmlDeviceGetHandle",
            "nvmlInit",
            "CUDA unknown error",
            "initialize NVML",
            "uncorrectable",
            "UNCORRECTABLE",
            "ECC",
            "version mismatch",
            "cudaErrorSystemDriverMismatch",
            "system not yet initialized",
            "CUDA initialization",
            "SystemNotReady",
            "unsupported display",
        ),
        fixes=("{without_node}", "report the node to the site's support"),
        verdict="exclude_node",
        message="GPU is lost / uncorrectable ECC error / Driver/library version mismatch",
        example="Unable to determine the device handle for GPU0: 0000:09:00.0: Unknown Error",
        unlike="nvmlInit: no error",
        source="https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1342",
    ),
    FailureRule(
        id="gpu_busy",
        cls="driver",
        title="another process uses the GPU exclusively",
        patterns=(r"CUDA-capable device\(s\) is/are busy or unavailable",),
        needles=("busy or unavailable",),
        fixes=(
            "call `torch.cuda.set_device(LOCAL_RANK)` before any other CUDA call",
            "{without_node}",
        ),
        message="CUDA-capable device(s) is/are busy or unavailable",
        example="RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        unlike="error: busy",
        source="https://github.com/huggingface/pytorch-image-models/issues/1033",
    ),
    FailureRule(
        id="assert_probability",
        cls="code_error",
        title="a loss on the GPU got a value outside 0 to 1 ({assertion}), often NaN",
        patterns=(
            (
                r"\.cu:\d+: .*Assertion `(?P<assertion>[^`']*input_val (?:>=|<=) (?:zero|one)"
                r"[^`']*)['`] failed"
            ),
        ),
        needles=("Assertion `",),
        fixes=(
            "check the inputs of the loss for NaN; binary cross entropy needs a sigmoid before it",
            "`binary_cross_entropy_with_logits` needs no sigmoid",
        ),
        message="Assertion `input_val >= zero && input_val <= one` failed",
        example=(
            "../aten/src/ATen/native/cuda/Loss.cu:92: operator(): block: [0,0,0], thread: "
            "[2,0,0] Assertion `input_val >= zero && input_val <= one` failed."
        ),
        unlike="Loss.cu:92: Assertion `t >= 0 && t < n_classes` failed.",
        source="torch aten/src/ATen/native/cuda/Loss.cu",
    ),
    FailureRule(
        id="assert_multinomial",
        cls="numerics",
        title="sampling on the GPU got probabilities that are negative, NaN or infinite",
        patterns=(
            (
                r"\.cu:\d+: .*Assertion `.*(?:cumdist|probability tensor|isfinite|isnan|isinf)"
                r".*failed"
            ),
        ),
        needles=("Assertion `",),
        fixes=(
            "check the logits for NaN before sampling",
            "reduce the learning rate; add warm-up or gradient clipping",
        ),
        example=(
            "../aten/src/ATen/native/cuda/TensorCompare.cu:110: _assert_async_cuda_kernel: block: "
            "[0,0,0], thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` "
            "or element < 0` failed."
        ),
        unlike="ScatterGatherKernel.cu:144: Assertion `idx_dim >= 0` failed.",
        source="torch aten/src/ATen/native/cuda/MultinomialKernel.cu",
    ),
    FailureRule(
        id="assert_index",
        cls="code_error",
        title="an index is out of range on the GPU ({assertion})",
        patterns=(
            (
                r"\.cu:\d+: .*Assertion `(?P<assertion>[^`']*(?:index out of bounds|[sS]rcIndex|"
                r"dstIndex|\bidx_dim\b|n_classes|num_classes|index (?:>=|<)|cur_target"
                r")[^`']*)['`] failed"
            ),
        ),
        needles=("Assertion `",),
        fixes=(
            "compare the largest token id or label with the model's vocabulary or classes",
            "`--set env.CUDA_LAUNCH_BLOCKING=1` shows the line",
        ),
        message="Assertion `srcIndex < srcSelectDimSize` failed",
        example=(
            "../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: "
            "[38,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
        ),
        unlike="Loss.cu:92: Assertion `input_val >= zero && input_val <= one` failed.",
        source="torch aten/src/ATen/native/cuda/Indexing.cu",
    ),
    FailureRule(
        id="device_assert",
        cls="code_error",
        title="an assertion on the GPU failed: {assertion}",
        patterns=(
            r"device-side assert triggered",
            r"\.cu:\d+: .*Assertion `(?P<assertion>.*?)[`']? failed",
        ),
        needles=("device-side assert", "Assertion `"),
        fixes=(
            "`--set env.CUDA_LAUNCH_BLOCKING=1` shows the line",
            "often a token id or label beyond the model's vocabulary or classes",
        ),
        message="device-side assert triggered",
        example="RuntimeError: CUDA error: device-side assert triggered",
        unlike="assert triggered: no error",
        source="torch c10/cuda/CUDAException.cpp",
    ),
    FailureRule(
        id="illegal_access",
        cls="code_error",
        title="a kernel accessed invalid memory: a bug in an extension, or a defective GPU",
        patterns=(
            "an illegal memory access was encountered",
            "unspecified launch failure",
            "misaligned address",
            "an illegal instruction was encountered",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "Memory access fault by GPU",
        ),
        needles=(
            "illegal memory access",
            "unspecified launch failure",
            "misaligned address",
            "illegal instruction was encountered",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "Memory access fault by GPU",
        ),
        fixes=(
            "`--set env.CUDA_LAUNCH_BLOCKING=1` shows the line",
            "try other versions of torch and its extensions",
            "try another node, to rule out the hardware",
        ),
        message="an illegal memory access was encountered",
        example="RuntimeError: CUDA error: an illegal memory access was encountered",
        unlike="illegal access was denied: no error",
        source="torch c10/cuda/CUDAException.cpp",
    ),
    FailureRule(
        id="cudnn",
        cls="driver",
        title=(
            "a cuDNN, cuBLAS or cuSOLVER call failed: incompatible libraries, or no GPU memory left"
        ),
        patterns=(
            r"cuDNN error: CUDNN_STATUS_\w+",
            "CUDNN_STATUS_(?:NOT_INITIALIZED|MAPPING_ERROR|INTERNAL_ERROR|EXECUTION_FAILED)",
            "CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|INVALID_VALUE|NOT_SUPPORTED)",
            r"CUSOLVER_STATUS_\w+ERROR",
        ),
        needles=("CUDNN_STATUS", "cuDNN error", "CUSOLVER_STATUS", "CUBLAS_STATUS"),
        fixes=(
            "use one CUDA installation: remove others from LD_LIBRARY_PATH",
            "{smaller_batch}",
        ),
        message="cuDNN error",
        example="RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        unlike="cuDNN 8.9, no error",
        source="torch aten/src/ATen/cudnn",
    ),
    FailureRule(
        id="nvls",
        cls="nccl",
        title="NVLink SHARP does not work on this node",
        patterns=(r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory",),
        needles=("NVLink SHARP",),
        fixes=(
            '`nccl: {env: {NCCL_NVLS_ENABLE: "0"}}`',
            "report the node to the site's support",
        ),
        verdict="exclude_node",
        message="Failed to bind NVLink SHARP",
        example=(
            "NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : "
            "CUDA error 401"
        ),
        unlike="NCCL INFO NVLink SHARP is used",
        source="NVIDIA/nccl src/transport/nvls.cc",
    ),
    FailureRule(
        id="fp16_min_scale",
        cls="numerics",
        title="fp16 overflows at every step",
        patterns=("Current loss scale already at minimum", "Minimum loss scale reached"),
        needles=("loss scale", "Loss scale"),
        fixes=(
            "`precision: bf16`",
            "reduce the learning rate, or extend the warm-up",
            "check the data",
        ),
        message="Current loss scale already at minimum",
        example=(
            "Exception: Current loss scale already at minimum - cannot decrease scale "
            "anymore. Exiting run."
        ),
        unlike="loss scale: 65536, no error",
        source="deepspeed runtime/fp16/loss_scaler.py:259",
    ),
    FailureRule(
        id="nan_raised",
        cls="numerics",
        kind=ERROR,
        title="the training diverged: a value is NaN or infinite",
        patterns=(
            (
                r"^[\w.]+(?:Error|Exception)?: (?i:.*(?:\bloss (?:returned in \S+ )?(?:is|was"
                r"|became)\b.{0,12}\b(?:nan|inf)|(?:nan|inf)s? (?:loss|detected|encountered"
                "|values? (?:in|found))|nan or inf found|contains? (?:nan|inf)"
                "|non-?finite (?:loss|grad)|(?:is|was) non-finite|returned nan values"
                "|probability tensor contains|found invalid values))"
            ),
            (
                r"(?i:\bloss is (?:nan|inf\w*|not finite)\b.{0,12}(?:stop|exit|abort)"
                "|found nan in local grad|invalid loss, terminating|(?:nan"
                "|inf).{0,30}(?:stopping|exiting|aborting)|(?:^"
                r"|[:\s])(?:\S+\.)?FloatingPointError\b)"
            ),
        ),
        needles=(
            "nan",
            "NaN",
            "NAN",
            "inf",
            "Inf",
            "on-finite",
            "nvalid values",
            "nvalid loss",
            "probability tensor",
            "FloatingPoint",
        ),
        fixes=(
            "`hpcrun parse JOB` shows the step",
            "reduce the learning rate; add warm-up or gradient clipping",
            "`precision: bf16`",
        ),
        message="Loss is nan, stopping training",
        example="RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        unlike="RuntimeError: nan_policy must be omit",
        source="torch ATen, torch/autograd",
    ),
]
