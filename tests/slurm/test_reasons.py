"""Explanations of pending reasons, for every reason of Slurm 20.11 to 26.05."""

from __future__ import annotations

import re
from itertools import product

import pytest

from hpcrun.slurm.reasons import (
    LimitUsage,
    ReachedLimit,
    explain_reason,
    find_limit_usage,
    parse_limit,
    show_limits_argv,
)

# job_state_reason_string() of Slurm's source (src/common), all releases from 20.11 to 26.05.
_NAMES = """
AccountNotAllowed AccountingPolicy AssocGrpBB AssocGrpBBMinutes AssocGrpBBRunMinutes
AssocGrpBilling AssocGrpBillingMinutes AssocGrpBillingRunMinutes AssocGrpCPUMinutesLimit
AssocGrpCPURunMinutesLimit AssocGrpCpuLimit AssocGrpEnergy AssocGrpEnergyMinutes
AssocGrpEnergyRunMinutes AssocGrpGRES AssocGrpGRESMinutes AssocGrpGRESRunMinutes AssocGrpJobsLimit
AssocGrpLicense AssocGrpLicenseMinutes AssocGrpLicenseRunMinutes AssocGrpMemLimit
AssocGrpMemMinutes AssocGrpMemRunMinutes AssocGrpNodeLimit AssocGrpNodeMinutes
AssocGrpNodeRunMinutes AssocGrpSubmitJobsLimit AssocGrpUnknown AssocGrpUnknownMinutes
AssocGrpUnknownRunMinutes AssocGrpWallLimit AssocMaxBBMinutesPerJob AssocMaxBBPerJob
AssocMaxBBPerNode AssocMaxBillingMinutesPerJob AssocMaxBillingPerJob AssocMaxBillingPerNode
AssocMaxCpuMinutesPerJobLimit AssocMaxCpuPerJobLimit AssocMaxCpuPerNode AssocMaxEnergyMinutesPerJob
AssocMaxEnergyPerJob AssocMaxEnergyPerNode AssocMaxGRESMinutesPerJob AssocMaxGRESPerJob
AssocMaxGRESPerNode AssocMaxJobsLimit AssocMaxLicenseMinutesPerJob AssocMaxLicensePerJob
AssocMaxMemMinutesPerJob AssocMaxMemPerJob AssocMaxMemPerNode AssocMaxNodeMinutesPerJob
AssocMaxNodePerJobLimit AssocMaxSubmitJobLimit AssocMaxUnknownMinutesPerJob AssocMaxUnknownPerJob
AssocMaxUnknownPerNode AssocMaxWallDurationPerJobLimit AssociationJobLimit AssociationResourceLimit
AssociationTimeLimit BadConstraints BeginTime BurstBufferOperation BurstBufferResources
BurstBufferStageIn Cleaning Constraints DeadLine Dependency DependencyNeverSatisfied FedJobLock
FrontEndDown InactiveLimit InvaildReason InvalidAccount InvalidQOS JobArrayTaskLimit JobHeldAdmin
JobHeldUser JobHoldMaxRequeue JobLaunchFailure Licenses MaxBBPerAccount MaxBBRunMinsPerAccount
MaxBBRunMinsPerUser MaxBillingPerAccount MaxBillingRunMinsPerAccount MaxBillingRunMinsPerUser
MaxCpuPerAccount MaxCpuRunMinsPerAccount MaxCpuRunMinsPerUser MaxEnergyPerAccount
MaxEnergyRunMinsPerAccount MaxEnergyRunMinsPerUser MaxGRESPerAccount MaxGRESRunMinsPerAccount
MaxGRESRunMinsPerUser MaxJobsPerAccount MaxLicensePerAccount MaxLicenseRunMinsPerAccount
MaxLicenseRunMinsPerUser MaxMemPerLimit MaxMemoryPerAccount MaxMemoryRunMinsPerAccount
MaxMemoryRunMinsPerUser MaxNodePerAccount MaxNodeRunMinsPerAccount MaxNodeRunMinsPerUser
MaxPoweredUpNodes MaxSubmitJobsPerAccount MaxUnknownPerAccount MaxUnknownRunMinsPerAccount
MaxUnknownRunMinsPerUser MpiPortsBusy NodeDown NonZeroExitCode None OutOfMemory PartitionConfig
PartitionDown PartitionInactive PartitionNodeLimit PartitionTimeLimit PowerNotAvail PowerReserved
Priority Prolog QOSGrpBB QOSGrpBBMinutes QOSGrpBBRunMinutes QOSGrpBilling QOSGrpBillingMinutes
QOSGrpBillingRunMinutes QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpCpuLimit QOSGrpEnergy
QOSGrpEnergyMinutes QOSGrpEnergyRunMinutes QOSGrpGRES QOSGrpGRESMinutes QOSGrpGRESRunMinutes
QOSGrpJobsLimit QOSGrpLicense QOSGrpLicenseMinutes QOSGrpLicenseRunMinutes QOSGrpMemLimit
QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes QOSGrpNodeLimit QOSGrpNodeMinutes QOSGrpNodeRunMinutes
QOSGrpSubmitJobsLimit QOSGrpUnknown QOSGrpUnknownMinutes QOSGrpUnknownRunMinutes QOSGrpWallLimit
QOSJobLimit QOSMaxBBPerJob QOSMaxBBPerNode QOSMaxBBPerUser QOSMaxBillingMinutesPerJob
QOSMaxBillingPerJob QOSMaxBillingPerNode QOSMaxBillingPerUser QOSMaxCpuMinutesPerJobLimit
QOSMaxCpuPerJobLimit QOSMaxCpuPerNode QOSMaxCpuPerUserLimit QOSMaxEnergyMinutesPerJob
QOSMaxEnergyPerJob QOSMaxEnergyPerNode QOSMaxEnergyPerUser QOSMaxGRESMinutesPerJob QOSMaxGRESPerJob
QOSMaxGRESPerNode QOSMaxGRESPerUser QOSMaxJobsPerUserLimit QOSMaxLicenseMinutesPerJob
QOSMaxLicensePerJob QOSMaxLicensePerUser QOSMaxMemoryMinutesPerJob QOSMaxMemoryPerJob
QOSMaxMemoryPerNode QOSMaxMemoryPerUser QOSMaxNodeMinutesPerJob QOSMaxNodePerJobLimit
QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit QOSMaxUnknownMinutesPerJob QOSMaxUnknownPerJob
QOSMaxUnknownPerNode QOSMaxUnknownPerUser QOSMaxWallDurationPerJobLimit QOSMinBB QOSMinBilling
QOSMinCpuNotSatisfied QOSMinEnergy QOSMinGRES QOSMinLicense QOSMinMemory QOSMinNode QOSMinUnknown
QOSNotAllowed QOSResourceLimit QOSTimeLimit QOSUsageThreshold RaisedSignal ReqNodeNotAvail
Reservation ReservationDeleted ReservationInvalid Resources SchedDefer SystemFailure TimeLimit
"""
CODES = _NAMES.split()


