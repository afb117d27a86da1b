package vsock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxAnswer bounds the line of a hybrid socket's answer, in bytes.
const maxAnswer = 64

// Dial connects to a port of a machine, from the host to a guest or from a guest to
// its host.
func Dial(ctx context.Context, cid, port uint32) (net.Conn, error) {
	to := Addr{CID: cid, Port: port}
	c, err := dial(ctx, unix.AF_VSOCK, &unix.SockaddrVM{CID: cid, Port: port}, to)
	if err != nil {
		return nil, fmt.Errorf("connect to vsock %s: %w", to, err)
	}
	return c, nil
}

func dial(ctx context.Context, family int, at unix.Sockaddr, to Addr) (net.Conn, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Connect(fd, at); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, errors.Join(err, unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "connection")
	if err := connected(ctx, file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return conn{File: file, local: Addr{CID: Any}, remote: to}, nil
}

// connected waits until a socket is connected.
func connected(ctx context.Context, file *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = file.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Write(func(fd uintptr) bool {
		at := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, err := unix.Poll(at, 0); err != nil || n == 0 {
			return false
		}
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if failure = err; err == nil && code != 0 {
			failure = unix.Errno(code)
		}
		return true
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, failure)
}

// DialHybrid connects to a port of a guest behind a unix socket, which is named with
// "CONNECT PORT\n" and confirmed with a line that begins with OK: so a virtual machine
// monitor gives its guest's vsock to a host without one.
func DialHybrid(ctx context.Context, path string, port uint32) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	err = ask(c, port)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("port %d behind %s: %w", port, path, err), c.Close())
	}
	return c, nil
}

// ask asks for a port, and reads the answer and nothing behind it.
func ask(c net.Conn, port uint32) error {
	if _, err := fmt.Fprintf(c, "CONNECT %d\n", port); err != nil {
		return err
	}
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(c, b); errors.Is(err, io.EOF) {
			return unix.ECONNREFUSED
		} else if err != nil {
			return err
		}
		if b[0] == '\n' {
			break
		}
		if line = append(line, b[0]); len(line) > maxAnswer {
			return fmt.Errorf("the answer begins with %q", line)
		}
	}
	if !strings.HasPrefix(string(line), "OK") {
		return fmt.Errorf("the answer is %q", line)
	}
	return nil
}
