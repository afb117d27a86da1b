package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// The bounds of a durable container, as multiples of an ephemeral one.
const (
	durableStart  = 1.5
	durableRemove = 1.3
)

// kindOfContainer is one of the two kinds of containers that the step durable compares.
type kindOfContainer struct {
	label         string
	ephemeral     bool
	start, remove []time.Duration
}

// durable measures how long create with start and a forced removal take. A durable container and one
// with --rm alternate.
func (b *bench) durable(ctx context.Context) error {
	if !b.ours() {
		return nil
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(b.server.State, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := longshorev1.NewContainersClient(conn)
	kinds := []*kindOfContainer{{label: "ephemeral", ephemeral: true}, {label: "durable"}}
	for round := range warmUp + b.pods {
		for _, k := range kinds {
			if err := k.once(ctx, client, b.image, round >= warmUp); err != nil {
				return fmt.Errorf("a container that is %s: %w", k.label, err)
			}
		}
	}
	for _, k := range kinds {
		b.row("", k.label+": create and start", k.start)
		b.row("", k.label+": rm -f", k.remove)
	}
	for _, r := range []struct {
		what  string
		of    func(*kindOfContainer) []time.Duration
		bound float64
	}{
		{"create and start", func(k *kindOfContainer) []time.Duration { return k.start }, durableStart},
		{"rm -f", func(k *kindOfContainer) []time.Duration { return k.remove }, durableRemove},
	} {
		ratio := float64(middle(r.of(kinds[1]))) / float64(middle(r.of(kinds[0])))
		b.value("", r.what+": times", ratio, "(durable to ephemeral, p50; at most %.1f)", r.bound)
	}
	return nil
}

// once starts a container and removes it while it runs.
func (k *kindOfContainer) once(ctx context.Context, c longshorev1.ContainersClient, image string, counts bool) error {
	began := time.Now()
	name, err := created(c.Create(ctx, &longshorev1.CreateRequest{
		Image: image, Pull: "missing", Command: program, Network: "none", AutoRemove: k.ephemeral, Start: true,
	}))
	if err != nil {
		return err
	}
	started := time.Now()
	if _, err := c.Remove(ctx, &longshorev1.RemoveRequest{Name: name, Force: true}); err != nil {
		return err
	}
	if counts {
		k.start, k.remove = append(k.start, started.Sub(began)), append(k.remove, time.Since(started))
	}
	return nil
}

// created reads the answers of Create, and returns the ID of the container.
func created(stream grpc.ServerStreamingClient[longshorev1.CreateResponse], err error) (id string, _ error) {
	for err == nil {
		var m *longshorev1.CreateResponse
		m, err = stream.Recv()
		if created := m.GetCreated().GetId(); created != "" {
			id = created
		}
	}
	if id != "" && errors.Is(err, io.EOF) {
		err = nil
	}
	return id, err
}
