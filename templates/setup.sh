# Functions that job.sbatch and node.sh call to prepare the environment; sourced, without `set -u`,
# which breaks module and conda scripts. It needs bash 4.2.
# shellcheck shell=bash disable=SC1090,SC1091 # the sourced files are the cluster's and the user's

# fail MESSAGE: end the job with a message that names the node.
fail() {
    printf 'hpcrun: error: %s: %s\n' "${SLURMD_NODENAME:-$(uname -n)}" "$*" >&2
    trap - EXIT # ended_early would print a second one
    exit 1
}

# begin_commands, end_commands: a command between them that fails ends the job.
begin_commands() {
    trap 'ended_early $?' EXIT
    set -e
}

end_commands() {
    set +e
    trap - EXIT
}

# ended_early CODE: called before end_commands was reached; `exit 0` in a command is an error, too.
ended_early() {
    trap - EXIT
    [ "$1" -ne 0 ] || fail "the setup ended before the training was started"
    (fail "a command of the setup failed with code $1") || exit "$1"
}

# set_aside NAME...: note the values of variables that hpcrun sets, before the setup commands run.
# `export` notes its names, because a command may export the value that a variable already has.
set_aside() {
    local name
    for name; do
        printf -v "HPCRUN_BEFORE_$name" %s "${!name+=${!name}}"
    done
    HPCRUN_EXPORTED=' '
    # A local variable would hide a variable of its name.
    # shellcheck disable=SC2163,SC2317 # the commands call it, with names
    export() {
        [ "${1-}" = -n ] || for HPCRUN_WORD; do
            HPCRUN_EXPORTED+="${HPCRUN_WORD%%[+=]*} "
        done
        builtin export "$@"
    }
}

# keep_changed: keep the values that the setup commands have set, for `restore`.
keep_changed() {
    local before name
    unset -f export
    for before in "${!HPCRUN_BEFORE_@}"; do
        name=${before#HPCRUN_BEFORE_}
        if [[ ${!name+=${!name}} != "${!before}" || $HPCRUN_EXPORTED == *" $name "* ]]; then
            keep "$name"
        fi
        unset "$before"
    done
    unset HPCRUN_EXPORTED HPCRUN_WORD
}

# ---- Modules -----------------------------------------------------------------------------------

# init_modules: define `module`; a batch shell is not a login shell, so it may not exist yet.
init_modules() {
    local file
    if ! type module >/dev/null 2>&1; then
        # The files that a login shell would read, whatever the site calls them.
        while IFS= read -r file; do
            . "$file"
        done < <(grep -lsiE 'lmod|modules|modulecmd' /etc/profile.d/*.sh)
    fi
    for file in "${LMOD_PKG-}" "${MODULESHOME-}" /usr/share/{lmod/lmod,modules,Modules} \
        /opt/cray/pe/{lmod/lmod,modules/default} /opt/{lmod/lmod,modules/default}; do
        ! type module >/dev/null 2>&1 || return 0
        [ ! -r "$file/init/bash" ] || . "$file/init/bash"
    done
    type module >/dev/null 2>&1 || fail "there is no \`module\` command here"
}

# use_modules FOLDER: some versions of `module` accept a missing folder silently.
use_modules() {
    init_modules
    [ -d "$1" ] || fail "module use $1: there is no such folder"
    module use "$1" || fail "module use $1 failed: see above"
}

# load_module NAME: some versions of `module` return 0 although nothing was loaded.
load_module() {
    local before
    init_modules
    before=${LOADEDMODULES-}
    module load "$1" || fail "module load $1 failed: see above"
    [[ ${LOADEDMODULES-} == "$before" && :$before: != *:$1[:/]* ]] || return 0
    # An alias of a loaded module counts; versions without is-loaded set neither variable.
    [[ -n ${LMOD_CMD-}${MODULES_CMD-} ]] && module is-loaded "$1" >/dev/null 2>&1 && return
    fail "module load $1 loaded nothing: see above"
}

# ---- Python environments -----------------------------------------------------------------------

# activate_venv FOLDER
activate_venv() {
    [ -r "$1/bin/activate" ] || fail "$1: no virtual environment is here"
    . "$1/bin/activate" || fail "$1/bin/activate failed"
}

# uv_sync PROJECT VENV [OPTION...]: install PROJECT's uv.lock into VENV, and activate it.
uv_sync() {
    local uv project=$1 venv=$2
    shift 2
    for uv in "$(type -P uv)" ~/.local/bin/uv ~/.cargo/bin/uv ''; do
        [ ! -x "$uv" ] || break
    done
    [ -n "$uv" ] || fail "there is no uv on the PATH: install it, or load its module"
    UV_PROJECT_ENVIRONMENT=$venv "$uv" sync --frozen --project "$project" "$@" ||
        fail "uv sync --frozen failed in $project: see above"
    activate_venv "$venv"
}

# activate_conda ENVIRONMENT: activate by name or folder, with any variant of conda.
activate_conda() {
    local conda
    conda=$(find_conda "$1")
    case ${conda##*/} in
    conda) eval "$("$conda" shell.bash hook)" && conda activate "$1" ;;
    mamba | micromamba) eval "$("$conda" shell hook --shell bash)" && "${conda##*/}" activate "$1" ;;
    *) activate_prefix "$1" ;;
    esac || fail "the conda environment $1 cannot be activated${conda:+ by $conda}: see above"
    [ -x "${CONDA_PREFIX-}/bin/python" ] || fail "the conda environment $1 has no python"
}

