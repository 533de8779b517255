"""A typical hand-written loop that extracts the loss: one pattern, one file."""

import re
import sys

losses = []
for line in open(sys.argv[1]):  # noqa: PTH123, SIM115, as they write it
    found = re.search(r"loss[=:]\s*([\d.]+)", line)
    if found:
        losses.append(float(found.group(1)))
print(len(losses), losses[-1])
