package identity_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/swarm/identity"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
)

// TestASealedKey: with a passphrase the key is on the disk only as openssl's encrypted private key.
func TestASealedKey(t *testing.T) {
	a := swarmtest.NewAuthority(t)
	key, cert := keyPair(t, a, "n1", identity.RoleWorker)
	id, err := identity.New(key, cert, a.Roots())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "identity.json")
	if err := id.Save(path, []byte("a passphrase")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), "BEGIN ENCRYPTED PRIVATE KEY") || strings.Contains(string(data), "BEGIN PRIVATE") || strings.Contains(string(data), "a passphrase") {
		t.Errorf("%s, %v", data, err)
	}
	for name, c := range map[string]struct {
		passphrase string
		is         func(error) bool
		text       string
	}{
		"none":    {"", errdefs.IsFailedPrecondition, "key_passphrase_file"},
		"another": {"b passphrase", errdefs.IsPermissionDenied, "the passphrase is wrong"},
	} {
		if _, sealed, err := identity.Load(path, []byte(c.passphrase)); !c.is(err) || !sealed || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	back, sealed, err := identity.Load(path, []byte("a passphrase"))
	if err != nil || !sealed || back.NodeID != "n1" {
		t.Fatalf("%+v, %v", back, err)
	}
	if err := back.Save(path, nil); err != nil {
		t.Fatal(err)
	}
	if again, sealed, err := identity.Load(path, nil); err != nil || sealed || again.NodeID != "n1" {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestFilesWithAPassphrase: an open or unusable file is refused by its name.
func TestFilesWithAPassphrase(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for path, text := range map[string]string{
		filepath.Join(dir, "missing"):      "no such file",
		dir:                                "is no file",
		write("empty", "", 0o600):          "does not begin with a passphrase",
		write("blank", "\nwords\n", 0o600): "does not begin with a passphrase",
		write("long", strings.Repeat("x", 1<<20), 0o600): "does not begin with a passphrase",
		write("open", "words", 0o640):                    "mode 0600",
	} {
		if _, err := identity.ReadPassphrase(path); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "words") {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{write("unix", "some words\nmore\n", 0o600), write("dos", "some words\r\n", 0o400), write("bare", "some words", 0o600)} {
		if got, err := identity.ReadPassphrase(path); err != nil || string(got) != "some words" {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if got, err := identity.ReadPassphrase(""); got != nil || err != nil {
		t.Errorf("no file: %q, %v", got, err)
	}
}

// TestRootsThatChange: a certificate of either root is the node's; until it is of the new one, both
// are trusted, and the node reports the truth.
func TestRootsThatChange(t *testing.T) {
	a, other := swarmtest.NewAuthority(t), swarmtest.NewAuthority(t)
	key, cert := keyPair(t, a, "n1", identity.RoleWorker)
	old := a.Roots()
	id, err := identity.New(key, cert, old)
	if err != nil {
		t.Fatal(err)
	}
	told := func(id *identity.Identity, roots []byte, what string) {
		t.Helper()
		if got := id.TLSInfo(); string(got.GetTrustRoot()) != string(roots) {
			t.Errorf("%s: it tells another root", what)
		}
	}
	if same, err := id.WithRoots(old); err != nil || same != id {
		t.Errorf("the same roots make another identity: %v", err)
	}
	a.Rotate(t)
	key, cert = keyPair(t, a, "n1", identity.RoleWorker)
	crossed, err := identity.New(key, cert, old)
	if err != nil {
		t.Fatalf("one of the next root, certified by the present one: %v", err)
	}
	subject, public := a.Issuer()
	if info := crossed.TLSInfo(); string(info.GetCertIssuerSubject()) != string(subject) || string(info.GetCertIssuerPublicKey()) != string(public) {
		t.Errorf("it tells another issuer: %v", info)
	}
	told(crossed, old, "during the rotation")
	a.Rotated()
	rotated, err := crossed.WithRoots(a.Roots())
	if err != nil {
		t.Fatal(err)
	}
	told(rotated, a.Roots(), "after it")
	late, err := id.WithRoots(a.Roots())
	if err != nil {
		t.Fatalf("a node that missed it: %v", err)
	}
	told(late, old, "a node that missed it")
	path := filepath.Join(t.TempDir(), "identity.json")
	if err := late.Save(path, nil); err != nil {
		t.Fatal(err)
	}
	if late, _, err = identity.Load(path, nil); err != nil {
		t.Fatal(err)
	}
	if back, err := late.WithRoots(old); err != nil {
		t.Error(err)
	} else {
		told(back, old, "a rotation that is taken back")
	}
	for what, roots := range map[string][]byte{"none": []byte("words"), "too many": make([]byte, 2<<20)} {
		if _, err := id.WithRoots(roots); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if foreign, err := id.WithRoots(other.Roots()); err != nil {
		t.Error(err)
	} else {
		told(foreign, old, "roots of which the certificate is not")
	}
}

// FuzzCertificates: a manager's certificate and roots are accepted or refused.
func FuzzCertificates(f *testing.F) {
	a := swarmtest.NewAuthority(f)
	key, cert := keyPair(f, a, "n1", identity.RoleWorker)
	good, err := identity.New(key, cert, a.Roots())
	if err != nil {
		f.Fatal(err)
	}
	a.Rotate(f)
	_, crossed := keyPair(f, a, "n1", identity.RoleWorker)
	f.Add(cert, a.Roots())
	f.Add(crossed, a.Roots())
	f.Add(a.Roots(), cert)
	f.Add(cert[:len(cert)/2], []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, cert, roots []byte) {
		id, err := identity.New(key, cert, roots)
		if err == nil && (id.NodeID == "" || id.ClusterID == "") {
			t.Fatal("a certificate of nobody is believed")
		}
		if err != nil && !errdefs.IsPermissionDenied(err) {
			t.Fatalf("%v", err)
		}
		if next, err := good.WithRoots(roots); err == nil && next.NodeID != "n1" {
			t.Fatal("other roots make another node of it")
		}
	})
}
