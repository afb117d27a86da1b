package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/longshore/longshore/internal/face/mesos/api"
)

// The supported schemes of an Authorization header.
const (
	basic  = "Basic"
	bearer = "Bearer"
)

// unauthorized is Mesos' answer to an unknown client.
const unauthorized = "401 Unauthorized."

// authorization returns the Authorization header. If there are several, the last one is
// used, as in Mesos.
func authorization(r *http.Request) (string, bool) {
	all := r.Header.Values("Authorization")
	if len(all) == 0 {
		return "", false
	}
	return all[len(all)-1], true
}

// identify returns the principal of a request; false if the client is unknown.
func (a *Authenticator) identify(r *http.Request) (Principal, bool) {
	header, present := authorization(r)
	if !present || a.users == nil && a.tokens == nil {
		return a.byCertificate(r)
	}
	if name, ok := a.byCredentials(header); ok {
		return Principal{Name: name}, true
	}
	claims, problem := a.byToken(header)
	return Principal{Claims: claims}, a.tokens != nil && problem == ""
}

// byCertificate identifies a client by the common name of its certificate.
func (a *Authenticator) byCertificate(r *http.Request) (Principal, bool) {
	if !a.certificates || r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return Principal{}, false
	}
	name := r.TLS.VerifiedChains[0][0].Subject.CommonName
	return Principal{Name: name}, name != ""
}

// byCredentials identifies a client by name and secret.
func (a *Authenticator) byCredentials(header string) (string, bool) {
	name, secret, ok := (&http.Request{Header: http.Header{"Authorization": {header}}}).BasicAuth()
	if !ok {
		return "", false
	}
	got := sha256.Sum256([]byte(secret))
	want, known := a.users[name]
	return name, subtle.ConstantTimeCompare(got[:], want[:]) == 1 && known
}

// byToken returns the claims of a token, or its problem in Mesos' words.
func (a *Authenticator) byToken(header string) (claims map[string]string, problem string) {
	part := strings.Split(header, " ")
	if len(part) != 2 {
		return nil, "Malformed 'Authorization' header"
	}
	if part[0] != bearer {
		return nil, "Scheme '" + part[0] + "' unsupported"
	}
	claims, err := a.tokens.claims(part[1], a.now())
	if err != nil {
		return nil, "Invalid JWT: " + err.Error()
	}
	if len(claims) == 0 {
		return nil, "JWT claims missing"
	}
	return claims, ""
}

// challenge answers an unknown client with the accepted schemes, and with the problem of its token.
// If two schemes are accepted, the body has an answer for each, as in Mesos.
func (a *Authenticator) challenge(w http.ResponseWriter, r *http.Request, realm string) {
	var schemes, challenges []string
	if a.users != nil {
		schemes = append(schemes, basic)
		challenges = append(challenges, basic+` realm="`+realm+`"`)
	}
	if a.tokens != nil {
		c := bearer + ` realm="` + realm + `"`
		if header, present := authorization(r); present {
			_, problem := a.byToken(header)
			c += `, error="invalid_token", error_description="` + problem + `"`
		}
		schemes = append(schemes, bearer)
		challenges = append(challenges, c)
	}
	body := unauthorized
	if len(schemes) > 1 {
		for i, s := range schemes {
			schemes[i] = `"` + s + "\" authenticator returned:\n" + unauthorized
		}
		body = strings.Join(schemes, "\n\n")
	}
	if len(challenges) > 0 {
		w.Header().Set("WWW-Authenticate", strings.Join(challenges, ","))
	}
	api.WriteError(w, r, &api.Error{Code: http.StatusUnauthorized, Text: body})
}
