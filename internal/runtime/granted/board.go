package granted

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/grant/board/broker"
)

// Board is where servers and clients find each other.
type Board interface {
	// Handle returns a new handle for a program of the container.
	Handle(ctx context.Context, w broker.Want) (*os.File, error)
	// Bind ends the container's handles with its process, Drop does it now.
	Bind(ctx context.Context, container string, pid int) error
	Drop(ctx context.Context, container string) error
}

// identities are the labels that identify a program to others. Every handle has all of them, so that nobody can add one
// that the container lacks: a client's begin with client_, a server's with server_.
func identities(c core.RuntimeCreate) map[grant.Kind]map[string]string {
	id := c.Identity
	labels := map[string]string{
		"owner": string(id.Owner), "namespace": id.Namespace, "pod": id.Pod, "container": id.Container, "container_id": string(c.ID),
		"kubernetes_namespace": "", "kubernetes_pod_name": "", "kubernetes_pod_attempt": "", "kubernetes_container_name": "", "kubernetes_container_attempt": "",
	}
	if id.Owner == core.OwnerCRI {
		labels["kubernetes_namespace"], labels["kubernetes_pod_name"], labels["kubernetes_container_name"] = id.Namespace, id.Pod, id.Container
		labels["kubernetes_pod_attempt"] = strconv.FormatUint(uint64(id.PodAttempt), 10)
		labels["kubernetes_container_attempt"] = strconv.FormatUint(uint64(id.ContainerAttempt), 10)
	}
	all := map[grant.Kind]map[string]string{}
	for _, kind := range []grant.Kind{grant.Server, grant.Client} {
		all[kind] = map[string]string{}
		for k, v := range labels {
			all[kind][string(kind)+"_"+k] = v
		}
	}
	return all
}

// handle opens a handle on the board. The grant's labels have the container's identity already.
func (r *Runtime) handle(ctx context.Context, h *opened, c core.RuntimeCreate, g grant.Grant) error {
	if r.o.Board == nil {
		return fmt.Errorf("there is no board here: %w", errdefs.ErrNotImplemented)
	}
	identity, labels := identities(c)[g.Kind], maps.Clone(g.Labels)
	for k := range identity {
		delete(labels, k)
	}
	w := broker.Want{
		Container: string(c.ID), Realm: board.Realm{Owner: string(c.Identity.Owner), Namespace: c.Identity.Namespace}, Rights: board.Serve,
		Identity: identity, Labels: labels,
	}
	if g.Kind == grant.Client {
		w.Rights = board.Connect
	}
	f, err := r.o.Board.Handle(ctx, w)
	if errors.Is(err, broker.ErrInvalid) {
		err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	if err == nil {
		h.add(f, 0)
	}
	return err
}

// bind ends the container's handles with its process. An agent that cannot tell that now tells it when it starts again.
func (r *Runtime) bind(ctx context.Context, id core.ID, pid int) {
	if err := r.o.Board.Bind(ctx, string(id), pid); err != nil && r.o.Logger != nil {
		r.o.Logger.WarnContext(ctx, "could not tell the board a container's process", "container", string(id), "error", err)
	}
}

// Delete implements core.Runtime.
func (r *Runtime) Delete(ctx context.Context, id core.ID, force bool) error {
	err := r.Runtime.Delete(ctx, id, force)
	if err == nil && r.o.Board != nil {
		err = r.o.Board.Drop(ctx, string(id))
	}
	return err
}
