"""Failure rules: the program, its files and environment, DeepSpeed, checkpoints, hubs."""

from __future__ import annotations

from hpcrun.why.rule import ERROR, SYMPTOM, WEAK, FailureRule

DEEPSPEED = [
    FailureRule(
        id="ds_batch_assert",
        cls="code_error",
        title="the batch sizes in DeepSpeed's JSON are inconsistent or missing",
        patterns=(
            r"Check batch related parameters\. (?P<why>.+)",
            "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided",
        ),
        needles=("Check batch related parameters", "needs to be provided"),
        fixes=(
            (
                "move the settings to `deepspeed:` in the job, without batch sizes: hpcrun "
                "fills them from `batch:`"
            ),
        ),
        message=(
            "Check batch related parameters / Either train_batch_size or "
            "train_micro_batch_size_per_gpu needs to be provided"
        ),
        example=(
            "AssertionError: Check batch related parameters. train_batch_size is not equal "
            "to micro_batch_per_gpu * gradient_acc_step * world_size 16 != 2 * 4 * 1"
        ),
        unlike="the batch related parameters are fine; errors: 0",
        source="deepspeed runtime/config.py",
    ),
    FailureRule(
        id="ds_auto",
        cls="code_error",
        title=(
            'a string where a number is required, in DeepSpeed\'s JSON often "auto", which '
            "only Trainer and Accelerate replace"
        ),
        patterns=("'>' not supported between instances of 'str' and 'int'",),
        needles=("'str' and 'int'",),
        fixes=("`framework: transformers` or `accelerate`, or a number",),
        message="'>' not supported between instances of 'str' and 'int'",
        example="TypeError: '>' not supported between instances of 'str' and 'int'",
        unlike="TypeError: '<' not supported between 'str' and 'int'",
        source="deepspeed runtime/config.py",
    ),
    FailureRule(
        id="ds_pydantic",
        cls="code_error",
        title="DeepSpeed's JSON has an unknown key, or a number in quotes",
        patterns=(r"validation errors? for DeepSpeed\w*Config",),
        needles=("for DeepSpeed", "Extra inputs are not permitted"),
        fixes=(
            "hpcrun rejects both before submission; fix it in the file that only the script reads",
        ),
        message="validation error for DeepSpeedZeroConfig",
        example=(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
            "DeepSpeedZeroConfig"
        ),
        unlike="validation of DeepSpeed: no error",
        source="deepspeed runtime/config_utils.py",
    ),
    FailureRule(
        id="ds_config",
        cls="code_error",
        title="DeepSpeed rejects its configuration: {why}",
        patterns=(
            (
                "(?P<why>bfloat16 and fp16 modes cannot be simultaneously enabled"
                r"|Type \w+ is not supported on your device"
                "|bf16 mixed precision requires PyTorch|DeepSpeedConfigError: .*"
                r"|Cannot provide deprecated parameter '\w+' and replacing"
                "|Partial offloading only supported for ZeRO Stage 3"
                "|You are using ZeRO-Offload with a client provided optimizer"
                "|You are using an untested ZeRO Optimizer"
                r"|zero stage \d requires an optimizer|warmup_num_steps must be a positive "
                "integer|Must specify the number of layers with contiguous memory"
                "|Contiguous Checkpointing is only available"
                "|When using `deepspeed_config_file`, the following"
                "|has neither `hidden_size` nor)"
            ),
        ),
        needles=(
            "bfloat16 and fp16",
            "is not supported on your device",
            "bf16 mixed precision",
            "DeepSpeedConfigError",
            "deprecated parameter",
            "Partial offloading",
            "ZeRO",
            "zero stage",
            "warmup_num_steps",
            "contiguous memory",
            "Contiguous Checkpointing",
            "deepspeed_config_file",
            "`hidden_size`",
        ),
        fixes=(
            "set `precision:` in the job and none in the JSON",
            "move the settings to `deepspeed:` in the job, which hpcrun checks",
        ),
        message="bfloat16 and fp16 modes cannot be simultaneously enabled",
        example="AssertionError: bfloat16 and fp16 modes cannot be simultaneously enabled",
        unlike="[INFO] bfloat16 is enabled; errors: 0",
        source="deepspeed runtime/config.py, runtime/engine.py",
    ),
    FailureRule(
        id="hf_mismatch",
        cls="code_error",
        title="DeepSpeed's JSON and the Trainer's arguments differ",
        patterns=("Please correct the following DeepSpeed config values that mismatch",),
        needles=("DeepSpeed config values that mismatch",),
        fixes=('use `"auto"` in the JSON',),
        message="values that mismatch TrainingArguments values",
        example=(
            "ValueError: Please correct the following DeepSpeed config values that mismatch "
            "TrainingArguments values:"
        ),
        unlike="no DeepSpeed values mismatch; errors: 0",
        source="transformers integrations/deepspeed.py:260",
    ),
    FailureRule(
        id="cuda_home",
        cls="driver",
        title=(
            "the CUDA toolkit (nvcc) is missing on the node, or its version differs from torch's"
        ),
        patterns=(
            "CUDA_HOME environment variable is not set",
            "CUDA_HOME does not exist, unable to compile",
            r"Unable to run \S*nvcc",
            r"No such file or directory: '?\S*/bin/nvcc'?",
            "nvcc: (?:command )?not found",
            r"Installed CUDA version (\S+) does not match the version torch was compiled with",
            r"The detected CUDA version \((\S+)\) mismatches the version that was used to compile",
        ),
        needles=(
            "CUDA_HOME",
            "bin/nvcc",
            "nvcc",
            "does not match the version torch was compiled with",
            "mismatches the version",
        ),
        fixes=(
            "`setup: {modules: [cuda/VERSION]}` with torch's version",
            "or set `torch_adam: true` in the optimizer's params",
            '`env: {DS_SKIP_CUDA_CHECK: "1"}` if only the minor version differs',
        ),
        message=(
            "CUDA_HOME does not exist, unable to compile CUDA op(s) / does not match the "
            "version torch was compiled with"
        ),
        example=(
            "deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not "
            "exist, unable to compile CUDA op(s)"
        ),
        unlike="CUDA_HOME=/usr/local/cuda, no error",
        source="deepspeed ops/op_builder/builder.py",
    ),
    FailureRule(
        id="build",
        cls="import",
        title="an extension could not be compiled on the node",
        patterns=(
            r"Ninja is required to load C\+\+ extensions",
            r"Unable to JIT load the \w+ op due to",
            "found no CUDA devices",
            r"Error building extension '\w+'",
            "unsupported GNU version!",
            "too old version of GCC",
            r"torch_extensions/\S+\.so: cannot open shared object file",
        ),
        needles=(
            "Ninja is required",
            "Unable to JIT load",
            "found no CUDA devices",
            "Error building extension",
            "unsupported GNU version",
            "too old version of GCC",
            "torch_extensions",
        ),
        fixes=(
            "`pip install ninja` in the environment of the training",
            "load a suitable compiler: `setup: {modules: [gcc, cuda]}`",
            "after a broken build remove the directory `torch_extensions`",
        ),
        message="Ninja is required to load C++ extensions",
        example=(
            "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)"
        ),
        unlike="Building extension with ninja, no error",
        source="torch/utils/cpp_extension.py",
    ),
    FailureRule(
        id="size_mismatch",
        cls="code_error",
        title=(
            "the checkpoint belongs to a different model; torch.Size([0]): ZeRO-3 parameters "
            "were not gathered"
        ),
        patterns=(
            "size mismatch for (?P<name>[^:]+): copying a param",
            r"Error\(s\) in loading state_dict for",
        ),
        needles=("size mismatch for", "in loading state_dict"),
        fixes=(
            "use the same code (`hpcrun resubmit` keeps it)",
            "`stage3_gather_16bit_weights_on_model_save`",
        ),
        message="size mismatch for NAME",
        example="RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:",
        unlike="RuntimeError: the state_dict is loaded",
        source="torch/nn/modules/module.py",
    ),
    FailureRule(
        id="state_dict_prefix",
        cls="code_error",
        title="the keys of the checkpoint and the model differ by the prefix {prefix}",
        patterns=(
            r"(?:Missing|Unexpected) key\(s\) in state_dict: \"(?P<prefix>module\.|_orig_mod\.)",
        ),
        needles=("key(s) in state_dict",),
        fixes=(
            (
                "DDP and DataParallel add `module.`, torch.compile adds `_orig_mod.`: save and "
                "load the inner model, `model.module` or `model._orig_mod`"
            ),
            "or `torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, 'module.')`",
        ),
        message='Unexpected key(s) in state_dict: "module.',
        example=(
            '        Unexpected key(s) in state_dict: "module.conv1.weight", "module.conv1.bias".'
        ),
        unlike='        Unexpected key(s) in state_dict: "conv1.weight".',
        source="torch/nn/modules/module.py",
    ),
    FailureRule(
        id="ds_world_change",
        cls="code_error",
        title="the checkpoint was saved by {was} ranks, but there are {now}",
        patterns=(
            (
                r"The checkpoint being loaded used a DP world size of (?P<was>\d+) but the "
                r"current world size is (?P<now>\d+)"
            ),
        ),
        needles=("used a DP world size",),
        fixes=(
            "use the same number of GPUs",
            '`ds_to_universal.py` and `{"checkpoint": {"load_universal": true}}`',
        ),
        message="The checkpoint being loaded used a DP world size of N",
        example=(
            "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded "
            "used a DP world size of 8 but the current world size is 4."
        ),
        unlike="DP world size 8, no error",
        source="deepspeed runtime/engine.py",
    ),
    FailureRule(
        id="no_checkpoint",
        cls="missing_file",
        title="there is no checkpoint to resume from",
        patterns=(
            r"Can't find a valid checkpoint at (?P<path>\S+)",
            r"failed to resume from checkpoint (?P<path2>\S+)",
            "No valid checkpoint found in",
        ),
        needles=("valid checkpoint", "resume from checkpoint", "No valid checkpoint"),
        fixes=(
            "check the path of the checkpoint directory",
            "pass `{checkpoint_dir}` to the script in `args:`",
        ),
        message="Can't find a valid checkpoint at PATH",
        example="ValueError: Can't find a valid checkpoint at /ckpt/last",
        unlike="a valid checkpoint was found; errors: 0",
        source="transformers trainer.py",
    ),
    FailureRule(
        id="broken_checkpoint",
        cls="disk",
        title="a checkpoint was written incompletely, or the loaded one is truncated",
        patterns=(
            "PytorchStream(?:Writer|Reader) failed",
            r"unexpected pos \d+ vs \d+",
            "failed finding central directory",
            "SafetensorError.*(?:HeaderToo|InvalidHeader|Incomplete|incomplete)",
            "MetadataIncompleteBuffer",
        ),
        needles=(
            "PytorchStreamWriter failed",
            "PytorchStreamReader failed",
            "unexpected pos",
            "failed finding central directory",
            "HeaderTooLarge",
            "InvalidHeader",
            "incomplete metadata",
            "MetadataIncompleteBuffer",
            "ile is not a zip file",
            "SafetensorError",
        ),
        fixes=(
            "free space on the checkpoint's file system",
            "resume from the checkpoint before",
        ),
        message="PytorchStreamWriter failed",
        example=(
            "RuntimeError: [enforce fail at inline_container.cc:595] . unexpected pos 2880 vs 2776"
        ),
        unlike="the position is as expected; errors: 0",
        source="torch caffe2/serialize/inline_container.cc",
    ),
    FailureRule(
        id="weights_only",
        cls="code_error",
        title="torch 2.6 and later load only tensors by default",
        patterns=("Weights only load failed",),
        needles=("Weights only load failed",),
        fixes=("`weights_only=False` for a file that you trust",),
        message="Weights only load failed",
        example="_pickle.UnpicklingError: Weights only load failed. This file can still be loaded",
        unlike="weights are loaded; errors: 0",
        source="torch/serialization.py:1455",
    ),
    FailureRule(
        id="zero3_empty",
        cls="code_error",
        title="a ZeRO-3 parameter is used outside its module",
        patterns=(
            "'weight' must be 2-D",
            "weight should have at least three dimensions",
            r"1D tensors of size \[0\]",
        ),
        needles=("must be 2-D", "three dimensions", "tensors of size [0]", "1D tensors"),
        fixes=("`deepspeed.zero.GatheredParameters`",),
        message="'weight' must be 2-D",
        example="RuntimeError: 'weight' must be 2-D",
        unlike="RuntimeError: a weight must be a tensor",
        source="https://github.com/huggingface/trl/issues/600",
    ),
]

