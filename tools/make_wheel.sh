#!/usr/bin/env bash
# Builds the wheel for TensorFlow $TF_VERSION in dist/, and tests it as its user has it.
#
# [PYTHON=path/to/python] [TENSORFLOW=tensorflow] TF_VERSION=2.21.0 tools/make_wheel.sh PYTEST_ARGS...
#
# TENSORFLOW is the distribution to build against; for 64-bit Arm there is no tensorflow-cpu.
#
# The wheel is built by pip in an environment that holds nothing but this TensorFlow,
# repaired by auditwheel, which says the oldest C library that it runs with, named for
# the TensorFlow, and installed there with what its tests need. The environment, 1.5 to
# 2 GB, is removed at the end. What ran is written to dist/TF_VERSION.txt.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PIP_DISABLE_PIP_VERSION_CHECK=1
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
# A wheel is for machines with and without a GPU.
export TF_SYNCREP_CUDA=OFF

work="build/wheel-$TF_VERSION"
trap 'rm -rf "$work"' EXIT
rm -rf "$work" "dist/$TF_VERSION.txt"
mkdir -p "$work" dist

tools=build/wheel-tools
if [[ ! -e "$tools/done" ]]; then
  echo "== auditwheel"
  python3 -m venv --clear "$tools"
  "$tools/bin/pip" install -qq --upgrade pip
  "$tools/bin/pip" install -qq --group wheel
  touch "$tools/done"
fi

python="$(tools/find_python.sh)"
echo "== TensorFlow $TF_VERSION, with $python"
"$python" -m venv "$work/venv"
bin="$work/venv/bin"
"$bin/pip" install -qq --upgrade pip
"$bin/pip" install -qq "${TENSORFLOW:-tensorflow-cpu}==$TF_VERSION"

echo "== Building"
started=$SECONDS
tools/show_build.sh "$work/build.log" "$bin/pip" wheel -v --no-deps --wheel-dir "$work/built" .
built_in=$((SECONDS - started))
# TensorFlow's own libraries are those of the TensorFlow that loads this one.
PATH="$PWD/$tools/bin:$PATH" "$tools/bin/auditwheel" repair --wheel-dir "$work/repaired" \
  --exclude 'libtensorflow_*.so.2' "$work"/built/*.whl
wheel="$("$tools/bin/python" tools/name_wheel.py "$work"/repaired/*.whl dist)"

echo "== Testing $wheel"
"$bin/pip" install -qq "$wheel[report,test]"
"$bin/tf-syncrep" doctor
status=0
started=$SECONDS
"$bin/pytest" "$@" | tee "$work/pytest.log" || status=$?
facts="$("$bin/python" -c '
import platform, keras
print("Python", platform.python_version(), "Keras", keras.__version__)')"
summary="$(tail -n 1 "$work/pytest.log" | tr -d '=' | xargs)"
echo "$(date -u +%F) TensorFlow $TF_VERSION $facts: $summary; built in ${built_in} s: $wheel" |
  tee "dist/$TF_VERSION.txt"
exit "$status"
