# make demo    train on a real Slurm on this machine, and plot the loss curve
# make check   run the quick tests
# make test    run the tests that CI runs
# make bench   run the benchmarks
# make release  build, check and tag a version
# Missing packages are installed with apt-get, as root or with sudo; their names are printed first.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):/usr/sbin:/sbin:$(PATH)
# Without bytecode files, pytest and the hundreds of hpcrun processes would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all check bench docs pictures site test-containers lint style venv packages clean release \
	test-slurm-versions

demo: venv
	.ci/demo

# Run pytest with the given options, and mypy in parallel, which takes over a minute in a new checkout.
define pytest_and_mypy
	@mkdir -p .mypy_cache; mypy >.mypy_cache/output 2>&1 & types=$$!; \
	python -m pytest --dist worksteal $(1); tests=$$?; \
	wait $$types || { cat .mypy_cache/output; exit 1; }; exit $$tests
endef

# Cluster tests spend most of their time waiting, so six run at a time, each worker with its own clusters.
test: style
	$(call pytest_and_mypy,-n 6 --durations=10)

# Also run the tests marked thorough: every launcher with every framework, ZeRO stage and number of nodes,
# longer scenarios of the examples, and the guards on a real Slurm. Takes an hour.
test-all: export HPCRUN_TEST_ALL = 1
test-all: test

# For every commit: a minute on two idle cores, including one job on a real Slurm (test_smoke.py).
# tests/cluster and tests/workloads take longer and are excluded.
check: style
	$(call pytest_and_mypy,-n auto -m "not cluster and not slow" \
		--ignore=tests/cluster --ignore=tests/workloads)

# Measure the speed of hpcrun and of alternatives in one run; not part of CI. Takes six minutes on an idle
# machine: first the everyday commands (BENCH="--only submit help", --json), then parse
# (BENCH_PARSE="--gigabytes 10" adds a log of that size, which needs the disk space).
bench: venv .venv-bench/.ready
	.venv-bench/bin/python -m pip install --quiet --no-deps --force-reinstall .
	python -m bench $(BENCH)
	python -m bench.parse $(BENCH_PARSE)

# hpcrun as its users install it, and alternatives; in a separate environment.
.venv-bench/.ready: bench/requirements.txt setup.cfg
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --upgrade pip setuptools wheel
	.venv-bench/bin/python -m pip install --quiet --requirement bench/requirements.txt .
	touch $@

# Generate docs/reference.md; run it after each change of an option, a help text or a key.
docs: venv
	python -m docs.make_reference

# Build the documentation site in build/docs/site; dead links and unlisted pages are errors. Needs PyPI.
site: .venv-site/.ready
	.venv-site/bin/python -m docs.make_site

.venv-site/.ready: docs/site/requirements.txt
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip install --quiet --upgrade pip
	.venv-site/bin/python -m pip install --quiet --requirement docs/site/requirements.txt
	touch $@

# Make the pictures in docs/pictures from real runs in the sandbox. Needs Slurm and Chromium.
pictures: venv
	python -m docs.make_pictures

# Test Slurm 20.11 to 26.05, each in its own Debian release; not part of CI. Needs root, 4 GB below /var/tmp
# and ten minutes; writes tests/captured. The results are in docs/slurm-versions.md.
test-slurm-versions: venv
	PYTHON=$(PYTHON) .ci/packages debootstrap:debootstrap
	python -m tests.versions

# Run ranks in a real image. Needs root and apptainer (or singularity), which is not in Debian.
test-containers: venv
	python -m pytest tests/cluster/on_apptainer.py

# Build the wheel and the sdist, install them in empty environments, and tag the version; --no-tag in RELEASE
# stops before the tag. Needs PyPI, and the interpreters that PYTHONS names (default "3.10 3.14").
release: venv
	.ci/release $(RELEASE)

lint: style
	mypy

style: venv
	ruff check .
	ruff format --check .
	printf '%s\n' templates/*.sh .ci/run .ci/demo .ci/packages .ci/release | xargs -P 2 -n 6 shellcheck

venv: $(VENV)/.ready

# DeepSpeed imports MLflow where it is installed, which nearly doubles the time in which a rank starts. So only the
# tests of hpcrun sync find it (tests/cli/test_sync.py).
define move_mlflow
	for found in $(VENV)/lib/python3*/site-packages/mlflow; do \
		if [ -d "$$found" ]; then rm -rf $(VENV)/mlflow; mkdir $(VENV)/mlflow; mv "$$found" $(VENV)/mlflow/; fi; \
	done
endef

$(VENV)/.ready: setup.cfg pyproject.toml constraints.txt
	PYTHON=$(PYTHON) .ci/packages
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,plot,examples,dev]'
	$(move_mlflow)
	touch $@

clean:
	rm -rf $(VENV) .venv-bench .venv-site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
