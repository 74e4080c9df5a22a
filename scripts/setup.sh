#!/usr/bin/env bash
# `setup.sh` installs the program, `setup.sh dev` also the tools for tests and checks, and `setup.sh tools` only
# these tools. A second run finds everything in place and takes less than five seconds.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

completions_are_current() {
  local name
  for name in "${!completions[@]}"; do
    cmp -s "$prefix/app/completion/$name" "${completions[$name]}" || return 1
  done
}

is_installed() {
  [[ -x $python && -x $command && -d $state_directory && -d $guardian_directory && -x $prefix/venv/bin/python ]] &&
    [[ $(cat "$prefix/venv/.lock-hash" 2>/dev/null) == "$(lock_hash "$clone/requirements.lock")" ]] &&
    [[ $(cat "$prefix/app/BUILD" 2>/dev/null) == "$(build_hash)" ]] &&
    cmp -s "$clone/scripts/files/fwtop.sh" "$command" &&
    cmp -s "$clone/scripts/files/fwtop.8" "$man_page" &&
    completions_are_current &&
    cmp -s "$clone/scripts/files/fwtop.service" "$service_unit" &&
    cmp -s "$clone/docs/screen.toml" "$sample_settings" &&
    cmp -s "$clone/docs/policy.toml" "$sample_policy" &&
    cmp -s "$clone/scripts/files/fwtop-policy.service" "$policy_unit" &&
    cmp -s "$clone/scripts/files/fwtop-api.service" "$stream_unit" &&
    cmp -s "$clone/scripts/files/fwtop-api.socket" "$stream_socket" &&
    cmp -s "$clone/scripts/files/fwtop-fleet.service" "$node_unit" &&
    cmp -s "$clone/scripts/files/fwtop-broker.service" "$broker_unit" &&
    cmp -s "$clone/scripts/files/fwtop-overdue.service" "$overdue_unit" &&
    cmp -s "$clone/scripts/files/fwtop-overdue.timer" "$overdue_timer" &&
    id "$user" "$dissector_user" "$fleet_user" "$verifier_user" "$broker_user" >/dev/null 2>&1
}

install_packages() { # PACKAGE…: install those that are missing
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [[ ${#missing[@]} == 0 ]] || as_root "$clone/scripts/packages.sh" "${missing[@]}"
}

set_up_dev() {
  local hash
  hash=$(lock_hash "$clone/requirements-dev.lock")
  if [[ $(cat "$clone/.venv/.lock-hash" 2>/dev/null) != "$hash" ]]; then
    say "installing development tools into .venv"
    log=$(mktemp -t fwtop-dev-setup.XXXXXX.log)
    "$clone/scripts/venv.sh" "$clone/.venv" "$clone/requirements-dev.lock" "$log" || exit 1
    echo "$hash" >"$clone/.venv/.lock-hash"
    rm -f "$log"
  fi
  "$python" -I "$clone/scripts/unpack_geoip.py" "$clone/geoip" "$clone/geoip"
}

wanted=("${packages[@]}")
if [[ ${1:-} == dev ]]; then
  wanted+=("${dev_packages[@]}")
fi
install_packages "${wanted[@]}"
if [[ ${1:-} == tools ]]; then
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
