"""The rules of hpcrun lint: each finds its bad example, and nothing in its good one."""

from __future__ import annotations

import contextlib
import subprocess

import pytest

from docs.make_reference import LINT, lint_page
from hpcrun.convert import convert_script
from hpcrun.errors import InputError
from hpcrun.lint import apply_fixes, lint_request, lint_script, parse_script
from hpcrun.lint.check import Finding
from hpcrun.lint.rule import LintRule
from hpcrun.lint.rules import all_rules
from hpcrun.lint.script import show
from hpcrun.spec import Cluster, Partition

RULES = {one.id: one for one in all_rules()}


def lint(text: str) -> list[Finding]:
    """Check a script with bash's own opinion on its syntax, as the command does."""
    whole = text if text.startswith(("#!", " ")) else f"#!/bin/bash\n{text}"
    run = subprocess.run(["bash", "-n"], input=whole.encode(), capture_output=True, check=False)
    return lint_script(whole, syntax=run.stderr.decode().split("\n")[0])


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rule_finds_its_bad_example(rule: LintRule) -> None:
    assert rule.id in [one.rule for one in lint(rule.bad)]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_good_example_has_no_error_and_not_the_finding(rule: LintRule) -> None:
    found = lint(rule.good)
    assert rule.id not in [one.rule for one in found]
    assert [one for one in found if one.severity == "error"] == []


def test_every_rule_states_its_source_and_fix() -> None:
    assert len(RULES) >= 80
    for rule in RULES.values():
        assert rule.title and rule.source and rule.fix, rule.id
        assert not rule.title.endswith("."), rule.id


def test_page_of_the_rules_is_current() -> None:
    assert LINT.read_text(encoding="utf-8") == lint_page(), "make docs"


# Scripts without mistakes, for which no error may be reported.
RIGHT = {
    "torchrun on two nodes": """
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=2:00:00
#SBATCH --output=%x-%j.out
set -euo pipefail
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
LAUNCHER="torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 --rdzv_backend c10d \\
  --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT --rdzv_id $SLURM_JOB_ID"
srun --kill-on-bad-exit=1 bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID train.py"
""",
    "one rank per task": """
#SBATCH -N 2 --ntasks-per-node=4
#SBATCH --gres=gpu:a100:4
export MASTER_ADDR=$(hostname)
srun --cpus-per-task=8 singularity exec --nv image.sif \\
  bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python -u train.py'
""",
    "an array over files": """
#SBATCH --array=0-9%2
#SBATCH -o log_%A_%a.txt
files=(data/*.txt)
python -u run.py "${files[$SLURM_ARRAY_TASK_ID]}"
""",
    "options of torchrun in an inner shell that computes them": """
#SBATCH --nodes=2
srun bash -c "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id=$SLURM_JOB_ID \\
  --rdzv_conf=is_host=\\$(((SLURM_NODEID)) && echo 0 || echo 1) \\
  --rdzv_backend=c10d --rdzv_endpoint=$HOST:29500 train.py"
""",
    "a signal handled in the script": """
#SBATCH --signal=B:USR1@300
#SBATCH --requeue --open-mode=append
stop() { kill -USR1 "$PID"; wait "$PID"; scontrol requeue "$SLURM_JOB_ID"; }
trap stop USR1
srun python -u train.py &
PID=$!
wait "$PID"
""",
    "a heredoc with lines that look like options": """
#SBATCH -N 1
cat > config.txt <<EOF
--lr 0.1
#SBATCH --nodes=2
EOF
python -u train.py @config.txt
""",
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_script_has_no_error(name: str) -> None:
    text = RIGHT[name].lstrip().replace("\\\\", "\\")
    assert [(one.rule, one.message) for one in lint(text) if one.severity == "error"] == []


def test_port_of_a_standalone_launcher_is_not_reported() -> None:
    text = (
        "#SBATCH --gres=gpu:2\ntorchrun --standalone --master_port 1234 --nproc_per_node 2 t.py\n"
    )
    assert "fixed-port" not in [one.rule for one in lint(text)]
    assert "fixed-port" in [one.rule for one in lint(text.replace("--standalone ", ""))]


def test_variables_are_followed_into_nested_shells() -> None:
    text = """
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
N=8
ARGS=(--nnodes 2 --nproc_per_node $N)
export CMD="torchrun ${ARGS[*]}"
srun time bash -c 'exec env A=1 torchrun --nproc_per_node='$N' train.py'
"""
    found = [(one.rule, one.line) for one in lint(text.lstrip()) if one.severity == "error"]
    assert ("launcher-in-every-task", 7) in found


def test_rank_that_each_task_expands_is_not_reported() -> None:
    text = "#SBATCH -N 2\nsrun bash -c 'python t.py --rank $SLURM_PROCID'\n"
    assert "rank-expanded-early" not in [one.rule for one in lint(text)]
    early = text.replace("'", '"')
    assert "rank-expanded-early" in [one.rule for one in lint(early)]


@pytest.mark.parametrize(
    ("comment", "where"),
    [
        ("export MASTER_PORT=29500  # hpcrun: ignore=fixed-port the node is ours", ""),
        ("# hpcrun: ignore=fixed-port the node is ours\nexport MASTER_PORT=29500", ""),
        ("# hpcrun: ignore-file=fixed-port,unread-variable\n\nexport MASTER_PORT=29500", ""),
        ("# hpcrun: ignore=default-port another rule\nexport MASTER_PORT=29500", "fixed-port"),
    ],
)
def test_comment_ignores_a_rule(comment: str, where: str) -> None:
    text = f"#SBATCH --gres=gpu:2\n{comment}\nsrun python train.py\n"
    found = [one.rule for one in lint(text) if one.rule == "fixed-port"]
    assert found == ([where] if where else [])


@pytest.mark.parametrize(
    "shebang", ["#!/usr/bin/env python3", "#!/bin/csh", "#!/usr/bin/perl -w", "#!/usr/bin/Rscript"]
)
def test_other_languages_are_checked_for_directives_only(shebang: str) -> None:
    text = f"{shebang}\n#SBATCH -N=2\nimport os\nif (x) then [[ $Y\n--foo\n"
    assert {one.rule for one in lint_script(text)} == {"short-option-equals", "no-time-limit"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "#!/bin/bash", "#!/bin/bash\n#SBATCH", "\udcff\n#SBATCH -"),
        *(f"#!/bin/bash\n{line}\n" for line in ('set ""', 'set "" a', "set -- a\nshift ²")),
    ],
)
def test_odd_scripts_do_not_crash(text: str) -> None:
    lint_script(text)
    convert_script(text, name="a", project="/p", home="/h")


