"""The bundled profiles: every preset renders, and meets the documentation of the site."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from hpcrun.assets import shipped_folder
from hpcrun.plan.build import build_plan
from hpcrun.render.environment import open_templates
from hpcrun.render.files import render_files
from hpcrun.spec.job import Cluster
from hpcrun.spec.load import load_cluster, load_job
from tests.needs import require_command
from tests.plan.making import PLACE
from tests.source import ROOT

SITES = {file.stem: file for file in sorted(shipped_folder("sites").glob("*.yaml"))}
PRESETS = {file.stem: file for file in sorted(shipped_folder("jobs").glob("*.yaml"))}
FOUR, EIGHT = "zero2-8gpu-2node", "zero3-16gpu-2node"

# A copy of the wiki; the original could not be read.
ALLIANCE = "https://github.com/CARTE-Toronto/alliance-docs-mcp/blob/main/docs/pages/General/"
CSC = "https://docs.csc.fi/support/tutorials/ml-multi/"
CSCS = "https://docs.cscs.ch/software/communication/nccl/"
IDRIS = "http://www.idris.fr/en/docs/jean-zay/slurm/slurm_partitions_gpu"
ISAMBARD = "https://docs.isambard.ac.uk/user-documentation/guides/example-data/nccl/env_vars.sh"
JSC = (
    "https://github.com/HelmholtzAI-FZJ/"
    "2025-12-course-Bringing-Deep-Learning-Workloads-to-JSC-supercomputers"
)
LUMI = "https://docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/lumig-job/"
MN5 = "https://github.com/TJ-Solergibert/MN5-Distributed-PyTorch"
OLCF = "https://docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html"
TACC = "https://docs.tacc.utexas.edu/hpc/stampede3/"
TOOLKIT = (
    "https://github.com/GoogleCloudPlatform/cluster-toolkit/tree/main/examples/machine-learning/"
)

AWS = (
    "https://github.com/aws-samples/awsome-distributed-training/tree/main/3.test_cases/pytorch/FSDP"
)
CLARIDEN = "https://docs.cscs.ch/clusters/clariden/"
FRONTIER = "https://docs.olcf.ornl.gov/systems/frontier_user_guide.html"
LUMI_PARTITIONS = "https://docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/partitions/"
CSC_PARTITIONS = "https://docs.csc.fi/computing/running/batch-job-partitions/"

# Site, preset, text required by its documentation in the files (with "!": text that must not
# occur), and the source.
FACTS = [
    ("lumi-g", EIGHT, "#SBATCH --partition=standard-g", LUMI),
    ("lumi-g", EIGHT, "#SBATCH --gpus-per-node=8", LUMI),
    ("lumi-g", EIGHT, "#SBATCH --cpus-per-task=56", CSC),
    ("lumi-g", EIGHT, "NCCL_NET_GDR_LEVEL:-PHB", CSCS),
    ("lumi-g", EIGHT, 'MIOPEN_USER_DB_PATH="$HPCRUN_LOCAL_DIR"', OLCF),
    ("frontier", EIGHT, "#SBATCH --network=disable_rdzv_get", OLCF),
    ("frontier", EIGHT, "load_module rccl-net-plugin", OLCF),
    ("frontier", EIGHT, "export FI_CXI_RDZV_PROTO=alt_read", OLCF),
    ("frontier", EIGHT, "#SBATCH --cpus-per-task=56", OLCF),
    ("frontier", EIGHT, 'MIOPEN_CUSTOM_CACHE_DIR="$HPCRUN_LOCAL_DIR"', OLCF),
    ("alps", FOUR, 'NCCL_NET="${NCCL_NET:-AWS Libfabric}"', CSCS),
    ("alps", FOUR, "NCCL_NET_GDR_LEVEL:-PHB", CSCS),
    ("alps", FOUR, "NCCL_PROTO='^LL128'", CSCS),
    ("alps", FOUR, "FI_CXI_DEFAULT_TX_SIZE:-16384", CSCS),
    ("alps", FOUR, "MPICH_GPU_SUPPORT_ENABLED=0", CSCS),
    ("isambard-ai", FOUR, "NCCL_NET_GDR_LEVEL:-PHB", ISAMBARD),
    ("isambard-ai", FOUR, "FI_CXI_RX_MATCH_MODE:-hybrid", ISAMBARD),
    ("isambard-ai", FOUR, "FI_CXI_RDZV_PROTO=alt_read", ISAMBARD),
    ("isambard-ai", FOUR, "FI_CXI_DEFAULT_TX_SIZE=2048", ISAMBARD),
    ("juwels-booster", FOUR, "CUDA_VISIBLE_DEVICES=0,1,2,3", JSC),
    ("juwels-booster", FOUR, "--cpu-bind=none", JSC),
    ("juwels-booster", FOUR, "#SBATCH --cpus-per-task=48", JSC),
    ("juwels-booster", FOUR, "HF_DATASETS_OFFLINE=1", JSC),
    ("jean-zay", FOUR, "#SBATCH --hint=nomultithread", IDRIS),
    ("jean-zay", FOUR, "#SBATCH --cpus-per-task=40", IDRIS),
    ("jean-zay", FOUR, "!#SBATCH --mem", IDRIS),
    (
        "leonardo",
        FOUR,
        "#SBATCH --partition=boost_usr_prod",
        "https://docs.hpc.cineca.it/hpc/leonardo.html",
    ),
    (
        "leonardo",
        FOUR,
        "#SBATCH --cpus-per-task=32",
        "https://docs.hpc.cineca.it/hpc/leonardo.html",
    ),
    ("perlmutter", FOUR, "#SBATCH --constraint=gpu", "https://docs.nersc.gov/jobs/policy/"),
    ("perlmutter", FOUR, "#SBATCH --qos=regular", "https://docs.nersc.gov/jobs/policy/"),
    ("perlmutter", FOUR, "!#SBATCH --partition", "https://docs.nersc.gov/jobs/policy/"),
    ("mahti", FOUR, "#SBATCH --partition=gpumedium", CSC),
    ("mahti", FOUR, "#SBATCH --cpus-per-task=128", CSC),
    ("roihu", FOUR, "#SBATCH --cpus-per-task=288", CSC),
    ("fir", FOUR, "#SBATCH --gpus-per-node=h100:4", f"{ALLIANCE}Fir.md"),
    ("fir", FOUR, "#SBATCH --cpus-per-task=48", f"{ALLIANCE}Fir.md"),
    ("fir", FOUR, "!HF_HUB_OFFLINE", f"{ALLIANCE}Fir.md"),
    ("fir", FOUR, "!#SBATCH --partition", f"{ALLIANCE}Fir.md"),
    ("rorqual", FOUR, "#SBATCH --gpus-per-node=h100:4", f"{ALLIANCE}Rorqual.md"),
    ("rorqual", FOUR, "#SBATCH --cpus-per-task=64", f"{ALLIANCE}Rorqual.md"),
    ("rorqual", FOUR, "#SBATCH --mem=510000M", f"{ALLIANCE}Rorqual.md"),
    ("fir", FOUR, "#SBATCH --mem=1152000M", f"{ALLIANCE}Fir.md"),
    ("rorqual", FOUR, "HF_HUB_OFFLINE=1", f"{ALLIANCE}Rorqual.md"),
    ("rorqual", FOUR, 'local_folder "${SLURM_TMPDIR:?not set', f"{ALLIANCE}PyTorch.md"),
    ("marenostrum5", FOUR, "#SBATCH --qos=acc_ehpc", f"{MN5} has acc_bsccs; EuroHPC's users"),
    ("marenostrum5", FOUR, "#SBATCH --partition=acc", "users' scripts"),
    ("marenostrum5", FOUR, "HF_HUB_OFFLINE=1", "users' scripts"),
    ("marenostrum5", FOUR, "#SBATCH --gres=gpu:4", MN5),
    ("marenostrum5", FOUR, "#SBATCH --cpus-per-task=80", MN5),
    ("marenostrum5", FOUR, " --cpus-per-task=80 ", MN5),
    ("mahti", FOUR, "#SBATCH --gres=gpu:a100:4", CSC),
    ("stampede3", FOUR, "#SBATCH --partition=h100", TACC),
    ("stampede3", FOUR, "!#SBATCH --gres", TACC),
    ("stampede3", FOUR, "!#SBATCH --mem", TACC),
    ("stampede3", FOUR, " --cpus-per-task=96 ", f"{TACC}: whole nodes"),
    ("gcp-a3-mega", EIGHT, "NCCL_NET:-FasTrak", f"{TOOLKIT}a3-megagpu-8g/nccl-tests"),
    ("gcp-a3-mega", EIGHT, "nccl-env-profile.sh", f"{TOOLKIT}a3-megagpu-8g/nccl-tests"),
    ("gcp-a3-mega", EIGHT, "NCCL_SOCKET_IFNAME=enp0s12", f"{TOOLKIT}a3-megagpu-8g/nccl-tests"),
    ("gcp-a3-mega", EIGHT, "#SBATCH --mem=0", f"{TOOLKIT}a3-megagpu-8g/nccl-tests"),
    ("gcp-a3-ultra", EIGHT, "NCCL_NET:-gIB", f"{TOOLKIT}a3-ultragpu-8g/nccl-tests"),
    ("gcp-a3-ultra", EIGHT, "set_nccl_env.sh", f"{TOOLKIT}a3-ultragpu-8g/nccl-tests"),
    (
        *("aws-p5", EIGHT, 'NCCL_NET="${NCCL_NET:-AWS Libfabric}"'),
        "https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md",
    ),
    (
        *("aws-p5", EIGHT, "!FI_EFA_USE_DEVICE_RDMA"),
        "https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md",
    ),
    ("frontier", EIGHT, "export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3", OLCF),
    ("frontier", EIGHT, "export HSA_FORCE_FINE_GRAIN_PCIE=1", OLCF),
    ("frontier", EIGHT, "export FI_CXI_DEFAULT_TX_SIZE=2048", OLCF),
    ("frontier", EIGHT, "export FI_CXI_RDZV_EAGER_SIZE=0", OLCF),
    ("frontier", EIGHT, "NCCL_CROSS_NIC:-1", OLCF),
    ("alps", FOUR, "FI_CXI_RX_MATCH_MODE=software", CSCS),
    ("alps", FOUR, "FI_MR_CACHE_MONITOR:-userfaultfd", CSCS),
    ("alps", FOUR, "FI_CXI_DEFAULT_CQ_SIZE:-131072", CSCS),
    ("alps", FOUR, "FI_CXI_DISABLE_HOST_REGISTER:-1", CSCS),
    ("isambard-ai", FOUR, "NCCL_MIN_NCHANNELS=4", ISAMBARD),
    ("isambard-ai", FOUR, "NCCL_GDRCOPY_ENABLE=1", ISAMBARD),
    ("isambard-ai", FOUR, "NCCL_NET_FORCE_FLUSH=0", ISAMBARD),
    ("juwels-booster", FOUR, "#SBATCH --gres=gpu:4", JSC),
    ("juwels-booster", FOUR, "#SBATCH --nodes=2", JSC),
    ("roihu", FOUR, "#SBATCH --gres=gpu:gh200:4", CSC_PARTITIONS),
    ("roihu", FOUR, "!#SBATCH --mem", CSC_PARTITIONS),
    ("fir", FOUR, "!HF_DATASETS_OFFLINE", f"{ALLIANCE}Fir.md"),
    ("fir", FOUR, "NCCL_NET:-IB", f"{ALLIANCE}Fir.md: InfiniBand NDR"),
    ("rorqual", FOUR, "NCCL_NET:-IB", f"{ALLIANCE}Rorqual.md: InfiniBand"),
    ("rorqual", FOUR, "!#SBATCH --partition", f"{ALLIANCE}Rorqual.md"),
    ("stampede3", FOUR, "!--gpus-per-task", TACC),
    ("stampede3", FOUR, "#SBATCH --nodes=2", TACC),
    ("gcp-a3-mega", EIGHT, "#SBATCH --gpus-per-node=8", f"{TOOLKIT}a3-megagpu-8g/nccl-tests"),
    ("gcp-a3-mega", EIGHT, "/dev/aperture_devices", f"{TOOLKIT}a3-megagpu-8g/nccl-tests"),
    ("gcp-a3-ultra", EIGHT, "#SBATCH --gpus-per-node=8", f"{TOOLKIT}a3-ultragpu-8g/nccl-tests"),
    ("gcp-a3-ultra", EIGHT, "#SBATCH --mem=0", f"{TOOLKIT}a3-ultragpu-8g/nccl-tests"),
    ("gcp-a3-ultra", EIGHT, "=enp0s19,enp192s20", f"{TOOLKIT}a3-ultragpu-8g/nccl-tests"),
    ("aws-p5", EIGHT, "#SBATCH --exclusive", AWS),
    ("aws-p5", EIGHT, "export FI_EFA_USE_HUGE_PAGE=0", AWS),
    ("marenostrum5", FOUR, "#SBATCH --ntasks-per-node=1", MN5),
]
# Site, partition, and its documented limits.
LIMITS = [
    ("lumi-g", "standard-g", {"max_time": "2-00:00:00", "max_nodes": 1024}, LUMI_PARTITIONS),
    ("lumi-g", "small-g", {"max_time": "3-00:00:00", "max_nodes": 4}, LUMI_PARTITIONS),
    ("alps", "normal", {"max_time": "12:00:00", "exclusive": True}, CLARIDEN),
    ("frontier", "batch", {"max_time": "12:00:00", "cpus_per_node": 56}, FRONTIER),
    ("jean-zay", "gpu_p13", {"max_time": "100:00:00"}, IDRIS),
    ("mahti", "gpusmall", {"max_gpus": 2, "max_nodes": 1}, CSC_PARTITIONS),
    ("mahti", "gpumedium", {"max_nodes": 6, "max_time": "36:00:00"}, CSC_PARTITIONS),
    ("roihu", "gpumedium", {"max_gpus": 4, "max_nodes": 4}, CSC_PARTITIONS),
    ("roihu", "gpularge", {"max_nodes": 10, "max_time": "36:00:00"}, CSC_PARTITIONS),
    ("rorqual", "gpu", {"cpus_per_node": 64, "max_time": "7-00:00:00"}, f"{ALLIANCE}Rorqual.md"),
    ("fir", "gpu", {"max_time": "7-00:00:00", "cpus_per_node": 48}, f"{ALLIANCE}Fir.md"),
    ("stampede3", "h100", {"nodes": 24, "max_nodes": 4, "max_time": "48:00:00"}, TACC),
]


def profile(site: str) -> Cluster:
    return load_cluster(SITES[site].read_text(), source=f"{site}.yaml")


@cache
def rendered(site: str, preset: str) -> dict[str, str]:
    def resolve(name: str) -> tuple[str, str]:
        return PRESETS[name].read_text(), f"{name}.yaml"

    spec = load_job(PRESETS[preset].read_text(), source=preset, resolve=resolve)
    if spec.sweep:
        spec = load_job("extends: single-gpu", source=preset, resolve=resolve)
    files = render_files(build_plan(spec, profile(site), PLACE), open_templates(None))
    return {file.name: file.text for file in files}


@pytest.mark.parametrize(("site", "preset", "wanted", "source"), FACTS)
def test_rendered_files_meet_the_documentation_of_the_site(
    site: str, preset: str, wanted: str, source: str
) -> None:
    files = rendered(site, preset)
    text = files["job.sbatch"] + files["node.sh"]
    absent = wanted.startswith("!")
    assert (wanted.removeprefix("!") in text) != absent, source


@pytest.mark.parametrize(("site", "partition", "limits", "source"), LIMITS)
def test_profile_has_the_documented_limits_of_a_partition(
    site: str, partition: str, limits: dict[str, object], source: str
) -> None:
    facts = profile(site).partitions[partition]
    assert {name: getattr(facts, name) for name in limits} == limits, source


def test_every_profile_names_its_source_and_is_documented() -> None:
    documented = (ROOT / "docs" / "sites.md").read_text()
    for site, file in SITES.items():
        text = file.read_text()
        assert re.search(r"Read on \d{4}-\d\d-\d\d, never run there:\n#   https?://", text), site
        assert profile(site).name == site
        assert f"`{site}`" in documented, site
        assert all(len(line) <= 100 or "https:" in line for line in text.splitlines()), site
    assert {row[0] for row in FACTS} == SITES.keys() and len(SITES) > 10


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
def test_every_preset_passes_shellcheck_on_every_site(site: str, tmp_path: Path) -> None:
    """Check the files of all sites in one call of shellcheck, which takes a second."""
    require_command("shellcheck")
    paths = []
    for preset in PRESETS:
        for name, text in rendered(site, preset).items():
            if name in ("job.sbatch", "node.sh"):
                path = tmp_path / f"{preset}-{name}"
                path.write_text(text)
                paths.append(str(path))
    # SC1091: the site's own files do not exist here.
    argv = ["shellcheck", "--shell=bash", "--exclude=SC1091", *paths]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[:2000]
