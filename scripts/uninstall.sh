#!/usr/bin/env bash
# Take away everything that set-up and the program left on the machine, but for distribution packages.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
[[ $(id -u) == 0 ]] || { as_root "$clone/scripts/uninstall.sh"; exit; }

# undo_all [--netns NAME]: without the program nobody would take the rules back before they expire.
undo_all() {
  "$command" undo --all "$@" >&2 </dev/null ||
    fail "'fwtop undo --all $*' failed, so rules may still be installed; nothing was removed. Mend that, or remove the rules yourself and then $command, and run it again"
}

if [[ -x $command ]]; then
  undo_all
  for namespace in /run/netns/*; do
    if [[ -e /run/fwtop/$(stat -Lc %i "$namespace" 2>/dev/null).sock ]]; then
      undo_all --netns "$(basename "$namespace")"
    fi
  done
fi

mapfile -t installed_packages < <(sed -n 's/^package //p' "$manifest" 2>/dev/null)
if grep -qx "user $user" "$manifest" 2>/dev/null && id "$user" >/dev/null 2>&1; then
  userdel "$user" 2>/dev/null || fail "could not delete the user $user: is a console of it still running? Nothing was removed"
fi
rm -rf "$prefix" "$command" "$man_page" "$completion" /run/fwtop "$state_directory" "$guardian_directory" \
  "$costs_file" /var/log/fwtop-setup.log /run/lock/fwtop-setup.lock
rmdir /sys/fs/bpf/fwtop "$(dirname "$man_page")" "$(dirname "$completion")" 2>/dev/null || true # where empty
rmdir "$(dirname "$(dirname "$completion")")" 2>/dev/null || true
say "removed: program, user, sessions, journal"
if [[ ${#installed_packages[@]} -gt 0 ]]; then
  say "left in place, as others may use them by now; set-up had installed: ${installed_packages[*]}"
  say "to remove them too: apt-get autoremove --purge ${installed_packages[*]}"
fi
