#!/usr/bin/env bash
# Run pytest as root, which the kernel tests need, without leaving root-owned files in the clone.
#
# With arguments, pass them to pytest. Without, run all tests: first those that flood and measure, alone; then all
# others, in workers that take one file after another. The kernel tests come first: they mostly wait, each in
# namespaces of its own, and the unit and screen tests fill up the end. What failed is run once more, alone: a test
# that passes only without others beside it is named, and doesn't fail the run.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
cd "$clone"
flags=()
[[ $(id -u) == 0 ]] || flags=(-p no:cacheprovider)

run_pytest() {
  as_root env PYTHONDONTWRITEBYTECODE=1 FWTOP_GOLDEN="${FWTOP_GOLDEN:-}" .venv/bin/python -m pytest "${flags[@]}" "$@"
}

if [[ $# -gt 0 ]]; then
  run_pytest "$@"
  exit
fi

workers=$((3 * $(nproc)))    # kernel tests mostly wait
[[ $workers -le 12 ]] || workers=12 # each grows to 300 to 800 MB
flooding=(tests/kernel/test_{bench_lab,lab_ends,whole_program}.py) # others beside them would change figures, end labs
others=(tests/kernel tests/unit tests/scenarios tests/ui)
for one in "${flooding[@]}"; do
  others+=("--ignore=$one")
done
flags=()
status=0
failed=()
logs=$(mktemp -d -t fwtop-test.XXXXXX)
chmod 755 "$logs"
trap 'as_root rm -rf "$logs"' EXIT

# part NAME ARGUMENT…: run tests that remember under NAME which of them failed; exit if they could not run (pytest: 2).
part() {
  local code=0
  run_pytest -o cache_dir="$logs/$1.cache" "${@:2}" || code=$?
  [[ $code -le 1 ]] || exit "$code"
  [[ $code == 0 ]] || failed+=("$1")
}

# Compile now: the tests start hundreds of root processes, which must not write files here, and each worker would
# rewrite the asserts of all tests for itself.
.venv/bin/python -m compileall -q -j 0 fwtop || true # if another user's files are in the way
env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest -q -p no:cacheprovider --collect-only tests \
  >"$logs/collected" || { tail -n 30 "$logs/collected" && exit 1; }
part flooding "${flooding[@]}"
part others -n "$workers" --dist loadfile --no-loadscope-reorder "${others[@]}"
for name in "${failed[@]}"; do
  say "these failed beside others (see above) and run again alone:"
  run_pytest -o cache_dir="$logs/$name.cache" --last-failed --last-failed-no-failures none || status=1
done
exit "$status"
