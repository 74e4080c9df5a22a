#!/usr/bin/env bash
# The part of set-up that needs root: system packages, user, directories, and the installed copy.
#
# The copy is the root-owned /usr/local/lib/fwtop/app and venv: links to directories that are named by
# what is in them, made aside and swapped in by one rename. A running program goes on with the directory
# that it was started from, which is kept until the next change but one.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
log=/var/log/fwtop-setup.log
umask 022
[[ $(id -u) == 0 ]] || fail "install.sh needs root"
mkdir -p /run/lock
exec 9>/run/lock/fwtop-setup.lock
flock 9 # two set-ups at once take turns
: >"$log"

remember() { # KIND NAME: what `make uninstall` has to know
  mkdir -p "$prefix"
  grep -qxF "$1 $2" "$manifest" 2>/dev/null || echo "$1 $2" >>"$manifest"
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages)
  [[ ${#missing[@]} -gt 0 ]] || return 0
  command -v apt-get >/dev/null ||
    fail "this machine has no apt-get; install these by your own means, then run it again: ${missing[*]}"
  say "installing system packages: ${missing[*]}"
  local apt=(env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l apt-get -q -y -o DPkg::Lock::Timeout=120)
  local install=("${apt[@]}" install --no-install-recommends "${missing[@]}")
  logged "${apt[@]}" update || { sleep 3 && logged "${apt[@]}" update; } ||
    say "apt-get update failed; trying with the package lists at hand"
  logged "${install[@]}" || { sleep 3 && logged "${install[@]}"; } ||
    fail "apt-get could not install: ${missing[*]}; nothing else was changed"
  local package
  for package in "${missing[@]}"; do remember package "$package"; done
}

make_user_and_directories() {
  if ! id "$user" >/dev/null 2>&1; then
    logged useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin \
      --comment "fwtop console" "$user" || fail "could not add the system user $user"
    remember user "$user"
  fi
  install -d -m 0700 -o "$user" -g "$user" "$state_directory"
  install -d -m 0700 -o root -g root "$guardian_directory"
}

# swap_in NAME TARGET: make $prefix/NAME point at TARGET in one step, and drop all but the two newest.
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
    # The real path, so that a running program keeps to the copy that it was started from.
    # Debian's site.py reads .pth files twice in an environment: lib64 is a link to lib.
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
    logged "$prefix/venv/bin/python" -I -m compileall -q -j 0 -s "$making" -p "$prefix/$target" "$making/fwtop" ||
      fail "the program does not compile"
    echo "$build" >"$making/BUILD"
    mv -T "$making" "$prefix/$target"
  fi
  swap_in app "$target"
}

install_file() { # MODE FROM TO: by rename, so that a running shell never reads half a script
  mkdir -p "$(dirname "$3")"
  install -m "$1" "$2" "$3.new"
  mv -T "$3.new" "$3"
}

started=$SECONDS
rm -rf "$prefix"/making-* # of a set-up that did not get to its end
install_packages
make_user_and_directories
mkdir -p "$prefix"
install_venv
install_program
install_file 0755 "$clone/scripts/files/fwtop.sh" "$command"
install_file 0644 "$clone/scripts/files/fwtop.8" "$man_page"
install_file 0644 "$clone/scripts/files/fwtop.bash" "$completion"
say "installed in $((SECONDS - started)) s: sudo fwtop"
