#!/usr/bin/env bash
# README's commands on a machine that has nothing but what README names: in a root file
# system that mmdebstrap makes, first as root and then as an ordinary user, each in a
# clone of the last commit of this one. As root `.ci/run` runs the tests.
#
# fresh_machine.sh FOLDER makes it in FOLDER, which must not be there, and removes it. It
# takes root, mmdebstrap and the right to mount, and is skipped with the reason without.
# Packages come from where this machine's apt and pip have theirs.

set -euo pipefail
exec </dev/null

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
root="${1:?usage: fresh_machine.sh FOLDER}"

skip() {
  echo "skipped: $1"
  exit 0
}

# What a user does.
do_as_readme_says() {
  set -euo pipefail
  # The line of README that begins so.
  step() {
    local line
    line="$(grep -m 1 "^$1" README.md)"
    echo "== $(id -un): $line"
    eval "$line" || exit
  }
  export HOME=~
  cd
  git clone -q /source clone
  cd clone
  step "make demo"
  # README's first program is this file.
  sed -n '/^```python$/,$p' README.md | sed '1d; /^```$/,$d' >train.py
  step "source .venv"
  step "tf-syncrep launch"
  deactivate
  ((EUID == 0)) || step "make test"
}

# Within the namespace of mounts: what a machine has besides its files.
mount_all() {
  local path
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount --rbind /sys "$root/sys"
  mkdir "$root/source"
  mount --bind "$repository" "$root/source"
  # The files and folders that pip's settings name.
  for path in $(
    { env | grep ^PIP_; cat /etc/pip.conf /etc/xdg/pip/pip.conf; } 2>/dev/null |
      grep -oE '/[^[:space:]]+' | sort -u
  ); do
    if [[ -d "$path" ]]; then
      mkdir -p "$root$path"
    elif [[ -f "$path" ]]; then
      mkdir -p "$(dirname "$root$path")"
      touch "$root$path"
    else
      continue
    fi
    mount --bind "$path" "$root$path"
  done
}

run_inside() {
  local user settings status=0
  mount_all
  mapfile -t settings < <(env | grep ^PIP_)
  for user in root someone; do
    chroot --userspec="$user" "$root" /usr/bin/env -i "${settings[@]}" \
      PATH=/usr/local/bin:/usr/bin:/bin \
      bash -c "$(declare -f do_as_readme_says); do_as_readme_says" || status=$?
    rm -rf "$root"/{root,home/someone}/clone # which take gigabytes
  done
  return "$status"
}

if [[ "${2:-}" == inside ]]; then
  run_inside
  exit
fi

((EUID == 0)) || skip "a root file system takes root"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is not on PATH"
unshare --mount --pid --fork true || skip "nothing may be mounted here"

packages="$(sed -n 's/.*(Debian: `apt install \([^`]*\)`).*/\1/p' "$repository/README.md")"
[[ -n "$packages" ]]
sources=()
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
  [[ ! -s "$file" ]] || sources+=("$file")
done
# Its mounts and processes are gone with the namespaces.
trap 'rm -rf --one-file-system "$root"' EXIT
# shellcheck source=/dev/null
codename="$(source /etc/os-release && echo "$VERSION_CODENAME")"
echo "== Debian $codename with ${packages}"
mmdebstrap --quiet --variant=minbase --include="${packages// /,}" "$codename" "$root" \
  "${sources[@]}"
echo "127.0.0.1 localhost" >"$root/etc/hosts"
cp /etc/resolv.conf "$root/etc"
for file in /etc/pip.conf /etc/xdg/pip; do
  [[ ! -e "$file" ]] || cp -r --parents "$file" "$root"
done
chroot "$root" useradd --create-home someone
# The repository belongs to another user.
chroot "$root" git config --system safe.directory '*'
unshare --mount --pid --fork --kill-child "$BASH" "${BASH_SOURCE[0]}" "$root" inside
