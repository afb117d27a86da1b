#!/usr/bin/env bash
# Runs every fuzz target for the given time, two at a time with one processor each:
# a target that starts, or reads earlier inputs, uses only one.
# Usage: hack/fuzz.sh 4s
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(hack/go.sh):$PATH"
time=${1:?usage: hack/fuzz.sh TIME}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
inputs=$(go env GOCACHE)/fuzz/$(go list -m) # where go test keeps the inputs that it has found

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

# Before Go 1.27 the end of -fuzztime may be reported as a failure of the target that
# says "context deadline exceeded" and nothing else (golang/go#75804). That target ran
# its whole time and found nothing: a finding names the input that it wrote.
timeIsUp() { # target, log
  ! grep -q 'Failing input written to' "$2" &&
    [ "$(sed -n "/^--- FAIL: $1 (/,/^FAIL\$/p" "$2" | sed '1d;$d')" = '    context deadline exceeded' ]
}

fail() { # subject, log
  { cat "$2"; echo "fuzz: $1 failed"; } >&2
  return 255 # xargs starts no more
}

run() { # directory:target
  local dir=${1%:*} target=${1##*:} log
  log=$tmp/${dir//\//_}.$target.log
  echo "   $dir $target"
  (cd "$dir" && "$tmp/${dir//\//_}" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.parallel 1 \
    -test.fuzzcachedir "$inputs/$dir" -test.timeout 10m) >"$log" 2>&1 || timeIsUp "$target" "$log" ||
    { fail "$target in $dir" "$log"; return; }
  grep -q 'elapsed: ' "$log" || { fail "$target in $dir ran no input: it" "$log"; return; }
}

export -f link timeIsUp fail run
export tmp time inputs
targets | cut -d: -f1 | uniq | xargs -P 2 -I {} bash -c 'link {}'
targets | xargs -P 2 -I {} bash -c 'run {}'
count=$(targets | wc -l)
[ "$count" -gt 0 ] || { echo 'fuzz: no targets found' >&2; exit 1; }
echo "   $count targets, $time each"
