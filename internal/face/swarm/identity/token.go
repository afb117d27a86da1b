package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"math/big"
	"strings"

	"github.com/longshore/longshore/internal/invalid"
)

// Token lets a node join a Swarm. It names the Swarm by the digest of its roots, so that the node
// can check a manager before it has a certificate.
type Token struct {
	text   string
	digest string // in base 36
	// FIPS says that the Swarm admits only nodes with FIPS certified cryptography.
	FIPS bool
}

// The lengths of a token's parts, in digits of base 36.
const (
	digestDigits = 50
	secretDigits = 25
)

// ParseToken reads SWMTKN-1-DIGEST-SECRET or SWMTKN-2-FIPS-DIGEST-SECRET.
// InvalidArgument, without the token's text, which is a secret.
func ParseToken(text string) (Token, error) {
	parts := strings.Split(text, "-")
	t := Token{text: text}
	switch {
	case len(parts) == 4 && parts[0] == "SWMTKN" && parts[1] == "1":
		parts = parts[2:]
	case len(parts) == 5 && parts[0] == "SWMTKN" && parts[1] == "2" && (parts[2] == "0" || parts[2] == "1"):
		t.FIPS, parts = parts[2] == "1", parts[3:]
	default:
		return Token{}, invalid.Errorf("the join token is not of the form SWMTKN-1-DIGEST-SECRET")
	}
	if !base36(parts[0], digestDigits) || !base36(parts[1], secretDigits) {
		return Token{}, invalid.Errorf("the join token is damaged: its parts are not %d and %d letters and digits", digestDigits, secretDigits)
	}
	t.digest = parts[0]
	return t, nil
}

func base36(s string, digits int) bool {
	return len(s) == digits && strings.Trim(s, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

// digestOf returns the digest of roots in a token.
func digestOf(roots []byte) string {
	sum := sha256.Sum256(roots)
	s := new(big.Int).SetBytes(sum[:]).Text(36)
	return strings.Repeat("0", digestDigits-len(s)) + s
}

// Trusts reports whether roots, as PEM, are those of the token's Swarm.
func (t Token) Trusts(roots []byte) bool {
	return subtle.ConstantTimeCompare([]byte(t.digest), []byte(digestOf(roots))) == 1
}

// String does not tell the token.
func (t Token) String() string { return "SWMTKN-…" }