def test_every_reason_is_explained() -> None:
    for code, numbers in product(CODES, (None, LimitUsage("8", "6", "GPUs"))):
        why = explain_reason(code, "7", numbers)
        text = f"{why.words} {why.fix}"
        assert " " in why.words and code not in why.words.split(), code
        # No raw name of a limit, no unfilled placeholder, and no repeated word.
        assert not re.search(r"\b(\w+) \1\b|Max|Grp|None|JOBID|\{job", text), text


def test_reasons_that_need_an_action_have_a_fix() -> None:
    assert explain_reason("JobHeldUser", "7").fix == "scontrol release 7"
    assert "--after" in explain_reason("DependencyNeverSatisfied", "7").fix
    assert "will not start" in explain_reason("QOSMaxGRESPerJob").fix
    assert explain_reason("Priority").fix == explain_reason("QOSGrpGRES").fix == ""


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "(UnavailableNodes:n[1-2])"),
        ("ReqNodeNotAvail,_May_be_reserved_for_other_job", "(May be reserved for other job)"),
        ("ReqNodeNotAvail, UnavailableNodes:", "or reserved"),
        ("A reason, that nobody knows", "A reason, that nobody knows"),
        ("a_reason_of_a_later_release", "a_reason_of_a_later_release"),
        ("", ""),
    ],
)
def test_remarks_and_unknown_reasons_are_shown_verbatim(reason: str, words: str) -> None:
    assert explain_reason(reason).words.endswith(words)


