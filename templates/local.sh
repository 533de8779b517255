# Each node's local disk: the run's folder on it, and the files that are copied there. node.sh and
# the harness source this, after setup.sh. It needs bash 4.2.
#
# The node's first task (srun may start several) prepares the folder; the others wait for its marks,
# which are files in $HPCRUN_LOCAL_DIR/.hpcrun, by reading from a pipe. Before that folder exists,
# the pipe is in memory. attempts/N/local/NODE names the folder to remove. hpcrun_exported holds the
# variables that were exported before the first task prepared; they are not written to a file,
# because they include secrets.
# shellcheck shell=bash disable=SC1090,SC1091 # the sourced files were written here

# The run's id, and of a run with several programs (roles/ROLE) also the role.
run_name=${HPCRUN_RUN_DIR##*/}
[[ $HPCRUN_RUN_DIR != */roles/"$run_name" ]] ||
    run_name=$(basename -- "${HPCRUN_RUN_DIR%/roles/*}")-$run_name
node_pipe=/dev/shm
[ -w "$node_pipe" ] || node_pipe=/tmp # a node may have none
node_pipe+=/hpcrun-$run_name.${HPCRUN_ATTEMPT-}.${HPCRUN_NODE_RANK-}

# first_task: succeed in the first of the node's tasks.
first_task() { [ "${SLURM_LOCALID:-0}" -eq 0 ]; }

# local_folder ROOT TASKS: create the run's own folder on this node, and record the architecture.
local_folder() {
    local root=$1 records=$HPCRUN_RUN_DIR/attempts/$HPCRUN_ATTEMPT/local folder pipe
    local of_run=$root/hpcrun-$run_name. hardware
    if first_task; then
        [ -d "$root" ] || fail "local_dir: $root: no such folder"
        exec {hardware}< <(architecture) # while the folders are prepared
        # Remove folders of attempts that were killed before they could clean up.
        for folder in "$root"/hpcrun-*; do
            if [[ $folder == "$of_run"* ]]; then
                [[ $folder == "$of_run$HPCRUN_ATTEMPT".* ]] || remove_folder "$folder"
            elif is_left "$folder"; then
                remove_folder "$folder"
            fi
        done
        check_room "$root"
        # The name contains the node, since several of Slurm's nodes may be one machine, as in a
        # sandbox.
        folder=$of_run$HPCRUN_ATTEMPT.$HPCRUN_NODE_RANK
        # Anyone who can write to ROOT could have created it, so it must be new.
        while [ -e "$folder" ] || [ -L "$folder" ]; do
            folder=$of_run$HPCRUN_ATTEMPT.$HPCRUN_NODE_RANK-$RANDOM
        done
        HPCRUN_LOCAL_DIR=$folder
        # Recorded before the folder is created, so that a task that is stopped in between finds
        # what to remove. The recorded folder is removed at the end, so nobody else may write to the
        # record.
        (umask go-w && { [ -d "$records" ] || mkdir -p -- "$records"; } &&
            printf '%s %s\n' "$2" "$folder" >"$records/$HPCRUN_NODE_RANK") ||
            fail "cannot write to $records"
        mkdir -m 700 -- "$folder" "$folder/.hpcrun" ||
            fail "local_dir: cannot make $folder$(room "$root")"
        IFS= read -r HPCRUN_ARCHITECTURE <&"$hardware"
        exec {hardware}<&-
        if ! { : >"$folder/.hpcrun/task-0" &&
            printf '%s\n' "${records%/*}" >"$folder/.hpcrun/attempt" &&
            printf '%s\n' "$HPCRUN_ARCHITECTURE" >"$folder/.hpcrun/architecture" &&
            : >"$folder/.hpcrun/complete"; }; then
            fail "local_dir: cannot write to $folder$(room "$root")"
        fi
        wake "$node_pipe".*
    else
        if ! mkfifo -m 600 -- "$node_pipe.$SLURM_LOCALID"; then
            fail "cannot make a pipe in ${node_pipe%/*}$(room "${node_pipe%/*}")"
        fi
        exec {pipe}<>"$node_pipe.$SLURM_LOCALID" || exit 1
        until read -r _ HPCRUN_LOCAL_DIR 2>/dev/null <"$records/$HPCRUN_NODE_RANK" &&
            [ -e "$HPCRUN_LOCAL_DIR/.hpcrun/complete" ] && [ -O "$HPCRUN_LOCAL_DIR" ]; do
            IFS= read -rt 5 -u "$pipe" _
        done
        exec {pipe}>&-
        mv -- "$node_pipe.$SLURM_LOCALID" "$HPCRUN_LOCAL_DIR/.hpcrun/task-$SLURM_LOCALID" || exit 1
        IFS= read -r HPCRUN_ARCHITECTURE <"$HPCRUN_LOCAL_DIR/.hpcrun/architecture"
    fi
    export HPCRUN_LOCAL_DIR HPCRUN_ARCHITECTURE
    unset HPCRUN_GPUS
}

# architecture: print what compiled code depends on. DeepSpeed compiles for the local CPU
# (-march=native), so the CPU's features count, and the GPUs' compute capability.
architecture() {
    local cpu gpu
    cpu=$(grep -m 1 -E '^(flags|Features)' /proc/cpuinfo | cksum)
    gpu=${HPCRUN_GPUS-}
    [ -n "$gpu" ] || ! type -P nvidia-smi >/dev/null ||
        gpu=$(timeout 20 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null)
    # Not the warnings that nvidia-smi prints beside them.
    [ -z "$gpu" ] || gpu=$(cut -d, -f1 <<<"$gpu" | grep -xE '[0-9]+[.][0-9]+' | sort -u)
    gpu=${gpu//$'\n'/-}
    printf '%s-%08x%s\n' "$(uname -m)" "${cpu%% *}" "${gpu:+-sm${gpu//./}}"
}

# room FOLDER: print the free space, for messages.
room() {
    local free where
    read -r free where < <(df -h --output=avail,target -- "$1" 2>/dev/null | tail -n 1)
    [ -z "$free" ] || printf ' (free on %s: %s)' "$where" "$free"
}

# check_room ROOT: a full disk ends the attempt, and the node is recorded as bad (preflight.sh).
# Leftovers of this run's own attempts have already been removed.
check_room() {
    local free why
    [ -n "${HPCRUN_PREFLIGHT-}" ] || return 0
    free=$(df --block-size=1M --output=avail -- "$1" 2>/dev/null)
    free=${free##*[!0-9]}
    [[ $free =~ ^[0-9]+$ && $free -lt 1024 ]] || return 0
    why="local_dir: $1 has $free MB free"
    if [ "$free" -lt 16 ]; then
        bash -- "$HPCRUN_RUN_DIR/preflight.sh" bad "$why"
        fail "$why"
    fi
    bash -- "$HPCRUN_RUN_DIR/preflight.sh" warn "$why"
}

# stage SOURCE TARGET: copy a file or folder to TARGET in the run's folder, atomically.
stage() {
    local to=$HPCRUN_LOCAL_DIR/$2 began=$SECONDS link
    # Not on the node's disk, which may be full.
    local stderr=$HPCRUN_RUN_DIR/attempts/$HPCRUN_ATTEMPT/local/$HPCRUN_NODE_RANK.stderr
    [ -e "$1" ] || fail "stage: $1: no such file or folder"
    mkdir -p -- "$(dirname -- "$to")" 2>"$stderr" || fail "stage: $(<"$stderr")"
    # In the background, so that stopping the job ends it: bash runs traps while it waits.
    cp -RH --preserve=mode,links,timestamps -- "$1" "$to.part" 2>"$stderr" &
    # shellcheck disable=SC2064 # the current process
    trap "kill $!; exit 143" TERM
    wait $! ||
        fail "stage: cannot copy $1 to $to$(room "$HPCRUN_LOCAL_DIR"): $(tail -n 1 -- "$stderr")"
    trap - TERM
    while IFS= read -r link; do
        if [ -e "$1${link#"$to.part"}" ]; then
            fail "stage: $1${link#"$to.part"} links out of the folder, which the copy cannot have"
        fi
    done < <(find "$to.part" -xtype l 2>/dev/null)
    rm -f -- "$stderr"
    mv -T -- "$to.part" "$to" || fail "stage: $to: cannot be written"
    echo "hpcrun: staged $1 to $to in $((SECONDS - began)) s"
}

# own_copy FILE: copy one of the run's files, with this node's value of ${HPCRUN_LOCAL_DIR}.
own_copy() {
    # shellcheck disable=SC2016 # the literal name is searched
    local rest name='${HPCRUN_LOCAL_DIR}' text=''
    rest=$(<"$HPCRUN_RUN_DIR/$1") || exit 1
    while [[ $rest == *"$name"* ]]; do
        text+=${rest%%"$name"*}$HPCRUN_LOCAL_DIR
        rest=${rest#*"$name"}
    done
    printf '%s\n' "$text$rest" >"$HPCRUN_LOCAL_DIR/$1" || fail "cannot write $HPCRUN_LOCAL_DIR/$1"
}

# first_on_node WHAT: succeed in the node's first task, which does the work and calls done_on_node;
# in the others wait, import the first one's exports and working directory, and fail.
first_on_node() {
    local marks=$HPCRUN_LOCAL_DIR/.hpcrun pipe
    if first_task; then
        hpcrun_exported=$(exported)
        return 0
    fi
    exec {pipe}<>"$marks/task-$SLURM_LOCALID" || exit 1
    until [ -e "$marks/$1" ]; do
        [ -d "$marks" ] || exit 1
        IFS= read -rt 5 -u "$pipe" _
    done
    exec {pipe}>&-
    . "$marks/$1" || exit 1
    return 1
}

# done_on_node WHAT
done_on_node() {
    local marks=$HPCRUN_LOCAL_DIR/.hpcrun
    (
        umask 077
        exec >"$marks/part"
        LC_ALL=C comm -13 <(printf '%s\n' "$hpcrun_exported") <(exported) | sed 's/^/export /' &&
            LC_ALL=C comm -23 <(printf '%s\n' "$hpcrun_exported" | names) <(exported | names) |
            sed 's/^/unset /' && printf 'cd -- %q\n' "$PWD" && mv -- "$marks/part" "$marks/$1"
    ) || fail "cannot write to $marks$(room "$marks")"
    wake "$marks"/task-*
}

# wake PIPE...: make the readers check again. Opening a pipe for reading and writing does not block.
wake() {
    local pipe
    for pipe; do
        [ ! -p "$pipe" ] || [ ! -O "$pipe" ] || echo 1<>"$pipe"
    done
}

# exported: print all exported variables, one per line, sorted.
exported() {
    local name
    compgen -e | while IFS= read -r name; do
        [ "$name" = _ ] || printf '%s=%q\n' "$name" "${!name}"
    done | LC_ALL=C sort
}

names() { cut -d= -f1 | LC_ALL=C sort; }

# is_left FOLDER: succeed if another run created FOLDER and its attempt is over. Its processes may
# still be ending when its end is recorded; if the recording process was killed, too, nothing must
# have changed for a day.
is_left() {
    local attempt
    [ -O "$1" ] && read -r attempt 2>/dev/null <"$1/.hpcrun/attempt" || return 1
    [ -n "$(find "$attempt" -maxdepth 1 \( -name end.json -mmin +10 -o -name beat -mmin +1440 \) \
        2>/dev/null)" ]
}

# remove_folder FOLDER...: remove only folders that local_folder created for this user.
remove_folder() {
    local folder
    for folder; do
        [[ $folder == */hpcrun-*.* && -d $folder && ! -L $folder ]] || continue
        [ -O "$folder" ] || continue
        # A copy may contain read-only folders.
        rm -rf -- "$folder" 2>/dev/null ||
            { chmod -R u+rwX -- "$folder" 2>/dev/null && rm -rf -- "$folder"; }
    done
}

