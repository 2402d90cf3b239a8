# make demo | make test | make check | make bench     PYTHON= chooses the interpreter
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= data,plot,nir
# With the wheels of plan-cuda installed and no GPU, jax prints a long plugin error at
# every start unless this is set.
export JAX_PLATFORMS ?= cpu

.PHONY: install demo test check bench clean
STAMP := $(VENV)/.installed-$(EXTRAS)
install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[$(EXTRAS)]" --group test
	touch $@

demo: install
	$(BIN)/python examples/digits.py $(ARGS)

# By two processes, a file each at a time: JAX compiles on one core, mostly.
JOBS ?= 2
test: install
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile $(ARGS)

check:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[$(EXTRAS)]" --group dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright --pythonpath $(BIN)/python

bench: install
	$(BIN)/python benchmarks/memory.py --time 5 && $(BIN)/python benchmarks/conv.py

clean:
	rm -rf $(VENV)
