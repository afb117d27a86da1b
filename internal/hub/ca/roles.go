package ca

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/weaken"
)

// Roles as certificates have them, and the name at which a hub answers nodes that join.
const (
	RoleWorker  = "swarm-worker"
	RoleManager = "swarm-manager"
	nameCA      = "swarm-ca"
)

// RoleOperator is the role in certificates of operators; it allows no call of a node's.
const RoleOperator = "longshore-operator"

// NameAPI is a hub's name towards operators.
const NameAPI = "longshore-hub"

// names returns the DNS names of a certificate and its usages. A node dials a hub by the name of a
// role, so a certificate with that name and the right to serve could pass for the hub's. An
// operator only dials: its certificate has no names and cannot serve.
func names(id, role string, more []string) ([]string, []x509.ExtKeyUsage) {
	if role == RoleOperator && !weaken.Off(weaken.HubRoles) {
		return nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	return append([]string{role, id}, more...), []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
}

// idForm matches the ids that NewID makes.
var idForm = regexp.MustCompile(fmt.Sprintf("^[0-9a-z]{%d}$", idDigits))

// Reserved reports whether a name may not be that of an operator: names of roles, names at which a
// hub answers, and ids of nodes. Certificates compare names without regard to case.
func Reserved(name string) bool {
	if weaken.Off(weaken.HubRoles) {
		return false
	}
	name = strings.ToLower(name)
	return strings.HasPrefix(name, "swarm-") || strings.HasPrefix(name, "longshore-") || idForm.MatchString(name)
}

// IsHub returns an error unless the peer's certificate has the role of a hub. The names in a
// certificate do not say that: versions before roles were checked put an operator's name among them.
func IsHub(s tls.ConnectionState) error {
	if role := s.PeerCertificates[0].Subject.OrganizationalUnit; !slices.Equal(role, []string{RoleManager}) {
		return fmt.Errorf("the peer is not a hub: its certificate has the role %q", role)
	}
	return nil
}
