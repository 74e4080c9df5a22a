#!/usr/bin/env bash
# Remove everything that set-up and the program left on the machine, except distribution packages.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
[[ $(id -u) == 0 ]] || { as_root "$clone/scripts/uninstall.sh"; exit; }

if [[ -d /run/systemd/system && -e $service_unit ]]; then
  systemctl --quiet disable --now "$(basename "$service_unit")" || say "systemd could not stop the recorder"
fi
if command -v systemctl >/dev/null; then
  [[ ! -d /run/systemd/system ]] || systemctl --quiet disable --now "$(basename "$stream_socket")" "$(basename "$stream_unit")" "$(basename "$node_unit")" "$(basename "$broker_unit")" 2>/dev/null || true
  systemctl --quiet disable "$(basename "$policy_unit")" "$(basename "$overdue_timer")" 2>/dev/null || true
  [[ ! -d /run/systemd/system ]] || systemctl --quiet stop "$(basename "$overdue_timer")" 2>/dev/null || true
fi
if [[ -x $command ]]; then
  # Rules first, in every network namespace, also those without a name: without the program they would stay
  # until they expire. It ends the guardians there, and asks the kernel whether anything is left.
  "$prefix/venv/bin/python" -I -m fwtop.guardian.leaving </dev/null ||
    fail "rules may still be installed; nothing was removed. Fix that, or remove the rules and then $command yourself, and run this again"
fi

mapfile -t installed_packages < <(sed -n 's/^package //p' "$manifest" 2>/dev/null)
for name in "$user" "$dissector_user" "$fleet_user" "$verifier_user" "$broker_user"; do
  if grep -qx "user $name" "$manifest" 2>/dev/null && id "$name" >/dev/null 2>&1; then
    userdel "$name" 2>/dev/null || fail "could not delete the user $name: is fwtop still running? Nothing was removed"
  fi
done
if cmp -s "$clone/scripts/files/allow" "$allow_file"; then # nobody was listed
  rm -f "$allow_file"
  rmdir "$(dirname "$allow_file")" 2>/dev/null || true
fi
rm -rf "$prefix" "$command" "$man_page" "${completions[@]}" "$sample_settings" "$sample_policy" "$service_unit" "$policy_unit" "$overdue_unit" "$overdue_timer" "$stream_unit" "$stream_socket" "$node_unit" "$broker_unit" /run/fwtop "$state_directory" "$guardian_directory" \
  "$alarms_directory" "$costs_file" /var/log/fwtop-setup.log /run/lock/fwtop-setup.lock
rmdir /sys/fs/bpf/fwtop "$(dirname "$man_page")" "$(dirname "$sample_settings")" 2>/dev/null || true # where empty
rmdir "$(dirname "$service_unit")" 2>/dev/null || true
for path in "${completions[@]}"; do
  rmdir "$(dirname "$path")" "$(dirname "$(dirname "$path")")" 2>/dev/null || true # where empty
done
rmdir "$(dirname "$(dirname "$sample_settings")")" 2>/dev/null || true
say "removed: program, users, sessions, policies"
if [[ ${#installed_packages[@]} -gt 0 ]]; then
  say "left in place, in case they are used otherwise; set-up had installed: ${installed_packages[*]}"
  say "to remove them as well: apt-get autoremove --purge ${installed_packages[*]}"
fi
