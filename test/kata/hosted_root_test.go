package kata

import (
	"bufio"
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/ttrpc"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/test/kata/qemu"
)

// TestAGuestFromTheHost: a host drives longshore-guest, the first process of a virtual machine,
// over vsock. `make e2e-kata-vm` makes the machine's boot files.
func TestAGuestFromTheHost(t *testing.T) {
	qemu.Wanted(t)
	m, log := boot(t, fmt.Sprint("agent.passfd_listener_port=", qemu.StreamPort))
	client := ttrpc.NewClient(m.Dial(t, qemu.AgentPort))
	defer func() { _ = client.Close() }()
	a := &agent{AgentServiceService: katav1.NewAgentServiceClient(client), health: katav1.NewHealthClient(client), root: "/run/image"}
	if r, err := a.health.Check(t.Context(), &katav1.CheckRequest{}); err != nil || r.GetStatus() != katav1.HealthCheckResponse_SERVING {
		t.Fatalf("Check: %v, %v", r, err)
	}
	if r, err := a.GetGuestDetails(t.Context(), &katav1.GuestDetailsRequest{MemBlockSize: true, MemHotplugProbe: true}); err != nil || !r.GetAgentDetails().GetInitDaemon() {
		t.Fatalf("GetGuestDetails: %v, %v", r, err)
	}
	a.sandbox(t)
	a.run(t, "idle", a.spec("sleep 100000"), &katav1.Storage{Driver: "blk", Source: qemu.DiskAt, Fstype: "ext4", MountPoint: a.root, Options: []string{"ro"}})
	t.Run("an overlay over a disk", a.overlay)
	t.Run("signals and limits", a.signalsAndLimits)
	t.Run("much data in both directions", a.muchData)
	t.Run("many connections", func(t *testing.T) { manyConnections(t, m) })
	t.Run("streams by ports", func(t *testing.T) { a.streamsByPorts(t, m) })
	a.run(t, "pod", a.spec("sleep 100000"))
	t.Run("a shared pid namespace", a.sharedPids)
	a.end(t, "pod")
	a.end(t, "idle")
	if _, err := a.DestroySandbox(t.Context(), &katav1.DestroySandboxRequest{}); err != nil {
		t.Errorf("DestroySandbox: %v", err)
	}
	<-m.Ended() // the agent has switched the power off
	if got := log(); !strings.Contains(got, `"msg":"agent is ready"`) {
		t.Errorf("the log port gave\n%s", got)
	}
}

// boot boots a machine, and returns a function for its agent's log after the end.
func boot(t *testing.T, options string) (*qemu.Machine, func() string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "kata") // short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m, err := qemu.New(t.Context(), qemu.Options{Dir: dir, Parameters: "agent.log=debug agent.log_vport=1025 " + options})
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	read := make(chan struct{})
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("the machine: %v", err)
		}
		<-read
		if t.Failed() {
			t.Logf("the console:\n%s\nthe agent's log:\n%s", m.Console(), lines.Bytes())
		}
	})
	defer func() {
		if t.Failed() {
			close(read) // nobody reads
		}
	}()
	conn := m.Dial(t, qemu.LogPort)
	go func() {
		defer close(read)
		_, _ = bufio.NewReader(conn).WriteTo(&lines)
		_ = conn.Close()
	}()
	return m, func() string {
		<-read
		return lines.String()
	}
}

// overlay runs a container over a disk's files, with changes in the guest's memory.
func (a *agent) overlay(t *testing.T) {
	const dir = "/run/disk"
	spec := a.spec(`read line; echo "out $line"; echo err >&2; touch /made; ls /made; hostname; df -P /dev/shm | tail -1; sleep 1000 & exit 42`)
	spec.Root.Path = dir + "/root"
	local := func(name string) *katav1.Storage {
		return &katav1.Storage{Driver: "local", Source: "local", Fstype: "local", MountPoint: dir + "/" + name, Options: []string{"mode=0755"}}
	}
	a.run(t, "disk", spec, local("upper"), local("work"), &katav1.Storage{
		Driver: "overlayfs", Source: "overlay", Fstype: "overlay", MountPoint: spec.Root.Path, Options: []string{"lowerdir=" + a.root, "upperdir=" + dir + "/upper", "workdir=" + dir + "/work"},
	})
	if _, err := a.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: "disk", ExecId: "disk", Data: []byte("hello\n")}); err != nil {
		t.Fatalf("WriteStdin: %v", err)
	}
	if out := a.stdout(t, "disk", "disk"); !strings.HasPrefix(out, "out hello\n/made\nguest\n") || !strings.Contains(out, "65536") {
		t.Errorf("stdout %q", out)
	}
	if errs := a.stderr(t, "disk", "disk"); errs != "err\n" {
		t.Errorf("stderr %q", errs)
	}
	if got := a.wait(t, "disk", "disk"); got != 42 {
		t.Errorf("status %d, want 42", got)
	}
	a.remove(t, "disk")
}

