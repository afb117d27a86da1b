package main

import (
	"net"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/nodetest"
)

// serveBusybox serves an image from a registry on loopback and returns its name.
func serveBusybox() (ref string, stop func(), err error) {
	built, err := nodetest.BusyboxImage()
	if err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a listener for the program's whole life
	if err != nil {
		return "", nil, err
	}
	r, srv := imagetest.Serve(l)
	return r.Push("busybox", "latest", built), func() { _ = srv.Close() }, nil
}
