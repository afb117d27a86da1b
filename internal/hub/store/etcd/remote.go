package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/longshore/longshore/internal/hub/store"
)

// Remote is an etcd of the user's, which each of its hubs reaches by TLS with a client certificate.
type Remote struct {
	Endpoints []string // https://HOST:PORT, its members'
	// Cert, Key and CA are files, as PEM: the hub's certificate and key for etcd, and the issuer of
	// the members' certificates. The first two are read again for each connection.
	Cert, Key, CA string
	// Prefix begins each of the hub's keys; "" is DefaultPrefix. Each fleet has its own.
	Prefix string
}

// How soon a member that does not answer is left for another one.
const (
	dialTimeout   = 5 * time.Second
	probeAfter    = 5 * time.Second
	probeTimeout  = 3 * time.Second
	answerTimeout = 30 * time.Second
)

// remote connects to the user's etcd.
func (o Options) remote(ctx context.Context, log *slog.Logger) (*DB, error) {
	r := *o.Remote
	if r.Prefix == "" {
		r.Prefix = DefaultPrefix
	}
	if !path.IsAbs(r.Prefix) || path.Clean(r.Prefix) != strings.TrimSuffix(r.Prefix, "/") {
		return nil, fmt.Errorf("the prefix of the hub's keys in etcd, %q, is not a clean path that begins with /: %w", r.Prefix, errdefs.ErrInvalidArgument)
	}
	if len(r.Endpoints) == 0 {
		return nil, fmt.Errorf("no etcd member is configured: %w", errdefs.ErrInvalidArgument)
	}
	for _, e := range r.Endpoints {
		if u, err := url.Parse(e); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.User != nil || u.Path != "" {
			return nil, fmt.Errorf("the member of etcd %q must be https://HOST:PORT: %w", e, errdefs.ErrInvalidArgument)
		}
	}
	config, err := r.tls()
	if err != nil {
		return nil, err
	}
	ending := new(atomic.Bool)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: r.Endpoints, TLS: config, Context: context.WithoutCancel(ctx), Logger: zap.New(logCore{log: log, ending: ending}),
		DialTimeout: dialTimeout, DialKeepAliveTime: probeAfter, DialKeepAliveTimeout: probeTimeout, PermitWithoutStream: true,
		MaxCallSendMsgSize: maxRequest + 1<<20,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", classed(err))
	}
	d := &DB{client: client, prefix: strings.TrimSuffix(r.Prefix, "/") + "/", ending: ending, log: log, full: make(chan struct{}, 1)}
	d.closed = sync.OnceValue(d.close)
	return d, nil
}

// tls returns the TLS configuration for members.
func (r Remote) tls() (*tls.Config, error) {
	if r.Cert == "" || r.Key == "" || r.CA == "" {
		return nil, fmt.Errorf("etcd requires TLS: a certificate, its key and the CA of etcd are needed: %w", errdefs.ErrInvalidArgument)
	}
	pem, err := os.ReadFile(r.CA)
	if err != nil {
		return nil, fmt.Errorf("the CA of etcd: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("the file of the CA of etcd, %s, has no certificate: %w", r.CA, errdefs.ErrInvalidArgument)
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(r.Cert, r.Key)
		if err != nil {
			return nil, fmt.Errorf("the certificate for etcd: %w", err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() },
	}, nil
}

// bounded adds a timeout to a request to the user's etcd: without one it would wait as long as no
// member answers.
func (d *DB) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.Alone() {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, answerTimeout, errSilent)
}

// errSilent is why a question to the user's etcd has ended.
var errSilent = fmt.Errorf("etcd did not answer in %s: %w", answerTimeout, errdefs.ErrUnavailable)

// answer is classed for requests with a bounded context.
func answer(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return classed(err)
}

// loan is an etcd lease of a record, 0 in a database of one hub.
type loan struct {
	d    *DB
	key  string
	id   clientv3.LeaseID
	stop context.CancelFunc
}

// Lend implements store.DB.
func (d *DB) Lend(ctx context.Context, key string, value []byte, ttl time.Duration) (*store.Loan, error) {
	l := &loan{d: d, key: key, stop: func() {}}
	asked, done := d.bounded(ctx)
	defer done()
	lost := make(chan struct{})
	var options []clientv3.OpOption
	if !d.Alone() {
		granted, err := d.client.Grant(asked, int64((ttl+time.Second-1)/time.Second))
		if err != nil {
			return nil, fmt.Errorf("lend record %s: %w", key, answer(asked, err))
		}
		l.id = granted.ID
		kept, stop := context.WithCancel(context.WithoutCancel(ctx))
		l.stop = stop
		answers, err := d.client.KeepAlive(kept, l.id)
		if err != nil {
			stop()
			return nil, fmt.Errorf("lend record %s: %w", key, answer(asked, err))
		}
		go func() {
			defer close(lost)
			for range answers {
			}
		}()
		options = append(options, clientv3.WithLease(l.id))
	}
	if _, err := d.client.Put(asked, d.prefix+key, string(value), options...); err != nil {
		l.stop()
		return nil, fmt.Errorf("lend record %s: %w", key, answer(asked, err))
	}
	return &store.Loan{Lost: lost, Return: l.giveBack}, nil
}

func (l *loan) giveBack(ctx context.Context) error {
	defer l.stop()
	ctx, done := l.d.bounded(ctx)
	defer done()
	var err error
	if l.id != 0 {
		_, err = l.d.client.Revoke(ctx, l.id)
	} else {
		_, err = l.d.client.Delete(ctx, l.d.prefix+l.key)
	}
	if err != nil {
		return fmt.Errorf("release record %s: %w", l.key, answer(ctx, err))
	}
	return nil
}