// streamsByPorts writes and reads a container and an exec by connections of the host, as
// Dragonball's shim does.
func (a *agent) streamsByPorts(t *testing.T, m *qemu.Machine) {
	const script = "cat; echo err >&2; exit 7"
	part, parts := bytes.Repeat([]byte("0123456789abcde\n"), 4096), 8
	for _, id := range []string{"ports", "exec"} {
		stdin, in := m.Stream(t)
		stdout, out := m.Stream(t)
		stderr, errs := m.Stream(t)
		if id == "exec" {
			exec := &katav1.ExecProcessRequest{ContainerId: "idle", ExecId: id, Process: a.spec(script).GetProcess(), StdinPort: in, StdoutPort: out, StderrPort: errs}
			if _, err := a.ExecProcess(t.Context(), exec); err != nil {
				t.Fatalf("ExecProcess: %v", err)
			}
		} else {
			create := &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: a.spec(script), StdinPort: in, StdoutPort: out, StderrPort: errs}
			if _, err := a.CreateContainer(t.Context(), create); err != nil {
				t.Fatalf("CreateContainer: %v", err)
			}
			if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: id}); err != nil {
				t.Fatalf("StartContainer: %v", err)
			}
		}
		var streams sync.WaitGroup
		streams.Go(func() {
			for range parts {
				if _, err := stdin.Write(part); err != nil {
					t.Errorf("%s: stdin: %v", id, err)
					return
				}
			}
			_ = stdin.Close()
		})
		want := bytes.Repeat(part, parts)
		streams.Go(func() {
			if got, err := io.ReadAll(stdout); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes of stdout with the sum %x, %v; want %d with %x", id, len(got), crc32.ChecksumIEEE(got), err, len(want), crc32.ChecksumIEEE(want))
			}
			_ = stdout.Close()
		})
		if got, err := io.ReadAll(stderr); err != nil || string(got) != "err\n" {
			t.Errorf("%s: stderr %q, %v", id, got, err)
		}
		_ = stderr.Close()
		streams.Wait()
		container := id
		if id == "exec" {
			container = "idle"
		}
		if got := a.wait(t, container, id); got != 7 {
			t.Errorf("%s: status %d, want 7", id, got)
		}
	}
	a.remove(t, "ports")
}

// muchData sends two million bytes through a container.
func (a *agent) muchData(t *testing.T) {
	a.run(t, "cat", a.spec("exec cat"))
	part, parts := bytes.Repeat([]byte("0123456789abcde\n"), 4096), 32
	want := crc32.NewIEEE()
	for range parts {
		_, _ = want.Write(part)
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		for range parts {
			for rest := part; len(rest) > 0; {
				r, err := a.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: "cat", ExecId: "cat", Data: rest})
				if err != nil {
					t.Errorf("WriteStdin: %v", err)
					return
				}
				rest = rest[r.GetLen():]
			}
		}
		if _, err := a.CloseStdin(t.Context(), &katav1.CloseStdinRequest{ContainerId: "cat", ExecId: "cat"}); err != nil {
			t.Errorf("CloseStdin: %v", err)
		}
	})
	out := a.stdout(t, "cat", "cat")
	sending.Wait()
	if got := crc32.ChecksumIEEE([]byte(out)); got != want.Sum32() || len(out) != parts*len(part) {
		t.Errorf("%d bytes with the sum %x come back, want %d with %x", len(out), got, parts*len(part), want.Sum32())
	}
	if got := a.wait(t, "cat", "cat"); got != 0 {
		t.Errorf("status %d, want 0", got)
	}
	a.remove(t, "cat")
}

// manyConnections asks over eight connections at once.
func manyConnections(t *testing.T, m *qemu.Machine) {
	var all sync.WaitGroup
	for range 8 {
		client := ttrpc.NewClient(m.Dial(t, qemu.AgentPort))
		all.Go(func() {
			defer func() { _ = client.Close() }()
			for range 20 {
				if r, err := katav1.NewHealthClient(client).Check(t.Context(), &katav1.CheckRequest{}); err != nil || r.GetStatus() != katav1.HealthCheckResponse_SERVING {
					t.Errorf("Check: %v, %v", r, err)
					return
				}
			}
		})
	}
	all.Wait()
}
