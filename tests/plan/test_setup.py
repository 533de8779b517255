"""The environment of the training, staged copies, and values known only on the nodes."""

from __future__ import annotations

import pytest
from msgspec import structs

from hpcrun.errors import SpecError
from hpcrun.plan.build import build_plan
from hpcrun.plan.environment import node_sections
from hpcrun.plan.job import LOCAL_DIR
from hpcrun.plan.setup import choose_setup
from hpcrun.plan.types import Plan, Section
from hpcrun.render.environment import open_templates
from hpcrun.render.files import build_container_options, render_files
from hpcrun.spec.job import Cluster, Container, JobSpec, Setup
from tests.plan.making import PLACE, cluster, job, plan, variables

CONTAINER = Setup(container=Container(image="a.sif"))


@pytest.mark.parametrize(
    ("job", "site", "python", "where", "chosen"),
    [
        (Setup(), Setup(), None, "p: ", Setup()),
        (Setup(), Setup(), "/p/python", "p: ", Setup(python="/p/python")),
        (Setup(), Setup(venv="v"), "/p/python", "p: setup.", Setup(venv="v")),
        (Setup(conda="c"), Setup(venv="v"), "/p/python", "setup.", Setup(conda="c")),
        (Setup(python="x"), CONTAINER, None, "setup.", Setup(python="x")),
        (Setup(modules=["m"]), CONTAINER, None, "p: setup.", CONTAINER),
        (Setup(uv=True), Setup(), None, "setup.", Setup(uv=True)),
    ],
)
def test_job_setup_takes_precedence_over_cluster_setup(
    job: Setup, site: Setup, python: str | None, where: str, chosen: Setup
) -> None:
    found = choose_setup(JobSpec(setup=job), Cluster(setup=site, python=python), "p")
    assert found == (where, chosen)


def test_cluster_commands_and_modules_precede_those_of_the_job() -> None:
    made = plan(
        "script: a.py\nsetup: {modules: [b], commands: [two], node_commands: [four], conda: c}",
        "setup: {modules: [a], commands: [one], node_commands: [three], venv: v}",
    ).setup
    assert (made.modules, made.commands) == (["a", "b"], ["one", "two"])
    assert made.node_commands == ["three", "four"]


def refused(job: str, profile: str = "") -> list[str]:
    """Return the problems of an invalid job."""
    with pytest.raises(SpecError) as caught:
        plan(f"script: a.py\n{job}", profile)
    return [str(problem) for problem in caught.value.problems]


# ---- copies


def test_stage_resolves_sources_and_targets() -> None:
    made = plan(
        "script: a.py\nstage: {data/../x y: a, /abs: b/c, '~/d': '{local_dir}/e', $S/f: g, "
        "'{run_dir}/h': 'i{{'}"
    )
    assert made.setup.stage == [
        (f"{PLACE.project_dir}/x y", "a"),
        ("/abs", "b/c"),
        ("~/d", "e"),
        ("$S/f", "g"),
        (f"{PLACE.run_dir}/h", "i{"),
    ]


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("{a: /data}", "stage.a: /data: must be a relative path, below {local_dir}"),
        ("{a: ../b}", "stage.a: ../b: must be a relative path, below {local_dir}"),
        ("{a: b/../..}", "stage.a: b/../..: must be a relative path, below {local_dir}"),
        ("{a: .}", "stage.a: .: must be a relative path, below {local_dir}"),
        ("{a: '{local_dir}'}", "stage.a: {local_dir}: must be a relative path, below {local_dir}"),
        ("{a: .hpcrun/x}", "stage.a: .hpcrun/x: must be a relative path, below {local_dir}"),
        ("{a: x, b: x/y}", "stage.b: x/y: another copy has the same target"),
        (f"{{a: x/{'y' * 251}}}", f"stage.a: x/{'y' * 38}...: a name may have 255 bytes"),
        ("{a: x/y, b: ./x}", "stage.b: ./x: another copy has the same target"),
        ("{$(id): x}", "stage.$(id): $(id): $NAME and ${NAME} are expanded on the node"),
        ("{'${{A:-b}}': x}", "stage.${{A:-b}}: ${A:-b}: $NAME and"),
    ],
)
def test_invalid_stage_entries_are_refused(stage: str, text: str) -> None:
    assert any(problem.startswith(text) for problem in refused(f"stage: {stage}")), refused(
        f"stage: {stage}"
    )


