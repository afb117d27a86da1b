package swarmtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Authority is the root of a Swarm.
type Authority struct {
	Cluster string
	// Life is how long the certificates of nodes are valid from now on; they begin an
	// hour ago.
	Life time.Duration

	mu    sync.Mutex // guards root, next, cross, before
	root  root
	next  *root  // that the Swarm changes to
	cross []byte // the next one certified by the present one, as PEM
	// before are the roots of before.
	before []*x509.Certificate
}

// root is a key that certifies.
type root struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

// NewAuthority makes one.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	return &Authority{Cluster: "cluster" + rand.Text()[:8], Life: 30 * time.Minute, root: newRoot(tb)}
}

// As is an authority of the same root for another Swarm or another time.
func (a *Authority) As(cluster string, life time.Duration) *Authority {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &Authority{Cluster: cluster, Life: life, root: a.root}
}

func newRoot(tb testing.TB) root {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "swarm-ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return root{key: key, cert: cert, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// Roots are the root as PEM.
func (a *Authority) Roots() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.root.pem
}

// Rotate begins to change the root: certificates are of the next one from now on, which
// the present one has certified.
func (a *Authority) Rotate(tb testing.TB) {
	tb.Helper()
	next := newRoot(tb)
	a.mu.Lock()
	defer a.mu.Unlock()
	t := *next.cert
	t.SerialNumber = big.NewInt(time.Now().UnixNano())
	der, err := x509.CreateCertificate(rand.Reader, &t, a.root.cert, next.key.Public(), a.root.key)
	if err != nil {
		tb.Fatal(err)
	}
	a.next, a.cross = &next, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Rotated ends that: the Swarm's root is the next one.
func (a *Authority) Rotated() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.before = append(a.before, a.root.cert)
	a.root, a.next, a.cross = *a.next, nil, nil
}

// Issuer is the present issuer of certificates, as nodes report it.
func (a *Authority) Issuer() (subject, publicKey []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	by := a.root.cert
	if a.next != nil {
		by = a.next.cert
	}
	return by.RawSubject, by.RawSubjectPublicKeyInfo
}

// Token is a join token with a secret made of a word.
func (a *Authority) Token(word string) string {
	sum := sha256.Sum256(a.Roots())
	digest := new(big.Int).SetBytes(sum[:]).Text(36)
	return fmt.Sprintf("SWMTKN-1-%s%s-%s%s", strings.Repeat("0", 50-len(digest)), digest, word, strings.Repeat("0", 25-len(word)))
}

// Issue certifies a key as a node's, as PEM.
func (a *Authority) Issue(node, role string, public any, dns ...string) ([]byte, error) {
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: node, OrganizationalUnit: []string{role}, Organization: []string{a.Cluster}},
		DNSNames: append([]string{role, node}, dns...), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(a.Life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	by := a.root
	if a.next != nil {
		by = *a.next
	}
	der, err := x509.CreateCertificate(rand.Reader, t, by.cert, public, by.key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), a.cross...), nil
}

// serverConfig is a manager's TLS: with a certificate of its own, which Certify renews.
func (a *Authority) serverConfig(certificate func() *tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		pool := x509.NewCertPool()
		for _, c := range append([]*x509.Certificate{a.root.cert}, a.before...) {
			pool.AddCert(c)
		}
		return &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, Certificates: []tls.Certificate{*certificate()}}, nil
	}}
}

// managerCertificate makes one that is valid for a time from now on.
func (a *Authority) managerCertificate(tb testing.TB) *tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	chain, err := a.Issue("manager", "swarm-manager", key.Public(), "swarm-ca")
	if err != nil {
		tb.Fatal(err)
	}
	c := &tls.Certificate{PrivateKey: key}
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		c.Certificate = append(c.Certificate, block.Bytes)
	}
	return c
}

// Certify gives the manager another certificate, by an authority that may be another
// one's.
func (m *Manager) Certify(by *Authority) {
	m.tb.Helper()
	c := by.managerCertificate(m.tb)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cert = c
}

// IssueBy has the certificates of nodes issued by another authority.
func (m *Manager) IssueBy(by *Authority) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.issuer = by
}

// Ask sends the session another message: whether the node must renew its certificate, and its role.
// An issued certificate ends the first.
func (m *Manager) Ask(renew bool, role swarmv1.NodeRole) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renew, m.role = renew, role
	close(m.pushed)
	m.pushed = make(chan struct{})
}

type ca struct {
	swarmv1.UnimplementedCAServer
	m *Manager
}

func (c ca) GetRootCACertificate(context.Context, *swarmv1.GetRootCACertificateRequest) (*swarmv1.GetRootCACertificateResponse, error) {
	if err := c.m.ask("GetRootCACertificate"); err != nil {
		return nil, err
	}
	return &swarmv1.GetRootCACertificateResponse{Certificate: c.m.Authority.Roots()}, nil
}

type nodeCA struct {
	swarmv1.UnimplementedNodeCAServer
	m *Manager
}

func (n nodeCA) IssueNodeCertificate(ctx context.Context, req *swarmv1.IssueNodeCertificateRequest) (*swarmv1.IssueNodeCertificateResponse, error) {
	if err := n.m.ask("IssueNodeCertificate"); err != nil {
		return nil, err
	}
	var role, id string
	switch req.GetToken() {
	case "": // a renewal, by the node's own certificate
		var err error
		if id, err = caller(ctx); err != nil {
			return nil, err
		}
		n.m.mu.Lock()
		if role = "swarm-worker"; n.m.role == swarmv1.NodeRole_MANAGER {
			role = "swarm-manager"
		}
		n.m.mu.Unlock()
	case n.m.Token:
		role = "swarm-worker"
	case n.m.ManagerToken:
		role = "swarm-manager"
	default:
		return nil, status.Error(codes.InvalidArgument, "A valid join token is necessary to join this cluster")
	}
	block, _ := pem.Decode(req.GetCsr())
	if block == nil {
		return nil, status.Error(codes.InvalidArgument, "no CSR")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	if id == "" {
		id = fmt.Sprintf("node%d", len(n.m.nodes)+1)
	}
	cert, err := n.m.issuer.Issue(id, role, csr.PublicKey)
	if err != nil {
		return nil, err
	}
	n.m.nodes[id] = &swarmv1.Certificate{Csr: req.GetCsr(), Certificate: cert, Cn: id, Status: &swarmv1.IssuanceStatus{State: swarmv1.IssuanceStatus_ISSUED}}
	n.m.renew = false
	n.m.issued++
	n.m.wake()
	return &swarmv1.IssueNodeCertificateResponse{NodeId: id, NodeMembership: swarmv1.NodeSpec_ACCEPTED}, nil
}

func (n nodeCA) NodeCertificateStatus(_ context.Context, req *swarmv1.NodeCertificateStatusRequest) (*swarmv1.NodeCertificateStatusResponse, error) {
	if err := n.m.ask("NodeCertificateStatus"); err != nil {
		return nil, err
	}
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	c := n.m.nodes[req.GetNodeId()]
	if c == nil {
		return nil, status.Error(codes.NotFound, "node not found")
	}
	return &swarmv1.NodeCertificateStatusResponse{Status: c.GetStatus(), Certificate: c}, nil
}
