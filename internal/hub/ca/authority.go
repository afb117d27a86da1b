// Package ca is the hub's certification authority: the root by which nodes and hub know each
// other, the tokens by which nodes join, and who may call what.
//
// It does not know what nodes run. Start at Open, Service.IssueNodeCertificate and
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
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/invalid"
)

// Roles as certificates have them, and the name by which a hub answers those who join.
const (
	RoleWorker  = "swarm-worker"
	RoleManager = "swarm-manager"
	nameCA      = "swarm-ca"
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

// root is the authority's record.
type root struct {
	Cluster     string `json:"cluster"`     // the fleet's id
	Hub         string `json:"hub"`         // the hub's id among its nodes
	Certificate string `json:"certificate"` // PEM
	Key         string `json:"key"`         // PEM, PKCS #8
}

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
	pem   []byte
	cert  *x509.Certificate
	key   crypto.Signer
	pool  *x509.CertPool

	mu     sync.Mutex // guards tokens, rev, own
	tokens tokens
	rev    int64
	own    *tls.Certificate // the hub's
}

// Open reads the authority of a store, or makes one in an empty store. life is how long nodes'
// certificates are valid; 0 is NodeLife.
func Open(ctx context.Context, s *store.Store, life time.Duration) (*Authority, error) {
	if life == 0 {
		life = NodeLife
	}
	if life < time.Minute || life > rootLife/2 {
		return nil, invalid.Errorf("certificates of nodes that are valid for %s: at least a minute, at most %s", life, rootLife/2)
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
	a := &Authority{store: s, life: life}
	if err := a.read(r.Value); err != nil {
		return nil, fmt.Errorf("the hub's authority: %w: %w", errdefs.ErrDataLoss, err)
	}
	t, err := s.Get(ctx, tokensRecord)
	if err != nil {
		return nil, err
	}
	a.rev = t.Rev
	if err := json.Unmarshal(t.Value, &a.tokens); err != nil {
		return nil, fmt.Errorf("the hub's join tokens: %w: %w", errdefs.ErrDataLoss, err)
	}
	return a, nil
}

// create makes a root and the first tokens.
func create(ctx context.Context, s *store.Store) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: nameCA}, NotBefore: time.Now().Add(-backdate), NotAfter: time.Now().Add(rootLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	made, err := json.Marshal(root{Cluster: NewID(), Hub: NewID(), Certificate: encode("CERTIFICATE", der), Key: encode("PRIVATE KEY", pkcs8)})
	if err != nil {
		return err
	}
	first, err := json.Marshal(tokens{Worker: NewID()})
	if err != nil {
		return err
	}
	_, err = s.Commit(ctx, store.Write{Key: rootRecord, Value: made, Secret: true, If: store.Absent}, store.Write{Key: tokensRecord, Value: first, Secret: true, If: store.Absent})
	return err
}

func (a *Authority) read(data []byte) error {
	var r root
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	pair, err := tls.X509KeyPair([]byte(r.Certificate), []byte(r.Key))
	if err != nil {
		return err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return errors.New("it is no authority")
	}
	a.Cluster, a.Hub, a.pem, a.cert, a.key = r.Cluster, r.Hub, []byte(r.Certificate), pair.Leaf, key
	a.pool = x509.NewCertPool()
	a.pool.AddCert(a.cert)
	return nil
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
func (a *Authority) Roots() []byte { return a.pem }

// Token is the one by which workers join.
func (a *Authority) Token() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return "SWMTKN-1-" + a.digest() + "-" + a.tokens.Worker
}

// digest is what a token tells of the roots.
func (a *Authority) digest() string {
	sum := sha256.Sum256(a.pem)
	text := new(big.Int).SetBytes(sum[:]).Text(36)
	return strings.Repeat("0", 50-len(text)) + text
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
	rev, err := a.store.Commit(ctx, store.Write{Key: tokensRecord, Value: data, Secret: true, If: a.rev})
	if err != nil {
		return "", err
	}
	a.tokens, a.rev = next, rev
	return "SWMTKN-1-" + a.digest() + "-" + next.Worker, nil
}

// admits reports whether a token lets a worker join.
func (a *Authority) admits(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(a.Token())) == 1
}

// maxCSR is the size of the largest request for a certificate, in bytes.
const maxCSR = 16 << 10

// parseCSR reads a request for a certificate, as PEM, of which the key alone counts.
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

// issue makes a certificate.
func (a *Authority) issue(id, role string, key crypto.PublicKey, names ...string) ([]byte, error) {
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: id, OrganizationalUnit: []string{role}, Organization: []string{a.Cluster}},
		DNSNames: append([]string{role, id}, names...), NotBefore: now.Add(-backdate), NotAfter: now.Add(a.life),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", id, err)
	}
	return der, nil
}

// certificate is the hub's own, which is made anew when half of its time is over.
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
	der, err := a.issue(a.Hub, RoleManager, key.Public(), nameCA)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a.own = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	return a.own, nil
}
