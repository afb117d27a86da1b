# Longshore. The two commands of the README are demo and test; help lists all.
SHELL := bash
GO = PATH="$$(hack/go.sh):$$PATH" go

# A target's text follows "##" in its line; "##@" begins a group.
help: ## list the targets
	@awk -F':.*## ' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' Makefile

.PHONY: help build demo check test race root-test fuzz lint proto weakened changelog install install-hub deb release release-check release-arm64 \
	clean chaos kills egress sleeps upgrades streams damages removals board overlay-stages e2e-hub attack exchanges seizures \
	e2e-cri e2e-cri2017 e2e-kubelet e2e-cluster e2e-nomad e2e-nomad-recover e2e-nomad-vm e2e-mesos \
	e2e-mesosgo e2e-swarm e2e-swarm-vm e2e-swarmkit e2e-gossip e2e-kata e2e-kata-client e2e-kata-vm \
	e2e-kata-stress e2e-kata-figures e2e-oci e2e-cli e2e-docker e2e-dockerclients e2e-docker-beside e2e-ui web e2e-servers vm-test vm-kube vm-conformance vm-systemd vm-profiles vm-powercut vm-services vm-oci \
	root-parents programs test-long bench bench-grants bench-compare bench-sleep bench-cli bench-network bench-overlay bench-gossip \
	bench-hub

##@ Every day

# RELEASE is the version that the programs state; empty leaves it to what Go records of the checkout.
RELEASE =
BIN = bin
# PROGRAM writes the manual pages; it is another one where BIN is for another machine.
PROGRAM = $(BIN)/longshore
LDFLAGS = -s -w $(if $(RELEASE),-buildid= -X main.release=$(RELEASE) -X github.com/longshore/longshore/internal/keeper/server.Release=$(RELEASE))
build: ## build the binaries into bin/ (RELEASE=)
	hack/build.sh $(BIN) '$(LDFLAGS)'

demo: ## install missing packages, build, and show a real container from pull to autopsy
	hack/deps.sh demo
	hack/demo.sh

check: ## gofmt, build, vet and the fast tests; no root, under a minute with warm caches
	hack/check.sh

test: ## install missing packages and run everything that CI runs
	hack/ci.sh

race: ## unit tests under the race detector
	CGO_ENABLED=1 GORACE=atexit_sleep_ms=0 $(GO) test -race -shuffle=on -p 2 ./...

root-test: build weakened ## tests on the real kernel, each in its own namespaces
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_WEAK_BIN=$(CURDIR)/bin/weakened $(GO) test -p 1 -timeout 15m ./internal/... ./test/...

fuzz: ## every fuzz target for 30 seconds
	hack/fuzz.sh 30s

lint: ## golangci-lint, as CI runs it
	$(GO) run -modfile=tools/go.mod github.com/golangci/golangci-lint/v2/cmd/golangci-lint run ./...

##@ Code and releases

proto: ## generate api/ again
	hack/proto.sh
	hack/openapi.sh

web: ## build the web page of web/ into internal/ui/dist; needs node 20 and npm
	cd web && npm ci --ignore-scripts --no-fund --no-audit && npx tsc --noEmit && node build.mjs

weakened: ## build for the attack suite: single defences can be switched off
	CGO_ENABLED=0 $(GO) build -trimpath -tags weakened -ldflags='-s -w' -o bin/weakened/ ./cmd/longshore ./cmd/longshore-keeper ./cmd/longshore-wasm ./cmd/longshore-hub

changelog: ## gather the files of docs/changes into CHANGELOG.md, at a release (VERSION=)
	$(GO) run ./hack/changelog $(VERSION)

