#!/usr/bin/env bash
# Runs every fuzz target, one after the other, for the given time each.
# Usage: hack/fuzz.sh 3s
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(hack/go.sh):$PATH"
time=${1:?usage: hack/fuzz.sh TIME}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
log=$tmp/log
inputs=$(go env GOCACHE)/fuzz # where go test keeps the inputs that it has found
tree=$(go list -m)

# Before Go 1.27 the end of -fuzztime may be told as a failure of the target that
# says "context deadline exceeded" and nothing else (golang/go#75804). That target ran
# its whole time and found nothing: a finding names the input that it wrote.
timeIsUp() { # target
  ! grep -q 'Failing input written to' "$log" &&
    [ "$(sed -n "/^--- FAIL: $1 (/,/^FAIL\$/p" "$log" | sed '1d;$d')" = '    context deadline exceeded' ]
}

fail() { # what
  cat "$log"
  echo "fuzz: $1 failed" >&2
  exit 1
}

# A package's program is linked once for all of its targets: linking takes as long as a short run.
count=0 last=
while IFS=: read -r file _ target; do
  dir=$(dirname "$file")
  target=${target#func }
  echo "   $dir $target"
  if [ "$dir" != "$last" ]; then
    mod=()
    [ ! -f "$dir/go.mod" ] || mod=(-mod=mod) # a module of its own follows the tree's
    (cd "$dir" && go test "${mod[@]}" -c -fuzz . -o "$tmp/test" .) >"$log" 2>&1 || fail "building $dir"
    last=$dir
  fi
  (cd "$dir" && "$tmp/test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.parallel 2 \
    -test.fuzzcachedir "$inputs/$tree/$dir" -test.timeout 10m) >"$log" 2>&1 || timeIsUp "$target" || fail "$target in $dir"
  grep -q 'elapsed: ' "$log" || fail "$target in $dir ran no input: it"
  count=$((count + 1))
done < <(grep -rn --include='*_test.go' -oE '^func Fuzz[A-Za-z0-9_]+' cmd internal test |
  sed -E 's|^(.*)/[^/]*$|\1\t&|' | sort -s -k1,1 | cut -f2)
[ "$count" -gt 0 ] || { echo 'fuzz: no targets found' >&2; exit 1; }
echo "   $count targets, $time each"
