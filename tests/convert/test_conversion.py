"""Sbatch scripts as jobs: each statement is in the job, or a remark names it."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest

from hpcrun.convert import Conversion, convert_script, format_converted_job
from hpcrun.errors import InputError
from hpcrun.spec import JobSpec, load_job


def convert(text: str, *arguments: str, **options: Any) -> Conversion:
    """Convert a script, and check that its job file is valid."""
    made = convert_script(
        f"#!/bin/bash\n{text}", "old", project="/p", home="/h", arguments=arguments, **options
    )
    load(made)
    return made


def load(made: Conversion) -> JobSpec:
    def extends_nothing(name: str) -> tuple[str, str]:
        raise InputError(name)

    text = format_converted_job(made, "old.sbatch", "job.schema.json")
    return load_job(text, source="old.yaml", resolve=extends_nothing)


def job(text: str, *arguments: str) -> dict[str, Any]:
    """Convert a script that must be complete, and return its job."""
    made = convert(text, *arguments)
    assert made.missing == []
    return made.job


def missing(text: str) -> list[str]:
    return [one.reason for one in convert(text).missing]


# Commands of the setup run in the folder of the run otherwise.
TORCHRUN = "srun torchrun --nnodes=2 --nproc-per-node=2 train.py\n"
TWO = "#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:2\n"


@pytest.mark.parametrize(
    ("directives", "key", "value"),
    [
        ("-N 2 --gres=gpu:a100:2 -c 8", "resources", {"nodes": 2, "gpus_per_node": 2}),
        ("--gpus-per-node=2 -t 90", "resources", {"gpus_per_node": 2, "time": "90"}),
        ("--gres=gpu:a100:2", "resources", {"gpu_type": "a100"}),
        ("--gres=gpu:2,nvme:100", "resources", {"gres": {"nvme": "100"}}),
        ("--gpus=2 --mem=64gb", "resources", {"gpus_per_node": 2, "memory_per_node": "64GB"}),
        ("--gpus=2 -c 16", "resources", {"cpus_per_gpu": 8}),
        ("--gpus=2 --exclusive -p a -A b", "resources", {"exclusive": True, "partition": "a"}),
        ("--gpus=2", "slurm", {"cpus-per-task": False}),
        ("--gpus=2 --mem-per-cpu=4G -q high", "slurm", {"mem-per-cpu": "4G", "qos": "high"}),
        ("--gpus=2 -C a100 --dependency=afterok:7", "slurm", {"dependency": "afterok:7"}),
        ("--gpus=2 --requeue", "survive", {"when": ["preempted", "node_fail"]}),
        ("--gpus=2 --signal=B:USR1@120", "survive", {"save_before_end": "120s"}),
    ],
)
def test_directives_become_keys(directives: str, key: str, value: dict[str, Any]) -> None:
    found = job(f"#SBATCH {directives}\n{TORCHRUN}")[key]
    assert found | value == found


def test_request_without_cpus_stays_without() -> None:
    assert load(convert(f"#SBATCH --gpus=2\n{TORCHRUN}")).slurm == {"cpus-per-task": False}


def test_modules_environment_and_variables_become_setup_and_env() -> None:
    found = job(
        "#SBATCH --gpus=2\nmodule use /appl\nmodule load cuda/12.4 gcc\nmkdir -p out\n"
        "source venv/bin/activate\nexport A=1\nexport B={}\nexport NCCL_DEBUG=INFO\n" + TORCHRUN
    )
    assert found["setup"] == {
        "module_paths": ["/appl"],
        "modules": ["cuda/12.4", "gcc"],
        "venv": "venv",
        "commands": ["mkdir -p out || true"],
    }
    assert (found["env"], found["nccl"]) == (
        {"A": "1", "B": "{{}}"},
        {"env": {"NCCL_DEBUG": "INFO"}},
    )


def test_order_of_commands_is_kept_where_they_depend_on_each_other() -> None:
    found = job(
        "#SBATCH --gpus=2\nsource ./site.sh\nmodule load cuda\nexport D=/data\ncp $D/x .\n"
        + TORCHRUN
    )
    commands = ["source ./site.sh", "module load cuda", "export D=/data", "cp $D/x . || true"]
    assert found["setup"] == {"commands": commands} and "env" not in found


def test_conda_of_a_given_installation_is_its_folder() -> None:
    text = "#SBATCH --gpus=2\nsource /opt/conda/etc/profile.d/conda.sh\nconda activate ml\n"
    assert job(text + TORCHRUN)["setup"] == {"conda": "/opt/conda/envs/ml"}


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (
            "srun torchrun --nnodes=2 --nproc-per-node=2 --max-restarts=0 t.py --lr 1",
            {"script": "t.py", "args": ["--lr", "1"], "launcher": "torchrun"},
        ),
        (
            "srun python -m torch.distributed.run --nnodes 2 --nproc_per_node 2 -m a.b {x}",
            {"module": "a.b", "args": ["{{x}}"], "launcher": "torchrun"},
        ),
        ("srun accelerate launch --num_processes 4 t.py", {"launcher": "accelerate"}),
        (
            "srun --ntasks-per-node=2 python -u t.py",
            {"script": "t.py", "launcher": "srun"},
        ),
        ("srun python t.py", {"command": ["python", "t.py"]}),
        (
            'A=1\nsrun bash -c "python t.py --a $A --rank \\$SLURM_PROCID"',
            {"command": ["bash", "-c", 'exec python t.py --a 1 --rank "$SLURM_PROCID"']},
        ),
    ],
)
def test_command_line_becomes_launcher_and_program(command: str, keys: dict[str, Any]) -> None:
    found = job(TWO + command + "\n")
    assert found | keys == found


def test_values_that_only_the_job_knows_are_computed_once() -> None:
    found = job(
        f"{TWO}D=$(date +%s)\nsrun torchrun --nnodes=2 --nproc-per-node=2 t.py --out $D/x $USER\n"
    )
    assert found["command"] == ["bash", "-c", "exec python t.py --out ${{D}}/x ${{USER}}"]
    assert found["setup"] == {"commands": ["export D=$(date +%s)"]}


def test_variables_of_branches_are_exported_for_the_ranks() -> None:
    branch = "if [ $S = 1 ]; then\n  N=1\nelse\n  N=2\nfi"
    found = job(f"{TWO}S=1\n{branch}\nsrun torchrun --nnodes=2 --nproc-per-node=2 t.py --n $N\n")
    assert found["setup"] == {"commands": ["S=1", f"{branch} || true", "export N"]}


def test_array_of_computed_length_is_not_taken_for_one_element() -> None:
    text = "#SBATCH --gpus=1 --array=0-3\nA=( $(seq 1 4) )\npython t.py ${A[SLURM_ARRAY_TASK_ID]}\n"
    assert job(text)["sweep"] == {"array_task_id": ["0", "1", "2", "3"]}


def test_names_in_arithmetic_are_variables() -> None:
    text = (
        "#SBATCH --gpus=1 --array=1-300\nA=(1 2)\nI=$SLURM_ARRAY_TASK_ID\n"
        "X=${A[$(( I % 2 ))]}\nI=$(( I / 2 ))\npython t.py $X\n"
    )
    lines = job(text)["command"][-1].split("\n")
    assert lines[1:4] == ["A=(1 2)", "I=$SLURM_ARRAY_TASK_ID", "X=${{A[$(( I % 2 ))]}}"]


def test_world_size_of_a_program_that_starts_its_ranks_itself_is_kept() -> None:
    found = job(f"{TWO}export WORLD_SIZE=4\nexport MASTER_PORT=1\nsrun python t.py\n")
    assert found["command"] == ["bash", "-c", "export WORLD_SIZE=4\nexec python t.py"]
    ours = job(f"{TWO}export WORLD_SIZE=4\nsrun --ntasks-per-node=2 python t.py\n")
    assert (ours["script"], ours["launcher"]) == ("t.py", "srun")


def test_variables_in_the_text_of_an_inner_shell_are_split() -> None:
    text = "A=$(cat args)\nB=$(cat file)\nsrun bash -c \"python t.py $A '$B'\"\n"
    assert job(TWO + text)["command"][-1] == 'exec python t.py ${{A}} "${{B}}"'


def test_all_commands_of_an_inner_shell_are_kept() -> None:
    text = "A=$(cat f)\nsrun --ntasks-per-node=2 bash -c 'source env.sh; python t.py '$A\n"
    found = job(TWO + text)
    assert found["command"] == ["bash", "-c", "source env.sh; python t.py ${{A}}"]
    assert found["launcher"] == "srun"
    text = 'srun bash -c "source env.sh; torchrun --nnodes=2 --nproc-per-node=2 t.py"\n'
    assert missing(TWO + text) == ["bash -c runs other commands beside torchrun"]


def test_variables_are_read_when_they_are_assigned() -> None:
    """Values that later statements change are those of the assignment."""
    text = "I=$USER\nA=$I-x\nI=2\nsrun torchrun --nnodes=2 --nproc-per-node=2 t.py $A\n"
    assert job(TWO + text)["command"][-1] == "exec python t.py ${{A}}"


def test_script_in_another_directory_starts_there() -> None:
    found = job(f"{TWO}cd /data/project\nsrun torchrun --nnodes=2 --nproc-per-node=2 t.py\n")
    assert found["command"] == ["bash", "-c", "cd /data/project\nexec python t.py"]
    called = convert(f"{TWO}srun torchrun --nnodes=2 --nproc-per-node=2 t.py\n", folder="/p/sub")
    assert called.job["command"][-1] == "cd -- /p/sub\nexec python t.py"


def test_arguments_of_the_script_are_filled_in() -> None:
    text = '#SBATCH --gpus=1\nMODEL=$1; shift\npython t.py --model $MODEL "$@"\n'
    assert missing(text)[0].startswith("$1 is an argument of the script; give the arguments")
    text = "#SBATCH --gpus=1\npython t.py --model $1 --x ${2:-3}\n"
    assert job(text, "a b")["command"] == ["python", "t.py", "--model", "a", "b", "--x", "3"]


def test_array_over_values_becomes_a_sweep() -> None:
    text = (
        "#SBATCH --gpus=1 --array=1-3%2\nLR=(0 .1 .2 .3)\n"
        "python t.py --lr=${LR[$SLURM_ARRAY_TASK_ID]}\n"
    )
    found = job(text)
    assert found["command"] == ["python", "t.py", "--lr={lr}"]
    assert (found["sweep"], found["sweep_limit"]) == ({"lr": [".1", ".2", ".3"]}, 2)
    several = job(
        "#SBATCH --gpus=1 --array=0,5\n"
        "python t.py --seed $SLURM_ARRAY_TASK_ID --n $((SLURM_ARRAY_TASK_ID * 2))\n"
    )
    assert several["sweep_combinations"] == [{"seed": "0", "n": "0"}, {"seed": "5", "n": "10"}]


def test_array_whose_program_starts_elsewhere_sweeps_over_the_index() -> None:
    text = "#SBATCH --gpus=1 --array=1-2\nID=$SLURM_ARRAY_TASK_ID\ncd /d\npython t.py --id $ID\n"
    found = job(text)
    assert found["sweep"] == {"array_task_id": ["1", "2"]}
    assert found["command"][-1].split("\n") == [
        "export SLURM_ARRAY_TASK_ID={array_task_id}",
        "ID=$SLURM_ARRAY_TASK_ID",
        "cd /d",
        "exec python t.py --id ${{ID}}",
    ]


def test_array_that_selects_a_line_of_a_file_sweeps_over_the_index() -> None:
    text = (
        "#SBATCH --gpus=1 --array=1-2\nARGS=$(sed -n ${SLURM_ARRAY_TASK_ID}p args.txt)\n"
        "python t.py $ARGS\n"
    )
    found = job(text)
    assert found["sweep"] == {"array_task_id": ["1", "2"]}
    assert found["command"][-1].split("\n") == [
        "export SLURM_ARRAY_TASK_ID={array_task_id}",
        "ARGS=$(sed -n ${{SLURM_ARRAY_TASK_ID}}p args.txt)",
        "exec python t.py ${{ARGS}}",
    ]


def test_variables_by_the_index_of_the_script_are_set_in_each_task() -> None:
    """The array of the job begins at 0, whatever the indices of the script."""
    text = "#SBATCH --gpus=1 --array=3-4\nexport SEED=$SLURM_ARRAY_TASK_ID\npython t.py\n"
    found = job(text)
    assert found["sweep"] == {"array_task_id": ["3", "4"]} and "setup" not in found
    assert found["command"][-1].split("\n") == [
        "export SLURM_ARRAY_TASK_ID={array_task_id}",
        "export SEED=$SLURM_ARRAY_TASK_ID",
        "exec python t.py",
    ]


def test_several_programs_on_one_node_are_one_command_without_srun() -> None:
    found = job(
        "#SBATCH --gpus=1\nfor i in 1 2; do\n  srun -n1 python t.py $i\ndone\npython e.py\n"
    )
    assert found["command"] == [
        *("bash", "-c"),
        "for i in 1 2; do\n  python t.py $i\ndone\npython e.py",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{TWO}mpirun -n 4 python t.py\n", "mpirun starts the ranks"),
        (f"{TWO}torchrun --nnodes=2 --nproc-per-node=2 t.py\n", "starts only on the first node"),
        (f"{TWO}srun torchrun --nproc-per-node=2 t.py\n", "each node would train on its own"),
        (f"{TWO}srun torchrun --nproc-per-node=1 t.py\n", "1 processes on each node with 2 GPUs"),
        (
            f"{TWO}srun torchrun --nnodes=2 --nproc-per-node=2 t.py\npython e.py\n",
            "there are several",
        ),
        ("#SBATCH --gpus=1\npython t.py $SLURM_ARRAY_TASK_ID\n", "the index of an array"),
        ("#SBATCH --gpus=1 --wrap=x\npython t.py\n", "sbatch refuses it"),
        (f"#SBATCH -N1\n#SBATCH hetjob\n{TORCHRUN}", "a job has one kind of nodes"),
        (f'{TWO}if x; then L=torchrun; fi\nsrun bash -c "$L t.py"\n', "depends on the job"),
        ("#SBATCH --gpus=1\nmodule load cuda\n", "no program that trains was found"),
        (f"{TWO}trap 'rm x' EXIT\n{TORCHRUN}", "the job has no traps"),
        (f"{TWO}save() {{ touch x; }}\ntrap save USR1\n{TORCHRUN}", "the job has no traps"),
        (f"{TWO}exec < prompts.txt\n{TORCHRUN}", "read it as its input"),
        (f"{TWO}[ -f done ] && exit 0\n{TORCHRUN}", "so the job fails where this exits"),
        (f"{TWO}check() {{ [ -f x ] && exit; }}\ncheck\n{TORCHRUN}", "fails where this exits"),
        (f"{TWO}start() {{ redis-server & }}\nstart\n{TORCHRUN}", "runs in the background"),
        (f"{TWO}if x; then redis-server & fi\n{TORCHRUN}", "runs in the background"),
        (f"{TWO}IFS=,\nA=1,2\n{TORCHRUN.strip()} $A\n", "split at blanks"),
        (f"{TWO}srun --time=10 {TORCHRUN[5:]}", "set resources.time"),
        (f"{TWO}srun --chdir=/x {TORCHRUN[5:]}", "starts in the project"),
        (f"{TWO}srun --gpus-per-node=1 {TORCHRUN[5:]}", "have all GPUs of the job"),
        (f"{TWO}srun --multi-prog conf\n", "each rank has its own program"),
        (f"{TWO}srun env -u LD_PRELOAD {TORCHRUN[5:]}", "starts without env"),
        (f"{TWO}while [ $1 = -x ]; do shift; done\n{TORCHRUN.strip()} $1\n", "leaves of the"),
        ("#SBATCH --gpus=1\ncp $0 copy\npython t.py\n", "the job is not the script"),
    ],
)
def test_what_a_job_lacks_is_reported(text: str, reason: str) -> None:
    assert any(reason in one for one in missing(text))


def test_no_statement_is_dropped_silently() -> None:
    text = (
        "#SBATCH --gpus=2\n#SBATCH --output=x.log\nmodule purge\nset -x\necho start\n"
        "export MASTER_PORT=1\nHOST=$(hostname)\nexport CUDA_VISIBLE_DEVICES=0,1\nnvidia-smi\n"
        "torchrun --nproc-per-node=2 t.py 2>&1 | tee log\necho end\nls\n#SBATCH --mem=1G\n"
    )
    made = convert(text)
    lines = {one.line for one in made.remarks}
    assert made.is_complete and lines == {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}


TOKEN = "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"


@pytest.mark.parametrize(
    "line",
    [
        f"export HF_TOKEN={TOKEN}\n{{}}",
        f"HF_TOKEN={TOKEN}\nexport HF_TOKEN\n{{}}",
        f"export HF_TOKEN='{TOKEN}'\ncurl -H $HF_TOKEN https://example.org > data\n{{}}",
        f"HF_TOKEN={TOKEN} {{}}",
    ],
)
def test_secret_in_a_variable_becomes_its_name(line: str) -> None:
    made = convert(f"#SBATCH --gpus=2\n{line.format(TORCHRUN)}")
    assert made.job["secrets"] == ["HF_TOKEN"] and made.missing == []
    assert any(one.text == "HF_TOKEN=***" and one.effect == "changed" for one in made.remarks)
    assert TOKEN not in repr(made)


@pytest.mark.parametrize("line", ["wandb login {}\n{}", "{1} --hf_token {0}"])
def test_secret_in_a_command_is_masked_and_reported(line: str) -> None:
    made = convert(f"#SBATCH --gpus=2\n{line.format(TOKEN, TORCHRUN.strip())}\n")
    assert any("it contains a secret" in one.reason for one in made.missing)
    assert TOKEN not in repr(made) and TOKEN not in format_converted_job(made, "a", "b")


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("[ -f stale ] && rm -rf ckpt", ["[ -f stale ] && rm -rf ckpt || true"]),
        ("[ -f .env ] && source .env", ["[ -f .env ] && source .env || true"]),
        ("make data && make more", ["make data && make more || true"]),
        ('set -e\n[ -n "$FOO" ] && make', ['if [ -n "$FOO" ]; then make; fi']),
        ("cd /d && make", ["cd /d", "make || true"]),
    ],
)
def test_command_after_a_test_stays_conditional(line: str, commands: list[str]) -> None:
    found = job(f"{TWO}{line}\n{TORCHRUN}")["setup"]["commands"]
    assert found == commands


def test_variable_after_a_test_stays_conditional() -> None:
    found = job(
        f'{TWO}ARGS=""\n[[ $DEBUG == 1 ]] && ARGS="--debug"\n'
        "srun torchrun --nnodes=2 --nproc-per-node=2 train.py $ARGS\n"
    )
    assert found["command"] == ["bash", "-c", "exec python train.py ${{ARGS}}"]
    assert '[[ $DEBUG == 1 ]] && ARGS="--debug" || true' in found["setup"]["commands"]


def test_training_after_a_command_depends_on_it() -> None:
    found = job("#SBATCH --gpus=1\npython prep.py && python train.py\n")
    assert found["command"] == ["bash", "-c", "python prep.py && python train.py"]
    assert missing(f"{TWO}make data && {TORCHRUN}") != []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cd sub || exit 1\npython train.py", "cd sub || exit"),
        ("cd sub || { echo failed; exit 2; }\npython train.py", "cd sub || exit"),
        ("cd sub && python train.py", "cd sub || exit"),
        ("set -e\ncd sub\npython train.py", "cd sub || exit"),
        ("cd a || exit\ncd b\npython train.py", 'cd -- "$START_FOLDER" || exit'),
        ("cd sub && echo there\npython train.py", "cd sub"),
        ("cd sub\nset -e\npython train.py", "cd sub"),
    ],
)
def test_directory_that_must_exist_ends_the_program_without_it(text: str, line: str) -> None:
    found = job(f"#SBATCH --gpus=1\n{text}\n")
    assert found["command"][-1].split("\n")[-2:] == [line, "exec python train.py"]


def test_statements_of_an_array_task_end_it_as_in_the_script() -> None:
    text = "set -e\nX=$(head -$SLURM_ARRAY_TASK_ID x)\ncd $X\npython t.py $X"
    lines = job(f"#SBATCH --gpus=1 --array=1-2\n{text}\n")["command"][-1].split("\n")
    assert lines[1:3] == ["X=$(head -$SLURM_ARRAY_TASK_ID x) || exit", "cd $X || exit"]


@pytest.mark.parametrize(
    "lines",
    [
        ["if [ -d sub ]; then cd sub; fi"],
        ["[ -d sub ] && cd sub"],
        ["go() { cd sub; }", "go"],
        ["{ cd sub; }"],
        ["for d in a b; do cd $d; done"],
        ["cd a", "cd b"],
        ["cd a", "cd -"],
        ["pushd a", "popd"],
        ["eval 'cd sub'"],
    ],
)
def test_directory_that_several_statements_decide_is_that_of_the_setup(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    found = job(f"{TWO}{text}srun torchrun --nnodes=2 --nproc-per-node=2 t.py\n")
    assert found["command"][-1] == 'cd -- "$START_FOLDER"\nexec python t.py'
    commands = [one.removesuffix(" || true") for one in found["setup"]["commands"]]
    assert commands == [*lines, "export START_FOLDER=$PWD"]


def test_directory_of_an_array_task_is_changed_once() -> None:
    text = "#SBATCH --gpus=1 --array=1-2\ncd run_$SLURM_ARRAY_TASK_ID\npython t.py\n"
    lines = job(text)["command"][-1].split("\n")
    assert lines[1:] == ["cd run_$SLURM_ARRAY_TASK_ID", "exec python t.py"]
    assert missing(text.replace("cd", "cd x\ncd")) != []


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("#SBATCH --chdir=/d\npython a.py", "cd -- /d\npython a.py"),
        ("set -e\npython a.py", "set -e\npython a.py"),
        ("cd x || exit 1\npython a.py", "cd x || exit 1\npython a.py"),
        ("trap 'rm x' EXIT\npython a.py", "trap 'rm x' EXIT\npython a.py"),
        ("[ -f done ] && exit 0\npython a.py", "[ -f done ] && exit 0\npython a.py"),
        (
            "python() {\n  command python -O t.py\n}\npython a.py",
            "python() {{\n  command python -O t.py\n}}\npython a.py",
        ),
        (
            "python a.py\nmodule load x",
            '. "$HPCRUN_RUN_DIR/setup.sh" && init_modules\npython a.py\nmodule load x',
        ),
    ],
)
def test_statements_of_the_shell_stay_in_the_text_of_a_job(lines: str, text: str) -> None:
    found = job(f"#SBATCH --gpus=1\n{lines}\npython b.py\n")
    assert found["command"] == ["bash", "-c", f"{text}\npython b.py"]


@pytest.mark.parametrize(
    ("lines", "env", "commands"),
    [
        ("declare -x A=1", {"A": "1"}, []),
        ("export A=1\nA=2", {"A": "2"}, []),
        ("export A=1\nA+=2", {}, ["export A=1", "A+=2"]),
        ("set -a\nA=1\nset +a", {"A": "1"}, ["set -a", "set +a"]),
        ("PATH=/x:$PATH", {}, ["PATH=/x:$PATH"]),
        ("PYTHONPATH=/x", {}, ['[ -z "${PYTHONPATH+x}" ] || PYTHONPATH=/x']),
        ("printf -v A x\nexport A", {}, ["printf -v A x || true", "export A"]),
        ("echo $(mkdir x)", {}, ["echo $(mkdir x) || true"]),
        ("for f in a b; do get $f & done\nwait", {}, None),
    ],
)
def test_variables_and_commands_keep_their_effect(
    lines: str, env: dict[str, str], commands: list[str] | None
) -> None:
    found = job(f"{TWO}{lines}\n{TORCHRUN}")
    assert found.get("env", {}) == env
    if commands is None:
        commands = ["for f in a b; do get $f & done || true", "wait || true"]
    assert found.get("setup", {}).get("commands", []) == commands


def test_activation_after_a_search_path_stays_after_it() -> None:
    lines = ['eval "$(conda shell.bash hook)"', "export PATH=/x:$PATH", "conda activate a"]
    found = job(TWO + "\n".join(lines) + f"\n{TORCHRUN}")
    assert found["setup"] == {"commands": lines}


def test_python_of_the_launcher_is_that_of_the_job() -> None:
    for word in ("/opt/bin/torchrun", "/opt/bin/python -m torch.distributed.run"):
        found = job(f"{TWO}srun {word} --nnodes=2 --nproc-per-node=2 t.py\n")
        assert (found["script"], found["setup"]) == ("t.py", {"python": "/opt/bin/python"})
    made = convert(f"{TWO}srun python -O -m torch.distributed.run {TORCHRUN[14:]}")
    (remark,) = made.remarks
    assert remark.reason == "options of Python reach torchrun, not its ranks"


def test_arguments_that_the_script_sets_are_used() -> None:
    text = "#SBATCH --gpus=1\nset -- a b\nshift\npython t.py $1\n"
    assert job(text, "x")["command"] == ["python", "t.py", "b"]


def test_words_of_a_program_expand_as_in_the_script() -> None:
    for line in ("shopt -s nullglob", "set -f"):
        found = job(f"{TWO}{line}\n{TORCHRUN.strip()} *.x\n")
        assert found["command"][-1] == f"{line}\nexec python train.py *.x"
    found = job(f'{TWO}mapfile -t A < f\n{TORCHRUN.strip()} "${{A[@]}}"\n')
    assert found["command"][-1].startswith("mapfile -t A < f\nexec python")


def test_trap_that_requeues_is_a_restart_at_the_time_limit() -> None:
    text = f"{TWO}trap 'scontrol requeue $SLURM_JOB_ID' TERM\n{TORCHRUN}"
    assert job(text)["survive"] == {"when": ["time_limit"]}


def test_commands_in_the_background_stay_there() -> None:
    found = job("#SBATCH --gpus=1\npython server.py &\npython train.py\n")
    assert found["command"] == ["bash", "-c", "python server.py &\npython train.py"]
    found = job("#SBATCH --gpus=1\n./monitor.sh &\npython train.py\n")
    assert found["command"] == ["bash", "-c", "./monitor.sh &\npython train.py"]
    found = job("#SBATCH --gpus=1\npython a.py &\npython b.py & wait\n")
    assert found["command"] == ["bash", "-c", "python a.py &\npython b.py &\nwait"]
    made = convert(f"{TWO}./monitor.sh &\n{TORCHRUN}")
    assert [one.text for one in made.missing] == ["./monitor.sh &"] and "setup" not in made.job


def test_program_in_the_background_that_is_waited_for_is_the_program() -> None:
    found = job(f"{TWO}{TORCHRUN.strip()} &\nwait\n")
    assert (found["script"], found["launcher"]) == ("train.py", "torchrun")


@pytest.mark.parametrize(
    "line",
    [
        "python train.py < prompts.txt",
        "cat x | python train.py",
        "python train.py <<< yes",
        "python train.py <<EOF\na\nEOF",
        "python train.py | python post.py",
    ],
)
def test_input_of_the_training_is_kept(line: str) -> None:
    assert job(f"#SBATCH --gpus=1\n{line}\n")["command"] == ["bash", "-c", line]
    assert missing(f"{TWO}srun {line}\n") != [] or line.startswith("cat")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("srun --export=ALL,FOO=1 python t.py", "srun --export=ALL,FOO=1"),
        ("conda run -n a python t.py", "conda run -n a"),
        ("timeout 60 torchrun --nproc_per_node=1 t.py", "timeout 60"),
        ("srun bash -c 'numactl -N0 python t.py'", "numactl -N0"),
        ("env -i python t.py", "env -i"),
    ],
)
def test_commands_around_the_program_are_reported(line: str, text: str) -> None:
    made = convert(f"#SBATCH --gpus=1\n{line}\n")
    assert [one.text for one in made.missing] == [text]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("timeout 3600 python3 -u t.py a", "timeout 3600 python3 -u t.py a"),
        (
            "srun -n1 --label numactl --cpunodebind=0 python t.py",
            "numactl --cpunodebind=0 python t.py",
        ),
        ("srun nsys profile -o out python t.py", "nsys profile -o out python t.py"),
        ("uv run --locked python t.py --lr 1", "uv run --locked python t.py --lr 1"),
        ("nohup env A=1 uv run python t.py", "uv run python t.py"),
        ("CUDA_VISIBLE_DEVICES=0 python t.py", "env CUDA_VISIBLE_DEVICES=0 python t.py"),
        ("CUDA_VISIBLE_DEVICES= python t.py", "env CUDA_VISIBLE_DEVICES= python t.py"),
    ],
)
def test_commands_around_the_program_are_kept(line: str, command: str) -> None:
    made = convert(f"#SBATCH --gpus=1\n{line}\n")
    assert made.missing == []
    assert made.job["command"] == command.split()
    assert made.job.get("launcher") == ("srun" if line.startswith("srun") else None)


def test_tasks_that_slurm_may_spread_are_on_one_node_as_an_assumption() -> None:
    made = convert("#SBATCH -n 8 --gres=gpu:1\npython t.py\n")
    assert made.is_complete
    assert [(one.text, one.effect) for one in made.remarks if one.effect != "replaced"] == [
        ("-n 8", "assumed"),
        ("8 tasks", "changed"),
    ]
    assert made.job["resources"] == {"gpus_per_node": 1, "cpus_per_gpu": 8}
    assert missing("#SBATCH -n 8 --gres=gpu:1\nsrun python t.py\n") != []
    assert convert("#SBATCH -n 4 --gres=gpu:4\nsrun python t.py\n").job["launcher"] == "srun"
    sized = ("-n 8 -N 1", "-n 1", "-n 8 --ntasks-per-node=8", "-N 2 -n 8")
    for one in sized:
        effects = [one.effect for one in convert(f"#SBATCH {one}\nsrun python t.py\n").remarks]
        assert "assumed" not in effects


def test_node_of_a_nodelist_is_one_node() -> None:
    assert "nodes" not in job("#SBATCH -w node1 --gpus=1\npython t.py\n")["resources"]
    for nodes in ("node[1-2]", "a,b", "./file"):
        assert missing(f"#SBATCH -w {nodes} --gpus=1\npython t.py\n") != []


@pytest.mark.parametrize("devices", ["0", "0,1,2", "0,1"])
def test_selected_gpus_are_those_of_the_job_or_reported(devices: str) -> None:
    made = convert(f"#SBATCH --gres=gpu:2\nexport CUDA_VISIBLE_DEVICES={devices}\npython t.py\n")
    assert made.is_complete == (devices == "0,1")


def test_variables_of_a_sourced_file_reach_the_ranks() -> None:
    sourced = (
        'OUT=/o\nsource config.sh\nsrun python t.py --lr $LR --out "$OUT" --id $SLURM_JOB_ID\n'
    )
    made = job(f"#SBATCH --gpus=1\n{sourced}")
    assert made["setup"]["commands"][-2:] == ["source config.sh", "export LR"]
    for line in ('eval "$(cat config)"', ". ./config.sh"):
        made = job(f"#SBATCH --gpus=1\n{line}\npython t.py $LR\n")
        assert made["setup"]["commands"][-1] == "export LR"


def test_functions_and_arrays_of_a_sourced_file_are_not_exported() -> None:
    for line in ("train_it 1", 'python t.py "${ARGS[@]}"'):
        text = f"#SBATCH --gpus=1\nsource config.sh\n{line}\n"
        shown = line.replace("${ARGS[@]}", "${{ARGS[@]}}")
        assert job(text)["command"] == ["bash", "-c", f"source config.sh\n{shown}"]
        assert missing(text.replace("--gpus=1", "-N 2 --gpus=2")) != []
    text = f'{TWO}source config.sh\nsrun python t.py "${{ARGS[@]}}"\n'
    assert "ARGS may be" in missing(text)[0]


@pytest.mark.parametrize(
    ("above", "setup"),
    [
        ("source venv/bin/activate", {"venv": "venv"}),
        ('eval "$(conda shell.bash hook)"\nconda activate a', {"conda": "a"}),
        ("source /c/etc/profile.d/conda.sh\nconda activate a", {"conda": "/c/envs/a"}),
        (
            "pip list\nsource venv/bin/activate",
            {"commands": ["pip list || true", "source venv/bin/activate"]},
        ),
        ('. "$V/bin/activate" && cd a', None),
    ],
)
def test_activation_defines_no_functions(above: str, setup: dict[str, Any] | None) -> None:
    text = f"#SBATCH --gpus=1\n{above}\nlitgpt pretrain --config $CFG\n"
    made = job(text)
    assert made["command"][-1].splitlines()[-1] == "exec litgpt pretrain --config ${{CFG}}"
    if setup is not None:
        assert made["setup"] == setup
    reasons = missing(text.replace("--gpus=1", "-N 2 --gpus-per-node=1"))
    assert reasons == ["litgpt starts only on the first node: there is no srun before it"]
    made = job(text.replace("litgpt", "source config.sh\nlitgpt"))
    assert "exec" not in made["command"][-1]


def test_only_program_of_any_name_is_the_command() -> None:
    for line in ("wandb agent --count=2 a/b/c", "podman-hpc run --rm image train"):
        made = job(f"#SBATCH --gpus=1\nmkdir -p out\n{line}\necho done\n")
        text = ["bash", "-c", f"mkdir -p out\n{line}\necho done"]
        assert made["command"] == (line.split() if line.startswith("wandb") else text)
    several = job("#SBATCH --gpus=1\nmy_train a\nmail -s done me\n")
    assert several["command"] == ["bash", "-c", "my_train a\nmail -s done me"]
    assert missing("#SBATCH --gpus=1\nmodule load a\nmkdir -p out\n") != []


def test_statements_of_several_tasks_are_one_text_without_steps() -> None:
    two = "python a.py\npython b.py\n"
    made = convert(f"#SBATCH -N 1 -n 4 --gpus=1\n{two}")
    assert made.is_complete and made.job["command"] == ["bash", "-c", two.strip()]
    assert "4 tasks" in [one.text for one in made.remarks]
    for line in ("srun hostname\n", "mpirun a.out\n"):
        assert missing(f"#SBATCH -N 1 -n 4 --gpus=1\n{line}{two}") != []


def test_options_of_python_are_kept() -> None:
    for line in ("python -W ignore t.py", "python -X faulthandler -u t.py a"):
        assert job(f"#SBATCH --gpus=1\n{line}\n")["command"] == line.split()
        found = job(f"#SBATCH --gpus=1 --ntasks-per-node=1\nsrun {line}\n")
        assert (found["command"], found["launcher"]) == (line.split(), "srun")


def program_of(text: str) -> str:
    """Return the text of ``bash -c`` that a complete conversion runs."""
    command = job(text)["command"]
    assert command[:2] == ["bash", "-c"]
    return str(command[2])


def test_home_directory_is_expanded_beside_other_variables() -> None:
    text = program_of("#SBATCH --gres=gpu:1\npython ~/e.py ~/m '~/q' --x=~/y /s/$SLURM_JOB_ID\n")
    assert text == "exec python ~/e.py ~/m '~/q' '--x=~/y' /s/${{SLURM_JOB_ID}}"


def test_array_that_a_loop_fills_is_filled_for_the_program() -> None:
    text = program_of("a=()\nfor i in 1 2; do a+=($i); done\npython t.py ${a[1]}\n")
    assert text.splitlines()[:2] == ["a=()", "for i in 1 2; do a+=($i); done"]


@pytest.mark.parametrize(
    "lines",
    [
        "((N++))",
        "(( N += 2 ))",
        "let N=2",
        "A=$((N++))",
        "if (( N == 1 )); then (( N = 2 )); fi",
        "for ((N = 0; N < 3; N++)); do true; done",
        "unset N",
        'eval "N=2"',
        "source config.sh",
        "read N < n.txt",
        "printf -v N %d 2",
    ],
)
def test_value_that_a_statement_changes_is_not_copied(lines: str) -> None:
    found = job(f"#SBATCH --gpus=1\nN=1\n{lines}\npython t.py --n $N\n")
    assert found["command"][-1] == "exec python t.py --n ${{N}}"
    commands = found["setup"]["commands"]
    assert any(one in (lines, f"{lines} || true") for one in commands)
    assert any(one.startswith("export") and "N" in one for one in commands)


def test_variables_beside_an_array_have_the_values_of_the_script() -> None:
    text = "n=0\nt=a\nl=()\nif [[ $t == a ]]; then l+=(x); ((n += 2)); fi\n"
    found = job(f"#SBATCH --gpus=1\n{text}python t.py --l ${{l[@]}} --n $n\n")
    setup = "\n".join(found["setup"]["commands"])
    rank = found["command"][-1].replace("{{", "{").replace("}}", "}").replace("exec python", "echo")
    run = subprocess.run(
        ["bash", "-c", f"({setup}\nbash -c {shlex.quote(rank)})"], capture_output=True, text=True
    )
    assert run.stdout == "t.py --l x --n 2\n"


def test_array_that_a_loop_with_commands_fills_is_missing() -> None:
    (reason,) = missing("a=()\nfor i in 1 2; do touch $i; a+=($i); done\npython t.py ${a[1]}\n")
    assert reason == "its commands would run in the setup and again in each rank"


@pytest.mark.parametrize("value", ["$[$SLURM_ARRAY_TASK_ID]", "$((SLURM_ARRAY_TASK_ID + 1))"])
def test_variable_from_an_exported_one_that_depends_on_the_index_is_kept(value: str) -> None:
    text = program_of(f"#SBATCH --array=0-2\nexport R={value}\nSEED=$R\npython t.py --seed=$SEED\n")
    assert text.splitlines()[1:3] == [f"export R={value}", "SEED=$R"]
