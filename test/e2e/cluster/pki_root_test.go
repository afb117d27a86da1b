package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// pki is the cluster's certificate authority. Its files are in dir, NAME.crt and
// NAME.key.
type pki struct {
	t   *testing.T
	dir string
	ca  *x509.Certificate
	key *ecdsa.PrivateKey
}

func newPKI(t *testing.T, dir string) *pki {
	t.Helper()
	p := &pki{t: t, dir: dir, ca: &x509.Certificate{
		Subject: pkix.Name{CommonName: "cluster"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}}
	mkdir(t, dir)
	p.key = p.issue("ca", p.ca)
	return p
}

func (p *pki) cert(name string) string    { return filepath.Join(p.dir, name+".crt") }
func (p *pki) keyFile(name string) string { return filepath.Join(p.dir, name+".key") }

// issue writes the certificate c and its new key. The first one is the authority's.
func (p *pki) issue(name string, c *x509.Certificate) *ecdsa.PrivateKey {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	by := p.key
	if by == nil {
		by = key
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		p.t.Fatal(err)
	}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(48*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, p.ca, &key.PublicKey, by)
	if err != nil {
		p.t.Fatal(err)
	}
	write(p.t, p.cert(name), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	b, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	write(p.t, p.keyFile(name), string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b})))
	return key
}

// server issues a certificate for a server at these addresses and names.
func (p *pki) server(name string, hosts ...string) {
	p.t.Helper()
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	p.issue(name, c)
}

// client issues a certificate for a user of the API and returns a configuration
// with it, which is in the file kubeconfig(name) too.
func (p *pki) client(name, user string, groups ...string) *rest.Config {
	p.t.Helper()
	p.issue(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	const url = "https://" + controlIP + ":6443"
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: url, CertificateAuthority: p.cert("ca")}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {ClientCertificate: p.cert(name), ClientKey: p.keyFile(name)}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "c",
	}, p.kubeconfig(name))
	if err != nil {
		p.t.Fatal(err)
	}
	return &rest.Config{
		Host: url, QPS: 200, Burst: 400,
		TLSClientConfig: rest.TLSClientConfig{CAFile: p.cert("ca"), CertFile: p.cert(name), KeyFile: p.keyFile(name)},
	}
}

func (p *pki) kubeconfig(name string) string { return filepath.Join(p.dir, name+".conf") }