def test_commands_in_local_dir_are_refused() -> None:
    assert refused("", "local_dir: /tmp/`id`$(id)") == [
        "cluster default: local_dir: /tmp/`id`$(id): $NAME and ${NAME} are expanded on the node; "
        "write $$ for a dollar sign"
    ]


# ---- values known only on the node


def node_section(made: Plan) -> Section:
    """Return the exports of node.sh."""
    (section,) = [section for section in made.environment if section.block == "node"]
    return section


def test_values_with_local_dir_are_expanded_on_the_node() -> None:
    made = plan(
        "script: a.py\nargs: ['{local_dir}/x', '${HPCRUN_LOCAL_DIR}', '${HOME}']".replace(
            "'${HOME}'", "'${{HOME}}'"
        )
        + "\nenv: {A: '{local_dir}/a', B: b}",
        "env: {C: '${HPCRUN_LOCAL_DIR}', D: d}",
    )
    assert made.program[-3:] == [f"{LOCAL_DIR}/x", LOCAL_DIR, "${HOME}"]
    recorder = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
    caches = {"TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"}
    assert node_section(made).variables.keys() == {*caches, recorder, "A", "C"}
    assert variables(made)["A"] == f"{LOCAL_DIR}/a"
    assert "HPCRUN_LOCAL_DIR" not in variables(made), "unknown before the node is"


def test_search_paths_are_set_on_the_node_only_in_containers() -> None:
    sections = [Section(block="environment", title="t", prepend={"PATH": "/p"})]
    assert node_sections(sections, inside=False) == sections
    (inside,) = node_sections(sections, inside=True)
    assert (inside.block, inside.prepend) == ("node", {"PATH": "/p"})


def test_deepspeed_json_with_local_dir_is_written_on_the_node() -> None:
    nvme = "script: a.py\ndeepspeed: {zero_stage: 3, offload: {optimizer: nvme}}\n"
    made = plan(f"{nvme}args: ['{{deepspeed_config}}']")
    assert made.setup.own_files == ["deepspeed.json"]
    assert made.program[-1] == f"{LOCAL_DIR}/deepspeed.json"
    made = plan(f"{nvme}args: ['{{deepspeed_config}}']".replace("nvme", "cpu"))
    assert made.setup.own_files == []
    assert made.program[-1] == f"{PLACE.run_dir}/deepspeed.json"


# ---- containers


def test_container_mounts_the_folders_of_the_run() -> None:
    made = plan(
        "script: a.py\nsetup: {container: {image: a.sif, mounts: [b, '$W:/w:ro', '~/c']}}",
        "local_dir: $TMPDIR",
    )
    container = made.setup.container
    assert container is not None
    assert (container.runtime, container.image) == ("apptainer", f"{PLACE.project_dir}/a.sif")
    own = [PLACE.run_dir, PLACE.project_dir, PLACE.cache_dir, LOCAL_DIR]
    assert container.mounts == [
        *(f"{folder}:{folder}" for folder in own),
        f"{PLACE.project_dir}/b:{PLACE.project_dir}/b",
        "$W:/w:ro",
        "~/c:~/c",
    ]
    pyxis = plan(
        "script: a.py\nsetup: {container: {image: a.sqsh}}", "local_dir: $TMPDIR"
    ).setup.container
    assert pyxis is not None
    assert (pyxis.runtime, pyxis.mounts[-1]) == ("pyxis", "$TMPDIR:$TMPDIR")


def test_pyxis_options_are_passed_only_to_srun() -> None:
    """The sbatch of many sites rejects these options; the plugin adds them to srun."""
    made = plan(
        "script: a.py\nsetup: {container: {image: a.sqsh, options: [--container-remap-root]}}"
    )
    assert not [option for option, _ in made.directives if option.startswith("container")]
    words = build_container_options(made)
    assert [word.partition("=")[0] for word in words] == [
        *("--container-workdir", "--container-mounts", "--container-remap-root"),
        "--container-image",
    ]


