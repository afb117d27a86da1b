package dockerhttp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/invalid"
)

// Request is a request of a client.
type Request struct {
	*http.Request
	API   Version           // the requested version, or the server's highest one
	Path  string            // the decoded path without the version
	Route string            // the method and the pattern of its handler
	Vars  map[string]string // the values of the pattern's names

	query url.Values
}

// Get returns a value of the query.
func (r *Request) Get(key string) string { return r.Values().Get(key) }

// Values returns the query.
func (r *Request) Values() url.Values {
	if r.query == nil {
		r.query = r.URL.Query()
	}
	return r.query
}

// Bool returns a value of the query as dockerd reads it: everything is true but nothing, 0, no, false and none.
func (r *Request) Bool(key string) bool { return Bool(r.Get(key)) }

// Bool reads a boolean of a query as dockerd does.
func Bool(text string) bool {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "", "0", "no", "false", "none":
		return false
	}
	return true
}

// BoolOr is Bool with a value for a key that the query does not have.
func (r *Request) BoolOr(key string, without bool) bool {
	if !r.Values().Has(key) {
		return without
	}
	return r.Bool(key)
}

// Int returns a number of the query, or without if there is none.
func (r *Request) Int(key string, without int) (int, error) {
	text := r.Get(key)
	if text == "" {
		return without, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, invalid.Errorf("%s: %.40q is not a number", key, text)
	}
	return n, nil
}

// Filters returns the filters of the query. Keys that are not known get InvalidArgument.
func (r *Request) Filters(known ...string) (Filters, error) {
	return ParseFilters(r.Get("filters"), known...)
}

// maxBody is the size of a request in JSON.
const maxBody = 16 << 20

// Decode reads the body into v by dockerd's rules: no body leaves v as it is, another Content-Type than JSON and a second document are
// errors, unknown members are ignored. It reads all of the body, so that the connection can be hijacked.
func (r *Request) Decode(v any) error {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil
	}
	kind := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(kind); err != nil {
		return invalid.Errorf("malformed Content-Type header (%.80s): %v", kind, err)
	} else if media != "application/json" {
		return invalid.Errorf("unsupported Content-Type header (%.80s): must be 'application/json'", kind)
	}
	body := io.LimitReader(r.Body, maxBody+1)
	data, err := io.ReadAll(body)
	switch {
	case err != nil:
		return invalid.Errorf("read the request's body: %v", err)
	case len(data) > maxBody:
		return invalid.Errorf("the request's body is larger than %d bytes", maxBody)
	}
	return DecodeJSON(data, v)
}

// DecodeJSON reads one JSON document. An empty one leaves v as it is.
func DecodeJSON(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	switch err := d.Decode(v); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return invalid.Errorf("invalid JSON: %v", err)
	}
	if d.More() {
		return invalid.Errorf("unexpected content after JSON")
	}
	return nil
}

// Credentials are those of a registry.
type Credentials struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	Auth          string `json:"auth,omitempty"`
	ServerAddress string `json:"serveraddress,omitempty"`
	IdentityToken string `json:"identitytoken,omitempty"`
	RegistryToken string `json:"registrytoken,omitempty"`
}

// maxAuth bounds the encoded credentials of a registry.
const maxAuth = 64 << 10

// Auth returns the credentials of X-Registry-Auth. As in dockerd, credentials that cannot be read are none.
func (r *Request) Auth() Credentials {
	c, err := ParseAuth(r.Header.Get("X-Registry-Auth"))
	if err != nil {
		return Credentials{}
	}
	return c
}

// ParseAuth reads credentials in the JSON of base64, URL-safe or not, padded or not. The error does not quote them.
func ParseAuth(header string) (Credentials, error) {
	if header == "" {
		return Credentials{}, nil
	}
	if len(header) > maxAuth {
		return Credentials{}, invalid.Errorf("X-Registry-Auth has %d bytes, at most %d", len(header), maxAuth)
	}
	text := strings.TrimRight(strings.NewReplacer("+", "-", "/", "_").Replace(header), "=")
	data, err := base64.RawURLEncoding.DecodeString(text)
	var c Credentials
	if err != nil || json.Unmarshal(data, &c) != nil {
		return Credentials{}, invalid.Errorf("X-Registry-Auth cannot be read")
	}
	if c.Username == "" && c.Auth != "" {
		if both, err := base64.StdEncoding.DecodeString(c.Auth); err == nil {
			c.Username, c.Password, _ = strings.Cut(strings.TrimRight(string(both), "\x00"), ":")
		}
	}
	if c.Username == "<token>" {
		c.Username, c.IdentityToken, c.Password = "", c.Password, ""
	}
	return c, nil
}

// Moment reads a time: seconds since 1970 with up to nine digits after a point, or RFC 3339. "" and "0" are the zero time.
func Moment(key, text string) (time.Time, error) {
	if text == "" || text == "0" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at, nil
	}
	whole, part, _ := strings.Cut(text, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	nanos, err2 := strconv.ParseUint((part + "000000000")[:9], 10, 32)
	if err != nil || err2 != nil || seconds < 0 || seconds > math.MaxInt32*128 {
		return time.Time{}, invalid.Errorf("invalid value for %s: %.40q", key, text)
	}
	return time.Unix(seconds, int64(nanos)), nil
}
