#!/usr/bin/env bash
# Boots a Debian kernel with cgroup v2 in QEMU and runs tests there.
#   hack/vm.sh [package…]     the root tests of these packages (directories), or of all
#   hack/vm.sh systemd [package…]  the same below systemd; test/systemd when none is named
#   hack/vm.sh powercut [N]   cuts the power N times (20) in the middle of work: hack/vm/powercut
#   hack/vm.sh services [N]   reboots a node with twelve services N times (20), and cuts its power N times
#   hack/vm.sh powercut-self  tests that test with a stand-in for the agent
#   hack/vm.sh profiles [apparmor|small|debian]  the tests of AppArmor and of SELinux, the latter with each policy
#   hack/vm.sh install DIR    the demo and install.sh of the release in DIR below systemd; with LONGSHORE_VM_ARCH=arm64 too
#   hack/vm.sh kata           longshore-guest as the first process of guests of its own: hack/vm/kata.sh
#   hack/vm.sh shell          a shell in the guest; exit ends it, nothing is kept
# Needs the packages of `hack/deps.sh vm` and root (the guest's files belong to
# root). Everything made stays below .cache/vm; last.log there is the console.
#
# LONGSHORE_BIN         binaries to test, instead of those built from this tree
# LONGSHORE_DOCKER_DIR  Debian's dockerd for test/e2e/swarm, swarmkit, docker and test/oci, as hack/dockerd.sh unpacks it
# BUILDX, BUILDKIT_IMAGE  for test/e2e/docker (README.md there)
# NOMAD                 Nomad's binary for test/e2e/nomad
# KUBE_PROGRAMS         a directory with the programs of test/e2e/kubelet/run.sh and test/e2e/cluster/run.sh, for these tests
# CRITEST               critest for test/e2e/cri, whose run.sh has made its images on this machine before; FOCUS, SKIP and PARALLEL too
# LONGSHORE_VM_ROOT     a directory with files for the guest's root, such as programs with their libraries
# CRIU                  the path of criu in the guest, for test/checkpoint and test/cri; LONGSHORE_VM_ROOT may bring it
# KUBELET               a kubelet for test/systemd, from k8s.io/kubernetes (test/e2e/kubelet builds one)
# LONGSHORE_VM_ARCH     arm64 for a guest of that architecture, for packages that need no other program, such as internal/keeper
# LONGSHORE_VM_RUN      a regular expression of test names, instead of those in *_root_test.go
# LONGSHORE_VM_VERBOSE  1 shows all output, not only that of packages that failed
# LONGSHORE_VM_TIMEOUT  seconds until a guest that hangs is ended (3600)
# LONGSHORE_VM_SWAP     the size of the guest's swap (none)
# LONGSHORE_VM_KERNEL   parameters of the kernel: systemd.unified_cgroup_hierarchy=0 is for the hybrid of cgroup v1 and v2 with systemd
# LONGSHORE_VM_SEED     repeats the choices of a power cut test
# LONGSHORE_VM_TEST_TIMEOUT, _TEST_PARALLEL, _ACCEL, _MEMORY, _NICE: see hack/vm/init.sh and qemu.sh
# LONGSHORE_VM_TSC      the rate of the time-stamp counter in kHz, instead of a measured one
# Other LONGSHORE_ variables (LONGSHORE_CHAOS_KILLS, LONGSHORE_TEST_PATIENCE) reach the tests as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD
cache=$top/.cache/vm
PATH="$(hack/go.sh):$PATH"
export PATH CGO_ENABLED=0
mkdir -p "$cache"
[ "$(id -u)" = 0 ] || { echo 'hack/vm.sh: run as root: the files of the guest belong to root' >&2; exit 1; }
run=$(mktemp -d "$cache/run.XXXXXX")
trap 'rm -rf "$run"' EXIT
# QEMU keeps a guest's writes in an unlinked file in TMPDIR, and go builds there.
export TMPDIR=$run

