#!/usr/bin/env bash
# test-fresh.sh [TEST…]: run `make demo`, `make check` and `make test` (or some tests) on a Debian with only git and make.
#
# SUITE=trixie takes Debian 13 instead of 12 (bookworm).
#
# The script bootstraps Debian into a temporary directory and clones the checked-out commit into it. Mounts,
# processes, host name, /dev and cgroups are separate and disappear with it, however the script ends. It shares the
# kernel and the network namespace with this machine, because set-up needs the package registries.
# Exit status: that of the first failed target; 124 after LIMIT seconds (default 7200).
# MIRROR=URL bootstraps from another mirror than this machine's own. The captures that tests read, where there are
# some (FWTOP_CAPTURES), are there too.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
if [[ $(id -u) != 0 ]]; then
  as_root env SUITE="${SUITE:-}" LIMIT="${LIMIT:-}" MIRROR="${MIRROR:-}" FWTOP_CAPTURES="${FWTOP_CAPTURES:-}" "$clone/scripts/test-fresh.sh" "$@"
  exit
fi
suite=${SUITE:-bookworm}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fwtop-fresh
base=$cache/$suite.tar

# The cached system has git and make installed, and nothing of this clone.
bootstrap() {
  find "$cache" -name "$suite.tar" -mtime +14 -delete 2>/dev/null || true
  [[ ! -e $base ]] || return 0
  command -v debootstrap >/dev/null || "$clone/scripts/packages.sh" debootstrap
  say "bootstrapping Debian ($suite), kept in $base"
  mkdir -p "$cache"
  log=$work/debootstrap.log
  logged debootstrap --variant=minbase --include=git,make,ca-certificates "$suite" "$work/base" ${mirror:+"$mirror"} ||
    fail "debootstrap failed; nothing was tested"
  rm -f "$work"/base/var/cache/apt/archives/*.deb
  tar -C "$work/base" -cf "$base.$$" . && mv "$base.$$" "$base"
  rm -rf "$work/base"
}

# sources FORMAT: this machine's own package sources for that Debian, if any.
sources() {
  apt-get indextargets --format "\$(CODENAME) $1" 'Created-By: Packages' 'Origin: Debian' 2>/dev/null |
    sed -n "s/^${suite}[-a-z]* //p" | sort -u
}

# Copy this machine's package sources, proxies and certificates.
copy_registries() {
  local lines variable
  lines=$(sources "deb \$(SITE) \$(RELEASE) \$(COMPONENT)")
  [[ -z $lines || -n ${MIRROR:-} ]] || printf '%s\n' "$lines" >"$root/etc/apt/sources.list"
  apt-config dump 2>/dev/null | grep -E '^Acquire::(http|https|Check-|Retries)' >"$root/etc/apt/apt.conf.d/90host" || true
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  [[ ! -e /etc/pip.conf ]] || cp -L /etc/pip.conf "$root/etc/pip.conf"
  mkdir -p "$root/usr/local/share/ca-certificates"
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp -Lt "$root/usr/local/share/ca-certificates" {} +
  chroot "$root" update-ca-certificates >/dev/null 2>&1 || say "update-ca-certificates failed in the new system"
  for variable in ${registry_environment//,/ }; do
    [[ -z ${!variable:-} ]] || printf 'export %s=%q\n' "$variable" "${!variable}"
  done >"$root/root/registries"
}

# Make a cgroup in each writable hierarchy, to find and end everything that this run starts.
make_cgroups() {
  local kind mount_point
  while read -r kind mount_point; do
    [[ $kind == cgroup2 || $mount_point == */memory ]] || continue
    if mkdir "$mount_point/$name" 2>/dev/null; then
      cgroups+=("$mount_point/$name")
      echo "$kind $mount_point" >>"$root/root/cgroups"
    fi
  done < <(findmnt -rn -t cgroup,cgroup2 -o FSTYPE,TARGET)
  [[ ${#cgroups[@]} -gt 0 ]] || say "cannot create a cgroup here; continuing without"
}

# shellcheck disable=SC2317 # called by the trap
finish() {
  local group
  [[ -z ${running:-} ]] || kill -KILL -- "-$running" 2>/dev/null || true
  wait 2>/dev/null || true
  for group in "${cgroups[@]}"; do # the last process may need a moment to exit
    for _ in {1..50}; do
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [[ -e $group ]] || break
      sleep 0.1
    done
  done
  rm -rf --one-file-system "$work"
}

name=fwtop-fresh-$$
cgroups=()
work=$(mktemp -d "${TMPDIR:-/var/tmp}/$name.XXXXXX")
root=$work/root
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mirror=${MIRROR:-$(sources "\$(SITE)" | head -n 1)}
bootstrap
mkdir "$root"
tar -C "$root" -xf "$base"
copy_registries
[[ -z $(git -c safe.directory='*' -C "$clone" status --porcelain) ]] ||
  say "testing the checked-out commit; uncommitted changes are left out"
git -c safe.directory='*' -C "$clone" bundle create --quiet "$root/root/fwtop.bundle" HEAD
make_cgroups
cp "$clone/scripts/files/fresh-init.sh" "$root/root/init"

status=0
set -m # its own process group, so that it can be killed and does not ignore interrupts
(
  for group in "${cgroups[@]}"; do echo 0 >"$group/cgroup.procs"; done
  exec timeout --foreground --signal=KILL "${LIMIT:-7200}" \
    unshare --mount --pid --fork --kill-child --uts --ipc --cgroup \
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    FWTOP_CAPTURES="${FWTOP_CAPTURES:-/work/shared/captures}" \
    "$(command -v bash)" "$root/root/init" "$root" "$@"
) </dev/null &
running=$!
set +m
wait "$running" || status=$?
running=
if [[ $status == 137 ]]; then
  say "stopped after ${LIMIT:-7200} s"
  status=124
fi
exit "$status"
