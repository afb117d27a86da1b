package kata

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

const (
	shimEnv       = "KATA_SHIM"
	containerdEnv = "CONTAINERD"

	busybox = "localhost/busybox:latest"
	pause   = "localhost/pause:latest"

	// memory is a pod's volume in memory, by its name and file system.
	memory = "/run/rig/kubernetes.io~empty-dir/memory"
)

// rig is a containerd that runs containers by Kata's shim, and the machines that it has
// made.
type rig struct {
	*hypervisor
	ctrPath string
	socket  string // containerd's
	env     []string
	CRI     runtimeapi.RuntimeServiceClient
}

// configuration is the shim's, which accepts it at one kind of path only.
const configuration = `[hypervisor.remote]
remote_hypervisor_socket = "%s"
remote_hypervisor_timeout = 300
disable_guest_selinux = true
[agent.kata]
dial_timeout = 30
[runtime]
internetworking_model = "none"
disable_guest_seccomp = false
disable_new_netns = true
sandbox_cgroup_only = true
static_sandbox_resource_mgmt = true
emptydir_mode = "shared-fs"
create_container_timeout = 60
`

const containerdConfig = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.tracing"]
[grpc]
address = "%[1]s/sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + pause + `"
stream_server_address = "127.0.0.1"
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "%[1]s/cni"
conf_dir = "%[1]s/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "kata"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
runtime_type = "io.containerd.kata.v2"
privileged_without_host_devices = true
`

// inCgroup runs a program in a cgroup of its own, which it takes for the top of each
// hierarchy, and in a mount namespace.
const inCgroup = `
name=$1; shift
for h in /sys/fs/cgroup /sys/fs/cgroup/*; do
	[ -e $h/cgroup.procs ] || continue
	mkdir -p $h$name
	for f in cpuset.cpus cpuset.mems; do [ ! -e $h/cgroup.clone_children ] || [ ! -e $h/$f ] || cat $h/$f >$h$name/$f; done
	echo $$ >$h$name/cgroup.procs
done
exec unshare --cgroup --mount --propagation slave sh -ec '
	mounts=$(cat /proc/mounts) # it changes now
	while read -r _ at type _; do
		case $at,$type in
		/sys/fs/cgroup*,cgroup2) umount $at; mount -t cgroup2 cgroup2 $at ;;
		/sys/fs/cgroup*,cgroup) controller=${at##*/}; [ $controller != systemd ] || controller=none,name=systemd
			umount $at; mount -t cgroup -o $controller cgroup $at ;;
		esac
	done <<-end
		$mounts
	end
	mount --make-rshared /
	exec "$@"' sh "$@"
