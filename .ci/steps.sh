# The steps that check a commit, and what runs them. Sourced by `.ci/run` and
# `.ci/nightly`, which say in IN_TURN and BESIDE what theirs are.
#
# Each step works in a clean clone of the last commit. One that fails does not stop the
# others; any makes the status 1. Those in BESIDE only compute: they run beside the others,
# in the time in which a core would be idle, and show their output at the end.
#
# Runs as root on Debian 12 and installs what it misses of Debian's packages.
# An argument is a step: only these run then.

set -euo pipefail
exec </dev/null

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
OLDEST_TF=2.15.1
BETWEEN_TF="2.16.2 2.17.1 2.18.1 2.19.1 2.20.0"
# Supported, but not the one that make installs: a release candidate.
NEXT_TF=2.22.0rc0
PACKAGES=(
  bazel-bootstrap ccache g++ git iproute2 libgtest-dev make mmdebstrap openssl stunnel4
)

export CI=true
export DEBIAN_FRONTEND=noninteractive
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
export TF_CPP_MIN_LOG_LEVEL=2
# The clone may be of a repository that another user owns.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'

install_packages() {
  local missing=() package
  for package in "${PACKAGES[@]}"; do
    if [[ "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" != *" installed" ]]; then
      missing+=("$package")
    fi
  done
  if ((${#missing[@]})); then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
  echo "there: ${PACKAGES[*]}"
}

# One compiler cache for all that CMake builds. Its keys hold paths below BASEDIR as
# relative ones, and TensorFlow's headers are precompiled, which takes the sloppiness.
use_compiler_cache() {
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR="$SCRATCH" CCACHE_DIR="$SCRATCH/ccache" CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
}

# What pytest gets to run files on all cores, as `make` gives it.
ON_ALL_CORES="-n $(nproc) --dist loadfile --no-loadscope-reorder --max-worker-restart 0"

pytest_on_all_cores() {
  # shellcheck disable=SC2086
  .venv/bin/pytest $ON_ALL_CORES "$@"
}

step_test() {
  make test
}

# What each change is tested with, too, but would make `make test` too long to wait for.
step_longer() {
  make test-longer
}

# Whether the simulator finds each defect that is put back in is asked by night. The
# time-out of a test holds for the build, too, and it gets what others leave.
step_cpp() {
  make build
  .venv/bin/pytest -m slow --timeout=0 tests/cc tests/simulator/test_simulator.py \
    -k "not defect_is_found"
}

# Those that `fit` takes; NumPy stays as it is.
install_kinds_of_data() {
  .venv/bin/pip install -q scipy pandas \
    "numpy==$(.venv/bin/python -c 'import numpy; print(numpy.__version__)')"
}

# But the C++ tests, which have steps of their own, and guides, which `make docs` runs.
step_slow() {
  make build
  # Without what they depend on: Keras is there, and is to stay as it is.
  .venv/bin/pip install -q --no-deps keras-rs tensorflow-recommenders
  install_kinds_of_data
  pytest_on_all_cores -m "slow and not soak" --timeout=900 --ignore=tests/cc tests
}

# What tasks do to each other, by TensorFlow's own protocol.
step_grpc() {
  make build
  TF_SYNCREP_RPC_LAYER=grpc pytest_on_all_cores -m "not soak and not slow" \
    tests/distributed tests/keras/fit/test_faults.py tests/keras/sync_replicas tests/v1
}

# What the others have installed is not there.
step_fresh() {
  .ci/fresh_machine.sh "$SCRATCH/machine"
}

step_soak() {
  make build
  install_kinds_of_data
  make soak
}

step_lint() {
  make lint
}

step_tidy() {
  make tidy
}

step_bazel() {
  # Expanded now: at the exit, variables of this function are gone.
  local bazel=(bazel "--output_user_root=$SCRATCH/bazel")
  # shellcheck disable=SC2064
  trap "${bazel[*]@Q} shutdown" EXIT
  make build
  # This TensorFlow has no CUDA: its GPU kernels are asked for, to see that they build.
  local cuda=OFF
  if command -v nvcc >/dev/null; then cuda=ON; fi
  PYTHON="$PWD/.venv/bin/python" TF_SYNCREP_CUDA=$cuda ./configure.sh
  "${bazel[@]}" build --noshow_progress //...
  "${bazel[@]}" test --noshow_progress //...
  .venv/bin/python .ci/run_one_op.py bazel-bin/libtf_syncrep.so
}

test_cc_under() {
  make build
  TF_SYNCREP_SANITIZER="$1" .venv/bin/pytest -m slow --timeout=0 tests/cc "${@:2}"
}

step_tsan() {
  test_cc_under thread
}

step_asan() {
  test_cc_under address,undefined
}

step_fuzz() {
  export TF_SYNCREP_FUZZ_SECS="${TF_SYNCREP_FUZZ_SECS:-600}"
  test_cc_under address,undefined -k wire_fuzz
}

# Guides, README and examples run here, and the site is built.
step_docs() {
  make docs TUTORIALS=off
}

# Tutorials start clusters, whose tasks must answer in time: they take part in the
# machine like the tests do. They come last, when few of those are left.
step_tutorials() {
  chrt --other --pid 0 $$ || true
  make docs
}

# The library with GPU kernels, for one kind of GPU, must link, load where there is none,
# and run its CPU kernels there.
step_cuda() {
  if ! command -v nvcc >/dev/null; then
    echo "skipped: nvcc is not on PATH"
    return
  fi
  make build
  local build="$SCRATCH/cuda" python="$PWD/.venv/bin/python"
  export PATH="$PWD/.venv/bin:$PATH"
  TF_SYNCREP_CUDA=ON cmake -S . -B "$build" -DTF_SYNCREP_CUDA_HARNESS=ON \
    -DTF_SYNCREP_CUDA_ARCHITECTURES=90-real -DPython_EXECUTABLE="$python"
  cmake --build "$build" --parallel "$(nproc)"
  "$python" .ci/launch_without_gpu.py "$build/cmake/cuda/libtf_syncrep_cuda_harness.so"
  mkdir "$build/package"
  cp -r tf_syncrep "$build/package"
  cp "$build"/libtf_syncrep*.so "$build/_build_info.py" "$build/package/tf_syncrep"
  export PYTHONPATH="$build/package"
  .venv/bin/pytest tests/ops -k "accumulator or adam_async"
  .venv/bin/tf-syncrep doctor
}

# As a user has it: the wheel for it, installed where there is nothing else.
step_oldest() {
  make wheel TF_VERSION=$OLDEST_TF
}

test_whole_on_wheel() {
  make wheel TF_VERSION="$1" WHEEL_TESTS="$ON_ALL_CORES \
    -m 'not soak and not slow and not one_version' tests"
}

step_oldest_whole() {
  test_whole_on_wheel $OLDEST_TF
}

step_next_whole() {
  test_whole_on_wheel $NEXT_TF
}

# The parts of each topic that depend on versions, the protocol between tasks with them.
step_versions() {
  make wheels TF_VERSIONS="$BETWEEN_TF"
}

heading() {
  printf '\n======== %s (%d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60))
}

# Each step is a process of its own: `set -e` is off in a function that an `if` calls.
run_step() {
  heading "${TITLES[$1]}"
  TF_SYNCREP_CI_STEP="$1" "$BASH" "$0" || echo "$1" >>"$SCRATCH/failed"
}

declare -A TITLES=(
  [test]="README: make test"
  [longer]="tests of each change that make test leaves out"
  [cpp]="C++ tests, simulator"
  [lint]="ruff, pyright, clang-format, workflows"
  [docs]="documentation: guides, README, examples, API reference, links"
  [oldest]="TensorFlow $OLDEST_TF: make its wheel, test the installed wheel"
  [slow]="slow tests"
  [soak]="tests that take hundreds of runs"
  [oldest_whole]="TensorFlow $OLDEST_TF: the whole suite on its installed wheel"
  [next_whole]="TensorFlow $NEXT_TF: the whole suite on its installed wheel"
  [grpc]="clusters whose tasks talk by gRPC alone"
  [versions]="TensorFlow $BETWEEN_TF: make their wheels, test the installed ones"
  [fresh]="README's commands, where there is nothing but what README names"
  [tidy]="clang-tidy"
  [bazel]="Bazel: build, C++ tests, load the library"
  [tsan]="C++ tests under ThreadSanitizer"
  [asan]="C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer"
  [fuzz]="bytes of anybody on a connection, for ten minutes, under the same"
  [cuda]="CUDA: compile, link, load without a GPU"
  [tutorials]="documentation with its tutorials"
)

# Ends the steps that run beside the tests, and all that they have started.
clean_up() {
  [[ -z "$beside_pid" ]] || kill -- "-$beside_pid" 2>/dev/null || true
  chmod -R u+w "$SCRATCH"
  rm -rf "$SCRATCH"
}

# Runs the steps that are named, or those of IN_TURN and BESIDE.
check() {
  if [[ -n "${TF_SYNCREP_CI_STEP:-}" ]]; then
    use_compiler_cache
    cd "$SCRATCH/clone"
    "step_$TF_SYNCREP_CI_STEP"
    exit
  fi

  local in_turn=() beside=() failed=() step
  for step in "${@:-}"; do
    case "$step" in
      "") in_turn=("${IN_TURN[@]}") beside=("${BESIDE[@]}") ;;
      test | longer | docs | slow | soak | fresh | grpc | versions | oldest | \
        oldest_whole | next_whole)
        in_turn+=("$step")
        ;;
      *)
        [[ -n "${TITLES[$step]:-}" ]] || { echo "no such step: $step" >&2; exit 2; }
        beside+=("$step")
        ;;
    esac
  done

  heading "Debian packages"
  install_packages

  heading "Clean clone of $(git -C "$ROOT" rev-parse --short HEAD)"
  SCRATCH="$(mktemp -d)"
  export SCRATCH
  beside_pid=
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  git clone -q "$ROOT" "$SCRATCH/clone"
  touch "$SCRATCH/failed"

  if ((${#beside[@]})); then
    heading "make build"
    (use_compiler_cache && make -C "$SCRATCH/clone" build)
    set -m
    {
      # They get what nobody else wants, so that tests take hardly longer.
      chrt --idle --pid 0 "$BASHPID" || renice -n 19 -p "$BASHPID"
      for step in "${beside[@]}"; do
        run_step "$step"
      done
    } >"$SCRATCH/beside.log" 2>&1 &
    beside_pid=$!
    set +m
  fi
  for step in ${in_turn[@]+"${in_turn[@]}"}; do
    run_step "$step"
  done
  if [[ -n "$beside_pid" ]]; then
    wait "$beside_pid" || echo "${beside[*]}" >>"$SCRATCH/failed"
    beside_pid=
    cat "$SCRATCH/beside.log"
  fi

  mapfile -t failed <"$SCRATCH/failed"
  if ((${#failed[@]})); then
    heading "FAILED: ${failed[*]}"
    exit 1
  fi
  heading "all passed"
}
