#!/usr/bin/env bash
# The part of set-up that needs root: users, directories and the installed copy (packages.sh installs packages).
#
# The copy is /usr/local/lib/fwtop/app and venv, owned by root: links to directories named by a hash of their
# contents, prepared elsewhere and swapped in by one rename. A running program keeps using the directory that it
# was started from; that directory stays until the change after the next.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
log=/var/log/fwtop-setup.log
umask 022
[[ $(id -u) == 0 ]] || fail "install.sh needs root"
mkdir -p /run/lock
exec 9>/run/lock/fwtop-setup.lock
flock 9 # serialise concurrent set-ups
: >"$log"

make_user() { # NAME COMMENT
  ! id "$1" >/dev/null 2>&1 || return 0
  logged useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin \
    --comment "$2" "$1" || fail "could not add the system user $1"
  remember user "$1"
}

make_users_and_directories() {
  make_user "$user" "fwtop console"
  make_user "$dissector_user" "fwtop packet dissector"
  make_user "$fleet_user" "fwtop fleet node"
  make_user "$verifier_user" "fwtop verifier of signatures"
  make_user "$broker_user" "fwtop fleet server"
  install -d -m 0700 -o "$user" -g "$user" "$state_directory"
  install -d -m 0700 -o root -g root "$guardian_directory"
  install -d -m 0711 -o root -g root "$alarms_directory"
  install -d -m 0700 -o "$user" -g "$user" "$alarms_directory/$(id -u "$user")"
}

# swap_in NAME TARGET: atomically point $prefix/NAME at TARGET, and delete all but the two newest directories.
swap_in() {
  local name=$1 target=$2 previous old
  previous=$(readlink "$prefix/$name" || true)
  ln -sfn "$target" "$prefix/$name.new"
  mv -T "$prefix/$name.new" "$prefix/$name"
  for old in "$prefix/$name"-*; do
    [[ $old == "$prefix/$target" || $old == "$prefix/$previous" ]] || rm -rf "$old"
  done
}

install_venv() {
  local hash target
  hash=$(lock_hash "$clone/requirements.lock")
  target=venv-$hash
  if [[ $(cat "$prefix/$target/.lock-hash" 2>/dev/null) != "$hash" ]]; then
    say "installing the pinned Python packages"
    rm -rf "${prefix:?}/$target"
    "$clone/scripts/venv.sh" "$prefix/$target" "$clone/requirements.lock" "$log" || exit 1
    # The real path, so that a running program keeps using the copy that it was started from.
    # Debian's site.py reads .pth files twice in an environment, because lib64 is a link to lib.
    echo "import os, sys; p = os.path.realpath('$prefix/app'); p in sys.path or sys.path.append(p)" \
      >"$(echo "$prefix/$target"/lib/python3*/site-packages)/fwtop.pth"
    echo "$hash" >"$prefix/$target/.lock-hash"
  fi
  swap_in venv "$target"
}

install_program() {
  local build target making
  build=$(build_hash)
  target=app-$build
  if [[ $(cat "$prefix/$target/BUILD" 2>/dev/null) != "$build" ]]; then
    making=$prefix/making-$build
    rm -rf "$making" "${prefix:?}/$target"
    mkdir -p "$making"
    "$python" -I "$clone/scripts/build_hash.py" --files |
      tar -C "$clone" -cf - -T - | tar -C "$making" -xf - --no-same-owner --no-same-permissions
    "$python" -I "$clone/scripts/unpack_geoip.py" "$clone/geoip" "$making/geoip" ||
      fail "could not unpack the GeoIP data"
    chmod -R u=rwX,go=rX "$making"
    logged env -C "$making" PYTHONDONTWRITEBYTECODE=1 "$prefix/venv/bin/python" -m fwtop.cli.completion "$making/completion" ||
      fail "could not write the completion of shells"
    logged "$prefix/venv/bin/python" -I -m compileall -q -j 0 -s "$making" -p "$prefix/$target" "$making/fwtop" ||
      fail "the program failed to compile"
    echo "$build" >"$making/BUILD"
    mv -T "$making" "$prefix/$target"
  fi
  swap_in app "$target"
}

install_file() { # MODE FROM TO: rename into place, so that a running shell never reads half a script
  mkdir -p "$(dirname "$3")"
  install -m "$1" "$2" "$3.new"
  mv -T "$3.new" "$3"
}

started=$SECONDS
rm -rf "$prefix"/making-* # left by an interrupted set-up
make_users_and_directories
mkdir -p "$prefix"
install_venv
install_program
install_file 0755 "$clone/scripts/files/fwtop.sh" "$command"
install_file 0644 "$clone/scripts/files/fwtop.8" "$man_page"
for name in "${!completions[@]}"; do
  install_file 0644 "$prefix/app/completion/$name" "${completions[$name]}"
done
install_file 0644 "$clone/docs/screen.toml" "$sample_settings"
install_file 0644 "$clone/scripts/files/fwtop.service" "$service_unit"
install_file 0644 "$clone/docs/policy.toml" "$sample_policy"
install_file 0644 "$clone/scripts/files/fwtop-policy.service" "$policy_unit"
install_file 0644 "$clone/scripts/files/fwtop-api.service" "$stream_unit"
install_file 0644 "$clone/scripts/files/fwtop-api.socket" "$stream_socket"
install_file 0644 "$clone/scripts/files/fwtop-fleet.service" "$node_unit"
install_file 0644 "$clone/scripts/files/fwtop-broker.service" "$broker_unit"
install_file 0644 "$clone/scripts/files/fwtop-overdue.service" "$overdue_unit"
install_file 0644 "$clone/scripts/files/fwtop-overdue.timer" "$overdue_timer"
[[ -e $allow_file ]] || install_file 0644 "$clone/scripts/files/allow" "$allow_file"
if [[ -d /run/systemd/system ]]; then
  # A recorder that runs is to be of this build, and so is what serves programs: their guardian will be.
  { logged systemctl daemon-reload && logged systemctl try-restart "$(basename "$service_unit")" "$(basename "$stream_unit")" "$(basename "$node_unit")"; } ||
    say "systemd could not restart the recorder: systemctl status fwtop fwtop-api"
fi
if command -v systemctl >/dev/null; then # it does nothing as long as there is no policy
  logged systemctl enable "$(basename "$policy_unit")" || say "could not enable $policy_unit: no policy is restored at boot"
  logged systemctl enable "$(basename "$overdue_timer")" || say "could not enable $overdue_timer"
  [[ ! -d /run/systemd/system ]] || logged systemctl start "$(basename "$overdue_timer")" || say "could not start $overdue_timer"
fi
say "installed in $((SECONDS - started)) s: sudo fwtop"
