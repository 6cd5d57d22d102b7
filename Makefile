# On a fresh machine: `make demo`, `make test`, `make test-all`, `make docs`. Each sets up what it needs, once.
PYTHON ?= python3
BIN := .venv/bin
HAS_GPU := $(BIN)/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"
READY := .venv/ready
DOCS_READY := .venv/docs-ready
DIST_READY := .venv/dist-ready
ECOSYSTEM := .venv-ecosystem/bin
ECOSYSTEM_READY := .venv-ecosystem/ready
VERSION ?= 2.13.0
TORCH := .venv-torch-$(VERSION)/bin
TORCH_READY := .venv-torch-$(VERSION)/ready
LIBRARIES := torchvision transformers peft accelerate lightning torchmetrics bitsandbytes torchao tensordict \
	torch_geometric gpytorch ema-pytorch torch-ema timm e3nn heavyball segmentation_models_pytorch
LIBRARIES += pytorch_optimizer schedulefree prodigyopt dadaptation galore-torch torchzero grokadamw lion-pytorch \
	adabelief-pytorch came-pytorch kron-torch
LIBRARIES += diffusers stable-baselines3 botorch kornia torchsde vector-quantize-pytorch pytorch-metric-learning monai
# These are installed as they are, with what they import. mace-torch wants an e3nn of 2022, torchrl a tensordict before
# 0.15, ultralytics an opencv with windows and clients of its platform and of NVIDIA's driver.
LIBRARIES_ALONE := mace-torch torchrl ultralytics ultralytics-thop
LIBRARIES += ase matscipy h5py prettytable lmdb orjson python-hostlist
LIBRARIES += hoptorch opencv-python-headless matplotlib polars

.PHONY: demo test test-all test-browser test-ecosystem test-torch zoo check dist docs bench clean

demo: $(READY)
	$(BIN)/python examples/nested_model.py
	$(BIN)/python examples/mid_training.py
	$(BIN)/python examples/forgotten_buffer.py
	$(BIN)/python examples/rehearsal.py
	$(BIN)/python examples/parking.py

# The quick tier. Its tests are small: threads of torch's own would mostly wait for each other.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --quick -m "not cuda"
	if $(HAS_GPU); then OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --quick -m cuda; fi

# All tests. Those that need a GPU are skipped by name where there is none.
test-all: $(READY)
	$(BIN)/python -m pytest -n 2 --durations=20 -m "not cuda"
	$(BIN)/python -m pytest -n 2 --durations=20 -m cuda

# The pages in a real browser: needs Chromium, as `chromium` on PATH or named in CHROMIUM.
test-browser: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[browser]'
	$(BIN)/python -m pytest tests/reporting/test_page.py

# The objects of the libraries that people use, in an environment of its own. Nothing is downloaded but packages.
test-ecosystem: $(ECOSYSTEM_READY)
	HF_HUB_OFFLINE=1 $(ECOSYSTEM)/python -m pytest -n 2 -m "not cuda" tests/ecosystem
	HF_HUB_OFFLINE=1 $(ECOSYSTEM)/python -m pytest -n 2 -m cuda tests/ecosystem

# The quick tier with another version of torch: make test-torch VERSION=2.15.0 PYTHON=python3.13
test-torch: $(TORCH_READY)
	OMP_NUM_THREADS=1 $(TORCH)/python -m pytest -n 2 --quick -m "not cuda"

zoo: $(ECOSYSTEM_READY)
	$(ECOSYSTEM)/python benchmarks/zoo.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_shape.py -q

# Not --quiet: it would silence the warnings, and with them the strictness. NO_MKDOCS_2_WARNING is an advertisement.
# The sdist and the wheel, in dist/, and their checks.
dist: $(DIST_READY)
	rm -rf dist
	$(BIN)/python -m build --quiet --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	DISTRIBUTIONS=dist $(BIN)/python -m pytest -q tests/test_install.py

docs: $(DOCS_READY)
	$(BIN)/python docs/codes.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/speed.py --write

clean:
	rm -rf .venv .venv-ecosystem .venv-torch-* build dist

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv: torch and the tests' packages. The first time this downloads them, and takes a few minutes."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[test,check]'
	touch $(READY)

$(DOCS_READY): $(READY)
	@echo "Setting up .venv: mkdocs and what it needs."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[docs]'
	touch $(DOCS_READY)

$(DIST_READY): $(READY)
	@echo "Setting up .venv: build, twine and what renders the README."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dist]'
	touch $(DIST_READY)

$(ECOSYSTEM_READY): pyproject.toml constraints-ecosystem.txt
	@echo "Setting up .venv-ecosystem: torch and the libraries, gigabytes. The first time this takes many minutes."
	$(PYTHON) -m venv .venv-ecosystem
	$(ECOSYSTEM)/python -m pip install --quiet --disable-pip-version-check -c constraints-ecosystem.txt setuptools torch==2.13.0
	$(ECOSYSTEM)/python -m pip install --quiet --disable-pip-version-check -c constraints-ecosystem.txt $(LIBRARIES)
	$(ECOSYSTEM)/python -m pip install --quiet --disable-pip-version-check -c constraints-ecosystem.txt --no-deps $(LIBRARIES_ALONE)
	$(ECOSYSTEM)/python -m pip install --quiet --disable-pip-version-check -c constraints-ecosystem.txt --no-build-isolation -e '.[test]'
	touch $(ECOSYSTEM_READY)

# The pins of constraints.txt but torch's.
$(TORCH_READY): pyproject.toml constraints.txt
	@echo "Setting up .venv-torch-$(VERSION). With CUDA, torch is gigabytes: the first time this takes many minutes."
	test -x $(TORCH)/python || $(PYTHON) -m venv .venv-torch-$(VERSION)
	grep -v '^torch==' constraints.txt > .venv-torch-$(VERSION)/constraints.txt
	$(TORCH)/python -m pip install --quiet --disable-pip-version-check -c .venv-torch-$(VERSION)/constraints.txt setuptools torch==$(VERSION)
	$(TORCH)/python -m pip install --quiet --disable-pip-version-check -c .venv-torch-$(VERSION)/constraints.txt --no-build-isolation -e '.[test]'
	touch $(TORCH_READY)
