"""Remove this machine from Slurm's output: folders, addresses and names of the rig."""

from __future__ import annotations

import re


def neutral(text: str, *, link: str, shared: str, root: str) -> str:
    r"""Return text as if the cluster were called ``cluster``, with its files in ``/scratch``.

    ``link`` is the rig's name; ``shared`` its shared folder.

    >>> text = "node[1-2] of rig12ab at 10.18.171.11 in /var/tmp/x/rig/shared/runs\n"
    >>> print(neutral(text, link="rig12ab", shared="/var/tmp/x/rig/shared", root="/var/tmp/x/rig"))
    node[1-2] of cluster at 10.0.0.11 in /scratch/runs
    <BLANKLINE>
    """
    text = text.replace(shared, "/scratch").replace(root, "/opt/slurm")
    text = text.replace(link, "cluster")
    text = re.sub(r"\b10\.\d+\.\d+\.(\d+)\b", r"10.0.0.\1", text)
    # Of a node: the kernel and when this machine was started, its load and what memory is free.
    text = re.sub(r"OS=.*?(?=\s+RealMemory=)", "OS=Linux", text)
    text = re.sub(r"BootTime=\S+", "BootTime=2026-01-01T00:00:00", text)
    return re.sub(r"(CPULoad|FreeMem)=\S+", r"\1=1", text)
