#!/bin/bash
# Runs as every rank, started by the harness, which has set
# MASTER_ADDR, MASTER_PORT and HPCRUN_NODE_RANK and sends the output to logs/.

# ---- This node: its own folder, copies and commands
# shellcheck disable=SC1091 # the files are beside this one
. "$HPCRUN_RUN_DIR/setup.sh" && . "$HPCRUN_RUN_DIR/local.sh" || exit 1
local_folder /tmp 4 # HPCRUN_LOCAL_DIR; the harness removes it
[ -n "${TORCH_EXTENSIONS_DIR-}" ] || export TORCH_EXTENSIONS_DIR=/scratch/cache/torch_extensions/f321e099/"$HPCRUN_ARCHITECTURE"
[ -n "${TRITON_CACHE_DIR-}" ] || export TRITON_CACHE_DIR=/scratch/cache/triton/"$HPCRUN_ARCHITECTURE"
export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPCRUN_LOCAL_DIR"/flight-
name_flight_record /opt/env/bin/python # torch before 2.8 reads other names

# ---- Launch
export RANK=${SLURM_PROCID:-0} LOCAL_RANK=${SLURM_LOCALID:-0} WORLD_SIZE=${SLURM_NTASKS:-1}
exec bash -- "$HPCRUN_RUN_DIR/harness.sh" rank \
    /opt/env/bin/python /scratch/runs/20261120-081455-train-7k3q/code/train.py \
    --lr 1e-4 \
    --fast \
    --out /scratch/runs/20261120-081455-train-7k3q/checkpoints
