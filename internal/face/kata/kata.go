// Package kata serves the agent of a Kata Containers guest: the host's shim drives by it
// the containers inside of a virtual machine, over ttrpc.
//
// The machine itself (links, clock, memory, storages) is a port, Machine: this package
// translates between the protocol and the engine, and knows no kernel interface of its
// own. The one engine sandbox is the shim's sandbox; a container's key is the shim's id.
// Start at New, then container.go and output.go.
package kata

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/containerd/ttrpc"
	"golang.org/x/sync/errgroup"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/keylock"
	"github.com/longshore/longshore/internal/logs"
	"github.com/longshore/longshore/internal/sysctl"
)

// Options are the parameters of New.
type Options struct {
	// Deps' engine may be nil: see Begin.
	face.Deps
	// Machine is the guest. Required.
	Machine Machine
	// CDI gives containers the devices that they name.
	CDI guest.CDI
	// SetSysctl sets a sysctl of the machine's network; nil is Setting.Set.
	SetSysctl func(sysctl.Setting) error
	// Requests says which calls are answered.
	Requests Requests
	// Policy decides about those that Requests has answered. It may be nil.
	Policy Policy
	// Quiet is called some seconds after calls, to free their memory. It may be nil.
	Quiet func()
	// OOMCounter returns the file that counts the kernel's kills for want of memory in a
	// cgroup, "" without one. It may be nil: kills are then seen when a process ends.
	OOMCounter func(core.CgroupRef) string
	// Unified reports whether the machine has cgroup v2; nil is false. It and OOMCounter are called
	// after Begin.
	Unified func() bool
	// Paused is called when a container is paused, with its cgroup. It may be nil.
	Paused func(ctx context.Context, cgroup core.CgroupRef)
	// Recent gets the output of containers that the shim reads. It may be nil.
	Recent *logs.Recent
	// Streams has the connections that calls name by their ports. It may be nil: such calls are refused.
	Streams Streams
	// End is called once, after DestroySandbox was answered. It may be nil.
	End func()
}

// Machine has the agent's functions on the guest.
type Machine interface {
	// MemoryBlock returns the size of a block of pluggable memory, in bytes, and whether the kernel
	// must be probed with its address. The size is 0 if memory cannot be plugged in.
	MemoryBlock() (size uint64, probe bool, err error)
	// Mount mounts a storage, or adds a reference to the mount at its place.
	Mount(ctx context.Context, s guest.Storage) error
	// Unmount gives a reference back; the last one unmounts. It succeeds when there is none.
	Unmount(ctx context.Context, s guest.Storage) error
	// Drivers names the drivers of storages that Mount knows.
	Drivers() []string
	// Device waits for a device and returns how the machine has it.
	Device(ctx context.Context, d guest.Device) (guest.Found, error)
	// DeviceTypes names the types of devices that Device knows.
	DeviceTypes() []string
	// SetDNS lays lines over the machine's resolv.conf; undo takes them away again.
	SetDNS(lines []string) (undo func() error, err error)
	// CopyFile writes a part of a file below guest.Shared.
	CopyFile(f guest.File) error
	// VolumeUsage returns how full the file system at a path is.
	VolumeUsage(path string) (guest.Usage, error)
	// The network of the machine, which all containers have.
	UpdateLink(ctx context.Context, want guest.Link) error
	Links(ctx context.Context) ([]guest.Link, error)
	// LinkStats are those of the links but the loopback.
	LinkStats(ctx context.Context) ([]core.NetStats, error)
	UpdateRoutes(ctx context.Context, routes []guest.Route) error
	Routes(ctx context.Context) ([]guest.Route, error)
	AddNeighbors(ctx context.Context, list []guest.Neighbor) error
	// First reports whether the agent is the first process of the machine.
	First() bool
	Hardware
}

