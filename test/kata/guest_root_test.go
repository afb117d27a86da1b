package kata

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/guest/vsock"
	"github.com/longshore/longshore/test/nodetest"
)

// The parts of TestInAGuest that hack/vm/kata.sh and the guest's command line know, too.
const (
	guestEnv  = "LONGSHORE_KATA_GUEST" // cgroup2 or cgroup: the version in the guest
	imageEnv  = "LONGSHORE_KATA_IMAGE" // the block device with containers' files
	guestPort = 1024
	logPort   = 1025
)

// TestInAGuest: longshore-guest works as the first process of the test's own machine, over
// vsock's loopback. `make e2e-kata-vm` starts such machines; the test ends with the machine,
// when the agent switches its power off.
func TestInAGuest(t *testing.T) {
	cgroups := os.Getenv(guestEnv)
	if cgroups == "" {
		t.Skipf("needs a virtual machine whose first process is longshore-guest: make e2e-kata-vm")
	}
	if d, ok := t.Deadline(); ok {
		const before = 10 * time.Second // a hang is logged before the test's own end
		defer time.AfterFunc(time.Until(d.Add(-before)), func() { showLog(t) }).Stop()
	}
	// The test's own report would come after the machine's end.
	part := func(name string, body func(*testing.T)) {
		if t.Run(name, body) {
			_, _ = fmt.Fprintln(os.Stdout, "kata-vm: works:", name)
		}
	}
	a := inGuest(t)
	part("the machine is made ready", func(t *testing.T) { machineIsReady(t, cgroups) })
	part("the log is given out", logIsGivenOut)
	a.sandbox(t, &katav1.Storage{Driver: "virtio-fs", Source: "kataShared", Fstype: "virtiofs", MountPoint: sharedDir, Options: []string{"nodev"}})
	part("a container of a disk's image", a.diskImage)
	part("a container of layers of EROFS, verified", a.layers)
	part("a container of what the host shares", a.sharedByTheHost)
	part("signals and limits", a.signalsAndLimits)
	part("processes that are left behind are reaped", a.orphans)
	part("a shared pid namespace", a.sharedPids)
	part("the nest is killed", a.nestKilled)
	part("the keeper is killed", a.keeperKilled)
	m := openMonitor(t)
	part("a disk is plugged in", func(t *testing.T) { a.pluggedDisk(t, m) })
	part("memory is plugged in", func(t *testing.T) { a.pluggedMemory(t, m) })
	part("the kernel itself is changed", a.theKernelItself)
	part("a processor is plugged in", func(t *testing.T) { a.pluggedProcessor(t, m) })
	if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), "longshore-guest/runtime/") || strings.Contains(string(b), "/run/disk") || strings.Contains(string(b), "/layers/") {
		t.Errorf("mounts are left: %v\n%s", err, b)
	}
	if t.Failed() {
		showLog(t)
	}
	// Later output may be lost with the machine.
	result := "ok"
	if t.Failed() {
		result = "failed"
	}
	_, _ = fmt.Fprintln(os.Stdout, "kata-vm: "+result)
	if _, err := a.DestroySandbox(t.Context(), &katav1.DestroySandboxRequest{}); err != nil {
		_, _ = fmt.Fprintln(os.Stdout, "kata-vm: failed: DestroySandbox:", err)
	}
	// The machine's end ends this process.
	<-t.Context().Done()
}

// inGuest connects to the agent, as soon as it listens.
func inGuest(t *testing.T) *agent {
	t.Helper()
	var conn net.Conn
	nodetest.Eventually(t, "the agent listens", func() bool {
		var err error
		conn, err = vsock.Dial(t.Context(), unix.VMADDR_CID_LOCAL, guestPort)
		return err == nil
	})
	client := ttrpc.NewClient(conn)
	a := &agent{AgentServiceService: katav1.NewAgentServiceClient(client), health: katav1.NewHealthClient(client), root: mountImage(t)}
	if r, err := a.health.Check(t.Context(), &katav1.CheckRequest{}); err != nil || r.GetStatus() != katav1.HealthCheckResponse_SERVING {
		t.Fatalf("Check: %v, %v", r, err)
	}
	return a
}

