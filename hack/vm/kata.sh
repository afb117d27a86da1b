#!/usr/bin/env bash
# Boots longshore-guest as the first process of QEMU guests. A test drives it there, over
# vsock's loopback (TestInAGuest of test/kata), or from this host, over the guest's vsock
# (TestAGuestFromTheHost).
# Usage: hack/vm/kata.sh <base directory> <work directory>     (hack/vm.sh kata calls it)
# LONGSHORE_BIN has the binaries, GUESTS names some of the guests:
#   initramfs   its root is the kernel's initial file system; cgroup v2; it waits long for plugged devices
#   disk        its root is a read-only disk; cgroup v1; it does not wait
#   malformed   an invalid option: the console names it, and the start ends
#   hosted      as initramfs, driven from this host
#   full        the same with the full build as its first process; the host's command line calls it
#   pod         as hosted, by containerd and Kata's shim, where KATA_SHIM names it: test/e2e/kata
#   client      as hosted, by Kata's own client of the agent, where KATA_SOURCE has Kata's sources: test/e2e/kata/client
set -euo pipefail
cd "$(dirname "$0")/../.."
base=$1 run=$2 bin=${LONGSHORE_BIN:-bin}
mkdir -p "$run/modules/lib"

# The kernel's modules are in the base image alone.
debugfs -R "rdump /usr/lib/modules $run/modules/lib" "$base/base.img" >/dev/null 2>"$run/debugfs.log"
version=$(basename "$run"/modules/lib/modules/*)

# guest lays out the files of every guest, below a directory.
guest() { # directory
  mkdir -p "$1"/{bin,dev,etc,lib,proc,run,sbin,sys,tmp}
  cp "$(command -v busybox)" "$1/bin/busybox"
  ln -s busybox "$1/bin/sh"
  echo kata-guest >"$1/etc/hostname"
  install -m 755 "$bin/longshore-guest" "$1/sbin/init"
  cp "$run/driver" "$1/driver"
  # The agent neither loads a guest's modules nor starts a test.
  cat >"$1/start" <<'END'
#!/bin/busybox sh
[ -e /dev/null ] || /bin/busybox mknod /dev/null c 1 3 # the shell wants it for background processes
# A test that ends has failed to end the machine.
{ /driver -test.v -test.run '^TestInAGuest$' -test.timeout 8m; /bin/busybox sleep 1; echo 'kata-vm: the test has ended'; /bin/busybox poweroff -f; } &
exec /sbin/init
END
  chmod +x "$1/start"
}

# loads prints the commands that load modules and their dependencies, in order.
loads() { # directory for the modules, module…
  local to=$1 m
  shift
  for m in "$@"; do
    modprobe -d "$run/modules" -S "$version" --show-depends "$m"
  done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r file; do
    cp "$file" "$to/"
    echo "/bin/busybox insmod /lib/$(basename "$file")"
  done
}

pack() { (cd "$1" && find . | cpio --quiet -o -H newc --owner 0:0 | gzip -1) >"$2"; }

# The drivers that a guest needs.
drivers='virtio_pci virtio_blk virtio_console virtio_scsi sd_mod virtiofs overlay vsock_loopback erofs dm-verity sha256_generic'

image() { mke2fs -q -t ext4 -O ^has_journal -m 0 -d "$1" "$2" "$3" >/dev/null; }

# A container's files.
mkdir -p "$run/image"/{bin,etc,tmp,proc,dev,sys}
cp "$(command -v busybox)" "$run/image/bin/busybox"
for a in sh cat dd df echo false hostname ls ps sleep sort stty tail touch true; do ln -s busybox "$run/image/bin/$a"; done
image "$run/image" "$run/image.ext4" 16M
# A disk with layers of a container's root: two partitions with an EROFS and its tree of hashes each.
layers() { # disk
  local n size start roots='' offsets=''
  mkdir -p "$run/layer2"
  echo 'of the lower layer' >"$run/layer2/lower"
  truncate -s 48M "$1"
  printf 'label: gpt\nstart=2048, size=40960\nstart=43008, size=40960\n' | sfdisk -q "$1"
  for n in 1 2; do
    mkfs.erofs "$run/layer$n.erofs" "$([ $n = 1 ] && echo "$run/image" || echo "$run/layer2")" >/dev/null 2>&1
    size=$(stat -c %s "$run/layer$n.erofs")
    size=$(((size + 4095) / 4096 * 4096))
    truncate -s "$size" "$run/layer$n.erofs"
    roots+=,$(/usr/sbin/veritysetup format --salt=0a0b --hash-offset="$size" --data-blocks=$((size / 4096)) "$run/layer$n.erofs" "$run/layer$n.erofs" | awk '/^Root hash/ {print $3}')
    offsets+=,$size
    start=$([ $n = 1 ] && echo 2048 || echo 43008)
    dd if="$run/layer$n.erofs" of="$1" bs=512 seek="$start" conv=notrunc status=none
  done
  echo "${roots#,},${offsets#,}"
}
hashes=$(layers "$run/layers")

truncate -s 16M "$run/swap"
mkswap -q "$run/swap"

go test -c -trimpath -ldflags='-s -w' -o "$run/driver" ./test/kata

guest "$run/initramfs"
modules=$(loads "$run/initramfs/lib" $drivers) # a list of words
cat >"$run/initramfs/load" <<END
#!/bin/busybox sh
$modules
exec /start
END
chmod +x "$run/initramfs/load"
pack "$run/initramfs" "$run/initramfs.cpio"

guest "$run/disk"
image "$run/disk" "$run/disk.ext4" 128M
mkdir -p "$run/loader"/{bin,dev,lib,root}
cp "$(command -v busybox)" "$run/loader/bin/busybox"
modules=$(loads "$run/loader/lib" $drivers)
cat >"$run/loader/init" <<END
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
$modules
/bin/busybox mount -t ext4 -o ro /dev/vdb /root
/bin/busybox mount -o move /dev /root/dev
exec /bin/busybox switch_root /root /start
END
chmod +x "$run/loader/init"
pack "$run/loader" "$run/loader.cpio"

# In this guest nothing runs beside the agent.
guest "$run/hosted"
rm "$run/hosted/driver" "$run/hosted/start"
modules=$(loads "$run/hosted/lib" virtio_pci virtio_blk virtio_net overlay vmw_vsock_virtio_transport virtiofs)
cat >"$run/hosted/load" <<END
#!/bin/busybox sh
$modules
exec /sbin/init
END
chmod +x "$run/hosted/load"
pack "$run/hosted" "$run/hosted.cpio"

# The end of this script ends the processes that it started.
daemon='' machine=''
trap '[ -z "$machine$daemon" ] || kill $machine $daemon 2>/dev/null || true' EXIT
trap 'exit 143' TERM INT HUP

# share starts a daemon that serves a directory with a container's files to one guest by
# virtiofs, until the guest ends.
share() { # name
  mkdir -p "$run/$1.shared/host"
  cp -r "$run/image" "$run/$1.shared/host/rootfs"
  echo 'by the host' >"$run/$1.shared/host/rootfs/told"
  # Sockets' names are short, and the work directory's may be long. The daemon also
  # excludes others with this name, on the whole machine.
  (cd "$run" && exec /usr/lib/qemu/virtiofsd --socket-path="$1.$$.fs" -o source="$run/$1.shared" -o sandbox=chroot) >"$run/$1.virtiofsd" 2>&1 &
  daemon=$!
  while [ ! -S "$run/$1.$$.fs" ]; do
    kill -0 "$daemon" || { cat "$run/$1.virtiofsd"; return 1; }
    sleep 0.1
  done
}

# boot runs one guest until its power is off, and keeps its console. Beside its disks the
# guest has a directory of the host's, places for another disk, processors and memory, and
# a port to the monitor, to plug them in.
boot() { # name, initial file system, kernel parameters, qemu argument…
  local name=$1 initrd=$2 params=$3 start=$EPOCHREALTIME memory=${LONGSHORE_VM_MEMORY:-768M} status=0
  shift 3
  share "$name" || return 1
  # The test knows these slots. One thread for all processors is slower and
  # avoids faults of QEMU 7.2 with code that the guest's kernel patches.
  (
    cd "$run"
    exec timeout --kill-after=10 "${LONGSHORE_VM_TIMEOUT:-600}" nice -n "${LONGSHORE_VM_NICE:-10}" qemu-system-x86_64 \
      -machine q35,sata=off,smbus=off,usb=off,memory-backend=memory -accel "${LONGSHORE_VM_ACCEL:-tcg,thread=single}" -cpu max -smp 2,maxcpus=4 -m "$memory,slots=2,maxmem=4G" \
      -object "memory-backend-memfd,id=memory,size=$memory,share=on" \
      -nodefaults -no-user-config -display none -no-reboot -nic none -serial stdio -kernel "$base/vmlinuz" -initrd "$initrd" \
      -append "console=ttyS0 quiet loglevel=3 panic=-1 oops=panic tsc=reliable no_timer_check mitigations=off nokaslr random.trust_cpu=on 8250.nr_uarts=1 cryptomgr.notests rcupdate.rcu_expedited=1 ${LONGSHORE_VM_TSC:+tsc_early_khz=$LONGSHORE_VM_TSC} $params" \
      -device pcie-root-port,id=plug,addr=5,chassis=1,slot=1 -device pcie-root-port,id=empty,addr=6,chassis=2,slot=2 \
      -drive file=image.ext4,if=none,id=image,format=raw,snapshot=on -device virtio-blk-pci,drive=image,addr=10 \
      -drive file=swap,if=none,id=swap,format=raw,snapshot=on -device virtio-blk-pci,drive=swap,addr=12 \
      -drive file=layers,if=none,id=layers,format=raw,snapshot=on -device virtio-blk-pci,drive=layers,addr=16 \
      -blockdev driver=file,node-name=plug,filename=image.ext4,read-only=on \
      -blockdev driver=file,node-name=scsi,filename=image.ext4,read-only=on -device virtio-scsi-pci,id=scsi,addr=15 \
      -chardev "socket,id=shared,path=$name.$$.fs" -device vhost-user-fs-pci,chardev=shared,tag=kataShared,addr=13 \
      -chardev "socket,id=monitor,path=$name.monitor,server=on,wait=off" -mon chardev=monitor,mode=control \
      -chardev "socket,id=port,path=$name.monitor" -device virtio-serial-pci,addr=14 -device virtserialport,chardev=port,name=monitor "$@"
  ) </dev/null >"$run/$name.log" 2>&1 &
  machine=$!
  wait "$machine" || status=1
  sed -i 's/\r$//' "$run/$name.log"
  kill "$daemon" 2>/dev/null || true # most often it has ended with the guest
  wait "$daemon" || true
  daemon='' machine=''
  [ $status = 0 ] || { echo "kata-vm: $name: QEMU failed, or the power did not go off in time"; return 1; }
  echo "== $name: the power was off after $(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.1f", b - a}') s"
}

failed=
check() { # name, text that the console must have
  if grep -aq -e "$2" "$run/$1.log"; then
    return
  fi
  echo "kata-vm: $1: the console does not say: $2"
  failed="$failed $1"
}
works() { # name
  check "$1" '^kata-vm: ok$'
  check "$1" 'reboot: Power down' # by the agent, and no panic
  local made="$run/$1.shared/host/rootfs/made"
  grep -qx 'by the guest' "$made" || { echo "kata-vm: $1: the guest has not written $made"; failed="$failed $1"; }
}

wanted=" ${GUESTS:-initramfs disk malformed hosted full pod client} "
want() { [[ $wanted == *" $1 "* ]]; }
test="LONGSHORE_KATA_IMAGE=/dev/vda LONGSHORE_KATA_LAYERS=$hashes LONGSHORE_TEST_PATIENCE=5 agent.log=debug agent.log_vport=1025 agent.debug_console agent.surprise=1"
if ! want initramfs; then :
elif boot initramfs "$run/initramfs.cpio" "rdinit=/load systemd.unified_cgroup_hierarchy=1 LONGSHORE_KATA_GUEST=cgroup2 LONGSHORE_KATA_PATIENCE=long agent.hotplug_timeout=60 $test"; then
  works initramfs
else failed="$failed initramfs"; fi
if ! want disk; then :
elif boot disk "$run/loader.cpio" "LONGSHORE_KATA_GUEST=cgroup LONGSHORE_KATA_PATIENCE=short agent.hotplug_timeout=1 $test" -drive "file=disk.ext4,if=none,id=disk,format=raw,snapshot=on" -device virtio-blk-pci,drive=disk,addr=11; then
  works disk
else failed="$failed disk"; fi
if ! want malformed; then :
elif boot malformed "$run/initramfs.cpio" "rdinit=/load agent.log=loud"; then
  check malformed 'kernel command line: agent.log: "loud": one of fatal, '
else failed="$failed malformed"; fi

export LONGSHORE_KATA_VM_KERNEL=$base/vmlinuz LONGSHORE_KATA_VM_INITRD=$run/hosted.cpio LONGSHORE_KATA_VM_DISK=$run/image.ext4
if ! want hosted; then :
elif ! LONGSHORE_TEST_PATIENCE=5 "$run/driver" -test.v -test.run '^TestAGuestFromTheHost$' -test.timeout 8m >"$run/hosted.log" 2>&1; then
  failed="$failed hosted"
fi
# full lays out the guest with the full build.
full() {
  cp -r "$run/hosted" "$run/full"
  install -m 755 "$bin/longshore" "$run/full/sbin/init"
  install -m 755 "$bin/longshore-keeper" "$run/full/sbin/longshore-keeper"
  pack "$run/full" "$run/full.cpio"
}
if ! want full; then :
elif ! { full && LONGSHORE_KATA_VM_INITRD=$run/full.cpio LONGSHORE_BIN=$(realpath "$bin") LONGSHORE_TEST_PATIENCE=5 \
  "$run/driver" -test.v -test.run '^TestTheHostsToolInAGuest$' -test.timeout 8m >"$run/full.log" 2>&1; }; then
  failed="$failed full"
fi
: >"$run/pod.log"
if ! want pod; then :
elif ! LONGSHORE_TEST_PATIENCE=5 RUN='^TestAPodInAVirtualMachine$' test/e2e/kata/run.sh >"$run/pod.log" 2>&1; then
  failed="$failed pod"
fi
: >"$run/client.log"
if ! want client; then :
elif ! LONGSHORE_TEST_PATIENCE=5 RUN='^TestEveryCallOfAGuest$' test/e2e/kata/client/run.sh >"$run/client.log" 2>&1; then
  failed="$failed client"
fi

mkdir -p .cache/vm
for name in $wanted; do cat "$run/$name.log"; done >.cache/vm/kata.log
if [ -n "$failed" ]; then
  for name in $failed; do
    echo "== the console of $name"
    tail -n 200 "$run/$name.log"
  done
  exit 1
fi
grep -aE '^ *(--- |kata-vm: )|memory in KiB|^e2e-kata.* skipped' .cache/vm/kata.log || true
echo 'kata-vm: all guests as they should be; their consoles are in .cache/vm/kata.log'