SIZES = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus", "gres", "gpus-per-node")
ODD_VALUES = ("²", "0", "-1", "gpu:a100:²", "1-²", "²-1", "9" * 5000)


@pytest.mark.parametrize("option", [*SIZES, "gpus-per-task", "mem", "time", "array"])
def test_odd_values_of_options_do_not_crash(option: str) -> None:
    cluster = Cluster(partitions={"gpu": Partition(nodes=2, gpus_per_node=4, memory_per_node="1G")})
    for value in ODD_VALUES:
        step = f"srun --{option}={value} torchrun --nnodes={value} --nproc_per_node={value} t.py"
        for more in ("#SBATCH -n 4", "#SBATCH -N 2 -n 4"):
            text = f"#!/bin/bash\n{more}\n#SBATCH --{option}={value}\n{step}\n"
            lint_script(text)
            lint_request(text, "a", cluster, "hpcrun.yaml")
            with contextlib.suppress(InputError):
                convert_script(text, name="a", project="/p", home="/h")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("#SBATCH -N 2\n#SBATCH --time=2:00\n", "2:00 is 2 min 0 s, not hours"),
        ("#SBATCH --nodes=4 -t 4:30\n", "4:30 is 4 min 30 s, not hours"),
        ("#SBATCH --time=2:00\n", None),
        ("#SBATCH -N 2\n#SBATCH --time=10:30\n", None),
        ("#SBATCH -N 2\n#SBATCH --time=2:00:00\n", None),
    ],
)
def test_few_minutes_on_several_nodes_are_reported(header: str, message: str | None) -> None:
    found = [one.message for one in lint(header) if one.rule == "minutes-meant-as-hours"]
    assert found == ([message] if message else [])


HEAD = "#SBATCH -N 2\n#SBATCH --gres=gpu:4\n"
ALONE = "torchrun --nnodes=2 --nproc-per-node=4 --rdzv-endpoint=$H:29500 t.py\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"srun -N1 -n1 hostname\n{ALONE}", True),
        (f"H=$(srun -N1 -n1 hostname)\n{ALONE}", True),
        (f"{ALONE.strip()} &\nsrun -N1 -n1 --relative=1 {ALONE}", False),
        (f'srun bash start.sh\n[ -z "$X" ] && {ALONE}', False),
        (f"cat > run.sh <<EOF\nsrun ./x\nEOF\n{ALONE}", False),
    ],
)
def test_launcher_without_srun_is_found_beside_other_steps(text: str, found: bool) -> None:
    assert found == ("launcher-on-one-node" in [one.rule for one in lint(HEAD + text)])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python t.py --out $A/$B/c", ["python", "t.py", "--out", "$A/$B/c"]),
        ("python $A.$B.$C-$D $A:$B/x", ["python", "$A.$B.$C-$D", "$A:$B/x"]),
        ("OUT=$A/$B/c python t.py $1/$2/c", ["python", "t.py", "$1/$2/c"]),
        (r"python $A/\$B/c '$A/$B/c'", ["python", "$A/$B/c", "$A/$B/c"]),
    ],
)
def test_word_of_several_variables_is_one_word(line: str, words: list[str]) -> None:
    script = parse_script(f"#!/bin/bash\n{line}\n")
    assert [show(word.text) for word in script.commands[0].words] == words