install: build ## install binaries, units, manual pages and completions below DESTDIR (BIN=)
	install -D -m 755 $(BIN)/longshore $(DESTDIR)/usr/bin/longshore
	install -D -m 755 $(BIN)/longshore-keeper $(DESTDIR)/usr/bin/longshore-keeper
	install -D -m 755 $(BIN)/longshore-oci $(DESTDIR)/usr/bin/longshore-oci
	install -D -m 755 $(BIN)/longshore-verify $(DESTDIR)/usr/bin/longshore-verify
	install -D -m 755 $(BIN)/longshore-wasm $(DESTDIR)/usr/bin/longshore-wasm
	install -D -m 755 $(BIN)/longshore-compose $(DESTDIR)/usr/bin/longshore-compose
	install -D -m 755 $(BIN)/longshore-pages $(DESTDIR)/usr/bin/longshore-pages
	install -D -m 644 contrib/systemd/longshore.service $(DESTDIR)/lib/systemd/system/longshore.service
	install -D -m 644 contrib/systemd/longshore.socket $(DESTDIR)/lib/systemd/system/longshore.socket
	install -D -m 644 contrib/systemd/longshore-cri.socket $(DESTDIR)/lib/systemd/system/longshore-cri.socket
	install -d -m 755 $(DESTDIR)/lib/systemd/system-generators
	ln -sf /usr/bin/longshore $(DESTDIR)/lib/systemd/system-generators/longshore-generator
	hack/shell-files.sh $(PROGRAM) "$(DESTDIR)"

install-hub: build ## install the hub and its unit below DESTDIR; the unit wants a user longshore-hub
	install -D -m 755 $(BIN)/longshore-hub $(DESTDIR)/usr/bin/longshore-hub
	install -D -m 644 contrib/systemd/longshore-hub.service $(DESTDIR)/lib/systemd/system/longshore-hub.service

deb: ## the Debian packages in dist/ (VERSION=)
	$(MAKE) build RELEASE="$$(hack/version.sh)"
	hack/deb.sh

release: ## programs, packages, sums and an apt repository for amd64 and arm64 (OUT=dist VERSION= KEY= GPG_KEY=)
	OUT=$(or $(OUT),dist) hack/release.sh

release-check: ## build the release in two clones, compare the sums, install it with apt (VERSION=)
	hack/deps.sh release
	hack/release-check.sh

release-arm64: ## a release for arm64 in an emulated guest: demo, install.sh, root tests of keeper and native
	hack/deps.sh vm
	hack/deps.sh release
	ARCHES=arm64 OUT=.cache/release-arm64 hack/release.sh
	LONGSHORE_VM_ARCH=arm64 LONGSHORE_VM_TIMEOUT=5400 hack/vm.sh install .cache/release-arm64
	LONGSHORE_VM_ARCH=arm64 LONGSHORE_VM_TIMEOUT=10800 LONGSHORE_VM_TEST_TIMEOUT=80m LONGSHORE_TEST_PATIENCE=20 hack/vm.sh internal/keeper internal/runtime/native

clean: ## remove what was built
	rm -rf bin dist

##@ Kills and damage

chaos: build ## the chaos test with 1,000 kills
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_CHAOS_KILLS=1000 $(GO) test -timeout 60m -count=1 -v -run Chaos ./test/chaos

kills: build ## kill agent, keeper and nest in pairs and together, 20 rounds of each cell
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_MATRIX_ROUNDS=20 $(GO) test -timeout 2h -count=1 -v -run KillMatrix ./test/chaos

sleeps: build ## kill the parts of a node while a container falls asleep and wakes, 400 times (N=); 1,000 sleeps of ordinary programs (CYCLES= each)
	hack/sleepers.sh .cache/sleepers || [ $$? -eq 75 ]
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_SLEEPERS_DIR=$(CURDIR)/.cache/sleepers LONGSHORE_SLEEP_CYCLES=$(or $(CYCLES),143) LONGSHORE_SLEEP_MIB=24 $(GO) test -timeout 1h -count=1 -v -parallel 1 -run KeepsItsMemory ./internal/sleep
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_SLEEP_KILLS=$(or $(N),400) $(GO) test -timeout 1h -count=1 -v -run KilledAnywhere ./test/sleep

upgrades: ## upgrade between two builds a thousand times, under 200 containers of all faces (N=, CONTAINERS=, RATE=, LATENCY=, PACE=)
	for release in a b; do CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w -X main.release='$$release' -X github.com/longshore/longshore/internal/keeper/server.Release='$$release -o bin/upgrades/$$release/ ./cmd/longshore ./cmd/longshore-keeper || exit; done
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin/upgrades/a LONGSHORE_UPGRADE_BINS=$(CURDIR)/bin/upgrades/a:$(CURDIR)/bin/upgrades/b LONGSHORE_UPGRADES=$(or $(N),1000) LONGSHORE_UPGRADE_CONTAINERS=$(or $(CONTAINERS),200) LONGSHORE_UPGRADE_RATE=$(or $(RATE),250000) LONGSHORE_UPGRADE_LATENCY=$(or $(LATENCY),0) LONGSHORE_UPGRADE_PACE=$(or $(PACE),1) $(GO) test -timeout 4h -count=1 -v -run UpgradesUnderLoad ./test/chaos

