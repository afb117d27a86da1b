package main

import (
	"context"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/program"
)

// openBoard takes the handles that the program was given and returns the one with which it asks. With one to serve it greets each client
// by the name of its pod, and asks with that one, which does not allow it, if it has no other.
func openBoard(arg argument) (ask *program.Handle) {
	if arg.Serve != nil {
		ask = openHandle(arg.Serve)
		s, err := ask.Serve(context.Background(), nil)
		if err != nil {
			fail("serve on the board", err)
		}
		go greet(s, arg.Greeting)
	}
	if arg.Connect != nil {
		ask = openHandle(arg.Connect)
	}
	return ask
}

func openHandle(d *descriptor) *program.Handle {
	h, err := program.Open(uintptr(d.FD))
	if err != nil {
		fail("handle", err)
	}
	return h
}

func greet(s *program.Server, greeting string) {
	for {
		c, err := s.AcceptConn()
		if err != nil {
			fail("accept on the board", err)
		}
		_, _ = fmt.Fprintf(c, "%s to %s", greeting, c.Labels["client_kubernetes_pod_name"])
		_ = c.Close()
	}
}

// ask returns what a server on the board says, the one of a name unless that is empty, or why there is none. Without a handle the
// program tries to make the kind of socket that handles are.
func ask(h *program.Handle, app string) string {
	if h == nil {
		_, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		return fmt.Sprintf("board: socket: %v", err)
	}
	labels := map[string]string{}
	if app != "" {
		labels["app"] = app
	}
	c, err := h.Connect(context.Background(), labels)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = c.Close() }()
	text, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
