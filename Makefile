# Each target does all its own set-up.
#
#   make demo         a training on five processes of this machine, and a picture of it
#   make test         builds, and runs the tests
#   make test-longer  what make test leaves out, and each change passes
#   make soak         long runs under faults
#   make bench        the benchmarks
#   make simulate     the protocol under faults, SEEDS=0:10000; see docs/simulator.md
#   make lint         ruff, pyright, clang-format, workflows
#   make tidy         clang-tidy
#   make docs         the site, guides and examples
#   make build        nothing but the environment, and the package in it
#   make wheel        a wheel, tested
#   make wheels       one for each minor version of TensorFlow; see docs/install.md
#   make aarch64      the C++ core's tests for 64-bit Arm, in an emulator
#   make gpu          the CUDA kernels on a GPU, all that there is; see docs/gpu.md
#   make clean        removes what all of these have made
#
#   make test TF_VERSION=2.15.1      another TensorFlow, in an environment of its own
#   make test PYTHON=python3.11      another Python
#   make test PYTEST_ARGS="tests/ops -x"
#   make test PYTEST_ARGS="-m slow tests/cc"      the C++ tests
#   make test JOBS=8                 so many tests at once; by default one for each core
#
# A Python that suits the TensorFlow, g++ and make are all that must be there:
# CMake, Ninja and the rest come from PyPI into the environment.

TF_VERSION ?= 2.21.0
VENV ?= .venv$(if $(filter-out 2.21.0,$(TF_VERSION)),-$(TF_VERSION))
PYTHON ?=
PYTEST_ARGS ?= tests
JOBS ?= $(shell nproc)
TENSORFLOW ?= tensorflow-cpu
GPU_PYTHON ?= python3
GPU_RESULTS ?= benchmarks/results/gpu

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

bin := $(VENV)/bin
build_dir := build/make-$(TF_VERSION)$(if $(filter-out tensorflow-cpu,$(TENSORFLOW)),-gpu)
pip := $(bin)/python -m pip --disable-pip-version-check -qq
tf_minor := $(word 2,$(subst ., ,$(TF_VERSION)))
# From 2.16 on, tf.keras is Keras 3, and Keras 2 is the package tf_keras.
has_tf_keras := $(shell test $(tf_minor) -ge 16 && echo yes)
# Whether Keras 2 has its turn: not if some tests are asked for.
with_tf_keras := $(and $(has_tf_keras),$(filter tests,$(PYTEST_ARGS)))
# What depends on the Keras that there is: the rest of tests/keras runs with Keras 2
# wherever that is TensorFlow's own, in `.ci/run`.
tf_keras_tests := $(patsubst %,tests/keras/%.py,compat/test_private_names \
  embedding/test_embedding fit/test_fit fit/test_metrics fit/test_scheduling \
  optimizers/test_optimizer_table sync_replicas/test_config \
  sync_replicas/test_parameter_servers)
# Tests of one file run one after the other, as they share what they start; and files in
# their order, or those of a single test, which take long, would come last. A test that
# exceeds its time ends its process; with another one in its place, the run may not end.
pytest := $(VENV)/bin/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
  --max-worker-restart 0

tensorflow := $(VENV)/.tensorflow-$(TF_VERSION)
installed := $(VENV)/.installed
lint_tools := $(VENV)/.lint-tools
docs_tools := $(VENV)/.docs-tools
sources := CMakeLists.txt pyproject.toml README.md LICENSE \
  $(shell find cmake tf_syncrep -type f -not -name '*.pyc' -not -name '*.so' \
    -not -name _build_info.py)
cc_sources = $(shell find benchmarks tf_syncrep/cc tests -name '*.cc' -o -name '*.cu' -o -name '*.h')

.PHONY: help demo test test-longer soak bench simulate lint tidy build wheel wheels aarch64 clean gpu gpu-test \
  gpu-sanitize gpu-test-tensorflow gpu-bench

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

# These say what they do, or are long.
.SILENT: $(tensorflow) $(installed) $(lint_tools) demo test test-longer soak tidy wheel wheels

# A virtual environment with TensorFlow, made anew for another version of it.
# tf_keras is installed without its dependencies: it asks for the distribution
# tensorflow, whose files would overwrite those of tensorflow-cpu. It is the one for this
# TensorFlow or, where that is not there yet, the last before it.
$(tensorflow):
	python="$$(PYTHON='$(PYTHON)' TF_VERSION=$(TF_VERSION) tools/find_python.sh)"
	echo "== TensorFlow $(TF_VERSION) into $(VENV), with $$python: a few minutes, once"
	rm -rf $(VENV)
	"$$python" -m venv $(VENV)
	$(pip) install --upgrade pip
	$(pip) install "$(TENSORFLOW)==$(TF_VERSION)" "scikit-build-core>=0.10" cmake ninja
	$(if $(has_tf_keras),$(pip) install --no-deps "tf_keras<=2.$(tf_minor).99")
	touch $@