streams: build ## cut a thousand streams, and rotate a log of 50 MB/s for a minute
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_CUTS=1000 LONGSHORE_ROTATE_SECONDS=60 $(GO) test -timeout 30m -count=1 -v -run 'CutStreams|RotatedLogs' ./test/cri

damages: build ## damage 200 files of a running node, and kill repairs and commits
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DAMAGES=200 $(GO) test -timeout 40m -count=1 -v -run 'Damaged|RepairBringsBack|RepairIs|DiesInACommit' ./test/node

removals: build ## remove ten thousand sandboxes, by one, four and sixteen workers
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_REMOVALS=10000 $(GO) test -timeout 60m -count=1 -v -run Removals ./test/node

egress: build ## kill agent, name server and keeper fifty times each under the traffic of an egress list, and run clients with their lists
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_EGRESS_KILLS=50 $(GO) test -timeout 60m -count=1 -v -run 'TestKilledUnderTraffic|TestProgramsUnderTheirLists' ./test/egress

audits: build ## kill the agent twenty times under changes, each of which must have its line in the audit trail
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_AUDIT_KILLS=20 $(GO) test -timeout 30m -count=1 -v -run TestNoAcknowledgedChange ./test/audit

board: build ## kill agent and keeper fifty times while programs use the board
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_BOARD_KILLS=50 $(GO) test -timeout 30m -count=1 -v -run TestTheBoardWhileAgentAndKeeperDie ./test/node

overlay-stages: build ## the agent dies at every stage of a task on overlay networks
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_OVERLAY_STAGES=all $(GO) test -timeout 60m -count=1 -v -run 'StageOfAnOverlay' ./test/swarm

e2e-hub: build ## kill hubs and members of their etcd a hundred times, and cut a hub's power
	LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_HUB_KILLS=100 LONGSHORE_HUB_CUTS=20 $(GO) test -p 1 -timeout 2h -count=1 -v -run 'Die|PowerIsCut' ./test/hub

##@ Attacks

attack: build weakened ## the attack suite with long rounds
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_WEAK_BIN=$(CURDIR)/bin/weakened LONGSHORE_ATTACK_ROUNDS=20 $(GO) test -timeout 60m -count=1 -v ./test/attack ./test/attack/escape

exchanges: build weakened ## exchange each workload's path for a link while it is used, a thousand times
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_EXCHANGES=1000 $(GO) test -p 1 -timeout 3h -count=1 -v -run 'Exchanges' ./internal/beneath ./internal/guest ./internal/keeper/stdio ./test/cri ./test/mesos ./test/nomad

seizures: ## a thousand execs and starts beside an attacker that traces new processes
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_SEIZE_ROUNDS=1000 $(GO) test -p 1 -timeout 1h -count=1 -v -run NotInside ./internal/runtime/native ./internal/ocicli

##@ Kubernetes

e2e-cri: build ## critest (CRITEST=its binary), or containerd's cases (CONTAINERD_INTEGRATION=)
	hack/deps.sh test
	PATH="$$(hack/go.sh):$$PATH" test/e2e/cri/run.sh

e2e-cri2017: build ## crictl and critest of 2017 (CRICTL2017=, CRITEST2017=)
	hack/deps.sh test
	PATH="$$(hack/go.sh):$$PATH" CRITEST= CONTAINERD_INTEGRATION= test/e2e/cri/run.sh
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin CRICTL2017=$${CRICTL2017:-} $(GO) test -count=1 -timeout 15m -v -run 'Crictl|2017|Argdata' ./test/cri

e2e-kubelet: build ## the real kubelet with static pods on the agent
	hack/deps.sh test
	PATH="$$(hack/go.sh):$$PATH" test/e2e/kubelet/run.sh

e2e-cluster: build ## a Kubernetes cluster of two nodes, and a hundred checks (CHECKS=, E2E_TEST=)
	hack/deps.sh test
	PATH="$$(hack/go.sh):$$PATH" test/e2e/cluster/run.sh

