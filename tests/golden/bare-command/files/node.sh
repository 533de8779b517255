#!/bin/bash
# Runs once on every node, started by the harness, which has set
# MASTER_ADDR, MASTER_PORT and HPCRUN_NODE_RANK and sends the output to logs/.

# ---- This node: its own folder, copies and commands
# shellcheck disable=SC1091 # they lie beside this file
. "$HPCRUN_RUN_DIR/setup.sh" && . "$HPCRUN_RUN_DIR/local.sh" || exit 1
local_folder /tmp 1 # HPCRUN_LOCAL_DIR; the harness removes it
export TORCH_EXTENSIONS_DIR=/scratch/cache/torch_extensions/f321e099/"$HPCRUN_ARCHITECTURE"

# ---- Launch
exec \
    nvidia-smi \
    -L
