#!/usr/bin/env bash
# Runs a `pip ... -v` that builds, and shows of all that it says which file is compiled:
# show_build.sh LOG COMMAND... What the command says is kept in LOG, and shown whole if
# it fails.

set -uo pipefail
log="$1"
shift
mkdir -p "$(dirname "$log")"

# "  [3/60] Building CXX object .../tf_syncrep.dir/tf_syncrep/cc/lib/a.cc.o" is what Ninja
# says, "[  3%] Building ..." what Make does.
"$@" 2>&1 | tee "$log" | sed -un \
  -e 's|^ *\(\[[^]]*\]\) Building .*\.dir/\(tf_syncrep/\)\{0,1\}\(.*\)\.o$|\1 \3|p' \
  -e "s|^ *\(\[[^]]*\]\) Building .*/cmake_pch\.hxx\.gch$|\1 TensorFlow's headers|p" \
  -e 's|^ *\(\[[^]]*\]\) Linking .* \(.*\)$|\1 \2|p' \
  -e 's|^ *-- GPU kernels:|GPU kernels:|p'
status=${PIPESTATUS[0]}
if ((status)); then
  cat "$log" >&2
fi
exit "$status"
