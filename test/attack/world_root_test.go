package attack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// world is the node under attack, with all its sockets and ports open, and the
// containers and users on it.
type world struct {
	*nodetest.Node
	t      *testing.T
	image  string
	weak   weaken.Defence // the defence that is switched off, "" for none
	self   string         // this program, at a path where every user and container can run it
	secret string         // a file of the host that only root can read
	files  string         // the directory with files that Mesos' commands may name
	pki    *tlsconftest.Authority
	mesos  string // host:port
	metric string // host:port
	docker string // host:port of Docker's API
	inside map[actor]*nodetest.Container
	host   map[string]result // results of the controls of probes
	bin    string            // directory of the binaries
	nomad  *nomadtest.Client // nil until the first job
	jobs   int
	banned *imagetest.Registry // which the node's image policy rejects
	swarm  *swarmWorld         // nil until the first attempt on one
}

// secretText is the content of the host's secret file.
const secretText = "the host's own\n"

// newWorld starts a node; off names the defence to switch off.
func newWorld(t *testing.T, off weaken.Defence) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "longshore-attack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// Other users can pass through /run; a temporary directory may be closed to them.
	public, err := os.MkdirTemp("/run", "attacker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(public) })
	if err := os.Chmod(public, 0o755); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, weak: off, self: filepath.Join(public, "attacker"), secret: filepath.Join(dir, "secret"), inside: map[actor]*nodetest.Container{}, host: map[string]result{}}
	w.pki = tlsconftest.New(t)
	w.mesos, w.metric, w.docker, w.banned = freePort(t), freePort(t), freePort(t), imagetest.NewRegistry(t)
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for path, f := range map[string]struct {
		from string
		mode os.FileMode
	}{w.self: {own, 0o755}, w.secret: {"", 0o600}} {
		text := []byte(secretText)
		if f.from != "" {
			if text, err = os.ReadFile(f.from); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(path, text, f.mode); err != nil {
			t.Fatal(err)
		}
	}
	o := nodetest.Options{Dir: dir, Config: w.config(dir)}
	o.Bin = nodetest.Bin(t)
	if off != "" {
		o.Bin, o.Env = nodetest.Weakened(t), w.env()
	}
	w.bin = o.Bin
	if err := os.Chmod(dir, 0o755); err != nil { // the mode of /run and /var/lib
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o755); err != nil { // the mode of systemd's RuntimeDirectory
		t.Fatal(err)
	}
	// A file system of its own that attempts can fill without affecting others.
	state := filepath.Join(dir, "run")
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=64m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
	ownDevices(t)
	w.Node = nodetest.Start(t, o)
	w.image = w.Busybox(t)
	return w
}

