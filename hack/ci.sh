#!/usr/bin/env bash
# Everything that CI runs, stage by stage, each with its seconds; ends with the
# slowest tests of each stage and the totals of the test runner.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(hack/go.sh):$PATH"
# With -trimpath a package is compiled once, whatever directory the checkout is in; the
# tests that ask the toolchain for its sources then need GOROOT.
GOROOT=$(go env GOROOT)
export GOROOT GOTOOLCHAIN=local GOFLAGS="${GOFLAGS:-} -p=2 -trimpath"
cache=$PWD/.cache
mkdir -p "$cache/bin"
out=$(mktemp -d)
fuzzing='' # process group of the fuzz targets
beside=''  # process group of the stages beside root
trap 'for group in $fuzzing $beside; do kill -- "-$group" 2>/dev/null || true; done; rm -rf "$out"' EXIT
declare -a report=()

stage() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  if ! "$@"; then
    echo "== $name failed after $((SECONDS - start)) s"
    [ -n "${inside:-}" ] || totals
    exit 1
  fi
  report+=("$(printf '%-14s %4d s' "$name" $((SECONDS - start)))")
  echo "== $name: $((SECONDS - start)) s"
}

tools() {
  go build -modfile=tools/go.mod -o "$cache/bin/" github.com/golangci/golangci-lint/v2/cmd/golangci-lint gotest.tools/gotestsum golang.org/x/vuln/cmd/govulncheck
}

build() {
  hack/build.sh bin
  CGO_ENABLED=0 go build -trimpath -tags weakened -ldflags='-s -w' -o bin/weakened/ ./cmd/longshore ./cmd/longshore-keeper ./cmd/longshore-wasm ./cmd/longshore-hub
}

vet() { go vet ./...; }
lint() { "$cache/bin/golangci-lint" run --timeout 10m ./...; }

