package hubtest

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
)

// Wants compares an answer's code and text.
func Wants(t testing.TB, what string, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("%s: %v, want %s with %q", what, err, code, text)
	}
}

// Opened is a session of a node: its stream, and the first message.
type Opened struct {
	grpc.ServerStreamingClient[swarmv1.SessionMessage]
	First *swarmv1.SessionMessage
}

// Within is a context that ends a test which hangs.
func Within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), Patience, errors.New("the test hangs"))
	t.Cleanup(cancel)
	return ctx
}

// Open opens a session, or resumes one.
func Open(t testing.TB, n *Node, id string) (Opened, error) {
	t.Helper()
	stream, err := n.Dispatcher.Session(Within(t), &swarmv1.SessionRequest{SessionId: id, Description: &swarmv1.NodeDescription{Hostname: "edge", TlsInfo: n.TLSInfo()}})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	return Opened{stream, first}, err
}

// MustOpen is Open that must succeed.
func MustOpen(t testing.TB, n *Node, id string) Opened {
	t.Helper()
	o, err := Open(t, n, id)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Assignments opens the stream of a session's assignments.
func Assignments(t testing.TB, n *Node, session string) grpc.ServerStreamingClient[swarmv1.AssignmentsMessage] {
	t.Helper()
	stream, err := n.Dispatcher.Assignments(Within(t), &swarmv1.AssignmentsRequest{SessionId: session})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// Receive is the next message of a stream.
func Receive[T any](t testing.TB, stream grpc.ServerStreamingClient[T]) *T {
	t.Helper()
	msg, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// Ended reads a stream to its end.
func Ended[T any](stream grpc.ServerStreamingClient[T]) (messages int, err error) {
	for {
		if _, err := stream.Recv(); err != nil {
			return messages, err
		}
		messages++
	}
}

// Commit changes the inventory's records.
func Commit(t testing.TB, h *Hub, writes ...store.Write) {
	t.Helper()
	if _, err := h.Inventory.Commit(Within(t), writes...); err != nil {
		t.Fatal(err)
	}
}

// Task is a record of a task of a node, with the secrets and configs that it needs.
func Task(id, node string, desired swarmv1.TaskState, needs ...string) store.Write {
	c := &swarmv1.ContainerSpec{Image: "busybox"}
	for _, need := range needs {
		if name, ok := strings.CutPrefix(need, "config-"); ok {
			c.Configs = append(c.Configs, &swarmv1.ConfigReference{ConfigId: need, ConfigName: name})
		} else {
			c.Secrets = append(c.Secrets, &swarmv1.SecretReference{SecretId: need, SecretName: need})
		}
	}
	return inventory.Put(inventory.Tasks, id, &swarmv1.Task{
		Id: id, NodeId: node, ServiceId: "service", DesiredState: desired, Spec: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: c}},
	}, store.Any)
}

// Until waits until the inventory shows something.
func Until(t testing.TB, h *Hub, what string, ok func() bool) {
	t.Helper()
	ctx := Within(t)
	for {
		next := h.Inventory.Next()
		if ok() {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

// State is the state of a node.
func State(h *Hub, node string) swarmv1.NodeStatus_State {
	n, _, _ := h.Inventory.Node(node)
	return n.GetStatus().GetState()
}

// Request makes a key and a request for a certificate.
func Request(t testing.TB) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// Raw is TLS without any check, with a certificate or without, which says nothing of HTTP/2: as
// a node does after its certificate was renewed.
type Raw struct{ certificates []tls.Certificate }

// ClientHandshake implements credentials.TransportCredentials.
func (r Raw) ClientHandshake(ctx context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Client(c, &tls.Config{InsecureSkipVerify: true, Certificates: r.certificates})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	return conn, credentials.TLSInfo{State: conn.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

// ServerHandshake implements credentials.TransportCredentials.
func (Raw) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("a client")
}

// Info implements credentials.TransportCredentials.
func (Raw) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (r Raw) Clone() credentials.TransportCredentials { return r }

// OverrideServerName implements credentials.TransportCredentials.
func (Raw) OverrideServerName(string) error { return nil }

// WithCertificate is a node's, for a raw connection.
func WithCertificate(t testing.TB, key *ecdsa.PrivateKey, chain []byte) Raw {
	t.Helper()
	return Raw{[]tls.Certificate{Pair(t, key, chain)}}
}

// Pair is a chain of certificates, as PEM, with its key.
func Pair(t testing.TB, key crypto.PrivateKey, chain []byte) tls.Certificate {
	t.Helper()
	c := tls.Certificate{PrivateKey: key}
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		c.Certificate = append(c.Certificate, block.Bytes)
	}
	return c
}
