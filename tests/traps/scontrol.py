"""A stub of scontrol for the two queries of a job: host names, and the address of a node.

STAND_IN_ADDRESSES contains NAME=ADDRESS,...; unknown nodes have no output.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Answer ``show hostnames LIST`` and ``--oneliner show node NAMES``."""
    addresses = dict(
        pair.split("=") for pair in os.environ.get("STAND_IN_ADDRESSES", "").split(",") if pair
    )
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if words[:2] == ["show", "hostnames"]:
        print("\n".join(words[2].split(",")))
        return 0
    if words[:2] != ["show", "node"]:
        return 1
    names = words[2].split(",")
    for name in names:
        if name in addresses:
            print(
                f"NodeName={name} Arch=x86_64 CoresPerSocket=8 Gres=gpu:4 "
                f"NodeAddr={addresses[name]} NodeHostName={name} Version=22.05.8"
            )
        else:
            print(f"Node {name} not found", file=sys.stderr)
    return 0 if all(name in addresses for name in names) else 1


if __name__ == "__main__":
    sys.exit(main())