// ownDevices gives the world a /dev of its own, because attempts may change it.
func ownDevices(t *testing.T) {
	t.Helper()
	dev, err := os.MkdirTemp("/run", "dev")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dev, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	for name, number := range map[string][2]uint32{"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "tty": {5, 0}, "kmsg": {1, 11}, "fuse": {10, 229}} {
		path := filepath.Join(dev, name)
		if err := errors.Join(unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(number[0], number[1]))), os.Chmod(path, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if unix.Stat("/dev/userfaultfd", &st) == nil { // its number is another one on each machine
		if err := unix.Mknod(filepath.Join(dev, "userfaultfd"), unix.S_IFCHR|0o600, int(st.Rdev)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pts", "shm", "mqueue"} {
		if err := os.Mkdir(filepath.Join(dev, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/proc/self/fd", filepath.Join(dev, "fd")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dev, "/dev", "", unix.MS_MOVE, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount("/dev", unix.MNT_DETACH) })
}

// config enables every socket and port, with small limits that attempts can reach.
func (w *world) config(dir string) string {
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			w.t.Fatal(err)
		}
		return path
	}
	credentials := write("credentials", "ops longsecret\nlow lowsecret\n")
	acls := write("acls", `{"permissive": false,
"launch_standalone_containers": [{"principals": {"values": ["ops"]}, "users": {"type": "ANY"}}, {"principals": {"values": ["low"]}, "users": {"type": "NONE"}}],
"launch_nested_containers_under_parent_with_user": [{"principals": {"values": ["low"]}, "users": {"type": "ANY"}}],
"launch_nested_containers_as_user": [{"principals": {"values": ["low"]}, "users": {"values": ["nobody"]}}]}`)
	_, port, _ := strings.Cut(w.banned.Host, ":")
	cert, key := w.pki.Issue("node")
	w.files = filepath.Join(dir, "files")
	if err := errors.Join(os.Mkdir(w.files, 0o755), os.Symlink(w.secret, filepath.Join(w.files, "out"))); err != nil {
		w.t.Fatal(err)
	}
	write("files/private", secretText)
	if err := os.Chmod(write("files/public", "everybody's\n"), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "cdi"), 0o755); err != nil {
		w.t.Fatal(err)
	}
	write("cdi/node.json", fmt.Sprintf(`{"cdiVersion": "0.6.0", "kind": "longshore.test/host", "devices": [{"name": "all", "containerEdits": {"mounts": [{"hostPath": %q, "containerPath": "/host", "options": ["bind", "ro"]}]}}]}`, dir))
	return fmt.Sprintf(`cdi_dirs = [%q]
[sleep]
max_bytes = %d
[images]
retries = 0
stall_timeout = "2s"
max_layer_bytes = 16777216
max_layer_entries = 2000
max_concurrent_layers = 2
[images.policy]
rules = [{match = [%q, %q], verdict = "reject"}]
[face.cri]
log_max_bytes = 1048576
log_max_files = 2
max_streams = 64
max_streams_per_peer = 64
max_streams_unauthenticated = 32
[face.nomad]
enabled = true
[face.swarm]
enabled = true
[face.docker]
enabled = true
socket = %q
tcp = %q
tls_cert = %q
tls_key = %q
tls_client_ca = %q
max_connections = 64
[face.mesos]
enabled = true
listen = %q
cert = %q
key = %q
credentials = %q
acls = %q
fetch_dirs = [%q]
max_connections = 64
max_connections_per_peer = 64
max_unauthenticated = 32
[metrics]
listen = %q
cert = %q
key = %q
token_file = %q
`, filepath.Join(dir, "cdi"), sleepLimit, w.banned.Host+"/**", "localhost:"+port+"/**",
		filepath.Join(dir, "docker.sock"), w.docker, cert, key, w.pki.File, w.mesos, cert, key, credentials, acls, w.files, w.metric, cert, key, write("token", "metricstoken"))
}

// container returns the container of an actor inside, started at its first attempt.
func (w *world) container(t *testing.T, a actor) *nodetest.Container {
	t.Helper()
	if c := w.inside[a]; c != nil {
		return c
	}
	name := strings.NewReplacer(" ", "-", ",", "", "_", "-").Replace(strings.ToLower(string(a)))
	cfg := w.PodConfig(name)
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	c := w.RunPod(t, cfg).Run(t, w.attacker("attacker", a))
	w.inside[a] = c
	return c
}

// attacker returns a container for an actor's probes, made as Kubernetes makes it.
func (w *world) attacker(name string, a actor) *runtimeapi.ContainerConfig {
	c := nodetest.ContainerConfig(name, w.image, "/bin/sleep", "100000")
	c.Mounts = []*runtimeapi.Mount{{HostPath: w.self, ContainerPath: "/attacker", Readonly: true}}
	sc := &runtimeapi.LinuxContainerSecurityContext{
		MaskedPaths: ocispec.MaskedPaths(), ReadonlyPaths: ocispec.ReadonlyPaths(),
		NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD},
		Capabilities:     &runtimeapi.Capability{},
		// Kubernetes requests none unless a pod or kubelet's seccompDefault does.
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined},
	}
	switch a {
	case withPtrace:
		sc.Capabilities.AddCapabilities = []string{"SYS_PTRACE"}
	case withoutAdmin:
		sc.Capabilities.AddCapabilities, sc.Capabilities.DropCapabilities = []string{"ALL"}, []string{"SYS_ADMIN"}
	default:
		sc.Seccomp.ProfileType = runtimeapi.SecurityProfile_RuntimeDefault
	}
	c.Linux.SecurityContext = sc
	return c
}

// probe runs a probe in a container.
func (w *world) probe(t *testing.T, c *nodetest.Container, name string, args ...string) result {
	t.Helper()
	r, err := w.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: append([]string{"/attacker", probeArg, name}, args...), Timeout: 60})
	if err != nil {
		return is(unmade, "exec: %v", err)
	}
	if r.GetExitCode() != 0 {
		return is(unmade, "the probe ended with %d: %s%s", r.GetExitCode(), r.GetStdout(), r.GetStderr())
	}
	return decode(r.GetStdout())
}

// sh runs a script in a container and returns its output.
func (w *world) sh(t *testing.T, c *nodetest.Container, script string) (string, int32) {
	t.Helper()
	r, err := w.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 120})
	if err != nil {
		return err.Error(), -1
	}
	return string(r.GetStdout()) + string(r.GetStderr()), r.GetExitCode()
}

// on runs a probe outside of containers; how prepares the command.
func (w *world) on(t *testing.T, how func(*exec.Cmd), name string, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), w.self, append([]string{probeArg, name}, args...)...)
	how(cmd)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return is(unmade, "%v: %s", err, stderr.String())
	}
	return decode(out)
}

// env returns the extra environment of the node's programs.
func (w *world) env() []string {
	if w.weak == "" {
		return nil
	}
	return []string{weaken.Env + "=" + string(w.weak)}
}
