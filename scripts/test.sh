#!/usr/bin/env bash
# Run pytest as root (the kernel tests need it), leaving no root-owned files in the clone.
#
# With arguments, pytest with these. Without, every test: first those that flood and measure, with the machine
# to themselves; then the other kernel tests in two halves at once, as they mostly wait and work in namespaces
# of their own; and with the CPU that these leave, the tests that touch nothing but files of their own.
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

flooding=(tests/kernel/test_{bench_lab,lab,lab_packets,whole_program}.py)
rules=(tests/kernel/test_mitigate_*.py)
flags=(-p no:cacheprovider) # several at a time
status=0
beside=()
logs=$(mktemp -d -t fwtop-test.XXXXXX)

# shellcheck disable=SC2317 # called by the trap
finish() {
  local pid
  for pid in "${beside[@]}"; do
    as_root kill -INT -- "-$pid" 2>/dev/null || continue # has ended already
    wait "$pid" || continue
  done
  rm -rf "$logs"
}
trap finish EXIT

# note COMMAND…: remember that it failed, and end with it when somebody stopped it.
note() {
  local code=0
  "$@" || code=$?
  [[ $code != 2 ]] || exit 2
  [[ $code == 0 ]] || status=1
}

# The tests start hundreds of processes, as root, which must not leave files here: compile for them before.
.venv/bin/python -m compileall -q -j 0 fwtop || true # where somebody else's files are in the way
note run_pytest "${flooding[@]}"
set -m # a group for each in the background, which is how they are ended together
run_pytest tests/kernel "${flooding[@]/#/--ignore=}" "${rules[@]/#/--ignore=}" >"$logs/1" 2>&1 </dev/null &
beside+=($!)
nice -n 10 "$clone/scripts/test.sh" -p no:cacheprovider --ignore=tests/kernel tests >"$logs/2" 2>&1 </dev/null &
beside+=($!)
set +m
note run_pytest "${rules[@]}"
for pid in "${beside[@]}"; do
  wait "$pid" || status=1
done
beside=()
cat "$logs"/*
exit "$status"
