package arch_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/longshore/longshore"

// door is one foreign family that may be imported directly from a few places
// only, so that its types go no further.
type door struct {
	family  string   // import path prefix
	rooms   []string // package prefixes below the module that may import it
	because string
}

var doors = []door{
	{"k8s.io/", []string{"internal/face/cri", "test/"}, "Kubernetes types stay in face/cri"},
	{"github.com/containerd/containerd/", []string{"internal/image"}, "containerd's packages stay in image"},
	{"github.com/containernetworking/", []string{"internal/network/cni", "internal/network/plugins"}, "CNI stays in its driver"},
	{"github.com/google/nftables", []string{"internal/network/nft"}, "nftables stays in network/nft"},
	{"github.com/hashicorp/", []string{"internal/face/nomad", "test/"}, "Nomad types stay in face/nomad"},
	{"github.com/containerd/ttrpc", []string{"internal/face/kata", "internal/face/cri/nri", "api/kata", "test/bench"}, "ttrpc is Kata's and NRI's"},
	{"go.etcd.io/bbolt", []string{"internal/dbfile", "internal/state/bolt", "internal/image"}, "bbolt stays in dbfile and those who keep records by it"},
	{"github.com/tetratelabs/wazero", []string{"internal/grant/wasm"}, "wasm stays in grant/wasm"},
	{"go.etcd.io/etcd", []string{"internal/hub/store/etcd"}, "etcd is one database of the hub's store"},
	{"go.uber.org/zap", []string{"internal/hub/store/etcd"}, "we log by log/slog; etcd does not"},
	{"github.com/moby/moby/api", []string{"internal/hub/engineapi"}, "Docker's API is answered in hub/engineapi"},
	{"github.com/moby/moby/v2", []string{"internal/face/swarm/gossip/networkdb"}, "Docker's gossip is spoken in face/swarm/gossip/networkdb"},
	{"github.com/compose-spec/", []string{"internal/hub/compose", "internal/cli/composefile/read"}, "Compose files end as declarations, or as requests of the control API"},
	{"github.com/sirupsen/logrus", []string{"internal/obs"}, "we log by log/slog"},
	{"github.com/open-policy-agent/", []string{"internal/guest/policy/rego"}, "Rego stays in longshore-policy"},
	{"go.opentelemetry.io/", []string{"internal/traces", "test/"}, "spans are exported in traces; others use span"},
	{"github.com/sigstore/", []string{"internal/image/trust/sigstore"}, "sigstore stays in longshore-verify"},
	{"github.com/container-storage-interface/", []string{"internal/face/swarm/csi", "test/"}, "CSI is spoken in face/swarm/csi"},
	{"github.com/spf13/cobra", []string{"internal/cli", "internal/hub/command"}, "commands live in cli, the hub's in hub/command"},
	{"google.golang.org/grpc", []string{"internal/face", "internal/control", "internal/cli", "internal/obs", "internal/hub", "internal/ui", "internal/traces", "api/", "test/"}, "gRPC ends at the faces, and at the hub"},
}

// wall says that a package and what is below it must not depend on others of
// ours, not even indirectly.
type wall struct {
	room    string
	forbids []string
	because string
}

// drivers are the packages of kinds of networks.
var drivers = []string{"internal/network/bridge", "internal/network/user", "internal/network/cni", "internal/network/overlay"}

