#!/usr/bin/env bash
# Shows one container's life on an agent of its own: pulled over HTTP from a
# registry on loopback, run, logged, entered, killed by memory, explained. All
# of it lives below one temporary directory and is gone at the end.
#
# BIN  the programs, with that of test/demo, instead of those built from this tree
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo 'make demo: containers need root' >&2; exit 1; }
[ -n "${BIN:-}" ] || {
  PATH="$(hack/go.sh):$PATH"
  CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/ ./cmd/... ./test/demo
}
bin=${BIN:-bin}

dir=$(mktemp -d /tmp/longshore-demo-XXXXXX)
agent= registry=
finish() {
  status=$?
  trap - EXIT
  [ $status -eq 0 ] || { echo "--- the agent's log:"; tail -n 30 "$dir/agent.log"; } >&2
  [ -z "$agent" ] || { kill "$agent" 2>/dev/null && wait "$agent"; } || true
  [ -z "$registry" ] || kill "$registry" 2>/dev/null || true
  rm -rf "$dir"
  exit $status
}
trap finish EXIT

show() {
  printf '\n\033[1m$ longshore'
  printf ' %s' "${@@Q}" | sed "s/'\([A-Za-z0-9_.:/-]*\)'/\1/g"
  printf '\033[0m\n'
  "$bin/longshore" "$@"
}

"$bin/demo" >"$dir/registry" &
registry=$!
"$bin/longshore" agent --root "$dir/root" --state "$dir/run" 2>"$dir/agent.log" &
agent=$!
export LONGSHORE_SOCKET="$dir/run/control.sock"
for _ in $(seq 100); do
  kill -0 "$agent" || { echo 'the agent ended' >&2; exit 1; }
  [ -s "$dir/registry" ] && "$bin/longshore" version >/dev/null 2>&1 && break
  read -rt 0.1 <> <(:) || true
done
image=$(cat "$dir/registry")

show doctor
show pull "$image"
show images
show run -d --name hello "$image" sh -c 'echo "hello from pid $$ in $(hostname)"; ip -4 -o addr show eth0; exec sleep 1000'
until [ -n "$("$bin/longshore" logs hello)" ]; do :; done # its first output takes a moment
show logs hello
show exec hello sh -c 'echo "inside: $(id -un), $(cat /proc/1/comm)"; wget -qO- http://127.0.0.1:1 2>/dev/null || echo "its own loopback: nobody answers"'
show ps
show run -d --name greedy --memory 16m "$image" sh -c 'echo "eating memory"; tail /dev/zero'
"$bin/longshore" wait greedy || true
show why greedy
show ps -a
show rm -f hello greedy
show check
kill "$agent"
wait "$agent" || true
agent=

echo
left=$(grep -c "$dir" /proc/self/mountinfo || true)
keepers=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -c "longshore-keeper [a-z]* $dir/run" || true)
[ "$left" = 0 ] && [ "$keepers" = 0 ] || { echo "left behind: $left mounts, $keepers processes" >&2; exit 1; }
echo 'The agent is stopped and nothing of it is left.'
