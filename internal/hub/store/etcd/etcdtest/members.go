package etcdtest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/longshore/longshore/internal/hub/store/etcd"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// memberEnv has a process be a member of etcd instead of a test.
const memberEnv = "LONGSHORE_TEST_ETCD_MEMBER"

// member is what such a process is told.
type member struct {
	Name, Dir, Client, Peer, Cluster, Cert, Key, CA string
}

// Main is what TestMain calls in packages that use NewEtcd.
func Main(m *testing.M) {
	if text := os.Getenv(memberEnv); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, "member of etcd:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve is a member, until it is killed.
func serve(text string) error {
	var m member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	at := func(s string) []url.URL {
		u, err := url.Parse(s)
		if err != nil {
			panic(err)
		}
		return []url.URL{*u}
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.LogLevel = m.Name, m.Dir, "error"
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = at(m.Client), at(m.Client)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = at(m.Peer), at(m.Peer)
	cfg.InitialCluster = m.Cluster
	tls := &cfg.ClientTLSInfo
	tls.CertFile, tls.KeyFile, tls.TrustedCAFile, tls.ClientCertAuth = m.Cert, m.Key, m.CA, true
	cfg.TickMs, cfg.ElectionMs = 100, 1000
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	return <-e.Err()
}

// Etcd is a cluster of etcd whose members are processes. Clients need a certificate.
type Etcd struct {
	etcd.Remote

	tb      testing.TB
	members []member
	running []*exec.Cmd
}

// NewEtcd starts a cluster of some members, which ends with the test. The package's TestMain calls Main.
func NewEtcd(tb testing.TB, size int) *Etcd {
	tb.Helper()
	dir := storetest.Dir(tb)
	e := &Etcd{tb: tb, running: make([]*exec.Cmd, size)}
	host := loopback(tb)
	e.Cert, e.Key, e.CA = certificates(tb, dir, host)
	cluster := ""
	for i := range size {
		m := member{
			Name: fmt.Sprintf("m%d", i), Dir: filepath.Join(dir, fmt.Sprintf("m%d", i)), Cert: e.Cert, Key: e.Key, CA: e.CA,
			Client: fmt.Sprintf("https://%s:%d", host, 2379+10*i), Peer: fmt.Sprintf("http://%s:%d", host, 2380+10*i),
		}
		if i > 0 {
			cluster += ","
		}
		cluster += m.Name + "=" + m.Peer
		e.members, e.Endpoints = append(e.members, m), append(e.Endpoints, m.Client)
	}
	for i := range e.members {
		e.members[i].Cluster = cluster
		e.Start(i)
	}
	tb.Cleanup(func() {
		for i := range e.running {
			e.Kill(i)
		}
	})
	return e
}

// Start starts a member, again after Kill.
func (e *Etcd) Start(i int) {
	e.tb.Helper()
	text, err := json.Marshal(e.members[i])
	if err != nil {
		e.tb.Fatal(err)
	}
	cmd := exec.Command(os.Args[0]) //nolint:forbidigo // it ends by Kill
	cmd.Env = append(os.Environ(), memberEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		e.tb.Fatal(err)
	}
	e.running[i] = cmd
}

// Kill ends a member as a crash does.
func (e *Etcd) Kill(i int) {
	if cmd := e.running[i]; cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		e.running[i] = nil
	}
}

// loopback is an address at which nothing listens yet: tests run beside each other.
func loopback(tb testing.TB) string {
	tb.Helper()
	for range 100 {
		host := fmt.Sprintf("127.%d.%d.%d", 1+mathrand.IntN(250), mathrand.IntN(250), 1+mathrand.IntN(250))
		l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", host+":2379")
		if err == nil {
			_ = l.Close()
			return host
		}
	}
	tb.Fatal("no free address of loopback")
	return ""
}

// certificates makes a CA and a certificate for members and clients.
func certificates(tb testing.TB, dir, host string) (cert, key, authority string) {
	tb.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "etcd-ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "hub"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.ParseIP(host)},
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		var b bytes.Buffer
		if err := pem.Encode(&b, &pem.Block{Type: kind, Bytes: der}); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			tb.Fatal(err)
		}
		return path
	}
	root, err := x509.CreateCertificate(rand.Reader, ca, ca, signer.Public(), signer)
	if err != nil {
		tb.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, pair.Public(), signer)
	if err != nil {
		tb.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(pair)
	if err != nil {
		tb.Fatal(err)
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", pkcs8), write("ca.pem", "CERTIFICATE", root)
}
