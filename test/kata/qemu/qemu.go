// Package qemu boots virtual machines with longshore-guest as the first process, in software
// emulation, with a vsock to this host, for tests that are their host.
//
// `make e2e-kata-vm` (hack/vm/kata.sh) makes their disks, and names them in variables of the
// environment. Start at New.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/guest/vsock"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/kata/hostvsock"
)

// The variables with the kernel and the disks to boot.
const (
	KernelEnv = "LONGSHORE_KATA_VM_KERNEL"
	InitrdEnv = "LONGSHORE_KATA_VM_INITRD"
	DiskEnv   = "LONGSHORE_KATA_VM_DISK" // /dev/vda: containers' files
	TSCEnv    = "LONGSHORE_VM_TSC"       // the rate of the time-stamp counter in kHz, which a guest should not measure; may be unset
)

// The ports of a guest.
const (
	AgentPort  = 1024
	LogPort    = 1025
	StreamPort = 1027 // where the agent takes streams of processes, by its option passfd_listener_port
)

// DiskAt is the disk's PCI path in a shim's request.
const DiskAt = "10"

// parameters are the kernel's. They save self-tests and output, which are slow when
// emulated; panic=-1 ends QEMU when the guest panics.
const parameters = "console=ttyS0 quiet loglevel=3 panic=-1 oops=panic tsc=reliable no_timer_check mitigations=off nokaslr random.trust_cpu=on" +
	" 8250.nr_uarts=1 cryptomgr.notests rcupdate.rcu_expedited=1 rdinit=/load systemd.unified_cgroup_hierarchy=1"

const (
	memory = "768M"
	cid    = 3
)

// Options are the parameters of New.
type Options struct {
	// Dir is for sockets and the console's output. Its path is short.
	Dir string
	// Parameters are further ones of the kernel's command line.
	Parameters string
	// Shared is the socket of a virtiofsd, or empty. The guest knows it as kataShared.
	Shared string
	// Args are further arguments of QEMU.
	Args []string
}

// Machine is a virtual machine.
type Machine struct {
	opts  Options
	vsock *hostvsock.Device
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // when it has ended

	once   sync.Once
	result error // of Close
}

// Wanted skips a test that nobody has made a machine for.
func Wanted(t *testing.T) {
	t.Helper()
	for _, name := range []string{KernelEnv, InitrdEnv, DiskEnv} {
		if os.Getenv(name) == "" {
			t.Skipf("%s is not set: make e2e-kata-vm makes virtual machines and sets it", name)
		}
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip(err)
	}
}

// New boots a machine. It is ended with Close.
func New(ctx context.Context, o Options) (*Machine, error) {
	m := &Machine{opts: o, ended: make(chan struct{})}
	control := filepath.Join(o.Dir, "control")
	dev, err := hostvsock.Start(hostvsock.Options{Control: control, Host: m.Socket(), CID: cid})
	if err != nil {
		return nil, err
	}
	m.vsock = dev
	console, err := os.Create(m.console())
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	params := parameters + " " + o.Parameters
	if khz := os.Getenv(TSCEnv); khz != "" {
		params += " tsc_early_khz=" + khz
	}
	args := []string{
		"-n", "10", "qemu-system-x86_64", "-machine", "q35,sata=off,smbus=off,usb=off,memory-backend=memory", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
		"-m", memory, "-object", "memory-backend-memfd,id=memory,share=on,size=" + memory,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none", "-serial", "stdio",
		"-kernel", os.Getenv(KernelEnv), "-initrd", os.Getenv(InitrdEnv), "-append", params,
		"-drive", "file=" + os.Getenv(DiskEnv) + ",if=none,id=disk,format=raw,snapshot=on", "-device", "virtio-blk-pci,drive=disk,addr=" + DiskAt,
		"-chardev", "socket,id=vsock,path=" + control, "-device", "vhost-user-vsock-pci,chardev=vsock",
	}
	if o.Shared != "" {
		args = append(args, "-chardev", "socket,id=shared,path="+o.Shared, "-device", "vhost-user-fs-pci,queue-size=1024,chardev=shared,tag=kataShared")
	}
	m.cmd = exec.CommandContext(context.WithoutCancel(ctx), "nice", append(args, o.Args...)...)
	m.cmd.Stdout, m.cmd.Stderr = console, console
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = m.cmd.Start()
	if err = errors.Join(err, console.Close()); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	go func() {
		m.err = m.cmd.Wait()
		close(m.ended)
	}()
	return m, nil
}

// Socket is the path of the socket that leads to the guest's ports.
func (m *Machine) Socket() string { return filepath.Join(m.opts.Dir, "vsock") }

func (m *Machine) console() string { return filepath.Join(m.opts.Dir, "console") }

// Console is the machine's output.
func (m *Machine) Console() string {
	b, err := os.ReadFile(m.console())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Dial connects to a port of the guest, as soon as somebody listens there.
func (m *Machine) Dial(t *testing.T, port uint32) net.Conn {
	t.Helper()
	var conn net.Conn
	roottest.Eventually(t, fmt.Sprintf("the guest listens at port %d", port), func() bool {
		select {
		case <-m.ended:
			t.Fatalf("the machine has ended, %v:\n%s", m.err, m.Console())
		default:
		}
		var err error
		conn, err = vsock.DialHybrid(t.Context(), m.Socket(), port)
		return err == nil
	})
	return conn
}

// Stream connects to StreamPort, and returns the port of the host that the guest sees.
// Requests name a stream of a process by this port.
func (m *Machine) Stream(t *testing.T) (*net.UnixConn, uint32) {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: m.Socket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, "CONNECT %d\n", StreamPort); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 0, 16)
	for b := make([]byte, 1); b[0] != '\n'; line = append(line, b[0]) { // not a byte of the stream
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatalf("port %d: after %q: %v", StreamPort, line, err)
		}
	}
	var port uint32
	if _, err := fmt.Sscanf(string(line), "OK %d\n", &port); err != nil {
		t.Fatalf("port %d answers %q: %v", StreamPort, line, err)
	}
	return c, port
}

// Ended is closed when the machine is off.
func (m *Machine) Ended() <-chan struct{} { return m.ended }

// Close ends the machine, if it has not ended, and returns its error.
func (m *Machine) Close() error {
	m.once.Do(func() {
		select {
		case <-m.ended:
			m.result = m.err
		default:
			_ = m.cmd.Process.Kill()
			<-m.ended
		}
		m.result = errors.Join(m.result, m.vsock.Close())
	})
	return m.result
}
