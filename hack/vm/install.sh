#!/bin/bash
# In the guest with systemd, in the place of a test binary: the demo with a release's programs, then install.sh from
# its tarball to a running container, an upgrade under it, and the removal. It prints the time at each step.
set -euo pipefail
fail() {
  echo "--- FAIL: install: $*"
  journalctl -u longshore.service -n 30 --no-pager || true
  exit 1
}
trap 'fail "line $LINENO"' ERR
case $(uname -m) in x86_64) arch=amd64 ;; *) arch=arm64 ;; esac
tarball=$(echo /longshore/release/longshore_*_linux_"$arch".tar.gz)
step() { echo "vm: install: $* at $(cut -d' ' -f1 /proc/uptime) s"; }
mkdir /tmp/demo
tar -xzf "$tarball" -C /tmp/demo --strip-components=1
install -t /tmp/demo/bin /longshore/bin/demo
step 'the demo begins'
BIN=/tmp/demo/bin bash /longshore/src/hack/demo.sh || fail 'the demo'
rm -r /tmp/demo
listing() { find /etc /usr /var -xdev \( -path /var/log -o -path /var/tmp -o -path /var/lib/systemd \) -prune -o -printf '%p %y\n' | sort; }
listing >/tmp/before

step 'install.sh begins'
/longshore/release/install.sh "$tarball"
step 'it is installed'
[ "$(systemctl is-enabled longshore.service) $(systemctl is-active longshore.service)" = 'enabled active' ] || fail 'the unit is not enabled and active'
mkdir -p /tmp/busybox/bin
cp /bin/busybox /tmp/busybox/bin/
for name in sh echo sleep; do ln -s busybox "/tmp/busybox/bin/$name"; done
tar -C /tmp/busybox -cf - . | longshore import - example.com/busybox:1
[ "$(longshore run --rm example.com/busybox:1 echo hello)" = hello ] || fail 'the container'
step 'a container has ended'
longshore run -d --name stays example.com/busybox:1 sleep 100000
pid=$(longshore inspect -f '{{.State.Pid}}' stays)
main=$(systemctl show -P MainPID longshore.service)
/longshore/release/install.sh "$tarball"
[ "$(longshore inspect -f '{{.State.Pid}} {{.State.Status}}' stays)" = "$pid running" ] || fail 'the upgrade has ended a container'
[ "$(systemctl show -P MainPID longshore.service)" = "$main" ] || fail 'the agent was restarted'
step 'it is upgraded'
[ "$(longshore exec stays echo inside)" = inside ] || fail 'exec after the upgrade'
longshore check
step 'the removal begins'
/usr/local/share/longshore/install.sh --uninstall --purge
[ ! -e "/proc/$pid" ] || fail 'the container runs on'
units=$(systemctl list-units --no-legend --plain --state=active --type=service,socket 'longshore*') # a mount of that name is the test's own
[ -z "$units" ] || fail "units are active: $units"
rm -r /tmp/busybox
listing | diff /tmp/before - || fail 'files were left, or taken'
echo '--- PASS: install'
