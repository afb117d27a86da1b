// Package ca is the hub's certification authority: the root certificate of nodes and hubs, the join
// tokens, and the authorization of calls.
//
// It does not know the work of nodes. Start at Open, Service.IssueNodeCertificate and
// Service.Credentials.
package ca

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/invalid"
)

// The authority's records; both are sealed.
const (
	rootRecord   = "ca/root"
	tokensRecord = "ca/tokens"
)

// How long certificates are valid, and how much they are dated back for clocks that differ.
const (
	rootLife = 20 * 365 * 24 * time.Hour
	NodeLife = 90 * 24 * time.Hour
	backdate = time.Hour
)

// tokens is the record of the secrets of join tokens.
type tokens struct {
	Worker string `json:"worker"`
}

// Authority issues certificates.
type Authority struct {
	// Cluster is the fleet's id, Hub the hub's.
	Cluster, Hub string

	store *store.Store
	life  time.Duration // of nodes' certificates
	trust atomic.Pointer[trust]
	// issued counts the certificates.
	issued atomic.Uint64

	mu      sync.Mutex // guards tokens, rev, own, changed
	tokens  tokens
	rev     int64
	own     *tls.Certificate // the hub's
	changed chan struct{}    // closed when the roots change next
}

// Open reads the authority of a store, or makes one in an empty store. life is how long nodes'
// certificates are valid; 0 is NodeLife.
func Open(ctx context.Context, s *store.Store, life time.Duration) (*Authority, error) {
	if life == 0 {
		life = NodeLife
	}
	if life < time.Minute || life > rootLife/2 {
		return nil, invalid.Errorf("certificates of nodes cannot be valid for %s: at least a minute, at most %s", life, rootLife/2)
	}
	_, err := s.Get(ctx, rootRecord)
	if errdefs.IsNotFound(err) {
		if err = create(ctx, s); errdefs.IsAborted(err) { // another hub was first
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	r, err := s.Get(ctx, rootRecord)
	if err != nil {
		return nil, err
	}
	a := &Authority{store: s, life: life, changed: make(chan struct{})}
	if err := a.takeRoot(r); err != nil {
		return nil, err
	}
	a.Cluster, a.Hub = a.trust.Load().record.Cluster, a.trust.Load().record.Hub
	t, err := s.Get(ctx, tokensRecord)
	if err != nil {
		return nil, err
	}
	return a, a.takeTokens(t)
}

// create makes a root and the first tokens.
func create(ctx context.Context, s *store.Store) error {
	first, err := makeRoot()
	if err != nil {
		return err
	}
	made, err := json.Marshal(root{Cluster: NewID(), Hub: NewID(), pair: first})
	if err != nil {
		return err
	}
	token, err := json.Marshal(tokens{Worker: NewID()})
	if err != nil {
		return err
	}
	_, err = s.Commit(ctx, store.Write{Key: rootRecord, Value: made, Secret: true, If: store.Absent}, store.Write{Key: tokensRecord, Value: token, Secret: true, If: store.Absent})
	return err
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it never fails
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b)
}

// idDigits is the length of an id, and of a token's secret.
const idDigits = 25

// NewID makes a random id, in base 36.
func NewID() string {
	limit := new(big.Int).Exp(big.NewInt(36), big.NewInt(idDigits), nil)
	n, err := rand.Int(rand.Reader, limit)
	if err != nil {
		panic(err) // it never fails
	}
	text := n.Text(36)
	return strings.Repeat("0", idDigits-len(text)) + text
}

// Roots are the authority's certificates, as PEM.
func (a *Authority) Roots() []byte { return a.trust.Load().pem }

// Token is the join token of workers.
func (a *Authority) Token() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tokenLocked()
}

func (a *Authority) tokenLocked() string {
	return "SWMTKN-1-" + a.trust.Load().digest() + "-" + a.tokens.Worker
}