# leave_folder CODE: called when a task of this node has ended; the last one removes the folder. If
# the job fails or is stopped, perhaps before this task started, that is the last task that has
# started.
leave_folder() {
    local record=$HPCRUN_RUN_DIR/attempts/$HPCRUN_ATTEMPT/local/$HPCRUN_NODE_RANK tasks folder
    local task=${SLURM_LOCALID:-0} ended using
    rm -f -- "$node_pipe.$task"
    read -r tasks folder 2>/dev/null <"$record" || return 0
    # Until the folder is complete only the first task uses it.
    [ -e "$folder/.hpcrun/complete" ] || first_task || return 0
    { : >"$folder/.hpcrun/ended-$task"; } 2>/dev/null
    rm -f -- "$folder/.hpcrun/task-$task"
    ended=("$folder"/.hpcrun/ended-*) using=("$folder"/.hpcrun/task-*)
    if [ "${#ended[@]}" -lt "$tasks" ]; then
        [ "$1" -ne 0 ] || [ -n "${stopped-before}" ] || return 0
        [ ! -e "${using[0]}" ] || return 0
    fi
    take_folder_away "$record"
}

# end_strays: terminate the remaining processes of this task, also those in other sessions, as Slurm
# does if it tracks processes by cgroups. They would hold a GPU, or save during the next attempt.
end_strays() {
    local file pid
    for pid in $(jobs -pr); do # it would keep srun waiting for its output
        kill "$pid" && wait "$pid" # or bash would print that it was killed
    done 2>/dev/null
    [ -n "${SLURM_PROCID-}" ] || return 0
    while IFS= read -r file; do
        ! grep -qszxF -- "SLURM_PROCID=$SLURM_PROCID" "$file" || kill -KILL "${file//[^0-9]/}"
    done < <(env -u HPCRUN_NODE_RANK grep -lszxF -- "HPCRUN_RUN_DIR=$HPCRUN_RUN_DIR" /proc/[0-9]*/environ |
        xargs -r env -u HPCRUN_NODE_RANK grep -lszxF -- "HPCRUN_NODE_RANK=$HPCRUN_NODE_RANK" 2>/dev/null) 2>/dev/null
}

