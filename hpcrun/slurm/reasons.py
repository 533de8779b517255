"""Explanations of Slurm's messages: why a job is pending, and why a command was rejected.

Reason codes are those of job_state_reason_string() in Slurm's source from 20.11 to 26.05, sentences
those that its job_mgr.c sets instead of a code. ``scontrol show assoc_mgr`` prints limits and their
usage: users see their own even if the site sets PrivateData, and slurmctld answers without a query
to the database.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from hpcrun.patterns import pattern_of


class ReasonExplanation(Struct, frozen=True):
    """A reason as a sentence; ``fix`` is the user's remedy, or "" if waiting is the only one."""

    words: str
    fix: str = ""


class ReachedLimit(Struct, frozen=True):
    """The parts of a reason such as QOSMaxGRESPerUser.

    Attributes:
        whose: "qos" or "assoc".
        amount: Group (all its users together), Max or Min.
        resource: One of ``_RESOURCES``.
        per: "" (in use at once), Job, Node, User or Account.
        minutes: "" (no time), Minutes (total usage) or RunMinutes (running jobs).
    """

    whose: str
    amount: str
    resource: str
    per: str = ""
    minutes: str = ""


class LimitUsage(Struct, frozen=True):
    """The value of a limit and its current usage, in ``unit``."""

    allowed: str
    used: str
    unit: str


_HELD_FIX = "scontrol release {job}"
_ADMIN = "contact the site's support, with the output of scontrol show job {job}"
_LARGER = "cancel it, and request more or use another QOS: it will not start in this form"
_SMALLER = "cancel it, and request less: it will not start in this form"

