package mesos

import (
	"log/slog"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
)

type row struct{ state, how, shown string }

// table reads the Mesos table of docs/conformance.md.
func table(t *testing.T) map[string]row {
	t.Helper()
	b, err := os.ReadFile("../../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "\n## Mesos\n")
	text, _, _ = strings.Cut(text, "\n## ")
	line := regexp.MustCompile(`^\| ([A-Z_]+) \| ([a-z ]+) \|(.*)\|(.*)\|$`)
	rows := map[string]row{}
	for l := range strings.Lines(text) {
		if m := line.FindStringSubmatch(strings.TrimSpace(l)); m != nil {
			if _, twice := rows[m[1]]; twice {
				t.Errorf("%s has two rows", m[1])
			}
			rows[m[1]] = row{m[2], strings.TrimSpace(m[3]), strings.TrimSpace(m[4])}
		}
	}
	return rows
}

// TestEveryCallHasARow holds the table against the calls there are, and those
// that are not yet done against what is answered: 501.
func TestEveryCallHasARow(t *testing.T) {
	s, err := newServer(Options{
		Deps: face.Deps{Engine: enginetest.New(t).As(core.OwnerMesos), Logger: slog.New(slog.DiscardHandler)}, Config: Config{WorkDir: t.TempDir()},
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := table(t)
	for n, name := range mesosagent.Call_Type_name {
		kind := mesosagent.Call_Type(n)
		if kind == mesosagent.Call_UNKNOWN {
			continue
		}
		r, ok := rows[name]
		delete(rows, name)
		switch {
		case !ok:
			t.Errorf("%s has no row", name)
		case r.state != "works" && r.state != "differs" && r.state != "not yet":
			t.Errorf("%s: state %q", name, r.state)
		case r.state == "differs" && r.how == "":
			t.Errorf("%s differs without a reason", name)
		case (r.state == "not yet") != (s.handlers[kind] == nil):
			t.Errorf("%s is %s; it has a handler: %v", name, r.state, s.handlers[kind] != nil)
		}
	}
	for name := range rows {
		t.Errorf("%s is no call of this API", name)
	}
}

// TestRowsNameTestsThatExist keeps the last column true.
func TestRowsNameTestsThatExist(t *testing.T) {
	for name, r := range table(t) {
		if r.state == "not yet" {
			continue
		}
		for test := range strings.SplitSeq(r.shown, ", ") {
			dir, fn := path.Split(test)
			if dir == "" {
				dir = "internal/face/mesos"
			}
			if err := exec.CommandContext(t.Context(), "grep", "-rqF", "func "+fn+"(", "../../../"+dir).Run(); err != nil {
				t.Errorf("%s: %s is nowhere", name, test)
			}
		}
	}
}
