#!/bin/bash
# Runs once on every node, started by the harness, which has set
# MASTER_ADDR, MASTER_PORT and HPCRUN_NODE_RANK and sends the output to logs/.
exec \
    nvidia-smi \
    -L
