// Command hubserver is a whole hub for the bench: longshore-hub serve, but its standard input has the
// writes for the store, one JSON object a line, and its standard output the answers. A fleet is scheduled for
// the step with a global service alone: the others measure the work after a round.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof" //nolint:gosec // it is served only where -pprof says
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/etcd"
)

func main() {
	dir := flag.String("dir", "", "directory for the database")
	profiles := flag.String("pprof", "", "address of net/http/pprof; empty is none")
	flag.Parse()
	if *profiles != "" {
		go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(*profiles, nil)) }() //nolint:gosec // a profile of a bench
	}
	if err := run(context.Background(), *dir); err != nil {
		fmt.Fprintln(os.Stderr, "hubserver:", err)
		os.Exit(1)
	}
}

// run serves until its standard input ends.
func run(ctx context.Context, dir string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	nodes, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	h, err := hub.Open(ctx, hub.Options{
		Store: store.Options{Open: etcd.Options{Dir: dir}.Open, Wrapping: store.Wrapping{Passphrase: []byte("of the bench")}}, Advertise: nodes.Addr().String(), Hold: true,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	operators, err := new(net.ListenConfig).Listen(ctx, "unix", filepath.Join(dir, "hub.sock"))
	if err != nil {
		return errors.Join(err, h.Close())
	}
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, hub.Listeners{Nodes: nodes, Operators: operators}) }()
	go func() { cancel((&server{h}).obey(ctx, nodes.Addr().String())) }()
	err = errors.Join(<-served, h.Close())
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, io.EOF) {
		err = errors.Join(err, cause)
	}
	return err
}

type server struct{ *hub.Hub }

// Request is a request to the server.
type Request struct {
	Op       string
	N        int      // of nodes, tasks
	CSR      []byte   // of the nodes' one key
	Prefix   string   // of tasks
	Prefixes []string // of tasks that are to be, N of each
	Nodes    []string // each gets a task
	Within   time.Duration
}

// Answer is the answer to a Request. Began and Ended are the time in nanoseconds.
type Answer struct {
	Addr         string            `json:",omitempty"`
	Nodes        map[string][]byte `json:",omitempty"` // the certificates, by node
	Began, Ended int64
	N            int
	Err          string `json:",omitempty"`
}

func (s *server) obey(ctx context.Context, addr string) error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	a := Answer{Addr: addr}
	for {
		if err := out.Encode(a); err != nil {
			return err
		}
		var r Request
		if err := in.Decode(&r); err != nil {
			return err
		}
		var err error
		a = Answer{Began: time.Now().UnixNano()}
		switch r.Op {
		case "seed":
			a.Nodes, err = s.seed(ctx, r.N, r.CSR)
		case "assign":
			err = s.assign(ctx, r.Prefix, r.Nodes)
		case "prepare": // a task is written once, with its node
		case "reached":
			a.N, err = s.reached(ctx, r.Prefix, r.N, r.Within)
		case "lost":
			a.N = s.lost()
		case "global":
			err = s.global(ctx, r.N, r.Within)
		case "clear":
			err = s.clear(ctx, r.Prefix)
		default:
			err = errors.New("no such request")
		}
		a.Ended = time.Now().UnixNano()
		if err != nil {
			a.Err = err.Error()
		}
	}
}

// seed makes nodes with certificates, as joining does.
func (s *server) seed(ctx context.Context, n int, csr []byte) (map[string][]byte, error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(128)
	var mu sync.Mutex // guards made
	made := map[string][]byte{}
	for range n {
		group.Go(func() error {
			resp, err := s.CA.IssueNodeCertificate(ctx, &swarmv1.IssueNodeCertificateRequest{Csr: csr, Token: s.CA.Authority.Token()})
			if err != nil {
				return err
			}
			node, _, _ := s.Inventory.Node(resp.GetNodeId())
			mu.Lock()
			defer mu.Unlock()
			made[node.GetId()] = node.GetCertificate().GetCertificate()
			return nil
		})
	}
	return made, group.Wait()
}

// commit writes in as many transactions as it takes.
func (s *server) commit(ctx context.Context, writes []store.Write) error {
	for group := range slices.Chunk(writes, store.MaxWrites) {
		if _, err := s.Inventory.Commit(ctx, group...); err != nil {
			return err
		}
	}
	return nil
}

// assign writes a task for each of some nodes.
func (s *server) assign(ctx context.Context, prefix string, nodes []string) error {
	writes := make([]store.Write, len(nodes))
	for i, node := range nodes {
		id := fmt.Sprintf("%s%d", prefix, i)
		writes[i] = inventory.Put(inventory.Tasks, id, &swarmv1.Task{
			Id: id, NodeId: node, ServiceId: "service", DesiredState: swarmv1.TaskState_RUNNING,
			Spec: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: &swarmv1.ContainerSpec{Image: "registry.example/agent:7", Args: []string{"serve"}}}},
		}, store.Any)
	}
	return s.commit(ctx, writes)
}

// reached waits until n tasks are reported as running, for a time, and returns how many are.
func (s *server) reached(ctx context.Context, prefix string, n int, within time.Duration) (int, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(within); ; {
		running := 0
		for id, t := range s.Inventory.Tasks() {
			if strings.HasPrefix(id, prefix) && t.State() == swarmv1.TaskState_RUNNING {
				running++
			}
		}
		if running >= n || time.Now().After(until) {
			return running, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// global declares a global service, schedules it, and waits until it runs on so many nodes.
func (s *server) global(ctx context.Context, n int, within time.Duration) error {
	spec := []byte(`{"annotations": {"name": "agent"}, "task": {"container": {"image": "registry.example/agent:7", "args": ["serve"]}}, "global": {}}`)
	if _, err := fleet.Apply(ctx, s.Inventory, fleet.Declaration{Name: "bench", Services: []json.RawMessage{spec}}, false); err != nil {
		return err
	}
	scheduling, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = fleet.Run(scheduling, s.Inventory, term{s.Inventory}, hub.DefaultMoveAfter, func(time.Duration) {}, slog.New(slog.DiscardHandler)) // it ends with scheduling
	}()
	running, err := s.reached(ctx, "", n, within)
	stop(context.Canceled)
	<-done
	if err == nil && running < n {
		err = fmt.Errorf("%d of %d tasks run", running, n)
	}
	return err
}

// term commits changes: no other hub leads.
type term struct{ *inventory.Inventory }

// Commit implements fleet.Term.
func (t term) Commit(ctx context.Context, writes ...store.Write) error {
	_, err := t.Inventory.Commit(ctx, writes...)
	return err
}

// lost is how many nodes are not Ready.
func (s *server) lost() (n int) {
	for _, node := range s.Inventory.Nodes() {
		if node.GetStatus().GetState() != swarmv1.NodeStatus_READY {
			n++
		}
	}
	return n
}

// clear removes tasks.
func (s *server) clear(ctx context.Context, prefix string) error {
	var writes []store.Write
	for id := range s.Inventory.Tasks() {
		if strings.HasPrefix(id, prefix) {
			writes = append(writes, inventory.Delete(inventory.Tasks, id, store.Any), inventory.Delete(inventory.Statuses, id, store.Any))
		}
	}
	return s.commit(ctx, writes)
}
