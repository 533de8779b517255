"""The output of runs: finding, following and masking it."""
