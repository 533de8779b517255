#!/bin/bash
# Prints a node's use by a job each time a line arrives; `hpcrun top` runs it in a step of the job,
# on every node. It ends with its input, or if no line has arrived for a minute: so it cannot
# outlive top. Being terminated by a signal is no failure of the step: sacct shows the worst exit
# code of a job's steps as the job's DerivedExitCode.
trap 'exit 0' TERM INT HUP PIPE
# If the job runs out of memory or CPU time, this process is killed first (proc(5), oom_score_adj),
# and scheduled last.
{ echo 1000 >/proc/self/oom_score_adj; renice -n 19 -p $$; } >/dev/null 2>&1 || :
node=${SLURMD_NODENAME:-$HOSTNAME}
# The job's control group counts only the job; without one, the kernel counts the node.
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

# Print the value of the key $2 in a file $1 of "key value" lines; fail if it is missing.
value() {
    local key number
    while read -r key number _; do
        [[ $key != "$2" ]] || { printf '%s\n' "$number"; return 0; }
    done <"$1"
    return 1
}

cpu() {
    local line count=0 key busy
    # No process may start between the clock and the counter.
    if read -r key busy <"$group2/cpu.stat" && [[ $key == usage_usec ]]; then
        say "cpu job $((busy * 1000)) ${SLURM_CPUS_ON_NODE:-0}"
    elif read -r busy <"$group_cpu/cpuacct.usage"; then
        say "cpu job $busy ${SLURM_CPUS_ON_NODE:-0}"
    else
        while read -r line; do
            [[ $line == cpu* ]] || break
            [[ $line != "cpu "* ]] || busy=${line#cpu }
            count=$((count + 1))
        done </proc/stat
        say "stat $((count - 1)) $busy"
    fi
} 2>/dev/null

memory() {
    local used limit idle total free
    total=$(($(value /proc/meminfo MemTotal:) * 1024))
    # The page cache of files that the job has read is released on demand: it is not the job's use.
    if read -r used <"$group2/memory.current" && read -r limit <"$group2/memory.max"; then
        idle=$(value "$group2/memory.stat" inactive_file)
    elif read -r used <"$group_memory/memory.usage_in_bytes" &&
        read -r limit <"$group_memory/memory.limit_in_bytes"; then
        idle=$(value "$group_memory/memory.stat" total_inactive_file)
    else
        free=$(value /proc/meminfo MemAvailable:) &&
            say "memory node $((total - free * 1024)) $total"
        return
    fi
    # Without a limit the kernel prints "max", or a number larger than any memory.
    if [[ $limit == max ]] || ((${#limit} > 18 || limit > total)); then limit=$total; fi
    say "memory job $((used - ${idle:-0})) $limit"
} 2>/dev/null

gpus() {
    local line card busy used size number=0
    if command -v nvidia-smi >/dev/null; then
        say "visible ${CUDA_VISIBLE_DEVICES:-}"
        while IFS= read -r line; do say "gpu $line"; done < <(timeout -k 2 20 nvidia-smi \
            --query-gpu=index,uuid,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu \
            --format=csv,noheader,nounits </dev/null 2>/dev/null)
        return
    fi
    # AMD's driver has files for it (kernel documentation, gpu/amdgpu).
    for card in /sys/class/drm/card*/device/gpu_busy_percent; do
        read -r busy <"$card" || continue
        used='' size=''
        read -r used <"${card%/*}/mem_info_vram_used"
        read -r size <"${card%/*}/mem_info_vram_total"
        [[ $number -gt 0 ]] || say "visible ${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:-}}"
        say "amd $number $busy ${used:--} ${size:--}"
        number=$((number + 1))
    done
} 2>/dev/null

# SECONDS would be precise enough for the lease, but rates need a fine clock.
while IFS= read -r -t 60 _; do
    # A slow node answers once for all requests that have queued up.
    while read -r -t 0 && read -r; do :; done
    read -r now _ </proc/uptime
    say "begin $now"
    cpu
    memory
    gpus
    say end
done
exit 0
