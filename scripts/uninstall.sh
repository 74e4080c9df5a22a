#!/usr/bin/env bash
# Take away everything that set-up and the program left on the machine, but for distribution packages.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
[[ $(id -u) == 0 ]] || { as_root "$clone/scripts/uninstall.sh"; exit; }

if [[ -x $command ]]; then
  # First the rules: without the program nobody would take them back before they expire.
  "$command" undo --all >&2 </dev/null ||
    fail "'fwtop undo --all' failed, so that rules may still be installed; nothing was removed. Mend that, or remove the rules yourself and then $command, and run it again"
fi

mapfile -t installed_packages < <(sed -n 's/^package //p' "$manifest" 2>/dev/null)
if grep -qx "user $user" "$manifest" 2>/dev/null && id "$user" >/dev/null 2>&1; then
  userdel "$user" 2>/dev/null || fail "could not delete the user $user: is a console of it still running? Nothing was removed"
fi
rm -rf "$prefix" "$command" "$man_page" "$completion" /run/fwtop "$state_directory" "$guardian_directory" \
  /var/log/fwtop-setup.log /run/lock/fwtop-setup.lock
rmdir --ignore-fail-on-non-empty /sys/fs/bpf/fwtop 2>/dev/null || true
say "removed: program, user, sessions, journal"
if [[ ${#installed_packages[@]} -gt 0 ]]; then
  say "left in place, as others may use them by now; set-up had installed: ${installed_packages[*]}"
  say "to remove them too: apt-get autoremove --purge ${installed_packages[*]}"
fi
