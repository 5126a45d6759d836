#!/usr/bin/env bash
# Formatting and static analysis of our own C++.
#   scripts/lint.sh format         fails on a file that clang-format would change
#   scripts/lint.sh fix            lets clang-format change them
#   scripts/lint.sh tidy BUILD     clang-tidy over every source of src/; a file is looked at again only when it changed
set -euo pipefail
cd "$(dirname "$0")/.."

sources() { git ls-files --cached --others --exclude-standard -- 'src/*.cc' 'src/*.h' 'tests/*.cc' 'tests/*.h' 'bench/*.cc'; }

tidy() {
  local build=$1 stamps=$1/tidy
  mkdir -p "$stamps"
  # A result depends on the checks and on every header, so the stamp's name is a hash over those and the file.
  local common
  common=$(cat .clang-tidy $(sources | grep '\.h$') | sha256sum | cut -c1-32)
  check_one() {
    local file=$1 stamp
    stamp=$2/$(cat "$file" - <<<"$file $3" | sha256sum | cut -c1-32)
    [ -e "$stamp" ] && return 0
    # Its count of warnings in system headers says nothing; keep everything else it prints.
    if clang-tidy --quiet -p "$4" "$file" 2> >(grep -v 'warnings generated' >&2); then touch "$stamp"; else return 1; fi
  }
  export -f check_one
  # Kernels are compiled once for each instruction set; the compile database holds an entry a set and one is enough.
  sources | grep '^src/.*\.cc$' |
    xargs -P "$(nproc)" -I{} bash -c 'check_one "$@"' check_one {} "$stamps" "$common" "$build"
}

case "${1:-}" in
  format) sources | xargs -r clang-format --dry-run -Werror ;;
  fix) sources | xargs -r clang-format -i ;;
  tidy) tidy "${2:?build folder}" ;;
  *) echo "usage: $0 format|fix|tidy BUILD" >&2; exit 2 ;;
esac