var walls = []wall{
	{"internal/core", []string{"internal/", "api/"}, "nouns know nobody"},
	{"internal/engine", []string{
		"internal/face", "internal/control", "internal/cli", "internal/agent", "internal/state", "internal/image",
		"internal/network", "internal/runtime", "internal/keeper", "internal/cgroup", "internal/pin", "internal/config", "api/",
	}, "verbs know nouns and ports only"},
	{"internal/image", []string{"internal/engine", "internal/face", "internal/network", "internal/runtime", "api/"}, "an implementation knows nouns"},
	{"internal/network", []string{"internal/engine", "internal/face", "internal/image", "internal/runtime", "api/"}, "an implementation knows nouns"},
	{"internal/network/bridge", []string{"internal/network/user", "internal/network/cni", "internal/network/overlay", "internal/network/vxlan", "internal/network/ingress"}, "a driver knows no other"},
	{"internal/network/user", []string{"internal/network/cni", "internal/network/overlay", "internal/network/vxlan", "internal/network/ingress"}, "of the drivers, user knows bridges alone"},
	{"internal/network/cni", []string{"internal/network/bridge", "internal/network/user", "internal/network/overlay", "internal/network/vxlan", "internal/network/ingress", "internal/network/names"}, "a driver knows no other"},
	{"internal/network/overlay", []string{"internal/network/bridge", "internal/network/user", "internal/network/cni"}, "a driver knows no other"},
	{"internal/network/vxlan", append(drivers, "internal/network/ingress", "internal/network/names"), "a leaf knows no driver"},
	{"internal/network/ingress", append(drivers, "internal/network/names"), "a leaf knows no driver"},
	{"internal/network/kernel", append(drivers, "internal/network/vxlan", "internal/network/ingress", "internal/network/names", "internal/network/nft"), "a leaf knows no driver"},
	{"internal/network/netconf", append(drivers, "internal/network/vxlan", "internal/network/ingress", "internal/network/names", "internal/network/nft"), "a leaf knows no driver"},
	{"internal/network/nft", append(drivers, "internal/network/vxlan", "internal/network/ingress", "internal/network/names"), "a leaf knows no driver"},
	{"internal/network/names", append(drivers, "internal/network/vxlan", "internal/network/ingress", "internal/network/nft"), "a leaf knows no driver"},
	{"internal/runtime", []string{"internal/engine", "internal/face", "internal/image", "internal/network", "api/"}, "an implementation knows nouns"},
	{"internal/runtime/native/compile", []string{"internal/keeper", "internal/cgroup", "internal/pin", "internal/rootfs", "internal/atomicfile"}, "a compiler of plans executes and stores nothing"},
	{"internal/keeper", []string{"internal/engine", "internal/face", "internal/image", "internal/network", "api/"}, "an implementation knows nouns"},
	{"internal/cgroup", []string{"internal/engine", "internal/face", "api/"}, "an implementation knows nouns"},
	{"internal/state", []string{"internal/engine", "internal/face", "api/"}, "an implementation knows nouns"},
	{"internal/ocispec", []string{"internal/engine", "internal/face", "internal/keeper", "api/"}, "building specs is pure"},
	{"internal/grant", []string{
		"internal/core", "internal/engine", "internal/face", "internal/control", "internal/cli", "internal/agent", "internal/image", "internal/keeper", "api/",
	}, "what a program is given is decided without looking at the node"},
	{"internal/ocicli", []string{
		"internal/engine", "internal/face", "internal/control", "internal/cli", "internal/agent", "internal/state", "internal/image", "internal/network",
		"internal/keeper/server", "internal/keeper/nest", "api/",
	}, "the OCI command line works without agent and keeper"},
	{"internal/face/mesos/api", []string{"internal/core", "internal/engine", "internal/face"}, "the wire form of Mesos' API knows no objects"},
	{"internal/face/mesos/auth", []string{"internal/core", "internal/engine"}, "who may call is decided by the call alone"},
	{"internal/face/mesos/translate", []string{"internal/engine"}, "a launch is translated before the engine is asked"},
	{"internal/face/mesos/view", []string{"internal/engine"}, "what is shown is given"},
	{"internal/face/mesos/sandbox", []string{"internal/engine"}, "directories know no verbs"},
	{"internal/face", []string{"internal/image", "internal/network", "internal/runtime", "internal/state", "internal/keeper", "internal/agent", "internal/control"}, "faces go through the engine"},
	{"internal/solo/translate", []string{"internal/engine", "internal/image", "internal/network", "internal/runtime", "internal/face"}, "a request is translated before the engine is asked"},
	{"internal/control/view", []string{"internal/engine", "internal/image", "internal/network", "internal/runtime", "internal/face"}, "an answer is made of its arguments"},
	{"internal/control/access", []string{"internal/engine", "internal/image", "internal/network", "internal/runtime", "internal/face"}, "a call is admitted by its name and its socket"},
	{"internal/ui", []string{
		"internal/engine", "internal/image", "internal/network", "internal/runtime", "internal/keeper", "internal/state", "internal/face", "internal/cli", "internal/agent",
	}, "the page is a client of the control API"},
	{"internal/inroot", []string{"internal/engine", "internal/image", "internal/network", "internal/runtime", "internal/face", "api/"}, "a container's root is found by its record"},
	{"internal/solo", []string{"internal/face", "internal/control", "internal/cli", "internal/agent", "internal/image", "internal/network", "internal/runtime"}, "the verbs on single containers know no protocol"},
	{"internal/derive", []string{"internal/engine", "internal/face", "internal/image", "api/"}, "configs are made of configs"},
	{"internal/attach", []string{"internal/face", "internal/control", "internal/agent", "api/"}, "a session with a process knows no protocol"},
	{"internal/health", []string{"internal/face", "internal/control", "internal/agent", "api/"}, "faces run health checks, which know no face"},
	{"internal/dockerhttp", []string{"internal/core", "internal/engine", "internal/face", "internal/control", "internal/hub", "api/"}, "the form of Docker's API knows no objects"},
	{"internal/dockertypes", []string{"internal/", "api/"}, "documents know nobody"},
	{"internal/hub", []string{
		"internal/core", "internal/engine", "internal/face", "internal/control", "internal/cli", "internal/agent", "internal/state", "internal/image",
		"internal/network", "internal/runtime", "internal/keeper",
	}, "the hub runs nothing"},
}