def test_columns_and_fixes_are_those_of_the_text() -> None:
    text = "#!/bin/bash\n#SBATCH -N 1\npython $A/$B/c \\ \n  --lr 1\n"
    found = [one for one in lint(text) if one.rule == "blank-after-backslash"]
    assert [(one.line, one.column) for one in found] == [(3, 16)]
    assert apply_fixes(text, found) == text.replace("\\ \n", "\\\n")


def test_scripts_in_here_documents_are_checked() -> None:
    inner = "#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --time=1:00:00\n"
    late = "python -u train.py\n#SBATCH --requeue\n"
    for quote in ("'", ""):
        text = f"#!/bin/bash\nsbatch <<{quote}EOF{quote}\n{inner}{late}EOF\n"
        assert ("late-directive", 7) in [(one.rule, one.line) for one in lint_script(text)]
    indented = f"sbatch <<-'EOF'\n{inner}{late}EOF\n".replace("#SBATCH", "\t#SBATCH")
    assert "indented-directive" not in [one.rule for one in lint_script("#!/bin/bash\n" + indented)]


def test_expanded_values_of_a_generated_script_are_not_guessed() -> None:
    inner = "#!/bin/bash\n#SBATCH --time=$T\n#SBATCH --gres=gpu:$N\nsrun python -u train.py\n"
    assert lint_script(f"#!/bin/bash\nsbatch <<EOF\n{inner}EOF\n") == []
    late = inner + "#SBATCH --requeue\n"
    found = lint_script(f"#!/bin/bash\nsbatch <<EOF\n{late}EOF\n")
    assert [one.rule for one in found] == ["late-directive"]
    commands = inner.replace("srun", "cd $DIR\nexport NCCL_DEBUG=DEBUG\npython eval.py; srun")
    found = lint_script(f"#!/bin/bash\nsbatch <<EOF\n{commands}EOF\n")
    assert [(one.line, one.rule) for one in found] == [(6, "cd-unchecked"), (7, "bad-nccl-value")]
    anything = inner.replace("#SBATCH --time=$T", "#SBATCH $OPTIONS\nexport NCCL_DEBUG=DEBUG")
    assert lint_script(f"#!/bin/bash\nsbatch <<EOF\n{anything}EOF\n") == []


@pytest.mark.parametrize(
    ("words", "is_wrong"),
    [
        ("run --rm -it image train", True),
        ("run --gpus all -v /a:/b --interactive --tty image train", True),
        ("run -dit image train", False),
        ("run -t image train", False),
        ("run --rm -i image train -t", False),
        ("run --name a image python t.py -it", False),
        ("exec -ti box train", True),
    ],
)
def test_docker_needs_a_terminal_for_its_own_options_only(words: str, is_wrong: bool) -> None:
    found = [one.rule for one in lint(f"#SBATCH -N 1\ndocker {words}\n")]
    assert ("interactive-srun" in found) == is_wrong


