package ui

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	page "github.com/longshore/longshore/internal/ui"
)

// crowd is a control API with a thousand containers. Their stats change twice a second, and one container ten times a second.
type crowd struct {
	longshorev1.UnimplementedContainersServer
	longshorev1.UnimplementedNodeServer
	ticks atomic.Int64
}

const containersOfCrowd = 1000

func crowdID(i int) string { return fmt.Sprintf("%012d%052d", i, i) }

func (c *crowd) ListContainers(context.Context, *longshorev1.ListContainersRequest) (*longshorev1.ListContainersResponse, error) {
	resp := &longshorev1.ListContainersResponse{}
	for i := range containersOfCrowd {
		owner := []string{"cli", "cri", "nomad", "docker", "swarm"}[i%5]
		resp.Containers = append(resp.Containers, &longshorev1.Container{
			Id: crowdID(i), Owner: owner, Key: fmt.Sprintf("container-%04d", i), Name: fmt.Sprintf("container-%04d", i), Sandbox: fmt.Sprintf("s%d", i/2), State: "running",
			Image: "registry.example/team/service:1.2.3", Created: timestamppb.New(time.Unix(1_700_000_000, 0)), Labels: map[string]string{"com.docker.compose.project": fmt.Sprintf("p%d", i%20)},
			Restarts: uint32(c.ticks.Load()) * uint32(1-min(i%100, 1)), Ports: []*longshorev1.Port{{Protocol: "tcp", Host: uint32(20000 + i), Container: 80}},
		})
	}
	return resp, nil
}

func (*crowd) ListSandboxes(context.Context, *longshorev1.ListSandboxesRequest) (*longshorev1.ListSandboxesResponse, error) {
	return &longshorev1.ListSandboxesResponse{}, nil
}

// every calls fn until the stream ends.
func every(ctx context.Context, d time.Duration, fn func(n uint64) error) error {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for n := uint64(1); ; n++ {
		if err := fn(n); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (c *crowd) Stats(_ *longshorev1.StatsRequest, stream grpc.ServerStreamingServer[longshorev1.StatsResponse]) error {
	return every(stream.Context(), 500*time.Millisecond, func(n uint64) error {
		resp := &longshorev1.StatsResponse{}
		for i := range uint64(containersOfCrowd) {
			resp.Containers = append(resp.Containers, &longshorev1.ContainerStats{
				Id: crowdID(int(i)), CpuPercent: proto.Float64(float64((i*7+n*13)%1000) / 10), MemoryBytes: proto.Uint64((i*1000 + n*12345) % (1 << 28)), MemoryLimitBytes: proto.Uint64(1 << 28), Pids: proto.Uint64(i % 50),
			})
		}
		return stream.Send(resp)
	})
}

func (c *crowd) Events(req *longshorev1.EventsRequest, stream grpc.ServerStreamingServer[longshorev1.EventsResponse]) error {
	if !req.GetFollow() {
		return nil
	}
	return every(stream.Context(), 100*time.Millisecond, func(n uint64) error {
		c.ticks.Add(1)
		return stream.Send(&longshorev1.EventsResponse{Event: &longshorev1.Event{Seq: n, Kind: "container.updated", Owner: "cli", Container: crowdID(0), At: timestamppb.Now()}})
	})
}

func (*crowd) Load(_ *longshorev1.LoadRequest, stream grpc.ServerStreamingServer[longshorev1.LoadResponse]) error {
	return every(stream.Context(), time.Second, func(n uint64) error {
		return stream.Send(&longshorev1.LoadResponse{At: timestamppb.Now(), Cpus: 4, CpuPercent: proto.Float64(float64(n * 37 % 400)), MemoryTotalBytes: 1 << 34, MemoryBytes: proto.Uint64(1 << 33)})
	})
}

func (*crowd) Info(context.Context, *longshorev1.InfoRequest) (*longshorev1.InfoResponse, error) {
	return &longshorev1.InfoResponse{Hostname: "crowd", Version: &longshorev1.VersionResponse{Version: "1"}}, nil
}

func (*crowd) Doctor(context.Context, *longshorev1.DoctorRequest) (*longshorev1.DoctorResponse, error) {
	return &longshorev1.DoctorResponse{}, nil
}

// TestAThousandContainers measures the first paint, and the frames while a page of a thousand containers scrolls and changes.
func TestAThousandContainers(t *testing.T) {
	chromium := browser(t)
	socket := filepath.Join(t.TempDir(), "c.sock")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	api := &crowd{}
	srv := grpc.NewServer()
	longshorev1.RegisterContainersServer(srv, api)
	longshorev1.RegisterNodeServer(srv, api)
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()
	conn, err := page.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const token = "a token for this test"
	h, err := page.New(page.Options{Conn: conn, Token: token, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	web, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(web) }()
	defer func() { _ = server.Close() }()
	check(t, "speed.mjs", map[string]any{"chromium": chromium, "url": "http://" + web.Addr().String() + "/#token=" + token, "containers": containersOfCrowd, "pictures": t.TempDir(), "least": 4})
}