// pkg is one line of go list: a package of ours, what it imports and what it
// depends on.
type pkg struct {
	path          string
	imports, deps []string
}

// listed has the result of listPackages for all tests, because go list takes a second.
var listed = sync.OnceValues(listPackages)

// packages returns all packages of the module.
func packages(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := listed()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	if len(pkgs) < 10 {
		t.Fatalf("go list found %d packages only", len(pkgs))
	}
	return pkgs
}

func listPackages() ([]pkg, error) {
	cmd := exec.CommandContext(context.Background(), "go", "list", "-f", `{{.ImportPath}}|{{join .Imports ","}}|{{join .Deps ","}}`, module+"/...")
	out, err := cmd.Output()
	var pkgs []pkg
	for line := range strings.Lines(string(out)) {
		part := strings.Split(strings.TrimSpace(line), "|")
		pkgs = append(pkgs, pkg{part[0], strings.Split(part[1], ","), strings.Split(part[2], ",")})
	}
	return pkgs, err
}

// below reports whether path is the package room or stands below it. Test
// support packages (fooTest) beside a room are not in it.
func below(path, room string) bool {
	rel, ok := strings.CutPrefix(path, module+"/")
	if !ok {
		return false
	}
	return rel == strings.TrimSuffix(room, "/") || strings.HasPrefix(rel, strings.TrimSuffix(room, "/")+"/")
}

// testSupport reports whether a package is for tests alone: one named so, and what
// is below that.
func testSupport(path string) bool {
	return strings.HasSuffix(path, "test") || strings.Contains(path, "test/")
}

func TestForeignFamiliesEnterByTheirDoor(t *testing.T) {
	for _, p := range packages(t) {
		for _, imp := range p.imports {
			for _, d := range doors {
				if strings.HasPrefix(imp, d.family) && !anyBelow(p.path, d.rooms) {
					t.Errorf("%s imports %s: %s", p.path, imp, d.because)
				}
			}
		}
	}
}

func anyBelow(path string, rooms []string) bool {
	for _, r := range rooms {
		if below(path, r) {
			return true
		}
	}
	return false
}

