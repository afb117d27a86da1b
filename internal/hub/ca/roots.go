package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/store"
)

// root is the authority's record.
type root struct {
	Cluster string `json:"cluster"` // the fleet's id
	Hub     string `json:"hub"`     // the hub's id among its nodes
	pair
	// Next is the root that takes the place of this one, while nodes renew their certificates.
	Next *pair `json:"next,omitempty"`
	// Cross are certificates of later roots by earlier ones, the newest first: a node that was away
	// and still trusts an old root finds a chain to the newest.
	Cross []string `json:"cross,omitempty"` // PEM
}

// pair is a root certificate with its key.
type pair struct {
	Certificate string `json:"certificate"` // PEM
	Key         string `json:"key"`         // PEM, PKCS #8
}

// maxCross is how many roots of before are vouched by.
const maxCross = 4

// trust is the roots at one time. Nobody changes it.
type trust struct {
	record root
	rev    int64
	pem    []byte // the roots for nodes to trust
	// issuer is the present issuing certificate, key its key, and between the certificates that
	// follow each issued one.
	issuer  *x509.Certificate
	key     crypto.Signer
	between [][]byte // DER
	// pool and keys are the roots of clients that are let in; keys are their public keys, as DER.
	pool *x509.CertPool
	keys map[string]bool
}

// makeRoot makes a root certificate.
func makeRoot() (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	t := rootTemplate()
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return pair{}, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8)}, nil
}

func rootTemplate() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: nameCA}, NotBefore: time.Now().Add(-backdate), NotAfter: time.Now().Add(rootLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
}

// open reads a pair.
func (p pair) open() (*x509.Certificate, crypto.Signer, error) {
	opened, err := tls.X509KeyPair([]byte(p.Certificate), []byte(p.Key))
	if err != nil {
		return nil, nil, err
	}
	key, ok := opened.PrivateKey.(crypto.Signer)
	if !ok || !opened.Leaf.IsCA {
		return nil, nil, errors.New("it is not a certificate authority")
	}
	return opened.Leaf, key, nil
}

// readTrust reads the authority's record.
func readTrust(r store.Record) (*trust, error) {
	t := &trust{rev: r.Rev, pool: x509.NewCertPool(), keys: map[string]bool{}}
	if err := json.Unmarshal(r.Value, &t.record); err != nil {
		return nil, err
	}
	accept := func(c *x509.Certificate) {
		t.pool.AddCert(c)
		t.keys[string(c.RawSubjectPublicKeyInfo)] = true
	}
	var err error
	if t.issuer, t.key, err = t.record.open(); err != nil {
		return nil, err
	}
	t.pem = []byte(t.record.Certificate)
	accept(t.issuer)
	if t.record.Next != nil {
		if t.issuer, t.key, err = t.record.Next.open(); err != nil {
			return nil, err
		}
		accept(t.issuer)
	}
	for _, text := range t.record.Cross {
		block, _ := pem.Decode([]byte(text))
		if block == nil {
			return nil, errors.New("a certificate of a previous root cannot be read")
		}
		t.between = append(t.between, block.Bytes)
	}
	return t, nil
}

// digest is the digest of the roots in tokens.
func (t *trust) digest() string {
	sum := sha256.Sum256(t.pem)
	text := new(big.Int).SetBytes(sum[:]).Text(36)
	return strings.Repeat("0", 50-len(text)) + text
}

// has reports whether a node says that its certificate is of the issuer of now.
func (t *trust) has(info *swarmv1.NodeTLSInfo) bool {
	return string(info.GetCertIssuerSubject()) == string(t.issuer.RawSubject) && string(info.GetCertIssuerPublicKey()) == string(t.issuer.RawSubjectPublicKeyInfo)
}

// Rotating reports whether another root takes the place of the present one.
func (a *Authority) Rotating() bool { return a.trust.Load().record.Next != nil }

// Digest is the digest of the root in join tokens.
func (a *Authority) Digest() string { return a.trust.Load().digest() }

// RotateRoot begins to exchange the root: a new one, cross-signed by the present one, issues
// certificates, and nodes are asked to renew theirs. FailedPrecondition while it is exchanged
// already.
func (a *Authority) RotateRoot(ctx context.Context) error {
	t := a.trust.Load()
	if t.record.Next != nil {
		return fmt.Errorf("a root rotation is already in progress: %w", errdefs.ErrFailedPrecondition)
	}
	next, err := makeRoot()
	if err != nil {
		return err
	}
	cert, _, err := next.open()
	if err != nil {
		return err
	}
	cross := rootTemplate()
	cross.NotAfter = t.issuer.NotAfter
	// Both have the same name, so that it would count as self-signed.
	cross.SubjectKeyId, cross.AuthorityKeyId = cert.SubjectKeyId, t.issuer.SubjectKeyId
	der, err := x509.CreateCertificate(rand.Reader, cross, t.issuer, cert.PublicKey, t.key)
	if err != nil {
		return err
	}
	r := t.record
	r.Next = &next
	r.Cross = append([]string{encode("CERTIFICATE", der)}, r.Cross...)
	r.Cross = r.Cross[:min(len(r.Cross), maxCross)]
	return a.saveRoot(ctx, r, t.rev)
}

// FinishRotation replaces the old root by the new one: certificates of the old one are no longer
// accepted, and the join tokens change. FailedPrecondition without a rotation.
func (a *Authority) FinishRotation(ctx context.Context) error {
	t := a.trust.Load()
	if t.record.Next == nil {
		return fmt.Errorf("no root rotation is in progress: %w", errdefs.ErrFailedPrecondition)
	}
	r := t.record
	r.pair, r.Next = *r.Next, nil
	return a.saveRoot(ctx, r, t.rev)
}

func (a *Authority) saveRoot(ctx context.Context, r root, condition int64) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	rev, err := a.store.Commit(ctx, events.With(ctx, []store.Write{{Key: rootRecord, Value: data, Secret: true, If: condition}})...)
	if err != nil {
		return err
	}
	return a.takeRoot(store.Record{Key: rootRecord, Value: data, Rev: rev})
}

// takeRoot uses a record of the root, unless it has a newer one.
func (a *Authority) takeRoot(r store.Record) error {
	t, err := readTrust(r)
	if err != nil {
		return fmt.Errorf("the hub's authority: %w: %w", errdefs.ErrDataLoss, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.trust.Load(); now != nil && now.rev >= t.rev {
		return nil
	}
	a.trust.Store(t)
	a.own = nil
	close(a.changed)
	a.changed = make(chan struct{})
	return nil
}

// Changed is closed when the roots change next.
func (a *Authority) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// Run follows other hubs' changes of the root and the tokens, until ctx ends.
func (a *Authority) Run(ctx context.Context) error {
	return a.store.Follow(ctx, "ca/", func(records []store.Record) error {
		for _, r := range records {
			var err error
			switch r.Key {
			case rootRecord:
				err = a.takeRoot(r)
			case tokensRecord:
				err = a.takeTokens(r)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
