// Package systemd has systemd make the units whose cgroups package cgroup uses,
// over D-Bus. It is a package of its own so that a program without systemd does not
// link D-Bus.
//
// It must not know what stands in a unit. Start at Bus.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup"
)

// Bus is cgroup.Systemd over D-Bus: over systemd's own socket, without a bus between.
type Bus struct {
	mu   sync.Mutex // guards conn
	conn *dbus.Conn
}

var _ cgroup.Systemd = (*Bus)(nil)

// jobTimeout bounds the wait for systemd's word that a job is done: it does not
// come when systemd executes itself anew in between.
const jobTimeout = 30 * time.Second

// Dial connects to systemd. Unavailable when it does not run here.
func Dial(ctx context.Context) (*Bus, error) {
	b := &Bus{}
	_, err := b.dial(ctx)
	return b, err
}

// dial connects, again where systemd has let go of us: it does so when it
// executes itself anew.
func (b *Bus) dial(ctx context.Context) (*dbus.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && b.conn.Connected() {
		return b.conn, nil
	}
	// The connection would end with the context it is made with.
	conn, err := dbus.NewSystemdConnectionContext(context.WithoutCancel(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w: %w", err, errdefs.ErrUnavailable)
	}
	if b.conn != nil {
		b.conn.Close()
	}
	b.conn = conn
	return conn, nil
}

// Close lets go of the connection.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		b.conn.Close()
	}
}

func property(name string, value any) dbus.Property {
	return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
}

// StartSlice makes a slice with every controller accounted for.
func (b *Bus) StartSlice(ctx context.Context, name string) error {
	properties := []dbus.Property{dbus.PropDescription("Longshore cgroups"), dbus.PropWants("-.slice")}
	for _, p := range []string{"MemoryAccounting", "CPUAccounting", "IOAccounting", "TasksAccounting"} {
		properties = append(properties, property(p, true))
	}
	return b.start(ctx, name, properties)
}

// StartService makes a delegated service that is active without a process.
func (b *Bus) StartService(ctx context.Context, name, slice string) error {
	properties := []dbus.Property{
		dbus.PropDescription("Longshore cgroups"),
		dbus.PropType("oneshot"), dbus.PropRemainAfterExit(true),
		// It must have a command, which need not even be there.
		dbus.PropExecStart([]string{"/bin/true"}, true),
		property("Delegate", true),
		property("TasksMax", uint64(math.MaxUint64)),
		// A container that runs out of memory does not end its sandbox.
		property("OOMPolicy", "continue"),
		// As with other runtimes, containers go last when the node goes down.
		property("DefaultDependencies", false),
		property("CollectMode", "inactive-or-failed"),
		// What is in it still when it is stopped was to be dead.
		property("KillSignal", int32(unix.SIGKILL)),
	}
	if slice != "" {
		properties = append(properties, dbus.PropSlice(slice))
	}
	return b.start(ctx, name, properties)
}

// StartScope moves processes into a scope of their own, which ends with them.
func (b *Bus) StartScope(ctx context.Context, name string, pids ...int) error {
	all := make([]uint32, len(pids))
	for i, pid := range pids {
		all[i] = uint32(pid)
	}
	return b.start(ctx, name, []dbus.Property{
		dbus.PropDescription("Longshore keeper"),
		property("PIDs", all),
		property("TasksMax", uint64(math.MaxUint64)),
		property("DefaultDependencies", false),
		property("CollectMode", "inactive-or-failed"),
	})
}

func (b *Bus) start(ctx context.Context, name string, properties []dbus.Property) error {
	conn, err := b.dial(ctx)
	if err != nil {
		return fmt.Errorf("make unit %s: %w", name, err)
	}
	done := make(chan string, 1)
	_, err = conn.StartTransientUnitContext(ctx, name, "replace", properties, done)
	if said(err, "UnitExists") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make unit %s: %w", name, err)
	}
	return b.await(ctx, "make unit "+name, done)
}

// StopUnit stops a unit.
func (b *Bus) StopUnit(ctx context.Context, name string) error {
	conn, err := b.dial(ctx)
	if err != nil {
		return fmt.Errorf("stop unit %s: %w", name, err)
	}
	done := make(chan string, 1)
	_, err = conn.StopUnitContext(ctx, name, "replace", done)
	if said(err, "NoSuchUnit") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop unit %s: %w", name, err)
	}
	return b.await(ctx, "stop unit "+name, done)
}

func (b *Bus) await(ctx context.Context, op string, done <-chan string) error {
	ctx, stop := context.WithTimeoutCause(ctx, jobTimeout, fmt.Errorf("systemd said nothing for %s: %w", jobTimeout, errdefs.ErrUnavailable))
	defer stop()
	select {
	case result := <-done:
		if result != "done" && result != "skipped" {
			return fmt.Errorf("%s: systemd says %s: %w", op, result, errdefs.ErrUnknown)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
}

// said reports whether systemd answered with an error of this name.
func said(err error, name string) bool {
	var e godbus.Error
	return errors.As(err, &e) && strings.HasSuffix(e.Name, "."+name)
}
