#!/usr/bin/env bash
# Prepares the Bazel build: finds a Python with a supported TensorFlow and writes
# .bazelrc.generated, with the path of nvcc if GPU kernels are to be built. Asks nothing.
# Usage: [PYTHON=path/to/python] [TF_SYNCREP_CUDA=ON|OFF|AUTO] ./configure.sh

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# PYTHON if it is set; else the Makefile's environment, then the one on PATH.
if [[ -n "${PYTHON:-}" ]]; then
  candidates=("$PYTHON")
else
  candidates=(.venv/bin/python python3 python)
fi

chosen=""
reasons=""
for candidate in "${candidates[@]}"; do
  path="$(command -v "$candidate")" || continue
  if reason="$("$path" cmake/tensorflow_probe.py 2>&1 >/dev/null)"; then
    # Not resolved further: a virtual environment's python is a link.
    chosen="$(cd "$(dirname "$path")" && pwd)/$(basename "$path")"
    break
  fi
  reasons+="$candidate:"$'\n'"$reason"$'\n\n'
done
if [[ -z "$chosen" ]]; then
  printf '%s' "${reasons:-No Python found: tried ${candidates[*]}.$'\n'}" >&2
  echo "Then run ./configure.sh again; PYTHON=... chooses the Python." >&2
  exit 1
fi

# Bazel 4, which Debian's bazel-bootstrap is, downloads rules_cc and rules_java for
# names that it has built in, and a tool that only `bazel coverage` runs. With the
# stubs it needs no network.
if ! command -v bazel >/dev/null; then
  echo "Bazel is not installed. On Debian: apt-get install bazel-bootstrap" >&2
  exit 1
fi
overrides=()
bazel_version="$(bazel --version)"
case "$bazel_version" in
  "bazel no_version" | "bazel 4."*) # bazel-bootstrap does not know its version
    for stub in third_party/bazel_stubs/*; do
      overrides+=("--override_repository=$(basename "$stub")=$PWD/$stub")
    done
    ;;
esac

facts="$("$chosen" cmake/tensorflow_probe.py 2>/dev/null)"
nvcc="$(command -v "${CUDACXX:-nvcc}" || true)"
no_kernels="no, there is no nvcc on PATH"
case "${TF_SYNCREP_CUDA:-AUTO}" in
  OFF)
    nvcc=""
    no_kernels="no, as TF_SYNCREP_CUDA=OFF asks"
    ;;
  ON)
    if [[ -z "$nvcc" ]]; then
      echo "TF_SYNCREP_CUDA=ON asks for GPU kernels, and there is no nvcc on PATH." >&2
      exit 1
    fi
    ;;
  AUTO)
    if ! grep -qx "CUDA=ON" <<<"$facts"; then
      nvcc=""
      no_kernels="no, this TensorFlow was built without CUDA"
    fi
    ;;
  *)
    echo "The environment variable TF_SYNCREP_CUDA must be ON, OFF or AUTO." \
      "Received: '$TF_SYNCREP_CUDA'" >&2
    exit 1
    ;;
esac

{
  echo "# Written by ./configure.sh; run it again to change it."
  for command in build query fetch sync; do
    for option in "--repo_env=TF_SYNCREP_PYTHON=$chosen" \
      "--repo_env=TF_SYNCREP_NVCC=$nvcc" "${overrides[@]}"; do
      echo "$command $option"
    done
  done
} >.bazelrc.generated

echo "Python:     $chosen"
echo "TensorFlow: $(sed -n 's/^VERSION=//p' <<<"$facts")"
echo "GPU kernels: ${nvcc:-$no_kernels}"
echo "Now run: bazel build //..."