_REASONS: dict[str, ReasonExplanation] = {
    "Priority": ReasonExplanation("other jobs have a higher priority"),
    "Resources": ReasonExplanation("waits for nodes to become free"),
    "Dependency": ReasonExplanation("waits for another job"),
    "DependencyNeverSatisfied": ReasonExplanation(
        "the job that it depends on did not end as required: it will never start",
        "hpcrun cancel {job}, and submit it without --after",
    ),
    "BeginTime": ReasonExplanation("its requested begin time has not been reached"),
    "JobHeldUser": ReasonExplanation("is held by its user", _HELD_FIX),
    "JobHeldAdmin": ReasonExplanation("is held by the site's administrators", _ADMIN),
    "JobHoldMaxRequeue": ReasonExplanation(
        "is held: it was requeued as often as the site allows", f"see its logs, then {_HELD_FIX}"
    ),
    "job requeued in held state": ReasonExplanation("is held since it was requeued", _HELD_FIX),
    "job requeued in special exit state": ReasonExplanation(
        "is held: the site requeued it because of its exit code", f"see its logs, then {_HELD_FIX}"
    ),
    "launch failed requeued held": ReasonExplanation(
        "is held: its node could not launch it", _HELD_FIX
    ),
    "launch failure limit exceeded requeued held": ReasonExplanation(
        "is held: its nodes could not launch it, as often as the site allows", _HELD_FIX
    ),
    "user env retrieval failed requeued held": ReasonExplanation(
        "is held: its node could not load your login's environment", _HELD_FIX
    ),
    "JobArrayTaskLimit": ReasonExplanation(
        "waits for other runs of its sweep: the limit of running tasks is reached"
    ),
    "None": ReasonExplanation("was just submitted: Slurm has not evaluated it yet"),
    "Prolog": ReasonExplanation("its nodes are being prepared"),
    "Cleaning": ReasonExplanation("its last attempt is still being cleaned up"),
    "Licenses": ReasonExplanation("waits for a licence that other jobs use"),
    "Reservation": ReasonExplanation("waits for its reservation to begin or to have room"),
    "ReservationDeleted": ReasonExplanation(
        "its reservation was deleted", "hpcrun cancel {job}, and submit it without the reservation"
    ),
    "ReservationInvalid": ReasonExplanation(
        "its reservation cannot be used", "scontrol show reservation lists those that can"
    ),
    "ReqNodeNotAvail": ReasonExplanation("a node that it needs is down, drained or reserved"),
    "NodeDown": ReasonExplanation("a node that it needs is down"),
    "PartitionDown": ReasonExplanation("its partition accepts jobs but does not start any now"),
    "PartitionInactive": ReasonExplanation("its partition is inactive and starts no jobs"),
    "PartitionNodeLimit": ReasonExplanation(
        "requests more nodes than its partition allows, or nodes that are down", _SMALLER
    ),
    "PartitionTimeLimit": ReasonExplanation(
        "requests more time than its partition allows", _SMALLER
    ),
    "PartitionConfig": ReasonExplanation(
        "requests something that its partition does not have or allow", _SMALLER
    ),
    "FrontEndDown": ReasonExplanation("no front-end node is up"),
    "SchedDefer": ReasonExplanation("requested an immediate start, which the scheduler deferred"),
    "BadConstraints": ReasonExplanation("no node meets its requirements", _SMALLER),
    "Constraints": ReasonExplanation("no node meets its requirements", _SMALLER),
    "AccountNotAllowed": ReasonExplanation(
        "its account may not use the partition", "use another: --account or --partition"
    ),
    "InvalidAccount": ReasonExplanation(
        "its account is not valid, or no longer valid", "use another: --account"
    ),
    "QOSNotAllowed": ReasonExplanation(
        "its QOS may not be used here", "use another: slurm: {{qos: NAME}} in the job"
    ),
    "InvalidQOS": ReasonExplanation(
        "its QOS is not valid, or no longer valid", "use another: slurm: {{qos: NAME}}"
    ),
    "QOSUsageThreshold": ReasonExplanation(
        "your share of the cluster is used up: below the QOS's threshold"
    ),
    "QOSJobLimit": ReasonExplanation("your QOS is at its limit of jobs"),
    "QOSResourceLimit": ReasonExplanation("your QOS is at one of its limits"),
    "QOSTimeLimit": ReasonExplanation("requests more time than your QOS allows", _SMALLER),
    "AssociationJobLimit": ReasonExplanation("your account is at its limit of jobs"),
    "AssociationResourceLimit": ReasonExplanation("your account is at one of its limits"),
    "AssociationTimeLimit": ReasonExplanation(
        "your account has used up its time, or the job requests too much"
    ),
    "AccountingPolicy": ReasonExplanation("a limit of your account or QOS is reached"),
    "MaxMemPerLimit": ReasonExplanation(
        "requests more memory per CPU or node than allowed", _SMALLER
    ),
    "BurstBufferResources": ReasonExplanation("waits for space in the burst buffer"),
    "BurstBufferStageIn": ReasonExplanation("its data is being staged in"),
    "BurstBufferOperation": ReasonExplanation("an operation on its burst buffer failed", _ADMIN),
    "PowerNotAvail": ReasonExplanation("waits for power"),
    "PowerReserved": ReasonExplanation("waits for power that is reserved"),
    "MaxPoweredUpNodes": ReasonExplanation("as many nodes are powered up as the site allows"),
    "MpiPortsBusy": ReasonExplanation("waits for ports for MPI"),
    "FedJobLock": ReasonExplanation("another cluster of the federation decides about it"),
    # Reasons of ended jobs.
    "SystemFailure": ReasonExplanation("Slurm itself failed", _ADMIN),
    "JobLaunchFailure": ReasonExplanation(
        "its script was killed, or could not be launched: its folder or script there, or the node"
    ),
    "NonZeroExitCode": ReasonExplanation("ended with an exit code other than 0"),
    "RaisedSignal": ReasonExplanation("ended by a signal"),
    "TimeLimit": ReasonExplanation("ran until its time limit"),
    "InactiveLimit": ReasonExplanation("was inactive for too long"),
    "DeadLine": ReasonExplanation("could not end before its deadline"),
    "OutOfMemory": ReasonExplanation("used more memory than it requested"),
    "InvaildReason": ReasonExplanation("Slurm gives no valid reason"),
}

# Variants for jobs that hpcrun did not submit: hpcrun's options and keys do not apply to them.
_OF_OTHERS: dict[str, ReasonExplanation] = {
    "DependencyNeverSatisfied": ReasonExplanation(
        "the job that it depends on did not end as required: it will never start",
        "hpcrun cancel {job}, and submit it without this dependency",
    ),
    "JobArrayTaskLimit": ReasonExplanation(
        "waits for other tasks of its array: the limit of running tasks is reached"
    ),
    "QOSNotAllowed": ReasonExplanation("its QOS may not be used here", "use another: --qos"),
    "InvalidQOS": ReasonExplanation(
        "its QOS is not valid, or no longer valid", "use another: --qos"
    ),
}

