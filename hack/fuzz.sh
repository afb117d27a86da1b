#!/usr/bin/env bash
# Runs every fuzz target, one after the other, for the given time each.
# Usage: hack/fuzz.sh 3s
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(hack/go.sh):$PATH"
time=${1:?usage: hack/fuzz.sh TIME}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Before Go 1.27 the end of -fuzztime may be told as a failure of the target that
# says "context deadline exceeded" and nothing else (golang/go#75804). That target ran
# its whole time and found nothing: a finding names the input that it wrote.
timeIsUp() { # target
  ! grep -q 'Failing input written to' "$log" &&
    [ "$(sed -n "/^--- FAIL: $1 (/,/^FAIL\$/p" "$log" | sed '1d;$d')" = '    context deadline exceeded' ]
}

count=0
while IFS=: read -r file _ target; do
  dir=$(dirname "$file")
  target=${target#func }
  echo "   $dir $target"
  mod=()
  [ ! -f "$dir/go.mod" ] || mod=(-mod=mod) # a module of its own follows the tree's
  (cd "$dir" && go test "${mod[@]}" . -run '^$' -fuzz "^$target\$" -fuzztime "$time" -parallel 2) >"$log" 2>&1 || timeIsUp "$target" || {
    cat "$log"
    echo "fuzz: $target in $dir failed" >&2
    exit 1
  }
  count=$((count + 1))
done < <(grep -rn --include='*_test.go' -oE '^func Fuzz[A-Za-z0-9_]+' cmd internal test)
[ "$count" -gt 0 ] || { echo 'fuzz: no targets found' >&2; exit 1; }
echo "   $count targets, $time each"
