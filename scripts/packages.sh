#!/usr/bin/env bash
# packages.sh PACKAGE…: install distribution packages as root; record them for `make uninstall`.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
log=/var/log/fwtop-setup.log
umask 022
[[ $(id -u) == 0 ]] || fail "packages.sh needs root"
command -v apt-get >/dev/null ||
  fail "this machine has no apt-get; install these yourself, then run it again: $*"
: >"$log"

# Try twice, in case a mirror is briefly unavailable; apt itself waits for its lock.
apt() {
  local command=(env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l apt-get -q -y -o DPkg::Lock::Timeout=120 "$@")
  logged "${command[@]}" || { sleep 3 && logged "${command[@]}"; }
}

say "installing system packages: $*"
apt update || say "apt-get update failed; trying with the existing package lists"
wanted=() services=()
for package in "$@"; do
  # A virtual package has no candidate of its own.
  if [[ ${provider[$package]:-} && $(apt-cache policy "$package" 2>/dev/null) != *"Candidate: "[0-9]* ]]; then
    package=${provider[$package]}
  fi
  wanted+=("$package")
done
# Packages of development bring servers along: keep them from starting, now and at boot.
for service in "${dev_services[@]}"; do
  [[ " ${wanted[*]} " != *" $service "* ]] || services+=("$service")
done
policy=/usr/sbin/policy-rc.d
if [[ ${services[*]} && ! -e $policy ]]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi
apt install --no-install-recommends "${wanted[@]}" ||
  fail "apt-get could not install: ${wanted[*]}; nothing else was changed"
for service in "${services[@]}"; do
  ! command -v systemctl >/dev/null || logged systemctl disable "$service" || true
done
for package in "${wanted[@]}"; do remember package "$package"; done
