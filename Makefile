# make bench   how fast it is
# make demo    a real training on a real Slurm on this machine, and its loss curve
# make test    everything that CI checks; make check: the quick part
# Packages are installed with apt-get as root or by sudo, and each is named before.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):/usr/sbin:/sbin:$(PATH)
# pytest keeps the tests compiled, and hpcrun is started hundreds of times.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all check bench house docs test-containers lint style venv packages clean \
	test-slurm-versions

demo: venv
	.ci/demo

# Runs pytest with options, and mypy beside it: on a new checkout that takes a minute and more.
define pytest_and_mypy
	@mkdir -p .mypy_cache; mypy >.mypy_cache/output 2>&1 & types=$$!; \
	python -m pytest --dist worksteal $(1); tests=$$?; \
	wait $$types || { cat .mypy_cache/output; exit 1; }; exit $$tests
endef

# Most of a cluster test is waiting: four at a time, each worker with clusters of its own.
test: style
	$(call pytest_and_mypy,-n 4 --durations=25)

# With what is thorough: every launcher with every framework, ZeRO stage and number of nodes, the examples'
# longer stories, the guards on a real Slurm. An hour.
test-all: export HPCRUN_TEST_ALL = 1
test-all: test

# For every commit: a minute on two idle cores, with one job on a real Slurm (test_smoke.py). What
# tests/cluster and tests/workloads have needs more.
check: style
	$(call pytest_and_mypy,-n auto -m "not cluster and not slow" \
		--ignore=tests/cluster --ignore=tests/workloads)

# Speed beside what people have without hpcrun, all in one run; no part of CI. Six minutes on an idle
# machine: the daily verbs (BENCH="--only submit help", --json), then parse (BENCH_PARSE="--gigabytes
# 10" adds a log of that size, and needs the room for it).
bench: venv .venv-bench/.ready
	.venv-bench/bin/python -m pip install --quiet --no-deps --force-reinstall .
	python -m bench $(BENCH)
	python -m bench.parse $(BENCH_PARSE)

# How large hpcrun is and how much of it a verb loads, of a checkout (HOUSE="--checkout DIR").
house: venv
	python -m bench.house $(HOUSE)

# hpcrun as its users install it, and its peers: never in hpcrun's own environment.
.venv-bench/.ready: bench/requirements.txt setup.cfg
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --upgrade pip setuptools wheel
	.venv-bench/bin/python -m pip install --quiet --requirement bench/requirements.txt .
	touch $@

# docs/reference.md: after each change of an option, a help text or a key.
docs: venv
	python -m docs.make_reference

# Slurm 20.11 to 26.05, each in a Debian of its own; no part of CI. Needs root, 4 GB below /var/tmp
# and ten minutes; writes tests/captured. docs/slurm-versions.md has what came out.
test-slurm-versions: venv
	PYTHON=$(PYTHON) .ci/packages debootstrap:debootstrap
	python -m tests.versions

# Ranks in a real image; needs root and apptainer (or singularity), which Debian does not have.
test-containers: venv
	python -m pytest tests/cluster/on_apptainer.py

lint: style
	mypy

style: venv
	ruff check .
	ruff format --check .
	printf '%s\n' templates/*.sh .ci/run .ci/demo .ci/packages | xargs -P 2 -n 6 shellcheck

venv: $(VENV)/.ready

$(VENV)/.ready: setup.cfg pyproject.toml constraints.txt
	PYTHON=$(PYTHON) .ci/packages
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,plot,examples,dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-bench build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