##@ Nomad and Mesos

e2e-nomad: build ## a real Nomad (NOMAD=its binary; DOCKERD=, NOMAD_BEFORE=, DEVICE_PLUGIN=)
	hack/deps.sh test
	cd test/e2e/nomad/csi && CGO_ENABLED=0 $(GO) build -mod=mod -o $(CURDIR)/bin/test/csi .
	CSI_PLUGIN=$(CURDIR)/bin/test/csi CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin $(GO) test -p 1 -count=1 -timeout 45m -v ./test/e2e/nomad

e2e-nomad-recover: build ## e2e-nomad's kill tests, each case twenty times
	hack/deps.sh test
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin RECOVER_ROUNDS=20 $(GO) test -p 1 -count=1 -timeout 3h -v -run 'TasksOutlive|NobodyCanKnow' ./test/e2e/nomad

e2e-nomad-vm: build ## a real Nomad on cgroup v2, in QEMU (NOMAD=its binary; RUN=)
	hack/deps.sh vm
	LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_VM_RUN=$${RUN:-'^(TestJobsOfEveryKind|TestATaskGetsWhatItsJobSays|TestAServiceFromPullToStop)$$'} LONGSHORE_VM_TEST_TIMEOUT=55m LONGSHORE_TEST_PATIENCE=10 hack/vm.sh test/e2e/nomad

e2e-mesos: build ## Mesos' own tools (MESOS_CLI=, MESOS_EXPORTER=)
	hack/deps.sh test
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin $(GO) test -p 1 -count=1 -timeout 30m -v ./test/e2e/mesos

e2e-mesosgo: build ## mesos-go drives the agent's Mesos API, in JSON and in protobuf
	hack/deps.sh test
	cd test/e2e/mesosgo && CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin PATH="$$($(CURDIR)/hack/go.sh):$$PATH" go test -mod=mod -count=1 -v -timeout 15m .

##@ Swarm

e2e-swarm: build ## Debian's dockerd as the manager of our worker (SUITE=forky for dockerd 28.5, RUN=)
	hack/dockerd.sh .cache/docker$(addprefix -,$(SUITE)) $(SUITE)
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DOCKER_DIR=$(CURDIR)/.cache/docker$(addprefix -,$(SUITE)) LONGSHORE_TEST_PATIENCE=$${LONGSHORE_TEST_PATIENCE:-5} $(GO) test -p 1 -parallel 6 -count=1 -timeout 45m -v $(if $(RUN),-run $(RUN)) ./test/e2e/swarm

e2e-swarm-vm: build ## overlay networks beside a dockerd that balances and encrypts, in QEMU (RUN=)
	hack/deps.sh vm
	hack/dockerd.sh .cache/docker
	LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DOCKER_DIR=$(CURDIR)/.cache/docker LONGSHORE_VM_RUN=$${RUN:-Dockerds} LONGSHORE_VM_TEST_TIMEOUT=55m LONGSHORE_VM_TEST_PARALLEL=1 hack/vm.sh test/e2e/swarm
	LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DOCKER_DIR=$(CURDIR)/.cache/docker GOFLAGS=-mod=mod LONGSHORE_VM_RUN=$${RUN:-EncryptedNetworks} hack/vm.sh test/e2e/swarmkit

e2e-swarmkit: build ## moby/swarmkit's own manager, with Debian's dockerd as another worker (RUN=)
	hack/deps.sh test
	docker=$(CURDIR)/.cache/docker; hack/dockerd.sh $$docker || docker=; LONGSHORE_DOCKER_DIR=$$docker PATH="$$(hack/go.sh):$$PATH" test/e2e/swarmkit/run.sh

e2e-gossip: ## our gossip beside the networkdb of docker 28 and of moby's newest tag (RUN=)
	PATH="$$(hack/go.sh):$$PATH" test/e2e/gossip/run.sh

##@ Kata

e2e-kata: build ## Kata's own shim, under containerd, drives longshore-guest (KATA_SHIM=, RUN=)
	hack/deps.sh test
	PATH="$$(hack/go.sh):$$PATH" test/e2e/kata/run.sh

e2e-kata-client: build ## Kata's own agent client makes every call (KATA_SOURCE=a checkout, COUNT=)
	hack/deps.sh test
	PATH="$$(hack/go.sh):$$PATH" test/e2e/kata/client/run.sh

