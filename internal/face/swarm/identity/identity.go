// Package identity is a node's membership in a Swarm: its key and certificate, the
// managers' root certificates, and the way to get them.
//
// It must not know the engine, nor the work of a member. Start at Join and Identity.
package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"time"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/atomicfile"
)

// The roles in certificates of nodes, and the names of managers.
const (
	RoleWorker  = "swarm-worker"
	RoleManager = "swarm-manager"
	nameCA      = "swarm-ca"
)

// Identity is a node's identity in a Swarm. It does not change: a renewed certificate makes another
// one.
type Identity struct {
	NodeID    string
	ClusterID string
	Role      string // RoleWorker or RoleManager
	NotBefore time.Time
	NotAfter  time.Time

	file  file
	cert  tls.Certificate
	roots *x509.CertPool
	info  *swarmv1.NodeTLSInfo
}

// file is an identity on the disk, whole in one file, so that a key never meets
// another's certificate.
type file struct {
	Version     int    `json:"version"`
	Key         string `json:"key"`         // PEM, PKCS #8, which may be encrypted
	Certificate string `json:"certificate"` // PEM, the leaf first
	Roots       string `json:"roots"`       // PEM
	// Next are the roots that the Swarm changes to, while the certificate is not of them.
	Next string `json:"next_roots,omitempty"`
	// Issued is when the node got the certificate, which managers date back.
	Issued time.Time `json:"issued"`
}

const fileVersion = 1

// New makes an identity of PEM data from a manager. PermissionDenied if the certificate is not of
// these roots or not for this key.
func New(key, certificate, roots []byte) (*Identity, error) {
	return open(file{Version: fileVersion, Key: string(key), Certificate: string(certificate), Roots: string(roots), Issued: time.Now()})
}

// Load reads a file of Save; sealed says whether its key was encrypted. NotFound if there is none,
// FailedPrecondition without a needed passphrase, PermissionDenied if that is wrong. An expired
// certificate is no error here.
func Load(path string, passphrase []byte) (id *Identity, sealed bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("the node is in no swarm: %w", errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the node's identity: %w", err)
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, false, fmt.Errorf("read the node's identity %s: %w: %w", path, errdefs.ErrDataLoss, err)
	}
	if f.Version != fileVersion {
		return nil, false, fmt.Errorf("read the node's identity %s: it is of version %d, this agent knows %d: %w", path, f.Version, fileVersion, errdefs.ErrFailedPrecondition)
	}
	if f.Key, sealed, err = unseal(f.Key, passphrase); err != nil {
		return nil, sealed, fmt.Errorf("read the node's identity %s: %w", path, err)
	}
	id, err = open(f)
	return id, sealed, err
}

// Save writes the identity for its owner alone, the key among it: encrypted, when there
// is a passphrase.
func (id *Identity) Save(path string, passphrase []byte) error {
	f := id.file
	if len(passphrase) > 0 {
		var err error
		if f.Key, err = seal(f.Key, passphrase); err != nil {
			return err
		}
	}
	data, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("write the node's identity: %w", err)
	}
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		return fmt.Errorf("write the node's identity: %w", err)
	}
	return nil
}