# Known vulnerabilities in the functions that the programs call. Findings fail; without
# the database the stage says so and passes.
govulncheck() {
  local code=0 db=${GOVULNDB:-https://vuln.go.dev}
  "$cache/bin/govulncheck" -db "$db" ./... >"$out/govulncheck" 2>&1 || code=$?
  if [ "$code" -ne 0 ] && grep -q '^govulncheck: fetching vulnerabilities: ' "$out/govulncheck"; then
    echo "govulncheck: the database $db cannot be reached: nothing was looked up"
    return 0
  fi
  cat "$out/govulncheck"
  return "$code"
}

# Runs the packages' tests. A test that fails is run once more, whole and by itself: if it then passes,
# the run names it as flaky (a fault to mend) but does not fail for one or two of thousands. A data race
# fails the run, also when the second try passes.
sum() { # name, packages, go test arguments …
  local name=$1 pkgs=$2
  shift 2
  "$cache/bin/gotestsum" --format pkgname-and-test-fails --hide-summary=skipped --jsonfile "$out/$name.json" \
    --rerun-fails=1 --rerun-fails-max-failures=4 --rerun-fails-run-root-test --packages="$pkgs" -- "$@" || return
  ! grep -q 'WARNING: DATA RACE' "$out/$name.json" || { echo "$name: a data race was found"; return 1; }
}

# By itself: under the race detector, reading the whole tree takes ten times as long.
arch() { sum arch ./internal/arch; }

# The race detector pauses each process for one second at its end, the many that tests
# start as well; its reports come before.
race() { CGO_ENABLED=1 GORACE=atexit_sleep_ms=0 sum race "$(go list ./... | grep -v '/internal/arch$' | tr '\n' ' ')" -race -shuffle=on; }

# The root tests need the real kernel; each makes its own namespaces and cgroup.
# The unit tests beside them have run under the race detector.
# Three tests of a package run side by side, because they mostly wait.
# go test does not know of the programs in bin/, so no result is cached.
root() {
  local files pkgs tests
  files=$(grep -rl --include='*_root_test.go' --exclude-dir=e2e . internal test)
  pkgs=$(xargs -n1 dirname <<<"$files" | sort -u | sed 's|^|./|' | tr '\n' ' ')
  # shellcheck disable=SC2086 # a list
  tests=$( (grep -hoE '^func Test\w+' $files && grep -rhoE --include='*_test.go' --exclude-dir=e2e '^func Test\w+' test) | cut -c6- | sort -u | paste -sd '|')
  CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_TEST_PARALLEL=1 LONGSHORE_BIN="$PWD/bin" LONGSHORE_WEAK_BIN="$PWD/bin/weakened" \
    sum root "$pkgs" -p 1 -parallel 3 -count=1 -run "^($tests)\$" -timeout 15m
}

# The same on a hardened and on a loosened host: the tests that depend on sysctls, limits, umask or
# a firewall. make root-parents runs all tests so.
parents() {
  local kind
  for kind in hardened loosened; do
    CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_TEST_PARALLEL=1 LONGSHORE_TEST_HOST=$kind LONGSHORE_BIN="$PWD/bin" \
      sum "$kind" "./internal/network ./internal/network/vxlan ./internal/network/nft ./test/node" -p 1 -parallel 3 -count=1 \
      -run '^Test(Builtin|HostIP|ChosenPorts|Pods|Forward|RulesArePutBack|Recover|APortOf|NobodyHeeds|APublishedPort|PublishedPortsPass|TheIngressKeeps|Overlays|TheGuard|Subnets|Untrack|ManyFlows|OnlyPublished|AnAddressLeads|Doctor|TheAgentMends|OnlyContainersDump|PortsThatAreTaken|AnExhaustedRange|NoRange|Volumes)' -timeout 10m || return
  done
}

# mesos-go drives the agent. Its module is separate, and follows the tree's.
mesosgo() {
  local bin=$PWD/bin
  (cd test/e2e/mesosgo && export GOFLAGS="$GOFLAGS -mod=mod" && go vet . &&
    CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$bin sum mesosgo . -p 1 -count=1 -timeout 15m)
}

# besidedockerd runs tests beside the dockerd of Debian's packages, which are unpacked, not
# installed; without the packages it says so. The cases run side by side, because they
# mostly wait, and have time on a busy machine.
besidedockerd() { # name, suite ("" is the machine's own), arguments of go test
  local name=$1 suite=$2 dir=$cache/docker${2:+-$2} code=0
  shift 2
  hack/dockerd.sh "$dir" ${suite:+"$suite"} || code=$?
  if [ "$code" -eq 75 ]; then
    echo "$name: Debian's packages ${suite:+of $suite }cannot be downloaded: nothing was run"
    return 0
  fi
  [ "$code" -eq 0 ] || return "$code"
  CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN="$PWD/bin" LONGSHORE_DOCKER_DIR="$dir" LONGSHORE_TEST_PATIENCE="${LONGSHORE_TEST_PATIENCE:-5}" \
    sum "$name" ./test/e2e/swarm -p 1 -parallel 6 -count=1 -short -timeout 20m "$@"
}

# Debian's command line drives the node itself, and Debian's dockerd and containerd run containers by longshore-oci. The packages are those of the stage swarm; the tests of
# the clients that are installed run in the stage root.
dockercli() {
  [ -e "$cache/docker/complete" ] || { echo "dockercli: swarm has no docker: nothing was run"; return 0; }
  CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_TEST_PARALLEL=1 LONGSHORE_BIN="$PWD/bin" LONGSHORE_DOCKER_DIR="$cache/docker" \
    sum dockercli './test/dockerclients ./test/oci' -p 1 -parallel 3 -count=1 -timeout 5m -run '^Test(Docker|Containerd)'
}

# Clients of Docker's API that are Go modules drive the node: docker's newest command line and compose, and the
# libraries of a module of its own, which follows the tree's.
dockerclients() {
  local dir=$cache/dockerclients code=0
  test/e2e/dockerclients/build.sh "$dir" || code=$?
  [ "$code" -ne 75 ] || { echo 'dockerclients: nothing was run'; return 0; }
  [ "$code" -eq 0 ] || return "$code"
  CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_TEST_PARALLEL=1 LONGSHORE_BIN="$PWD/bin" LONGSHORE_DOCKER_DIR="$dir" \
    sum dockerclients ./test/dockerclients -p 1 -parallel 3 -count=1 -timeout 5m -run '^Test(Docker(Runs|KeepsContainers|Connects|Ships|Compose.*)|Devcontainers)$' || return
  local bin=$PWD/bin
  (cd test/e2e/dockerclients && export GOFLAGS="$GOFLAGS -mod=mod" && go vet ./... &&
    CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_TEST_PARALLEL=1 LONGSHORE_BIN=$bin sum dockermodules . -p 1 -parallel 3 -count=1 -timeout 5m)
}

# A real Swarm manager drives the node: Debian's own dockerd.
swarm() { besidedockerd swarm ''; }

# The same by dockerd 28.5 with containerd 2.1, as far as it takes a minute or two: join and leave,
# the tasks' views on both kinds of node, networks and published ports of a mixed Swarm, and a cut.
swarm28() { besidedockerd swarm28 forky -run '^Test(AServiceFromJoinToLeave|WhatTasksSeeOnBothKinds|PublishedPortsOfAMixedSwarm|ACutOfElevenSeconds)$'; }

# The documents of inspect, info and version, and containers over a boot, beside the dockerd of swarm28.
templates() {
  [ -x "$cache/docker-forky/usr/sbin/dockerd" ] || { echo "templates: swarm28 has no dockerd: nothing was run"; return 0; }
  CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN="$PWD/bin" LONGSHORE_DOCKER_DIR="$cache/docker-forky" LONGSHORE_TEST_PATIENCE="${LONGSHORE_TEST_PATIENCE:-5}" \
    sum templates ./test/tour -p 1 -count=1 -timeout 10m -run '^Test(Templates|Boots)BesideDocker$'
}

# The same requests to dockerd 28 and to the Docker face.
beside() {
  [ -x "$cache/docker-forky/usr/sbin/dockerd" ] || { echo "beside: swarm28 has no dockerd: nothing was run"; return 0; }
  CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN="$PWD/bin" LONGSHORE_DOCKER_DIR="$cache/docker-forky" LONGSHORE_TEST_PATIENCE="${LONGSHORE_TEST_PATIENCE:-5}" \
    sum beside ./test/docker -p 1 -count=1 -timeout 15m -run '^TestBesideDockerd$'
}

# The fuzz targets run beside the stages that mostly wait, in the time that those leave idle; so each has more
# time than it would have alone. A session of its own is also a group of the scheduler's, whose priority is another one.
beginFuzz() {
  chrt -i 0 setsid sh -c 'echo 19 2>/dev/null >/proc/self/autogroup; exec hack/fuzz.sh 6s' >"$out/fuzz" 2>&1 &
  fuzzing=$!
}

fuzz() {
  local code=0
  wait "$fuzzing" || code=$?
  fuzzing=''
  cat "$out/fuzz"
  return "$code"
}

# The stages with a dockerd or other clients mostly wait. They run one after another, beside the stage root, and are
# printed after it.
besideRoot=(parents mesosgo swarm dockercli dockerclients swarm28 templates beside)
beginBeside() {
  set -m # a process group of its own
  (
    set +m
    inside=1 report=()
    for name in "${besideRoot[@]}"; do stage "$name" "$name"; done
    printf '%s\n' "${report[@]}" >"$out/report"
  ) >"$out/beside" 2>&1 </dev/null &
  beside=$!
  set +m
}

endBeside() {
  local code=0
  wait "$beside" || code=$?
  beside=''
  cat "$out/beside"
  [ "$code" -eq 0 ] || { totals; exit 1; }
  mapfile -t -O "${#report[@]}" report <"$out/report"
}

# Counts the shapes of public Nomad jobs that run as docker's driver runs them.
corpus() {
  local code=0
  CGO_ENABLED=0 go test -count=1 -v -run '^TestShapesOfPublicJobsRunAsWithDocker$' ./internal/face/nomad >"$out/corpus" 2>&1 || code=$?
  cat "$out/corpus"
  [ "$code" -eq 0 ] && grep -q "run as docker's driver runs them" "$out/corpus"
}

# Bills of materials and signatures of releases; the module is separate, and brings its own libraries.
release() { (cd tools/release && go vet . && go test -count=1 .); }

# The calls of WASI that our own programs make with directories, and the programs of Go's that open them.
wasi() {
  local code=0
  CGO_ENABLED=0 go test -count=1 -v -run '^(TestPathsBelowAnOpenDirectory|TestGoUsesOpenDirectories|TestAProgramReadsItsArgumentAndItsMounts|TestWhatWasNotGrantedIsAnError)$' ./internal/grant/wasm >"$out/wasi" 2>&1 || code=$?
  [ "$code" -eq 0 ] || { cat "$out/wasi"; return "$code"; }
  awk '/calls of WASI with the directory/ { calls += $2; programs++ } /^--- PASS: / { tests++ }
    END { printf "%d calls of WASI in %d programs return what they must, and %d tests pass\n", calls, programs, tests; exit calls == 0 || tests != 4 }' "$out/wasi"
}

# What the services with options drawn at random have compared in the stages beside dockerd.
differential() {
  local name
  for name in swarm swarm28; do
    [ -s "$out/$name.json" ] || { echo "$name was not run, for want of Debian's packages"; continue; }
    jq -r 'select(.Action == "output") | .Output' "$out/$name.json" | grep -oE '[0-9]+ services with [0-9]+ kinds of options, of which their tasks saw [0-9]+ values' |
      sed "s/^/$name: /" || { echo "$name: no count of the differential service"; return 1; }
  done
}

generated() {
  hack/proto.sh && hack/openapi.sh && go generate ./internal/runtime/native/seccomp && git diff --exit-code --stat -- api internal/runtime/native/seccomp
}
arm64() { GOARCH=arm64 hack/build.sh "$out/arm64"; }

# The ten slowest tests of each stage that has run.
slowest() {
  local f
  for f in "$out"/*.json; do
    [ -s "$f" ] || continue
    printf '\nslowest of %s:\n' "$(basename "$f" .json)"
    "$cache/bin/gotestsum" tool slowest --num 10 --threshold 1s --jsonfile "$f" | sed 's|^[^ ]*/longshore/longshore/||' || true
  done
}

# Lists the tests of all stages with this result; a test that passed at the second try has passed.
count() { # pass|fail|skip|flaky
  local f
  for f in "$out"/*.json; do
    [ ! -s "$f" ] || grep -E '"Action":"(pass|fail|skip)".*"Test":' "$f" | jq -r '[.Package + " " + .Test, .Action] | @tsv' |
      awk -F'\t' -v want="$1" '
        { ends[$1] = ends[$1] " " $2 }
        END {
          for (test in ends) {
            end = ends[test] ~ /pass/ ? (ends[test] ~ /fail/ ? "flaky" : "pass") : ends[test] ~ /fail/ ? "fail" : "skip"
            if (end == want) print test
          }
        }' || true
  done
}

totals() {
  local p f s flaky
  slowest
  flaky=$(count flaky)
  p=$(cat <(count pass) <(count flaky) | wc -l)
  f=$(count fail | wc -l)
  s=$(count skip | wc -l)
  echo
  printf '%s\n' "${report[@]}"
  [ -z "$flaky" ] || printf 'flaky (passed at the second try): %s\n' "$flaky"
  echo "$p passed, $f failed, $s skipped"
}

stage packages hack/deps.sh test
stage tools tools
stage build build
stage vet vet
stage arch arch
stage lint lint
stage govulncheck govulncheck
stage outdated hack/outdated.sh
stage generated generated
stage race race
beginFuzz
beginBeside
stage root root
endBeside
stage differential differential
stage corpus corpus
stage wasi wasi
stage release release
stage fuzz fuzz
stage arm64 arm64
totals