# An emulated guest has this machine's counter, but must not measure its rate.
LONGSHORE_VM_ARCH=${LONGSHORE_VM_ARCH:-amd64}
[ "$LONGSHORE_VM_ARCH" != amd64 ] || LONGSHORE_VM_TSC=${LONGSHORE_VM_TSC:-$(go run ./hack/vm/tsc || true)}
export LONGSHORE_VM_TSC LONGSHORE_VM_ARCH GOARCH=$LONGSHORE_VM_ARCH

# base makes the base image once for this state of its script, and prints its directory.
base() {
  local dir
  dir=$cache/base-$(cat hack/vm/base.sh hack/vm/apt.sh | sha256sum | cut -c1-12)
  [ "$LONGSHORE_VM_ARCH" = amd64 ] || dir=${dir/base-/$LONGSHORE_VM_ARCH-}
  (
    flock 9
    [ -e "$dir/base.img" ] || {
      echo 'hack/vm.sh: building the base image' >&2
      # Earlier ones of this architecture.
      if [ "$LONGSHORE_VM_ARCH" = amd64 ]; then rm -rf "$cache"/base-* "$cache"/services-*; else rm -rf "$cache/$LONGSHORE_VM_ARCH"-*; fi
      hack/vm/base.sh "$dir.part" >&2
      mv "$dir.part" "$dir"
    }
  ) 9>"$cache/lock"
  echo "$dir"
}

# image makes the second disk, /longshore in the guest, from a directory.
image() { # directory, file
  install -m 755 hack/vm/init.sh "$1/init"
  install -D -m 755 hack/vm/go.sh "$1/go/go"
  local mb
  mb=$(du -sm "$1" | cut -f1)
  mke2fs -q -t ext4 -O ^has_journal -m 0 -L longshore -d "$1" "$2" $((mb * 5 / 4 + 64))M >/dev/null
}

