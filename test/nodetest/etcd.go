package nodetest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// StartEtcd runs an etcd that several hubs may have, and returns the flags to reach it. It is the one
// inside of an unused hub, which listens on a socket: connections over TLS are passed on to it. A
// test that kills members has storetest.NewEtcd.
func StartEtcd(t *testing.T) (flags []string) {
	t.Helper()
	host := StartHub(t, "127.0.0.1:2380")
	plain := httptest.NewTLSServer(nil) // for its certificate, which is also its CA's
	plain.Close()
	pair := plain.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, "key": {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go pass(from, filepath.Join(host.Dir, "store", "client.sock"))
		}
	}()
	return []string{"--etcd", "https://" + l.Addr().String(), "--etcd-cert", filepath.Join(dir, "cert"), "--etcd-key", filepath.Join(dir, "key"), "--etcd-ca", filepath.Join(dir, "cert"), "--etcd-prefix", "/several"}
}

// pass passes bytes between a connection and a socket until either ends.
func pass(from net.Conn, socket string) {
	defer func() { _ = from.Close() }()
	to, err := net.Dial("unix", socket) //nolint:noctx // it ends with its socket's server
	if err != nil {
		return
	}
	go func() {
		defer func() { _ = to.Close() }()
		_, _ = io.Copy(to, from)
	}()
	_, _ = io.Copy(from, to)
}
