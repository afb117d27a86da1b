#!/usr/bin/env bash
# Runs suites of the CRI against the agent of this tree. Agent, registry and suite
# live in mount, network, IPC and pid namespaces of their own, and below one
# directory.
#
# CRITEST names the binary of critest, the conformance suite; ginkgo's must lie
# beside it or in PATH. Both are built from
# https://github.com/kubernetes-sigs/cri-tools, see README.md.
#
# CONTAINERD_INTEGRATION names a test binary of those cases of containerd's
# integration suite that speak the CRI alone, see README.md. It runs instead.
#
# CRITEST2017 names the test binary of critest as it was in 2017 (cri-tools v0.2,
# README.md), which speaks the API of that time. It runs instead.
#
# Other variables: PARALLEL (2; 1 runs critest in series, as it does without the
# flag), ROUNDS (1), FOCUS and SKIP (regular expressions of names of specs or
# cases), RUNTIME (the runtime of the specs: auto), CACHE (.cache/e2e-cri: the
# images, made once), KEEP=1 (keep the logs of a good run too), HANDLER (a runtime
# handler), and FLAGS (more flags of critest).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)

skip() { echo "e2e-cri skipped: $*"; exit 0; }

if [ "${1:-}" != inside ]; then
  suite=${CONTAINERD_INTEGRATION:-${CRITEST2017:-${CRITEST:-}}}
  [ -n "$suite" ] || skip 'none of CRITEST, CRITEST2017 and CONTAINERD_INTEGRATION names a test binary (test/e2e/cri/README.md)'
  [ -x "$suite" ] || skip "$suite is no program"
  suite=$(realpath "$suite")
  if [ -z "${CONTAINERD_INTEGRATION:-}${CRITEST2017:-}" ]; then
    PATH="$(dirname "$suite"):$PATH"
    command -v ginkgo >/dev/null || skip "no ginkgo beside $suite"
  fi
  [ "$(id -u)" = 0 ] || skip 'needs root'
  for p in docker-registry skopeo jq; do command -v $p >/dev/null || skip "no $p (hack/deps.sh test)"; done
  export suite PATH CACHE=${CACHE:-$top/.cache/e2e-cri}
  mkdir -p "$CACHE"
  "$here/images.sh" fetch "$CACHE"
  dir=$(mktemp -d /tmp/e2e-cri-XXXXXX)
  cgroup=/${dir##*/}
  status=0
  unshare -mnipf --kill-child --propagation private "$0" inside "$dir" "$cgroup" || status=$?
  # The cgroups that the agent left in the hierarchies, deepest first.
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
[ ! -d /sys/kernel/security ] || mount -t securityfs securityfs /sys/kernel/security # AppArmor's profiles
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
# The images are made again when their recipe changes.
stamp=$(cat "$here/images.sh" "$here/nonewprivs/main.go" | sha256sum)
if [ "$(cat "$CACHE/stamp" 2>/dev/null)" != "$stamp" ]; then
  "$here/images.sh" 127.0.0.1:$port "$CACHE" | tee "$CACHE/digests"
  echo "$stamp" >"$CACHE/stamp"
fi

mkdir -p "$dir/certs.d/_default" "$dir/log"
cat >"$dir/certs.d/_default/hosts.toml" <<E
[host."http://127.0.0.1:$port"]
capabilities = ["pull", "resolve"]
E
sock=/run/longshore/cri.sock nri=/run/nri-test.sock # containerd's suite looks for NRI there alone
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
[face.cri.alpha]
enabled = $([ -n "${CRITEST2017:-}" ] && echo true || echo false)
E
# serve runs the agent. containerd's cases end it and expect it back, and check each
# second whether it has gone.
serve() {
  while :; do
    "$top/bin/longshore" agent --config "$dir/config.toml" &
    echo $! >"$dir/pid"
    wait $! || true
    if [ -z "${CONTAINERD_INTEGRATION:-}" ] || [ -e "$dir/over" ]; then return; fi
    sleep 3
  done
}
serve >"$dir/agent.log" 2>&1 &
agent=$!
export LONGSHORE_SOCKET=/run/longshore/control.sock
until [ -S $sock ] && "$top/bin/longshore" version >/dev/null 2>&1; do
  kill -0 $agent 2>/dev/null || { cat "$dir/agent.log"; exit 1; }
done

# critest runs the conformance suite.
critest() {
  local log=$dir/critest-$1.log failed=0 parallel=(-parallel "${PARALLEL:-2}")
  [ "${PARALLEL:-2}" != 1 ] || parallel=() # critest hands 1 to Go's own flag, which Ginkgo refuses
  echo "round $1, ${parallel[*]:-in series}"
  (cd "$dir" && exec "$suite" "${parallel[@]}" -runtime-endpoint unix://$sock -image-endpoint unix://$sock -nri-socket $nri ${FLAGS:-} \
    ${HANDLER:+-runtime-handler "$HANDLER"} ${FOCUS:+-ginkgo.focus "$FOCUS"} ${SKIP:+-ginkgo.skip "$SKIP"} -report-dir "$dir/report-$1" -ginkgo.no-color -ginkgo.v) >"$log" 2>&1 || failed=1
  grep -E '^\s*(\[FAIL\]|\[TIMEDOUT\]|\[INTERRUPTED\]|\[PANICKED\])' "$log" | sort -u || true
  grep -oE '\[SKIPPED\] .*' "$log" | sort | uniq -c || true
  grep -E '^Ran [0-9]+ of|^(FAIL!|SUCCESS!|PASS)' "$log" || tail -n 20 "$log"
  return $failed
}

# critest2017 runs the suite of 2017. Each spec that fails must stand in 2017.txt, and
# none there may pass.
critest2017() {
  local log=$dir/critest2017-$1.log failed=0 spec pattern why
  echo "round $1"
  (cd "$dir" && exec "$suite" -runtime-service-address $sock -image-service-address $sock ${FOCUS:+-ginkgo.focus "$FOCUS"} ${SKIP:+-ginkgo.skip "$SKIP"} -ginkgo.noColor) >"$log" 2>&1 || true
  sed -nE 's/^\[(Fail|Panic!)\] //p' "$log" | sort -u >"$dir/failed"
  while IFS= read -r spec; do
    why=$(while IFS=: read -r pattern why; do if [[ $spec == *"${pattern%\?}"* ]]; then echo "$why"; fi; done < <(grep -v '^#' "$here/2017.txt"))
    [ -n "$why" ] || failed=1
    echo "failed: $spec:${why:- not known}"
  done <"$dir/failed"
  if [ -z "${FOCUS:-}${SKIP:-}" ]; then
    while IFS=: read -r pattern why; do [[ $pattern == *\? ]] || grep -qF "$pattern" "$dir/failed" || { echo "passes, but stands in 2017.txt: $pattern"; failed=1; }; done < <(grep -v '^#' "$here/2017.txt")
  fi
  grep -E '^Ran [0-9]+ of|^(FAIL!|SUCCESS!|PASS)' "$log" || { tail -n 20 "$log"; failed=1; }
  return $failed
}

# known CASE prints the line of integration.txt that is about it: a pattern, or a
# pattern and a question mark where the case passes sometimes.
known() {
  local pattern why
  while IFS=: read -r pattern why; do
    # shellcheck disable=SC2053 # it is a pattern
    if [[ $1 == ${pattern%\?} ]]; then echo "$pattern:$why"; fi
  done < <(grep -v '^#' "$here/integration.txt")
}

# integration runs containerd's cases, each in a process of its own, after which no
# pod is left. Each that does not pass must stand in integration.txt, and none there
# may pass.
integration() {
  local log=$dir/integration-$1.log failed=0 flags case result line
  echo "round $1"
  echo "BusyBoxByDigest = \"ghcr.io/containerd/busybox@$(sed -n 's|^containerd/busybox:1.36 ||p' "$CACHE/digests")\"" >"$dir/images.toml"
  flags=(-cri-endpoint unix://$sock -containerd-bin longshore -image-list "$dir/images.toml" ${HANDLER:+-runtime-handler "$HANDLER"})
  for case in $("$suite" "${flags[@]}" -test.list "${FOCUS:-.}" 2>>"$log"); do
    [ -z "${SKIP:-}" ] || ! [[ $case =~ $SKIP ]] || continue
    (cd "$dir" && exec "$suite" "${flags[@]}" -test.v -test.timeout 10m -test.run "^$case\$") >>"$log" 2>&1 || true
    grep -q "^--- [A-Z]*: $case " "$log" || { echo "$case broke off"; failed=1; }
    "$top/bin/longshore" sandboxes --json | jq -r '.[]?.id' | xargs -r "$top/bin/longshore" rm -f >>"$log" 2>&1 || failed=1
  done
  # A case that consists of others counts by them.
  sed -nE 's/^ *--- (PASS|FAIL|SKIP): ([^ ]+) \(.*/\2 \1/p' "$log" | sort |
    awk '{ n[NR] = $1; r[NR] = $2 } END { for (i = 1; i <= NR; i++) if (index(n[i+1], n[i] "/") != 1) print n[i], r[i] }' >"$dir/results"
  for result in PASS FAIL SKIP; do echo "$result: $(grep -c " $result\$" "$dir/results")"; done
  while read -r case result; do
    line=$(known "$case")
    case $result:$line in
    PASS: | PASS:*\?:*) ;;
    PASS:*) echo "$case passes, but stands in integration.txt"; failed=1 ;;
    *:) echo "$result $case"; failed=1 ;;
    *) echo "$result $case:${line#*:}" ;;
    esac
  done <"$dir/results"
  return $failed
}

status=0
for round in $(seq "${ROUNDS:-1}"); do
  if [ -n "${CONTAINERD_INTEGRATION:-}" ]; then integration "$round"; elif [ -n "${CRITEST2017:-}" ]; then critest2017 "$round"; else critest "$round"; fi || status=1
done
"$top/bin/longshore" check || status=1
touch "$dir/over"
kill "$(cat "$dir/pid")"
wait $agent || true
exit $status