@pytest.mark.parametrize(
    "sentence",
    [
        "job requeued in held state",  # scontrol requeuehold: our own requeue --hold
        "job requeued in special exit state",
        "launch failed requeued held",
        "launch failure limit exceeded requeued held",
        "user env retrieval failed requeued held",
    ],
)
def test_reasons_in_sentences_are_explained(sentence: str) -> None:
    for reason in (sentence, sentence.replace(" ", "_")):
        why = explain_reason(reason, "7")
        assert why.words.startswith("is held") and "scontrol release 7" in why.fix


# Output of scontrol 22.05.8 (shortened, and with more limits) for a job of user 0.
QOS = """\
Current Association Manager state

QOS Records

QOS=normal(1)
    UsageRaw=0.000000
    GrpJobs=N(1) GrpJobsAccrue=N(2) GrpSubmitJobs=N(4) GrpWall=N(0.00)
    GrpTRES=cpu=64(1),mem=N(2000),node=N(1),gres/gpu=8(4)
    GrpTRESMins=cpu=N(0),gres/gpu=1000(990)
    GrpTRESRunMins=cpu=N(5),gres/gpu=N(20)
    MaxWallPJ=60
    MaxTRESPJ=cpu=2
    MaxTRESPN=
    MinTRESPJ=gres/gpu=1
    Account Limits
      root
        MaxJobsPA=N(1) MaxJobsAccruePA=N(2) MaxSubmitJobsPA=N(4)
        MaxTRESPA=cpu=N(1),gres/gpu=16(4)
    User Limits
      10
        MaxJobsPU=9(9) MaxSubmitJobsPU=N(4)
        MaxTRESPU=cpu=N(1),gres/gpu=7(7)
      0
        MaxJobsPU=1(1) MaxJobsAccruePU=N(2) MaxSubmitJobsPU=N(4)
        MaxTRESPU=cpu=N(1),mem=4096(2048),gres/gpu=4(4),gres/gpu:a100=2(1)
"""


@pytest.mark.parametrize(
    ("reason", "numbers"),
    [
        ("QOSMaxGRESPerUser", LimitUsage("4", "4", "GPUs")),
        ("QOSMaxMemoryPerUser", LimitUsage("4 GiB", "2 GiB", "memory")),
        ("QOSMaxJobsPerUserLimit", LimitUsage("1", "1", "running jobs")),
        ("QOSGrpGRES", LimitUsage("8", "4", "GPUs")),
        ("QOSGrpGRESMinutes", LimitUsage("1,000", "990", "GPUs")),
        ("QOSMaxCpuPerJobLimit", LimitUsage("2", "0", "CPUs")),
        ("MaxGRESPerAccount", LimitUsage("16", "4", "GPUs")),
        ("QOSMaxCpuPerUserLimit", None),
        ("QOSMaxEnergyPerUser", None),
        ("QOSGrpUnknown", None),
    ],
)
def test_numbers_of_a_limit_are_shown(reason: str, numbers: LimitUsage | None) -> None:
    limit = parse_limit(reason)
    assert limit is not None
    assert find_limit_usage(QOS, limit, user="root", uid="0", account="root") == numbers


@pytest.mark.parametrize("text", ["", "x" * 1000, "\0\1\2", "QOS=\nUser Limits\n", "Grp=,=(\n"])
def test_malformed_limits_have_no_numbers(text: str) -> None:
    for code in CODES:
        limit = parse_limit(code)
        if limit is not None:
            assert find_limit_usage(text, limit, user="(", uid="", account="[") is None


def test_requested_resources_are_described() -> None:
    limit = parse_limit("AssocGrpGRES")
    assert limit == ReachedLimit("assoc", "Grp", "GRES")
    assert show_limits_argv(limit, "q", "a")[-2:] == ["flags=assoc", "accounts=a"]
