#!/bin/bash
# Runs once on every node, then as every rank, started by the harness, which has set
# MASTER_ADDR, MASTER_PORT and HPCRUN_NODE_RANK and sends the output to logs/.
if [ "${1-}" != rank ]; then
    # Launchers rewrite $$ and ${local_rank} in words that they pass on: they get none of yours.
    # shellcheck disable=SC2016 # the rank's shell expands it
    exec /opt/env/bin/python -m torch.distributed.run \
        --nnodes=1 --nproc_per_node=1 --node_rank="$HPCRUN_NODE_RANK" \
        --rdzv_backend=static --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
        --no_python bash -c 'exec bash -- "$HPCRUN_RUN_DIR/node.sh" rank'
fi
exec bash -- "$HPCRUN_RUN_DIR/harness.sh" rank \
    /opt/env/bin/python '/scratch/runs/20261120-081455-train-7k3q/code/my script'\''s.py' 'two words' '$HOME; touch /tmp/oops' 'it'\''s' 'say "hi"' $'back\\slash\\' $'new\nline\ttab\r' '' '*?[a]~' '!history' 'ünïcödé' \
    - '{braces}'
