package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// dialLoopback connects to a TCP port of the loopback in the network namespace at path ("" is our
// own): 127.0.0.1, or ::1 if nobody listens there. The connection can be used anywhere, also after
// the namespace's path is removed. Unavailable if nobody listens.
func dialLoopback(ctx context.Context, path string, port uint16) (net.Conn, error) {
	if path == "" {
		return dialLocal(ctx, port)
	}
	ns, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("dial port %d: network namespace: %w", port, err)
	}
	defer func() { _ = ns.Close() }()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// Never unlocked: the thread, which is elsewhere now, ends with us.
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{err: fmt.Errorf("dial port %d: enter the network namespace: %w", port, err)}
			return
		}
		// A literal address is dialled on the calling thread.
		conn, err := dialLocal(ctx, port)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func dialLocal(ctx context.Context, port uint16) (net.Conn, error) {
	var d net.Dialer
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			return nil, errors.Join(errs...)
		}
	}
	return nil, fmt.Errorf("%w: %w", errs[0], errdefs.ErrUnavailable)
}
