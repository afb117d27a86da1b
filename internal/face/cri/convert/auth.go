package convert

import (
	"encoding/base64"
	"math"
	"strings"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// PullOptions are the credentials of one pull. Those that are for another
// registry are not sent. InvalidArgument.
func PullOptions(ref string, auth *v1.AuthConfig) (core.PullOptions, error) {
	opts := core.PullOptions{Always: true}
	if auth == nil || !sameRegistry(auth.GetServerAddress(), ref) {
		return opts, nil
	}
	opts.Username, opts.Password = auth.GetUsername(), auth.GetPassword()
	opts.Token, opts.Bearer = auth.GetIdentityToken(), auth.GetRegistryToken()
	if a := auth.GetAuth(); a != "" && opts.Username == "" {
		user, password, err := decodeAuth(a)
		if err != nil {
			return opts, err
		}
		opts.Username, opts.Password = user, password
	}
	return opts, nil
}

// decodeAuth takes docker's "user:password" in base64 apart. Nothing of it goes
// into an error.
func decodeAuth(s string) (user, password string, err error) {
	if len(s) > math.MaxUint16 {
		return "", "", invalid.Errorf("auth is too long")
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return "", "", invalid.Errorf("auth is not base64")
	}
	user, password, ok := strings.Cut(strings.TrimRight(string(b), "\x00"), ":")
	if !ok {
		return "", "", invalid.Errorf("auth is not user:password")
	}
	return user, password, nil
}

// sameRegistry reports whether credentials for address are meant for the
// registry of ref. Either may leave the registry out.
func sameRegistry(address, ref string) bool {
	want, have := registryOf(address), refHost(ref)
	return want == "" || have == "" || want == have
}

func registryOf(address string) string {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address = rest
	}
	host, _, _ := strings.Cut(address, "/")
	return dockerHost(host)
}

// refHost is the registry a reference names, or "".
func refHost(ref string) string {
	first, _, ok := strings.Cut(ref, "/")
	if !ok || !strings.ContainsAny(first, ".:") && first != "localhost" {
		return ""
	}
	return dockerHost(first)
}

// dockerHost knows that Docker's registry has several names.
func dockerHost(host string) string {
	host = strings.ToLower(host)
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}
