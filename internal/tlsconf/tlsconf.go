// Package tlsconf makes a TLS listener's config from the files that a section of the
// configuration names.
//
// It does not know who listens. Start at Files.Server.
package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
)

// Files are the paths of PEM files, and the prefix of their configuration keys for messages.
type Files struct {
	// Cert and Key are the listener's certificate and key.
	Cert, Key string
	// ClientCA has certificates of authorities, or is "". With it, only clients with a
	// certificate of one of these authorities are accepted.
	ClientCA string
	// Prefix is the prefix of cert, key and client_ca in the configuration, such as "metrics.".
	Prefix string
}

// Server reads the files. Only HTTP/1.1 is negotiated, because all listeners take over
// connections, or read and write at the same time. InvalidArgument when ClientCA contains no
// certificate.
func (f Files) Server() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("read %[1]scert and %[1]skey: %[2]w", f.Prefix, err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if f.ClientCA == "" {
		return conf, nil
	}
	pem, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("read %sclient_ca: %w", f.Prefix, err)
	}
	conf.ClientCAs = x509.NewCertPool()
	if !conf.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read %sclient_ca: %s contains no certificate: %w", f.Prefix, f.ClientCA, errdefs.ErrInvalidArgument)
	}
	conf.ClientAuth = tls.RequireAndVerifyClientCert
	return conf, nil
}
