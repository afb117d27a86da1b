#!/bin/bash
# Pid 1 of the guest. Prepares the bare root as systemd would, as far as a node
# needs it (cgroup v2 alone, /run on tmpfs, mounts shared), and then runs the mode
# of longshore.mode= on the kernel's command line:
#   tests     runs every package of /longshore/packages and prints one
#             "vm: end" line for each
#   systemd   the same below systemd as pid 1
#   powercut  hands over to the power-cut test's part in the guest
#   services  systemd as pid 1 on a node with services that outlive the boots, on the disk of /var/lib:
#             the power-cut test's part for them is a service of systemd
#   shell     a shell on the console
# Lines that hack/vm.sh reads begin with "vm: ".
export PATH=/longshore/go:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8

# bare prepares the bare root for a node.
bare() {
  mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
  mount -t securityfs securityfs /sys/kernel/security
  mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
  mount -t bpf -o nosuid,nodev,noexec,mode=700 bpf /sys/fs/bpf
  mkdir -p /dev/pts /dev/shm /dev/mqueue
  mount -t devpts -o nosuid,noexec,gid=5,mode=620,ptmxmode=666 devpts /dev/pts
  mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm
  mount -t mqueue -o nosuid,nodev,noexec mqueue /dev/mqueue
  mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs /run
  # /tmp stays on the disk: tmpfs has no user attributes in Debian's kernel.
  mount --make-rshared /
  ln -sfn /proc/self/fd /dev/fd
  for n in 0:stdin 1:stdout 2:stderr; do
    ln -sfn "/proc/self/fd/${n%:*}" "/dev/${n#*:}"
  done
  for c in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$c" >/sys/fs/cgroup/cgroup.subtree_control
  done
  cat /etc/hostname >/proc/sys/kernel/hostname
  ip link set lo up
}

# systemd becomes pid 1 instead and starts nothing but itself, its journal, the
# bus on demand, and this script again as a service: everything takes long when
# emulated, and a guest that is thrown away needs no state of its last boot.
systemd() { # the unit that is wanted
  local units=/etc/systemd/system unit
  mkdir -p "$units" /etc/systemd/system-generators
  for unit in /usr/lib/systemd/system-generators/*; do
    ln -sfn /dev/null "/etc/systemd/system-generators/${unit##*/}"
  done
  for unit in sys-{kernel-debug,kernel-tracing,kernel-config,fs-fuse-connections}.mount dev-hugepages.mount \
    proc-sys-fs-binfmt_misc.automount systemd-{binfmt,boot-system-token,firstboot,hwdb-update,journal-catalog-update}.service \
    systemd-{journal-flush,machine-id-commit,modules-load,pcrphase,pcrphase-sysinit,pstore,random-seed,remount-fs}.service \
    systemd-{sysctl,sysusers,sysext,tmpfiles-setup,tmpfiles-setup-dev,update-done,update-utmp}.service systemd-timesyncd.service \
    kmod-static-nodes.service ldconfig.service systemd-ask-password-{console,wall}.path systemd-initctl.socket \
    systemd-journald-audit.socket timers.target getty.target remote-fs.target \
    systemd-{logind,user-sessions,update-utmp-runlevel}.service; do
    ln -sfn /dev/null "$units/$unit"
  done
  cat >"$units/vm.service" <<'END'
[Unit]
Requires=basic.target
After=basic.target
[Service]
Type=oneshot
ExecStart=/longshore/init
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
TimeoutStartSec=infinity
TasksMax=infinity
END
  mkdir -p /etc/systemd/journald.conf.d
  printf '[Journal]\nStorage=volatile\nRateLimitBurst=0\n' >/etc/systemd/journald.conf.d/vm.conf
  [ "$mode" != services ] || services
  exec /usr/lib/systemd/systemd --unit="$1"
}