e2e-kata-vm: build ## longshore-guest as the first process of QEMU guests (KATA_SHIM=, KATA_SOURCE=)
	hack/deps.sh vm
	LONGSHORE_BIN=$(CURDIR)/bin hack/vm.sh kata

e2e-kata-stress: build ## a gigabyte of streams, an exec storm and kills under longshore-guest
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_KATA_STRESS=1 $(GO) test -p 1 -timeout 1h -count=1 -v -run 'Gigabyte|ExecStorm|FiftyWaiters|CannotBeKilled|BlocksNobody|UnderLoad' ./test/kata

e2e-kata-figures: build ## file size, start, memory and speed of longshore-guest in QEMU
	hack/deps.sh vm
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o bin/bench/ ./test/bench/bareagent
	LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_KATA_FIGURES=1 LONGSHORE_VM_RUN='^TestFigures$$' LONGSHORE_VM_VERBOSE=1 hack/vm.sh test/kata

##@ Other clients

e2e-oci: build ## OCI's validation suite against longshore oci and runc (RUNTIME_TOOLS=its checkout)
	hack/deps.sh test
	PATH="$$(hack/go.sh):$$PATH" test/e2e/oci/run.sh

e2e-ui: build ## the web page in Debian's headless Chromium: checks, pictures, frames (PICTURES=a directory)
	hack/deps.sh browser
	cd test/ui/browser && npm ci --ignore-scripts --no-fund --no-audit
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_UI_PICTURES=$(PICTURES) $(GO) test -count=1 -timeout 20m -v ./test/ui

e2e-cli: build ## lines and templates that people type from memory, to longshore, podman (PODMAN=) and dockerd 28
	hack/deps.sh test
	docker=$(CURDIR)/.cache/docker-forky; hack/dockerd.sh $$docker forky || docker=; \
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DOCKER_DIR=$$docker PODMAN=$${PODMAN:-podman} LONGSHORE_TEST_PATIENCE=$${LONGSHORE_TEST_PATIENCE:-5} $(GO) test -count=1 -timeout 45m -v ./test/tour

e2e-docker: build ## clients of Docker's API on the node, and the suites of MOBY_TESTS=, CLI_E2E= … (RUN=)
	hack/deps.sh test
	docker=$(CURDIR)/.cache/docker; hack/dockerd.sh $$docker || docker=; \
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_TEST_PARALLEL=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DOCKER_DIR=$$docker $(GO) test -parallel 3 -count=1 -timeout 10m -v $(if $(RUN),-run $(RUN)) ./test/dockerclients
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin $(GO) test -p 1 -count=1 -timeout 2h -v $(if $(RUN),-run $(RUN)) ./test/e2e/docker

e2e-dockerclients: build ## docker's command line 29, compose 5 and other clients that are Go modules, on the node (RUN=)
	hack/deps.sh test
	PATH="$$(hack/go.sh):$$PATH" test/e2e/dockerclients/build.sh .cache/dockerclients all
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_TEST_PARALLEL=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DOCKER_DIR=$(CURDIR)/.cache/dockerclients $(GO) test -parallel 3 -count=1 -timeout 10m -v -run $(or $(RUN),'^Test(Docker[RKCS]|Dev|Traefik)') ./test/dockerclients
	cd test/e2e/dockerclients && CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_TEST_PARALLEL=1 LONGSHORE_BIN=$(CURDIR)/bin PATH="$$($(CURDIR)/hack/go.sh):$$PATH" go test -mod=mod -parallel 3 -count=1 -timeout 10m -v $(if $(RUN),-run $(RUN)) .

e2e-docker-beside: build ## the same 880 requests to dockerd 28 and to the Docker face, answers compared (SCENE=)
	hack/deps.sh test
	hack/dockerd.sh $(CURDIR)/.cache/docker-forky forky
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DOCKER_DIR=$(CURDIR)/.cache/docker-forky LONGSHORE_BESIDE_SCENE=$(SCENE) LONGSHORE_TEST_PATIENCE=$${LONGSHORE_TEST_PATIENCE:-5} $(GO) test -count=1 -timeout 20m -v ./test/docker

