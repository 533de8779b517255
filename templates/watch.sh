# Whether the run still moves on. The beat of the batch script sources this and calls `watch` each
# time; `harness.sh stacks` sources it on each node. It needs bash 4.2, find and tail.
#
# A run moves on when a log shows another step; until a log has shown one, when any rank writes
# anything. It has stalled when nothing has moved for HPCRUN_STALLED_AFTER seconds. Unset: for ten
# times the median pause between steps, twice the longest pause that ended (an evaluation, a
# checkpoint, an epoch's end) and ten minutes, whichever is most. Before the first step it gets half
# an hour: it compiles, loads, connects. A run that writes but shows no new step gets twice as long,
# and is never ended for it. A job that is suspended stops its beat, too: a look counts for two
# beats at most.
#
# attempts/N/stall.json is there while the run stalls. stacks/rank-R.txt are taken once for a stall:
# by py-spy where it may look into the process; else by Python's own faulthandler, which writes them
# when it gets SIGABRT. The harness starts each rank with that signal ignored, so the process goes on
# (see `rank`). The stacks come without environment, arguments or values of variables. PyTorch's
# flight recorder is asked for its dumps, logs/flight-R, which hpcrun reads. With "stalled" in
# HPCRUN_SURVIVE the attempt is then ended, and the marker attempts/N/stalled says why.
# shellcheck shell=bash disable=SC2154 # attempt_dir is the harness's

# What is kept between two looks. Times are in seconds of watch_clock, which stands while the job
# does: when the position in the logs moved last, and when anything was written; the last pauses
# that ended, and the longest. Of each log: its size, when that changed last, and how often it did.
watch_clock=0 watch_at='' watch_stalled='' watch_position='' watch_moved=0 watch_wrote=0
watch_pauses=() watch_longest=0
declare -A watch_size=() watch_changed=() watch_changes=()
# Seconds between two beats; who wants to know sooner is told sooner.
watch_beat=30
[ "${HPCRUN_STALLED_AFTER:-120}" -ge 120 ] || watch_beat=$((HPCRUN_STALLED_AFTER / 4))
[ $watch_beat -ge 5 ] || watch_beat=5
# Tests have less time.
watch_least=${HPCRUN_STALL_LEAST:-600} watch_start=${HPCRUN_STALL_START:-1800}

watch() {
    local now
    printf -v now '%(%s)T' -1
    watch_look "$now"
}

# watch_look NOW: look at the logs, and do what has to be done about them.
watch_look() {
    local now=$1 passed still silent limit position folder=$HPCRUN_RUN_DIR/logs/$HPCRUN_ATTEMPT
    passed=$((now - ${watch_at:-$now}))
    [ $passed -ge 0 ] || passed=0
    [ $passed -le $((2 * watch_beat)) ] || passed=$((2 * watch_beat))
    watch_at=$now watch_clock=$((watch_clock + passed))

    watch_sizes "$folder"
    [ "${#watch_size[@]}" -gt 0 ] || return 0 # no rank has begun
    if [ "$watch_wrote" -eq "$watch_clock" ]; then
        position=$(read_position "$folder")
        if [ -n "$position" ]; then
            [ "$position" = "$watch_position" ] || watch_advance "$position"
        elif [ -z "$watch_position" ]; then
            watch_moved=$watch_clock
        fi
    fi

    still=$((watch_clock - watch_moved)) silent=$((watch_clock - watch_wrote)) limit=$(watch_limit)
    if [ "$still" -lt "$limit" ]; then
        [ -z "$watch_stalled" ] || say "the run moves on"
        [ -z "$watch_stalled" ] || rm -f -- "$attempt_dir/stall.json"
        watch_stalled=''
    elif [ -n "$watch_stalled" ]; then
        # What other nodes wrote may take a minute to show on a network file system.
        [ $((watch_stalled += 1)) -gt 3 ] || report_stall $((now - still)) "$still" "$limit"
        [[ " ${HPCRUN_SURVIVE-} " != *" stalled "* ]] || [ "$silent" -lt "$limit" ] || end_stalled
    elif [ "$silent" -ge "$limit" ] || [ "$still" -ge $((2 * limit)) ]; then
        watch_stalled=1
        report_stall $((now - still)) "$still" "$limit"
        take_stacks
        report_stall $((now - still)) "$still" "$limit"
        say "no step for $still s: $attempt_dir/stall.json"
        watch_sizes "$folder" # faulthandler has written there
        watch_wrote=$((watch_clock - silent))
    fi
}

# watch_sizes FOLDER: note the sizes of the logs. Not their times, which are other clocks'.
watch_sizes() {
    local size name
    while read -r size name; do
        [ "${watch_size[$name]-}" != "$size" ] || continue
        watch_size[$name]=$size
        watch_changed[$name]=$watch_clock
        watch_changes[$name]=$((${watch_changes[$name]-0} + 1))
        watch_wrote=$watch_clock
    done < <(find "$1" -maxdepth 1 -regex ".*/$(who_writes)-[0-9]+\.log" -printf '%s %f\n' \
        2>/dev/null </dev/null)
}

