package hostname_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/distribution/reference"

	"github.com/longshore/longshore/internal/image/hostname"
)

func TestNormalForms(t *testing.T) {
	for name, want := range map[string]string{
		"127.0.0.1:05555":           "127.0.0.1:5555",
		"LOCALHOST:5555":            "localhost:5555",
		"localhost:80":              "localhost",
		"localhost:443":             "localhost:443",
		"Registry.Example.:443":     "registry.example",
		"registry.example:0443":     "registry.example",
		"registry.example:80":       "registry.example:80",
		"bücher.example":            "xn--bcher-kva.example",
		"XN--BCHER-KVA.example:443": "xn--bcher-kva.example",
		"[2001:DB8:0:0::1]:5000":    "[2001:db8::1]:5000",
		"[::ffff:7f00:1]:5555":      "127.0.0.1:5555",
		"[0:0:0:0:0:0:0:1]:80":      "[::1]",
		"INDEX.docker.io":           "docker.io",
		"registry-1.docker.io:443":  "docker.io",
		"registry-1.docker.io:8443": "registry-1.docker.io:8443",
		"EXAMPLE":                   "example:443",
		"example:5000":              "example:5000",
	} {
		if got := hostname.Host(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if again := hostname.Host(hostname.Host(name)); again != want {
			t.Errorf("%s twice: %s", name, again)
		}
	}
}

// dials returns the address that is dialled for a registry, as net/http does it. It knows nothing
// of normal forms.
func dials(name string) string {
	u := &url.URL{Host: name}
	host, port := strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), u.Port()
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.Unmap().String()
	}
	var n int
	if port != "" {
		_, _ = fmt.Sscan(strings.TrimLeft(port, "0")+" ", &n)
	} else if ip := net.ParseIP(host); host == "localhost" || ip.IsLoopback() {
		n = 80
	} else {
		n = 443
	}
	return fmt.Sprint(host, " ", n)
}

// TestSameAddressSameName: of names made at random, those that dial the same host and port have
// one normal form, and others have two.
func TestSameAddressSameName(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	cased := func(s string) string {
		b := []byte(s)
		for i := range b {
			if r.IntN(3) == 0 {
				b[i] = strings.ToUpper(string(b[i]))[0]
			}
		}
		return string(b)
	}
	name := func() string {
		host := cased(pick("localhost", "a.example", "b.example", "127.0.0.1", "[::1]", "[0:0::1]", "[::ffff:7f00:1]", "[2001:db8::1]", "[2001:0db8:0:0::1]", "[fe80::a]"))
		if !strings.HasPrefix(host, "[") && !strings.HasPrefix(host, "1") {
			host += pick("", "", ".")
		}
		return host + pick("", ":80", ":443", ":0443", ":5000", ":05000", ":00080")
	}
	equal := 0
	for range 200_000 {
		a, b := name(), name()
		same := dials(a) == dials(b)
		if same {
			equal++
		}
		if hostname.Same(a, b) != same {
			t.Fatalf("%s and %s: the same address %t, the same name %t", a, b, same, !same)
		}
	}
	if equal < 1000 {
		t.Errorf("only %d pairs dial the same address", equal)
	}
}

func TestImagesKeepTagAndDigest(t *testing.T) {
	sum := "sha256:" + strings.Repeat("a", 64)
	for ref, want := range map[string]string{
		"LOCALHOST:05000/a/b:T1":       "localhost:5000/a/b:T1",
		"registry-1.docker.io/busybox": "docker.io/library/busybox",
		"Example.com:443/a@" + sum:     "example.com/a@" + sum,
		"Example.com:443/a:t@" + sum:   "example.com/a:t@" + sum,
		"docker.io/library/busybox:1":  "docker.io/library/busybox:1",
		"[::FFFF:7F00:1]:5000/a":       "127.0.0.1:5000/a",
		"host:443/a":                   "host:443/a",
	} {
		named, err := reference.ParseNormalizedNamed(ref)
		if err != nil {
			t.Fatal(err)
		}
		got, err := hostname.Image(named)
		if err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", ref, got, err)
		}
	}
}

func TestPatterns(t *testing.T) {
	match := func(p, s string) bool { ok, _ := path.Match(p, s); return ok }
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"127.0.0.1:5555", "127.0.0.1:05555", true},
		{"127.0.0.1:05555", "127.0.0.1:5555", true},
		{"127.0.0.1:5555", "127.0.0.1:5556", false},
		{"localhost:5555", "LOCALHOST:5555", true},
		{"127.0.0.1:*", "127.0.0.1", true},
		{"*:0080", "127.0.0.1", true},
		{"*.EXAMPLE.com", "a.example.com:443", true},
		{"[::1]:5000", "[0::1]:5000", true},
		{"[::1]:5000", ":", false},
		{"docker.io", "registry-1.docker.io:443", true},
		{"registry-1.docker.*", "docker.io", true},
		{"*.example.com", "example.com", false},
	} {
		if got := hostname.Matcher(c.pattern, match)(c.name); got != c.want {
			t.Errorf("%s matches %s: %t", c.pattern, c.name, got)
		}
	}
}

// FuzzHost: the normal form of a normal form is the same.
func FuzzHost(f *testing.F) {
	for _, s := range []string{"a.example:0443", "[::1]", "::1", "x:y:z", "Ä.example.", ":", "]:1", "00000:a", "a..", "[a", "fe80::1%]:5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		once := hostname.Host(name)
		if again := hostname.Host(once); again != once {
			t.Errorf("%q: %q, then %q", name, once, again)
		}
	})
}