e2e-servers: build ## Debian's nginx, Redis and PostgreSQL on one network, under kills of the agent
	hack/deps.sh test
	hack/servers.sh .cache/servers
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_SERVERS_DIR=$(CURDIR)/.cache/servers LONGSHORE_TEST_PATIENCE=$${LONGSHORE_TEST_PATIENCE:-5} $(GO) test -count=1 -timeout 30m -v ./test/e2e/servers

##@ Other machines, and everything

vm-test: build ## the root tests in QEMU on cgroup v2
	hack/deps.sh vm
	hack/vm.sh

vm-kube: build ## kubelet, kubeadm, a cluster's rights, limits and figures, and critest on cgroup v2, in QEMU (KUBE_PROGRAMS=, CRITEST=, RUN=)
	hack/deps.sh vm
	LONGSHORE_BIN=$(CURDIR)/bin KUBE_PROGRAMS=$(or $(KUBE_PROGRAMS),$(CURDIR)/.cache/e2e-cluster) LONGSHORE_VM_MEMORY=6G LONGSHORE_VM_SWAP=1G LONGSHORE_CLUSTER_CHECKS=$${CHECKS:-'^(rights|resize|figures)/'} LONGSHORE_VM_RUN=$${RUN:-'^(TestMemoryQoS|TestStaticPods|TestCluster|TestKubeadm)$$'} LONGSHORE_VM_TEST_TIMEOUT=60m LONGSHORE_VM_TIMEOUT=10800 LONGSHORE_TEST_PATIENCE=10 hack/vm.sh test/e2e/kubelet test/e2e/cluster $(if $(CRITEST),test/e2e/cri)

vm-conformance: build ## 45 of Kubernetes' NodeConformance specs on cgroup v2, in QEMU (KUBE_PROGRAMS=, FOCUS=, WORKERS=)
	hack/deps.sh vm
	LONGSHORE_BIN=$(CURDIR)/bin KUBE_PROGRAMS=$(or $(KUBE_PROGRAMS),$(CURDIR)/.cache/e2e-cluster) LONGSHORE_VM_MEMORY=6G LONGSHORE_E2E_FOCUS="$${FOCUS:-$$(paste -sd'|' hack/vm/conformance.txt)}" LONGSHORE_E2E_WORKERS=$${WORKERS:-6} LONGSHORE_VM_RUN='^TestSuite$$' LONGSHORE_VM_TEST_TIMEOUT=90m LONGSHORE_VM_TIMEOUT=7200 LONGSHORE_TEST_PATIENCE=20 hack/vm.sh test/e2e/cluster

vm-systemd: build ## the agent as a unit of systemd, in QEMU
	hack/deps.sh vm
	LONGSHORE_VM_TEST_TIMEOUT=$${LONGSHORE_VM_TEST_TIMEOUT:-60m} LONGSHORE_VM_TIMEOUT=$${LONGSHORE_VM_TIMEOUT:-4200} hack/vm.sh systemd

vm-profiles: build ## AppArmor's default profile and SELinux' labels, in QEMU guests
	hack/deps.sh vm
	hack/vm.sh profiles

vm-oci: build ## Podman, dockerd and containerd with longshore-oci and systemd's driver on cgroup v2, in QEMU
	hack/deps.sh vm
	hack/dockerd.sh .cache/docker
	LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DOCKER_DIR=$(CURDIR)/.cache/docker hack/vm.sh systemd test/oci

vm-powercut: build ## cut the power of a QEMU guest twenty times in the middle of its work
	hack/deps.sh vm
	hack/vm.sh powercut 20

vm-services: build ## reboot a node with twelve services twenty times and cut its power twenty times, in QEMU (N=)
	hack/deps.sh vm
	hack/vm.sh services $(or $(N),20)

root-parents: build weakened ## the root tests on a hardened and a loosened host (KINDS=, PACKAGES=, RUN=)
	for kind in $(or $(KINDS),hardened loosened); do CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_TEST_PARALLEL=1 LONGSHORE_TEST_HOST=$$kind LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_WEAK_BIN=$(CURDIR)/bin/weakened $(GO) test -p 1 -parallel 3 -count=1 -timeout 30m $(if $(RUN),-run $(RUN)) $(or $(PACKAGES),$$(grep -rl --include='*_root_test.go' --exclude-dir=e2e . internal test | xargs -n1 dirname | sort -u | sed 's|^|./|')) || exit; done

