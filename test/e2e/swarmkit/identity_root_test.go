package swarmkit

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/moby/swarmkit/v2/api"
)

// authority signs certificates for the managers, by the protocol of CFSSL. The certificates of
// workers are valid for a minute.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	url  string
}

const workersLife = time.Minute

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	a.cert = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "the test's authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().AddDate(10, 0, 0),
	}, a.key.Public())
	key := newKey(t)
	cert := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "signer"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour)}, key.Public())
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	a.url = "https://" + l.Addr().String()
	s := &http.Server{Handler: a, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(bytes.NewBuffer(nil), "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign certifies a key; the first certificate is the authority's own.
func (a *authority) sign(template *x509.Certificate, key crypto.PublicKey) *x509.Certificate {
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-5*time.Second)
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
	if err != nil {
		a.t.Error(err)
		return nil
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Error(err)
		return nil
	}
	return cert
}

func (a *authority) pem() []byte { return encode(a.cert) }

func encode(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// ServeHTTP answers one request for a signature.
func (a *authority) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Hosts   []string `json:"hosts"`
		Request string   `json:"certificate_request"`
		Subject struct {
			CN    string
			Names []struct{ O, OU string } `json:"names"`
		} `json:"subject"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	block, _ := pem.Decode([]byte(req.Request))
	if block == nil {
		http.Error(w, "no CSR", http.StatusBadRequest)
		return
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: req.Subject.CN}, DNSNames: req.Hosts, NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, n := range req.Subject.Names {
		if n.O != "" {
			template.Subject.Organization = append(template.Subject.Organization, n.O)
		}
		if n.OU != "" {
			template.Subject.OrganizationalUnit = append(template.Subject.OrganizationalUnit, n.OU)
		}
		if n.OU == "swarm-worker" {
			template.NotAfter = time.Now().Add(workersLife)
		}
	}
	cert := a.sign(template, csr.PublicKey)
	if cert == nil {
		http.Error(w, "not signed", http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"success": true, "result": map[string]string{"certificate": string(encode(cert))}, "errors": []string{}, "messages": []string{}})
}

// certificate is the node's own.
func (r *rig) certificate() *x509.Certificate {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.node.Root, "swarm", "identity.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	var stored struct{ Certificate string }
	if err := json.Unmarshal(text, &stored); err != nil {
		r.t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(stored.Certificate))
	if block == nil {
		r.t.Fatal("no certificate is kept")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		r.t.Fatal(err)
	}
	return cert
}

// TestIdentityOverTime: tasks run on through a renewal that a manager asks for, a whole rotation of
// the Swarm's root, and then an authority that issues certificates for a minute.
func TestIdentityOverTime(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t, options{})
		web := r.create("web", 2, nil, "sleep", "1000")
		r.in(web, api.TaskStateRunning, 2)
		pids := r.pids()
		untouched := func(when string) {
			t.Helper()
			if now := r.pids(); !maps.Equal(pids, now) {
				t.Errorf("%s: %v, then %v", when, pids, now)
			}
		}

		// The manager's own rotation, of a root that it has the key of.
		first, serial := r.cluster(), r.certificate().SerialNumber
		r.updateCluster(func(s *api.ClusterSpec) { s.CAConfig.ForceRotate++ })
		r.until("the rotation has ended", func() bool {
			c := r.cluster()
			return c.RootCA.RootRotation == nil && !bytes.Equal(c.RootCA.CACert, first.RootCA.CACert)
		})
		if r.certificate().SerialNumber.Cmp(serial) == 0 {
			t.Error("the certificate is the same")
		}
		now := r.cluster().RootCA
		r.until("the node trusts the new root alone", func() bool { return bytes.Equal(r.self().Description.TLSInfo.TrustRoot, now.CACert) })
		if now.JoinTokens.Worker == first.RootCA.JoinTokens.Worker {
			t.Error("the token is the same")
		}
		untouched("the root was rotated")

		// Another root. Its certificates last for a minute.
		a := newAuthority(t)
		r.updateCluster(func(s *api.ClusterSpec) {
			s.CAConfig.SigningCACert, s.CAConfig.SigningCAKey = a.pem(), nil
			s.CAConfig.ExternalCAs = []*api.ExternalCA{{Protocol: api.ExternalCA_CAProtocolCFSSL, URL: a.url, CACert: a.pem()}}
		})
		r.until("the rotation to another authority has ended", func() bool {
			c := r.cluster()
			return c.RootCA.RootRotation == nil && bytes.Equal(bytes.TrimSpace(c.RootCA.CACert), bytes.TrimSpace(a.pem()))
		})
		serials := map[string]bool{}
		for range 4 {
			r.until("there is another certificate, for a minute", func() bool {
				c := r.certificate()
				other := c.NotAfter.Sub(c.NotBefore) < 2*workersLife && !serials[c.SerialNumber.String()]
				if other {
					serials[c.SerialNumber.String()] = true
				}
				return other
			})
		}
		untouched("the certificate was renewed")
		if s := r.status(); s.Node != r.id || r.self().Status.State != api.NodeStatus_READY {
			t.Errorf("it is node %+v, %s", s, r.self().Status.State)
		}
		r.scale(web, 3)
		r.in(web, api.TaskStateRunning, 3)
		r.removeService(web)
		r.none()
	})
}
