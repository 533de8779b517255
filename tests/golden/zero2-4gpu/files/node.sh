#!/bin/bash
# Runs once on every node, then as every rank, started by the harness, which has set
# MASTER_ADDR, MASTER_PORT and HPCRUN_NODE_RANK and sends the output to logs/.
if [ "${1-}" = rank ]; then
    exec bash -- "$HPCRUN_RUN_DIR/harness.sh" rank \
        /opt/env/bin/python /scratch/runs/20261120-081455-train-7k3q/code/train_gpt.py \
        --deepspeed-config /scratch/runs/20261120-081455-train-7k3q/deepspeed.json \
        --micro-batch-per-gpu 4 \
        --gradient-accumulation-steps 1 \
        --precision bf16 \
        --activation-checkpointing false \
        --checkpoint-dir /scratch/runs/20261120-081455-train-7k3q/checkpoints \
        --steps 60
fi

# ---- This node: its own folder, copies and commands
# shellcheck disable=SC1091 # the files are beside this one
. "$HPCRUN_RUN_DIR/setup.sh" && . "$HPCRUN_RUN_DIR/local.sh" || exit 1
local_folder /tmp 1 # HPCRUN_LOCAL_DIR; the harness removes it
[ -n "${TORCH_EXTENSIONS_DIR-}" ] || export TORCH_EXTENSIONS_DIR=/scratch/cache/torch_extensions/f321e099/"$HPCRUN_ARCHITECTURE"
[ -n "${TRITON_CACHE_DIR-}" ] || export TRITON_CACHE_DIR=/scratch/cache/triton/"$HPCRUN_ARCHITECTURE"
export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPCRUN_LOCAL_DIR"/flight-
name_flight_record /opt/env/bin/python # torch before 2.8 reads other names

# ---- Launch
# Launchers replace $$ and ${local_rank} in arguments, so the program's are above.
# torch creates a folder of logs, by default in /tmp: the harness removes this one.
# shellcheck disable=SC2016 # the rank's shell expands it
exec /opt/env/bin/python -m torch.distributed.run \
    --nnodes=1 --nproc_per_node=4 --node_rank="$HPCRUN_NODE_RANK" \
    --rdzv_backend=static --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
    --log_dir="$HPCRUN_LOCAL_DIR" --no_python bash -c 'exec bash -- "$HPCRUN_RUN_DIR/node.sh" rank'
