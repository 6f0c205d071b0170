# make lab        set up, then JupyterLab on the first notebook
# make test       set up, and install what tests need; then the fast tests: those of your answers, in the repository with
#                 the solutions all that take seconds, and four of the notebooks
# make test SLOW=1            all tests and notebooks, as .ci/run
# make test TESTS=tests/draw  some tests alone, the slow ones among them too
# make test LABKIT_TEST_DATA=~/data   also the tests on the real RTE and Multi30k, from data/glue/RTE and data/multi30k
# make test TORCH=2.14.1      with another torch, in an environment of its own: .venv-torch-2.14.1
# make test WORKERS=2         two test files at a time instead of four
# make figures    run every notebook without a browser and export figures/
# make notebooks  run every notebook and store its outputs in place (instructors)
# make screenshots  the pictures of the explorers in README.md and docs, from a real JupyterLab
# make submit     pack what you hand in: submission.zip; SUBMIT_FLAGS="--layout 11-868" as an assignment asks for it
# make bench      side by side with the usual alternatives
# make gpu        all that waits for a GPU, in at most 9 minutes, with the Python that is there: no set-up
# make gpu GPU_FLAGS="--part faults"  one part of it; --rehearse without a GPU; --notebooks runs those too
# make matrix     the same tests of ranks, models, pipelines elsewhere: the newest packages, other Pythons, torch, CPU kernels, another user
# SYSTEM_TORCH=1  use the torch that this machine has already, as on a GPU node

PYTHON ?= python3
VENV := .venv$(if $(TORCH),-torch-$(TORCH))
BIN := $(VENV)/bin
# More workers than cores: often a test's ranks wait for each other. A worker takes a file whole, and notebooks one by one.
WORKERS ?= 4
PYTEST_FLAGS ?= --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 25
READY := $(VENV)/ready$(if $(SYSTEM_TORCH),-with-system-torch)

.PHONY: setup lab test figures notebooks screenshots submit bench gpu matrix clean

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt --editable

setup: $(READY)

$(READY): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "labkit needs Python 3.11 or newer; name one, such as: make lab PYTHON=python3.12")'
	rm -f $(VENV)/ready*
	$(PYTHON) -m venv $(if $(SYSTEM_TORCH),--system-site-packages --clear) $(VENV)
	sed $(if $(SYSTEM_TORCH),-e '/^torch==/d' -e '/^numpy==/d') $(if $(TORCH),-e 's/^torch==.*/torch==$(TORCH)/') -e '/^#/d' constraints.txt > $(VENV)/constraints.txt
	@echo 'labkit: pip installs JupyterLab, transformers and what they need: a download of 0.2 GB, 3 to 20 minutes, once.'
	$(if $(SYSTEM_TORCH),,@echo 'labkit: torch comes with it: 0.2 GB for CPUs, about 3 GB with CUDA, which is what Linux gets. To choose: docs/platforms.md.')
	$(INSTALL) '.[lab]'
	@mkdir -p $(VENV)/etc/ipython && cp labkit/base/ipython_kernel_config.json $(VENV)/etc/ipython # what %%needs says in a new kernel
	touch $@

# What tests need besides: linters, a type checker, a browser's driver.
$(READY)-to-test: $(READY)
	@echo "labkit: installing what tests need: a download of 0.2 GB, 1 to 5 minutes."
	$(INSTALL) '.[test]'
	touch $@

# Cells (!labkit report) and terminals there find this environment's python and labkit first. In a terminal the reader's
# .bashrc comes before that: it may put another Python first, such as conda's or pyenv's.
lab: setup
	printf '%s\n' '[ ! -f ~/.bashrc ] || . ~/.bashrc' '. "$(abspath $(BIN))/activate"' > $(VENV)/terminal.sh
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/jupyter lab --ServerApp.terminado_settings="shell_command=['bash', '--rcfile', '$(abspath $(VENV))/terminal.sh']" --KernelManager.transport=ipc --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/$(firstword $(sort $(wildcard notebooks/*.ipynb))) $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_FLAGS)

test: $(READY)-to-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pytest $(PYTEST_FLAGS) $(if $(SLOW)$(TESTS),,-m "not slow") $(TESTS)

figures: setup
	$(BIN)/python -m labkit.course.notebooks export

notebooks: setup
	$(BIN)/python -m labkit.course.notebooks execute

screenshots: $(READY)-to-test
	$(BIN)/python tests/browser/screenshots.py

submit: setup
	$(BIN)/labkit submit $(SUBMIT_FLAGS)

bench: $(READY)-to-test
	for benchmark in benchmarks/bench_*.py; do $(BIN)/python $$benchmark || exit 1; done

gpu:
	$(firstword $(wildcard $(BIN)/python) $(PYTHON)) benchmarks/on_gpu.py $(GPU_FLAGS)

matrix: $(READY)-to-test
	$(BIN)/python tests/matrix.py $(MATRIX)

clean:
	rm -rf .venv .venv-matrix .venv-torch-* runs
