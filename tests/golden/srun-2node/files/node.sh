#!/bin/bash
# Runs as every rank, started by the harness, which has set
# MASTER_ADDR, MASTER_PORT and HPCRUN_NODE_RANK and sends the output to logs/.
export RANK=${SLURM_PROCID:-0} LOCAL_RANK=${SLURM_LOCALID:-0} WORLD_SIZE=${SLURM_NTASKS:-1}
exec bash -- "$HPCRUN_RUN_DIR/harness.sh" rank \
    /opt/env/bin/python /scratch/runs/20261120-081455-train-7k3q/code/train.py \
    --lr 1e-4 \
    --fast \
    --out /scratch/runs/20261120-081455-train-7k3q/checkpoints
