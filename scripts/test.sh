#!/usr/bin/env bash
# Run pytest as root (the kernel tests need it), leaving no root-owned files in the clone.
#
# Without arguments every test: those of the screen beside the other unit tests, as they touch nothing but
# files of their own; then the kernel tests, alone, as they share one machine.
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
screen=$(mktemp -t fwtop-test-ui.XXXXXX.log)
trap 'rm -f "$screen"' EXIT
run_pytest -p no:cacheprovider tests/ui >"$screen" 2>&1 &
beside=$!
run_pytest --ignore=tests/kernel --ignore=tests/ui || status=1
wait "$beside" || status=1
cat "$screen"
run_pytest tests/kernel || status=1
exit "$status"
