package cgroup

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Bus is Systemd over D-Bus.
type Bus struct{ conn *dbus.Conn }

var _ Systemd = (*Bus)(nil)

// DialSystemd connects to systemd. Unavailable when it does not run here.
func DialSystemd(ctx context.Context) (*Bus, error) {
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w: %w", err, errdefs.ErrUnavailable)
	}
	return &Bus{conn: conn}, nil
}

// Close lets go of the connection.
func (b *Bus) Close() { b.conn.Close() }

// StartSlice makes a slice with every controller accounted for.
func (b *Bus) StartSlice(ctx context.Context, name string) error {
	properties := []dbus.Property{dbus.PropDescription("longshore " + name), dbus.PropWants("-.slice")}
	for _, p := range []string{"MemoryAccounting", "CPUAccounting", "IOAccounting", "TasksAccounting"} {
		properties = append(properties, dbus.Property{Name: p, Value: godbus.MakeVariant(true)})
	}
	done := make(chan string, 1)
	_, err := b.conn.StartTransientUnitContext(ctx, name, "replace", properties, done)
	if said(err, "UnitExists") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make slice %s: %w", name, err)
	}
	return b.await(ctx, "make slice "+name, done)
}

// StopUnit stops a unit.
func (b *Bus) StopUnit(ctx context.Context, name string) error {
	done := make(chan string, 1)
	_, err := b.conn.StopUnitContext(ctx, name, "replace", done)
	if said(err, "NoSuchUnit") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop unit %s: %w", name, err)
	}
	return b.await(ctx, "stop unit "+name, done)
}

func (b *Bus) await(ctx context.Context, op string, done <-chan string) error {
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
