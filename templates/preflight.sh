#!/bin/bash
# Checks whether a node is fit for the job, before its ranks start. The harness sources this on each
# node. It needs bash 4.2.
#
#   bash preflight.sh bad WHY    record that this node is bad
#   bash preflight.sh warn WHAT  report and record a warning about it
#   bash preflight.sh measure PYTHON   compare this node's speed with the others'; node.sh calls it
#                                with the job's PYTHON (preflight: full)
#
# Only a certain defect ends the attempt: a GPU that is missing, lost, or that the driver itself wants
# to reset; a driver that twice does not answer; a fabric that is down here and up on the first node; a
# full disk. Other anomalies are warnings, since the job may well run: GPU memory in use (perhaps by the
# job's own server), earlier ECC errors, a slow port, a wrong clock.
#
# attempts/N/warnings/NODE has a line for each warning, which `hpcrun status` shows.
# attempts/N/bad/NODE has one line with the reason; HPCRUN_CACHE_DIR/bad-nodes/NODE excludes the node
# from other runs of this user for a day.
# shellcheck disable=SC2154 # $host is the harness's
set -u

# preflight BATCH: check this node; BATCH is a descriptor of the batch script's log, which also gets
# warnings and errors. Succeeds if the ranks may start.
preflight() {
    local why line
    [ -n "${HPCRUN_PREFLIGHT-}" ] || return 0
    if lacks_ports ''; then
        tell "$(not_fit "no InfiniBand or RoCE port is up here, and the first node has $HPCRUN_FIRST_NODE")" "$1"
        return 1
    fi
    wants_gpus || return 0
    while IFS= read -r line; do
        why=${line#bad: }
        if [ "$why" != "$line" ]; then
            tell "$(not_fit "$why")" "$1"
            return 1
        fi
        case $line in
        'gpus: '*) # for check_gpus and local.sh, which would ask again
            HPCRUN_GPUS=${line#gpus: }
            export HPCRUN_GPUS=${HPCRUN_GPUS//;/$'\n'}
            ;;
        *)
            tell "$(warn "$line")" "$1"
            ;;
        esac
    done < <(look_at_gpus 60)
}

# wants_gpus: succeed if the task needs NVIDIA's GPUs, or AMD's by ROCm's names of CUDA.
wants_gpus() {
    [ "${HPCRUN_GPUS_PER_TASK:-${HPCRUN_GPUS_PER_NODE:-0}}" -gt 0 ] && [ "${HPCRUN_DEVICE-}" = cuda ]
}

# examine_node: after a rank has failed, check whether its node's GPUs are the cause; once per node.
# Hardware errors of CUDA end the process, and the driver may call the GPU healthy again afterwards
# (cudaErrorECCUncorrectable and cudaErrorNvlinkUncorrectable in the CUDA runtime's list of errors).
examine_node() {
    local line
    [ -n "${HPCRUN_PREFLIGHT-}" ] && [ "${HPCRUN_DEVICE-}" = cuda ] || return 0
    mkdir -- "$attempt_dir/examined-$host" 2>/dev/null || return 0
    line=$(tail -c 65536 -- "$HPCRUN_RUN_DIR/logs/$HPCRUN_ATTEMPT/rank-${RANK-}.log" 2>/dev/null |
        grep -aoE -m 1 'uncorrectable (ECC|NVLink) error')
    [ -n "$line" ] || line=$(look_at_gpus 20 | sed -n '/^bad: /{s///p;q;}')
    [ -z "$line" ] || not_fit "$line"
}

# warn WHAT
warn() {
    local folder=$HPCRUN_RUN_DIR/attempts/$HPCRUN_ATTEMPT/warnings
    printf 'hpcrun: warning: %s: %s\n' "$host" "$1"
    [[ ! $host =~ ^[A-Za-z0-9._-]+$ ]] || (
        umask go-w
        mkdir -p -- "$folder" && printf '%s\n' "${1//[[:cntrl:]]/ }" >>"$folder/$host"
    )
}

# not_fit WHY: report and record that this node is bad.
not_fit() {
    printf '%s\n' "hpcrun: error: $host is not fit for this job: $1"
    bad_node "$1"
}

# tell TEXT BATCH: print to this node's log and the batch script's.
tell() {
    printf '%s\n' "$1"
    printf '%s\n' "$1" >&"$2"
}

# bad_node WHY
bad_node() {
    local why=${1//[[:cntrl:]]/ } name=${SLURMD_NODENAME:-$(uname -n)} cluster
    local folder=$HPCRUN_RUN_DIR/attempts/$HPCRUN_ATTEMPT/bad
    [[ -n ${HPCRUN_PREFLIGHT-} && $name =~ ^[A-Za-z0-9._-]+$ ]] || return 0
    (
        umask go-w
        mkdir -p -- "$folder" && printf '%s\n' "$why" >"$folder/.$name.part" &&
            mv -f -- "$folder/.$name.part" "$folder/$name"
        [ -n "${SLURM_JOB_ID-}" ] && [ -n "${HPCRUN_CACHE_DIR-}" ] || exit 0
        folder=$HPCRUN_CACHE_DIR/bad-nodes
        # Copied from the plan, which is already JSON.
        cluster=$(sed -n '/^ "cluster": /{s///;s/,$//p;q}' "$HPCRUN_RUN_DIR/plan.json" 2>/dev/null)
        mkdir -p -- "$folder" && printf '%s\n' "{\"node\": \"$name\", \"why\": $(json_text "$why"),\
 \"at\": $(date +%s), \"run_id\": \"${HPCRUN_RUN_ID:-${HPCRUN_RUN_DIR##*/}}\", \"user\": \"$(id -un)\",\
 \"cluster\": ${cluster:-null}}" >"$folder/.$name.part" &&
            mv -f -- "$folder/.$name.part" "$folder/$name"
    )
}

# ---- GPUs --------------------------------------------------------------------------------------

# The fields that are queried for each GPU. A driver rejects the whole query if it does not know a
# field; the query is then repeated without it. (nvidia-smi --help-query-gpu)
gpu_fields=(compute_cap name index pci.bus_id mig.mode.current memory.total memory.used
    ecc.errors.uncorrected.volatile.total remapped_rows.failure remapped_rows.pending
    retired_pages.pending gpu_recovery_action)

# look_at_gpus SECONDS: print "bad: WHY", or warnings, and "gpus: " with the values for check_gpus.
# A driver that twice does not answer in time is broken; once, it may be busy: without
# nvidia-persistenced eight GPUs take nearly half a minute on an idle node.
look_at_gpus() {
    local wanted=${HPCRUN_GPUS_PER_TASK:-${HPCRUN_GPUS_PER_NODE:-0}} answer known='' code pipe late=''
    local fields=("${gpu_fields[@]}")
    wants_gpus || return 0
    # Slurm allocated none, which check_allocation reports.
    [ "${CUDA_VISIBLE_DEVICES-}" != NoDevFiles ] || return 0
    if ! command -v nvidia-smi >/dev/null; then
        look_at_amd '' "$wanted"
        return 0
    fi
    while :; do
        # Not `timeout`: it would wait for a process that hangs in the driver and cannot be killed.
        exec {pipe}< <(
            nvidia-smi --query-gpu="$(IFS=, && printf '%s' "${fields[*]}")" \
                --format=csv,noheader,nounits ${CUDA_VISIBLE_DEVICES:+"--id=$CUDA_VISIBLE_DEVICES"} 2>&1
            printf '\n%s' $?
        )
        IFS= read -d '' -rt "$1" answer <&"$pipe"
        code=$?
        exec {pipe}<&-
        if [ "$code" -gt 128 ] && [ -n "$late" ]; then
            printf 'bad: the GPU driver does not answer: nvidia-smi hung for %s s, twice\n' "$1"
            return 1
        elif [ "$code" -gt 128 ]; then
            late=1
            printf 'the GPU driver is slow: nvidia-smi had no answer after %s s\n' "$1"
            continue
        fi
        code=${answer##*$'\n'} answer=${answer%$'\n'*}
        answer=${answer%$'\n'}
        [[ $code -eq 2 && $answer =~ Field\ \"([a-z_.]+)\"\ is\ not\ a\ valid\ field ]] || break
        # The field must have been in the query, or the loop would not end.
        known=" ${fields[*]} "
        [[ $known == *" ${BASH_REMATCH[1]} "* ]] || break
        read -ra fields <<<"${known/ ${BASH_REMATCH[1]} / }"
    done
    if are_healthy "$wanted" "$code" "$answer" "${fields[@]}"; then
        printf 'gpus: %s\n' "$(names_of "$answer" "${fields[@]}")"
    else
        judge_gpus "$wanted" "$code" "$answer" "${fields[@]}"
    fi
}

# What a healthy GPU has in each field that tells its state; [N/A] and the like if its driver does
# not know.
declare -A healthy_state=(
    [mig.mode.current]=Disabled [memory.used]='[0-9]{1,3}' [ecc.errors.uncorrected.volatile.total]=0
    [remapped_rows.failure]=No [remapped_rows.pending]=No [retired_pages.pending]=No
    [gpu_recovery_action]=None
)

# are_healthy WANTED CODE ANSWER FIELD...: succeed if nothing in nvidia-smi's output and the kernel's
# log needs a judgement, as on almost all nodes.
are_healthy() {
    local wanted=$1 code=$2 answer=$3 field pattern='' rows=() row
    shift 3
    mapfile -t rows <<<"$answer"
    [ "$code" -eq 0 ] && [ "${#rows[@]}" -ge "$wanted" ] || return 1
    for field; do
        pattern+="${pattern:+, }(${healthy_state[$field]-[^,]*}${healthy_state[$field]+|\[[^],]*\]|N/A|})"
    done
    for row in "${rows[@]}"; do
        [[ $row =~ ^$pattern$ ]] || return 1
    done
    [[ $(kernel_lines) != *Xid* ]]
}

# names_of ANSWER FIELD...: print the compute capability and name of each GPU, without a capability
# if the driver does not know it.
names_of() {
    local answer=$1 row cells=() kept='' at
    shift
    [ "$1" = compute_cap ] && at=1 || at=0
    while IFS= read -r row; do
        IFS=, read -ra cells <<<"$row"
        [ "$at" -eq 1 ] || cells=('' "${cells[@]/#/ }")
        kept+="${kept:+;}${cells[0]},${cells[1]}"
    done <<<"$answer"
    printf '%s\n' "$kept"
}

# kernel_lines: print the driver's lines in the kernel's log, if it is readable.
kernel_lines() { ! command -v dmesg >/dev/null || dmesg 2>/dev/null | grep -F NVRM:; }

# judge_gpus WANTED CODE ANSWER FIELD...: print what hpcrun/jobside/gpus.py finds in the facts.
judge_gpus() {
    local wanted=$1 code=$2 answer=$3 found listed timed_out=''
    shift 3
    load_jobside
    listed=$(timeout 60 nvidia-smi --list-gpus 2>/dev/null)
    [ $? -ne 124 ] || timed_out=1
    if ! found=$(jobside judge_gpus < <(
        printf '%s\n' "wanted=$wanted" "code=$code" "fields=$*" "visible=${CUDA_VISIBLE_DEVICES-}" \
            "in_image=${HPCRUN_IN_IMAGE-}" "list_timed_out=$timed_out"
        printf 'answer=%s\n' "${answer//$'\n'/$'\n'answer=}"
        printf 'listed=%s\n' "${listed//$'\n'/$'\n'listed=}"
        kernel_lines | sed 's/^/kernel=/'
    )); then
        found="its GPUs are not judged, because no Python 3.6 or newer answers: ${answer##*$'\n'}"
    fi
    [ -z "$found" ] || printf '%s\n' "$found"
    [[ $'\n'$found != *$'\nbad: '* ]]
}

# load_jobside: define jobside, and find its Python.
load_jobside() {
    # shellcheck disable=SC1091 # the file is beside this one
    . "$HPCRUN_RUN_DIR/jobside.sh"
    [ -n "${HPCRUN_JOBSIDE_PYTHON-}" ] || HPCRUN_JOBSIDE_PYTHON=$(find_python)
}

# look_at_amd ROOT WANTED: judge by the kernel's files; rocm-smi would start a Python for less.
look_at_amd() {
    local node id number=0
    [ -d "$1/sys/class/kfd/kfd/topology/nodes" ] || return 0
    for node in "$1"/sys/class/kfd/kfd/topology/nodes/*; do
        # CPUs have 0; that of a GPU that is not the job's is unreadable.
        id=$(cat -- "$node/gpu_id" 2>/dev/null)
        [[ ! $id =~ ^[1-9][0-9]*$ ]] || number=$((number + 1))
    done
    [ "$number" -ge "$2" ] || printf 'bad: the kernel shows %s of the %s AMD GPUs\n' "$number" "$2"
}

# ---- The node ----------------------------------------------------------------------------------

# ports ROOT: print the active InfiniBand and RoCE ports on one line, as in "8 InfiniBand 400 Gb/sec
# (4X NDR)".
ports() {
    local port key state layer rate line=''
    local -A count=()
    for port in "$1"/sys/class/infiniband/*/ports/*; do
        state='' layer='' rate=''
        { read -r state <"$port/state"; read -r layer <"$port/link_layer"; read -r rate <"$port/rate"; } 2>/dev/null
        [[ $state == *ACTIVE* ]] || continue
        key="$layer $rate"
        count[$key]=$((${count[$key]-0} + 1))
    done
    [ "${#count[@]}" -gt 0 ] || return 0
    while IFS= read -r key; do
        line+="${line:+, }${count[$key]} $key"
    done < <(printf '%s\n' "${!count[@]}" | LC_ALL=C sort)
    printf '%s\n' "$line"
}

# lacks_ports ROOT: succeed if NCCL shall use InfiniBand or RoCE, and no port is up here, but on the
# first node (HPCRUN_FIRST_NODE).
lacks_ports() {
    [ "${NCCL_NET-}" = IB ] && [ -n "${HPCRUN_FIRST_NODE-}" ] && [ "${HPCRUN_NODE_RANK:-0}" -gt 0 ] &&
        [ -z "$(ports "$1")" ]
}

# check_shm ROOT: print a warning if little shared memory is free.
check_shm() {
    local free
    free=$(df --block-size=1M --output=avail -- "$1/dev/shm" 2>/dev/null)
    free=${free##*[!0-9]}
    [[ ! $free =~ ^[0-9]+$ || $free -ge 256 ]] ||
        printf '/dev/shm has %s MB free, which data loaders and NCCL share\n' "$free"
}

# check_beside BATCH: checks that run in parallel to the ranks, since they result in warnings only.
# Runs in a process of its own, which may be killed at any time: its children hold neither BATCH, for
# whose end srun waits, nor the pipe of the warnings.
check_beside() {
    local batch=$1 line
    [ -n "${HPCRUN_PREFLIGHT-}" ] || return 0
    exec > >(while IFS= read -r line; do tell "$(warn "$line")" "$batch"; done)
    exec {batch}>&-
    check_shm ''
    [ "${HPCRUN_NODES:-1}" -gt 1 ] && [ -n "${MASTER_ADDR-}" ] || exit 0
    sleep 5 >&- # the launch goes first, and its imports
    compare_node ''
}

# compare_node ROOT: print warnings about this node's clock and ports, compared with those of the
# other nodes. Each node connects to the first one, where Python compares them
# (hpcrun/jobside/nodes.py), and which becomes that Python.
compare_node() {
    local server line tries=0 port=$((MASTER_PORT + 2))
    if [ "${HPCRUN_NODE_RANK:-0}" -eq 0 ]; then
        load_jobside && exec "$HPCRUN_JOBSIDE_PYTHON" -I -S "$HPCRUN_RUN_DIR/jobside.pyz" compare_nodes \
            "$MASTER_ADDR" "$port" "$HPCRUN_NODES" < <(ports "$1")
        return
    fi
    until { exec {server}<>"/dev/tcp/$MASTER_ADDR/$port"; } 2>/dev/null; do
        [ $((tries += 1)) -le 60 ] || return 0
        sleep 0.5 >&-
    done
    IFS= read -rt 60 line <&"$server" && [ "$line" = 'hpcrun: ports?' ] || return 0
    printf '%s\n' "$(ports "$1")" >&"$server"
    while IFS= read -rt 60 line <&"$server"; do
        if [ "$line" = 'hpcrun: time?' ]; then date +%s%3N >&"$server"; else printf '%s\n' "$line"; fi
    done
}

# ---- Speed ------------------------------------------------------------------------------------

# measure PYTHON: succeed if the ranks may start. A measurement that fails is a warning.
measure() {
    local line code began=$SECONDS bad=''
    while IFS= read -r line; do
        case $line in
        'bad: '*) bad=${line#bad: } ;;
        'code: '*) code=${line#code: } ;;
        'warning: '*) printf 'hpcrun: warning: %s\n' "${line#warning: }" ;;
        *' TFLOP/s' | *' GB/s') printf 'hpcrun: preflight: %s\n' "$line" ;;
        *) printf '%s\n' "$line" ;; # a library's
        esac
    done < <(
        timeout -k 5 120 "$1" "$HPCRUN_RUN_DIR/preflight.py" 2>&1
        printf 'code: %s\n' $?
    )
    if [ -n "$bad" ]; then
        not_fit "$bad"
        return 1
    elif [ "$code" -eq 3 ]; then
        sleep 60 # the bad node ends the step, and what it records is what counts
        return 1
    elif [ "$code" -eq 124 ]; then
        warn "its speed could not be measured in 120 s"
    elif [ "$code" -ne 0 ]; then
        warn "its speed could not be measured: see node-${HPCRUN_NODE_RANK:-0}.log"
    fi
    printf 'hpcrun: preflight: it took %s s\n' $((SECONDS - began))
}

# ------------------------------------------------------------------------------------------------

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    host=${SLURMD_NODENAME:-$(uname -n)}
    # shellcheck disable=SC1091 # the file is beside this one
    . "${BASH_SOURCE[0]%/*}/records.sh" || exit 1
    case ${1-} in
    bad) bad_node "$2" ;;
    warn) warn "$2" ;;
    measure) measure "$2" ;;
    esac
fi
