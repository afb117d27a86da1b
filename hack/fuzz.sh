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

targets() { # file's directory:target, by directory
  grep -rn --include='*_test.go' -oE '^func Fuzz[A-Za-z0-9_]+' cmd internal test |
    sed -E 's|/[^/:]+:[0-9]+:func |:|' | sort
}

# link makes a package's program, once for all of its targets.
link() { # directory
  local mod=()
  [ ! -f "$1/go.mod" ] || mod=(-mod=mod) # a module of its own follows the tree's
  (cd "$1" && go test "${mod[@]}" -c -fuzz . -o "$tmp/${1//\//_}" .) >"$tmp/${1//\//_}.log" 2>&1 ||
    { cat "$tmp/${1//\//_}.log"; echo "fuzz: building $1 failed" >&2; return 255; }
}

# Linking uses one processor, so two programs are linked at a time; a target has both for itself.
export -f link
export tmp
targets | cut -d: -f1 | uniq | xargs -P 2 -I {} bash -c 'link {}'

count=0
while IFS=: read -r dir target; do
  echo "   $dir $target"
  (cd "$dir" && "$tmp/${dir//\//_}" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.parallel 2 \
    -test.fuzzcachedir "$inputs/$tree/$dir" -test.timeout 10m) >"$log" 2>&1 || timeIsUp "$target" || fail "$target in $dir"
  grep -q 'elapsed: ' "$log" || fail "$target in $dir ran no input: it"
  count=$((count + 1))
done < <(targets)
[ "$count" -gt 0 ] || { echo 'fuzz: no targets found' >&2; exit 1; }
echo "   $count targets, $time each"
