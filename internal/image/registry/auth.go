package registry

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/image/hostname"
)

// Credentials authenticate at a registry. Only one of password, identity token and registry token
// is used: Bearer before Token before Username and Password.
type Credentials struct {
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	Token    string `json:"token,omitempty"`  // an identity (refresh) token
	Bearer   string `json:"bearer,omitempty"` // sent unchanged
}

// ParseAuths parses a docker config.json. The map's keys are hosts; "docker.io" is Docker Hub under
// any of its names. A host with its secret in a credential helper is an error: helpers are not run.
func ParseAuths(data []byte) (map[string]Credentials, error) {
	var doc struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			Username      string `json:"username"`
			Password      string `json:"password"`
			IdentityToken string `json:"identitytoken"`
			RegistryToken string `json:"registrytoken"`
		} `json:"auths"`
		CredsStore  string            `json:"credsStore"`
		CredHelpers map[string]string `json:"credHelpers"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("read docker config: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if len(doc.CredHelpers) > 0 || doc.CredsStore != "" {
		return nil, fmt.Errorf("read docker config: credsStore and credHelpers name programs, which are not run; put the credentials under auths: %w", errdefs.ErrNotImplemented)
	}
	auths := make(map[string]Credentials, len(doc.Auths))
	for key, a := range doc.Auths {
		c := Credentials{Username: a.Username, Password: a.Password, Token: a.IdentityToken, Bearer: a.RegistryToken}
		if a.Auth != "" {
			raw, err := base64.StdEncoding.DecodeString(a.Auth)
			if err != nil {
				return nil, fmt.Errorf("read docker config: auth of %q is not base64: %w", key, errdefs.ErrInvalidArgument)
			}
			user, pass, ok := strings.Cut(string(raw), ":")
			if !ok {
				return nil, fmt.Errorf("read docker config: auth of %q is not user:password: %w", key, errdefs.ErrInvalidArgument)
			}
			c.Username, c.Password = user, strings.TrimRight(pass, "\x00")
		}
		if c != (Credentials{}) {
			auths[canonicalHost(key)] = c
		}
	}
	return auths, nil
}

// SameHost reports whether two forms of a registry's host mean the same one.
func SameHost(a, b string) bool { return canonicalHost(a) == canonicalHost(b) }

// canonicalHost makes one key of the forms of a host in config.json: with a scheme, with a path,
// and in any case.
func canonicalHost(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, _, _ := strings.Cut(key, "/")
	return hostname.Host(host)
}
