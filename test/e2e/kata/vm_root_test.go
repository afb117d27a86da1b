package kata

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/guest/vsock"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/kata/qemu"
)

// virtiofsd is Debian's, of qemu-system-common.
const virtiofsd = "/usr/lib/qemu/virtiofsd"

// TestAPodInAVirtualMachine: containerd, Kata's shim, a virtual machine, and in it the
// agent, which sees the containers' files by virtio-fs.
func TestAPodInAVirtualMachine(t *testing.T) {
	qemu.Wanted(t)
	if _, err := os.Stat(virtiofsd); err != nil {
		t.Skip(err)
	}
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t)
		r.virtual = true
		onePod(t, r)
	})
}

// shares runs a directory's virtiofsd in a shim's namespace, where the shim mounts the guest's
// files.
const shares = `mkdir -p "$1"; exec "$2" -f --socket-path="$3" -o source="$1" -o sandbox=chroot -o log_level=warn`

// boot starts the agent as the first process of a virtual machine, and waits until it
// listens.
func (h *hypervisor) boot(ctx context.Context, m *machine, id, shim string) error {
	dir := m.listener.Addr().String() + ".vm"
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	log, err := os.Create(m.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	shared := filepath.Join(dir, "shared")
	files := exec.CommandContext(context.WithoutCancel(ctx), "nsenter", "--target", shim, "--mount", "sh", "-ec", shares, "sh", "/run/kata-containers/shared/sandboxes/"+id+"/mounts", virtiofsd, shared)
	files.Stdout, files.Stderr = log, log
	if err := files.Start(); err != nil {
		return err
	}
	filesEnded := make(chan error, 1)
	go func() { filesEnded <- files.Wait() }()
	roottest.Eventually(h.t, "virtiofsd listens", func() bool {
		_, err := os.Stat(shared)
		return err == nil || len(filesEnded) > 0
	})
	vm, err := qemu.New(ctx, qemu.Options{Dir: dir, Shared: shared, Parameters: "agent.log=debug"})
	if err != nil {
		_ = files.Process.Kill()
		return errors.Join(err, <-filesEnded)
	}
	m.vm = vm
	m.change = shareFiles
	go func() {
		<-vm.Ended()
		m.err = errors.Join(vm.Close(), <-filesEnded) // QEMU's end is virtiofsd's
		close(m.done)
	}()
	roottest.Eventually(h.t, "the guest's agent listens", func() bool {
		conn, err := m.dial(ctx)
		select {
		case <-m.done:
			return true
		default:
		}
		return err == nil && conn.Close() == nil
	})
	return nil
}

// dial connects to the machine's agent.
func (m *machine) dial(ctx context.Context) (net.Conn, error) {
	if m.vm != nil {
		return vsock.DialHybrid(ctx, m.vm.Socket(), qemu.AgentPort)
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", m.listener.Addr().String()+".agent")
}

// shareFiles adds the storage of the shared directory to CreateSandbox, as the shim itself does for
// hypervisors that share files: it assumes that a remote one does not.
func shareFiles(req proto.Message) bool {
	create, ok := req.(*katav1.CreateSandboxRequest)
	if ok {
		create.Storages = append(create.Storages, &katav1.Storage{
			Driver: "virtio-fs", Source: "kataShared", Fstype: "virtiofs", MountPoint: "/run/kata-containers/shared/containers/", Options: []string{"nodev"},
		})
	}
	return ok
}
