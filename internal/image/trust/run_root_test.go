package trust

import (
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestVerifyingHasNoRights, because longshore-verify reads strangers' data.
func TestVerifyingHasNoRights(t *testing.T) { roottest.Run(t, verifyingHasNoRights) }

func verifyingHasNoRights(t *testing.T) {
	t.Helper()
	script := `cat >/dev/null
grep '^Uid:' /proc/self/status | tr '\t' ' '
grep '^Groups:' /proc/self/status | tr -d '\t '
grep '^CapEff:' /proc/self/status | tr '\t' ' '
grep -c : /proc/self/net/dev
pwd
env | grep -v '^PWD=\|^_=\|^SHLVL='
exit 1`
	c, err := gate(t, func(c *Config) {
		c.Rules = []Rule{{Match: []string{"**"}, Verdict: Signed, Keys: []string{"/dev/null"}}}
		c.SignatureProgram = filepath.Join(verifiers(t, map[string]string{"v": script}), "v")
	}).Open("cri", named(t, "r.example/a"))
	if err != nil {
		t.Fatal(err)
	}
	err = c.Admit(t.Context(), Claim{Target: target, Evidence: Evidence{Simple: []Simple{{}}}})
	const want = "the image is refused by policy: the rule for ** says signed: " +
		"Uid: 65534 65534 65534 65534 Groups: CapEff: 0000000000000000 1 /: failed precondition"
	if err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}
