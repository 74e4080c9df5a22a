#!/usr/bin/env bash
# Run pytest as root, which the kernel tests need, without leaving root-owned files in the clone.
#
# With arguments, pass them to pytest. Without, run all tests of the first tier: the kernel tests that flood and
# measure, one at a time; then the other kernel tests, which mostly wait, each in namespaces of its own, in workers that
# take one file after another; and in what time both leave, at the lowest priority, the unit and screen tests. A few
# kernel tests that failed are run once more, alone, and named (tests/tiers.py). Anything else that failed fails the run.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
cd "$clone"
flags=()
[[ $(id -u) == 0 ]] || flags=(-p no:cacheprovider)

run_pytest() {
  as_root env PYTHONDONTWRITEBYTECODE=1 FWTOP_GOLDEN="${FWTOP_GOLDEN:-}" "${before[@]}" \
    .venv/bin/python -m pytest "${flags[@]}" "$@"
}

before=()
if [[ $# -gt 0 ]]; then
  run_pytest "$@"
  exit
fi

workers=$((4 * $(nproc))) # kernel tests mostly wait
[[ $workers -le 12 ]] || workers=12
flooding=(tests/kernel/test_{bench_lab,full_rate_table,lab_ends,whole_program}.py) # others beside them would change figures, end labs
longest=( # minutes: first, or they would end alone
  tests/kernel/test_{ledger_kinds,fleet_page,whole_record,ruleset_events,slow_attacks,xdp_rules,xdp_verdicts,harden_stateless}.py
  tests/kernel/test_guardian_{changing,allow_sets,counting,block,overdue}.py
)
waiting=( # for programs that they start, without any CPU: first as well
  tests/ui/test_screen_terminal.py tests/unit/test_{cli_stored,cli_trends,history,store_sandbox}.py
)
others() { # DIRECTORY… -- FILE…: the test files there but for these
  local -a places=()
  while [[ $1 != -- ]]; do places+=("$1") && shift; done
  find "${places[@]}" -name 'test_*.py' | sort | grep -vxF "$(printf '%s\n' "${@:2}")"
}
mapfile -t kernel < <(others tests/kernel -- "${flooding[@]}" "${longest[@]}" | tac)
mapfile -t beside < <(others tests/unit tests/scenarios tests/ui -- "${waiting[@]}")
beside=("${waiting[@]}" "${beside[@]}")
flags=()
may_pass_alone=75 # tests/conftest.py
logs=$(mktemp -d -t fwtop-test.XXXXXX)
chmod 755 "$logs"
running=
trap '[[ -z $running ]] || as_root kill -- "-$running" 2>/dev/null; wait; as_root rm -rf "$logs"' EXIT

part() { # NAME ARGUMENT…: run tests; note under NAME how that ended
  local code=0 began=$SECONDS
  run_pytest -o cache_dir="$logs/$1.cache" "${@:2}" || code=$?
  echo "$code" >"$logs/$1.code"
  say "$1 tests took $((SECONDS - began)) s"
}

in_files() { # NAME WORKERS ARGUMENT…: the same by workers that take one file after another
  part "$1" -n "$2" --dist loadfile --no-loadscope-reorder "${@:3}"
}

# Compile now: the tests start hundreds of root processes, which must not write files here, and each worker would
# rewrite the asserts of all tests for itself.
.venv/bin/python -m compileall -q -j 0 fwtop || true # if another user's files are in the way
collect() { # DIRECTORY…
  "${before[@]}" env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest -q -p no:cacheprovider --collect-only "$@" \
    >"$logs/collected-${1##*/}" || { tail -n 30 "$logs/collected-${1##*/}" && return 1; }
}
collect tests/kernel
set -m # a process group that can be ended with all in it
{
  before=(nice -n 19)
  collect "${beside[@]}" || true # what can't be collected fails again
  in_files beside "$(nproc)" "${beside[@]}"
} &>"$logs/beside" </dev/null &
running=$!
set +m
part flooding "${flooding[@]}"
in_files kernel "$workers" "${longest[@]}" "${kernel[@]}"
wait "$running" || true
running=
cat "$logs/beside"
status=0
for name in flooding kernel beside; do
  code=$(cat "$logs/$name.code")
  if [[ $code == "$may_pass_alone" ]]; then
    say "these failed beside others, for the reasons above, and run again alone:"
    run_pytest -o cache_dir="$logs/$name.cache" --last-failed --last-failed-no-failures none || status=1
  elif [[ $code != 0 ]]; then
    status=1
  fi
done
exit "$status"
