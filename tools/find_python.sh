#!/usr/bin/env bash
# Prints the command of a Python that runs TensorFlow $TF_VERSION: $PYTHON if it is
# set, else the first that suits on PATH. Ends with status 1 and the reason if none.

set -euo pipefail

check='
import sys

minor = int(sys.argv[1].split(".")[1])
newest = 11 if minor == 15 else 12 if minor <= 19 else 13 if minor <= 21 else 14
version = "%d.%d" % sys.version_info[:2]
if not (3, 10) <= sys.version_info[:2] <= (3, newest):
    sys.exit("it is Python %s, and TensorFlow 2.%d runs here on 3.10 to 3.%d"
             % (version, minor, newest))
try:
    import ensurepip, venv
except ImportError:
    sys.exit("it is Python %s without venv (on Debian: apt-get install python%s-venv)"
             % (version, version))
'

reasons=""
for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
  # A version manager's shim may be on PATH and yet not run.
  if ! "$python" --version >/dev/null 2>&1; then
    reasons+="  $python: not found"$'\n'
  elif reason="$("$python" -c "$check" "$TF_VERSION" 2>&1)"; then
    echo "$python"
    exit 0
  else
    reasons+="  $python: $reason"$'\n'
  fi
done
{
  echo "No suitable Python for TensorFlow $TF_VERSION:"
  printf '%s' "$reasons"
  echo "Install one, or name it: make PYTHON=/path/to/python3.11"
} >&2
exit 1
