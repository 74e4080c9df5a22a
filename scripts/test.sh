#!/usr/bin/env bash
# Run pytest as root, which the kernel tests need, without leaving root-owned files in the clone.
#
# With arguments, pass them to pytest. Without, run all tests: first those that flood and measure, alone; then the
# other kernel tests in four parallel streams that take about as long, since they mostly wait and use separate
# namespaces; and at low priority next to them, in a stream each, the unit and the screen tests, which take what CPU
# time is left. What failed is run once more, alone: a test that passes only without others beside it is named, and
# doesn't fail the run.
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
rules=(tests/kernel/test_guardian_[a-i]*.py)
more_rules=(tests/kernel/test_guardian_[o-z]*.py tests/kernel/test_xdp_{endings,life}.py)
forwarding=(tests/kernel/test_{bridge_router,forwarded_allow,harden_stateless}.py tests/kernel/test_guardian_[j-n]*.py)
others=(tests/kernel)
for one in "${flooding[@]}" "${rules[@]}" "${more_rules[@]}" "${forwarding[@]}"; do
  others+=("--ignore=$one")
done
flags=()
status=0
beside=()
logs=$(mktemp -d -t fwtop-test.XXXXXX)
chmod 755 "$logs"

# stream NAME ARGUMENT…: run tests that remember under NAME which of them failed.
stream() {
  run_pytest -o cache_dir="$logs/$1.cache" "${@:2}"
}

# shellcheck disable=SC2317 # called by the trap
finish() {
  local pid
  for pid in "${beside[@]}"; do
    as_root kill -INT -- "-$pid" 2>/dev/null || continue # already finished
    wait "$pid" || continue
  done
  as_root rm -rf "$logs"
}
trap finish EXIT

# note NAME CODE: remember that a stream had failures (pytest: 1); exit if it was interrupted or could not run.
note() {
  [[ $2 -le 1 ]] || exit "$2"
  [[ $2 == 0 ]] || failed+=("$1")
}

# Compile now: the tests start hundreds of root processes, which must not write files here.
.venv/bin/python -m compileall -q -j 0 fwtop || true # if another user's files are in the way
code=0
failed=()
stream flooding "${flooding[@]}" || code=$?
note flooding "$code"
set -m # a process group for each background job, to kill it as a whole
names=(others more_rules forwarding unit ui)
stream others "${others[@]}" >"$logs/others" 2>&1 </dev/null &
beside+=($!)
stream more_rules "${more_rules[@]}" >"$logs/more_rules" 2>&1 </dev/null &
beside+=($!)
stream forwarding "${forwarding[@]}" >"$logs/forwarding" 2>&1 </dev/null &
beside+=($!)
{
  renice -n 10 "$BASHPID" >/dev/null
  stream unit --ignore=tests/kernel --ignore=tests/ui tests
} >"$logs/unit" 2>&1 </dev/null &
beside+=($!)
{
  renice -n 10 "$BASHPID" >/dev/null
  stream ui tests/ui
} >"$logs/ui" 2>&1 </dev/null &
beside+=($!)
set +m
code=0
stream rules "${rules[@]}" || code=$?
note rules "$code"
for number in "${!names[@]}"; do
  code=0
  wait "${beside[$number]}" || code=$?
  cat "$logs/${names[$number]}"
  note "${names[$number]}" "$code"
done
beside=()
for name in "${failed[@]}"; do
  say "these failed beside others (see above) and run again alone:"
  stream "$name" --last-failed --last-failed-no-failures none || status=1
done
exit "$status"
