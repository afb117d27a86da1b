package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/program"
)

// read asks the agent what runs, over the board, and tries to change it. It writes down what came of both.
func read(arg argument) error {
	h, err := program.Open(arg.Connect.FD)
	if err != nil {
		return err
	}
	c, err := h.Connect(context.Background(), nil)
	if err != nil {
		return write(arg, err.Error())
	}
	conn, err := grpc.NewClient("passthrough:///board", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
		return c, nil
	}))
	if err != nil {
		return err
	}
	containers := longshorev1.NewContainersClient(conn)
	list, err := containers.ListContainers(context.Background(), &longshorev1.ListContainersRequest{})
	if err != nil {
		return write(arg, "list: "+err.Error())
	}
	_, err = containers.Stop(context.Background(), &longshorev1.StopRequest{})
	return write(arg, fmt.Sprintf("of %s: %d containers; stop: %s", c.Labels["server_owner"], len(list.GetContainers()), status.Code(err)))
}