# take_folder_away RECORD
take_folder_away() {
    local tasks folder
    read -r tasks folder 2>/dev/null <"$1" || return 0
    remove_folder "$folder"
    [ -e "$folder" ] || rm -f -- "$1"
}

# clean_node HOST HOSTS...: remove HOST's folder, on HOST, if its processes were killed before they
# could; HOSTS are the job's, in the order of ranks.
clean_node() {
    local host=$1 node=0 record folder=''
    shift
    until [ $# -eq 0 ] || [ "$1" = "$host" ]; do
        node=$((node + 1))
        shift
    done
    record=$HPCRUN_RUN_DIR/attempts/$HPCRUN_ATTEMPT/local/$node
    # If the folder is not here, it belongs to the first host of a hostfile, which is about to
    # remove it and needs the record.
    [ -n "${SLURM_JOB_ID-}" ] || { read -r _ folder 2>/dev/null <"$record" && [ -d "$folder" ]; } ||
        return 0
    take_folder_away "$record"
}

# meet_nodes NODES: wait until all nodes have reached this point.
meet_nodes() {
    local records=$HPCRUN_RUN_DIR/attempts/$HPCRUN_ATTEMPT/local ready
    first_on_node met || return 0
    : >"$records/$HPCRUN_NODE_RANK.ready"
    while ready=("$records"/*.ready) && [ "${#ready[@]}" -lt "$1" ]; do
        sleep "$((SECONDS < 100 ? SECONDS / 20 : 5)).5"
    done
    done_on_node met
}

# ---- Locks -------------------------------------------------------------------------------------

# watch_locks CACHE: remove stale locks of torch, which locks a folder while it compiles there. A
# killed build leaves its lock, and every later job would wait forever. Checks now and every 30 s,
# and ends with this process in any case: the pipe between them closes.
watch_locks() {
    local watch
    [ -n "$1" ] || return 0
    # shellcheck disable=SC2034 # only kept open
    exec {watch}> >(
        trap - TERM INT HUP EXIT
        while :; do
            clear_locks "$1"/torch_extensions/*/*/*/lock
            IFS= read -rt 30 _
            [ $? -gt 128 ] || break
        done
    )
}

# clear_locks LOCK...: remove locks whose folder has not changed for 20 minutes, since no single
# file of DeepSpeed takes nearly as long to compile.
clear_locks() {
    local lock changed
    for lock; do
        [ -e "$lock" ] || continue
        changed=$(find "${lock%/*}" -mmin -20 -print -quit) || continue
        [ -z "$changed" ] && rm -f -- "$lock" &&
            echo "hpcrun: removed $lock, left behind by a killed build"
    done
}