# Wording: plural; plural times minutes; then the trackable resource, or a prefix of those of its
# kind.
_RESOURCES = {
    **dict.fromkeys(("Cpu", "CPU"), ("CPUs", "CPU-minutes", "cpu")),
    **dict.fromkeys(("Mem", "Memory"), ("memory", "memory-minutes", "mem")),
    "Node": ("nodes", "node-minutes", "node"),
    "GRES": ("GPUs", "GPU-minutes", "gres/"),
    "License": ("licences", "licence-minutes", "license/"),
    "BB": ("burst buffer space", "burst buffer minutes", "bb/"),
    "Energy": ("energy", "energy-minutes", "energy"),
    "Billing": ("billing units", "billing minutes", "billing"),
    **dict.fromkeys(("Jobs", "Job"), ("running jobs", "job-minutes", "")),
    **dict.fromkeys(("SubmitJobs", "SubmitJob"), ("queued jobs", "job-minutes", "")),
    **dict.fromkeys(("Wall", "WallDuration"), ("run time", "run time", "")),
    "Unknown": ("resources", "minutes", ""),
}
_TOGETHER = {
    ("qos", "Grp"): " for all its users together",
    ("assoc", "Grp"): " for all its jobs together",
    ("qos", "Account"): " for an account",
}
_WHO = {
    ("qos", "Grp"): "all users of your QOS together have reached its",
    ("qos", "Account"): "your account has reached your QOS's",
    ("qos", "User"): "you have reached your QOS's",
    ("qos", ""): "you have reached your QOS's",
    ("assoc", "Grp"): "all jobs of your account together have reached its",
    ("assoc", "User"): "you have reached your account's",
    ("assoc", "Account"): "your account has reached its",
    ("assoc", ""): "you have reached your account's",
}
_LIMIT = pattern_of(
    r"(?P<whose>QOS|Assoc)?(?P<amount>Grp|Max|Min)"
    rf"(?P<resource>{'|'.join(sorted(_RESOURCES, key=len, reverse=True))})"
    r"(?P<minutes>RunMinutes|RunMins|Minutes)?(?:Per(?P<per>Job|Node|User|Account))?"
    r"(?:Limit|NotSatisfied)?"
)

_PLAIN = {
    ("Grp", "Jobs"): "GrpJobs",
    ("Grp", "SubmitJobs"): "GrpSubmitJobs",
    ("Grp", "Wall"): "GrpWall",
    ("User", "Jobs"): "MaxJobsPU",
    ("User", "SubmitJob"): "MaxSubmitJobsPU",
    ("Account", "Jobs"): "MaxJobsPA",
    ("Account", "SubmitJobs"): "MaxSubmitJobsPA",
    ("", "Jobs"): "MaxJobs",
    ("", "SubmitJob"): "MaxSubmitJobs",
    ("Job", "WallDuration"): "MaxWallPJ",
}


def parse_limit(reason: str) -> ReachedLimit | None:
    """Parse the limit that a reason names; None for another kind of reason.

    >>> parse_limit("QOSMaxGRESPerUser")
    ReachedLimit(whose='qos', amount='Max', resource='GRES', per='User', minutes='')
    >>> parse_limit("AssocGrpCPURunMinutesLimit").minutes, parse_limit("Priority")
    ('RunMinutes', None)
    """
    found = _LIMIT.fullmatch(reason)
    if found is None or reason in _REASONS:
        return None
    return ReachedLimit(
        # MaxGRESPerAccount and the like are limits of a QOS.
        whose="assoc" if found["whose"] == "Assoc" else "qos",
        amount=found["amount"],
        resource=found["resource"],
        per=found["per"] or "",
        minutes=(found["minutes"] or "").replace("RunMins", "RunMinutes"),
    )


