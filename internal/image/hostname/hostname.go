// Package hostname has the one normal form of a registry's name. Two names that dial the same host
// and port have the same normal form, so that a rule, a credential, a directory of hosts.toml or a
// stored name that is meant for a registry is found under each way to write it.
//
// It does not resolve names: localhost and 127.0.0.1 are two registries. Start at Host and Image.
package hostname

import (
	"net/netip"
	"strings"

	"github.com/distribution/reference"
	"golang.org/x/net/idna"

	"github.com/longshore/longshore/internal/weaken"
)

// DockerHub is the normal form of Docker Hub's names.
const DockerHub = "docker.io"

// hubNames returns the names at which Docker Hub answers.
func hubNames() []string {
	return []string{DockerHub, "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"}
}

// The default ports: registries at loopback addresses are reached by plain HTTP.
const (
	securePort   = "443"
	loopbackPort = "80"
)

// Host returns the normal form of a registry's name, HOST or HOST:PORT: lower case, labels in
// ASCII, no trailing dot, addresses in their shortest form, the port as a number and left out when
// it is the default. A name without a dot keeps its port, as it would be a part of a repository's
// name without one. A name that cannot be a host stays as it is, in lower case.
func Host(name string) string {
	if weaken.Off(weaken.RegistryNames) {
		return name
	}
	host, port := address(name)
	if !valid(host) {
		return strings.ToLower(name)
	}
	for _, hub := range hubNames() {
		if host == hub && port == securePort {
			return DockerHub
		}
	}
	if port == defaultPort(host) && (strings.ContainsAny(host, ".[") || host == "localhost") {
		return host
	}
	return host + ":" + port
}

// valid reports whether a host in its normal form is an address or has only the characters of a
// host's name, and no empty label.
func valid(host string) bool {
	if strings.HasPrefix(host, "[") {
		_, err := netip.ParseAddr(strings.TrimSuffix(host[1:], "]"))
		return err == nil
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// Address returns the address of a registry's name, HOST:PORT in its normal form. The names of
// Docker Hub are several addresses.
func Address(name string) string {
	host, port := address(name)
	return host + ":" + port
}

func address(name string) (host, port string) {
	host, port = split(name)
	host = normal(host)
	if port == "" {
		port = defaultPort(host)
	}
	return host, port
}

// Same reports whether two names are of one registry.
func Same(a, b string) bool { return Host(a) == Host(b) }

// Forms returns the ways to write a registry's name that a pattern may be meant for: the normal
// form, that with the port, and the other names of Docker Hub.
func Forms(name string) []string {
	name = Host(name)
	forms := []string{name}
	if host, port := split(name); port == "" {
		forms = append(forms, host+":"+defaultPort(host))
	}
	if name == DockerHub {
		for _, hub := range hubNames()[1:] {
			forms = append(forms, hub, hub+":"+securePort)
		}
	}
	return forms
}

// Loopback reports whether a registry is at an address of this machine, by its name.
func Loopback(name string) bool {
	host, _ := split(name)
	return loopback(normal(host))
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}

func defaultPort(host string) string {
	if loopback(host) {
		return loopbackPort
	}
	return securePort
}

// split takes a name apart into its host and its port, which has no leading zeros; "" without one.
func split(name string) (host, port string) {
	colon := strings.LastIndexByte(name, ':')
	if colon < 0 || strings.HasSuffix(name, "]") || strings.Contains(name[:colon], ":") && !strings.HasSuffix(name[:colon], "]") {
		return name, "" // the last colon is one of an IPv6 address
	}
	host, port = name[:colon], name[colon+1:]
	if port == "" {
		return host, ""
	}
	if strings.Trim(port, "0123456789") != "" {
		return name, "" // it is not a port
	}
	if port = strings.TrimLeft(port, "0"); port == "" {
		port = "0"
	}
	return host, port
}

// normal returns the normal form of a host without a port.
func normal(host string) string {
	if addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err == nil {
		if addr = addr.Unmap(); addr.Is6() {
			return "[" + addr.String() + "]"
		}
		return addr.String()
	}
	host = strings.ToLower(host)
	if ascii, err := idna.Lookup.ToASCII(host); err == nil {
		host = ascii
	}
	return strings.TrimSuffix(host, ".")
}

// Image returns an image's name with the normal form of its registry.
func Image(named reference.Named) (reference.Named, error) {
	domain := reference.Domain(named)
	host := Host(domain)
	if host == domain {
		return named, nil
	}
	next, err := reference.ParseNormalizedNamed(host + "/" + reference.Path(named))
	if err != nil {
		return nil, err
	}
	if t, ok := named.(reference.Tagged); ok {
		if next, err = reference.WithTag(next, t.Tag()); err != nil {
			return nil, err
		}
	}
	if d, ok := named.(reference.Digested); ok {
		return reference.WithDigest(next, d.Digest())
	}
	return next, nil
}

// Stored returns a stored name, REGISTRY/REPOSITORY with a tag or digest, with the normal form of
// its registry. Versions before there was one stored names as they were typed.
func Stored(name string) string {
	host, rest, ok := strings.Cut(name, "/")
	if !ok {
		return name
	}
	return Host(host) + "/" + rest
}

// Matcher returns a function that compares the first part of a pattern, a registry's name with *
// for any text, with registries' names. match compares one pattern with one text.
func Matcher(pattern string, match func(pattern, text string) bool) func(name string) bool {
	host, _ := split(pattern)
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err == nil || !strings.ContainsAny(pattern, `*?[\`) { // the brackets of an address are no class of characters
		want := Host(pattern)
		return func(name string) bool { return Host(name) == want }
	}
	pattern = strings.ToLower(pattern)
	if host, port := split(pattern); port != "" {
		pattern = host + ":" + port
	}
	return func(name string) bool {
		for _, form := range Forms(name) {
			if match(pattern, form) {
				return true
			}
		}
		return false
	}
}
