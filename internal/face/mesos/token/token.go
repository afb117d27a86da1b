// Package token verifies what Mesos' executors show to say who they are: JSON Web
// Tokens, signed by HMAC-SHA256 with a key of the agent's.
//
// What is wrong with one is told in Mesos' words, and in the order in which Mesos
// looks. It must not know what claims are good for. Start at Key.Claims.
package token

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

// Key is the secret that tokens are signed with.
type Key []byte

// tokenError says what is wrong with a token.
type tokenError string

// Error implements error.
func (e tokenError) Error() string { return string(e) }

func wrong(format string, args ...any) error { return tokenError(fmt.Sprintf(format, args...)) }

// Claims are what a token says of who shows it: strings as they are, other values
// as their JSON. An error says why the token is not taken at this time.
func (k Key) Claims(text string, now time.Time) (map[string]string, error) {
	part := strings.Split(text, ".")
	if len(part) != 3 {
		return nil, wrong("Expected 3 components in token, got %d", len(part))
	}
	if err := checkHeader(part[0]); err != nil {
		return nil, err
	}
	payload, err := object("payload", part[1])
	if err != nil {
		return nil, err
	}
	if err := inTime(payload["exp"], now); err != nil {
		return nil, err
	}
	signature, err := decode(part[2])
	if err != nil {
		return nil, wrong("Failed to base64url-decode token signature: %v", err)
	}
	mac := hmac.New(sha256.New, k)
	_, _ = mac.Write([]byte(part[0] + "." + part[1]))
	if !hmac.Equal(mac.Sum(nil), signature) {
		return nil, wrong("Token signature does not match")
	}
	claims := make(map[string]string, len(payload))
	for name, value := range payload {
		claims[name] = plain(value)
	}
	return claims, nil
}

// algorithms are those that Mesos knows of; one of them is taken here.
const (
	none  = "none"
	hs256 = "HS256"
	rs256 = "RS256"
)

func checkHeader(part string) error {
	header, err := object("header", part)
	if err != nil {
		return err
	}
	if typ, ok := header["typ"]; ok && !isString(typ) {
		return wrong("Token 'typ' is not a string")
	}
	alg, ok := header["alg"]
	if !ok {
		return wrong("Failed to locate 'alg' in token JSON header")
	}
	if !isString(alg) {
		return wrong("Token 'alg' field is not a string")
	}
	name := plain(alg)
	if name != none && name != hs256 && name != rs256 {
		return wrong("Unsupported token algorithm: %s", name)
	}
	// What is critical would have to be understood, and nothing is.
	if _, ok := header["crit"]; ok {
		return wrong("Token 'crit' field is unsupported")
	}
	if name != hs256 {
		return wrong(`Token 'alg' value "%s" does not match, expected "%s"`, name, hs256)
	}
	return nil
}

// inTime holds the end of a token's time, Unix seconds, against now; one without
// lasts for ever.
func inTime(exp json.RawMessage, now time.Time) error {
	if exp == nil {
		return nil
	}
	var end float64
	if json.Unmarshal(exp, &end) != nil {
		return wrong("JSON payload 'exp' field is not a number")
	}
	if end = math.Trunc(end); end < float64(now.Unix()) {
		return wrong("Token has expired: exp(%s) < now(%d)", strconv.FormatFloat(end, 'f', 0, 64), now.Unix())
	}
	return nil
}

// object reads one part of a token. What is null in it is not there.
func object(what, part string) (map[string]json.RawMessage, error) {
	raw, err := decode(part)
	if err != nil {
		return nil, wrong("Failed to decode token %s: Failed to base64url-decode: %v", what, err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, wrong("Failed to decode token %s: Failed to parse into JSON: %v", what, err)
	}
	if all == nil {
		return nil, wrong("Failed to decode token %s: Failed to parse into JSON: it is no object", what)
	}
	for name, value := range all {
		if string(value) == "null" {
			delete(all, name)
		}
	}
	return all, nil
}

// decode reads base64 in its form for URLs as Mesos does: white space does not
// count, and the first = ends it.
func decode(text string) ([]byte, error) {
	text, _, _ = strings.Cut(text, "=")
	var digits strings.Builder
	for _, b := range []byte(text) {
		switch c := rune(b); {
		case c < unicode.MaxASCII && (unicode.IsLetter(c) || unicode.IsDigit(c)), c == '-', c == '_':
			digits.WriteByte(b)
		case strings.ContainsRune(" \t\n\v\f\r", c):
		default:
			return nil, wrong("Invalid character '%s'", []byte{b})
		}
	}
	whole := digits.String()
	if len(whole)%4 == 1 {
		whole = whole[:len(whole)-1] // it stands for less than a byte
	}
	return base64.RawURLEncoding.DecodeString(whole)
}

func isString(value json.RawMessage) bool { return len(value) > 0 && value[0] == '"' }

// plain is a value as a claim.
func plain(value json.RawMessage) string {
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
