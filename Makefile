# `make train` and `make test` each do everything on a fresh clone of a machine with Python 3.11 to 3.13:
# an environment in .venv with the versions of constraints.txt, then the default experiment, or all tests.
# Arguments for the command itself: make train ARGS='optimizer.lr=1e-3 seed=1', make test ARGS='-k lock'.

SHELL := /bin/bash
VENV ?= .venv
ARGS ?=
JOBS ?= 2
KEEP ?=
TRAIN_EXTRAS := digits,pictures
DOCS_EXTRAS := docs
LAB_EXTRAS := digits,slurm
TEST_EXTRAS := dev,deepspeed,digits,documents,fp8,huggingface,lion,metrics,mlflow,optuna,peft,pictures,slurm,tensorboard,wandb

# The first Python of a supported version that can make environments; PYTHON=... names another.
FIND_PYTHON = for python in python3.11 python3.12 python3.13 python3 python; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	2>/dev/null && echo $$python && break; done
PYTHON ?= $(shell $(FIND_PYTHON))

.PHONY: guard slurm-lab slurm-lab-down versions test-hydra-next help bench bench-guard size train lint unit all-tests check test format reference docs wheel release-check figures constraints clean

help:
	@echo 'make train        train the default experiment (ARGS="model=mlp data=digits" changes it)'
	@echo 'make check        lint, types, quick unit tests: two minutes (ARGS="-k lock" chooses tests)'
	@echo 'make test         lint, types, all tests'
	@echo 'make lint         lint, types, style, the words of docstrings and pages'
	@echo 'make format       format the code, fix what ruff can fix'
	@echo 'make reference    write docs/reference.md from conf/ and the signatures'
	@echo 'make docs         build the documentation as a site, build/site/index.html (ARGS=serve: on localhost, live)'
	@echo 'make bench        benchmark Launcher and its peers (ARGS="loop --quick" chooses; ARGS=--list)'
	@echo 'make bench-guard  fail if a step of the loop takes more instructions than its limit (needs valgrind)'
	@echo 'make guard        compare the numbers of guard.yaml with those of the merge base, on main of the last tag'
	@echo 'make size         print the size and density of each package of src, its arrows up, and a walk'
	@echo 'make wheel        build dist/*.whl'
	@echo 'make release-check  all that a release does up to the upload (FROM=FOLDER of wheels, or FROM=here)'
	@echo 'make figures      make the figures of README, first page and tutorial again (ARGS="--only ids gpu")'
	@echo 'make slurm-lab    a real SLURM cluster of two nodes on this machine (root, Debian or Ubuntu); slurm-lab-down stops it'
	@echo 'make constraints  renew constraints.txt with the newest versions (KEEP=torch==2.13.0 keeps one)'
	@echo 'make versions     the unit tests with the oldest versions that are allowed (RESOLUTION=highest: the newest)'
	@echo 'make test-hydra-next  the tests of the configuration and the command line with the next Hydra'
	@echo 'make clean        remove .venv, caches and builds (outputs/ stays)'

train: $(VENV)/.installed-train
	@[ -n "$(ARGS)" ] || echo 'The default experiment: 500 steps of a small GPT, 3 to 9 minutes on two cores. Ctrl-C saves, and make train resumes.'
	$(VENV)/bin/python -m launcher $(ARGS)

# Torch's own threads would only compete with the other tests for the cores.
PYTEST = OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(JOBS) --dist loadgroup

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python docs/check_words.py
	$(VENV)/bin/python docs/check_style.py
	$(VENV)/bin/mypy

# Some tests wait for a process or a timer: a third worker uses the cores meanwhile.
unit: JOBS = 3
unit: $(VENV)/.installed-test
	$(PYTEST) tests/unit -m 'not slow' $(ARGS)

# Those on SLURM come first, as two workers that mostly wait for its timers: two more use the cores meanwhile.
all-tests: JOBS = 4
all-tests: $(VENV)/.installed-test
	$(PYTEST) $(ARGS)

# mypy takes one core for half a minute, so the tests run beside it.
check:
	@$(MAKE) --no-print-directory -j2 lint unit

test:
	@$(MAKE) --no-print-directory -j2 lint all-tests

format: $(VENV)/.installed-test
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Peers are optional: pip install -r benchmarks/requirements.txt.
bench: $(VENV)/.installed-test
	$(VENV)/bin/python -m benchmarks $(ARGS)

bench-guard: $(VENV)/.installed-test
	$(VENV)/bin/python -m benchmarks.guard

# The page on proofs says what is compared: docs/prove.md.
guard: $(VENV)/.installed-test
	PYTHON=$(VENV)/bin/python .ci/guard $(ARGS)

size: $(VENV)/.installed-test
	$(VENV)/bin/python -m benchmarks.size

reference: $(VENV)/.installed-test
	$(VENV)/bin/python docs/make_reference.py

# Strict: a page that no menu has, a link to nothing and an unknown name are errors.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs $(or $(ARGS),build) --strict
	$(if $(ARGS),,$(VENV)/bin/python docs/check_site.py)

