"""Values of a trial, drawn by optuna from the trials so far. Its Python has optuna."""

import json
from typing import Any, Dict, List, Mapping

from hpcrun.jobside.search import Trial, is_finite, read_search, read_trials

_DIGITS = 6


def sample_trial(environ: Mapping[str, str]) -> str:
    """Return the values of this trial as JSON, and the number of trials that they are based on."""
    search = read_search(environ["HPCRUN_RUN_DIR"])
    number = search["number"]
    trials = [trial for trial in read_trials(search) if trial.number != number and trial.values]
    # Equal numbers draw equal values, so those of the earlier searches are not used again.
    used = sum(before["trials"] for before in list_earlier_searches(search))
    earlier = read_earlier_trials(search)
    values, based_on = draw_values(search, used + number, earlier + trials)
    return json.dumps({"values": values, "based_on": based_on})


def list_earlier_searches(search: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return the searches of which this one repeats a part, the first one first."""
    searches: List[Dict[str, Any]] = []
    known: List[str] = []
    run = search.get("earlier")
    while run and run not in known:
        known.append(run)
        before = read_search(run)
        if before:
            searches.insert(0, before)
        run = before.get("earlier")
    return searches


def read_earlier_trials(search: Mapping[str, Any]) -> List[Trial]:
    """Read the trials of the searches of which this one repeats a part."""
    trials = [trial for before in list_earlier_searches(search) for trial in read_trials(before)]
    # A trial without an end has died: its search is over.
    return [trial for trial in trials if trial.values and trial.state != "running"]


def draw_values(search: Mapping[str, Any], number: int, trials: List[Trial]) -> Any:
    """Return the values of a trial, and the number of finished trials that they are based on."""
    import optuna  # the job's Python may lack it, and only this module needs it

    # Trials that start at the same time must not draw the same values.
    sampler = optuna.samplers.TPESampler(
        seed=(search["seed"] * 1000003 + number) % (1 << 32), constant_liar=True
    )
    study, space = _make_study(optuna, search, trials, sampler)
    based_on = sum(each.state != optuna.trial.TrialState.RUNNING for each in study.get_trials())
    asked = study.ask(space)
    return {name: _format(asked.params[name]) for name in space}, based_on


def compute_importances(search: Mapping[str, Any], trials: List[Trial]) -> Dict[str, float]:
    """Return the share of each parameter in the differences between trials, by PED-ANOVA.

    https://arxiv.org/abs/2304.10255, as optuna implements it.
    """
    import optuna

    study, space = _make_study(optuna, search, trials, optuna.samplers.RandomSampler())
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(found[name]) for name in space if name in found}


def _make_study(optuna: Any, search: Mapping[str, Any], trials: List[Trial], sampler: Any) -> Any:
    """Return a study with these trials, and the distributions of its parameters."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {name: _make_distribution(optuna, given) for name, given in search["space"].items()}
    study = optuna.create_study(direction=search["goal"], sampler=sampler)
    known = [trial.value for trial in trials if trial.value is not None and is_finite(trial.value)]
    worst = (max if search["goal"] == "minimize" else min)(known, default=None)
    for trial in trials:
        made = _make_trial(optuna, trial, space, worst)
        if made is not None:
            study.add_trial(made)
    return study, space


def _make_distribution(optuna: Any, given: Any) -> Any:
    if isinstance(given, list):
        return optuna.distributions.CategoricalDistribution(given)
    if given["kind"] == "int":
        return optuna.distributions.IntDistribution(int(given["low"]), int(given["high"]))
    is_log = given["kind"] == "log"
    return optuna.distributions.FloatDistribution(given["low"], given["high"], log=is_log)


def _make_trial(optuna: Any, trial: Trial, space: Mapping[str, Any], worst: Any) -> Any:
    """Return a trial as optuna's; None if it says nothing about its values."""
    states = optuna.trial.TrialState
    params: Dict[str, Any] = {}
    for name, of in space.items():
        text = trial.values.get(name, "")
        kinds = optuna.distributions
        if isinstance(of, kinds.CategoricalDistribution):
            params[name] = text
        elif isinstance(of, kinds.IntDistribution):
            params[name] = int(text)
        else:
            params[name] = min(max(float(text), of.low), of.high)
    value = trial.value
    if value is not None and not is_finite(value):
        value = worst  # it diverged, which is worth to be learned
    make = optuna.trial.create_trial
    if trial.state == "running":
        return make(state=states.RUNNING, params=params, distributions=dict(space))
    if value is None or trial.state not in ("complete", "pruned"):
        return None
    if trial.state == "pruned":
        return make(
            state=states.PRUNED,
            params=params,
            distributions=dict(space),
            intermediate_values={trial.points[-1][0]: value},
        )
    return make(state=states.COMPLETE, value=value, params=params, distributions=dict(space))


def _format(value: Any) -> str:
    return "{:.{}g}".format(value, _DIGITS) if isinstance(value, float) else str(value)
