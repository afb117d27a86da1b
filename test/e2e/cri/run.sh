#!/usr/bin/env bash
# Runs critest, the conformance suite of the CRI, against the agent of this
# tree. Agent, registry and critest live in mount, network, IPC and pid
# namespaces of their own, and below one directory.
#
# CRITEST names critest's binary; ginkgo's must lie beside it or in PATH. Both
# are built from https://github.com/kubernetes-sigs/cri-tools, see README.md.
#
# Other variables: PARALLEL (2), ROUNDS (1), FOCUS (a regular expression of spec
# names), RUNTIME (the runtime of the specs: auto), CACHE (.cache/e2e-cri: the
# images, made once), KEEP=1 (keep the logs of a good run too), HANDLER (a
# runtime handler), SKIP (a regular expression), and FLAGS (more flags of critest).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)

skip() { echo "e2e-cri skipped: $*"; exit 0; }

if [ "${1:-}" != inside ]; then
  [ -n "${CRITEST:-}" ] || skip 'CRITEST does not name the critest binary (test/e2e/cri/README.md)'
  [ -x "$CRITEST" ] || skip "$CRITEST is no program"
  CRITEST=$(realpath "$CRITEST")
  PATH="$(dirname "$CRITEST"):$PATH"
  command -v ginkgo >/dev/null || skip "no ginkgo beside $CRITEST"
  [ "$(id -u)" = 0 ] || skip 'needs root'
  for p in docker-registry skopeo jq; do command -v $p >/dev/null || skip "no $p (hack/deps.sh test)"; done
  export CRITEST PATH CACHE=${CACHE:-$top/.cache/e2e-cri}
  mkdir -p "$CACHE"
  "$here/images.sh" fetch "$CACHE"
  dir=$(mktemp -d /tmp/e2e-cri-XXXXXX)
  cgroup=/${dir##*/}
  status=0
  unshare -mnipf --kill-child --propagation private "$0" inside "$dir" "$cgroup" || status=$?
  # What the agent's end left in the hierarchies, deepest first.
  find /sys/fs/cgroup/*"$cgroup" /sys/fs/cgroup"$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
  if [ $status = 0 ] && [ -z "${KEEP:-}" ]; then rm -rf "$dir"; else echo "logs: $dir"; fi
  exit $status
fi

dir=$2 cgroup=$3
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir /run/lock /run/cg
mount --rbind /sys/fs/cgroup /run/cg
mount -t sysfs sysfs /sys
mount --move /run/cg /sys/fs/cgroup
# The specs of mount propagation want a shared root, as on a node.
mount --make-rshared /
ip link set lo up

port=5000
cat >"$dir/registry.yml" <<E
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $CACHE/registry}}
http: {addr: "127.0.0.1:$port"}
E
docker-registry serve "$dir/registry.yml" >"$dir/registry.log" 2>&1 &
until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do kill -0 $! || { cat "$dir/registry.log"; exit 1; }; done
# The images are made anew when their recipe is.
stamp=$(cat "$here/images.sh" "$here/nonewprivs/main.go" | sha256sum)
if [ "$(cat "$CACHE/stamp" 2>/dev/null)" != "$stamp" ]; then
  "$here/images.sh" 127.0.0.1:$port "$CACHE"
  echo "$stamp" >"$CACHE/stamp"
fi

mkdir -p "$dir/certs.d/_default" "$dir/log"
cat >"$dir/certs.d/_default/hosts.toml" <<E
[host."http://127.0.0.1:$port"]
capabilities = ["pull", "resolve"]
E
sock=/run/longshore/cri.sock nri=/run/longshore/nri.sock
cat >"$dir/config.toml" <<E
[agent]
root = "$dir/root"
log_level = "${LOG_LEVEL:-info}"
[engine]
runtime = "${RUNTIME:-auto}"
cgroup_root = "$cgroup"
[images]
registry_config = ["$dir/certs.d"]
[network]
mode = "builtin"
[face.cri]
nri_socket = "$nri"
E
"$top/bin/longshore" agent --config "$dir/config.toml" >"$dir/agent.log" 2>&1 &
agent=$!
until [ -S $sock ] && LONGSHORE_SOCKET=/run/longshore/control.sock "$top/bin/longshore" version >/dev/null 2>&1; do
  kill -0 $agent 2>/dev/null || { cat "$dir/agent.log"; exit 1; }
done

status=0
for round in $(seq "${ROUNDS:-1}"); do
  log=$dir/critest-$round.log
  echo "round $round, -parallel ${PARALLEL:-2}"
  (cd "$dir" && exec "$CRITEST" -parallel "${PARALLEL:-2}" -runtime-endpoint unix://$sock -image-endpoint unix://$sock -nri-socket $nri ${FLAGS:-} \
    ${HANDLER:+-runtime-handler "$HANDLER"} ${FOCUS:+-ginkgo.focus "$FOCUS"} ${SKIP:+-ginkgo.skip "$SKIP"} -report-dir "$dir/report-$round" -ginkgo.no-color) >"$log" 2>&1 || status=1
  grep -E '^\s*(\[FAIL\]|\[TIMEDOUT\]|\[INTERRUPTED\]|\[PANICKED\])' "$log" | sort -u || true
  grep -oE '\[SKIPPED\] .*' "$log" | sort | uniq -c || true
  grep -E '^Ran [0-9]+ of|^(FAIL!|SUCCESS!|PASS)' "$log" || tail -n 20 "$log"
done
LONGSHORE_SOCKET=/run/longshore/control.sock "$top/bin/longshore" check || status=1
kill $agent
wait $agent || true
exit $status
