package ca

import (
	"crypto"
	"time"
)

// IssueAs makes a certificate for a node and a role that its fleet does not have.
func IssueAs(a *Authority, id, role string, key crypto.PublicKey) ([]byte, error) {
	chain, err := a.issue(id, role, key)
	return encodeChain(chain), err
}

// IssueAt makes a worker's certificate that was valid some time ago.
func IssueAt(a *Authority, id string, key crypto.PublicKey, end time.Time) ([]byte, error) {
	b := &Authority{Cluster: a.Cluster, life: time.Until(end)}
	b.trust.Store(a.trust.Load())
	return IssueAs(b, id, RoleWorker, key)
}

// ParseCSR reads a request for a certificate.
func ParseCSR(csr []byte) (crypto.PublicKey, error) { return parseCSR(csr) }