# What is printed is what slurm/lab/README.md explains.
slurm-lab: $(VENV)/.installed-lab
	@SLURM_LAB_NODES=$${SLURM_LAB_NODES:-2} slurm/lab/up.sh >/dev/null
	@echo 'The cluster is up. Next:'
	@echo
	@echo '  source $(VENV)/bin/activate'
	@echo "  export OMP_NUM_THREADS=1 SLURM_CONF=$${SLURM_LAB_STATE:-/tmp/slurm-lab}/etc/slurm.conf"
	@echo '  python -m launcher dispatch=slurm dispatch.partition=preempt      # submit a run'
	@echo "  sbatch -p main -w node1 --exclusive --wrap 'sleep 5'              # preempt it"
	@echo '  python -m launcher.runs                                           # see it resume'
	@echo
	@echo 'make slurm-lab-down stops it; slurm/lab/README.md has more.'

slurm-lab-down:
	slurm/lab/down.sh

wheel: $(VENV)/.installed-test
	$(VENV)/bin/python -m hatchling build -t wheel

# FROM=/path/to/wheels where there is no index, FROM=here with the packages of .venv; it says what it leaves out.
release-check: $(VENV)/.installed-test
	PYTHON=$(VENV)/bin/python FROM=$(or $(FROM),index) .ci/release_check

figures: $(VENV)/.installed-test
	$(VENV)/bin/python docs/make_figures.py $(ARGS)

# The unit tests under the oldest versions that pyproject.toml allows (RESOLUTION=lowest-direct), or the newest (highest).
RESOLUTION ?= lowest-direct
VERSIONS_EXTRAS := dev,digits,lion,metrics,mlflow,optuna,pictures,slurm,statistics,tensorboard,wandb
versions:
	rm -rf $(VENV)-versions
	$(PYTHON) -m venv $(VENV)-versions
	$(VENV)-versions/bin/python -m pip install uv
	$(VENV)-versions/bin/uv pip install --python $(VENV)-versions/bin/python --resolution $(RESOLUTION) -e '.[$(VERSIONS_EXTRAS)]'
	OMP_NUM_THREADS=1 $(VENV)-versions/bin/python -m pytest -n 3 --dist loadgroup tests/unit $(ARGS)

# The tests of the configuration and the command line under the next Hydra, which lies over the packages of .venv.
HYDRA_NEXT ?= 'hydra-core>=1.4.0rc3,<1.5' 'omegaconf>=2.4.1rc1,<2.5'
NEXT := $(VENV)-hydra-next
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
test-hydra-next: $(VENV)/.installed-test
	rm -rf $(NEXT)
	$(PYTHON) -m venv --without-pip $(NEXT)
	$(PYTHON) -m pip install --quiet --no-deps --pre --target "$$($(NEXT)/bin/python $(PURELIB))" $(HYDRA_NEXT)
	echo "import site; site.addsitedir('$$($(VENV)/bin/python $(PURELIB))')" > "$$($(NEXT)/bin/python $(PURELIB))/beside.pth"
	OMP_NUM_THREADS=1 $(NEXT)/bin/python -m pytest -n 2 tests/unit/config tests/unit/cli $(ARGS)

# A stamp is newer than what it was made from, so nothing is installed twice.
$(VENV)/.installed-train: EXTRAS = $(TRAIN_EXTRAS)
$(VENV)/.installed-train: THEN = $(if $(ARGS),, Then the default experiment trains for 3 to 9 minutes.)
$(VENV)/.installed-test: EXTRAS = $(TEST_EXTRAS)
$(VENV)/.installed-docs: EXTRAS = $(DOCS_EXTRAS)
$(VENV)/.installed-lab: EXTRAS = $(LAB_EXTRAS)
$(VENV)/.installed-train $(VENV)/.installed-test $(VENV)/.installed-docs $(VENV)/.installed-lab: pyproject.toml constraints.txt | $(VENV)/.made
	@echo 'Installing into $(VENV): one to three minutes, once.$(THEN)'
	$(VENV)/bin/python -m pip install -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.made:
	@[ -n "$(PYTHON)" ] || { echo 'There is no Python 3.11, 3.12 or 3.13 with venv here: install one' \
	'(Debian, Ubuntu: apt install python3-venv), or name it: make PYTHON=/path/to/python'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# CUDA's own packages are left out: torch names their versions itself, and a machine without a GPU has none of them.
constraints:
	rm -rf $(VENV)-constraints
	$(PYTHON) -m venv $(VENV)-constraints
	$(VENV)-constraints/bin/python -m pip install $(KEEP) -e '.[all,dev,docs]'
	$(VENV)-constraints/bin/python -m pip check
	{ grep '^#' constraints.txt; $(VENV)-constraints/bin/python -m pip freeze --all --exclude pip --exclude-editable \
	| grep -v -E '^(#|cuda-|nvidia-|triton)' | sed 's/+[a-z0-9.]*$$//'; } > constraints.new
	mv constraints.new constraints.txt
	rm -rf $(VENV)-constraints

clean:
	rm -rf $(VENV) $(VENV)-versions $(VENV)-hydra-next .mypy_cache .ruff_cache .pytest_cache dist build
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
