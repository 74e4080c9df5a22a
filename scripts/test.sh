#!/usr/bin/env bash
# Run pytest as root (the kernel tests need it), leaving no root-owned files in the clone.
#
# Without arguments every test: the kernel tests one after the other, as they share one machine; beside them
# the others, which touch nothing but files of their own, with what the kernel tests leave of the CPU.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
cd "$clone"
flags=()
[[ $(id -u) == 0 ]] || flags=(-p no:cacheprovider)

run_pytest() {
  as_root env PYTHONDONTWRITEBYTECODE=1 .venv/bin/python -m pytest "${flags[@]}" "$@"
}

if [[ $# -gt 0 ]]; then
  run_pytest "$@"
  exit
fi
status=0
others=$(mktemp -t fwtop-test.XXXXXX.log)
trap 'rm -f "$others"' EXIT
nice -n 10 "$0" -p no:cacheprovider --ignore=tests/kernel tests >"$others" 2>&1 &
beside=$!
run_pytest tests/kernel || status=1
wait "$beside" || status=1
cat "$others"
exit "$status"