test-long: root-parents bench-network e2e-cli e2e-ui e2e-dockerclients e2e-servers programs chaos kills sleeps upgrades overlay-stages streams removals damages exchanges seizures egress audits board e2e-hub e2e-kata-stress e2e-swarm e2e-swarmkit e2e-swarm-vm e2e-gossip vm-test vm-systemd vm-oci vm-profiles vm-powercut vm-services release-check release-arm64 fuzz ## the targets that do not fit into test

programs: build ## Debian's programs, unmodified, with user namespaces by default and without
	hack/programs.sh .cache/programs
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_PROGRAMS_DIR=$(CURDIR)/.cache/programs LONGSHORE_TEST_PATIENCE=$${LONGSHORE_TEST_PATIENCE:-5} $(GO) test -count=1 -v -timeout 30m -run 'TestProgramsInUserNamespaces' ./test/node

##@ Benchmarks

bench: build ## speed and memory of the main path, in one run; beside peers it writes docs/performance.md (ROUNDS=, RESULT=)
	hack/sleepers.sh .cache/sleepers || [ $$? -eq 75 ]
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o bin/bench/ ./test/bench/bareagent
	LONGSHORE_SLEEPERS_DIR=$(CURDIR)/.cache/sleepers $(GO) run ./test/bench -rounds $(or $(ROUNDS),3) -samples $(or $(RESULT),.cache/bench.json) -report docs/performance.md

bench-compare: ## the medians of two results of bench side by side (OLD=, NEW=)
	$(GO) run ./test/bench -differences $(OLD) $(NEW)

bench-sleep: build ## programs that sleep, and their first answer beside that of the same program awake
	hack/sleepers.sh .cache/sleepers || [ $$? -eq 75 ]
	LONGSHORE_SLEEPERS_DIR=$(CURDIR)/.cache/sleepers $(GO) run ./test/bench -server longshore -steps sleep

bench-grants: build ## programs with grants, native and WebAssembly, beside an ordinary container and crun
	$(GO) run ./test/bench -server longshore -steps grants

bench-cli: build ## the command line beside podman and docker (PODMAN=, CONTAINERD=)
	hack/dockerd.sh .cache/docker
	LONGSHORE_DOCKER_DIR=$(CURDIR)/.cache/docker PODMAN=$${PODMAN:-podman} $(GO) run ./test/bench -server longshore -steps cli

bench-network: ## the cost of a sandbox's network, a published port and a large overlay
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_NETWORK_PACE=1 $(GO) test -count=1 -v -run 'Pace$$' ./internal/network

bench-overlay: build bench-network ## overlay networks beside a dockerd's, both workers of one Swarm (ROUNDS=)
	hack/dockerd.sh .cache/docker
	CGO_ENABLED=0 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DOCKER_DIR=$(CURDIR)/.cache/docker LONGSHORE_TEST_PATIENCE=$${LONGSHORE_TEST_PATIENCE:-5} LONGSHORE_BENCH_ROUNDS=$${ROUNDS:-10} $(GO) test -count=1 -timeout 1h -v -run 'TestBench' ./test/e2e/swarm

bench-gossip: build ## our node among 200 others with 2000 endpoints on one overlay network
	hack/dockerd.sh .cache/docker
	CGO_ENABLED=0 LONGSHORE_SWARM_CROWD=1 LONGSHORE_ROOT_TESTS=1 LONGSHORE_BIN=$(CURDIR)/bin LONGSHORE_DOCKER_DIR=$(CURDIR)/.cache/docker LONGSHORE_TEST_PATIENCE=$${LONGSHORE_TEST_PATIENCE:-5} $(GO) test -count=1 -timeout 20m -v -run 'TestACrowd' ./test/e2e/swarm

bench-hub: ## the hub beside swarmkit's dispatcher, with the same clients (NODES=100,1000,10000)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o bin/bench/ ./test/bench/hubserver
	CGO_ENABLED=0 $(GO) -C test/bench/swarmkit build -trimpath -ldflags='-s -w' -o "$(CURDIR)/bin/bench/swarmkit-dispatcher" ./dispatcher
	HUBSERVER=bin/bench/hubserver HUBSERVER_SWARMKIT=bin/bench/swarmkit-dispatcher $(GO) run ./test/bench -steps hub $(if $(NODES),-nodes $(NODES))
