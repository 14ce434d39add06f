# The README's commands, and nothing else. Each works from a clean clone: the environment is a
# prerequisite, made once and again whenever pyproject.toml changes.

VENV    := .venv
SPARK40 := .venv-spark-4.0
DEMO    := .venv-demo
PY      := $(VENV)/bin/python
SECONDS  = 300
BATCHES  = 1000
# Branch coverage is held where bytes and conflicts are decided.
COVERED  = 96
COVERAGE_TESTS = tests/encoding tests/zarr tests/repository tests/groups/changing tests/tables/writing
COVERAGE_OF = format/icechunk_format/encoding/*,format/icechunk_format/zarr/*,format/icechunk_format/repository/changes/*,format/icechunk_format/repository/commit/*,format/icechunk_format/tables/writing/replanning/*
LOWEST  := .venv-lowest
PIP      = $(1)/bin/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo cluster bench test test-all nightly matrix torture soak coverage newest-releases lower-bounds test-fast check dist sbom docs docs-serve format clean java peers mutation

help:  ## list these commands
	@sed -n 's/^\([a-z][a-z0-9.-]*\):.*## /\1\t/p' Makefile

demo: java $(DEMO)/.ready  ## write climate data to a local repository, read it with Spark, and draw two pictures
	@echo "running examples/demo.py: Spark starts, reads, writes and draws (less than a minute)"
	@$(DEMO)/bin/python examples/demo.py

cluster: $(VENV)/.ready java  ## run the services of docker-compose.yml as processes (S3, a Spark cluster), and the demo and a week of operations on them
	$(PY) deploy/as_processes.py $(ARGS)

bench: $(VENV)/.ready java  ## compare speed and memory with limits and peers; NAMES=scan for one, ARGS='--plots pictures'
	$(PY) benchmarks/run.py $(NAMES) $(ARGS)

# Python keeps what it compiled, whatever the shell says: a run starts hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

# One run without a JVM and one with it, since starting Spark costs half a minute. Two processes
# share the files of a run, as there are two cores to share, in the order of `tests/conftest.py`.
SHARED   = -m pytest -n 2 --dist loadfile --no-loadscope-reorder
PYTEST   = $(PY) $(SHARED)

test: test-fast $(VENV)/spark-classes.jsa  ## run the fast tests, and the core of those with Spark, the reference and a server; 8 minutes
	$(PYTEST) tests --layer core

test-all: test $(VENV)/spark-classes.jsa $(SPARK40)/.ready  ## run all tests but those of nightly, on the newest Spark and, if they need Spark, on 4.0; 45 minutes
	$(PYTEST) tests --layer rest
	$(SPARK40)/bin/python $(SHARED) tests/spark -m "each_spark and not nightly"

nightly: $(VENV)/.ready java  ## run the longest tests: benchmarks of tiny data against their peers, and a few batches of the soak
	$(PYTEST) tests --layer nightly

matrix: $(VENV)/.ready  ## install every release of the reference in a cache, and compare each with ours, in both directions
	@$(call PIP,$(VENV)) install uv
	$(PY) tests/helpers/golden/releases.py
	$(PYTEST) tests/golden/test_releases.py

peers: $(VENV)/.ready  ## run the tests of Icechunk and of VirtualiZarr's writer over this library; clones both into .peers/
	@.ci/clone https://github.com/earth-mover/icechunk 224519be49795c91fa35c2404b04ad5cb298a065 .peers/icechunk
	@.ci/clone https://github.com/zarr-developers/VirtualiZarr c6f1cf02ca6140cb92cadf13f045cc82102ec389 .peers/VirtualiZarr
	ICECHUNK_CHECKOUT=$(CURDIR)/.peers/icechunk VIRTUALIZARR_CHECKOUT=$(CURDIR)/.peers/VirtualiZarr $(PY) -m pytest -n 0 -s --timeout=0 tests/peers/test_reference.py tests/peers/test_virtualizarr.py

torture: $(VENV)/.ready  ## test with faults and hostile input for SECONDS=300 each; TORTURE_SEED=n starts at another seed
	TORTURE_SECONDS=$(SECONDS) $(PY) -m pytest -n 0 -s --timeout=0 tests/torture
	FUZZ_SECONDS=$(SECONDS) $(PY) -m pytest -n 0 -s --timeout=0 tests/fuzz
	INTERLEAVINGS=all EXAMPLES=10 $(PYTEST) tests --layer fast --timeout=0

# Old releases of s3fs leave warnings to the garbage collector, which meets them in any test. The
# oldest wheels for this Python are meant, since old sources do not build with new tools.
lower-bounds:  ## run the tests of the format with the oldest packages that pyproject.toml allows
	@python=$$(.ci/find-python) && "$$python" -m venv --clear $(LOWEST)
	@$(call PIP,$(LOWEST)) install uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --only-binary :all: --no-binary icechunk-spark --editable . --group test
	$(LOWEST)/bin/python -m pytest --without-reference -W ignore::pytest.PytestUnraisableExceptionWarning tests/grid tests/encoding tests/zarr tests/storage tests/repository tests/tables tests/command_line

soak: $(VENV)/.ready java  ## run two streams of BATCHES=1000 batches with crashes and kills
	STREAM_SOAK=$(BATCHES) $(PY) -m pytest -s -n 0 --timeout=0 tests/spark/changes/test_changes_soak.py

newest-releases: $(VENV)/.ready java  ## run the tests with the newest release of every package, including pinned ones
	$(call PIP,$(VENV)) install --upgrade --upgrade-strategy eager "pyspark[connect]" icechunk zarr xarray obstore pyarrow numpy
	$(PYTEST) tests

mutation: $(VENV)/.ready  ## make small mistakes in the format and count those that tests notice; NAMES=changing for one room, ARGS='--most 0' for all
	$(PY) -c "import mutmut" 2>/dev/null || $(call PIP,$(VENV)) install "mutmut==3.8.1"
	$(PY) -W ignore .ci/mutation/run.py $(NAMES) $(ARGS)

coverage: $(VENV)/.ready  ## measure the branch coverage of the format, of changes and of conflicts; fails below COVERED
	$(PY) -m coverage run --parallel-mode -m pytest -n 0 -q $(COVERAGE_TESTS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report --fail-under=$(COVERED) --include="$(COVERAGE_OF)"

test-fast: $(VENV)/.ready  ## run the tests that need neither Java nor a server
	$(PYTEST) tests --layer fast

check: $(VENV)/.ready  ## check style, types, layers, packages and the size of the code
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) .ci/structure.py

docs: $(VENV)/.ready  ## build the manual as a site in site/; broken links and malformed docstrings are errors
	$(PY) tests/helpers/notebook_pages.py
	$(VENV)/bin/zensical build --strict

dist: java  ## build sdist and wheel in dist/, and test both in empty environments
	.ci/try-distributions

sbom:  ## list the packages that come along with the wheel in dist/, and their licences, in sbom/
	.ci/sbom

docs-serve: $(VENV)/.ready  ## serve the manual at http://localhost:8000, and rebuild it after each change
	$(PY) tests/helpers/notebook_pages.py
	$(VENV)/bin/zensical serve

format: $(VENV)/.ready  ## format the code, and update the generated tables of the manual
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	PYTHONPATH=tests $(PY) tests/helpers/manual.py

clean:  ## remove the environments and the output of tests
	rm -rf $(VENV) $(SPARK40) $(LOWEST) $(DEMO) .peers demo-output dist sbom site .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse

java:
	@.ci/check-java

$(VENV)/.ready: pyproject.toml
	@python=$$(.ci/find-python) && echo "making $(VENV) with $$python (a few minutes, once)" && "$$python" -m venv --clear $(VENV)
	@$(call PIP,$(VENV)) install "pip>=25.1"
	@$(call PIP,$(VENV)) install --editable . "pyspark[connect]==4.3.0" --group test --group conformance --group check --group docs
	@touch $@

# Only what the demo needs, with the pandas that the extra allows; no packages of tests and checks.
$(DEMO)/.ready: pyproject.toml
	@python=$$(.ci/find-python) && echo "making $(DEMO) with $$python (once)" && "$$python" -m venv --clear $(DEMO)
	@$(call PIP,$(DEMO)) install "pip>=25.1"
	@echo "installing Spark (the largest part), pandas, xarray, icechunk, matplotlib and sample data"
	@$(call PIP,$(DEMO)) install --editable ".[spark]" "pyspark==4.3.0" --group demo
	@touch $@

$(VENV)/spark-classes.jsa: tests/helpers/spark/loaded_classes.py $(VENV)/.ready | java
	@echo "keeping the classes of Spark, so that each JVM of the tests starts in half the time"
	-@$(PY) -W ignore $< 2>/dev/null

$(SPARK40)/.ready: pyproject.toml
	@python=$$(.ci/find-python) && echo "making $(SPARK40) with $$python (a few minutes, once)" && "$$python" -m venv --clear $(SPARK40)
	@$(call PIP,$(SPARK40)) install "pip>=25.1"
	@$(call PIP,$(SPARK40)) install --editable . "pyspark[connect]==4.0.5" --group test --group conformance
	@touch $@