FILES = [
    FailureRule(
        id="quota",
        cls="disk",
        title=(
            "disk quota exceeded: often by caches in the home directory, and often by the "
            "number of files"
        ),
        patterns=("[Dd]isk quota exceeded", "write: over quota"),
        needles=("uota exceeded", "over quota"),
        fixes=(
            "`env: {HF_HOME: /scratch/...}`",
            "`cache_dir:` in `hpcrun.yaml`",
            "`hpcrun clean`",
        ),
        message="Disk quota exceeded",
        example="OSError: [Errno 122] Disk quota exceeded: '/home/u/.triton/cache/x.json'",
        unlike="disk quota: 10 GB, error-free",
        source="errno 122",
    ),
    FailureRule(
        id="enospc",
        cls="disk",
        title=(
            "a disk is full: /tmp or /dev/shm of the node, or the file system of the checkpoints"
        ),
        patterns=(
            "[Nn]o space left on device",
            "No usable temporary directory found",
            "[Nn]ot enough (?:free )?disk space",
        ),
        needles=(
            "o space left on device",
            "No usable temporary directory",
            "ot enough disk space",
            "ot enough free disk",
            "disk is full",
        ),
        fixes=("`local_dir:` in `hpcrun.yaml`", "keep fewer checkpoints"),
        message="No space left on device",
        example="OSError: [Errno 28] No space left on device",
        unlike="space left on device: 10 GB, error-free",
        source="errno 28",
    ),
    FailureRule(
        id="stale_nfs",
        cls="disk",
        title="the node has trouble with a file system",
        patterns=(
            (
                r"^(?!.*(?:ucx|UCX)).*(?:Stale (?:NFS )?file handle|(?:\[Errno 5\]"
                "|:) Input/output error|Transport endpoint is not connected|Remote I/O error"
                "|Read-only file system)"
            ),
        ),
        needles=(
            "Stale file handle",
            "Input/output error",
            "Transport endpoint",
            "Remote I/O error",
            "Read-only file system",
            "file handle",
        ),
        fixes=("{without_node}", "report the node to the site's support"),
        verdict="exclude_node",
        message="Stale file handle",
        example="OSError: [Errno 5] Input/output error",
        unlike="input and output without an error",
        source="errno 116, 5, 107",
    ),
    FailureRule(
        id="too_many_files",
        cls="other",
        title="too many open files (the process limit is reached)",
        patterns=("Too many open files",),
        needles=("Too many open files",),
        fixes=("`setup: {node_commands: [ulimit -n 65536]}`",),
        verdict="fix",
        message="Too many open files",
        example="OSError: [Errno 24] Too many open files: '/data/x'",
        unlike="many open files, no error",
        source="https://github.com/pytorch/pytorch/issues/11201",
    ),
    FailureRule(
        id="hf_gated",
        cls="auth_network",
        title=(
            "Hugging Face Hub denied access: no token, a gated model, or a name that does not exist"
        ),
        patterns=(
            "trying to access a gated repo",
            "GatedRepoError",
            r"\b40[134] Client Error",
            r"HTTPError: (?:HTTP Error )?[45]\d\d",
            "doesn't exist on the Hub",
            "Invalid user token",
            "RepositoryNotFoundError",
            r"Access to model \S+ is restricted",
        ),
        needles=(
            "gated repo",
            "GatedRepo",
            "HTTPError",
            "exist on the Hub",
            "Invalid user token",
            "Repository Not Found",
            "RepositoryNotFound",
            "Unauthorized",
            "Client Error",
            "is restricted",
        ),
        fixes=(
            (
                "accept the licence on the model's page; `secrets: [HF_TOKEN]`, exported "
                "where you submit"
            ),
            "check the name or the path",
        ),
        message="You are trying to access a gated repo",
        example="OSError: You are trying to access a gated repo.",
        unlike="the repo is public, no error 404",
        source="transformers utils/hub.py",
    ),
    FailureRule(
        id="hf_not_model",
        cls="auth_network",
        title="no such model: neither a directory on this node nor a name on the Hugging Face Hub",
        patterns=(
            "is not a local folder and is not a valid model identifier",
            "HFValidationError",
            r"make sure '\S+' is the correct path to a directory",
        ),
        needles=(
            "valid model identifier",
            "Repo id must",
            "correct path to a directory",
            "HFValidationError",
        ),
        fixes=(
            "check that the nodes see this path",
            "`secrets: [HF_TOKEN]` if the model is private",
        ),
        message="is not a local folder and is not a valid model identifier",
        example=(
            "OSError: models/llama is not a local folder and is not a valid model identifier "
            "listed on 'https://huggingface.co/models'"
        ),
        unlike="Error-free: a valid model identifier",
        source="transformers utils/hub.py:570",
    ),
    FailureRule(
        id="offline",
        cls="auth_network",
        title="no internet access: compute nodes often have none",
        patterns=(
            r"We couldn't connect to '(?P<url>\S+?)'",
            "Max retries exceeded with url",
            "LocalEntryNotFoundError",
            "Temporary failure in name resolution",
            "OfflineModeIsEnabled",
            "[Cc]annot (?:reach|access) .*offline mode",
            "Name or service not known",
            "Failed to establish a new connection",
            "Could not resolve host",
            "unable to resolve host",
            r"Couldn't reach '?\S+'? on the Hub",
            (
                r"^(?:\S+\.)?(?:ConnectTimeout|ReadTimeout|ReadTimeoutError"
                "|ConnectTimeoutError|URLError|ClientConnectorError|ProxyError|SSLError"
                r"|ChunkedEncodingError)\b"
            ),
            "Cannot send a request to",
            "Couldn't connect to the Hub",
        ),
        needles=(
            "couldn't connect to",
            "Max retries exceeded",
            "LocalEntryNotFound",
            "name resolution",
            "Network is unreachable",
            "offline mode",
            "OfflineMode",
            "Name or service not known",
            "Failed to establish a new connection",
            "Could not resolve host",
            "ouldn't reach",
            "Connection error",
            "ConnectTimeout",
            "ReadTimeout",
            "ClientConnectorError",
            "ChunkedEncodingError",
            "Errno -2]",
            "Errno -3]",
            "nodename nor servname",
            "ProxyError",
            "SSLError",
            "URLError",
            "Cannot send a request",
            "connect to the Hub",
            "offline",
            "resolve host",
        ),
        fixes=(
            "download it on the login node into a shared `HF_HOME`",
            "`internet: false` in `hpcrun.yaml` enables offline mode, which fails at once",
        ),
        message="We couldn't connect to 'https://huggingface.co'",
        example=(
            "OSError: We couldn't connect to 'https://huggingface.co' to load this file, "
            "couldn't find it in the cached files"
        ),
        unlike="offline mode is on, no error",
        source="transformers utils/hub.py:621",
    ),
    FailureRule(
        id="lost_connection",
        cls="auth_network",
        kind=ERROR,
        title="a network connection failed",
        patterns=("Cannot send a request, as the client has been closed",),
        needles=("Cannot send a request",),
        fixes=(
            "submit it again if the network was down only briefly",
            "download it on the login node into a shared `HF_HOME`",
        ),
        message="Cannot send a request, as the client has been closed",
        example="RuntimeError: Cannot send a request, as the client has been closed.",
        unlike="RuntimeError: Cannot send a signal to a client",
        source="https://www.python-httpx.org",
    ),
    FailureRule(
        id="wandb_login",
        cls="auth_network",
        title="W&B has no API key in the job, or the node has no internet access",
        patterns=(
            "api_key not configured",
            (
                r"wandb\.(?:sdk\.)?(?:\w+\.)*errors?\.(?:\w+\.)*\w*(?:UsageError"
                r"|AuthenticationError|CommError)\b"
            ),
            "^wandb: ERROR .*(?:API key|api_key)",
            "API key must be 40 characters",
        ),
        needles=(
            "api_key not configured",
            "wandb.errors",
            "wandb: ERROR",
            "CommError",
            "login(key",
            "UsageError",
            "AuthenticationError",
            "API key must",
        ),
        fixes=(
            "`secrets: [WANDB_API_KEY]`, exported where you submit",
            "`env: {WANDB_MODE: offline}`",
        ),
        message="api_key not configured (no-tty)",
        example=(
            "wandb.errors.errors.UsageError: api_key not configured (no-tty). call "
            "wandb.login(key=[your_api_key])"
        ),
        unlike="wandb: logged in, no error",
        source="https://github.com/wandb/wandb/issues/4034",
    ),
    FailureRule(
        id="mpi4py_or_module",
        cls="import",
        title="No module named {name}",
        patterns=(
            (
                "(?:No package metadata was found for|there is no package called"
                "|Could not find a version that satisfies the requirement"
                r"|^Can't locate) ['\u2018]?(?P<name3>[\w.\-]+)"
            ),
            r"(?:ModuleNotFoundError|ImportError): No module named '?(?P<name>[\w.\-]+)'?",
            (
                r"python\S*: (?:No module named (?P<name2>[\w.\-]+)"
                "|Error while finding module specification)"
            ),
        ),
        needles=(
            "No module named",
            "module specification",
            "No package metadata",
            "is no package called",
            "that satisfies the requirement",
            "Can't locate",
        ),
        fixes=(
            (
                "`hpcrun submit JOB --dry-run` shows which Python runs; `setup: {venv: ...}` "
                "selects another"
            ),
            "install the package in that environment",
        ),
        message="ModuleNotFoundError: No module named NAME",
        example="ModuleNotFoundError: No module named 'deepspeed'",
        unlike="Warning: No module named by the user",
        source="CPython",
    ),
    FailureRule(
        id="broken_library",
        cls="import",
        title="a Python module or library is incompatible with its environment",
        patterns=(
            r"undefined symbol: (?P<name>\S+)",
            r"version `(?P<lib>(?:GLIBC|GLIBCXX|CXXABI)\S*)' not found",
            (
                r"(?P<so>[\w.\-/+]+\.so[\d.]*): (?:cannot open shared object file"
                "|failed to map segment)"
            ),
            r"numpy\.dtype size changed",
            r"ImportError: cannot import name '?(?P<symbol>\w+)'?",
        ),
        needles=(
            "undefined symbol",
            "GLIBC",
            "cannot open shared object file",
            "numpy.dtype size changed",
            "failed to map segment",
            "CXXABI",
            "cannot import name",
            "partially initialized module",
            "DLL load failed",
        ),
        fixes=(
            "reinstall it for this torch and Python",
            "`setup: {modules: [...]}` with the libraries that it was built with",
        ),
        message="undefined symbol",
        example=(
            "ImportError: flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined "
            "symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs"
        ),
        unlike="symbol defined, no error",
        source="https://github.com/Dao-AILab/flash-attention/issues/1832",
    ),
    FailureRule(
        id="lmod",
        cls="import",
        kind=WEAK,
        title="`module load` failed: no such module on this node: {name}",
        patterns=(
            "Lmod has detected the following error",
            r"module\(s\) are unknown: (?P<name>.+)",
            "Unable to locate a modulefile for '(?P<name2>[^']+)'",
        ),
        needles=(
            "Lmod has detected",
            "module(s) are unknown",
            "Unable to locate a modulefile",
            "are unknown",
        ),
        fixes=("run `module spider NAME` on such a node",),
        message="The following module(s) are unknown",
        example=(
            "Lmod has detected the following error:  The following module(s) are unknown: "
            '"gcc/7.4.0"'
        ),
        unlike="Lmod is loaded; errors: 0",
        source="https://github.com/hpcugent/vsc_user_docs/issues/440",
    ),
    FailureRule(
        id="crlf",
        cls="other",
        title="a file has Windows line endings",
        patterns=(
            r"\$'\\r': command not found",
            r"\^M: bad interpreter",
            r"\r: command not found",
        ),
        needles=("command not found", "bad interpreter"),
        fixes=("`dos2unix FILE`",),
        verdict="fix",
        message="$'\\r': command not found",
        example="slurm_script: line 12: $'\\r': command not found",
        unlike="slurm_script: line 12: ml: command not found",
        source="bash",
    ),
    FailureRule(
        id="no_command",
        cls="missing_file",
        kind=WEAK,
        title="command not found (no environment activated on the node?): {name}",
        patterns=(
            r"(?:^|: )(?P<name>[\w./+-]+): command not found",
            r"\x22(?P<name4>[^\x22]+)\x22: executable file not found in \$PATH",
            (
                r"^(?:/usr/bin/)?env: ['\u2018]?(?P<name3>[^'\u2019]+?)['\u2019]?: No such "
                "file or directory"
            ),
            r"line \d+: (?P<name2>\S+): not found",
            r"\bexec: (?P<name5>\S+): (?:not found|cannot execute)",
            "CondaError: Run 'conda init'",
            "EnvironmentNameNotFound",
            "EnvironmentLocationNotFound",
            "Your shell has not been properly configured to use 'conda",
        ),
        needles=(
            "command not found",
            "executable file not found",
            "env: ",
            "CondaError",
            "not found",
            "EnvironmentNameNotFound",
            "EnvironmentLocationNotFound",
            "CommandNotFoundError",
            "properly configured",
        ),
        fixes=("`setup: {conda: NAME}` or `{venv: PATH}`, and `{modules: [...]}`",),
        message="command not found",
        example="/var/spool/slurmd/job00156/slurm_script: line 4: ml: command not found",
        unlike="error: the object was not found",
        source="bash",
    ),
    FailureRule(
        id="no_script",
        cls="missing_file",
        title="no such script: {path}",
        patterns=(
            r"can't open file '?(?P<path>[^':]+)'?: \[Errno 2\]",
            "can't find '__main__' module in '(?P<path2>[^']+)'",
            "Unable to access jarfile",
        ),
        needles=("can't open file", "can't find '__main__' module", "Unable to access jarfile"),
        fixes=(
            (
                "use a path relative to the job's directory; hpcrun checks `script:` before "
                "submission"
            ),
        ),
        message="can't open file NAME: [Errno 2] No such file or directory",
        example="python: can't open file '/home/u/train.py': [Errno 2] No such file or directory",
        unlike="python can open the file; errors: 0",
        source="CPython",
    ),
    FailureRule(
        id="argparse",
        cls="code_error",
        title="the script rejected its arguments: {why}",
        patterns=(
            (
                r"^\S+(?:\.py)?: error: (?P<why>unrecognized arguments.*"
                r"|the following arguments are required.*|argument \S+.*|ambiguous option.*)"
            ),
            (
                "^Error: (?P<why2>No such option.*|Got unexpected extra argument.*"
                "|Missing (?:option|argument|parameter).*|Invalid value for.*)"
            ),
            (
                "^ValueError: (?P<why3>Some specified arguments are not used by the "
                "HfArgumentParser.*)"
            ),
            # fire; then typer and tyro, which draw boxes.
            r"^(?:ERROR: )?(?P<why4>Could not consume arg.*|The function received no value.*)",
            (
                r"^[│|] +(?P<why5>(?:No such (?:option|command)"
                r"|Missing (?:argument|option|parameter|required)|Invalid value for"
                r"|Got unexpected extra argument|Unrecognized (?:or misplaced )?(?:option|argument)"
                r"|The following (?:argument|option)s? (?:is|are) required|Error parsing ).*?)"
                r" *[│|]?$"
            ),
        ),
        needles=(
            "error: ",
            "rror: ",
            "No such option",
            "No such command",
            "Got unexpected extra argument",
            "consume arg",
            "received no value",
            "Missing argument",
            "Missing option",
            "Missing parameter",
            "Missing required",
            "Invalid value for",
            "Unrecognized ",
            "required",
            "Error parsing ",
        ),
        fixes=("fix `args:` in the job",),
        message="error: unrecognized arguments",
        example="train.py: error: unrecognized arguments: --lrr 0.1",
        unlike="step 3: error: 0.12",
        source="CPython argparse; click, typer, fire, tyro",
    ),
    FailureRule(
        id="hydra",
        cls="code_error",
        title="the script's configuration is missing, has no such key, or lacks a value: {name}",
        patterns=(
            "^Could not override '(?P<name>[^']+)'",
            "^Cannot find primary config '(?P<config>[^']+)'",
            "Error (?:merging|parsing) override",
            "^In '[^']+': Could not find '(?P<name2>[^']+)'",
            "^You must specify '(?P<name3>[^']+)'",
            (
                r"^(?:\S+\.)?(?:ConfigAttributeError|ConfigKeyError|MissingMandatoryValue"
                "|MissingConfigException|InterpolationKeyError|ConfigCompositionException"
                r"|OverrideParseException)\b"
            ),
            "^LexerNoViableAlt",
            "Key '(?P<key>[^']+)' is not in struct",
        ),
        needles=(
            "Could not override",
            "Cannot find primary config",
            "Error merging",
            "Error parsing override",
            "Could not find '",
            "You must specify '",
            "is not in struct",
            "ConfigAttributeError",
            "ConfigKeyError",
            "MissingMandatoryValue",
            "MissingConfigException",
            "InterpolationKeyError",
            "ConfigCompositionException",
            "OverrideParseException",
            "LexerNoViableAlt",
        ),
        fixes=("use a key that the script's configuration files define",),
        example="Could not override 'model.lrr'.",
        unlike="Could override it; errors: 0",
        source="https://hydra.cc",
    ),
    FailureRule(
        id="syntax",
        cls="code_error",
        title="the script is not valid Python: {why}",
        patterns=("^(?:SyntaxError|IndentationError|TabError): (?P<why>.+)",),
        needles=("SyntaxError", "IndentationError", "TabError"),
        fixes=("see the line that the message names",),
        message="SyntaxError",
        example="SyntaxError: invalid syntax",
        unlike="SyntaxErrors are counted: 0",
        source="CPython",
    ),
    FailureRule(
        id="shell_syntax",
        cls="code_error",
        kind=WEAK,
        title="the shell script has a syntax error",
        patterns=(
            r"^\S+: line \d+: syntax error(?: near unexpected token|: unexpected end of file)",
        ),
        needles=("syntax error",),
        fixes=("`bash -n SCRIPT` before you submit it",),
        message="syntax error: unexpected end of file",
        example="slurm_script: line 99: syntax error: unexpected end of file",
        unlike="no syntax error in line 99",
        source="bash",
    ),
    FailureRule(
        id="crash",
        cls="code_error",
        kind=WEAK,
        title="native code crashed (segmentation fault or similar)",
        patterns=(
            "^Fatal Python error: (?!Bus error)(?P<how>.+)",
            (
                "(?P<how2>Segmentation fault|Illegal instruction"
                r"|Floating point exception)(?: \(core dumped\)|\s+\(|\s*$|:)"
            ),
            "Caught signal 11",
            "SIGSEGV received",
            "Signal: Segmentation fault",
            (
                r"(?:process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) )?"
                r"exited on signal (?:11|4|8)\b"
            ),
            r"exitcode\s*: -(?:11|4|8)\b",
            r"exits with return code = -(?:11|4|8)\b",
            r"Signal (?:11|4) \(SIG\w+\)",
            "segfault at [0-9a-f]+",
        ),
        needles=(
            "egmentation fault",
            "SIGSEGV",
            "egfault",
            "Bus error",
            "Illegal instruction",
            "SIGILL",
            "SIGBUS",
            "Fatal Python error",
            "exitcode",
            "return code",
            "signal 11",
            "core dumped",
            "Floating point exception",
            "SIGFPE",
            "exited on signal",
            "Signal 11",
            "Signal 4",
        ),
        fixes=(
            (
                "`hpcrun logs --err JOB` shows the stack, or will with `env: "
                '{PYTHONFAULTHANDLER: "1"}`'
            ),
            "use extensions built for this torch",
        ),
        verdict="fix",
        message="Segmentation fault",
        example="Fatal Python error: Segmentation fault",
        unlike="the fault handler is on; errors: 0",
        source="https://docs.python.org/3/library/faulthandler.html",
    ),
    FailureRule(
        id="bus_exit",
        cls="shm",
        kind=WEAK,
        title="a rank got SIGBUS: /dev/shm is full, or a mapped file disappeared",
        patterns=(
            r"exitcode\s*: -7\b",
            r"exits with return code = -7\b",
            r"Signal 7 \(SIGBUS\)",
            r"exited on signal 7\b",
            r"^(?:Fatal Python error: )?Bus error(?: \(core dumped\)|\s+\(|\s*$|:)",
            r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)[\d,\-]*: Bus error",
        ),
        needles=("exitcode", "return code", "Bus error", "Signal 7", "exited on signal"),
        fixes=("enlarge /dev/shm", "reduce the number of data loader workers"),
        example="  exitcode  : -7 (pid: 4242)",
        unlike="  exitcode  : -6 (pid: 4242)",
        source="signal(7)",
    ),
    FailureRule(
        id="abort",
        cls="other",
        kind=SYMPTOM,
        title="native code aborted (SIGABRT); see the message above it",
        patterns=(
            "terminate called after throwing",
            r"^(?:\S+: line \d+: )?\s*(?:\d+ )?Aborted(?:\s|$)",
            r"^Signal: Aborted \(6\)",
            r"Signal 6 \(SIGABRT\)",
            r"exitcode\s*: -6\b",
            r"exits with return code = -6\b",
        ),
        needles=(
            "terminate called",
            "Aborted",
            "SIGABRT",
            "what():",
            "Signal 6",
            "exitcode",
            "return code",
        ),
        example="terminate called after throwing an instance of 'c10::DistBackendError'",
        unlike="terminate called without an active exception",
        source="libstdc++",
    ),
    FailureRule(
        id="no_file",
        cls="missing_file",
        kind=ERROR,
        title="no such file, or no permission to read it: {path}",
        patterns=(
            (
                r"^(?:\S+\.)?(?:FileNotFoundError|NotADirectoryError|PermissionError"
                r"|IsADirectoryError|NotFoundError)\b(?:.*: '?"
                r"""(?P<path>/?[\w.~-]+/[^'\"]*?)'?$)?"""
            ),
            (
                "^(?:OSError|IOError|RuntimeError|ValueError|AssertionError"
                "|Exception): .*(?:No such file or directory|Permission denied"
                "|does not exist)"
            ),
        ),
        needles=(
            "FileNotFoundError",
            "NotADirectoryError",
            "PermissionError",
            "IsADirectoryError",
            "No such file",
            "does not exist",
            "NotFoundError",
            "ermission denied",
            "Errno 13",
        ),
        fixes=("relative paths start at the job's directory; the path must exist on the nodes",),
        message="FileNotFoundError: [Errno 2] No such file or directory",
        example="FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
        unlike="except FileNotFoundError:",
        source="CPython",
    ),
    FailureRule(
        id="shell_no_file",
        cls="missing_file",
        kind=SYMPTOM,
        title="a file used by the script does not exist on the node: {path}",
        patterns=(
            (
                r"^(?:\S*(?:bash|sh|slurm_script|\.sh|\.sbatch|\.slurm|cd|cat|cp|ls|tar"
                r"|source|mkdir|srun|python\d?|sbatch|torchrun|apptainer"
                r"""|singularity)): .*?(?:['\u2018\"]?(?P<path>[^\s:'\u2019\"]+)['\u2019\"]?: """
                "(?:No such file or directory|Permission denied|Is a directory)"
                "|bad interpreter)"
            ),
            r"could not open image (?P<path2>\S+):",
            "(?<!slurmstepd: )error: .*: No such file or directory$",
        ),
        needles=(
            "No such file or directory",
            "Permission denied",
            "Is a directory",
            "cannot access",
            "open image",
            "bad interpreter",
        ),
        fixes=("check that the path exists on the nodes",),
        message="No such file or directory",
        example=(
            "/var/spool/slurmd/job4711/slurm_script: line 9: /opt/env/bin/activate: No such "
            "file or directory"
        ),
        unlike="warning: no such file, made now",
        source="bash",
    ),
    FailureRule(
        id="import_error",
        cls="import",
        kind=ERROR,
        title="Python could not import a module",
        patterns=(r"^(?:\S+\.)?(?:ImportError|ModuleNotFoundError)\b",),
        needles=("ImportError", "ModuleNotFoundError"),
        fixes=("`setup: {venv: ...}` or `{conda: ...}` with the packages that the script needs",),
        message="ImportError",
        example="ImportError: Using `load_in_8bit=True` requires Accelerate",
        unlike="except ImportError:",
        source="CPython",
    ),
    FailureRule(
        id="stopped",
        cls="code_error",
        kind=WEAK,
        title="the program stopped: {why}",
        patterns=(
            (
                r"^(?:(?:\{\x08)?Error (?=in .+ :|in rule \w+:$|using \w)"
                r"|Exception in thread \"main\"|forrtl: severe \(\d+\):|panic:"
                r"|thread '[^']*' (?=panicked at)|\S*lua(?:jit)?:|\s*what\(\):|make: \*\*\*"
                r"|(?:FATAL )?Flags parsing error:)\s*"
                r"(?P<why>\S.*)"
            ),
            r"(?P<why2>[^\s:]+: unbound variable)$",
            r"(?P<why3>\bCheck failed: .+)",
        ),
        needles=(
            "panic",
            "forrtl: ",
            "lua: ",
            "jit: ",
            "unbound variable",
            "what():",
            "Check failed: ",
            "rror in ",
            "rror using ",
            "Exception in thread",
            "make: ***",
            "Flags parsing",
        ),
        example="thread 'main' panicked at src/main.rs:3:5:",
        unlike="no thread panicked: 3 were stopped",
        source=("R, MATLAB, Snakemake, Java, Fortran, Go, Rust, Lua, C++, make, bash, glog, absl"),
    ),
    FailureRule(
        id="ranks_apart",
        cls="rendezvous",
        title="the ranks would train apart: {why}, and the job has {ranks} ranks",
        patterns=(
            r"^(?:RuntimeError: )?hpcrun: (?P<why>.+?), and the job has (?P<ranks>\d+) ranks: each "
            r"would train by itself",
        ),
        needles=("each would train by itself",),
        fixes=(
            "let the script join the job's ranks: init_process_group(), or Trainer(devices=..., "
            'num_nodes=...) of Lightning, in Hydra "trainer.devices={ranks_per_node}"',
            "launcher: srun, if it reads its rank from SLURM_PROCID",
            "--gpus-per-node 1, if it is written for one GPU",
        ),
        verdict="fix",
        example="RuntimeError: hpcrun: the process group has 1 rank, and the job has 4 ranks: each "
        "would train by itself, and write over the others' checkpoints.",
        unlike="RuntimeError: hpcrun: the process group has 1 rank",
        source="hpcrun/jobside/rank_hook.py",
    ),
    FailureRule(
        id="hydra_target",
        cls="other",
        title="Hydra could not create {why}",
        kind=SYMPTOM,
        patterns=(
            r"^(?:hydra\.errors\.)?InstantiationException: "
            r"Error in call to target '(?P<why>[^']+)'",
        ),
        needles=("InstantiationException",),
        verdict="fix",
        example="hydra.errors.InstantiationException: Error in call to target 'model.Net':",
        unlike="except InstantiationException:",
        source="hydra/_internal/instantiate/_instantiate2.py",
    ),
    FailureRule(
        id="hpcrun_error",
        cls="other",
        title="hpcrun ended the job: {why}",
        patterns=("^hpcrun: error: (?P<why>.+)",),
        needles=("hpcrun: error:",),
        verdict="fix",
        example="hpcrun: error: a command of the setup failed with code 1",
        unlike="hpcrun: attempt 0 begins on n1",
        source="templates/harness.sh",
    ),
]
