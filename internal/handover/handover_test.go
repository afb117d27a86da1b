package handover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/handover"
)

func TestMain(m *testing.M) {
	if step := os.Getenv("HANDOVER_STEP"); step != "" {
		if err := program(step); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program is the helper process of TestExecute: first opens a socket and executes second, which cannot start and executes the one before
// again, which is back; that one answers on the socket.
func program(step string) error {
	p, err := handover.ParsePassed(os.Getenv(handover.Variable))
	if err != nil {
		return err
	}
	s, err := handover.Read(p)
	if err != nil {
		return err
	}
	ctx, opened := handover.With(context.Background(), s), false
	l, err := handover.Listen(ctx, "x", func() (net.Listener, error) {
		opened = true
		return net.Listen("unix", os.Getenv("HANDOVER_SOCKET"))
	})
	if err != nil {
		return err
	}
	environ := func(step string) []string {
		_ = os.Setenv("HANDOVER_STEP", step)
		return os.Environ()
	}
	switch {
	case step == "first" && opened:
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		fds, _ := s.Pass()
		_ = l.Close()
		before, err := handover.Program()
		if err != nil {
			return err
		}
		return handover.Execute("/proc/self/exe", os.Args, environ("second"), handover.Passed{Sockets: fds, Before: before})
	case step == "second" && !opened && p.Before > 0:
		_ = l.Close()
		p.Sockets["gone"] = 4000
		return handover.Execute("/proc/self/fd/"+strconv.Itoa(p.Before), os.Args, environ("back"), p.Again(errors.New("it cannot start")))
	case step == "back" && !opened && p.Before == 0 && len(p.Sockets) == 1:
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(c, p.Failure)
		return errors.Join(err, c.Close())
	}
	return fmt.Errorf("step %s: opened %v, %+v", step, opened, p)
}

func TestExecute(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "HANDOVER_STEP=first", "HANDOVER_SOCKET="+socket)
	done := make(chan error, 1)
	go func() {
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		done <- err
	}()
	var c net.Conn
	for { // until the first program has opened the socket
		var err error
		if c, err = new(net.Dialer).DialContext(t.Context(), "unix", socket); err == nil {
			break
		}
		select {
		case err := <-done:
			t.Fatal(err)
		default:
		}
	}
	answer := make([]byte, 100)
	n, err := c.Read(answer)
	if err != nil || string(answer[:n]) != "it cannot start" {
		t.Errorf("%q, %v", answer[:n], err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestParsePassed(t *testing.T) {
	if p, err := handover.ParsePassed(""); err != nil || len(p.Sockets) > 0 {
		t.Errorf("nothing: %+v, %v", p, err)
	}
	good := handover.Passed{Sockets: map[string]int{"a": 64, "b": 65}, Before: 66, Failure: "why"}
	b, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := handover.ParsePassed(string(b)); err != nil || p.Before != 66 || len(p.Sockets) != 2 || p.Failure != "why" {
		t.Errorf("%s: %+v, %v", b, p, err)
	}
	for _, bad := range []string{"{", `[]`, `{"sockets":{"a":2}}`, `{"sockets":{"a":7,"b":7}}`, `{"sockets":{"":7}}`, `{"before":1}`, `{"sockets":{"a":8},"before":8}`, `{"other":1}`, `{}{}`} {
		if p, err := handover.ParsePassed(bad); !errdefs.IsInvalidArgument(err) || len(p.Sockets) > 0 {
			t.Errorf("%s: %+v, %v", bad, p, err)
		}
	}
}

func FuzzParsePassed(f *testing.F) {
	f.Add(`{"sockets":{"a":64},"before":65,"failure":"x"}`)
	f.Fuzz(func(t *testing.T, value string) {
		p, err := handover.ParsePassed(value)
		if err != nil {
			return
		}
		for key, fd := range p.Sockets {
			if fd <= 2 || key == "" {
				t.Errorf("%q: descriptor %d of %q", value, fd, key)
			}
		}
	})
}

// TestListen: a socket without sockets in the context, and one that a second program takes once.
func TestListen(t *testing.T) {
	open := func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	l, err := handover.Listen(t.Context(), "k", open)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	s, err := handover.Read(handover.Passed{})
	if err != nil {
		t.Fatal(err)
	}
	if l, err = handover.Listen(handover.With(t.Context(), s), "k", open); err != nil {
		t.Fatal(err)
	}
	fds, _ := s.Pass()
	for _, fd := range fds {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("any program that starts now inherits the socket: %#x, %v", flags, err)
		}
	}
	address := l.Addr().String()
	_ = l.Close()
	if more, undo := s.Pass(); len(more) > 0 {
		t.Errorf("a closed socket is passed: %v", more)
		undo()
	}
	p := handover.Passed{Sockets: fds}
	defer p.Close()
	next, err := handover.Read(p)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	fails := func() (net.Listener, error) { return nil, errors.New("opened again") }
	got, err := handover.Listen(handover.With(t.Context(), next), "k", fails)
	if err != nil || got.Addr().String() != address {
		t.Fatalf("%v, %v, want %s", got, err, address)
	}
	_ = got.Close()
	if _, err := handover.Listen(handover.With(t.Context(), next), "k", fails); err == nil {
		t.Error("a socket was taken twice")
	}
}
