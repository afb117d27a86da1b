// Package hubtest runs whole hubs for tests, and clients that speak to them as nodes do: over
// TLS, with certificates that the hub has issued. Start at New.
package hubtest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/identity"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// Patience bounds a hang.
const Patience = time.Minute

// Hub is a hub of a test.
type Hub struct {
	*hub.Hub
	Addr string
	// Socket is where it serves operators, Remote is https://HOST:PORT where it serves those with a
	// certificate or a token.
	Socket, Remote string

	tb   testing.TB
	dir  string
	db   *storetest.Memory
	o    hub.Options
	stop func()

	mu    sync.Mutex // guards conns
	conns []*grpc.ClientConn

	virtual *bufconn.Listener // where nodes connect, of a hub in a bubble of testing/synctest; nil is Addr
}

// New starts a hub on loopback, with its records in memory, which ends with the test. change may change its options.
func New(tb testing.TB, change ...func(*hub.Options)) *Hub {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	h := &Hub{tb: tb, Addr: l.Addr().String(), dir: storetest.Dir(tb), db: storetest.NewMemory()}
	h.Socket = h.dir + "/hub.sock"
	h.o = hub.Options{
		Store:     storetest.Options(h.db.Open),
		Advertise: h.Addr, RenewGrace: time.Hour, Heartbeat: time.Minute, Log: slog.New(slog.DiscardHandler),
	}
	for _, fn := range change {
		fn(&h.o)
	}
	h.start(l)
	tb.Cleanup(func() { h.stop() })
	return h
}

// NewVirtual is New in a bubble of testing/synctest, whose clock goes on when all wait: nodes connect without a network.
func NewVirtual(tb testing.TB, change ...func(*hub.Options)) *Hub {
	tb.Helper()
	h := &Hub{tb: tb, Addr: "hub.example:4000", db: storetest.NewMemory(), virtual: bufconn.Listen(256 << 10)}
	h.o = hub.Options{Store: storetest.Options(h.db.Open), Advertise: h.Addr, Log: slog.New(slog.DiscardHandler)}
	for _, fn := range change {
		fn(&h.o)
	}
	h.serve(hub.Listeners{Nodes: placed{h.virtual}, Operators: bufconn.Listen(1)})
	tb.Cleanup(func() { h.stop() })
	return h
}

// placed is a listener whose connections have an address.
type placed struct{ net.Listener }

// Accept implements net.Listener.
func (p placed) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	return at{c}, err
}

type at struct{ net.Conn }

// RemoteAddr implements net.Conn.
func (at) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5000} }

func (h *Hub) start(l net.Listener) {
	h.tb.Helper()
	operators, err := new(net.ListenConfig).Listen(h.tb.Context(), "unix", h.Socket)
	if err != nil {
		h.tb.Fatal(err)
	}
	remote, err := new(net.ListenConfig).Listen(h.tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		h.tb.Fatal(err)
	}
	h.Remote = "https://" + remote.Addr().String()
	h.serve(hub.Listeners{Nodes: l, Operators: operators, Remote: remote})
}

func (h *Hub) serve(l hub.Listeners) {
	h.tb.Helper()
	opened, err := hub.Open(h.tb.Context(), h.o)
	if err != nil {
		_ = l.Nodes.Close()
		h.tb.Fatal(err)
	}
	h.Hub = opened
	ctx, cancel := context.WithCancelCause(context.Background())
	served := make(chan error, 1)
	go func() { served <- opened.Serve(ctx, l) }()
	h.stop = sync.OnceFunc(func() {
		cancel(context.Canceled)
		if err := errors.Join(<-served, opened.Close()); err != nil {
			h.tb.Errorf("the hub's end: %v", err)
		}
	})
}

// Stop ends the hub. Restart starts it again.
func (h *Hub) Stop() {
	h.tb.Helper()
	h.stop()
}

