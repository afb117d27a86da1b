// Command bareagent is the least that a Kata guest's agent in Go can be: a ttrpc server
// that answers the calls of Health on a unix socket. The bench measures longshore-guest
// beside it.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/containerd/ttrpc"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "bareagent:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: %s SOCKET", args[0])
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	katav1.RegisterHealthService(server, health{})
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: args[1]})
	if err != nil {
		return err
	}
	return server.Serve(context.Background(), l)
}

type health struct{}

func (health) Check(context.Context, *katav1.CheckRequest) (*katav1.HealthCheckResponse, error) {
	return &katav1.HealthCheckResponse{Status: katav1.HealthCheckResponse_SERVING}, nil
}

func (health) Version(context.Context, *katav1.CheckRequest) (*katav1.VersionCheckResponse, error) {
	return &katav1.VersionCheckResponse{AgentVersion: "bare"}, nil
}
