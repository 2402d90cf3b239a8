# make demo | make test | make docs | make check | make bench     PYTHON= chooses the
# interpreter
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= data,plot,nir
# With the wheels of plan-cuda installed and no GPU, jax prints a long plugin error at
# every start unless this is set.
export JAX_PLATFORMS ?= cpu

.PHONY: install demo test docs check bench clean
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

docs: install
	$(BIN)/python -m pip install --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

check:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[$(EXTRAS)]" --group dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright --pythonpath $(BIN)/python

# Half an hour, most of it for the peers' environments and steps. What needs wheels that
# are not installed says so: EXTRAS=data,plot,nir,plan-cuda for the bytes of absent GPUs.
BENCH ?= --time 5
bench: install
	$(BIN)/python benchmarks/conv.py
	$(BIN)/python benchmarks/memory.py $(BENCH)
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/figures.py
	$(BIN)/python benchmarks/report.py

clean:
	rm -rf $(VENV)