// Restart ends the hub and starts another one on the same store, at the same address, once all clients
// have seen that their connections have ended. change may change its options.
func (h *Hub) Restart(change ...func(*hub.Options)) {
	h.tb.Helper()
	h.stop()
	h.mu.Lock()
	conns := slices.Clone(h.conns)
	h.mu.Unlock()
	for ctx := Within(h.tb); len(conns) > 0; conns = conns[1:] {
		if conns[0].GetState() == connectivity.Ready && !conns[0].WaitForStateChange(ctx, connectivity.Ready) {
			h.tb.Fatal("a client has a connection to a hub that has ended")
		}
	}
	for _, fn := range change {
		fn(&h.o)
	}
	l, err := new(net.ListenConfig).Listen(h.tb.Context(), "tcp", h.Addr)
	if err != nil {
		h.tb.Fatal(err)
	}
	h.start(l)
}

// Join makes a node, by the token of workers.
func (h *Hub) Join() *Node {
	h.tb.Helper()
	n, err := h.TryJoin(Within(h.tb))
	if err != nil {
		h.tb.Fatal(err)
	}
	return n
}

// TryJoin is Join that may fail, for example as nobody accepts the node before ctx ends.
func (h *Hub) TryJoin(ctx context.Context) (*Node, error) {
	stranger := h.Dial(Raw{}, nil)
	key, csr := Request(h.tb)
	resp, err := stranger.NodeCA.IssueNodeCertificate(ctx, &swarmv1.IssueNodeCertificateRequest{Csr: csr, Token: h.CA.Authority.Token()})
	if err != nil {
		return nil, err
	}
	st, err := stranger.NodeCA.NodeCertificateStatus(ctx, &swarmv1.NodeCertificateStatusRequest{NodeId: resp.GetNodeId()})
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	id, err := identity.New(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), st.GetCertificate().GetCertificate(), h.CA.Authority.Roots())
	if err != nil {
		return nil, err
	}
	n := h.Dial(id.Credentials(), id)
	n.Pair = WithCertificate(h.tb, key, st.GetCertificate().GetCertificate()).certificates[0]
	return n, nil
}

// Node is a client of the hub: a node with an identity, or anyone else without.
type Node struct {
	*identity.Identity
	Pair       tls.Certificate // of one that has joined, for connections that it makes in another way
	Conn       *grpc.ClientConn
	Dispatcher swarmv1.DispatcherClient
	CA         swarmv1.CAClient
	NodeCA     swarmv1.NodeCAClient
	Logs       swarmv1.LogBrokerClient
	Allocator  swarmv1.ResourceAllocatorClient
}

// Dial is a client with credentials.
func (h *Hub) Dial(creds credentials.TransportCredentials, id *identity.Identity) *Node {
	h.tb.Helper()
	return h.DialFrom("127.0.0.1", creds, id)
}

// DialFrom is Dial from an address.
func (h *Hub) DialFrom(from string, creds credentials.TransportCredentials, id *identity.Identity) *Node {
	h.tb.Helper()
	conn, err := grpc.NewClient("passthrough:///"+h.Addr, grpc.WithTransportCredentials(creds), grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
		if h.virtual != nil {
			return h.virtual.DialContext(ctx)
		}
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", to)
	}))
	if err != nil {
		h.tb.Fatal(err)
	}
	h.tb.Cleanup(func() { _ = conn.Close() })
	h.mu.Lock()
	h.conns = append(h.conns, conn)
	h.mu.Unlock()
	return &Node{
		Identity: id, Conn: conn, Dispatcher: swarmv1.NewDispatcherClient(conn), CA: swarmv1.NewCAClient(conn), NodeCA: swarmv1.NewNodeCAClient(conn),
		Logs: swarmv1.NewLogBrokerClient(conn), Allocator: swarmv1.NewResourceAllocatorClient(conn),
	}
}

// Has reports whether a record has a text in it as it is stored, or had.
func (h *Hub) Has(text string) bool { return h.db.Has(text) }