# find_conda ENVIRONMENT: print the program. It may be defined only as a function in ~/.bashrc,
# which a batch shell does not read; `conda init` has written the program's path there.
find_conda() {
    local file written
    written=$(sed -n "s/.*'\(\/.*\/bin\/conda\)' 'shell\..*/\1/p;q" \
        < <(grep -s "'shell\.[a-z]*' 'hook'" ~/.bashrc ~/.bash_profile ~/.zshrc | sed 's/^[^:]*://'))
    for file in "${CONDA_EXE-}" "$(type -P conda)" "$1/bin/conda" "$1/../../bin/conda" "$written" \
        {~,/opt}/{miniforge3,mambaforge,miniconda3,anaconda3,conda}/bin/conda \
        "${MAMBA_EXE-}" "$(type -P mamba)" "$(type -P micromamba)" ~/{.local/bin,bin}/micromamba; do
        if [[ $file == /* && -x $file ]]; then
            printf '%s\n' "$file"
            return
        fi
    done
}

# activate_prefix FOLDER: do what conda's activation does, for an environment without conda.
activate_prefix() {
    local script
    [ -x "$1/bin/python" ] || {
        echo "there is no conda, mamba or micromamba here, and no environment at $1" >&2
        return 1
    }
    export CONDA_PREFIX=$1 CONDA_DEFAULT_ENV=$1 PATH=$1/bin:$PATH
    for script in "$1"/etc/conda/activate.d/*.sh; do
        [ ! -r "$script" ] || . "$script"
    done
}

# name_flight_record PYTHON: set the flight recorder's variables by their names before torch 2.8;
# later versions report these as deprecated in each rank's log.
name_flight_record() {
    local python file
    python=$(type -P "$1") && [ -n "${TORCH_FR_DUMP_TEMP_FILE-}" ] || return 0
    for file in "${python%/*}"/../lib/python3*/*-packages/torch/version.py; do
        grep -qsE "^__version__ = '(1|2\.[0-7])\." "$file" || continue
        export TORCH_NCCL_TRACE_BUFFER_SIZE="${TORCH_NCCL_TRACE_BUFFER_SIZE-${TORCH_FR_BUFFER_SIZE-}}"
        export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="${TORCH_NCCL_DEBUG_INFO_TEMP_FILE-$TORCH_FR_DUMP_TEMP_FILE}"
    done
}

# ---- Values that something else would override -------------------------------------------------

# keep NAME...: hpcrun's own values would override those of the setup commands, and an image's own
# values those of the job, so they are passed under names that nothing else uses; `restore`, after
# that or inside the container, renames them.
keep() {
    local name
    for name; do
        [ -z "${!name+x}" ] || export "HPCRUN_KEPT_$name=${!name}"
    done
}

restore() {
    local kept
    for kept in "${!HPCRUN_KEPT_@}"; do
        export "${kept#HPCRUN_KEPT_}=${!kept}"
        unset "$kept"
    done
}

# ---- Containers --------------------------------------------------------------------------------

# find_runtime PROGRAM [OLD_NAME]: print the installed container program.
find_runtime() {
    type -P "$1" || type -P "${2-$1}" || fail "the container runtime is not here: $1"
}
