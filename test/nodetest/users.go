package nodetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// ExecUsers are the users of CheckExecUsers' programs in the busybox image: root, one of its passwd
// file, and one without an entry. "" is the container's own user.
var ExecUsers = []string{"", "0", "33", "4711"}

// userScript prints the values that depend on a process's user, and fails if root cannot give files
// away.
const userScript = `echo uid=$(id -u) groups=$(id -G) home=$HOME $(grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status | tr -d '\t '); [ $(id -u) != 0 ] || { touch /tmp/f; chown 5 /tmp/f; rm /tmp/f; }`

// CheckExecUsers asserts that programs which exec runs in a container of a user have the ids, HOME and
// capabilities of their users: root those of the container's bounding set, others none.
func CheckExecUsers(t *testing.T, container, user string, noNewPrivs bool, as []string, exec func(as, script string) (string, error)) {
	t.Helper()
	of := map[string]string{"0": "uid=0 groups=0 home=/root ", "33": "uid=33 groups=33 home=/var/www ", "4711": "uid=4711 groups=0 home=/ "}
	nnp := "NoNewPrivs:0"
	if noNewPrivs {
		nnp = "NoNewPrivs:1"
	}
	for _, as := range as {
		who := as
		if who == "" {
			who = user
		}
		out, err := exec(as, userScript)
		f := strings.Fields(out)
		what := fmt.Sprintf("%s of user %s, no_new_privs %v, exec as %q", container, user, noNewPrivs, as)
		if err != nil || len(f) < 6 || !strings.HasPrefix(out, of[who]) || f[len(f)-1] != nnp {
			t.Errorf("%s: %q, %v; want %s and %s", what, out, err, of[who], nnp)
			continue
		}
		inForce, bounding := strings.TrimPrefix(f[3], "CapEff:"), strings.TrimPrefix(f[4], "CapBnd:")
		none := strings.Repeat("0", 16)
		switch {
		case !slices.Contains([]string{none, bounding}, inForce), bounding == none:
			t.Errorf("%s: in force are %s of %s", what, inForce, bounding)
		case who == "0" && inForce != bounding, who != "0" && inForce != none:
			t.Errorf("%s: in force are %s of %s", what, inForce, bounding)
		}
	}
}
