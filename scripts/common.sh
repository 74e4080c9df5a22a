# Sourced by the other scripts: messages, the log, and what set-up lays where.
# All messages go to standard error: `make demo` keeps standard output for its JSON.
# shellcheck shell=bash disable=SC2034 # what is unused here is used by those who source it

clone=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=/usr/local/lib/fwtop
manifest=$prefix/manifest
command=/usr/local/bin/fwtop
man_page=/usr/local/share/man/man8/fwtop.8
completion=/usr/local/share/bash-completion/completions/fwtop
state_directory=/var/lib/fwtop
guardian_directory=/var/lib/fwtop-guardian
costs_file=/var/lib/fwtop-costs.json
user=fwtop
python=/usr/bin/python3

# Names are the same in Debian 12 and Ubuntu 24.04. kmod: the kernel loads xt_set and its like by modprobe;
# procps: sysctl.
packages=(python3 python3-venv python3-bpfcc iptables ipset nftables conntrack iproute2 ethtool kmod procps)

say() { printf 'fwtop: %s\n' "$*" >&2; }

# fail MESSAGE: one line on what was wrong and what to do, with the end of the log where there is one.
fail() {
  say "$*"
  if [[ -s ${log:-} ]]; then
    tail -n 8 "$log" | sed 's/^/    /' >&2
    say "everything it said is in $log"
  fi
  exit 1
}

# logged COMMAND…: run it with its output in the log.
logged() {
  printf '\n$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo --preserve-env=PIP_INDEX_URL,PIP_EXTRA_INDEX_URL,PIP_CERT,SSL_CERT_FILE,http_proxy,https_proxy,no_proxy,HTTP_PROXY,HTTPS_PROXY,NO_PROXY "$@"
  else
    fail "this needs root, and sudo is not installed: run it as root"
  fi
}

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
  done
}

# lock_hash FILE: names a virtual environment by everything that it is made of.
lock_hash() {
  { cat "$1" "$clone/scripts/venv.sh" && "$python" -VV && readlink -f "$python"; } | sha256sum | cut -c1-16
}

build_hash() { "$python" -I "$clone/scripts/build_hash.py"; }
