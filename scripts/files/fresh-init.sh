# Init of scripts/test-fresh.sh's Debian. Runs twice: first outside, to set up mounts, then inside.
# shellcheck shell=bash
set -euo pipefail
if [[ $1 != --inside ]]; then
  root=$1
  shift
  mount --make-rprivate /
  mount --bind "$root" "$root" # a mount of its own: what `ip netns exec` changes has to be one
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mount -t bpf bpf "$root/sys/fs/bpf"
  mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup" 2>/dev/null || true
  while read -r kind mount_point; do
    mkdir -p "$root$mount_point" 2>/dev/null || true
    if [[ $kind == cgroup2 ]]; then
      mount -t cgroup2 cgroup2 "$root$mount_point"
    else
      mount -t cgroup -o "$(basename "$mount_point")" cgroup "$root$mount_point"
    fi
  done < <(cat "$root/root/cgroups" 2>/dev/null)
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  mkdir "$root"/dev/{pts,shm,net}
  while read -r device major minor; do
    mknod -m 666 "$root/dev/$device" c "$major" "$minor"
  done <<<"null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
fuse 10 229
net/tun 10 200
loop-control 10 237"
  for number in {0..7}; do
    mknod -m 660 "$root/dev/loop$number" b 7 "$number"
  done
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs tmpfs "$root/tmp"
  mkdir "$root/run/lock"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  for number in 0 1 2; do
    ln -s "/proc/self/fd/$number" "$root/dev/$(sed -n "$((number + 1))p" <<<$'stdin\nstdout\nstderr')"
  done
  if [[ -d /lib/modules ]]; then
    mkdir -p "$root/lib/modules"
    mount --bind -o ro /lib/modules "$root/lib/modules"
  fi
  if [[ -d ${FWTOP_CAPTURES:-} ]]; then
    mkdir -p "$root$FWTOP_CAPTURES"
    mount --bind -o ro "$FWTOP_CAPTURES" "$root$FWTOP_CAPTURES"
  fi
  hostname fresh
  printf '127.0.0.1 localhost fresh\n::1 localhost\n' >"$root/etc/hosts"
  cd "$root"
  pivot_root . mnt
  exec bash /root/init --inside "$@"
fi
shift
umount -l /mnt
cd /root
# shellcheck disable=SC1091 # written by test-fresh.sh
source registries
# Readable by the console's user, because some tests run the clone as that user.
git -c advice.detachedHead=false clone --quiet fwtop.bundle /srv/fwtop
cd /srv/fwtop

timed() { # COMMAND…: say how long it took
  local start=$SECONDS
  "$@"
  echo "fresh: '$*' took $((SECONDS - start)) s" >&2
}

echo "fresh: $(cat /etc/debian_version), $(dpkg-query -W | wc -l) packages, fwtop $(git rev-parse --short HEAD)" >&2
timed make setup
timed make setup
timed make --no-print-directory demo >/root/demo.json
python3 -m json.tool /root/demo.json >/dev/null
echo "fresh: make demo printed a JSON document of $(wc -c </root/demo.json) bytes" >&2
timed make check
if [[ $# == 0 ]]; then
  timed make test
else
  timed make setup-dev
  timed scripts/test.sh "$@"
fi
