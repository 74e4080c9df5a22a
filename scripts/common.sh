# Sourced by the other scripts: messages, logging, and installation paths.
# All messages go to standard error; the standard output of `make demo` is its JSON.
# shellcheck shell=bash disable=SC2034 # variables are used by the scripts that source this file

clone=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=/usr/local/lib/fwtop
manifest=$prefix/manifest
command=/usr/local/bin/fwtop
man_page=/usr/local/share/man/man8/fwtop.8
# Of bash, zsh and fish, made when the program is installed
declare -A completions=([fwtop.bash]=/usr/local/share/bash-completion/completions/fwtop
  [_fwtop]=/usr/local/share/zsh/site-functions/_fwtop
  [fwtop.fish]=/usr/local/share/fish/vendor_completions.d/fwtop.fish)
sample_settings=/usr/local/share/doc/fwtop/screen.toml
service_unit=/usr/local/lib/systemd/system/fwtop.service
sample_policy=/usr/local/share/doc/fwtop/policy.toml
policy_unit=/usr/local/lib/systemd/system/fwtop-policy.service
overdue_unit=/usr/local/lib/systemd/system/fwtop-overdue.service
overdue_timer=/usr/local/lib/systemd/system/fwtop-overdue.timer
stream_unit=/usr/local/lib/systemd/system/fwtop-api.service
stream_socket=/usr/local/lib/systemd/system/fwtop-api.socket
node_unit=/usr/local/lib/systemd/system/fwtop-fleet.service
broker_unit=/usr/local/lib/systemd/system/fwtop-broker.service
allow_file=/etc/fwtop/allow # written once: the operator's from then on
state_directory=/var/lib/fwtop
guardian_directory=/var/lib/fwtop-guardian
alarms_directory=/var/lib/fwtop-alarms
costs_file=/var/lib/fwtop-costs.json
user=fwtop
dissector_user=fwtop-dissect
fleet_user=fwtop-fleet
verifier_user=fwtop-verify
broker_user=fwtop-broker
python=/usr/bin/python3

# Names are the same in Debian 12 and 13, and Ubuntu 24.04. kmod: the kernel runs modprobe to load xt_set and the like;
# procps: sysctl.
packages=(python3 python3-venv python3-bpfcc python3-seccomp iptables ipset nftables conntrack iproute2 ethtool kmod procps
  openssh-client)
# Also used by tests and benchmarks; tests/unit/test_setup_packages.py checks both lists against the sources.
dev_packages=(apache2-bin bpftool e2fsprogs fail2ban gcc jq libc6-dev nginx openssl slowhttptest socat systemd
  systemd-container tcpdump tmux tshark unbound xdp-tools)
# Of these, what would begin to serve this machine once it is installed; tests start their own.
dev_services=(fail2ban nginx unbound)

# Ubuntu 24.04 has no package of this name, only others that provide it: apt-get refuses to choose.
declare -A provider=([bpftool]=linux-tools-common)

# Environment variables that say how this machine reaches the package registries.
registry_environment=PIP_INDEX_URL,PIP_EXTRA_INDEX_URL,PIP_TRUSTED_HOST,PIP_CERT,PIP_DEFAULT_TIMEOUT
registry_environment+=,SSL_CERT_FILE,http_proxy,https_proxy,no_proxy,HTTP_PROXY,HTTPS_PROXY,NO_PROXY

# remember KIND NAME: record it for `make uninstall`
remember() {
  mkdir -p "$prefix"
  grep -qxF "$1 $2" "$manifest" 2>/dev/null || echo "$1 $2" >>"$manifest"
}

say() { printf 'fwtop: %s\n' "$*" >&2; }

# fail MESSAGE: print what failed and what to do, and the end of the log if there is one.
fail() {
  say "$*"
  if [[ -s ${log:-} ]]; then
    tail -n 8 "$log" | sed 's/^/    /' >&2
    say "the full output is in $log"
  fi
  exit 1
}

# logged COMMAND…: run it, appending its output to the log.
logged() {
  printf '\n$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo --preserve-env="$registry_environment" "$@"
  else
    fail "this needs root, and sudo is not installed: run it as root"
  fi
}

is_package_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

missing_packages() { # PACKAGE…: print those that are not installed
  local package
  for package in "$@"; do
    is_package_installed "$package" || is_package_installed "${provider[$package]:-$package}" || echo "$package"
  done
}

# lock_hash FILE: hash everything that a virtual environment is made of.
lock_hash() {
  { cat "$1" "$clone/scripts/venv.sh" && "$python" -VV && readlink -f "$python"; } | sha256sum | cut -c1-16
}

build_hash() { "$python" -I "$clone/scripts/build_hash.py"; }