// mountImage mounts the disk with containers' files, as a storage of blk would be.
func mountImage(t *testing.T) string {
	t.Helper()
	const at = "/run/image"
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(os.Getenv(imageEnv), at, "ext4", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	return at
}

// machineIsReady checks the first process's setup of the machine.
func machineIsReady(t *testing.T, cgroups string) {
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"proc /proc proc", "sysfs /sys sysfs", " /dev devtmpfs", "devpts /dev/pts devpts", "tmpfs /dev/shm tmpfs", "tmpfs /run tmpfs"}
	if cgroups == "cgroup2" {
		want = append(want, "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate")
	} else {
		want = append(want, "tmpfs /sys/fs/cgroup tmpfs ro,", "cgroup /sys/fs/cgroup/memory cgroup", "cgroup /sys/fs/cgroup/devices cgroup")
	}
	for _, w := range want {
		if !strings.Contains(string(mounts), w) {
			t.Errorf("%q is not mounted:\n%s", w, mounts)
		}
	}
	if name, err := os.Hostname(); err != nil || name != "kata-guest" {
		t.Errorf("hostname %q, %v", name, err)
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil || lo.Flags&net.FlagUp == 0 {
		t.Errorf("lo: %v, %v", lo, err)
	}
	first, err := os.ReadFile("/proc/1/cmdline")
	if err != nil || !bytes.Contains(first, []byte("init")) {
		t.Errorf("the first process is %q, %v", first, err)
	}
	for fd := range 3 {
		if to, err := os.Readlink(fmt.Sprintf("/proc/1/fd/%d", fd)); err != nil || to != "/dev/console" {
			t.Errorf("its descriptor %d is %q, %v", fd, to, err)
		}
	}
	limits, err := os.ReadFile("/proc/1/limits")
	if err != nil || !strings.Contains(string(limits), "1048576") {
		t.Errorf("its limits: %v\n%s", err, limits)
	}
	pair := append(nodetest.Pair("keeper"), nodetest.Pair("nest")...)
	t.Logf("memory in KiB: agent %v, keeper and nest %v", memory(t, 1), memory(t, pair...))
}

// memory is VmRSS and RssAnon of each process, in KiB.
func memory(t *testing.T, pids ...int) (all []string) {
	t.Helper()
	for _, pid := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && (f[0] == "VmRSS:" || f[0] == "RssAnon:") {
				all = append(all, f[0]+f[1])
			}
		}
	}
	return all
}

// hostLog is the output of the log port.
var hostLog struct { //nolint:gochecknoglobals // of the one test
	mu    sync.Mutex // guards lines
	lines bytes.Buffer
}

func logIsGivenOut(t *testing.T) {
	conn, err := vsock.Dial(t.Context(), unix.VMADDR_CID_LOCAL, logPort)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	var before strings.Builder
	for !strings.Contains(before.String(), `"msg":"agent is ready"`) {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%v after %s", err, &before)
		}
		_, _ = before.WriteString(line)
	}
	if !strings.Contains(before.String(), "debug_console: not served") || !strings.Contains(before.String(), "surprise") {
		t.Errorf("options without effect are not told:\n%s", &before)
	}
	go func() {
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			hostLog.mu.Lock()
			_, _ = hostLog.lines.WriteString(line)
			hostLog.mu.Unlock()
		}
	}()
}

func showLog(t *testing.T) {
	t.Helper()
	hostLog.mu.Lock()
	defer hostLog.mu.Unlock()
	_, _ = fmt.Fprintf(os.Stdout, "the agent's log:\n%s", &hostLog.lines)
}

// diskImage runs a container on an overlay over a disk's image, in the shim's order.
func (a *agent) diskImage(t *testing.T) {
	r, err := a.GetGuestDetails(t.Context(), &katav1.GuestDetailsRequest{MemBlockSize: true, MemHotplugProbe: true})
	if err != nil || !r.GetAgentDetails().GetInitDaemon() {
		t.Fatalf("GetGuestDetails: %v, %v", r, err)
	}
	const dir = "/run/disk"
	for _, d := range []string{"upper", "work"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	spec := a.spec(`read line; echo "out $line"; echo err >&2; touch /made; hostname; df -P /dev/shm | tail -1; sleep 1000 & exit 42`)
	spec.Root.Path = dir + "/root"
	const image = dir + "/image"
	_, err = a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "disk", ExecId: "disk", OCI: spec, Storages: []*katav1.Storage{
		{Driver: "blk", Source: imagePath, Fstype: "ext4", MountPoint: image, Options: []string{"ro"}},
		{Driver: "overlayfs", Source: "overlay", Fstype: "overlay", MountPoint: spec.Root.Path, Options: []string{"lowerdir=" + image, "upperdir=" + dir + "/upper", "workdir=" + dir + "/work"}},
	}})
	if err != nil {
		t.Fatalf("CreateContainer: %v", err)
	}
	if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "disk"}); err != nil {
		t.Fatalf("StartContainer: %v", err)
	}
	if _, err := a.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: "disk", ExecId: "disk", Data: []byte("hello\n")}); err != nil {
		t.Fatalf("WriteStdin: %v", err)
	}
	if out := a.stdout(t, "disk", "disk"); !strings.HasPrefix(out, "out hello\nguest\n") || !strings.Contains(out, "65536") {
		t.Errorf("stdout %q", out)
	}
	if errs := a.stderr(t, "disk", "disk"); errs != "err\n" {
		t.Errorf("stderr %q", errs)
	}
	if got := a.wait(t, "disk", "disk"); got != 42 {
		t.Errorf("status %d, want 42", got)
	}
	if _, err := os.Stat(dir + "/upper/made"); err != nil {
		t.Error(err)
	}
	a.remove(t, "disk")
}

