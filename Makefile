# make demo      first reports: build/llama-70b-on-h100.html, and build/rubin-and-lpx.html, GPUs against GPUs with LPUs
# make test      lint, types and the quick tests; test-all adds the slow ones
# make bench     how fast archsim itself is
# make clean     removes what the others made, .venv too
# make constraints   takes the newest versions of all dependencies
#
# Needs GNU make and Python 3.11 or newer: make PYTHON=python3.12 test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SCENARIO := llama-70b-on-h100
PAIR := examples/deepseek-v3-on-rubin.yaml examples/deepseek-v3-on-rubin-and-lpx.yaml

# Exact versions for what is installed and, the second, for what builds it. Relative, so that a space in the path
# of the checkout does no harm: pip splits these at spaces.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# A stamp says which interpreter the environment is of, so that another PYTHON makes a new one.
INTERPRETER := $(subst /,_,$(PYTHON))
RUN := $(VENV)/run-$(INTERPRETER).stamp
DEV := $(VENV)/dev-$(INTERPRETER).stamp

.PHONY: demo test test-all bench examples golden clean constraints
.DELETE_ON_ERROR:

demo: $(RUN)
	@mkdir -p build
	@$(BIN)/archsim run examples/$(SCENARIO).yaml --html build/$(SCENARIO).html $(PAIR:%=--beside %)
	@echo "The report is in build/$(SCENARIO).html, GPUs against GPUs with LPUs at its end: open it in a browser."

test: MARKED := not slow
test test-all: $(DEV)
	@echo "ruff check" && $(BIN)/ruff check --quiet .
	@echo "mypy --strict archsim" && $(BIN)/mypy --strict archsim
	@echo "pytest -m '$(MARKED)'" && $(BIN)/pytest -n auto -m '$(MARKED)'

bench: $(RUN)
	@$(BIN)/python benchmarks/speed.py
	@$(BIN)/python benchmarks/serving.py
	@$(BIN)/python benchmarks/explore.py --quick

# Writes what the examples print now beside them, and the golden metrics; look at the difference before committing it.
examples: $(RUN)
	@for script in examples/*.py; do $(BIN)/python $$script > examples/expected/$$(basename $$script .py).txt; done

golden: $(RUN)
	@$(BIN)/python tests/regenerate_golden.py

clean:
	@rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN): pyproject.toml constraints.txt
	$(check_python)
	@echo "Setting up $(VENV) (once) ..."
	@"$(PYTHON)" -m venv --clear $(VENV)
	@$(BIN)/pip install -qq -e .
	@touch $@

$(DEV): $(RUN)
	@echo "Adding the tools that test (once) ..."
	@$(BIN)/pip install -qq -e '.[dev]'
	@touch $@

# typer 0.29 loads pydantic to parse any command: 0.2 s more for each `archsim ... --help`.
constraints: export PIP_CONSTRAINT :=
constraints: export PIP_BUILD_CONSTRAINT :=
constraints:
	$(check_python)
	@"$(PYTHON)" -m venv --clear build/constraints
	@build/constraints/bin/pip install -qq '.[dev,measurements]' hatchling 'typer<0.29'
	@grep '^#' constraints.txt > build/constraints.txt
	@build/constraints/bin/pip freeze --exclude archsim >> build/constraints.txt
	@mv build/constraints.txt constraints.txt

# One sentence for each thing that can be missing, where the interpreter's own error would be a riddle.
define check_python
@"$(PYTHON)" -c '' 2>/dev/null || { \
	echo "archsim needs Python 3.11 or newer, and '$(PYTHON)' does not run."; \
	echo "Install one, or name the one you have: make PYTHON=python3.12"; exit 1; } >&2
@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "archsim needs Python 3.11 or newer; '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1)."; \
	echo "Name a newer one: make PYTHON=python3.12"; exit 1; } >&2
@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	echo "'$(PYTHON)' cannot make virtual environments: its venv or ensurepip module is missing."; \
	echo "On Debian and Ubuntu: apt install $$("$(PYTHON)" -c \
		'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"; exit 1; } >&2
endef
