package image_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
)

// need skips the test when a program that it compares with is not installed.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
}

func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir, "XDG_RUNTIME_DIR="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// user and its password in the registry's htpasswd file, by bcrypt.
const (
	testUser     = "alice"
	testPassword = "wonder-land"
	testHash     = "$2y$05$abcdefghijklmnopqrstuuQAxP.4EvgFrN7KwEDh/4qWFUMuO1Wni"
)

// daemon is Debian's docker-registry.
type daemon struct {
	host string
	ca   string // its own CA, with TLS
	auth bool
}

// startRegistry runs docker-registry until the test ends.
func startRegistry(t *testing.T, tls, auth bool) daemon {
	t.Helper()
	dir := t.TempDir()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := daemon{host: l.Addr().String(), auth: auth}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %s/data}}\nhttp:\n  addr: %s\n", dir, d.host)
	if tls {
		d.ca = writeCertificates(t, dir)
		conf += fmt.Sprintf("  tls: {certificate: %s/cert.pem, key: %s/key.pem}\n", dir, dir)
	}
	if auth {
		write(t, filepath.Join(dir, "htpasswd"), testUser+":"+testHash+"\n")
		conf += fmt.Sprintf("auth: {htpasswd: {realm: test, path: %s/htpasswd}}\n", dir)
	}
	write(t, filepath.Join(dir, "config.yml"), conf)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "docker-registry", "serve", filepath.Join(dir, "config.yml"))
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("docker-registry: %.2000s", out.String())
		}
	})
	waitListening(t, d.host)
	return d
}

// waitListening waits until host accepts connections.
func waitListening(t *testing.T, host string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", host)
		if err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("nothing listens on %s: %v", host, err)
		}
	}
}

// push copies an OCI layout's image into the registry with skopeo.
func (d daemon) push(t *testing.T, source, repo string, flags ...string) string {
	t.Helper()
	args := []string{"skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"}
	if d.auth {
		args = append(args, "--dest-creds="+testUser+":"+testPassword)
	}
	ref := d.host + "/" + repo
	run(t, t.TempDir(), append(append(args, flags...), source, "docker://"+ref)...)
	return ref
}

// writeCertificates makes a CA and a server certificate for 127.0.0.1 and
// returns the CA's path.
func writeCertificates(t *testing.T, dir string) string {
	t.Helper()
	caKey, ca := certificate(t, nil, nil, "test CA")
	key, cert := certificate(t, caKey, ca, "127.0.0.1")
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(dir, "ca.pem"), "CERTIFICATE", ca.Raw)
	writePEM(t, filepath.Join(dir, "cert.pem"), "CERTIFICATE", cert.Raw)
	writePEM(t, filepath.Join(dir, "key.pem"), "EC PRIVATE KEY", der)
	return filepath.Join(dir, "ca.pem")
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	write(t, path, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}

func certificate(t *testing.T, caKey *ecdsa.PrivateKey, ca *x509.Certificate, name string) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: ca == nil, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if ca == nil {
		tmpl.KeyUsage |= x509.KeyUsageCertSign
		ca, caKey = tmpl, key
	} else {
		tmpl.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, cert
}