def explain_reason(
    reason: str, job_id: str = "", numbers: LimitUsage | None = None, *, own: bool = True
) -> ReasonExplanation:
    """Explain why a job is pending; an unknown reason is returned unchanged.

    Args:
        numbers: The usage of the limit that the reason names, if known.
        own: hpcrun submitted the job.

    >>> explain_reason("QOSMaxGRESPerUser", numbers=LimitUsage("8", "8", "GPUs")).words
    'your QOS allows 8 GPUs at once; 8 are in use'
    >>> explain_reason("JobHeldUser", "7").fix
    'scontrol release 7'
    >>> explain_reason("ReqNodeNotAvail, UnavailableNodes:n1").words
    'a node that it needs is down, drained or reserved (UnavailableNodes:n1)'
    >>> explain_reason("JobArrayTaskLimit", own=False).words
    'waits for other tasks of its array: the limit of running tasks is reached'
    >>> explain_reason("SomethingNew").words
    'SomethingNew'
    """
    # squeue appends a remark to some reasons, in older versions with underscores.
    code, _, remark = reason.partition(",")
    remark = remark.replace("_", " ").strip() if code in _REASONS else ""
    name = code if remark else reason.replace("_", " ")
    known = _REASONS.get(name) if own else _OF_OTHERS.get(name, _REASONS.get(name))
    limit = parse_limit(reason)
    if known is None:
        known = _of_limit(limit, numbers) if limit is not None else ReasonExplanation(reason)
    more = "" if not remark or remark.endswith(":") else f" ({remark})"  # "UnavailableNodes:"
    return ReasonExplanation(known.words + more, known.fix.format(job=job_id or "JOBID"))


def _of_limit(limit: ReachedLimit, numbers: LimitUsage | None) -> ReasonExplanation:
    owner = "your QOS" if limit.whose == "qos" else "your account"
    many, minutes, _ = _RESOURCES[limit.resource]
    noun = numbers.unit if numbers else many
    group = limit.amount if limit.amount == "Grp" else limit.per
    together = _TOGETHER.get((limit.whose, group), "")
    used = f": {numbers.used} of {numbers.allowed} are used" if numbers else ""
    most = f": at most {numbers.allowed}" if numbers else ""
    if limit.amount == "Min":
        return ReasonExplanation(f"{owner} accepts only jobs that request more {noun}", _LARGER)
    if limit.resource in ("Wall", "WallDuration"):
        if limit.amount == "Grp":
            return ReasonExplanation(f"{owner} has used up its run time{used}")
        return ReasonExplanation(
            f"requests more time than {owner} allows for a job{most}", _SMALLER
        )
    if limit.per in ("Job", "Node"):
        what, each = (minutes, "job") if limit.minutes else (noun, limit.per.lower())
        return ReasonExplanation(
            f"requests more {what} than {owner} allows for a {each}{most}", _SMALLER
        )
    if limit.minutes == "Minutes":
        return ReasonExplanation(
            f"{owner} has used up the {minutes} that it allows{together}{used}"
        )
    if limit.minutes:
        return ReasonExplanation(
            f"running jobs use all {minutes} that {owner} allows{together}{used}"
        )
    if numbers and noun.endswith(" jobs"):
        noun = noun[:-1] if numbers.allowed == "1" else noun
        there = "there is 1" if numbers.used == "1" else f"there are {numbers.used}"
        return ReasonExplanation(f"{owner} allows {numbers.allowed} {noun}{together}; {there}")
    if numbers:
        verb = "is" if noun == "memory" or numbers.used == "1" else "are"
        allowed = f"{numbers.allowed} {noun}"
        return ReasonExplanation(
            f"{owner} allows {allowed} at once{together}; {numbers.used} {verb} in use"
        )
    return ReasonExplanation(f"{_WHO[limit.whose, group]} limit of {noun}")


def show_limits_argv(limit: ReachedLimit, qos: str, account: str) -> list[str]:
    """Return the query for the limits of a job's QOS, or of its account and parent accounts."""
    if limit.whose == "qos":
        return ["scontrol", "show", "assoc_mgr", "flags=qos", f"qos={qos}"]
    return ["scontrol", "show", "assoc_mgr", "flags=assoc", f"accounts={account}"]


def find_limit_usage(
    text: str, limit: ReachedLimit, *, user: str, uid: str, account: str
) -> LimitUsage | None:
    """Find the value and usage of a limit; None if the text does not contain them.

    >>> text = "QOS=q(1)\\n  User Limits\\n    me(7)\\n      MaxTRESPU=cpu=N(1),gres/gpu=8(6)\\n"
    >>> limit = ReachedLimit("qos", "Max", "GRES", per="User")
    >>> find_limit_usage(text, limit, user="me", uid="7", account="a")
    LimitUsage(allowed='8', used='6', unit='GPUs')
    """
    key = _key(limit)
    for section in _sections(text, limit, user, uid, account) if key else []:
        values = re.search(rf"(?:^|\s){key}=(\S*)", section)
        found = _closest_limit(values[1], limit) if values else None
        if found is not None:
            return found
    return None