@pytest.mark.parametrize(
    ("line", "rule", "is_found"),
    [
        ("export NCCL_IB_TIMEOUT=50", "bad-nccl-value", True),
        ("export NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=7", "bad-nccl-value", False),
        ("export NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=ALL", "slow-debugging", False),
        ("export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL", "slow-debugging", True),
        ("D=$(pwd)\ncd $D", "cd-unchecked", False),
        ("cd $(pwd)/sub", "cd-unchecked", True),
        ("conda deactivate\nmodule purge", "module-after-conda", False),
        (
            "source a/bin/activate\nmodule load python/3\nsource a/bin/activate",
            "module-after-conda",
            False,
        ),
        ("source a/bin/activate\nmodule load python/3", "module-after-conda", True),
        ("ps aux | grep vllm | xargs kill -9", "kills-other-jobs", True),
        ("virtualenv ~/env\npip install torch", "install-in-job", True),
        ("virtualenv $SLURM_TMPDIR/env\npip install torch", "install-in-job", False),
        ("virtualenv ~/env\npip install --no-index torch", "install-in-job", True),
        (
            "run() { echo start; srun \"$@\"; }\nrun bash -c 'cd /x; python t.py'",
            "cd-unchecked",
            True,
        ),
        ("bash -c 'cd /x && python t.py'", "cd-unchecked", False),
        ("srun --cpu-bind=verbose -c 4 python t.py", "cpus-not-passed-to-srun", False),
        (
            "module load cuda/11.8\nmodule unload cuda\nmodule load cuda/12.4",
            "module-replaced",
            False,
        ),
        ("module load a/1 gcc/9\nmodule load a/1 gcc/10", "module-replaced", True),
        ("test -f x && exit", "commands-after-exit", False),
        ("module load cuda/12.4 gcc/12\nmodule list", "environment-of-the-submitter", True),
        ("module load cuda/12.4\nmodule load site-ai/1", "environment-of-the-submitter", False),
        ("#SBATCH --mail-user=me@example.com", "bad-mail-user", True),
        ("#SBATCH --mail-user=me@my-example.com", "bad-mail-user", False),
        ("for p in $(lsof /dev/nvidia0); do kill -9 $p; done", "kills-other-jobs", True),
        ("for p in $PIDS; do kill -9 $p; done", "kills-other-jobs", False),
        ("URL=tcp://$A\nURL+=:40000\nsrun python d.py --dist_url $URL", "fixed-port", True),
        ("cd $SLURM_TMPDIR", "results-on-local-disk", True),
        ("cd $SLURM_TMPDIR\ncd $HOME/x", "results-on-local-disk", False),
        ("cd $SLURM_TMPDIR", "cd-unchecked", False),
        ("module load a/1\nexport PYTHONPATH=.", "path-replaced", True),
        ("export PYTHONPATH=.", "path-replaced", False),
        ("export MASTER_PORT=$(($(date +%N)%30000))", "random-port", True),
        ("if true; then exit; fi", "commands-after-exit", False),
        (
            "N=$(nvidia-smi -L | wc -l)\ntorchrun --nproc_per_node $N t.py --num_workers 4",
            "workers-exceed-cpus",
            True,
        ),
        ("if [ $A -eq $B ]; then true; fi", "text-compared-as-number", False),
        ("N=2; if [[ $A -eq N ]]; then true; fi", "text-compared-as-number", False),
    ],
)
def test_similar_lines_differ_in_their_findings(line: str, rule: str, is_found: bool) -> None:
    found = [one.rule for one in lint(f"#SBATCH --gres=gpu:2 -c 4\n{line}\npython t.py\n")]
    assert (rule in found) == is_found


@pytest.mark.parametrize(
    ("code", "is_program"),
    [
        ("from main import *; run('a.yaml')", True),
        ("import torch; print(torch.__version__)", False),
        ("import torch\nassert torch.cuda.is_available()", False),
    ],
)
def test_code_on_the_command_line_may_be_the_program(code: str, is_program: bool) -> None:
    found = [one.rule for one in lint(f'#SBATCH -N 1\ncd /x\npython -c "{code}"\n')]
    assert ("cd-unchecked" in found) == is_program


def test_gpus_that_are_not_requested_are_not_counted() -> None:
    text = "#SBATCH --gres=gpu:0\nexport CUDA_VISIBLE_DEVICES=0\npython t.py\n"
    assert [one.rule for one in lint(text) if one.severity == "error"] == []


@pytest.mark.parametrize(
    ("end", "is_lost"),
    [
        ("if [ $? -eq 0 ]; then echo good; else echo bad; fi", True),
        ("if [ $? -ne 0 ]; then echo bad; exit 1; fi\necho good", False),
        ("code=$?\necho end\nexit $code", False),
        ('echo "exit code: $?"', True),
    ],
)
def test_exit_code_that_is_only_printed_is_lost(end: str, is_lost: bool) -> None:
    found = [one.rule for one in lint(f"#SBATCH -N 1\npython t.py\n{end}\n")]
    assert ("exit-code-lost" in found) == is_lost


def test_step_for_a_value_does_not_use_the_nodes() -> None:
    text = "#SBATCH -N 2\nIP=$(srun -N1 -n1 hostname -i)\n{}python t.py --address $IP\n"
    assert "nodes-unused" in [one.rule for one in lint(text.format(""))]
    assert "nodes-unused" not in [one.rule for one in lint(text.format("srun "))]


def test_port_of_a_rendezvous_is_reported_once() -> None:
    text = "#SBATCH --gres=gpu:2\nPORT=7654\ntorchrun --nproc_per_node=2 --master_port=$PORT t.py\n"
    found = [one.rule for one in lint(text) if one.rule.endswith("port")]
    assert found == ["fixed-port"]
