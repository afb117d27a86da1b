package kubelet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// pki are the files of a certificate authority, of the kubelet's certificate
// and of its client's.
type pki struct {
	ca, cert, key, clientCert, clientKey string
	t                                    *testing.T
}

func newPKI(t *testing.T, dir string) pki {
	t.Helper()
	mkdir(t, dir)
	p := pki{t: t}
	p.ca = filepath.Join(dir, "ca.crt")
	p.cert, p.key = filepath.Join(dir, "kubelet.crt"), filepath.Join(dir, "kubelet.key")
	p.clientCert, p.clientKey = filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
	authority := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey := sign(t, authority, authority, nil, p.ca, "")
	sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "node"}, IPAddresses: []net.IP{net.ParseIP(nodeIP)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, authority, caKey, p.cert, p.key)
	sign(t, &x509.Certificate{
		Subject:  pkix.Name{CommonName: "client", Organization: []string{"system:masters"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authority, caKey, p.clientCert, p.clientKey)
	return p
}

// sign writes a certificate, signed by itself when there is no key, and its key.
func sign(t *testing.T, c, by *x509.Certificate, byKey *ecdsa.PrivateKey, certFile, keyFile string) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if byKey == nil {
		byKey = key
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, by, &key.PublicKey, byKey)
	if err != nil {
		t.Fatal(err)
	}
	write(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	if keyFile != "" {
		b, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b})))
	}
	return key
}

// rest is how client-go reaches the kubelet.
func (p pki) rest() *rest.Config {
	return &rest.Config{
		Host:            "https://" + nodeIP + ":10250",
		TLSClientConfig: rest.TLSClientConfig{CAFile: p.ca, CertFile: p.clientCert, KeyFile: p.clientKey},
	}
}

func (p pki) client() *http.Client {
	p.t.Helper()
	cert, err := tls.LoadX509KeyPair(p.clientCert, p.clientKey)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.clientWith(cert)
}

func (p pki) clientWith(certs ...tls.Certificate) *http.Client {
	p.t.Helper()
	ca, err := os.ReadFile(p.ca)
	if err != nil {
		p.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: certs, MinVersion: tls.VersionTLS12}}
	p.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func fetch(ctx context.Context, c *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, b)
	}
	return b, err
}
