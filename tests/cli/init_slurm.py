"""A cluster that answers the queries of `hpcrun init`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.cli.calling import Caller, Done
from tests.json_schemas import check_json

CONFIG = """\
AccountingStorageEnforce = none
AccountingStorageType   = accounting_storage/none
ClusterName             = hot
MaxArraySize            = 1001
SLURM_VERSION           = 24.11.5
TmpFS                   = /tmp
"""

PARTITIONS = """\
PartitionName=cpu Default=YES DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=3-00:00:00 State=UP
PartitionName=gpu Default=NO DefaultTime=01:00:00 MaxNodes=8 MaxTime=2-00:00:00 State=UP
"""

NODES = """\
cpu|100|64|256000|idle|c[001-100]|(null)|(null)
gpu|20|128|512000|mixed|g[01-20]|gpu:a100:4(S:0-1)|ib
"""


class Slurm:
    """Commands with configurable answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answer("config", CONFIG)
        self.answer("partition", PARTITIONS)
        self.answer("sinfo", NODES)
        self.answer("node", "NodeName=g01 CPUTot=128 CPUEfctv=124 RealMemory=512000\n")
        self.answer("sacctmgr", "", code=1)
        script = '#!/bin/sh\ncase "$0 $*" in\n'
        for key, sign in (
            ("config", "show config"),
            ("partition", "show partition"),
            ("node", "show node"),
            ("sinfo", "/sinfo"),
            ("sacctmgr", "/sacctmgr"),
        ):
            script += f'*"{sign}"*) cat "{folder}/{key}.out"; cat "{folder}/{key}.err" >&2; '
            script += f'exit "$(cat "{folder}/{key}.code")" ;;\n'
        for name in ("scontrol", "sinfo", "sacctmgr"):
            (folder / name).write_text(f"{script}esac\n")
            (folder / name).chmod(0o755)

    def answer(self, key: str, out: str, err: str = "", code: int = 0) -> None:
        (self.folder / f"{key}.out").write_text(out, errors="surrogateescape")
        (self.folder / f"{key}.err").write_text(err)
        (self.folder / f"{key}.code").write_text(str(code))


def profile(hpcrun: Caller) -> Any:
    return yaml.safe_load((hpcrun.project / "hpcrun.yaml").read_text())


def files(hpcrun: Caller) -> list[str]:
    found = (path for path in hpcrun.project.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(hpcrun.project)) for path in found)


def checked(done: Done) -> Any:
    check_json("init", done.json)
    return done.json