$(installed): $(tensorflow) $(sources)
	echo "== Building tf_syncrep"
	tools/show_build.sh $(build_dir).log $(bin)/python -m pip --disable-pip-version-check \
	  install -v --no-build-isolation --config-settings=build-dir=$(build_dir) \
	  ".[report,test]"
	touch $@

$(lint_tools): $(tensorflow) pyproject.toml
	echo "== Linters"
	$(pip) install --group lint
	touch $@

build: $(installed)

# In an environment of its own, which is removed. The tests are some of each topic, those
# that depend on the versions of TensorFlow and Keras first; they take two minutes.
WHEEL_TESTS ?= $(patsubst %,tests/%.py,keras/compat/test_private_names distributed/test_wire \
  keras/optimizers/test_lazy_optimizers keras/sync_replicas/test_config \
  keras/embedding/test_embedding keras/embedding/test_distributed_embedding \
  keras/sync_replicas/test_parameter_servers ops/test_accumulator_ops \
  ops/test_adam_async ops/test_checkpoint_ops ops/test_embedding_ops \
  ops/test_sync_gate_ops v1/test_accumulators v1/test_optimizer_checkpoints)
wheel:
	TF_VERSION=$(TF_VERSION) TENSORFLOW='$(TENSORFLOW)' PYTHON='$(PYTHON)' \
	  tools/make_wheel.sh $(WHEEL_TESTS)

# One that fails does not stop the others.
TF_VERSIONS ?= 2.15.1 2.16.2 2.17.1 2.18.1 2.19.1 2.20.0 2.21.0 2.22.0rc0
wheels:
	failed=
	for version in $(TF_VERSIONS); do
	  $(MAKE) --no-print-directory wheel TF_VERSION=$$version || failed+=" $$version"
	done
	cat $(TF_VERSIONS:%=dist/%.txt) || true
	[[ -z "$$failed" ]] || { echo "failed:$$failed" >&2; exit 1; }

demo: $(installed)
	echo "== tf-syncrep launch --workers 3 --ps 2 examples/word_vectors.py --replicas-to-aggregate 2"
	$(bin)/tf-syncrep launch --workers 3 --ps 2 examples/word_vectors.py \
	  --replicas-to-aggregate 2
	echo "== tf-syncrep report build/demo/logs --output build/demo/training.png"
	$(bin)/tf-syncrep report build/demo/logs --output build/demo/training.png

test: $(installed)
	$(pytest) $(PYTEST_ARGS)

# What is too much for `make test`, and runs for each change: tests that take seconds, and
# Keras 2, which has its turn even if something else fails.
test-longer: $(installed)
	status=0
	$(pytest) -m "ci and not slow and not soak" $(PYTEST_ARGS) || status=$$?
	$(if $(with_tf_keras),echo "== With tf_keras")
	$(if $(with_tf_keras),TF_USE_LEGACY_KERAS=1 \
	  $(pytest) -m "not slow and not soak" $(tf_keras_tests) || status=$$?)
	exit $$status

# What takes too long for each change: hundreds of runs under random faults. With
# tf_keras all that is about Keras.
soak: $(installed)
	status=0
	$(pytest) -m soak $(PYTEST_ARGS) || status=$$?
	$(if $(with_tf_keras),TF_USE_LEGACY_KERAS=1 \
	  $(pytest) -m "soak or not one_version" tests/keras || status=$$?)
	exit $$status

.PHONY: docs
.SILENT: docs $(docs_tools)

$(docs_tools): $(tensorflow) pyproject.toml
	echo "== Sphinx"
	$(pip) install --group docs
	touch $@

# The site, into build/docs; and guides, README's script and examples are run. Tutorials
# start `tf-syncrep` and `python` as users do, by PATH; those that have not changed since
# the last time are not run again. TUTORIALS=off runs none.
TUTORIALS ?= force
# What has not run has not said which language it is in.
docs: not_run := $(if $(filter off,$(TUTORIALS)),-D suppress_warnings=myst-nb.lexer)
docs: $(installed) $(docs_tools)
	status=0
	PATH="$(abspath $(bin)):$$PATH" TF_CPP_MIN_LOG_LEVEL=2 \
	  $(bin)/sphinx-build -q -W --keep-going -d build/docs-read-$(TUTORIALS) \
	  -D nb_execution_mode=$(TUTORIALS) $(not_run) docs build/docs || status=$$?
	$(pytest) -m "docs and not slow and not soak" tests/docs tests/examples || status=$$?
	echo "build/docs/index.html"
	exit $$status