# collect builds the test binaries and lays out the second disk.
collect() { # directory, package…
  local dir=$1 package program names
  shift
  mkdir -p "$dir/bin" "$dir/src"
  if [ -n "${LONGSHORE_BIN:-}" ]; then
    cp -r "$LONGSHORE_BIN"/* "$dir/bin/"
  else
    # A program that does not build fails only the tests that need it.
    for package in cmd/*/; do
      nice go build -trimpath -o "$dir/bin/" "./$package" || true
    done
    case " $* " in *' test/attack'*) nice go build -trimpath -tags weakened -o "$dir/bin/weakened/" ./cmd/longshore ./cmd/longshore-keeper ./cmd/longshore-wasm ./cmd/longshore-hub || true ;; esac
  fi
  # The programs that tests build; the guest has no compiler.
  for package in "$@"; do
    for program in "$package"/testdata/*/ "$package"/attempts/; do
      [ -e "$program/main.go" ] || continue
      case $program in
      */wasip1/ | */modules/) GOOS=wasip1 GOARCH=wasm nice go build -ldflags='-s -w' -o "$dir/bin/$(basename "$program")" "./$program" || true ;;
      *) nice go build -o "$dir/bin/$(basename "$program")" "./$program" || true ;;
      esac
    done
  done
  cp go.mod "$dir/src/"
  # The testdata of every package: a test may read its neighbour's.
  find internal test -name testdata -type d -exec cp -r --parents -t "$dir/src/" {} +
  case " $* " in *' test/systemd '*)
    cp -r --parents contrib/systemd Makefile hack/shell-files.sh "$dir/src/"
    [ -z "${KUBELET:-}" ] || cp "$KUBELET" "$dir/bin/kubelet"
    packages "$dir" ;;
  esac
  case " $* " in *' test/cri '*)
    nice go build -modfile=tools/crictl/go.mod -o "$dir/bin/crictl" sigs.k8s.io/cri-tools/cmd/crictl || true ;;
  esac
  case " $* " in *' test/e2e/cri '*) critest "$dir" && confines ;; esac
  case " $* " in *' test/e2e/nomad '*) [ -z "${NOMAD:-}" ] || install "$NOMAD" "$dir/bin/nomad" ;; esac
  case " $* " in *' test/e2e/swarm '* | *' test/e2e/swarmkit '* | *' test/e2e/docker '* | *' test/oci '*) dockerd "$dir" ;; esac
  case " $* " in *' test/e2e/docker '*)
    [ -z "${BUILDX:-}" ] || install "$BUILDX" "$dir/bin/docker-buildx"
    [ -z "${BUILDKIT_IMAGE:-}" ] || cp "$BUILDKIT_IMAGE" "$dir/bin/buildkit.tar" ;;
  esac
  case " $* " in *' test/oci '*)
    added=$cache/podman-$(cat hack/vm/podman.sh hack/vm/apt.sh | sha256sum | cut -c1-12).tar
    [ -e "$added" ] || hack/vm/podman.sh "$added" ;;
  esac
  case " $* " in *' test/e2e/cluster '*) cp --parents contrib/grants/*.yaml "$dir/src/" ;; esac
  case " $* " in *' test/e2e/kubelet '* | *' test/e2e/cluster '*)
    [ -d "${KUBE_PROGRAMS:-}" ] || { echo 'hack/vm.sh: no KUBE_PROGRAMS: the tests of Kubernetes are skipped' >&2; KUBE_PROGRAMS=; }
    GOOS=wasip1 GOARCH=wasm nice go build -ldflags='-s -w' -o "$dir/bin/wasip1" ./test/node/testdata/wasip1
    [ -z "$KUBE_PROGRAMS" ] || { mkdir "$dir/kube" && find "$KUBE_PROGRAMS" -maxdepth 1 -type f -perm -100 -exec cp -t "$dir/kube" {} +; } ;;
  esac
  [ -z "${LONGSHORE_VM_ROOT:-}" ] || cp -a "$LONGSHORE_VM_ROOT" "$dir/root"
  : >"$dir/packages"
  [ ! -d "$dir/critest" ] || echo 'test/e2e/cri /longshore/src/test/e2e/cri/cri.test .' >>"$dir/packages"
  for package in "$@"; do
    [ "$package" != test/e2e/cri ] || continue # a script
    mkdir -p "$dir/src/$package"
    names=${LONGSHORE_VM_RUN:-"^($(cat "$package"/*_root_test.go | sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' | paste -sd'|'))\$"}
    # go test's name: a test may search for itself among the processes.
    local binary=src/$package/${package##*/}.test
    local mod=()
    [ ! -e "$package/go.mod" ] || mod=(-mod=mod)
    if nice go -C "$package" test "${mod[@]}" -c -ldflags='-s -w' -o "$dir/$binary" . && [ -e "$dir/$binary" ]; then
      echo "$package /longshore/$binary $names" >>"$dir/packages"
    else
      # One package that does not build leaves the others their result.
      echo "vm: end $package status=build seconds=0 pass=0 fail=1 skip=0" >>"$run/unbuilt"
    fi
  done
  {
    echo 'LONGSHORE_ROOT_TESTS=1'
    echo 'LONGSHORE_BIN=/longshore/bin'
    echo 'LONGSHORE_TEST_PATIENCE=5' # everything takes longer when it is emulated
    env | grep -e '^LONGSHORE_' -e '^STANDIN_' | grep -v -e '^LONGSHORE_ROOT_TESTS=' -e '^LONGSHORE_BIN=' -e '^LONGSHORE_WEAK_BIN=' -e '^LONGSHORE_DOCKER_DIR=' | sed "s/'/'\\\\''/g; s/=\(.*\)/='\1'/" || true
    [ -z "${CRIU:-}" ] || echo "CRIU=$CRIU"
    [ ! -e "$dir/bin/nomad" ] || echo 'NOMAD=/longshore/bin/nomad'
    [ ! -e "$dir/bin/docker-buildx" ] || echo 'BUILDX=/longshore/bin/docker-buildx'
    [ ! -e "$dir/bin/buildkit.tar" ] || echo 'BUILDKIT_IMAGE=/longshore/bin/buildkit.tar'
    [ ! -d "$dir/kube" ] || {
      echo 'LONGSHORE_KUBELET=/longshore/kube/kubelet'
      echo 'LONGSHORE_SUBJECT=/longshore/kube/subject'
      echo 'LONGSHORE_CLUSTER_PROGRAMS=/longshore/kube'
      [ ! -e "$dir/kube/e2e.test" ] || echo 'LONGSHORE_E2E_TEST=/longshore/kube/e2e.test'
    }
    [ ! -d "$dir/docker" ] || echo 'LONGSHORE_DOCKER_DIR=/longshore/docker'
  } >"$dir/env"
}

