"""Evaluations that jobs submit: which environment they get."""

from hpcrun.jobside.evaluations import Training, _StageSubmitter

JOB = {
    "HOME": "/home/ada",
    "SBATCH_ACCOUNT": "vision",
    "SBATCH_TIMELIMIT": "5",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_JOB_ID": "17",
    "CUDA_VISIBLE_DEVICES": "3",
    "PMIX_RANK": "0",
    "HPCRUN_RUN_DIR": "/runs/train",
    "API_KEY": "of the training's shell",
}


def environment_of(stage: dict[str, object]) -> dict[str, str]:
    stage = {"run_id": "20261129-081455-eval-7k3q", "without": [], **stage}
    training = Training("/runs/train", "/runs/train/checkpoints", 1, "")
    submitter = _StageSubmitter(JOB, "/runs/train/evaluations", "eval", stage, training)
    return submitter._make_environment()


def test_evaluation_inherits_no_variables_of_the_training_job() -> None:
    kept = {"HOME", "SBATCH_ACCOUNT", "SLURM_CONF", "API_KEY"}
    assert environment_of({}) == {name: JOB[name] for name in kept}
    dropped = ["SBATCH_ACCOUNT", "API_KEY"]
    assert environment_of({"without": dropped}).keys() == {"HOME", "SLURM_CONF"}


def test_evaluation_with_a_clean_environment_inherits_only_the_slurm_installation() -> None:
    clean = {"HOME": "/home/ada", "PATH": "/usr/bin"}
    found = environment_of({"environment": clean})
    assert found == {**clean, "SLURM_CONF": "/etc/slurm/slurm.conf"}
