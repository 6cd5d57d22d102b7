# Two commands on a fresh machine: `make demo` and `make test`. Each sets up what it needs, once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test check bench clean

demo: $(READY)
	$(BIN)/python examples/nested_model.py
	$(BIN)/python examples/mid_training.py
	$(BIN)/python examples/forgotten_buffer.py
	$(BIN)/python examples/rehearsal.py
	$(BIN)/python examples/parking.py

test: $(READY)
	$(BIN)/python -m pytest -n 2 -m "not cuda"
	$(BIN)/python -m pytest -n 2 -m cuda

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_shape.py -q

bench: $(READY)
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/speed.py --write

clean:
	rm -rf .venv build

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[test,check]'
	touch $(READY)
