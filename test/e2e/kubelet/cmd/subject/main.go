// Command subject is what runs in the tests' containers where busybox cannot do
// it: a server that gRPC and HTTP probes ask, and a program that takes memory.
//
//	subject serve GRPC-PORT HTTP-PORT FILE   healthy while FILE is there
//	subject eat MEBIBYTES                    takes so much memory and keeps it
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 4 && args[0] == "serve":
		return serve(args[1], args[2], args[3])
	case len(args) == 2 && args[0] == "eat":
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		eat(n)
		return nil
	}
	return fmt.Errorf("usage: subject serve GRPC-PORT HTTP-PORT FILE | eat MEBIBYTES")
}

// health says healthy while its file is there.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	file string
}

func (h health) ok() bool {
	_, err := os.Stat(h.file)
	return err == nil
}

func (h health) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if h.ok() {
		status = grpc_health_v1.HealthCheckResponse_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: status}, nil
}

func (h health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if !h.ok() {
		http.Error(w, "not healthy", http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "healthy")
}

func serve(grpcPort, httpPort, file string) error {
	h := health{file: file}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", ":"+grpcPort)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, h)
	go func() { _ = server.Serve(l) }()
	return http.ListenAndServe(":"+httpPort, h) //nolint:gosec // its one client is the kubelet
}

func eat(mebibytes int) {
	var kept [][]byte
	for range mebibytes {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		kept = append(kept, b)
	}
	fmt.Println("ate", len(kept))
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM)
	<-end
	runtime.KeepAlive(kept)
}