`

// newRig starts containerd with the image of the tests, in the test's namespaces.
func newRig(t *testing.T) *rig {
	t.Helper()
	shim, containerd := os.Getenv(shimEnv), os.Getenv(containerdEnv)
	for name, path := range map[string]string{shimEnv: shim, containerdEnv: containerd} {
		if path == "" {
			t.Skipf("set %s to the path of the program", name)
		}
	}
	dir := "/run/rig" // short, for sockets, and on a tmpfs, for overlays
	for _, d := range []string{"bin", "cni", "upper", "work", "vm", memory[len("/run/rig/"):]} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(shim, filepath.Join(dir, "bin/containerd-shim-kata-v2")); err != nil {
		t.Fatal(err)
	}
	// The test's own /etc, for the shim's configuration.
	if err := unix.Mount("overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir="+dir+"/upper,workdir="+dir+"/work"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/etc/kata-containers", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, "/etc/kata-containers/configuration.toml", fmt.Sprintf(configuration, dir+"/hypervisor"))
	write(t, dir+"/containerd.toml", fmt.Sprintf(containerdConfig, dir))
	if err := unix.Mount("tmpfs", memory, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	syslog(t)
	h := &hypervisor{t: t, dir: dir + "/vm", guest: filepath.Join(nodetest.Bin(t), "longshore-guest"), state: dir + "/state", machines: map[string]*machine{}}
	h.serve(dir + "/hypervisor")
	packages := strings.TrimSuffix(filepath.Dir(containerd), "/usr/bin")
	r := &rig{hypervisor: h, ctrPath: filepath.Join(filepath.Dir(containerd), "ctr"), socket: dir + "/sock"}
	libs, _ := filepath.Glob(packages + "/usr/lib/*-linux-gnu")
	r.env = append(os.Environ(), "PATH="+dir+"/bin:"+os.Getenv("PATH"), "LD_LIBRARY_PATH="+strings.Join(libs, ":"))
	r.start(t, containerd, dir)
	images(t, r, dir)
	return r
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// syslog is where the shim logs: without a log it does not start.
func syslog(t *testing.T) {
	t.Helper()
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "/run/log", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, err := l.Read(buf)
			if err != nil {
				return
			}
			if b := buf[:n]; !bytes.Contains(b, []byte("level=info")) && !bytes.Contains(b, []byte("level=debug")) {
				lines.Write(append(b, '\n'))
			}
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		if t.Failed() {
			b := lines.Bytes()
			t.Logf("the shims' log:\n%s", b[max(0, len(b)-8000):])
		}
	})
}

func (r *rig) start(t *testing.T, containerd, dir string) {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, "containerd.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-ec", inCgroup, "sh", roottest.Cgroup(t), containerd, "--config", dir+"/containerd.toml")
	cmd.Env, cmd.Stdout, cmd.Stderr = r.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	tail := func() string {
		b, _ := os.ReadFile(log.Name())
		return string(b[max(0, len(b)-6000):])
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // most often it runs
		<-ended
		if t.Failed() {
			t.Logf("containerd's log:\n%s", tail())
		}
	})
	conn, err := grpc.NewClient("unix://"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r.CRI = runtimeapi.NewRuntimeServiceClient(conn)
	nodetest.Eventually(t, "containerd answers", func() bool {
		select {
		case <-ended:
			t.Fatalf("containerd has ended:\n%s", tail())
		default:
		}
		_, err := r.CRI.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err == nil
	})
}

// images gives containerd's users the images of the tests.
func images(t *testing.T, r *rig, dir string) {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	f, err := os.Create(filepath.Join(dir, "images.tar"))
	if err != nil {
		t.Fatal(err)
	}
	image := func(command ...string) imagetest.Built {
		return imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Cmd: command, Env: []string{"PATH=/bin"}}}.Build()
	}
	if err := imagetest.WriteOCI(f, map[string]imagetest.Built{busybox: image("sh"), pause: image("sleep", "1000000")}); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"default", "k8s.io"} {
		r.ctr(t, "", "-n", user, "images", "import", f.Name())
	}
}

// result is how a command ended.
type result struct {
	out, err string
	code     int
}

// ctr runs containerd's command line to its end, which must be a success.
func (r *rig) ctr(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	res := r.try(t, stdin, append([]string{r.ctrPath, "-a", r.socket}, args...)...)
	if res.code != 0 {
		t.Fatalf("ctr %s: %d: %s%s", strings.Join(args, " "), res.code, res.out, res.err)
	}
	return res.out
}

// tryCtr runs containerd's command line to its end.
func (r *rig) tryCtr(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return r.try(t, stdin, append([]string{r.ctrPath, "-a", r.socket}, args...)...)
}

// try runs a command to its end. Its input stays open after stdin: the shim serves no other client
// while ctr waits for its answer to the input's end.
func (r *rig) try(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	in, keep, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	defer func() { _ = keep.Close() }()
	go func() { _, _ = keep.WriteString(stdin) }()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = r.env, in, &out, &errs
	err = cmd.Run()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() < 0 {
		t.Fatalf("%s: %v: %s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return result{out: out.String(), err: errs.String(), code: cmd.ProcessState.ExitCode()}
}
