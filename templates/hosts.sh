# Launching on the hosts of a hostfile, without Slurm; the harness sources this. It needs bash 4.2.
# hpcrun/jobside/hosts.py, on the host of `hpcrun run`, calls these modes on each host by ssh:
# address, session, and task for each rank that DeepSpeed's launcher starts; and here end_marked.
#
# A session's standard input is its lifeline: it closes when the process that holds the other end
# exits for any reason, and the session then terminates its processes. A line arrives every ten
# seconds, so that a disconnected host terminates its part, too.
# shellcheck shell=bash disable=SC1090,SC1091 # the sourced files are beside this one
# shellcheck disable=SC2154 # $attempt_dir and $host are the harness's

# launch_hosts ssh|pdsh PYTHON HOST...: prepare the ranks, and start them by hosts.py.
launch_hosts() {
    prepare_ranks
    [ -n "${HPCRUN_JOBSIDE_PYTHON-}" ] || HPCRUN_JOBSIDE_PYTHON=$(find_python) ||
        die "no Python 3.6 or newer answers on $host, which hosts of a hostfile need"
    exec "$HPCRUN_JOBSIDE_PYTHON" -I -S "$HPCRUN_RUN_DIR/jobside.pyz" launch_hosts "$@"
}

# address SECOND: print an address at which the second host reaches this one, the first, and a free
# port. The address is that of the route to the second host or, if only ssh resolves its name, the
# one at which ssh connected.
address() {
    local second found='' connection=()
    if [ -z "$1" ]; then
        printf '127.0.0.1 %s\n' "$(free_port)"
        return
    fi
    second=$(getent ahostsv4 "$1" || getent ahosts "$1")
    second=${second%%[[:space:]]*}
    if [ -n "$second" ] && ! is_loopback "$second"; then
        found=$(PATH=$PATH:/usr/sbin:/sbin ip -o route get "$second" |
            sed -n 's/.* src \([^ ]*\).*/\1/p')
    fi
    read -ra connection <<<"${SSH_CONNECTION-}"
    found=${found:-${connection[2]-}}
    if [ -z "$found" ] || is_loopback "$found"; then
        die "$host: no address known that $1 can reach: $1 does not resolve on $host"
    fi
    printf '%s %s\n' "$found" "$(free_port)"
}

# session INDEX ATTEMPT: run a host's part of the run while standard input is open.
session() {
    local way mark code=143 tenths=0
    child='' stopped=''
    export HPCRUN_RUN_DIR=$PWD HPCRUN_ATTEMPT=$2 SLURM_NODEID=$1 SLURM_LOCALID=0
    attempt_dir=$HPCRUN_RUN_DIR/attempts/$2
    mark="$HPCRUN_RUN_DIR $2 $1"
    printf 'hpcrun-ready\n'
    IFS= read -r way || exit 0
    trap 'stopped=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT HUP
    (
        while IFS= read -rt 30 _; do :; done
        kill -TERM $$
    ) <&0 &
    if [ "$way" = ssh ]; then
        load_environment
        HPCRUN_HOST_MARK=$mark bash -- "$HPCRUN_RUN_DIR/harness.sh" node </dev/null &
        child=$!
    fi
    # Discard bash's messages about killed children: the reader may be gone, and cleanup must
    # continue.
    trap '' PIPE
    # As in await(): any signal interrupts `wait`. Rank 0 may be saving when it is asked to end.
    while [ -z "$stopped" ] && { [ -z "$child" ] || kill -0 "$child" 2>/dev/null; }; do
        if [ -n "$child" ]; then wait "$child"; else sleep 0.2; fi
    done
    [ -n "$stopped" ] || { code_of "$child"; code=$?; }
    while [ -n "$child" ] && kill -0 "$child" 2>/dev/null && [ $tenths -lt 100 ]; do
        sleep 0.1
        tenths=$((tenths + 1))
    done
    end_marked "$mark"
    . "$HPCRUN_RUN_DIR/local.sh" && take_folder_away "$attempt_dir/local/$1"
    exit "$code"
}

# task RUN_DIR ATTEMPT: run a rank, started by DeepSpeed's launcher in the environment of a bare
# login.
task() {
    local name kept=()
    for name in RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES; do
        [ -z "${!name+set}" ] || kept+=("$name=${!name}")
    done
    export HPCRUN_RUN_DIR=$1 HPCRUN_ATTEMPT=$2
    attempt_dir=$HPCRUN_RUN_DIR/attempts/$2
    load_environment
    export "${kept[@]}"
    export SLURM_NODEID=$((RANK / HPCRUN_RANKS_PER_NODE)) SLURM_LOCALID=$LOCAL_RANK
    HPCRUN_HOST_MARK="$HPCRUN_RUN_DIR $2 $SLURM_NODEID" exec bash -- "$HPCRUN_RUN_DIR/harness.sh" node
}

load_environment() {
    local tries=0
    # A file of another host may appear with a delay on a network file system.
    until [ -r "$attempt_dir/environment" ] || [ $tries -ge 50 ]; do
        tries=$((tries + 1))
        sleep 0.2
    done
    . "$attempt_dir/environment" || die "$host: cannot read $attempt_dir/environment"
    local folder=${HPCRUN_WORKDIR:-$HPCRUN_PROJECT_DIR}
    cd -- "$folder" || die "$host: the folder $folder does not exist here"
}

# end_marked MARK: terminate the processes of a session, whoever their parents are, then kill them.
end_marked() {
    local round file found
    for round in TERM 0 0 0 0 0 0 0 0 0 KILL KILL; do
        found=''
        for file in /proc/[0-9]*/environ; do
            if grep -qzFx -- "HPCRUN_HOST_MARK=$1" "$file" 2>/dev/null; then
                found=${file//[^0-9]/}
                kill "-$round" "$found" 2>/dev/null
            fi
        done
        [ -n "$found" ] || return 0
        sleep 0.5
    done
}
