# hpcrun's rules that are written in Python: jobside.pyz, built from hpcrun/jobside/. harness.sh
# sources this. Without a Python the run starts, records and ends, but does not continue by itself.
# shellcheck shell=bash

# find_python: print the Python that runs jobside.pyz: the job's own if it works before the job's
# setup, else the one in PATH or the system's, or that of an `hpcrun run`.
find_python() {
    local python
    for python in "${HPCRUN_JOB_PYTHON-}" python3 /usr/bin/python3 /usr/libexec/platform-python \
        "${HPCRUN_OWN_PYTHON-}"; do
        if [ -n "$python" ] && python=$(type -P -- "$python") &&
            timeout 30 "$python" -I -S "$HPCRUN_RUN_DIR/jobside.pyz" answer >/dev/null 2>&1 </dev/null; then
            printf '%s\n' "$python"
            return
        fi
    done
    return 1
}

# jobside COMMAND...: run a command of jobside.pyz (hpcrun/jobside/__main__.py).
jobside() {
    [ -n "${HPCRUN_JOBSIDE_PYTHON-}" ] || return 127
    "$HPCRUN_JOBSIDE_PYTHON" -I -S "$HPCRUN_RUN_DIR/jobside.pyz" "$@"
}
