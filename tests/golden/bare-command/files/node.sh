#!/bin/bash
# Runs once on every node, started by the harness, which has set
# MASTER_ADDR, MASTER_PORT and HPCRUN_NODE_RANK and sends the output to logs/.

# ---- This node: its own folder, copies and commands
# shellcheck disable=SC1091 # the files are beside this one
. "$HPCRUN_RUN_DIR/setup.sh" && . "$HPCRUN_RUN_DIR/local.sh" || exit 1
local_folder /tmp 1 # HPCRUN_LOCAL_DIR; the harness removes it
[ -n "${TORCH_EXTENSIONS_DIR-}" ] || export TORCH_EXTENSIONS_DIR=/scratch/cache/torch_extensions/f321e099/"$HPCRUN_ARCHITECTURE"
[ -n "${TRITON_CACHE_DIR-}" ] || export TRITON_CACHE_DIR=/scratch/cache/triton/"$HPCRUN_ARCHITECTURE"
export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPCRUN_LOCAL_DIR"/flight-
name_flight_record /opt/env/bin/python # torch before 2.8 reads other names

# ---- Launch
# A torchrun in the command creates a folder of logs, by default in /tmp: the harness removes this
# one.
export PET_LOG_DIR="${PET_LOG_DIR:-$HPCRUN_LOCAL_DIR}"
exec \
    nvidia-smi \
    -L
