#!/usr/bin/env bash
# vm.sh COMMAND…: run a command as root on Debian's own kernel, in a throwaway virtual machine.
#
# The virtual machine sees this machine's files read-only below a temporary overlay: it has this clone and all
# installed software, and nothing it does persists. Its kernel is that of linux-image-amd64, or of
# KERNEL=linux-image-…. It has no network.
# Exit status: the command's; 124 after LIMIT seconds (default 3600).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fwtop-vm
[[ $# -gt 0 ]] || fail "usage: scripts/vm.sh COMMAND…"
[[ $(id -u) == 0 ]] || fail "vm.sh needs root, to share this machine's files with the virtual one"

ran() { # say what is run, and run it
  say "$*"
  "$@"
}

unpacked() { # PACKAGE: print where it is unpacked in the cache, after fetching it if need be; never installed
  local directory=$cache/$1
  if [[ ! -e $directory/complete ]]; then
    rm -rf "$directory" && mkdir -p "$directory/root"
    (cd "$directory" && ran apt-get -q -o APT::Sandbox::User=root download "$1" >&2 && dpkg -x ./*.deb root)
    rm "$directory"/*.deb && touch "$directory/complete"
  fi
  echo "$directory/root"
}

make_initramfs() { # a busybox that mounts this machine's files and goes on in them
  local tree=$1 busybox_root
  busybox_root=$(unpacked busybox-static)
  mkdir -p "$tree"/{modules,proc,sys,dev,host,layer,root}
  cp "$busybox_root/bin/busybox" "$tree/busybox"
  modprobe --dirname "$kernel" --set-version "$version" --show-depends --all \
    virtio_pci 9pnet_virtio 9p overlay | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$tree/list"
  xargs -a "$tree/list" cp -t "$tree/modules"
  sed -i 's|.*/|/modules/|' "$tree/list"
  cp "$clone/scripts/files/vm-init.sh" "$tree/init"
  (cd "$tree" && find . | ./busybox cpio -o -H newc 2>/dev/null) >"$tree.cpio"
}

command -v qemu-system-x86_64 >/dev/null ||
  ran as_root apt-get -q -y install --no-install-recommends qemu-system-x86 >&2
package=${KERNEL:-$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" { print $2 }')}
kernel=$(unpacked "$package")
version=$(ls "$kernel/lib/modules")
[[ -e $kernel/lib/modules/$version/modules.dep ]] || depmod -b "$kernel" "$version"
work=$(mktemp -d "$cache/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/share"
make_initramfs "$work/initramfs"
{
  printf 'cd %q\n' "$clone"
  printf '%q ' "$@"
} >"$work/share/command"
echo "$kernel/lib/modules" >"$work/share/modules"

# Without hardware support (or with a /dev/kvm that only runs paravirtual kernels) qemu emulates, about ten times
# slower. Its clock then counts instructions, so that nothing in the guest times out for that reason.
accelerator=(-accel "tcg,thread=single,tb-size=512" -cpu Nehalem -smp 1 -icount "shift=0" -rtc clock=vm)
if [[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accelerator=(-accel kvm -cpu host -smp 2); fi
status=0
ran timeout --foreground "${LIMIT:-3600}" qemu-system-x86_64 "${accelerator[@]}" -m 3G \
  -nodefaults -display none -no-reboot -serial stdio \
  -kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initramfs.cpio" \
  -append "console=ttyS0 quiet mitigations=off panic=-1 rdinit=/init" \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
  -virtfs local,path="$work/share",mount_tag=share,security_model=none </dev/null || status=$?
[[ $status == 0 ]] || exit "$status"
[[ -s $work/share/status ]] || fail "the virtual machine ended before its command did"
exit "$(cat "$work/share/status")"
