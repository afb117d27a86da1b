package ca

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/invalid"
)

// operatorRecords begin the keys of the records of operators.
const operatorRecords = "operator/"

// Scope is the scope of an operator's rights. Each includes those before it.
type Scope string

// The scopes.
const (
	ScopeRead  Scope = "read"
	ScopeApply Scope = "apply"
	ScopeAdmin Scope = "admin"
)

// scopes are all of them, in their order.
func scopes() []Scope { return []Scope{ScopeRead, ScopeApply, ScopeAdmin} }

// Includes reports whether s includes the scope needs.
func (s Scope) Includes(needs Scope) bool {
	has, wants := slices.Index(scopes(), s), slices.Index(scopes(), needs)
	return wants >= 0 && has >= wants
}

// The kinds of operators.
const (
	KindCertificate = "certificate"
	KindToken       = "token"
)

// Operator is an operator with access to a hub over TCP, until its record is removed.
type Operator struct {
	Name    string    `json:"name"`
	Scope   Scope     `json:"scope"`
	Kind    string    `json:"kind"`
	Created time.Time `json:"created"`
	By      string    `json:"by"`
	Expires time.Time `json:"expires"`
	// Hash is the SHA-256 of the token, or of the certificate's public key.
	Hash []byte `json:"hash"`
}

// The limits of operators.
const (
	maxOperators = 1000
	operatorDays = 365
	maxDays      = 3650
	tokenPrefix  = "lshub_"
)

