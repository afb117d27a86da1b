package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// The programs under test and in the containers, which run.sh builds.
const (
	kubeletEnv = "LONGSHORE_KUBELET"
	subjectEnv = "LONGSHORE_SUBJECT"
	// keepEnv is a directory for the logs of a test that failed.
	keepEnv = "LONGSHORE_E2E_LOGS"
)

// busybox is the image of the tests' containers. The agent finds the tests'
// registry by a catch-all mirror.
const busybox = "registry.example/busybox:1"

const nodeIP = "198.51.100.1"

// node is a machine with an agent and a kubelet.
type node struct {
	*nodetest.Node
	Registry *imagetest.Registry

	t         *testing.T
	bin       string
	manifests string
	root      string // of the kubelet
	logs      string // pods' logs
	cgroup    string // above kubepods, below the root of each hierarchy
	own       string // the kubelet's cgroup
	pki       pki
	client    *http.Client
	config    map[string]any
	flags     []string // of the kubelet, besides the usual ones
	cmd       *exec.Cmd
	log       *os.File
}

// options say how the node is to be.
type options struct {
	config   map[string]any   // over the kubelet's configuration
	agent    string           // TOML after the agent's configuration
	mount    func(dir string) // before anything starts
	prepared func(n *node)    // before the kubelet starts
}

// isolated runs body on a machine of its own, or skips without the programs.
func isolated(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	for _, env := range []string{kubeletEnv, subjectEnv} {
		if _, err := os.Stat(os.Getenv(env)); err != nil {
			t.Skipf("%s names no program: make e2e-kubelet builds them", env)
		}
	}
	roottest.Run(t, body)
}

// start runs an agent and a kubelet and waits until both serve.
func start(t *testing.T, o options) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "longshore-kubelet-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { clear(t, dir) })
	prepare(t, dir)
	if o.mount != nil {
		o.mount(dir)
	}
	n := &node{
		t: t, bin: os.Getenv(kubeletEnv), manifests: filepath.Join(dir, "manifests"), root: filepath.Join(dir, "kubelet"), logs: filepath.Join(dir, "pods"),
		cgroup: cgroup(t), own: cgroup(t), pki: newPKI(t, filepath.Join(dir, "pki")), Registry: imagetest.NewRegistry(t),
	}
	for _, d := range []string{n.manifests, n.root, n.logs, filepath.Join(dir, "certs.d/_default")} {
		mkdir(t, d)
	}
	write(t, filepath.Join(dir, "certs.d/_default/hosts.toml"),
		fmt.Sprintf("[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n", "http://"+n.Registry.Host))
	n.Registry.Push("busybox", "1", image(t))
	n.Node = nodetest.Start(t, nodetest.Options{
		Dir: dir, Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n[network]\nmode = \"builtin\"\n%s", filepath.Join(dir, "certs.d"), o.agent),
	})
	n.client = n.pki.client()
	n.config = n.configuration()
	maps.Copy(n.config, o.config)
	n.log = create(t, filepath.Join(dir, "kubelet.log"))
	if o.prepared != nil {
		o.prepared(n)
	}
	n.kubeletUp()
	t.Cleanup(func() {
		n.kubeletDown(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the kubelet's complaints:\n%s", n.complaints(60))
			if keep := os.Getenv(keepEnv); keep != "" {
				_ = exec.Command("cp", n.log.Name(), filepath.Join(n.Dir, "agent.log"), keep).Run() //nolint:forbidigo // the test is over
			}
		}
	})
	return n
}

