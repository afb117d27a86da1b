package identity_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore/longshore/internal/face/swarm/identity"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
)

func TestTokens(t *testing.T) {
	a := swarmtest.NewAuthority(t)
	good := a.Token("worker")
	tok, err := identity.ParseToken(good)
	if err != nil || !tok.Trusts(a.Roots()) || tok.FIPS || strings.Contains(tok.String(), "worker") {
		t.Errorf("%v, %v", tok, err)
	}
	if tok.Trusts(append(bytes.Clone(a.Roots()), '\n')) || tok.Trusts(swarmtest.NewAuthority(t).Roots()) || tok.Trusts(nil) {
		t.Error("it trusts other roots")
	}
	for text, fips := range map[string]bool{"SWMTKN-2-0-": false, "SWMTKN-2-1-": true} {
		if tok, err := identity.ParseToken(strings.Replace(good, "SWMTKN-1-", text, 1)); err != nil || tok.FIPS != fips || !tok.Trusts(a.Roots()) {
			t.Errorf("%s: %v, %v", text, tok, err)
		}
	}
	for _, text := range []string{"", "SWMTKN-1-x-y", good + "0", good[1:], strings.ToUpper(good), strings.Replace(good, "-1-", "-3-", 1), strings.Replace(good, "-1-", "-2-2-", 1), "SWMTKN-1-" + strings.Repeat("_", 50) + "-" + strings.Repeat("0", 25)} {
		if _, err := identity.ParseToken(text); !errdefs.IsInvalidArgument(err) || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzToken: a token is read or refused, and its secret is never told.
func FuzzToken(f *testing.F) {
	f.Add("SWMTKN-1-" + strings.Repeat("0", 50) + "-" + strings.Repeat("z", 25))
	f.Add("SWMTKN-2-1-" + strings.Repeat("0", 50) + "-" + strings.Repeat("z", 25))
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := identity.ParseToken(text)
		if err != nil && (!errdefs.IsInvalidArgument(err) || len(text) > 20 && strings.Contains(err.Error(), text)) {
			t.Fatalf("%v", err)
		}
		if err == nil && tok.Trusts([]byte(text)) {
			t.Fatal("it trusts anything")
		}
	})
}

// keyPair is a key and its certificate, as PEM.
func keyPair(t testing.TB, a *swarmtest.Authority, node, role string) (key, cert []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, err = a.Issue(node, role, k.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), cert
}

func TestWhatIsKept(t *testing.T) {
	a := swarmtest.NewAuthority(t)
	key, cert := keyPair(t, a, "n1", identity.RoleWorker)
	id, err := identity.New(key, cert, a.Roots())
	if err != nil || id.NodeID != "n1" || id.ClusterID != a.Cluster || id.Role != identity.RoleWorker {
		t.Fatalf("%+v, %v", id, err)
	}
	path := filepath.Join(t.TempDir(), "identity")
	if _, _, err := identity.Load(path, nil); !errdefs.IsNotFound(err) {
		t.Errorf("of nothing: %v", err)
	}
	if err := id.Save(path, nil); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	again, _, err := identity.Load(path, nil)
	if err != nil || again.NodeID != "n1" || !again.NotAfter.Equal(id.NotAfter) || !bytes.Equal(again.Roots(), a.Roots()) {
		t.Errorf("%+v, %v", again, err)
	}
	for text, class := range map[string]func(error) bool{"{": errdefs.IsDataLoss, `{"version":7}`: errdefs.IsFailedPrecondition, `{"version":1}`: errdefs.IsPermissionDenied} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := identity.Load(path, nil); !class(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestCertificatesOfOthers(t *testing.T) {
	a, b := swarmtest.NewAuthority(t), swarmtest.NewAuthority(t)
	key, cert := keyPair(t, a, "n1", identity.RoleWorker)
	otherKey, otherCert := keyPair(t, b, "n1", identity.RoleWorker)
	_, nobody := keyPair(t, a, "", identity.RoleWorker)
	for name, c := range map[string][3][]byte{
		"another root": {key, cert, b.Roots()}, "another key": {otherKey, cert, a.Roots()}, "another certificate": {key, otherCert, a.Roots()},
		"no roots": {key, cert, nil}, "no certificate": {key, nil, a.Roots()}, "no key": {nil, cert, a.Roots()}, "nobody's": {key, nobody, a.Roots()},
	} {
		if _, err := identity.New(c[0], c[1], c[2]); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	id, err := identity.New(key, cert, a.Roots())
	if err != nil {
		t.Fatal(err)
	}
	both := append(bytes.Clone(a.Roots()), b.Roots()...)
	if next, err := id.WithRoots(both); err != nil || !bytes.Equal(next.TLSInfo().GetTrustRoot(), both) {
		t.Errorf("more roots: %v", err)
	}
	if same, err := id.WithRoots(a.Roots()); err != nil || same != id {
		t.Errorf("the same roots: %v", err)
	}
}

// TestACertificatesTime: one is renewed in the middle of the time that it had when it was issued,
// which managers date back; an expired one is still read.
func TestACertificatesTime(t *testing.T) {
	a := swarmtest.NewAuthority(t)
	a.Life = 10 * time.Minute
	key, cert := keyPair(t, a, "n1", identity.RoleWorker)
	id, err := identity.New(key, cert, a.Roots())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for range 100 {
		if in := id.RenewAt().Sub(now); in < 4*time.Minute || in > 9*time.Minute {
			t.Fatalf("of ten minutes it is renewed after %s", in)
		}
	}
	if id.Expired(now) || !id.Expired(id.NotAfter.Add(time.Second)) {
		t.Error("its end is not seen")
	}
	a.Life = -time.Minute
	key, cert = keyPair(t, a, "n1", identity.RoleWorker)
	old, err := identity.New(key, cert, a.Roots())
	if err != nil || !old.Expired(now) {
		t.Errorf("an expired one: %v", err)
	}
}

// TestAManagerThatIsBusy gets a second call; one that refuses does not.
func TestAManagerThatIsBusy(t *testing.T) {
	m := swarmtest.New(t)
	tok, err := identity.ParseToken(m.Token)
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string]int{}
	busy := true
	m.Hook(func(call string) error {
		if asked[call]++; call == "NodeCertificateStatus" && busy {
			busy = false
			return status.Error(codes.Unavailable, "not now")
		}
		return nil
	})
	if id, err := identity.Join(t.Context(), identity.Request{Addr: m.Addr, Token: tok}); err != nil || id.NodeID != "node1" || asked["NodeCertificateStatus"] != 2 {
		t.Errorf("%+v, %v, asked %v", id, err, asked)
	}
	m.Hook(func(call string) error {
		if call == "NodeCertificateStatus" {
			return status.Error(codes.NotFound, "node not found")
		}
		return nil
	})
	if _, err := identity.Join(t.Context(), identity.Request{Addr: m.Addr, Token: tok}); !errdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
	m.Hook(func(string) error { return status.Error(codes.Unavailable, "not now") })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := identity.Join(ctx, identity.Request{Addr: m.Addr, Token: tok}); !errdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
}
