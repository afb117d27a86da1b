// Package systemd makes, over D-Bus, the systemd units whose cgroups package cgroup
// uses. It is a package of its own so that a program without systemd does not link
// D-Bus.
//
// It must not know what a unit is for. Start at Bus.
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

// Bus implements cgroup.Systemd over systemd's private D-Bus socket.
type Bus struct {
	mu   sync.Mutex // guards conn
	conn *dbus.Conn
}

var _ cgroup.Systemd = (*Bus)(nil)

// jobTimeout bounds the wait for a job's result: systemd does not send it if it
// re-executes itself meanwhile.
const jobTimeout = 30 * time.Second

// Dial connects to systemd. It fails with Unavailable if systemd does not run here.
func Dial(ctx context.Context) (*Bus, error) {
	b := &Bus{}
	_, err := b.dial(ctx)
	return b, err
}

// dial connects, and reconnects after systemd has closed the connection, which it does
// when it re-executes itself.
func (b *Bus) dial(ctx context.Context) (*dbus.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && b.conn.Connected() {
		return b.conn, nil
	}
	// A connection made with ctx would end with it.
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

// Close closes the connection.
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

// StartSlice makes a slice with accounting for every controller.
func (b *Bus) StartSlice(ctx context.Context, name string) error {
	properties := []dbus.Property{dbus.PropDescription("Longshore cgroups"), dbus.PropWants("-.slice")}
	for _, p := range []string{"MemoryAccounting", "CPUAccounting", "IOAccounting", "TasksAccounting"} {
		properties = append(properties, property(p, true))
	}
	return b.start(ctx, name, properties)
}

// StartService makes a delegated service that stays active without a process.
func (b *Bus) StartService(ctx context.Context, name, slice string) error {
	properties := []dbus.Property{
		dbus.PropDescription("Longshore cgroups"),
		dbus.PropType("oneshot"), dbus.PropRemainAfterExit(true),
		// A service needs a command, which need not exist.
		dbus.PropExecStart([]string{"/bin/true"}, true),
		property("Delegate", true),
		property("TasksMax", uint64(math.MaxUint64)),
		// A process killed for lack of memory must not end the whole sandbox.
		property("OOMPolicy", "continue"),
		// As with other runtimes, containers are stopped last when the node shuts down.
		property("DefaultDependencies", false),
		property("CollectMode", "inactive-or-failed"),
		// Processes that are left when it is stopped should be dead already, so kill
		// them.
		property("KillSignal", int32(unix.SIGKILL)),
	}
	if slice != "" {
		properties = append(properties, dbus.PropSlice(slice))
	}
	return b.start(ctx, name, properties)
}

// StartScope moves processes into a scope, which ends with them.
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

// Stopping reports whether the machine shuts down.
func (b *Bus) Stopping(ctx context.Context) (bool, error) {
	conn, err := b.dial(ctx)
	if err != nil {
		return false, err
	}
	state, err := conn.SystemStateContext(ctx)
	if err != nil {
		return false, fmt.Errorf("get the state of systemd: %w", err)
	}
	return state.Value.Value() == "stopping", nil
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

// said reports whether systemd answered with the error of this name.
func said(err error, name string) bool {
	var e godbus.Error
	return errors.As(err, &e) && strings.HasSuffix(e.Name, "."+name)
}
