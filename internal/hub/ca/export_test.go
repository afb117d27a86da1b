package ca

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"time"
)

// IssueAs makes a certificate for a node and a role that its fleet does not have.
func IssueAs(a *Authority, id, role string, key crypto.PublicKey) ([]byte, error) {
	chain, err := a.issue(id, role, key)
	return encodeChain(chain), err
}

// IssueOf is IssueAs for another fleet of the same root.
func IssueOf(a *Authority, cluster, id, role string, key crypto.PublicKey) ([]byte, error) {
	b := &Authority{Cluster: cluster, life: a.life}
	b.trust.Store(a.trust.Load())
	return IssueAs(b, id, role, key)
}

// IssueOldOperator makes an operator's certificate as earlier versions did: with its name among the
// DNS names, and usable by a server.
func IssueOldOperator(a *Authority, name string, key crypto.PublicKey) ([]byte, error) {
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: name, OrganizationalUnit: []string{RoleOperator}, Organization: []string{a.Cluster}},
		NotBefore: time.Now().Add(-backdate), NotAfter: time.Now().Add(a.life), DNSNames: []string{RoleOperator, name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	chain, err := a.certify(t, key)
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
