package attack

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// hubAttempts are those of an operator of a hub, and of a holder of its token.
func hubAttempts() []attempt {
	return []attempt{
		{name: "hub: a certificate that a worker takes for a manager's", actor: hubOperator, weak: weaken.HubRoles, run: passForAManager},
		{name: "hub: a request after its removal", actor: hubOperator, run: askAfterRemoval},
		{name: "hub: nodes without end", actor: hubToken, weak: weaken.HubJoins, run: func(t *testing.T, w *world) result { return w.joinAll(t, 1, 150, 110) }},
		{name: "hub: nodes without end, from many addresses", actor: hubToken, weak: weaken.HubJoins, long: true, run: func(t *testing.T, w *world) result {
			return w.joinAll(t, 20, 1400, 1300)
		}},
	}
}

// hub starts a hub that the world's node may join.
func (w *world) hub(t *testing.T, flags ...string) *nodetest.Hub {
	t.Helper()
	return nodetest.StartHubOf(t, w.bin, w.env(), freePort(t), flags...)
}

// operator creates an operator of a hub with a certificate, and returns the directory with its files.
func operator(t *testing.T, h *nodetest.Hub, name string) (dir string, err error) {
	t.Helper()
	dir = t.TempDir()
	_, err = h.CLIAs(dir, "", "--socket", h.Socket(), "operator", "certificate", name)
	return dir, err
}

// passForAManager stops the node's hub and answers at its address with operators' certificates: with those
// named like a hub, if the hub issues any, and with an ordinary one.
func passForAManager(t *testing.T, w *world) result {
	h := w.hub(t)
	w.must(t, "swarm", "join", h.Addr, "--token", h.Must("", "token"))
	defer func() { _, _ = w.CLI("swarm", "leave", "--force") }()
	nodetest.Eventually(t, "the node is ready", func() bool {
		nodes := h.Nodes()
		return len(nodes) == 1 && nodes[0].State == "ready"
	})
	var names, said []string
	for _, name := range []string{"swarm-manager", "SWARM-Manager", "mallory"} {
		dir, err := operator(t, h, name)
		switch {
		case err == nil:
			h.Must("", "operator", "rm", name) // which must not matter to the node
			names = append(names, filepath.Join(dir, name))
		case strings.Contains(err.Error(), "reserved"):
			said = append(said, name+" is reserved")
		default:
			return is(unmade, "operator %s: %v", name, err)
		}
	}
	h.Kill()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", h.Addr)
	if err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _ = l.Close() }()
	for _, name := range names {
		pair, err := tls.LoadX509KeyPair(name+".crt", name+".key")
		if err != nil {
			return is(unmade, "%v", err)
		}
		conn, err := l.Accept()
		if err != nil {
			return is(unmade, "%v", err)
		}
		// The handshake ends when the node has believed the certificate.
		err = tls.Server(conn, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}).HandshakeContext(t.Context())
		_ = conn.Close()
		if err == nil {
			return is(reached, "the node takes the operator %s for its manager", filepath.Base(name))
		}
		if !strings.Contains(err.Error(), "certificate") {
			return is(unmade, "%s: %v", filepath.Base(name), err)
		}
		said = append(said, fmt.Sprintf("%s: %v", filepath.Base(name), err))
	}
	return is(refused, "%s", strings.Join(said, ", "))
}

// askAfterRemoval asks a hub by a certificate before and after its operator was removed.
func askAfterRemoval(t *testing.T, w *world) result {
	api := freePort(t)
	h := w.hub(t, "--api-listen", api)
	dir, err := operator(t, h, "anna")
	if err != nil {
		return is(unmade, "%v", err)
	}
	ask := func() error {
		_, err := h.CLIAs(dir, "", "--hub", "https://"+api, "--ca", "ca.crt", "--cert", "anna.crt", "--key", "anna.key", "nodes")
		return err
	}
	if err := ask(); err != nil {
		return is(unmade, "before the removal: %v", err)
	}
	h.Must("", "operator", "rm", "anna")
	err = ask()
	switch {
	case err == nil:
		return is(reached, "the hub answers an operator that was removed")
	case !strings.Contains(err.Error(), "to no operator"):
		return is(unmade, "%v", err)
	}
	return is(refused, "%v", err)
}

// joinAll joins nodes by one token from some addresses of the loopback network. The attempt reaches when
// more than most have joined.
func (w *world) joinAll(t *testing.T, addresses, nodes, most int) result {
	t.Helper()
	h := w.hub(t)
	token := h.Must("", "token")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	req := &swarmv1.IssueNodeCertificateRequest{Token: token, Csr: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})}
	type end struct {
		made int
		err  error // the last refusal
	}
	ends := make(chan end, addresses)
	for i := range addresses {
		go func() {
			var e end
			defer func() { ends <- e }()
			conn, err := strangerAt(net.IPv4(127, 0, 1, byte(i+1)), h.Addr)
			if err != nil {
				e.err = err
				return
			}
			defer func() { _ = conn.Close() }()
			for range nodes / addresses {
				_, err := swarmv1.NewNodeCAClient(conn).IssueNodeCertificate(t.Context(), req)
				if err != nil {
					e.err = err
					continue
				}
				e.made++
			}
		}()
	}
	made := 0
	var last error
	for range addresses {
		e := <-ends
		if made += e.made; e.err != nil {
			last = e.err
		}
	}
	switch {
	case made > most:
		return is(reached, "%d of %d nodes have joined", made, nodes)
	case made == 0 || status.Code(last) != codes.ResourceExhausted:
		return is(unmade, "%d of %d nodes have joined: %v", made, nodes, last)
	}
	return is(bounded, "%d of %d nodes have joined: %v", made, nodes, last)
}

// strangerAt returns a connection to a hub from an address, without a certificate.
func strangerAt(from net.IP, addr string) (*grpc.ClientConn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
	return grpc.NewClient("passthrough:///"+addr, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", addr)
	}), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, NextProtos: []string{"h2"}})))
}
