#!/usr/bin/env bash
# venv.sh DIRECTORY LOCKFILE LOG: bring a virtual environment to exactly what the lock file pins.
#
# pip comes from the distribution's wheel and stays outside: building an environment with ensurepip takes
# 4 s longer, and the installed program has no use for it.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
directory=$1 lock=$2 log=$3
umask 022

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$python is $("$python" -V), and fwtop needs Python 3.11 or newer: it runs on Debian 12 and 13"
"$directory/bin/python" -c '' 2>/dev/null ||
  logged "$python" -m venv --clear --without-pip "$directory" ||
  fail "could not make the virtual environment $directory"

pip_wheel=$(find /usr/share/python-wheels -name 'pip-*.whl' 2>/dev/null | sort | tail -n 1)
[[ $pip_wheel ]] || fail "no pip in /usr/share/python-wheels: apt-get install python3-venv"
install=(env PYTHONPATH="$pip_wheel" "$directory/bin/python" -m pip install --quiet --no-input
  --disable-pip-version-check --root-user-action=ignore --no-warn-script-location --no-compile
  --only-binary :all: --require-hashes -r "$lock")
logged "${install[@]}" || { sleep 2 && logged "${install[@]}"; } ||
  fail "could not install the Python packages of $(basename "$lock"): is the package index reachable?"

site=$("$directory/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# PyPI's "bcc" is an unrelated package, and it has no "seccomp": the distribution's two are let in, and no more.
bcc=$("$python" -c 'import importlib.util as u; s = u.find_spec("bcc"); print(s.submodule_search_locations[0] if s else "")')
[[ $bcc ]] || fail "the distribution's bcc is missing: apt-get install python3-bpfcc"
ln -sfn "$bcc" "$site/bcc"
seccomp=$("$python" -c 'import importlib.util as u; s = u.find_spec("seccomp"); print(s.origin if s else "")')
[[ $seccomp ]] || fail "the distribution's seccomp binding is missing: apt-get install python3-seccomp"
ln -sfn "$seccomp" "$site/$(basename "$seccomp")"
logged "$directory/bin/python" -m compileall -q -j 0 "$site" || true # some packages ship templates that are no Python
