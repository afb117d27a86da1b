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

// pairing is a comparison of two kinds of containers, which alternate.
type pairing struct {
	kinds [2]*kindOfContainer
	// bounds are those of the second kind's times, as multiples of the first one's.
	start, remove float64
}

// kindOfContainer is one of the kinds, and the times of its containers.
type kindOfContainer struct {
	label         string
	request       *longshorev1.CreateRequest
	start, remove []time.Duration
}

// durable compares containers that outlast a boot with those of --rm.
func (b *bench) durable(ctx context.Context) error {
	return b.pair(ctx, pairing{start: 1.5, remove: 1.3, kinds: [2]*kindOfContainer{
		{label: "ephemeral", request: &longshorev1.CreateRequest{Network: "none", AutoRemove: true}},
		{label: "durable", request: &longshorev1.CreateRequest{Network: "none"}},
	}})
}

// userns compares containers in user namespaces with those that have the node's ids.
func (b *bench) userns(ctx context.Context) error {
	return b.pair(ctx, pairing{start: 1.1, remove: 1.1, kinds: [2]*kindOfContainer{
		{label: "the node's ids", request: &longshorev1.CreateRequest{Userns: "host", AutoRemove: true}},
		{label: "user namespace", request: &longshorev1.CreateRequest{Userns: "private", AutoRemove: true}},
	}})
}

// pair measures how long create with start and a forced removal take.
func (b *bench) pair(ctx context.Context, p pairing) error {
	if !b.ours() {
		return nil
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(b.server.State, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := longshorev1.NewContainersClient(conn)
	for round := range warmUp + b.pods {
		for _, k := range p.kinds {
			if err := k.once(ctx, client, b.image, round >= warmUp); err != nil {
				return fmt.Errorf("%s: %w", k.label, err)
			}
		}
	}
	for _, k := range p.kinds {
		b.row("", k.label+": create and start", k.start)
		b.row("", k.label+": rm -f", k.remove)
	}
	first, second := p.kinds[0], p.kinds[1]
	for _, r := range []struct {
		what          string
		first, second []time.Duration
		bound         float64
	}{{"create and start", first.start, second.start, p.start}, {"rm -f", first.remove, second.remove, p.remove}} {
		ratio := float64(middle(r.second)) / float64(middle(r.first))
		b.value("", r.what+": times", ratio, "(%s to %s, p50; at most %.1f)", second.label, first.label, r.bound)
	}
	return nil
}

// once starts a container and removes it while it runs.
func (k *kindOfContainer) once(ctx context.Context, c longshorev1.ContainersClient, image string, counts bool) error {
	k.request.Image, k.request.Pull, k.request.Command, k.request.Start = image, "missing", program, true
	began := time.Now()
	name, err := created(c.Create(ctx, k.request))
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
