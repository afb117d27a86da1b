// Command dispatcher is swarmkit's dispatcher, log broker and memory store as a server of their
// own, for the bench of our hub: over raft on the disk with -dir, over none without. It says on
// its standard output where it listens, and obeys the requests on its standard input, one JSON
// object a line, as test/bench/hubserver does.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/go-events"
	"github.com/moby/swarmkit/v2/api"
	"github.com/moby/swarmkit/v2/ca"
	"github.com/moby/swarmkit/v2/identity"
	"github.com/moby/swarmkit/v2/manager"
	"github.com/moby/swarmkit/v2/manager/dispatcher"
	"github.com/moby/swarmkit/v2/manager/logbroker"
	"github.com/moby/swarmkit/v2/manager/state/raft"
	"github.com/moby/swarmkit/v2/manager/state/store"
	"github.com/moby/swarmkit/v2/watch"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
)

func main() {
	dir := flag.String("dir", "", "directory for raft's log; empty is none")
	flag.Parse()
	logrus.SetLevel(logrus.ErrorLevel)
	s := &server{}
	if err := s.run(context.Background(), *dir); err != nil {
		fmt.Fprintln(os.Stderr, "dispatcher:", err)
		os.Exit(1)
	}
}

// server is the whole of it.
type server struct {
	root  ca.RootCA
	org   string
	store *store.MemoryStore
}

// memory is a cluster of one manager without raft.
type memory struct {
	store *store.MemoryStore
	queue *watch.Queue
	addr  string
}

// GetMemberlist implements dispatcher.Cluster.
func (m memory) GetMemberlist() map[uint64]*api.RaftMember {
	return map[uint64]*api.RaftMember{1: {NodeID: "manager", Addr: m.addr}}
}

// SubscribePeers implements dispatcher.Cluster.
func (m memory) SubscribePeers() (chan events.Event, func()) { return m.queue.Watch() }

// MemoryStore implements dispatcher.Cluster.
func (m memory) MemoryStore() *store.MemoryStore { return m.store }

func (s *server) run(ctx context.Context, dir string) error {
	home, err := os.MkdirTemp("", "bench-swarmkit-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	if dir == "" {
		dir = filepath.Join(home, "state")
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if s.root, err = ca.CreateRootCA("swarm-ca"); err != nil {
		return err
	}
	s.org = identity.NewID()
	id := identity.NewID()
	keys := ca.NewKeyReadWriter(ca.NewConfigPaths(home).Node, nil, manager.RaftDEKData{})
	pair, issuer, err := s.root.IssueAndSaveNewCertificates(keys, id, ca.ManagerRole, s.org)
	if err != nil {
		return err
	}
	security, _, err := ca.NewSecurityConfig(&s.root, keys, pair, issuer)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var cluster dispatcher.Cluster
	if strings.HasPrefix(dir, home) {
		s.store = store.NewMemoryStore(nil)
		cluster = memory{s.store, watch.NewQueue(), l.Addr().String()}
	} else {
		node, err := raftNode(ctx, dir, id, l.Addr().String(), keys, security)
		if err != nil {
			return err
		}
		s.store, cluster = node.MemoryStore(), node
	}
	err = s.store.Update(func(tx store.Tx) error {
		return store.CreateCluster(tx, &api.Cluster{
			ID: s.org, Spec: api.ClusterSpec{Annotations: api.Annotations{Name: store.DefaultClusterName}, CAConfig: ca.DefaultCAConfig()},
			RootCA: api.RootCA{CACert: s.root.Certs, CACertHash: s.root.Digest.String()},
		})
	})
	if err != nil {
		return err
	}
	d, logs := dispatcher.New(), logbroker.New(s.store)
	d.Init(cluster, dispatcher.DefaultConfig(), nil, security)
	failed := make(chan error, 3)
	go func() { failed <- d.Run(ctx) }()
	if err := logs.Start(ctx); err != nil {
		return err
	}
	authorize := func(ctx context.Context, roles []string) error {
		_, err := ca.AuthorizeForwardedRoleAndOrg(ctx, roles, []string{ca.ManagerRole}, s.org, nil)
		return err
	}
	g := grpc.NewServer(grpc.Creds(security.ServerTLSCreds))
	api.RegisterDispatcherServer(g, api.NewAuthenticatedWrapperDispatcherServer(d, authorize))
	api.RegisterLogBrokerServer(g, api.NewAuthenticatedWrapperLogBrokerServer(logs, authorize))
	go func() { failed <- g.Serve(l) }()
	go func() { failed <- s.obey(ctx, l.Addr().String()) }()
	return <-failed
}

// raftNode is a cluster of one manager with its log in a directory.
func raftNode(ctx context.Context, dir, id, addr string, keys *ca.KeyReadWriter, security *ca.SecurityConfig) (*raft.Node, error) {
	dek, err := manager.NewRaftDEKManager(keys, false)
	if err != nil {
		return nil, err
	}
	n := raft.NewNode(raft.NodeOptions{ID: id, Addr: addr, StateDir: dir, TickInterval: 100 * time.Millisecond, TLSCredentials: security.ClientTLSCreds, KeyRotator: dek})
	if err := n.JoinAndStart(ctx); err != nil {
		return nil, err
	}
	go func() {
		if err := n.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "raft:", err)
		}
	}()
	return n, raft.WaitForLeader(ctx, n)
}