func TestLayersHold(t *testing.T) {
	for _, p := range packages(t) {
		if testSupport(p.path) {
			continue
		}
		for _, w := range walls {
			if !below(p.path, w.room) {
				continue
			}
			for _, dep := range p.deps {
				for _, f := range w.forbids {
					if below(dep, f) && !below(dep, w.room) && dep != p.path {
						t.Errorf("%s depends on %s: %s", p.path, dep, w.because)
					}
				}
			}
		}
	}
}

func TestNothingDependsOnTestSupport(t *testing.T) {
	for _, p := range packages(t) {
		if testSupport(p.path) || below(p.path, "test") {
			continue
		}
		for _, imp := range p.imports {
			if strings.HasPrefix(imp, module) && testSupport(imp) {
				t.Errorf("%s imports the test package %s", p.path, imp)
			}
		}
	}
}

// only are families of libraries that one program links, and why no other does.
var only = []struct{ family, program, because string }{
	{"github.com/sigstore/", "cmd/longshore-verify", "what sigstore's libraries set up when a program starts would be in every agent and every worker"},
	{"github.com/open-policy-agent/", "cmd/longshore-policy", "it is larger than a guest's whole agent, where files are memory"},
	{"go.etcd.io/etcd", "cmd/longshore-hub", "a node needs no database of a fleet"},
	{"github.com/compose-spec/compose-go/v2/cli", "cmd/longshore-compose", "its schema takes 5 ms and 2 MB of each start of a program that has it"},
}

// TestOneProgramLinksThem keeps such libraries out of all other programs.
func TestOneProgramLinksThem(t *testing.T) {
	for _, p := range packages(t) {
		for _, o := range only {
			if !below(p.path, "cmd") || p.path == module+"/"+o.program {
				continue
			}
			for _, dep := range p.deps {
				if strings.HasPrefix(dep, o.family) {
					t.Errorf("%s depends on %s: %s", p.path, dep, o.because)
				}
			}
		}
	}
}

// linksEtcd are the packages that may depend on etcd; no other one does, not even indirectly: its 500 packages are most of what
// building and linking a test of the hub would take.
var linksEtcd = []string{"internal/hub/store/etcd", "internal/hub/command", "cmd/longshore-hub", "test"}

// TestTheHubKnowsNoEtcd keeps etcd out of all packages of the hub but the one that opens it and the command line.
func TestTheHubKnowsNoEtcd(t *testing.T) {
	for _, p := range packages(t) {
		for _, dep := range p.deps {
			if strings.HasPrefix(dep, "go.etcd.io/etcd") && !anyBelow(p.path, linksEtcd) {
				t.Errorf("%s depends on %s: a store is opened by who makes the program", p.path, dep)
				break
			}
		}
	}
}

// TestFuzzingBuildsNoEtcd: a program that fuzzes is built with instruments, all that it links, in each run of CI.
func TestFuzzingBuildsNoEtcd(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-test", "-f", `{{.ImportPath}}|{{.Dir}}|{{join .TestGoFiles ","}},{{join .XTestGoFiles ","}}|{{join .Deps ","}}`, module+"/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps, fuzzing := map[string]string{}, []string{}
	for line := range strings.Lines(string(out)) {
		part := strings.Split(strings.TrimSpace(line), "|")
		deps[part[0]] = part[3]
		for _, name := range strings.Split(part[2], ",") {
			if name == "" || strings.Contains(part[0], " [") {
				continue
			}
			data, err := os.ReadFile(filepath.Join(part[1], name))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(data), "\nfunc Fuzz") {
				fuzzing = append(fuzzing, part[0])
				break
			}
		}
	}
	if len(fuzzing) < 10 {
		t.Fatalf("%d packages have a fuzz target: the test looks in the wrong place", len(fuzzing))
	}
	for _, p := range fuzzing {
		if all, ok := deps[p+".test"]; !ok || strings.Contains(all, "go.etcd.io/etcd") {
			t.Errorf("the tests of %s, which has a fuzz target, depend on etcd, or go list does not know them", p)
		}
	}
}