# who_writes: whose logs are looked at: a bare command has no ranks that hpcrun knows of.
who_writes() { if [ -e "$attempt_dir/began" ]; then echo node; else echo rank; fi; }

# read_position FOLDER: how far the ends of the logs show that the run has come; nothing where they
# do not. Rank 0's log nearly always does; in Megatron's family it is the last rank's.
read_position() {
    local last=$((${#watch_size[@]} - 1)) who text
    who=$(who_writes)
    # The same one twice is no harm. bash reports a NUL.
    { text=$(tail -q -c 2000 -- "$1/$who-0.log" "$1/$who-$last.log" </dev/null); } 2>/dev/null
    position_in "$text"
}

# position_in TEXT: what its last line that has any shows of `step 40`, `'step': 40`, `iteration 40/`,
# `40/1000 [`, `epoch 3`. Whether it changes is what matters; something else among it is no harm.
position_in() {
    local LC_ALL=C lines line word number found='' quote="'"
    local behind="[$quote\"]?[]:=#([:blank:][]*([0-9]+)"
    mapfile -t lines <<<"${1//$'\r'/$'\n'}"
    for ((number = ${#lines[@]} - 1; number >= 0; number--)); do
        line=" ${lines[number],,}"
        [ ${#line} -le 500 ] || line=${line: -500}
        for word in step iteration iter it update batch epoch; do
            [[ $line != *$word* || ! $line =~ .*[^a-z0-9]${word}s?$behind ]] ||
                found+="$word=${BASH_REMATCH[1]} "
        done
        [[ $line != *[0-9]/*[0-9]*\[* || ! $line =~ .*[^0-9]([0-9]+)/[0-9]+' '?\[ ]] ||
            found+="bar=${BASH_REMATCH[1]} "
        [ -z "$found" ] || break
    done
    printf '%s\n' "${found% }"
}

# watch_advance POSITION: the run has moved on. The time before the first step is no pause.
watch_advance() {
    local pause=$((watch_clock - watch_moved))
    if [ -n "$watch_position" ]; then
        watch_pauses+=("$pause")
        [ "${#watch_pauses[@]}" -le 21 ] || watch_pauses=("${watch_pauses[@]:1}")
        [ $pause -le "$watch_longest" ] || watch_longest=$pause
    else
        printf '%s\n' "$watch_at" >"$attempt_dir/moved" # what it took to start
    fi
    watch_position=$1 watch_moved=$watch_clock
}

# watch_limit: after how many seconds without a move the run has stalled.
watch_limit() {
    local limit=${HPCRUN_STALLED_AFTER-} median
    if [ -z "$limit" ]; then
        limit=$watch_least median=$(middle "${watch_pauses[@]-0}")
        [ $((10 * median)) -le "$limit" ] || limit=$((10 * median))
        [ $((2 * watch_longest)) -le "$limit" ] || limit=$((2 * watch_longest))
    fi
    # Until its pace is known, as before the first step.
    [ -n "${HPCRUN_STALLED_AFTER-}" ] && [ -n "$watch_position" ] || [ "${#watch_pauses[@]}" -ge 3 ] ||
        [ "$limit" -ge "$watch_start" ] || limit=$watch_start
    printf '%s\n' "$limit"
}

# middle NUMBER...: the median.
middle() { printf '%s\n' "$@" | sort -n | sed -n "$(($# / 2 + 1))p"; }

# ---- A stall -----------------------------------------------------------------------------------

# report_stall SINCE SECONDS LIMIT: write stall.json. hpcrun judges by the stacks who holds up the run,
# and where they show nothing by the rank whose log stopped first.
report_stall() {
    local file files='' step=null
    for file in "$attempt_dir"/stacks/rank-*.txt; do
        [ ! -e "$file" ] || files+="${files:+, }\"stacks/${file##*/}\""
    done
    [[ ! " $watch_position" =~ \ (step|iteration|iter|it|update|bar|batch)=([0-9]{1,15})( |$) ]] ||
        step=$((10#${BASH_REMATCH[2]}))
    write_record "$attempt_dir/stall.json" "{\"since\": $1, \"silent_seconds\": $2,\
 \"threshold\": $3, \"step\": $step, \"ranks\": [$(first_silent)], \"stacks\": [$files]}"
}

# first_silent: print the rank whose log stopped two looks before all others that were written, too.
first_silent() {
    local name first='' second=''
    [ "$(who_writes)" = rank ] || return 0
    for name in "${!watch_changes[@]}"; do
        [ "${watch_changes[$name]}" -ge 3 ] || continue
        if [ -z "$first" ] || [ "${watch_changed[$name]}" -lt "${watch_changed[$first]}" ]; then
            second=$first first=$name
        elif [ -z "$second" ] || [ "${watch_changed[$name]}" -lt "${watch_changed[$second]}" ]; then
            second=$name
        fi
    done
    [ -n "$second" ] || return 0
    [ $((${watch_changed[$second]} - ${watch_changed[$first]})) -ge $((2 * watch_beat)) ] || return 0
    first=${first#rank-}
    printf '%s\n' "${first%.log}"
}

# take_stacks: on all nodes at once; it is given up after a minute.
take_stacks() {
    if [ -z "${SLURM_JOB_ID-}" ]; then
        bash -- "$HPCRUN_RUN_DIR/harness.sh" stacks </dev/null
    else
        beside 60 "$SLURM_JOB_NODELIST" "$SLURM_JOB_NUM_NODES" stacks </dev/null ||
            error "not all stacks could be taken"
    fi
}

# end_stalled: end the job's steps; the batch script is none of them, and decides what comes next.
end_stalled() {
    local steps step all=1
    [ ! -s "$attempt_dir/stalled" ] || return 0
    # Where Slurm does not answer, at the next look.
    steps=$(squeue --noheader --steps --job="$(slurm_job)" --format=%i 2>/dev/null </dev/null) ||
        return 0
    [ -e "$attempt_dir/stalled" ] || say "the run has stalled, so this attempt is ended"
    : >"$attempt_dir/stalled"
    for step in $steps; do
        [[ ! $step =~ \.[0-9]+$ ]] || scancel "$step" || all=''
    done
    [ -z "$all" ] || echo ended >"$attempt_dir/stalled"
}

# ---- On each node ------------------------------------------------------------------------------

# stacks: of each rank on this node. Those of other attempts or runs have other logs.
stacks() {
    local guard log pipe folder logs=$HPCRUN_RUN_DIR/logs/$HPCRUN_ATTEMPT
    mkdir -p -- "$attempt_dir/stacks"
    for guard in $(guards rank); do
        log=$(readlink "/proc/$guard/fd/1")
        log=${log##*/}
        [[ ! $log =~ ^rank-[0-9]+\.log$ ]] || write_stack "$guard" "$logs/$log" &
    done
    # Opened to read and to write, so that it waits for nobody.
    read -r _ folder 2>/dev/null <"$attempt_dir/local/${SLURM_NODEID:-0}" || folder=''
    for pipe in "$folder"/flight-*.pipe; do
        [ ! -p "$pipe" ] || printf 'dump\n' 1<>"$pipe"
    done
    wait
}

# write_stack GUARD LOG: stacks/rank-R.txt of the program that GUARD guards: whose it is, where the
# kernel has it, by what means its stack is known; then all of it.
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

# program_of GUARD: the process of Python's below it, else the first.
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

# by_py_spy PID: the job's own py-spy, or that of its Python environment. It does not stop the
# process. Its first line has the arguments, which may hold a secret.
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

# by_faulthandler GUARD PID LOG: only where the signal cannot end the process: Python catches it
# (PYTHONFAULTHANDLER), and what it was before is ignored, as the guard has it.
by_faulthandler() {
    local before size=0 last='' tries=0
    has_signal "$1" SigIgn && has_signal "$2" SigCgt || return 1
    grep -qsz '^PYTHONFAULTHANDLER=.' "/proc/$2/environ" || return 1
    [ "/proc/$2/fd/2" -ef "$3" ] || return 1
    printf 'hpcrun: nothing has moved for long: Python writes its stacks, and goes on\n' >>"$3"
    before=$(stat -c %s -- "$3")
    kill -ABRT "$2" || return 1
    # Until it has written, and writes no more.
    until [ "$size" -gt "$before" ] && [ "$size" = "$last" ] || [ $((tries += 1)) -gt 20 ]; do
        sleep 0.2
        last=$size size=$(stat -c %s -- "$3")
    done
    tail -c "+$((before + 1))" -- "$3" | head -c 100000
} 2>/dev/null

# has_signal PID SET: whether SIGABRT is in one of a process's sets of signals.
has_signal() {
    local name set
    while read -r name set; do
        [ "$name" != "$2:" ] || break
    done <"/proc/$1/status"
    [ -n "$set" ] && (((16#${set: -4} >> 5) & 1))
} 2>/dev/null

# state_of PID: its state, and where in the kernel it waits.
state_of() {
    local stat wchan
    read -r stat <"/proc/$1/stat" && stat=${stat##*) }
    read -r wchan <"/proc/$1/wchan" || wchan=${wchan:-0}
    printf '%s %s\n' "${stat%% *}" "$wchan"
} 2>/dev/null

# list_threads PID: the threads and children of a process, where they wait, and how many do there.
list_threads() {
    local task name
    for task in "/proc/$1"/task/* $(cat "/proc/$1/task/"*/children); do
        task=${task##*/}
        read -r name <"/proc/$task/comm" || read -r name <"/proc/$1/task/$task/comm" || continue
        printf '%s: %s\n' "$name" "$(state_of "$task")"
    done | sort | uniq -c
} 2>/dev/null