// Hardware is a guest's clock, processors, memory and disks, its kernel and its files.
type Hardware interface {
	SetClock(seconds, micros int64) error
	AddEntropy(data []byte) error
	// OnlineCPUs waits until as many processors as wanted are in use.
	OnlineCPUs(ctx context.Context, want int) error
	OnlineMemory() error
	ProbeMemory(addresses []uint64) error
	AddSwap(path string) error
	// DiskAt waits for a disk at a PCI path, and returns its device file.
	DiskAt(ctx context.Context, pci string) (string, error)
	PacketFilter(ctx context.Context, ipv6 bool) ([]byte, error)
	SetPacketFilter(ctx context.Context, ipv6 bool, rules []byte) ([]byte, error)
	LoadModule(ctx context.Context, name string, parameters []string) error
	// Metrics are in Prometheus' text form.
	Metrics() string
	// Remount gives an ephemeral storage other options.
	Remount(ctx context.Context, s guest.Storage) error
	ResizeVolume(path string, size uint64) error
	DropStale() error
	// Head returns the first part of a file.
	Head(path string) (string, error)
	FindHooks(dir string) (guest.Hooks, error)
}

// service is the agent as ttrpc calls it.
type service struct {
	refusals
	hardware
	face *Face
}

var _ katav1.AgentServiceService = (*service)(nil)

// Face is the agent's server. It implements face.Face.
type Face struct {
	o    Options
	outs outputs
	ooms *oomWatch

	destroyed chan struct{} // closed by DestroySandbox
	removals  keylock.Map[core.ID]

	making  sync.Mutex      // serializes CreateSandbox and DestroySandbox; guards mounted, undoDNS, hooks, ended
	mounted []guest.Storage // of the sandbox
	undoDNS func() error    // nil without DNS
	ended   bool
	hooks   guest.Hooks

	ready  chan struct{} // closed by Begin
	once   sync.Once
	called chan struct{} // closed by the first call
	quiet  quiet
}

// New returns a face that serves no one yet.
func New(o Options) (*Face, error) {
	if o.Machine == nil {
		return nil, errors.New("kata: no machine")
	}
	if err := o.Requests.Validate(); err != nil {
		return nil, err
	}
	f := &Face{o: o, ooms: newOOMWatch(o), destroyed: make(chan struct{}), ready: make(chan struct{}), called: make(chan struct{}), quiet: quiet{fn: o.Quiet}}
	if o.Engine != nil {
		f.Begin(o.Engine)
	}
	return f, nil
}

// Begin gives the face its engine, if New did not. Serve may be under way: the calls of the
// agent wait until then, but those of Health are answered, because shims ask for nothing
// else until they know that the agent lives. It is called once.
func (f *Face) Begin(own *engine.Client) {
	f.outs.recent = f.o.Recent
	f.o.Engine, f.outs.engine, f.ooms.deps.Engine = own, own, own
	close(f.ready)
}

// Called returns a channel that is closed when a call of Health was answered, or another waits for
// Begin.
func (f *Face) Called() <-chan struct{} { return f.called }

func (f *Face) call() { f.once.Do(func() { close(f.called) }) }

// begun waits for Begin.
func (f *Face) begun(ctx context.Context) error {
	f.call()
	select {
	case <-f.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Name implements face.Face.
func (f *Face) Name() string { return "kata" }

// Serve implements face.Face. It also ends when the sandbox was destroyed.
func (f *Face) Serve(ctx context.Context, listeners ...net.Listener) error {
	if len(listeners) == 0 {
		return errors.New("kata: no listener")
	}
	srv, err := ttrpc.NewServer(ttrpc.WithUnaryServerInterceptor(f.intercept))
	if err != nil {
		return fmt.Errorf("kata: %w", err)
	}
	katav1.RegisterAgentServiceService(srv, &service{hardware: hardware{f.o.Machine}, face: f})
	katav1.RegisterHealthService(srv, health{version: f.o.Version})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	defer f.outs.close()
	group.Go(func() error {
		select {
		case <-f.ready:
			return f.ooms.run(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	var open answers
	for _, l := range listeners {
		group.Go(func() error {
			if err := srv.Serve(ctx, answeredListener{Listener: l, answers: &open}); !errors.Is(err, ttrpc.ErrServerClosed) {
				return fmt.Errorf("kata: serve %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return srv.Close()
		case <-f.destroyed:
		}
		// The answer to DestroySandbox is on its way. Requests that never end (a shim that
		// does not read) are cut off.
		graceful, stop := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer stop()
		if err := open.wait(graceful); err == nil {
			// A client of ttrpc for Go that sees the end of its connection before it has
			// looked at the answer has no answer: it is let go first.
			last, done := context.WithTimeout(graceful, lingerTime)
			defer done()
			_ = open.left(last)
		}
		err := srv.Close()
		cancel()
		if f.o.End != nil {
			f.o.End()
		}
		return err
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