# services makes the node as its administrator left it: the address of its network card, the installed
# package and the Quadlet files. Only /var/lib is kept from boot to boot.
services() {
  mount -t ext4 /dev/vdc /var/lib
  modprobe virtio_net
  local address=${cmdline##*longshore.address=}
  ip link set lo up
  ip link set eth0 up
  ip address add "${address%% *}/24" dev eth0
  dpkg --fsys-tarfile /longshore/deb/longshore_*.deb | tar -x -C / --keep-directory-symlink
  mkdir -p /etc/containers /var/lib/vm/quadlets
  ln -sfn /var/lib/vm/quadlets /etc/containers/systemd
  systemctl --root=/ enable --quiet longshore.service
  mkdir -p /etc/systemd/system/multi-user.target.wants
  ln -s ../vm.service /etc/systemd/system/multi-user.target.wants/
}

[ -e /proc/cmdline ] || mount -t proc -o nosuid,nodev,noexec proc /proc
read -r cmdline </proc/cmdline
mode=${cmdline##*longshore.mode=}
mode=${mode%% *}
case $$/$mode in
1/systemd) systemd vm.service ;;
1/services) systemd multi-user.target ;;
1/*) bare ;;
esac
[ ! -d /longshore/host ] || cp -a /longshore/host/. / # packages that the base does not have
# The kernel takes a policy in one write.
if [ -d /sys/fs/selinux ] && mount -t selinuxfs selinuxfs /sys/fs/selinux; then
  policy=small
  case $cmdline in *longshore.policy=*) policy=${cmdline##*longshore.policy=} ;; esac
  dd if="/etc/selinux/${policy%% *}/policy" of=/sys/fs/selinux/load bs=8M status=none && echo 1 >/sys/fs/selinux/enforce
fi
sysctl -qw kernel.printk='3 4 1 3' fs.inotify.max_user_instances=1024
ulimit -n 65536
# dockerd checks for the modules that balance its services, and does not load them. Its namespaces
# for balancing forward packets if the machine does; dockerd sets that on an ordinary host.
[ ! -d /longshore/docker ] || { modprobe -a ip_vs ip_vs_rr xt_ipvs && sysctl -qw net.ipv4.ip_forward=1; }

# run executes one package's tests in its own directory.
run() { # package, binary, names
  local package=$1 binary=$2 names=$3 out=/tmp/vm.out status start=$EPOCHREALTIME seconds
  echo "vm: begin $package"
  cd "/longshore/src/$package" || return
  "$binary" -test.v -test.timeout "${LONGSHORE_VM_TEST_TIMEOUT:-20m}" -test.parallel "${LONGSHORE_VM_TEST_PARALLEL:-2}" -test.run "$names" 2>&1 | tee "$out"
  status=${PIPESTATUS[0]}
  [ -z "$(tail -c 1 "$out")" ] || echo # output without a newline must not hide the next line
  seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.1f", b - a}')
  echo "vm: end $package status=$status seconds=$seconds pass=$(grep -c '^--- PASS' "$out") fail=$(grep -c '^--- FAIL' "$out") skip=$(grep -c '^--- SKIP' "$out")"
  cd / && rm -f "$out"
}

set -a
# shellcheck disable=SC1091 # written by hack/vm.sh
. /longshore/env
set +a
[ ! -d /longshore/root ] || cp -a /longshore/root/. /
# Swap for the tests of kubelet's LimitedSwap.
[ -z "${LONGSHORE_VM_SWAP:-}" ] || { fallocate -l "$LONGSHORE_VM_SWAP" /swap && chmod 600 /swap && mkswap -q /swap && swapon /swap; }
echo "vm: up kernel=$(uname -r) seconds=$(cut -d' ' -f1 /proc/uptime) mode=$mode"
case $mode in
tests | systemd)
  while read -r package binary names; do
    run "$package" "$binary" "$names" </dev/null
  done </longshore/packages
  ;;
powercut) /longshore/bin/powercut guest ;;
services) exec /longshore/bin/powercut services ;;
*) setsid -c bash -i </dev/console >/dev/console 2>&1 ;;
esac
echo 'vm: done'
sync
echo o >/proc/sysrq-trigger
# The power goes off a moment later; the script must not end before, least of all as pid 1.
while :; do read -r -t 60 <> <(:); done