func open(f file) (*Identity, error) {
	id := &Identity{file: f, roots: x509.NewCertPool()}
	refuse := func(why string) (*Identity, error) {
		return nil, fmt.Errorf("the node's certificate %s: %w", why, errdefs.ErrPermissionDenied)
	}
	if !id.roots.AppendCertsFromPEM([]byte(f.Roots)) {
		return refuse("has no roots")
	}
	own := id.roots.Clone()
	if f.Next != "" && !id.roots.AppendCertsFromPEM([]byte(f.Next)) {
		return refuse("has next roots without a certificate")
	}
	var err error
	if id.cert, err = tls.X509KeyPair([]byte(f.Certificate), []byte(f.Key)); err != nil {
		return refuse("is not for its key: " + err.Error())
	}
	leaf := id.cert.Leaf
	between := x509.NewCertPool()
	for _, der := range id.cert.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return refuse("has a damaged chain: " + err.Error())
		}
		between.AddCert(c)
	}
	at := time.Now()
	if at.After(leaf.NotAfter) { // expiry is checked elsewhere
		at = leaf.NotAfter
	}
	chains, err := leaf.Verify(x509.VerifyOptions{Roots: own, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return refuse("is not of the swarm's root: " + err.Error())
	}
	s := leaf.Subject
	if s.CommonName == "" || len(s.Organization) != 1 || len(s.OrganizationalUnit) != 1 {
		return refuse(fmt.Sprintf("does not name its owner: %s", s))
	}
	id.NodeID, id.ClusterID, id.Role = s.CommonName, s.Organization[0], s.OrganizationalUnit[0]
	id.NotBefore, id.NotAfter = leaf.NotBefore, leaf.NotAfter
	issuer := chains[0][min(1, len(chains[0])-1)]
	id.info = &swarmv1.NodeTLSInfo{TrustRoot: []byte(f.Roots), CertIssuerSubject: issuer.RawSubject, CertIssuerPublicKey: issuer.RawSubjectPublicKeyInfo}
	return id, nil
}

// TLSInfo is the node's report of its certificate to its managers.
func (id *Identity) TLSInfo() *swarmv1.NodeTLSInfo { return id.info }

// Roots are those of the Swarm, as PEM.
func (id *Identity) Roots() []byte { return []byte(id.file.Roots) }

// maxRoots is the size of the largest bundle that is believed, in bytes.
const maxRoots = 1 << 20

// WithRoots is the same identity with these roots of the Swarm, from a manager. While the node's
// certificate is not of them, both are trusted: managers may have certificates of either.
// PermissionDenied if they are not valid.
func (id *Identity) WithRoots(roots []byte) (*Identity, error) {
	f := id.file
	switch {
	case len(roots) > maxRoots:
		return nil, fmt.Errorf("the swarm's roots have %d bytes, which is more than %d: %w", len(roots), maxRoots, errdefs.ErrPermissionDenied)
	case bytes.Equal(roots, id.Roots()) && f.Next == "", f.Next != "" && f.Next == string(roots):
		return id, nil
	}
	if next, err := open(file{Version: f.Version, Key: f.Key, Certificate: f.Certificate, Issued: f.Issued, Roots: string(roots)}); err == nil {
		return next, nil
	}
	f.Next = string(roots)
	return open(f)
}

// with is the same node with another certificate. It is of the roots that the Swarm has,
// or of those that it changes to.
func (id *Identity) with(key, certificate []byte) (*Identity, error) {
	f := id.file
	f.Key, f.Certificate, f.Issued = string(key), string(certificate), time.Now()
	if f.Next != "" {
		g := f
		g.Roots, g.Next = f.Next, ""
		if next, err := open(g); err == nil {
			return next, nil
		}
	}
	return open(f)
}

// Expired reports whether the certificate's time is over: no manager talks with the
// node any more.
func (id *Identity) Expired(now time.Time) bool { return now.After(id.NotAfter) }

// The part of a certificate's time after which it is renewed lies between these, so
// that the nodes of a Swarm do not all come at once.
const (
	renewFrom = 0.5
	renewTo   = 0.8
)

// RenewAt is a random time at which the certificate should be renewed.
func (id *Identity) RenewAt() time.Time {
	part := renewFrom + rand.Float64()*(renewTo-renewFrom) //nolint:gosec // it spreads load
	from := id.NotBefore
	if id.file.Issued.After(from) && id.file.Issued.Before(id.NotAfter) {
		from = id.file.Issued
	}
	return from.Add(time.Duration(part * float64(id.NotAfter.Sub(from))))
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: plainKey, Bytes: der}), nil
}
