package kata

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// TestRequestsThatAreTooMuch: each has a clear code, the guest continues, and nothing stays.
func TestRequestsThatAreTooMuch(t *testing.T) { roottest.Run(t, requestsThatAreTooMuch) }

func requestsThatAreTooMuch(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	a := start(t)
	a.sandbox(t)
	a.run(t, "c1", a.spec("head -c 3000000 /dev/zero; exec cat"))
	mounts := func() string {
		t.Helper()
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before, used := mounts(), a.memory(t)

	// A read of four gigabytes returns the present data, a megabyte at most.
	for got := 0; got < 3_000_000; {
		out, err := a.ReadStdout(ctx, &katav1.ReadStreamRequest{ContainerId: "c1", Len: 1<<32 - 1})
		if err != nil || len(out.GetData()) == 0 || len(out.GetData()) > 1<<20 {
			t.Fatalf("%d bytes, %v", len(out.GetData()), err)
		}
		got += len(out.GetData())
	}

	// Nothing is kept of a container that does not exist.
	for i := range 10_000 {
		if _, err := a.StatsContainer(ctx, &katav1.StatsContainerRequest{ContainerId: fmt.Sprintf("name-%d", i)}); status.Code(err) != codes.InvalidArgument {
			t.Fatalf("container %d: %v", i, err)
		}
	}
	if now := a.memory(t); now > used+32<<10 {
		t.Errorf("the agent had %d kB of memory, and has %d", used, now)
	}

	dir := t.TempDir()
	good := &katav1.Storage{Driver: "ephemeral", Source: "tmpfs", Fstype: "tmpfs", MountPoint: dir + "/good", Options: []string{"size=4096"}}
	long := strings.Repeat("x", 5000)
	for name, tt := range map[string]struct {
		bad  *katav1.Storage
		want codes.Code
	}{
		"an unknown driver":            {&katav1.Storage{Driver: "floppy", Source: "x", MountPoint: dir + "/bad"}, codes.Internal},
		"a driver's name that is long": {&katav1.Storage{Driver: long, Source: "x", MountPoint: dir + "/bad"}, codes.Internal},
		"a mount point outside":        {&katav1.Storage{Driver: "ephemeral", Source: "tmpfs", MountPoint: dir + "/good/../../bad"}, codes.Internal},
		"a mount point that is long":   {&katav1.Storage{Driver: "ephemeral", Source: "tmpfs", MountPoint: "/" + long}, codes.Internal},
		"a mount point with a zero":    {&katav1.Storage{Driver: "ephemeral", Source: "tmpfs", MountPoint: dir + "/b\x00ad"}, codes.Internal},
		"an option of no tmpfs":        {&katav1.Storage{Driver: "ephemeral", Source: "tmpfs", MountPoint: dir + "/bad", Options: []string{"exec=1"}}, codes.Internal},
		"a PCI path that leads out":    {&katav1.Storage{Driver: "blk", Source: "../../x", Fstype: "ext4", MountPoint: dir + "/bad"}, codes.Internal},
		"a disk that leads out":        {&katav1.Storage{Driver: "mmioblk", Source: "/dev/../etc/passwd", Fstype: "ext4", MountPoint: dir + "/bad"}, codes.Internal},
		"a SCSI address that is none":  {&katav1.Storage{Driver: "scsi", Source: "1:*", Fstype: "ext4", MountPoint: dir + "/bad"}, codes.Internal},
		"a bind of nothing":            {&katav1.Storage{Driver: "bind", Source: dir + "/none", MountPoint: dir + "/bad"}, codes.Internal},
	} {
		_, err := a.CreateContainer(ctx, &katav1.CreateContainerRequest{ContainerId: "c2", ExecId: "c2", OCI: a.spec("true"), Storages: []*katav1.Storage{good, tt.bad}})
		if status.Code(err) != tt.want || len(err.Error()) > 2500 {
			t.Errorf("%s: %.1200v, want %v", name, err, tt.want)
		}
		if now := mounts(); now != before {
			t.Errorf("%s: the mounts were\n%s\nand are\n%s", name, before, now)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v is left, %v", name, left, err)
		}
	}

	a.sendsTooMuch(t)
	if _, err := a.health.Check(ctx, &katav1.CheckRequest{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if _, err := a.WriteStdin(ctx, &katav1.WriteStreamRequest{ContainerId: "c1", Data: []byte("still here")}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if out, err := a.ReadStdout(ctx, &katav1.ReadStreamRequest{ContainerId: "c1", Len: 100}); err != nil || string(out.GetData()) != "still here" {
		t.Errorf("afterwards: %q, %v", out.GetData(), err)
	}
}

// sendsTooMuch sends a message that is longer than the protocol allows, which its clients
// refuse to send, on a connection of its own.
func (a *agent) sendsTooMuch(t *testing.T) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", filepath.Join(filepath.Dir(a.state), "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const tooMuch = 4<<20 + 1
	head := make([]byte, 10) // length, stream, type and flags
	binary.BigEndian.PutUint32(head, tooMuch)
	binary.BigEndian.PutUint32(head[4:], 1)
	head[8] = 1 // a request
	if _, err := conn.Write(append(head, make([]byte, tooMuch)...)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, head); err != nil {
		t.Fatalf("the answer to a message that is too long: %v", err)
	}
	body := make([]byte, binary.BigEndian.Uint32(head))
	if _, err := io.ReadFull(conn, body); err != nil {
		t.Fatal(err)
	}
	var answer ttrpc.Response
	if err := proto.Unmarshal(body, &answer); err != nil {
		t.Fatal(err)
	}
	if got := codes.Code(answer.GetStatus().GetCode()); got != codes.ResourceExhausted {
		t.Errorf("the answer to a message that is too long is %v: %s", got, answer.GetStatus().GetMessage())
	}
}

// memory returns how much memory of its own the agent has, in kB.
func (a *agent) memory(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	var kB int
	if _, err := fmt.Sscan(rest, &kB); err != nil {
		t.Fatal(err)
	}
	return kB
}