var operatorName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9.-]{0,62}$`)

// Operators are the operators with access over TCP.
type Operators struct {
	a   *Authority
	log *slog.Logger

	mu     sync.RWMutex // guards all, rev, holds, warned
	all    map[string]Operator
	rev    int64          // all has at least this revision
	holds  map[*hold]bool // requests in progress
	warned map[string]bool
}

// hold is a request of an operator that is in progress.
type hold struct {
	op     Operator
	cancel context.CancelCauseFunc
}

// NewOperators are none before Run.
func NewOperators(a *Authority, log *slog.Logger) *Operators {
	return &Operators{a: a, log: log, all: map[string]Operator{}, holds: map[*hold]bool{}, warned: map[string]bool{}}
}

// Run follows their records until ctx ends.
func (o *Operators) Run(ctx context.Context) error {
	return o.a.store.Follow(ctx, operatorRecords, func([]store.Record) error {
		records, rev, err := o.a.store.List(ctx, operatorRecords)
		if err != nil {
			return err
		}
		all := map[string]Operator{}
		for _, r := range records {
			var next Operator
			if err := json.Unmarshal(r.Value, &next); err != nil {
				return fmt.Errorf("record %s: %w: %w", r.Key, errdefs.ErrDataLoss, err)
			}
			all[next.Name] = next
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if rev >= o.rev { // not a list of before the last change that was made here
			o.setLocked(all, rev)
		}
		return nil
	})
}

// List are all operators, by name.
func (o *Operators) List() []Operator {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return slices.SortedFunc(maps.Values(o.all), func(a, b Operator) int { return cmp.Compare(a.Name, b.Name) })
}

// Create lets an operator in: with a certificate for the key of a CSR, or with a token. Only the
// token's hash is kept.
func (o *Operators) Create(ctx context.Context, op Operator, days int, csr []byte) (token string, certificate []byte, err error) {
	switch {
	case !operatorName.MatchString(op.Name):
		return "", nil, invalid.Errorf("the name of the operator %.80q: letters, digits, '.' and '-', at most 63", op.Name)
	case Reserved(op.Name):
		return "", nil, invalid.Errorf("the name of the operator %q is reserved: names that begin with swarm- or longshore-, and ids of nodes, are not for operators", op.Name)
	case !slices.Contains(scopes(), op.Scope):
		return "", nil, invalid.Errorf("the scope %.40q is none of read, apply and admin", op.Scope)
	case days < 0 || days > maxDays:
		return "", nil, invalid.Errorf("an operator may be valid for at most %d days", maxDays)
	case len(o.List()) >= maxOperators:
		return "", nil, fmt.Errorf("there are %d operators already: %w", maxOperators, errdefs.ErrResourceExhausted)
	}
	op.Created = time.Now().UTC().Truncate(time.Second)
	op.Expires = op.Created.AddDate(0, 0, cmp.Or(days, operatorDays))
	if len(csr) > 0 {
		key, err := parseCSR(csr)
		if err != nil {
			return "", nil, err
		}
		if _, ok := key.(*ecdsa.PublicKey); !ok {
			return "", nil, invalid.Errorf("the key of an operator must be an ECDSA key")
		}
		public, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			return "", nil, err
		}
		chain, err := o.a.issueFor(time.Until(op.Expires), op.Name, RoleOperator, key)
		if err != nil {
			return "", nil, err
		}
		sum := sha256.Sum256(public)
		op.Kind, op.Hash, certificate = KindCertificate, sum[:], encodeChain(chain)
	} else {
		token = tokenPrefix + op.Name + "_" + NewID() + NewID()
		sum := sha256.Sum256([]byte(token))
		op.Kind, op.Hash = KindToken, sum[:]
	}
	data, err := json.Marshal(op)
	if err != nil {
		return "", nil, err
	}
	rev, err := o.a.store.Commit(ctx, events.With(ctx, []store.Write{{Key: operatorRecords + op.Name, Value: data, Secret: true, If: store.Absent}})...)
	if errdefs.IsAborted(err) {
		return "", nil, fmt.Errorf("operator %s already exists: %w", op.Name, errdefs.ErrAlreadyExists)
	}
	if err != nil {
		return "", nil, err
	}
	o.change(rev, func(all map[string]Operator) { all[op.Name] = op })
	return token, certificate, nil
}

// change applies a transaction to all, before Run receives it.
func (o *Operators) change(rev int64, fn func(all map[string]Operator)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := maps.Clone(o.all)
	fn(all)
	o.setLocked(all, max(o.rev, rev))
}

// setLocked takes over the operators of a revision, and ends the requests of those that were removed.
func (o *Operators) setLocked(all map[string]Operator, rev int64) {
	o.all, o.rev = all, rev
	for h := range o.holds {
		if !o.hasLocked(h.op) {
			h.cancel(errUnknown)
		}
	}
	for name, op := range all {
		if op.Kind == KindCertificate && Reserved(name) && !o.warned[name] {
			o.warned[name] = true
			o.log.Warn("an operator has a name that is reserved: its certificate may pass for a hub's with nodes of earlier versions and with dockerd; remove the operator, create it under another name, and rotate the root with `longshore-hub ca rotate`", "operator", name)
		}
	}
}

// hasLocked reports whether an operator's certificate or token is still valid.
func (o *Operators) hasLocked(op Operator) bool {
	now, ok := o.all[op.Name]
	return ok && now.Kind == op.Kind && bytes.Equal(now.Hash, op.Hash)
}

// Hold returns a context for a request of an operator. It ends when the operator is removed or its
// time is over, or with release. Unauthenticated if that is so already.
func (o *Operators) Hold(ctx context.Context, op Operator) (limited context.Context, release func(), err error) {
	until, stop := context.WithDeadlineCause(ctx, op.Expires, errUnknown)
	limited, cancel := context.WithCancelCause(until)
	h := &hold{op, cancel}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.hasLocked(op) {
		cancel(errUnknown)
		stop()
		return nil, nil, errUnknown
	}
	o.holds[h] = true
	return limited, func() {
		o.mu.Lock()
		delete(o.holds, h)
		o.mu.Unlock()
		cancel(nil)
		stop()
	}, nil
}

// Remove lets an operator in no more. NotFound when there is none of the name.
func (o *Operators) Remove(ctx context.Context, name string) error {
	r, err := o.a.store.Get(ctx, operatorRecords+name)
	if errdefs.IsNotFound(err) || !operatorName.MatchString(name) {
		return fmt.Errorf("there is no operator %.100s: %w", name, errdefs.ErrNotFound)
	}
	if err != nil {
		return err
	}
	rev, err := o.a.store.Commit(ctx, events.With(ctx, []store.Write{{Key: operatorRecords + name, Delete: true, If: r.Rev}})...)
	if err != nil {
		return err
	}
	o.change(rev, func(all map[string]Operator) { delete(all, name) })
	return nil
}

// errUnknown is the only error for refused clients, without details.
var errUnknown = fmt.Errorf("the certificate or the token belongs to no operator: %w", errdefs.ErrUnauthenticated)

// find returns the operator of a name, if shows is its secret.
func (o *Operators) find(kind, name string, shows []byte) (Operator, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	op, ok := o.all[name]
	sum := sha256.Sum256(shows)
	if subtle.ConstantTimeCompare(sum[:], op.Hash) != 1 || !ok || op.Kind != kind || !time.Now().Before(op.Expires) {
		return Operator{}, errUnknown
	}
	return op, nil
}

// ByToken is the operator of a token. Unauthenticated when there is none.
func (o *Operators) ByToken(token string) (Operator, error) {
	rest, _ := strings.CutPrefix(token, tokenPrefix)
	name, _, _ := strings.Cut(rest, "_")
	return o.find(KindToken, name, []byte(token))
}

// ByCertificate is the operator of a certificate and those that lead to its root. They are verified for
// each request: a connection may be older than the root that is trusted now.
func (o *Operators) ByCertificate(certs []*x509.Certificate) (Operator, error) {
	if err := o.verify(certs); err != nil {
		return Operator{}, errUnknown
	}
	return o.find(KindCertificate, certs[0].Subject.CommonName, certs[0].RawSubjectPublicKeyInfo)
}

// verify returns an error unless a certificate is of an operator of this fleet.
func (o *Operators) verify(certs []*x509.Certificate) error {
	caller, err := transport{a: o.a}.verify(certs, time.Now())
	if err != nil {
		return err
	}
	if caller == nil || caller.Role != RoleOperator || caller.Cluster != o.a.Cluster {
		return errors.New("the certificate belongs to no operator")
	}
	return nil
}

// TLS is the TLS of a listener for operators, with a certificate, or a token later.
func (o *Operators) TLS() *tls.Config {
	verify := func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return nil
		}
		return o.verify(s.PeerCertificates)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert, SessionTicketsDisabled: true, VerifyConnection: verify,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return o.a.certificate() },
	}
}
