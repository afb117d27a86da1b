package auth

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// tokenKey is the secret that executors' tokens are signed with: JSON Web Tokens (RFC
// 7519), signed with HMAC-SHA256.
type tokenKey []byte

// tokenError is the problem of a token.
type tokenError string

// Error implements error.
func (e tokenError) Error() string { return string(e) }

func tokenErrorf(format string, args ...any) error { return tokenError(fmt.Sprintf(format, args...)) }

// claims verifies a token and returns its claims: strings as they are, other values as
// JSON. The checks, their order and the error texts are those of Mesos.
func (k tokenKey) claims(text string, now time.Time) (map[string]string, error) {
	part := strings.Split(text, ".")
	if len(part) != 3 {
		return nil, tokenErrorf("Expected 3 components in token, got %d", len(part))
	}
	if err := checkTokenHeader(part[0]); err != nil {
		return nil, err
	}
	payload, err := tokenObject("payload", part[1])
	if err != nil {
		return nil, err
	}
	if err := checkExpiry(payload["exp"], now); err != nil {
		return nil, err
	}
	signature, err := decodeBase64URL(part[2])
	if err != nil {
		return nil, tokenErrorf("Failed to base64url-decode token signature: %v", err)
	}
	mac := hmac.New(sha256.New, k)
	_, _ = mac.Write([]byte(part[0] + "." + part[1]))
	if !hmac.Equal(mac.Sum(nil), signature) {
		return nil, tokenErrorf("Token signature does not match")
	}
	claims := make(map[string]string, len(payload))
	for name, value := range payload {
		claims[name] = claimText(value)
	}
	return claims, nil
}

// The algorithms that Mesos knows. Only HS256 is accepted here.
const (
	algNone  = "none"
	algHS256 = "HS256"
	algRS256 = "RS256"
)

func checkTokenHeader(part string) error {
	header, err := tokenObject("header", part)
	if err != nil {
		return err
	}
	if typ, ok := header["typ"]; ok && !isString(typ) {
		return tokenErrorf("Token 'typ' is not a string")
	}
	alg, ok := header["alg"]
	if !ok {
		return tokenErrorf("Failed to locate 'alg' in token JSON header")
	}
	if !isString(alg) {
		return tokenErrorf("Token 'alg' field is not a string")
	}
	name := claimText(alg)
	if name != algNone && name != algHS256 && name != algRS256 {
		return tokenErrorf("Unsupported token algorithm: %s", name)
	}
	// Critical header parameters must be supported, and none are.
	if _, ok := header["crit"]; ok {
		return tokenErrorf("Token 'crit' field is unsupported")
	}
	if name != algHS256 {
		return tokenErrorf(`Token 'alg' value "%s" does not match, expected "%s"`, name, algHS256)
	}
	return nil
}

// checkExpiry checks the expiry time of a token, in Unix seconds. A token without one
// does not expire.
func checkExpiry(exp json.RawMessage, now time.Time) error {
	if exp == nil {
		return nil
	}
	var end float64
	if json.Unmarshal(exp, &end) != nil {
		return tokenErrorf("JSON payload 'exp' field is not a number")
	}
	if end = math.Trunc(end); end < float64(now.Unix()) {
		return tokenErrorf("Token has expired: exp(%s) < now(%d)", strconv.FormatFloat(end, 'f', 0, 64), now.Unix())
	}
	return nil
}

// tokenObject decodes one part of a token as a JSON object. Members that are null are
// left out.
func tokenObject(what, part string) (map[string]json.RawMessage, error) {
	raw, err := decodeBase64URL(part)
	if err != nil {
		return nil, tokenErrorf("Failed to decode token %s: Failed to base64url-decode: %v", what, err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, tokenErrorf("Failed to decode token %s: Failed to parse into JSON: %v", what, err)
	}
	if all == nil {
		return nil, tokenErrorf("Failed to decode token %s: Failed to parse into JSON: it is not an object", what)
	}
	for name, value := range all {
		if string(value) == "null" {
			delete(all, name)
		}
	}
	return all, nil
}

// decodeBase64URL decodes base64url as Mesos does: white space is ignored, and the text
// ends at the first =.
func decodeBase64URL(text string) ([]byte, error) {
	text, _, _ = strings.Cut(text, "=")
	var digits strings.Builder
	for _, b := range []byte(text) {
		switch c := rune(b); {
		case c < unicode.MaxASCII && (unicode.IsLetter(c) || unicode.IsDigit(c)), c == '-', c == '_':
			digits.WriteByte(b)
		case strings.ContainsRune(" \t\n\v\f\r", c):
		default:
			return nil, tokenErrorf("Invalid character '%s'", []byte{b})
		}
	}
	whole := digits.String()
	if len(whole)%4 == 1 {
		whole = whole[:len(whole)-1] // six bits are less than a byte
	}
	return base64.RawURLEncoding.DecodeString(whole)
}

func isString(value json.RawMessage) bool { return len(value) > 0 && value[0] == '"' }

// claimText returns a claim's value as text.
func claimText(value json.RawMessage) string {
	var text string
	if isString(value) && json.Unmarshal(value, &text) == nil {
		return text
	}
	var short bytes.Buffer
	if json.Compact(&short, value) != nil {
		return string(value)
	}
	return short.String()
}