// layers runs a container on an overlay of two partitions of a disk, which the kernel verifies by the hashes of the
// request. With another hash there is no container.
func (a *agent) layers(t *testing.T) {
	told := strings.Split(os.Getenv("LONGSHORE_KATA_LAYERS"), ",") // two roots, two offsets
	if len(told) != 4 {
		t.Fatalf("LONGSHORE_KATA_LAYERS is %q", told)
	}
	const root = "/run/kata-containers/layered/rootfs"
	layer := func(n int, hash string) *katav1.Storage {
		return &katav1.Storage{Driver: "blk", Source: "16", Fstype: "erofs", MountPoint: root, Options: []string{
			"X-kata.overlay-lower", "X-kata.multi-layer=true", "X-kata.gpt-partitioned=true", fmt.Sprintf("X-kata.partition-number=%d", n),
			"X-kata.dmverity-enabled=true", "X-kata.dmverity.roothash=" + hash, "X-kata.dmverity.hashoffset=" + told[n+1], "X-kata.dmverity.salt=0a0b",
		}}
	}
	spec := a.spec("cat /lower; echo x >/bin/new && ls /bin/new; grep ' / ' /proc/mounts")
	spec.Root.Path = root
	create := func(list ...*katav1.Storage) error {
		_, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "layered", ExecId: "layered", OCI: spec, Storages: list})
		return err
	}
	wrong := strings.Repeat("0", 64)
	if err := create(layer(2, told[1]), layer(1, wrong)); err == nil {
		t.Error("a layer with another hash was mounted")
	}
	for range 2 { // nothing of a container before stays
		if err := create(layer(2, told[1]), layer(1, told[0])); err != nil {
			t.Fatalf("CreateContainer: %v", err)
		}
		if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "layered"}); err != nil {
			t.Fatalf("StartContainer: %v", err)
		}
		if out := a.stdout(t, "layered", "layered"); !strings.HasPrefix(out, "of the lower layer\n/bin/new\noverlay / ") {
			t.Errorf("stdout %q; stderr %q", out, a.stderr(t, "layered", "layered"))
		}
		a.wait(t, "layered", "layered")
		a.remove(t, "layered")
	}
	if left, err := filepath.Glob("/dev/dm-*"); err != nil || len(left) > 0 {
		t.Errorf("devices are left: %v, %v", left, err)
	}
}

// signalsAndLimits: exit codes of signals, an exec, and a container that gets no more
// memory than it may have.
func (a *agent) signalsAndLimits(t *testing.T) {
	a.run(t, "sig", a.spec("trap 'exit 7' TERM; echo ready; while :; do sleep 1; done"))
	if r, err := a.ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: "sig", ExecId: "sig", Len: 100}); err != nil || string(r.GetData()) != "ready\n" {
		t.Fatalf("ReadStdout: %v, %v", r, err)
	}
	if out, status := a.exec(t, "sig", "e1", "echo in; exit 5"); out != "in\n" || status != 5 {
		t.Errorf("exec: %q, %d", out, status)
	}
	if r, err := a.StatsContainer(t.Context(), &katav1.StatsContainerRequest{ContainerId: "sig"}); err != nil || r.GetCgroupStats().GetCpuStats().GetCpuUsage().GetTotalUsage() == 0 || r.GetCgroupStats().GetPidsStats().GetCurrent() == 0 {
		t.Errorf("StatsContainer: %v, %v", r, err)
	}
	a.end(t, "sig")
	limit := int64(8 << 20)
	spec := a.spec("exec dd if=/dev/zero of=/dev/null bs=64M count=1")
	spec.Linux.Resources.Memory = &katav1.LinuxMemory{Limit: limit}
	a.run(t, "hog", spec)
	if got := a.wait(t, "hog", "hog"); got != 137 {
		t.Errorf("status %d of a process that is out of memory, want 137: %s", got, a.stderr(t, "hog", "hog"))
	}
	if r, err := a.GetOOMEvent(t.Context(), &katav1.GetOOMEventRequest{}); err != nil || r.GetContainerId() != "hog" {
		t.Errorf("GetOOMEvent: %v, %v", r, err)
	}
	a.remove(t, "hog")
}

// exec runs a script in a container and returns its output and status.
func (a *agent) exec(t *testing.T, id, exec, script string) (string, int32) {
	t.Helper()
	if _, err := a.ExecProcess(t.Context(), &katav1.ExecProcessRequest{ContainerId: id, ExecId: exec, Process: a.spec(script).GetProcess()}); err != nil {
		t.Fatalf("ExecProcess: %v", err)
	}
	out := a.stdout(t, id, exec)
	_ = a.stderr(t, id, exec)
	return out, a.wait(t, id, exec)
}