# critest adds critest with its images, and a script in the place of a test binary.
critest() { # directory
  local images=${CACHE:-.cache/e2e-cri}
  [ -x "${CRITEST:-}" ] && [ -e "$images/stamp" ] || { echo 'hack/vm.sh: no CRITEST, or no images yet: CRITEST=… FOCUS=version make e2e-cri makes them' >&2; return 1; }
  mkdir "$1/critest"
  install "$CRITEST" "$(dirname "$CRITEST")/ginkgo" "$1/critest/"
  cp -r "$images" "$1/critest/images"
  cp -r --parents test/e2e/cri "$1/src/"
  ln -s ../bin "$1/src/bin"
  # critest loads its profiles of AppArmor by sudo; everybody is root in the guest.
  printf '#!/bin/sh\nexec "$@"\n' >"$1/critest/sudo"
  chmod 755 "$1/critest/sudo"
  {
    echo '#!/bin/bash'
    printf 'export CRITEST=/longshore/critest/critest CACHE=/longshore/critest/images FOCUS=%q SKIP=%q PARALLEL=%q KEEP=1\n' "${FOCUS:-}" "${SKIP:-}" "${PARALLEL:-2}"
    echo 'timeout "${LONGSHORE_VM_TEST_TIMEOUT:-20m}" ./run.sh || { echo "--- FAIL: critest"; tail -n 300 /tmp/e2e-cri-*/critest-1.log; exit 1; }; echo "--- PASS: critest"'
  } >"$1/src/test/e2e/cri/cri.test"
  chmod 755 "$1/src/test/e2e/cri/cri.test"
}

# dockerd adds the needed files of dockerd's unpacked packages.
dockerd() { # directory
  [ -n "${LONGSHORE_DOCKER_DIR:-}" ] || { echo 'hack/vm.sh: no LONGSHORE_DOCKER_DIR: tests beside dockerd are skipped' >&2; return; }
  mkdir "$1/docker"
  (cd "$LONGSHORE_DOCKER_DIR" && find -L . -path ./usr/share -prune -o \( -path '*-linux-gnu/*' -o -path './usr/*bin/docker*' \
    -o -path './usr/bin/containerd*' -o -path './usr/bin/ctr' -o -path './usr/*bin/runc' \) -type f -print0 | xargs -0 cp -L --parents -t "$1/docker")
}

# package makes Debian packages of the binaries.
package() { VERSION=1.0.0 BIN=$1/bin OUT=$1/deb COMPRESSION=none hack/deb.sh >/dev/null; } # directory

# packages makes Debian packages of the binaries, and of the next version.
packages() { # directory
  local next=$run/next
  package "$1"
  mkdir "$next"
  find "$1/bin" -maxdepth 1 -type f -name 'longshore*' -exec cp -t "$next" {} +
  nice go build -trimpath -ldflags='-s -w -X main.release=2.0.0 -X github.com/longshore/longshore/internal/keeper/server.Release=2.0.0' -o "$next/" ./cmd/longshore ./cmd/longshore-keeper
  VERSION=2.0.0 BIN=$next OUT=$1/deb COMPRESSION=none hack/deb.sh >/dev/null
  rm -r "$next"
}

# show prints the output of packages that failed and a line for each package.
show() {
  local awk=(awk)
  # mawk, Debian's own, would wait for a block of input.
  [[ $(awk -W version 2>&1 </dev/null) != mawk* ]] || awk+=(-W interactive)
  "${awk[@]}" -v verbose="${LONGSHORE_VM_VERBOSE:-0}" '
    { sub(/\r$/, "") }
    /^vm: end / {
      if (verbose != 1 && $4 != "status=0") printf "%s", kept
      kept = ""; sub(/^vm: end /, ""); print "== " $0; fflush(); next
    }
    /^\[ *[0-9.]+\] (sysrq: Power Off|reboot: Power down)/ { next }
    /^vm: begin / { kept = ""; inside = 1; if (verbose == 1) print "== " $3; next }
    /^vm: / { sub(/^vm: /, ""); print "== guest: " $0; fflush(); inside = 0; next }
    verbose == 1 || !inside { print; fflush(); next }
    { kept = kept $0 "\n" }
    END { printf "%s", kept }'
}