@pytest.mark.parametrize(
    ("container", "profile", "wanted", "absent"),
    [
        (
            "{image: reg.io/t:1, runtime: podman-hpc, mounts: [/data], options: [--nccl]}",
            "",
            [
                "run --rm",
                "--env='HPCRUN*'",
                "--volume=/data:/data",
                "--gpu",
                "--nccl",
                "reg.io/t:1",
            ],
            "module",
        ),
        (
            "{image: docker:t:1, options: ['--module=gpu,nccl-plugin']}",
            "container_runtime: shifter",
            [f"--workdir={PLACE.project_dir}", "--module=gpu,nccl-plugin", "--image=docker:t:1"],
            "--volume",
        ),
        (
            "{image: docker:t:1}",
            "container_runtime: shifter\naccelerator: rocm",
            ["--image=docker:t:1"],
            "--module",
        ),
        ("{image: mine.toml}", "", [f"--environment={PLACE.run_dir}/container.toml"], "mine"),
    ],
)
def test_container_options_match_the_runtime(
    container: str, profile: str, wanted: list[str], absent: str
) -> None:
    made = plan(f"script: a.py\nsetup: {{container: {container}}}", profile)
    words = build_container_options(made)
    assert [word for word in words if word in wanted] == wanted
    assert absent not in " ".join(words)


@pytest.mark.parametrize(
    ("image", "line"),
    [
        ("mine.toml", f'base_environment = ["{PLACE.project_dir}/mine.toml"]'),
        ("nvcr.io#nvidia/t:1", 'image = "nvcr.io#nvidia/t:1"'),
    ],
)
def test_container_engine_gets_a_toml_file_in_the_run(image: str, line: str) -> None:
    text = (
        f"script: a.py\nsetup: {{container: {{image: '{image}', runtime: ce, mounts: ['$W/a']}}}}"
    )
    files = {one.name: one.text for one in render_files(plan(text), open_templates(None))}
    made = files["container.toml"]
    assert '    "${W}/a:${W}/a",' in made.splitlines()
    assert line in made.splitlines()
    assert f"--environment={PLACE.run_dir}/container.toml" in files["job.sbatch"]
    assert "restore # the job's variables" in files["node.sh"]


@pytest.mark.parametrize(
    ("container", "text"),
    [
        (
            "{image: nvcr.io#nvidia/x}",
            "setup.container.runtime: one of apptainer, pyxis, podman-hpc, shifter, ce?",
        ),
        ("{image: a.sif, mounts: ['a,b']}", "setup.container: a,b: a container cannot"),
        ("{image: a.sqsh, mounts: [a b]}", "setup.container: a b: a container cannot"),
        ("{image: a.sif, options: [--cleanenv]}", "setup.container.options: --cleanenv removes"),
        ("{image: $(id).sif}", "setup.container.image: $(id).sif: $NAME"),
    ],
)
def test_invalid_containers_are_refused(container: str, text: str) -> None:
    problems = refused(f"setup: {{container: {container}}}")
    assert any(problem.startswith(text) for problem in problems), problems


def test_node_environment_is_activated_after_node_commands() -> None:
    place = structs.replace(PLACE, python="python", node_venv="$SLURM_TMPDIR/env")
    text = "script: a.py\nsetup: {node_commands: ['make-env \"$SLURM_TMPDIR\"']}"
    files = render_files(build_plan(job(text), cluster(), place), open_templates(None))
    node = next(file.text for file in files if file.name == "node.sh")
    assert node.index("make-env") < node.index('activate_venv "${SLURM_TMPDIR:?')
    with pytest.raises(SpecError, match="nothing creates it there"):
        build_plan(job("script: a.py"), cluster(), place)


def test_module_paths_precede_modules() -> None:
    text = "script: a.py\nsetup: {module_paths: [~/m], modules: [b]}"
    made = plan(text, "setup: {module_paths: [/appl/modules], modules: [a]}")
    files = render_files(made, open_templates(None))
    script = next(file.text for file in files if file.name == "job.sbatch")
    wanted = 'use_modules /appl/modules\nuse_modules "$HOME"/m\nload_module a\nload_module b\n'
    assert wanted in script
