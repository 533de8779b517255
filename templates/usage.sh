#!/bin/bash
# Tells how busy a node of a job is, each time a line comes in; `hpcrun top` runs it in a step of
# the job's own, on every node. It ends when its input ends, or when nobody has asked for a minute:
# so nothing stays behind, however top has ended. An end by a signal is no failure of the step:
# sacct shows the worst exit code of a job's steps as the job's DerivedExitCode.
trap 'exit 0' TERM INT HUP PIPE
# Where the job's memory or time gets short, this goes first (proc(5), oom_score_adj), and last.
{ echo 1000 >/proc/self/oom_score_adj; renice -n 19 -p $$; } >/dev/null 2>&1 || :
node=${SLURMD_NODENAME:-$HOSTNAME}
# Where the job has a control group, it tells of the job alone; else the kernel does, of the node.
group2='' group_cpu='' group_memory=''
while IFS=: read -r _ kinds path; do
    [[ $path == */job_"$SLURM_JOB_ID"* ]] || continue
    path=${path%%/job_"$SLURM_JOB_ID"*}/job_$SLURM_JOB_ID
    case ,$kinds, in
    ,,) group2=/sys/fs/cgroup$path ;;
    *,cpuacct,*) group_cpu=/sys/fs/cgroup/$kinds$path ;;
    *,memory,*) group_memory=/sys/fs/cgroup/$kinds$path ;;
    esac
done 2>/dev/null </proc/self/cgroup

say() { printf 'hpcrun-top %s %s\n' "$node" "$*"; }

# Read the file $2 into the variable $1; fail where it is not there.
get() { IFS= read -r "${1?}" 2>/dev/null <"$2"; } 2>/dev/null

# Print the value of the key $2 in the file $1 of "key value" lines.
value() {
    local key number
    while read -r key number _; do
        [[ $key != "$2" ]] || { REPLY=$number; return 0; }
    done <"$1"
    return 1
} 2>/dev/null

cpu() {
    local line count=0 busy
    if value "$group2/cpu.stat" usage_usec; then
        say "cpu job $((REPLY * 1000)) ${SLURM_CPUS_ON_NODE:-0}"
    elif get busy "$group_cpu/cpuacct.usage"; then
        say "cpu job $busy ${SLURM_CPUS_ON_NODE:-0}"
    else
        while read -r line; do
            [[ $line == cpu* ]] || break
            [[ $line != "cpu "* ]] || busy=${line#cpu }
            count=$((count + 1))
        done </proc/stat
        say "stat $((count - 1)) $busy"
    fi
}

memory() {
    local used limit idle=0 total
    value /proc/meminfo MemTotal: && total=$((REPLY * 1024))
    # What a job has read of files stays in memory until somebody needs it: not the job's use.
    if get used "$group2/memory.current" && get limit "$group2/memory.max"; then
        value "$group2/memory.stat" inactive_file && idle=$REPLY
    elif get used "$group_memory/memory.usage_in_bytes" &&
        get limit "$group_memory/memory.limit_in_bytes"; then
        value "$group_memory/memory.stat" total_inactive_file && idle=$REPLY
    else
        value /proc/meminfo MemAvailable: && say "memory node $((total - REPLY * 1024)) $total"
        return
    fi
    # Without a limit the kernel says "max", or a number beyond all memory.
    if [[ $limit == max ]] || ((${#limit} > 18 || limit > total)); then limit=$total; fi
    say "memory job $((used - idle)) $limit"
}

gpus() {
    local line card busy used size number=0
    if command -v nvidia-smi >/dev/null; then
        say "visible ${CUDA_VISIBLE_DEVICES:-}"
        while IFS= read -r line; do say "gpu $line"; done < <(timeout -k 2 20 nvidia-smi \
            --query-gpu=index,uuid,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu \
            --format=csv,noheader,nounits </dev/null 2>/dev/null)
        return
    fi
    # AMD's driver tells by files (kernel documentation, gpu/amdgpu).
    for card in /sys/class/drm/card*/device/gpu_busy_percent; do
        get busy "$card" || continue
        get used "${card%/*}/mem_info_vram_used" || used=''
        get size "${card%/*}/mem_info_vram_total" || size=''
        [[ $number -gt 0 ]] || say "visible ${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:-}}"
        say "amd $number $busy ${used:--} ${size:--}"
        number=$((number + 1))
    done
}

# SECONDS would do for the lease, but a use is a difference over time: that wants a fine clock.
while IFS= read -r -t 60 _; do
    # A node that was slow answers once for all that was asked meanwhile.
    while read -r -t 0 && read -r; do :; done
    read -r now _ </proc/uptime
    say "begin $now"
    cpu
    memory
    gpus
    say end
done
exit 0
