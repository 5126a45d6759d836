#!/usr/bin/env bash
# Installs the Debian 12 packages of the named sets; a set that is complete costs one dpkg query and no network.
#   scripts/install_packages.sh SET...      sets: build, demo, test
set -euo pipefail

build=(build-essential cmake ninja-build ccache pkg-config libdnnl-dev libcli11-dev libyaml-cpp-dev
       nlohmann-json3-dev libspdlog-dev libfmt-dev libsentencepiece-dev libonig-dev libutf8proc-dev libxxhash-dev
       libgtest-dev libopenmpi-dev openmpi-bin)
demo=(bible-kjv)
test=(bible-kjv python3 python3-venv python3-torch libopenblas0-openmp clang-format clang-tidy libclang-rt-14-dev fortunes-zh
      slurm-wlm munge iproute2 util-linux)

[ $# -gt 0 ] || { echo "usage: $0 build|demo|test..." >&2; exit 2; }
wanted=()
for set in "$@"; do
  case "$set" in
    build) wanted+=("${build[@]}") ;;
    demo) wanted+=("${demo[@]}") ;;
    test) wanted+=("${test[@]}") ;;
    *) echo "$0: no set '$set'; there are: build, demo, test" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "$0: run as root, or install: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
apt_get() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 "$@" </dev/null; }
apt_get update
apt_get install -y --no-install-recommends "${missing[@]}"
