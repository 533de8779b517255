# Stacks of the ranks of this node in a stall (hpcrun/jobside/stall.py). `harness.sh stacks` sources
# this on each node.
#
# stacks/rank-R.txt are written once per stall: by py-spy if it may inspect the process; else by
# Python's faulthandler, which writes them on SIGABRT. The harness starts each rank with that signal
# ignored, so the process continues (see `rank`). The stacks contain no environment, arguments or
# values of variables. PyTorch's flight recorder is triggered to write its dumps, logs/flight-R,
# which hpcrun reads.
# shellcheck shell=bash disable=SC2154 # attempt_dir is the harness's

# stacks: write those of each rank on this node. Ranks of other attempts or runs have other logs.
stacks() {
    local guard log pipe folder logs=$HPCRUN_RUN_DIR/logs/$HPCRUN_ATTEMPT
    mkdir -p -- "$attempt_dir/stacks"
    for guard in $(guards rank); do
        log=$(readlink "/proc/$guard/fd/1")
        log=${log##*/}
        [[ ! $log =~ ^rank-[0-9]+\.log$ ]] || write_stack "$guard" "$logs/$log" &
    done
    # Opened for reading and writing, so that it does not block.
    read -r _ folder 2>/dev/null <"$attempt_dir/local/${SLURM_NODEID:-0}" || folder=''
    for pipe in "$folder"/flight-*.pipe; do
        [ ! -p "$pipe" ] || printf 'dump\n' 1<>"$pipe"
    done
    wait
}

# write_stack GUARD LOG: write stacks/rank-R.txt for the program that GUARD runs: its identity, its
# state in the kernel, the source of its stack; then the stack.
write_stack() {
    local guard=$1 log=$2 rank pid how='its program has ended' text=''
    rank=${log##*/rank-} rank=${rank%.log}
    pid=$(program_of "$guard")
    if [ -n "$pid" ]; then
        if text=$(by_py_spy "$pid"); then
            how="by py-spy"
        elif how=$text && text=$(by_faulthandler "$guard" "$pid" "$log"); then
            how="by faulthandler: $how" text=${text%%$'\n'Extension modules:*}
        else
            how="no Python stack: $how" text=''
        fi
    fi
    write_record "$attempt_dir/stacks/rank-$rank.txt" "\
rank $rank node ${SLURM_NODEID:-0} host $host pid ${pid:--}
$([ -z "$pid" ] || state_of "$pid")
$how

$text

$([ -z "$pid" ] || list_threads "$pid")"
}

# program_of GUARD: print its Python child process, else its first child.
program_of() {
    local pid='' first tries=0
    read -r pid _ <"/proc/$1/task/$1/children" # it ends without a newline, so read fails
    first=$pid
    while [ -n "$pid" ] && [ $((tries += 1)) -le 5 ]; do
        case $(readlink "/proc/$pid/exe") in
        */python* | */pypy*)
            first=$pid
            break
            ;;
        esac
        read -r pid _ <"/proc/$pid/task/$pid/children"
    done
    printf '%s\n' "$first"
} 2>/dev/null

# by_py_spy PID: use the job's own py-spy, or that of its Python environment, without stopping the
# process. The first line of its output has the arguments, which may contain a secret.
by_py_spy() {
    local word paths=$PATH tool answer
    while IFS= read -r -d $'\0' word; do
        [[ $word != PATH=* ]] || paths=${word#PATH=}:$paths
    done <"/proc/$1/environ"
    tool=$(PATH=$paths type -P py-spy) || { echo "there is no py-spy"; return 1; }
    if answer=$(timeout -k 2 20 "$tool" dump --nonblocking --pid "$1" 2>&1 </dev/null); then
        printf 'Python v%s\n' "${answer#*$'\n'Python v}"
        return 0
    fi
    answer=${answer##*$'\n'}
    [[ $answer != *ermission* ]] || answer="it may not look into the process\
$(read -r word </proc/sys/kernel/yama/ptrace_scope && echo ", kernel.yama.ptrace_scope is $word")"
    printf 'py-spy: %s\n' "$answer"
    return 1
} 2>/dev/null

# by_faulthandler GUARD PID LOG: only if the signal cannot terminate the process: Python handles it
# (PYTHONFAULTHANDLER), and it was ignored before, as in the guard.
by_faulthandler() {
    local before size=0 last='' tries=0
    has_signal "$1" SigIgn && has_signal "$2" SigCgt || return 1
    grep -qsz '^PYTHONFAULTHANDLER=.' "/proc/$2/environ" || return 1
    [ "/proc/$2/fd/2" -ef "$3" ] || return 1
    printf 'hpcrun: nothing has moved for long: Python writes its stacks, and goes on\n' >>"$3"
    before=$(stat -c %s -- "$3")
    kill -ABRT "$2" || return 1
    # Wait until output has appeared and ended.
    until [ "$size" -gt "$before" ] && [ "$size" = "$last" ] || [ $((tries += 1)) -gt 20 ]; do
        sleep 0.2
        last=$size size=$(stat -c %s -- "$3")
    done
    tail -c "+$((before + 1))" -- "$3" | head -c 100000
} 2>/dev/null

# has_signal PID SET: succeed if SIGABRT is in one of the process's sets of signals.
has_signal() {
    local name set
    while read -r name set; do
        [ "$name" != "$2:" ] || break
    done <"/proc/$1/status"
    [ -n "$set" ] && (((16#${set: -4} >> 5) & 1))
} 2>/dev/null

# state_of PID: print its state, and the kernel function in which it waits.
state_of() {
    local stat wchan
    read -r stat <"/proc/$1/stat" && stat=${stat##*) }
    read -r wchan <"/proc/$1/wchan" || wchan=${wchan:-0}
    printf '%s %s\n' "${stat%% *}" "$wchan"
} 2>/dev/null

# list_threads PID: print the threads and children of a process, grouped by the function in which
# they wait.
list_threads() {
    local task name
    for task in "/proc/$1"/task/* $(cat "/proc/$1/task/"*/children); do
        task=${task##*/}
        read -r name <"/proc/$task/comm" || read -r name <"/proc/$1/task/$task/comm" || continue
        printf '%s: %s\n' "$name" "$(state_of "$task")"
    done | sort | uniq -c
} 2>/dev/null