def _key(limit: ReachedLimit) -> str | None:
    group = "Grp" if limit.amount == "Grp" else limit.per
    plain = _PLAIN.get((group, limit.resource))
    if plain is not None or not _RESOURCES[limit.resource][2]:
        return plain
    if limit.amount == "Grp":
        return "GrpTRES" + {"": "", "Minutes": "Mins", "RunMinutes": "RunMins"}[limit.minutes]
    if limit.amount == "Min":
        return "MinTRESPJ"
    if limit.minutes == "RunMinutes":
        return {"User": "MaxTRESRunMinsPU", "Account": "MaxTRESRunMinsPA"}.get(limit.per)
    ends = {"Job": "PJ", "Node": "PN", "User": "PU", "Account": "PA"}
    middle = "Mins" if limit.minutes else ""
    return f"MaxTRES{middle}{ends[limit.per]}" if limit.per in ends else None


def _sections(text: str, limit: ReachedLimit, user: str, uid: str, account: str) -> list[str]:
    """Return the parts of the output for this user or account."""
    if limit.whose == "assoc":
        records = re.split(r"(?m)^(?=ClusterName=)", text)
        own = [each for each in records if re.search(rf"UserName={re.escape(user)}\(", each)]
        return [*own, *(each for each in records if re.search(r"UserName= ", each))]
    if limit.per not in ("User", "Account") or limit.amount == "Grp":
        return [re.split(r"(?m)^\s+Account Limits", text)[0]]
    # Users are listed by uid, in some versions by name as well.
    of_user = rf"(?:{re.escape(user)}(?:\({uid}\))?|{re.escape(uid)})"
    name = of_user if limit.per == "User" else re.escape(account)
    heading = "User Limits" if limit.per == "User" else "Account Limits"
    part = text.partition(heading)[2]
    match = re.search(rf"(?m)^\s+{name}\s*\n((?:\s+\w+=.*\n?)+)", part)
    return [match[1]] if match else []


def _closest_limit(values: str, limit: ReachedLimit) -> LimitUsage | None:
    """Return the usage of the resource that is closest to its limit."""
    many, _, wanted = _RESOURCES[limit.resource]
    best: tuple[float, LimitUsage] | None = None
    for part in values.split(","):
        name, _, value = part.rpartition("=")
        match = re.fullmatch(r"(\d+)(?:\.\d+)?(?:\((\d+)(?:\.\d+)?\))?", value)
        fits = name.startswith(wanted) if wanted.endswith("/") else name == wanted
        if match is None or not fits:
            continue
        allowed, used = int(match[1]), int(match[2] or 0)
        share = used / allowed if allowed else 2.0
        kind, _, model = name.partition("/")[2].partition(":")
        unit = f"{model} GPUs".lstrip() if kind == "gpu" else name.partition("/")[2] or many
        if best is None or share > best[0]:
            best = (
                share,
                LimitUsage(_format_amount(name, allowed), _format_amount(name, used), unit),
            )
    return best[1] if best else None


def _format_amount(name: str, value: int) -> str:
    """Format an amount; memory is in MiB."""
    return f"{value / 1024:.0f} GiB" if name == "mem" else f"{value:,}"


# ---- rejections and missing answers --------------------------------------------------------------


# Classes of error messages: texts of slurm_strerror (src/common/slurm_errno.c), and of the client
# library when the controller, the database or munge does not answer.
Answer = Literal[
    "silence",
    "never sent",
    "no configuration",
    "unknown job",
    "over",
    "finished",
    "requeue disabled",
    "denied",
]
_ANSWERS: dict[Answer, re.Pattern[str]] = {
    # The outcome is unknown.
    "silence": pattern_of(
        r"Unable to contact slurm controller"
        r"|Socket timed out"
        r"|Zero Bytes were transmitted"
        r"|Connection (refused|timed out|reset)"
        r"|Unable to establish (control machine|controller)"
        r"|slurm_persist_conn_open_without_init"
        r"|Problem talking to (the )?database"
        r"|Unable to connect to (the )?database"
        r"|(in standby|backup) mode"
        r"|fetch_config|Could not establish a configuration source"
        r"|(Insane|Incomplete) message"
        r"|Transport endpoint"
        r"|Unable to process configuration file"
        r"|Munge encode failed|Protocol authentication error"
        r"|No route to host",
        re.IGNORECASE,
    ),
    # The request cannot have arrived: no connection, no munge.
    "never sent": pattern_of(
        r"connect failure|Munge encode failed|Unable to process configuration file"
        r"|Could not establish a configuration source"
    ),
    # There is no slurm.conf, so no cluster is known.
    "no configuration": pattern_of(r"onfiguration (source|file)"),
    "unknown job": pattern_of(r"Invalid job (id|array)", re.IGNORECASE),
    # scancel: the job has ended, or is completing.
    "over": pattern_of(r"already complet"),
    # scontrol requeue: the job cannot restart, or was submitted with --no-requeue.
    "finished": pattern_of(r"already finished"),
    "requeue disabled": pattern_of(r"disabled"),
    "denied": pattern_of(r"access|permission", re.IGNORECASE),
}

