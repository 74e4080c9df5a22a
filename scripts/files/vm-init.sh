#!/busybox sh
# shellcheck shell=dash
# Init of scripts/vm.sh's virtual machine. Runs twice: first in the initramfs, then on the overlay.
if [ "$1" != inside ]; then
  /busybox mount -t proc proc /proc
  /busybox mount -t devtmpfs dev /dev
  while read -r module; do /busybox insmod "$module"; done </list
  options=trans=virtio,version=9p2000.L,msize=512000
  /busybox mount -t 9p -o "ro,cache=loose,$options" host /host
  /busybox mount -t tmpfs -o size=75% layer /layer
  /busybox mkdir /layer/upper /layer/work
  /busybox mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /root
  /busybox mount -t tmpfs tmpfs /root/run
  /busybox mkdir /root/run/vm /root/run/lock
  /busybox mount -t 9p -o "$options" share /root/run/vm
  /busybox cp /init /root/run/init
  /busybox umount /proc
  /busybox mount --move /dev /root/dev
  exec /busybox switch_root /root /bin/sh /run/init inside
fi
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=xterm-256color
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ln -s /proc/self/fd /dev/fd
mkdir -p /dev/pts /dev/shm /lib/modules
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount --bind "$(cat /run/vm/modules)" /lib/modules
hostname debian
ip link set lo up
stty -F /dev/console -onlcr
# Hide this machine's fwtop state from the guest.
rm -rf /var/lib/fwtop /var/lib/fwtop-guardian /var/lib/fwtop-costs.json /usr/local/lib/fwtop/app* 2>/dev/null
setsid --wait bash /run/vm/command
echo $? >/run/vm/status
sync
echo o >/proc/sysrq-trigger
sleep 60