tests() { # mode, package…
  local mode=$1 packages=("${@:2}") base
  if [ ${#packages[@]} -eq 0 ]; then
    mapfile -t packages < <(grep -rl --include='*_root_test.go' --exclude-dir=e2e . internal test 2>/dev/null | xargs -r -n1 dirname | sort -u)
  fi
  base=$(base)
  local start=$SECONDS
  : >"$run/unbuilt"
  collect "$run/longshore" "${packages[@]#./}"
  [ -z "${added:-}" ] || { mkdir "$run/longshore/host" && tar -x -C "$run/longshore/host" -f "$added"; }
  image "$run/longshore" "$run/longshore.img"
  rm -rf "$run/longshore"
  echo "== ${#packages[@]} packages built in $((SECONDS - start)) s"
  guest "$mode" "$base" ${#packages[@]}
}

# guest boots the guest of $run/longshore.img, and shows its tests.
guest() { # mode, directory of the base, number of packages
  local mode=$1 base=$2 start=$SECONDS
  { timeout --kill-after=10 "${LONGSHORE_VM_TIMEOUT:-3600}" hack/vm/qemu.sh "$base" "$run/longshore.img" \
    "longshore.mode=$mode ${kernel:-} ${LONGSHORE_VM_KERNEL:-}" </dev/null 2>&1 || true; } |
    tee "$run/console" | show
  # Only now: several runs may be under way, and the last one's log is kept.
  sed 's/\r$//' "$run/console" >"$run/last.log"
  cp "$run/last.log" "$cache/last.log"
  grep -a '^vm: end' "$run/last.log" | cat - "$run/unbuilt" >"$run/ends" || true
  echo
  summary "$run/ends" "$3" $((SECONDS - start))
}

# install_release lays out a guest with a release's tarballs, and the script in the place of a test binary.
install_release() { # directory of the release
  local base
  base=$(base)
  mkdir -p "$run/longshore/src/install" "$run/longshore/release"
  nice go build -trimpath -ldflags='-s -w' -o "$run/longshore/bin/" ./test/demo
  install -D -m 755 hack/demo.sh "$run/longshore/src/hack/demo.sh"
  cp "$1"/{longshore_*_linux_"$LONGSHORE_VM_ARCH".tar.gz,SHA256SUMS,install.sh} "$run/longshore/release/"
  install -m 755 hack/vm/install.sh "$run/longshore/src/install/install.test"
  echo 'install /longshore/src/install/install.test .' >"$run/longshore/packages"
  : >"$run/longshore/env"
  : >"$run/unbuilt"
  image "$run/longshore" "$run/longshore.img"
  LONGSHORE_VM_VERBOSE=1 guest systemd "$base" 1
}

summary() { # file of end lines, packages wanted, seconds
  grep -aE '^--- (FAIL|SKIP)' "$run/last.log" || true
  awk -v want="$2" -v wall="$3" '
    { split($4, s, "="); split($5, t, "="); split($6, p, "="); split($7, f, "="); split($8, k, "=")
      printf "%-32s %-6s %7.1f s  %3d passed %3d failed %3d skipped\n", $3, s[2] == "0" ? "ok" : "FAIL", t[2], p[2], f[2], k[2]
      n++; if (s[2] != "0") bad++
      P += p[2]; F += f[2]; K += k[2] }
    END {
      printf "vm: %d of %d packages, %d tests passed, %d failed, %d skipped, %d s in the guest\n", n, want, P, F, K, wall
      if (n < want) print "vm: the guest ended early: see .cache/vm/last.log"
      exit n < want || bad > 0 }' "$1"
}

# confines adds AppArmor's parser and the policies of SELinux to the guest.
confines() {
  added=$cache/profiles-$(cat hack/vm/profiles.sh hack/vm/apt.sh test/node/testdata/selinux/policy.conf | sha256sum | cut -c1-12).tar
  [ -e "$added" ] || hack/vm/profiles.sh "$added"
}

# profiles boots a guest for each of the two modules, with the files that a node needs for it: for SELinux with each policy.
profiles() { # apparmor, a policy, or none for all
  local added kernel module status=0 only=${LONGSHORE_VM_RUN:-}
  confines
  for module in ${1:-apparmor small debian}; do
    case $module in
    apparmor) export LONGSHORE_VM_RUN=${only:-^TestAppArmor} kernel="apparmor=1 security=apparmor" ;;
    *) export LONGSHORE_VM_RUN=${only:-^TestSELinux} kernel="selinux=1 security=selinux longshore.policy=$module" ;;
    esac
    (tests tests test/node) || status=1
  done
  return $status
}

# powercut lays out a guest with a registry's images and a data disk of its own.
powercut() { # cuts
  collect "$run/longshore"
  go build -o "$run/longshore/bin/powercut" ./hack/vm/powercut
  "$run/longshore/bin/powercut" images "$run/longshore/registry"
  boots "$1"
}

# services lays out a guest with the agent's package and an image of Debian's servers.
services() { # reboots and cuts, each
  collect "$run/longshore"
  package "$run/longshore"
  rm -rf "$run/longshore"/{bin/*,src} "$run/longshore"/deb/longshore-*.deb
  go build -o "$run/longshore/bin/powercut" ./hack/vm/powercut
  local tar
  tar=$cache/services-$(cat hack/vm/services.sh hack/vm/apt.sh | sha256sum | cut -c1-12).tar
  [ -e "$tar" ] || hack/vm/services.sh "$tar"
  cp "$tar" "$run/longshore/services.tar"
  boots "$1" -services
}

# boots starts the guest of a directory that is laid out, with a disk of its own, again and again.
boots() { # cuts, argument of powercut host…
  local base
  base=$(base)
  image "$run/longshore" "$run/longshore.img"
  mke2fs -q -t ext4 "$run/data.img" 3G >/dev/null
  cp "$run/longshore/bin/powercut" "$run/powercut"
  rm -rf "$run/longshore"
  "$run/powercut" host -n "$@" -base "$base" -longshore "$run/longshore.img" -disk "$run/data.img" -console "$run/powercut.log" \
    ${LONGSHORE_VM_SEED:+-seed "$LONGSHORE_VM_SEED"} || {
    local status=$?
    cp "$run/powercut.log" "$cache/powercut.log"
    cp --sparse=always "$run/data.img" "$cache/powercut.img"
    echo 'the last boot on the console (all of it is in .cache/vm/powercut.log, the disk is powercut.img):'
    tac "$run/powercut.log" | sed '/^vm: up/q' | tac | tail -n 120
    return $status
  }
}

# powercut_self cuts an honest stand-in for the agent, which must survive, and a
# careless one, which must not.
powercut_self() {
  export LONGSHORE_BIN=hack/vm/powercut/testdata
  powercut 6
  export STANDIN_CARELESS=1
  if powercut 20 >"$run/careless" 2>&1; then
    echo 'powercut-self: a careless agent went unnoticed'
    return 1
  fi
  grep -m1 '^powercut: ' "$run/careless" || true
  echo 'powercut-self: the honest one survived, the careless one did not'
}

case ${1:-} in
powercut) powercut "${2:-20}" ;;
services) services "${2:-20}" ;;
powercut-self) powercut_self ;;
profiles) profiles "${2:-}" ;;
install) install_release "${2:?hack/vm.sh install: name the directory of a release}" ;;
kata) hack/vm/kata.sh "$(base)" "$run/kata" ;;
shell)
  base=$(base)
  collect "$run/longshore"
  image "$run/longshore" "$run/longshore.img"
  hack/vm/qemu.sh "$base" "$run/longshore.img" longshore.mode=shell
  ;;
-*)
  sed -n '2,/^set -e/{/^set/d;s/^# \{0,1\}//;p}' "$0"
  exit 2
  ;;
systemd)
  shift
  [ $# -gt 0 ] || set -- test/systemd
  tests systemd "$@"
  ;;
*) tests tests "$@" ;;
esac