// parameters of the kernel that the kubelet demands, below /proc/sys.
var parameters = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// prepare protects this machine from the kubelet: overlays take its writes below /var, and files
// show it the kernel parameters that it demands.
func prepare(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{"/var/lib", "/var/log"} {
		upper, work := filepath.Join(dir, "over"+d, "upper"), filepath.Join(dir, "over"+d, "work")
		mkdir(t, upper)
		mkdir(t, work)
		if err := unix.Mount("overlay", d, "overlay", 0, "lowerdir="+d+",upperdir="+upper+",workdir="+work); err != nil {
			t.Fatalf("overlay on %s: %v", d, err)
		}
	}
	// The kubelet's mounts in its own namespace must appear here.
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	for name, value := range parameters {
		write(t, filepath.Join(dir, filepath.Base(name)), value+"\n")
	}
	// The kubelet takes its node's address from a link.
	for _, args := range [][]string{
		{"link", "add", "node0", "type", "bridge"},
		{"address", "add", nodeIP + "/24", "dev", "node0"},
		{"link", "set", "node0", "up"},
		{"route", "add", "default", "via", "198.51.100.254"},
	} {
		if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
}

// cgroup makes the cgroup that the kubelet demands, in every hierarchy.
func cgroup(t *testing.T) string {
	t.Helper()
	name := roottest.Cgroup(t)
	tops, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		tops = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	for _, top := range tops {
		mkdir(t, filepath.Join(filepath.Dir(top), name))
	}
	return name
}

func (n *node) configuration() map[string]any {
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + filepath.Join(n.State, "cri.sock"),
		"staticPodPath":            n.manifests,
		"fileCheckFrequency":       "1s",
		"podLogsDir":               n.logs,
		"volumePluginDir":          filepath.Join(n.Dir, "plugins"),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               n.cgroup,
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"protectKernelDefaults":    true,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": false},
			"x509":      map[string]any{"clientCAFile": n.pki.ca},
		},
		"authorization":     map[string]any{"mode": "AlwaysAllow"},
		"tlsCertFile":       n.pki.cert,
		"tlsPrivateKeyFile": n.pki.key,
		"featureGates":      map[string]bool{"EventedPLEG": true},
		// The machine's disk and memory are others' business.
		"evictionHard":                map[string]string{"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.inodesFree": "0%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"maxPods":                     110,
		"containerLogMaxSize":         "100Mi",
	}
}

// kubeletUp starts the kubelet and waits until it answers.
func (n *node) kubeletUp() {
	n.t.Helper()
	b, err := json.Marshal(n.config)
	if err != nil {
		n.t.Fatal(err)
	}
	file := filepath.Join(n.Dir, "kubelet.json")
	write(n.t, file, string(b))
	// The parameters are shown to the kubelet alone: a user namespace may not
	// mount a proc of its own where that of the host is covered.
	show := "mount --make-private /proc; "
	for name := range parameters {
		show += fmt.Sprintf("mount --bind %s /proc/sys/%s; ", filepath.Join(n.Dir, filepath.Base(name)), name)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		// The kubelet limits swap only if its own cgroup has memory.swap.max. The root has no such file.
		show += "echo $$ >/sys/fs/cgroup" + n.own + "/cgroup.procs; "
	}
	args := append([]string{
		"--mount", "--propagation", "unchanged", "sh", "-ec", show + `exec "$0" "$@"`, n.bin, "--config=" + file, "--root-dir=" + n.root, "--cert-dir=" + filepath.Join(n.Dir, "pki"),
		"--hostname-override=node", "--node-ip=" + nodeIP, "--v=2",
	}, n.flags...)
	n.cmd = exec.Command("unshare", args...) //nolint:forbidigo // it outlives the contexts of subtests
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	died := make(chan struct{})
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait()
		close(died)
	}(n.cmd)
	nodetest.Eventually(n.t, "the kubelet is healthy", func() bool {
		select {
		case <-died:
			n.t.Fatalf("the kubelet ended:\n%s", n.complaints(30))
		default:
		}
		_, err := n.get(n.t.Context(), "/healthz")
		return err == nil
	})
}

// kubeletDown ends the kubelet and waits until it is gone.
func (n *node) kubeletDown(sig syscall.Signal) {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Signal(sig)
	nodetest.Eventually(n.t, "the kubelet is gone", func() bool { return n.cmd.Process.Signal(syscall.Signal(0)) != nil })
	n.cmd = nil
}

// complaints are the last errors and warnings of the kubelet's log.
func (n *node) complaints(most int) string {
	b, err := os.ReadFile(n.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := slices.DeleteFunc(strings.Split(string(b), "\n"), func(l string) bool { return l == "" || strings.HasPrefix(l, "I") })
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// image has busybox and the subject.
func image(t *testing.T) imagetest.Built {
	t.Helper()
	return imageWith(t, "subject")
}

// imageWith is another image for another name of the subject's.
func imageWith(t *testing.T, name string) imagetest.Built {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	subject, err := os.ReadFile(os.Getenv(subjectEnv))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, imagetest.File{Name: "bin/" + name, Body: subject, Mode: 0o755})
	return imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}}}.Build()
}

// clear unmounts everything below dir and removes it.
func clear(t *testing.T, dir string) {
	t.Helper()
	unmountBelow(t, dir)
	for _, d := range []string{"/var/lib", "/var/log"} {
		_ = unix.Unmount(d, unix.MNT_DETACH)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func (n *node) get(ctx context.Context, path string) ([]byte, error) {
	return fetch(ctx, n.client, "https://"+nodeIP+":10250"+path)
}

func unmountBelow(t *testing.T, dir string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range slices.Backward(strings.Split(string(b), "\n")) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			_ = unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
}
