#!/usr/bin/env bash
# Set-up: `setup.sh` installs the program, `setup.sh dev` also what tests and checks need,
# `setup.sh tools` only the latter: checks leave the installed program as it is.
# A second run finds everything in place and takes a moment.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

is_installed() {
  [[ -x $python && -x $command && -d $state_directory && -d $guardian_directory && -x $prefix/venv/bin/python ]] &&
    [[ $(cat "$prefix/venv/.lock-hash" 2>/dev/null) == "$(lock_hash "$clone/requirements.lock")" ]] &&
    [[ $(cat "$prefix/app/BUILD" 2>/dev/null) == "$(build_hash)" ]] &&
    cmp -s "$clone/scripts/files/fwtop.sh" "$command" &&
    cmp -s "$clone/scripts/files/fwtop.8" "$man_page" &&
    cmp -s "$clone/scripts/files/fwtop.bash" "$completion" &&
    id "$user" >/dev/null 2>&1 &&
    [[ -z $(missing_packages) ]]
}

set_up_dev() {
  local hash
  hash=$(lock_hash "$clone/requirements-dev.lock")
  if [[ $(cat "$clone/.venv/.lock-hash" 2>/dev/null) != "$hash" ]]; then
    say "installing the tools for tests and checks into .venv"
    log=$(mktemp -t fwtop-dev-setup.XXXXXX.log)
    "$clone/scripts/venv.sh" "$clone/.venv" "$clone/requirements-dev.lock" "$log" || exit 1
    echo "$hash" >"$clone/.venv/.lock-hash"
    rm -f "$log"
  fi
  "$python" -I "$clone/scripts/unpack_geoip.py" "$clone/geoip" "$clone/geoip"
}

if [[ ${1:-} == tools && -z $(missing_packages) ]]; then
  set_up_dev
  exit
fi
if is_installed; then
  say "installed and current"
else
  as_root "$clone/scripts/install.sh"
fi
if [[ -n ${1:-} ]]; then
  set_up_dev
fi
