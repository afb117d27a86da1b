#!/usr/bin/env bash
# Becomes the QEMU of one guest: q35, or an arm64 machine (LONGSHORE_VM_ARCH=arm64), without devices that no test needs, two
# processors, the serial console on standard output, no network.
# Usage: hack/vm/qemu.sh <base directory> <image of /longshore> <kernel parameters> <qemu argument>…
# Both images stay as they are; the guest's writes are thrown away.
#
# Emulated in software (TCG), unless with LONGSHORE_VM_ACCEL=kvm: an existing
# /dev/kvm need not work, and merely opening a broken one has hung machines.
# QEMU 7.2 may keep executing code that the guest's kernel has patched meanwhile:
# a guest with processors busy for ever needs another try, or
# LONGSHORE_VM_ACCEL=tcg,thread=single.
set -euo pipefail
base=$1 longshore=$2 params=$3
shift 3
accel=${LONGSHORE_VM_ACCEL:-tcg}
[ "$accel" = tcg ] && accel=tcg,thread=multi
# The time-stamp counter is the host's. A guest that measures its rate while others use
# the processors is wrong by a factor: then its clock, and each timeout, runs too fast.
[ -z "${LONGSHORE_VM_TSC:-}" ] || params="$params tsc_early_khz=$LONGSHORE_VM_TSC"
console=ttyS0
machine=(qemu-system-x86_64 -machine "q35,sata=off,smbus=off,usb=off")
[ "${LONGSHORE_VM_ARCH:-amd64}" = amd64 ] || console=ttyAMA0 machine=(qemu-system-aarch64 -machine "virt,gic-version=3")
# The kernel parameters save self-tests and console output, which are slow when
# emulated. panic=-1 and -no-reboot end QEMU when the guest panics.
exec nice -n "${LONGSHORE_VM_NICE:-10}" "${machine[@]}" \
  -accel "$accel" -cpu max -smp 2 -m "${LONGSHORE_VM_MEMORY:-3G}" \
  -nodefaults -no-user-config -display none -no-reboot -nic none -serial stdio \
  -kernel "$base/vmlinuz" -initrd "$base/initrd" \
  -append "console=$console quiet loglevel=3 panic=-1 oops=panic tsc=reliable no_timer_check mitigations=off nokaslr random.trust_cpu=on 8250.nr_uarts=1 cryptomgr.notests rcupdate.rcu_expedited=1 $params" \
  -drive "file=$base/base.img,if=none,id=base,format=raw,snapshot=on" -device virtio-blk-pci,drive=base,addr=10 \
  -drive "file=$longshore,if=none,id=longshore,format=raw,snapshot=on" -device virtio-blk-pci,drive=longshore,addr=11 "$@"