bench: $(installed)
	$(bin)/python benchmarks/run.py

# A first seed and a number of schedules, or a number alone. Needs no TensorFlow, but
# CMake, which is in the environment where there is none on PATH.
SEEDS ?= 0:10000
simulate:
	cmake="$$(command -v cmake || echo $(bin)/cmake)"
	"$$cmake" -S . -B build/simulator -DTF_SYNCREP_PLUGIN=OFF -DTF_SYNCREP_SIMULATOR=ON
	"$$cmake" --build build/simulator --parallel $(JOBS)
	build/simulator/tests/simulator/simulate --seeds=$(SEEDS)

# The C++ core and its tests for 64-bit Arm, in an emulator. Needs Debian's
# g++-aarch64-linux-gnu, libgtest-dev and qemu-user, CMake and no TensorFlow. Not the
# kernels for GPUs, whose every thread is emulated once more: that takes minutes.
aarch64:
	cmake="$$(command -v cmake || echo $(bin)/cmake)"
	"$$cmake" -S . -B build/aarch64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake \
	  -DTF_SYNCREP_PLUGIN=OFF -DTF_SYNCREP_CC_TESTS=ON
	"$$cmake" --build build/aarch64 --parallel $(JOBS)
	"$$(dirname "$$cmake")/ctest" --test-dir build/aarch64 --parallel $(JOBS) \
	  --output-on-failure --exclude-regex ^cuda_

# What fails does not stop the others, and makes the status 2.
gpu:
	$(MAKE) -j1 --keep-going gpu-test gpu-sanitize gpu-test-tensorflow gpu-bench

# These need no TensorFlow. Where pytest is a package of GPU_PYTHON, its script may not
# be on PATH.
gpu_pytest := $(GPU_PYTHON) -m pytest -c tests/gpu/pytest.ini tests/gpu
# Ends a recipe, and says why, where what it takes is not there.
unless_missing = missing="$$($(GPU_PYTHON) tests/helpers/gpu_harness.py $(1))" || {
unless_missing += echo "Left out: $$missing"; exit 0; }

# 5 is pytest's way to say that all was skipped.
gpu-test:
	$(gpu_pytest) || [[ $$? == 5 ]]

# Not the tests that fill the memory: under the sanitizer they take hours. CuPy asks the
# driver for functions that it need not have, so errors of calls are not reported; the
# tests look at those of ours.
gpu-sanitize:
	@$(call unless_missing,cupy ml_dtypes)
	command -v compute-sanitizer >/dev/null || {
	  echo "compute-sanitizer is missing; it comes with the CUDA toolkit" >&2
	  exit 1
	}
	failed=
	for tool in memcheck racecheck; do
	  compute-sanitizer --tool "$$tool" --error-exitcode 1 --launch-timeout 0 \
	    --report-api-errors no \
	    $(gpu_pytest) -k "not beyond and not thousands and not million" ||
	    [[ $$? == 5 ]] || failed+=" $$tool"
	done
	[[ -z "$$failed" ]] || { echo "failed:$$failed" >&2; exit 1; }

# In an environment of its own. Tests start processes that share the GPU, so that none
# may take all of its memory.
gpu-test-tensorflow:
	@$(call unless_missing,)
	TF_SYNCREP_CUDA=ON \
	  $(MAKE) build VENV=.venv-gpu TENSORFLOW='tensorflow[and-cuda]'
	TF_FORCE_GPU_ALLOW_GROWTH=true TF_SYNCREP_WANT_GPU=1 \
	  .venv-gpu/bin/pytest tests/ops tests/v1 -k GPU

gpu-bench:
	$(GPU_PYTHON) benchmarks/gpu.py --output $(GPU_RESULTS)

lint: $(installed) $(lint_tools)
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/pyright --pythonpath $(bin)/python
	$(bin)/python tools/public_types.py
	$(bin)/clang-format --dry-run -Werror $(cc_sources)
	$(bin)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(bin)/check-jsonschema --builtin-schema vendor.github-issue-forms \
	  $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))

tidy: $(installed) $(lint_tools)
	find tf_syncrep/cc -name '*.cc' -print0 | xargs -0 -n 1 -P "$$(nproc)" \
	  $(bin)/clang-tidy -quiet -p $(build_dir)

clean:
	rm -rf .venv* build dist bazel-* .bazelrc.generated .pytest_cache .ruff_cache
	rm -f tf_syncrep/libtf_syncrep*.so tf_syncrep/_build_info.py
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