// orphans leaves processes behind, on the machine and in a container.
func (a *agent) orphans(t *testing.T) {
	a.run(t, "pod", a.spec("sleep 100000"))
	for i := range 5 {
		if err := exec.CommandContext(t.Context(), "/bin/busybox", "sh", "-c", "(true &) ; (exit 1 &) ; exit 0").Run(); err != nil {
			t.Fatal(err)
		}
		a.exec(t, "pod", "left"+strconv.Itoa(i), "(true &) ; (exit 1 &) ; exit 0")
	}
	nodetest.Eventually(t, "the first process has no ended child", func() bool {
		left, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range left {
			b, err := os.ReadFile(name)
			if err != nil {
				continue
			}
			if f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(f) > 1 && string(f[0]) == "Z" && string(f[1]) == "1" {
				return false
			}
		}
		return true
	})
}

// sharedPids: a container sees the processes of the first one.
func (a *agent) sharedPids(t *testing.T) {
	if _, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "second", ExecId: "second", OCI: a.spec("ps"), SandboxPidns: true}); err != nil {
		t.Fatalf("CreateContainer: %v", err)
	}
	if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: "second"}); err != nil {
		t.Fatalf("StartContainer: %v", err)
	}
	out := a.stdout(t, "second", "second")
	_ = a.wait(t, "second", "second")
	if !strings.Contains(out, "sleep 100000") {
		t.Errorf("ps shows %q", out)
	}
	a.remove(t, "second")
}

// lines is how many lines the writer in keeperKilled writes.
const lines = 3000

// keeperKilled: a container that writes, and ends, while there is no keeper loses
// nothing.
func (a *agent) keeperKilled(t *testing.T) {
	a.run(t, "idle", a.spec("sleep 100000"))
	a.run(t, "writer", a.spec(fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done; exit 9", lines)))
	var out strings.Builder
	read := func(most uint32) string {
		t.Helper()
		r, err := a.ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: "writer", ExecId: "writer", Len: most})
		if err != nil {
			t.Fatalf("ReadStdout: %v", err)
		}
		return string(r.GetData())
	}
	_, _ = out.WriteString(read(100))
	kill(t, "keeper")
	for part := read(32768); part != ""; part = read(32768) {
		_, _ = out.WriteString(part)
	}
	var want strings.Builder
	for i := range lines {
		_, _ = fmt.Fprintf(&want, "line %d\n", i)
	}
	if out.String() != want.String() {
		t.Errorf("%d bytes came of %d", out.Len(), want.Len())
	}
	if got := a.wait(t, "writer", "writer"); got != 9 {
		t.Errorf("status %d, want 9", got)
	}
	a.remove(t, "writer")
	if out, status := a.exec(t, "idle", "after-keeper", "echo still; exit 4"); out != "still\n" || status != 4 {
		t.Errorf("exec after that: %q, %d", out, status)
	}
	a.end(t, "idle")
}

// end kills all of a container, which ends and is removed.
func (a *agent) end(t *testing.T, id string) {
	t.Helper()
	if _, err := a.SignalProcess(t.Context(), &katav1.SignalProcessRequest{ContainerId: id, Signal: 9}); err != nil {
		t.Errorf("SignalProcess: %v", err)
	}
	if got := a.wait(t, id, id); got != 137 {
		t.Errorf("status %d, want 137", got)
	}
	a.remove(t, id)
}

// nestKilled: old containers run on, and new ones run.
func (a *agent) nestKilled(t *testing.T) {
	kill(t, "nest")
	a.run(t, "after", a.spec("echo new; exit 6"))
	if out := a.stdout(t, "after", "after"); out != "new\n" {
		t.Errorf("stdout %q", out)
	}
	if got := a.wait(t, "after", "after"); got != 6 {
		t.Errorf("status %d, want 6", got)
	}
	a.remove(t, "after")
	if out, status := a.exec(t, "pod", "after-nest", "echo still; exit 4"); out != "still\n" || status != 4 {
		t.Errorf("exec in a container from before: %q, %d", out, status)
	}
	a.end(t, "pod")
	nodetest.Eventually(t, "there is one keeper, with a nest", func() bool { return len(nodetest.Pair("keeper")) == 1 && len(nodetest.Pair("nest")) == 1 })
}

// kill kills the keeper or the nest, and waits until it is gone.
func kill(t *testing.T, role string) {
	t.Helper()
	var pids []int
	nodetest.Eventually(t, "there is one "+role, func() bool { // its children are like it until they execute another program
		pids = nodetest.Pair(role)
		return len(pids) == 1
	})
	fd, err := unix.PidfdOpen(pids[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, role+" has ended", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n == 1
	})
}