// request and answer are those of test/bench/hubserver.
type request struct {
	Op       string
	N        int
	CSR      []byte
	Prefix   string
	Prefixes []string
	Nodes    []string
	Within   time.Duration
}

type answer struct {
	Addr         string            `json:",omitempty"`
	Nodes        map[string][]byte `json:",omitempty"`
	Began, Ended int64
	N            int
	Err          string `json:",omitempty"`
}

func (s *server) obey(ctx context.Context, addr string) error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for a := (answer{Addr: addr}); ; {
		if err := out.Encode(a); err != nil {
			return err
		}
		var r request
		if err := in.Decode(&r); err != nil {
			return err
		}
		a = answer{Began: time.Now().UnixNano()}
		var err error
		switch r.Op {
		case "seed":
			a.Nodes, err = s.seed(r.N, r.CSR)
		case "assign":
			err = s.assign(r.Prefix, r.Nodes)
		case "prepare":
			err = s.prepare(r.Prefixes, r.N)
		case "reached":
			a.N, err = s.reached(ctx, r.Prefix, r.N, r.Within)
		case "lost":
			a.N = s.lost()
		case "clear":
			err = s.clear(r.Prefix)
		default:
			err = errors.New("no such request")
		}
		if a.Ended = time.Now().UnixNano(); err != nil {
			a.Err = err.Error()
		}
	}
}

// seed makes nodes with certificates.
func (s *server) seed(n int, csr []byte) (map[string][]byte, error) {
	made := map[string][]byte{}
	var list []*api.Node
	for range n {
		id := identity.NewID()
		cert, err := s.root.ParseValidateAndSignCSR(csr, id, ca.WorkerRole, s.org)
		if err != nil {
			return nil, err
		}
		made[id] = cert
		list = append(list, &api.Node{
			ID: id, Role: api.NodeRoleWorker, Spec: api.NodeSpec{DesiredRole: api.NodeRoleWorker, Membership: api.NodeMembershipAccepted},
			Certificate: api.Certificate{CN: id, CSR: csr, Certificate: cert, Status: api.IssuanceStatus{State: api.IssuanceStateIssued}},
		})
	}
	return made, s.store.Batch(func(b *store.Batch) error {
		for _, n := range list {
			if err := b.Update(func(tx store.Tx) error { return store.CreateNode(tx, n) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// each changes tasks in as many transactions as it takes.
func (s *server) each(ids []string, do func(tx store.Tx, i int, id string) error) error {
	return s.store.Batch(func(b *store.Batch) error {
		for i, id := range ids {
			if err := b.Update(func(tx store.Tx) error { return do(tx, i, id) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// prepare creates tasks without a node: as with a scheduler, tasks exist before their assignment, because the
// dispatcher does not see one that is created with a node.
func (s *server) prepare(prefixes []string, n int) error {
	var ids []string
	for _, prefix := range prefixes {
		for i := range n {
			ids = append(ids, fmt.Sprintf("%s%d", prefix, i))
		}
	}
	return s.each(ids, func(tx store.Tx, _ int, id string) error {
		return store.CreateTask(tx, &api.Task{
			ID: id, ServiceID: "service", DesiredState: api.TaskStateRunning, Status: api.TaskStatus{State: api.TaskStatePending},
			Spec: api.TaskSpec{Runtime: &api.TaskSpec_Container{Container: &api.ContainerSpec{Image: "registry.example/agent:7", Args: []string{"serve"}}}},
		})
	})
}

// assign assigns an existing task to each of some nodes.
func (s *server) assign(prefix string, nodes []string) error {
	ids := make([]string, len(nodes))
	for i := range ids {
		ids[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return s.each(ids, func(tx store.Tx, i int, id string) error {
		t := store.GetTask(tx, id)
		t.NodeID, t.Status.State = nodes[i], api.TaskStateAssigned
		return store.UpdateTask(tx, t)
	})
}

// tasks are those of a prefix that fulfil a condition.
func (s *server) tasks(prefix string, of func(*api.Task) bool) (ids []string, err error) {
	s.store.View(func(tx store.ReadTx) {
		var all []*api.Task
		all, err = store.FindTasks(tx, store.ByIDPrefix(prefix))
		for _, t := range all {
			if of(t) {
				ids = append(ids, t.ID)
			}
		}
	})
	return ids, err
}

// reached waits until n tasks are reported as running, for a time, and returns how many are.
func (s *server) reached(ctx context.Context, prefix string, n int, within time.Duration) (int, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(within); ; {
		ids, err := s.tasks(prefix, func(t *api.Task) bool { return t.Status.State == api.TaskStateRunning })
		if err != nil || len(ids) >= n || time.Now().After(until) {
			return len(ids), err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// lost is how many nodes are not READY.
func (s *server) lost() (n int) {
	s.store.View(func(tx store.ReadTx) {
		all, _ := store.FindNodes(tx, store.All)
		for _, node := range all {
			if node.Status.State != api.NodeStatus_READY {
				n++
			}
		}
	})
	return n
}

// clear removes tasks.
func (s *server) clear(prefix string) error {
	ids, err := s.tasks(prefix, func(*api.Task) bool { return true })
	if err != nil {
		return err
	}
	return s.each(ids, func(tx store.Tx, _ int, id string) error { return store.DeleteTask(tx, id) })
}
