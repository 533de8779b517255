#!/bin/bash
# Measures a job's use of this node: CPUs, memory and GPUs.
#
#   usage.sh                print it each time a line arrives. `hpcrun top` runs this in a step of
#                           the job, on every node. It ends with its input, or if no line has
#                           arrived for a minute: so it cannot outlive top.
#   usage.sh record FILE    append it to FILE until the input ends, as harness.sh does in each job
#
# A function that runs at each sample starts no process, so it sets variables instead of printing:
# value; cpu_of, cpus, cpu_time and cpu_ticks; memory_of, memory_used and memory_total; and what
# `record` declares.
#
# Being terminated by a signal is no failure of the step: sacct shows the worst exit code of a job's
# steps as the job's DerivedExitCode.
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

# find_value FILE KEY: set value to that of a key in a file of "key value" lines; fail if it is
# missing. No process is started, here and below: this runs all the time.
find_value() {
    local key
    value=''
    while read -r key value _; do
        [[ $key != "$2" ]] || return 0
    done <"$1"
    return 1
} 2>/dev/null

# measure_cpu: set cpu_of, to "job" with cpu_time in ns, or to "node" with cpu_ticks, the line of
# /proc/stat; and cpus, their number.
measure_cpu() {
    local line key
    cpu_of=job cpus=${SLURM_CPUS_ON_NODE:-0} cpu_time='' cpu_ticks=''
    if read -r key cpu_time <"$group2/cpu.stat" && [[ $key == usage_usec ]]; then
        cpu_time=$((cpu_time * 1000))
    elif ! read -r cpu_time <"$group_cpu/cpuacct.usage"; then
        cpu_of=node cpus=-1
        while read -r line; do
            [[ $line == cpu* ]] || break
            [[ $line != "cpu "* ]] || cpu_ticks=${line#cpu }
            cpus=$((cpus + 1))
        done </proc/stat
    fi
} 2>/dev/null

# measure_memory: set memory_of, memory_used and memory_total, in bytes; fail if they are unknown.
measure_memory() {
    local limit value
    memory_of=job
    find_value /proc/meminfo MemTotal: || return 1
    memory_total=$((value * 1024))
    # The page cache of files that the job has read is released on demand: it is not the job's use.
    if read -r memory_used <"$group2/memory.current" && read -r limit <"$group2/memory.max"; then
        find_value "$group2/memory.stat" inactive_file
    elif read -r memory_used <"$group_memory/memory.usage_in_bytes" &&
        read -r limit <"$group_memory/memory.limit_in_bytes"; then
        find_value "$group_memory/memory.stat" total_inactive_file
    else
        find_value /proc/meminfo MemAvailable: || return 1
        memory_of=node memory_used=$((memory_total - value * 1024))
        return 0
    fi
    memory_used=$((memory_used - ${value:-0}))
    # Without a limit the kernel prints "max", or a number larger than any memory.
    [[ $limit == max ]] || ((${#limit} > 18 || limit > memory_total)) || memory_total=$limit
} 2>/dev/null

print_host() {
    # No process may start between the clock and the counter.
    measure_cpu
    if [[ $cpu_of == job ]]; then say "cpu job $cpu_time $cpus"; else say "stat $cpus $cpu_ticks"; fi
    ! measure_memory || say "memory $memory_of $memory_used $memory_total"
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

# ---- The record of a run -----------------------------------------------------------------------

# The first line of the file names the node and what is measured; hpcrun/runs/usage.py reads it.
# Each other line has, at one time:
#
#   EPOCH_S UPTIME_S CPU_NS MEMORY MEMORY_PEAK GPU_SAMPLES [UTIL_SUM MEM MEM_PEAK POWER_SUM]...
#
# Sums, over GPU_SAMPLES samples, in percent and W: the mean between any two lines, and of the
# attempt, is their difference. Memory is in bytes, of GPUs in MiB. Unknown values are "-".

# Seconds between samples, how many of them have a line each, and afterwards the samples per line:
# 400 kB a day with eight GPUs.
sample_s=${HPCRUN_SAMPLE_S:-15} single_lines=8 samples_per_line=4

# add_gpu NUMBER UTIL MEMORY POWER: add a sample of a GPU; values that are no numbers are unknown.
add_gpu() {
    local utilization=${2%.*} memory=${3%.*} power=${4%.*}
    # A GPU that appears later has no place in the lines.
    [[ -n ${gpu_memory[$1]+set} || -z $has_header ]] || return 0
    [[ $1 -ne 0 ]] || gpu_samples=$((gpu_samples + 1))
    if [[ $utilization =~ ^[0-9]+$ ]]; then
        gpu_util[$1]=$((${gpu_util[$1]-0} + utilization))
    fi
    if [[ $power =~ ^[0-9]+$ ]]; then gpu_power[$1]=$((${gpu_power[$1]-0} + power)); fi
    gpu_memory[$1]=-
    if [[ $memory =~ ^[0-9]+$ ]]; then
        gpu_memory[$1]=$memory
        [[ $memory -le ${gpu_peak[$1]--1} ]] || gpu_peak[$1]=$memory
    fi
}

# start_nvidia: start nvidia-smi, which prints a line for each GPU now and after each pause. One
# process for the whole run: starting it takes up to a second of CPU time.
start_nvidia() {
    command -v nvidia-smi >/dev/null || return 0
    exec {nvidia}< <(exec nvidia-smi --query-gpu=uuid,memory.total,utilization.gpu,memory.used,power.draw \
        --format=csv,noheader,nounits --loop="$sample_s" \
        ${CUDA_VISIBLE_DEVICES:+"--id=$CUDA_VISIBLE_DEVICES"} </dev/null 2>/dev/null)
    nvidia_pid=$!
    trap 'kill "$nvidia_pid" 2>/dev/null' EXIT
}

# measure_nvidia: add the lines that nvidia-smi has printed since the last sample.
measure_nvidia() {
    local uuid total utilization memory power number
    while [[ -n $nvidia ]] && read -r -t 0 -u "$nvidia"; do
        if ! IFS=, read -r -t 5 -u "$nvidia" uuid total utilization memory power; then
            exec {nvidia}<&-
            nvidia='' # it has ended
        elif [[ $uuid == GPU-* || $uuid == MIG-* ]]; then
            number=${gpu_number[$uuid]-${#gpu_number[@]}}
            gpu_number[$uuid]=$number
            add_gpu "$number" "${utilization# }" "${memory# }" "${power# }"
            [[ -n $has_header ]] || gpu_names[number]=nvidia:$uuid:${total//[!0-9]/}
        fi
    done
}

# measure_amd: add a sample of the job's GPUs by the files of AMD's driver (kernel documentation,
# gpu/amdgpu): rocm-smi would start a Python each time.
measure_amd() {
    local card folder busy used size power number=-1 shown=0 own=${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:-}}
    for card in /sys/class/drm/card*/device/gpu_busy_percent; do
        folder=${card%/*} used='' size='' power=''
        read -r busy <"$card" || continue
        number=$((number + 1))
        [[ -z $own || ,$own, == *,$number,* ]] || continue
        read -r used <"$folder/mem_info_vram_used"
        read -r size <"$folder/mem_info_vram_total"
        for power in "$folder"/hwmon/hwmon*/power1_{average,input}; do
            read -r power <"$power" && break
        done
        [[ ! $power =~ ^[0-9]+$ ]] || power=$((power / 1000000))
        add_gpu "$shown" "$busy" "${used:+$((used >> 20))}" "$power"
        [[ -n $has_header ]] || gpu_names[shown]=amd:$number:${size:+$((size >> 20))}
        shown=$((shown + 1))
    done
} 2>/dev/null

# append FILE: append a line about this moment, after the first line of the file.
append() {
    local line number ticks=()
    if [[ $cpu_of == node ]]; then
        read -ra ticks <<<"$cpu_ticks"
        # user nice system idle iowait irq softirq steal (proc(5)), in 1/100 s
        cpu_time=$(((ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]) * 10000000))
    fi
    if [[ -z $has_header ]]; then
        has_header=1
        line="hpcrun-usage 1 $node $sample_s $cpu_of $cpus ${memory_of:--} ${memory_total:--}"
        for number in "${!gpu_names[@]}"; do line+=" ${gpu_names[number]}"; done
        printf '%s\n' "$line"
    fi
    printf -v line '%(%s)T %s %s %s %s %s' -1 "$now" "$cpu_time" "${memory_used:--}" \
        "${memory_peak:--}" "$gpu_samples"
    for number in "${!gpu_names[@]}"; do
        line+=" ${gpu_util[number]--} ${gpu_memory[number]} ${gpu_peak[number]--} ${gpu_power[number]--}"
    done
    printf '%s\n' "$line"
} >>"$1"

# record FILE
record() {
    umask go-w
    local samples=0 nvidia='' has_header='' gpu_samples=0 now memory_peak=''
    local gpu_util=() gpu_memory=() gpu_peak=() gpu_power=() gpu_names=()
    local -A gpu_number=()
    trap '' INT HUP USR1 USR2 # meant for the training
    start_nvidia
    # nvidia-smi takes seconds for its first line; without it, the header would lack the GPUs.
    [[ -z $nvidia ]] || for _ in 1 2 3 4; do
        ! read -r -t 0 -u "$nvidia" || break
        IFS= read -r -t "$sample_s" _
        [[ $? -gt 128 ]] || return
    done
    while :; do
        samples=$((samples + 1))
        read -r now _ </proc/uptime
        measure_cpu
        memory_used='' memory_of=''
        measure_memory
        [[ ${memory_used:-0} -le ${memory_peak:-0} ]] || memory_peak=$memory_used
        if [[ -n $nvidia ]]; then measure_nvidia; elif [[ -z $nvidia_pid ]]; then measure_amd; fi
        [[ $samples -gt $single_lines && $((samples % samples_per_line)) -ne 0 ]] || append "$1"
        IFS= read -r -t "$sample_s" _
        [[ $? -gt 128 ]] || return
    done
}

if [[ ${1-} == record ]]; then
    nvidia_pid='' # for the trap, too
    record "$2" 2>/dev/null # on a full disk, say; the training is not disturbed
    exit 0
fi

# SECONDS would be precise enough for the lease, but rates need a fine clock.
while IFS= read -r -t 60 _; do
    # A slow node answers once for all requests that have queued up.
    while read -r -t 0 && read -r; do :; done
    read -r now _ </proc/uptime
    say "begin $now"
    print_host
    gpus
    say end
done
exit 0