_LIMITS = "sacctmgr show qos and sacctmgr show assoc user=$USER list the limits"
# Remedies for rejections: pattern of the message -> fix.
_FIXES = [
    (r"invalid partition", "name a partition of this cluster: sinfo lists them"),
    (
        r"invalid account|account/partition combination",
        "name your account: --account, or account: in hpcrun.yaml "
        "(sacctmgr show assoc user=$USER lists yours)",
    ),
    # "... (job submit limit, user's size and/or time limits)"; some versions name the limit first.
    (r"accounting/QOS policy", f"wait, or ask for less: {_LIMITS}"),
    (r"time limit", "ask for less time: --time, or resources.time"),
    (r"--time specification", "write the time as 90 (minutes), 24:00:00 or 2-12 (days-hours)"),
    (
        r"feature specification",
        "no node has this feature: check slurm.constraint and the profile's gpu_types against "
        "sinfo -o '%P %f'",
    ),
    (r"reservation", "name a reservation that you may use: scontrol show reservation lists them"),
    (
        # 24.11 and later; older versions treated an unknown job as completed.
        r"dependency",
        "Slurm does not know the job to wait for (any more): submit without --after, or name "
        "another job",
    ),
    (
        r"node configuration is not available|invalid generic resource|invalid gres",
        "no node has what the job asks for, or too few have it: check resources.nodes, "
        "gpus_per_node, gpu_type, cpus_per_gpu and memory_per_node against "
        "sinfo -o '%P %D %G %c %m'",
    ),
    (
        r"node count",
        "check resources.nodes against the partition's limits: scontrol show partition",
    ),
    (
        r"job array specification",
        "a sweep has more runs than this Slurm takes in an array (scontrol show config: "
        "MaxArraySize): submit it in parts",
    ),
    (
        r"qos",
        "name a QOS that you may use, as slurm: {qos: NAME} "
        "(sacctmgr show assoc user=$USER format=account,qos lists yours)",
    ),
]


def matches_answer(stderr: str, answer: Answer) -> bool:
    """Return True if the error output of a Slurm command belongs to a class of answers.

    >>> matches_answer(
    ...     "sbatch: error: Batch job submission failed: Socket timed out on send/recv", "silence")
    True
    >>> matches_answer("Unable to contact slurm controller (connect failure)", "never sent")
    True
    >>> matches_answer(
    ...     "sinfo: fatal: Could not establish a configuration source", "no configuration")
    True
    >>> matches_answer(
    ...     "Kill job error on job id 7: Job/step already completing or completed", "over")
    True
    >>> matches_answer("Job has already finished for job 7", "finished")
    True
    >>> matches_answer("Requested operation is presently disabled for job 7", "requeue disabled")
    True
    >>> error = "scancel: error: Kill job error on job id 7: Access/permission denied"
    >>> matches_answer(error, "denied"), matches_answer(error, "unknown job"), matches_answer(
    ...     error, "silence")
    (True, False, False)
    """
    return _ANSWERS[answer].search(stderr) is not None


def refusal_fix(stderr: str) -> str:
    """Return the remedy for a rejection; "" if Slurm's message has to suffice.

    >>> refusal_fix("sbatch: error: invalid partition specified: x")
    'name a partition of this cluster: sinfo lists them'
    >>> refusal_fix("sbatch: error: QOSMaxSubmitJobPerUserLimit").partition(";")[0]
    "you have reached your QOS's limit of queued jobs"
    """
    for word in re.findall(r"\b(?:QOS|Assoc|Max|Grp)\w+", stderr):
        if parse_limit(word) is not None:
            return f"{explain_reason(word).words}; {_LIMITS}"
    return next((fix for text, fix in _FIXES if re.search(text, stderr, re.IGNORECASE)), "")