// takeTokens uses a record of the tokens, unless it has a newer one.
func (a *Authority) takeTokens(r store.Record) error {
	var next tokens
	if err := json.Unmarshal(r.Value, &next); err != nil {
		return fmt.Errorf("the hub's join tokens: %w: %w", errdefs.ErrDataLoss, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Rev > a.rev {
		a.tokens, a.rev = next, r.Rev
	}
	return nil
}

// RotateToken makes another token. The one before is not accepted any more; nodes that have
// joined by it stay.
func (a *Authority) RotateToken(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := tokens{Worker: NewID()}
	data, err := json.Marshal(next)
	if err != nil {
		return "", err
	}
	rev, err := a.store.Commit(ctx, events.With(ctx, []store.Write{{Key: tokensRecord, Value: data, Secret: true, If: a.rev}})...)
	if err != nil {
		return "", err
	}
	a.tokens, a.rev = next, rev
	return a.tokenLocked(), nil
}

// admits reports whether a token lets a worker join.
func (a *Authority) admits(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(a.Token())) == 1
}

// maxCSR is the size of the largest request for a certificate, in bytes.
const maxCSR = 16 << 10

// parseCSR reads a request for a certificate, as PEM. Only its key counts.
func parseCSR(csr []byte) (crypto.PublicKey, error) {
	if len(csr) > maxCSR {
		return nil, invalid.Plainf("the CSR has %d bytes, at most %d are read", len(csr), maxCSR)
	}
	block, rest := pem.Decode(csr)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, invalid.Plainf("CSR Decode failed")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, invalid.Plainf("CSR Decode failed")
	}
	switch key := req.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return nil, invalid.Plainf("the CSR's key is too weak")
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < 2048 || n > 4096 {
			return nil, invalid.Plainf("the CSR's key has %d bits; 2048 to 4096 are accepted", n)
		}
	default:
		return nil, invalid.Plainf("the CSR's key is of an unknown kind")
	}
	if err := req.CheckSignature(); err != nil {
		return nil, invalid.Plainf("the CSR is not signed by its key")
	}
	return req.PublicKey, nil
}

// issue makes a certificate, which is the first of those that it returns; the others lead to
// roots of before.
func (a *Authority) issue(id, role string, key crypto.PublicKey, more ...string) ([][]byte, error) {
	return a.issueFor(a.life, id, role, key, more...)
}

// issueFor is issue of a certificate that is valid for a time.
func (a *Authority) issueFor(life time.Duration, id, role string, key crypto.PublicKey, more ...string) ([][]byte, error) {
	now := time.Now()
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: id, OrganizationalUnit: []string{role}, Organization: []string{a.Cluster}},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life),
	}
	t.DNSNames, t.ExtKeyUsage = names(id, role, more)
	return a.certify(t, key)
}

// certify makes a certificate of a template with its subject, usage and times.
func (a *Authority) certify(t *x509.Certificate, key crypto.PublicKey) ([][]byte, error) {
	by := a.trust.Load()
	t.SerialNumber, t.BasicConstraintsValid = serial(), true
	t.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	der, err := x509.CreateCertificate(rand.Reader, t, by.issuer, key, by.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", t.Subject.CommonName, err)
	}
	a.issued.Add(1)
	return append([][]byte{der}, by.between...), nil
}

// Issued is how many certificates this hub has issued.
func (a *Authority) Issued() uint64 { return a.issued.Load() }

// encodeChain is certificates as PEM, one after the other.
func encodeChain(chain [][]byte) []byte {
	var text strings.Builder
	for _, der := range chain {
		text.WriteString(encode("CERTIFICATE", der))
	}
	return []byte(text.String())
}

// Certificates returns the certificate of the hub and that of the issuer.
func (a *Authority) Certificates() (own, issuer *x509.Certificate, err error) {
	c, err := a.certificate()
	if err != nil {
		return nil, nil, err
	}
	return c.Leaf, a.trust.Load().issuer, nil
}

// certificate returns the hub's own, which is renewed after half of its time.
func (a *Authority) certificate() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.own != nil && time.Until(a.own.Leaf.NotAfter) > a.life/2 {
		return a.own, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	chain, err := a.issue(a.Hub, RoleManager, key.Public(), nameCA, NameAPI)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, err
	}
	a.own = &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}
	return a.own, nil
}
