package mesos

import (
	"log/slog"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/conformancetest"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
)

type row struct{ state, how, shown string }

// chapter returns Mesos' chapter of docs/conformance.md.
func chapter(t *testing.T) string {
	t.Helper()
	doc := conformancetest.Read(t, "../../..")
	_, text, _ := strings.Cut(doc, "\n## Mesos\n")
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// table reads the table of calls.
func table(t *testing.T) map[string]row {
	t.Helper()
	text := chapter(t)
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

// TestEveryCallHasARow compares the table with the existing calls, and calls not yet done with
// their answer: 501.
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
		if r.state != "not yet" {
			exist(t, name, r.shown)
		}
	}
}

// exist checks that the tests of a row exist.
func exist(t *testing.T, name, shown string) {
	t.Helper()
	for test := range strings.SplitSeq(shown, ", ") {
		dir, fn := path.Split(test)
		if dir == "" {
			dir = "internal/face/mesos"
		}
		if err := exec.CommandContext(t.Context(), "grep", "-rqF", "func "+fn+"(", "../../../"+dir).Run(); err != nil {
			t.Errorf("%s: %s is nowhere", name, test)
		}
	}
}

// TestEveryStatusIsShown: each status of the contract that is no success has a row of tests, and
// they exist.
func TestEveryStatusIsShown(t *testing.T) {
	missing := []string{"202", "400", "401", "403", "404", "405", "406", "409", "413", "415", "500", "501", "503"}
	line := regexp.MustCompile(`(?m)^\| ([0-9]{3}) \|(.*)\|(.*)\|$`)
	for _, m := range line.FindAllStringSubmatch(chapter(t), -1) {
		missing = slices.DeleteFunc(missing, func(code string) bool { return code == m[1] })
		exist(t, m[1], strings.TrimSpace(m[3]))
	}
	if len(missing) > 0 {
		t.Errorf("without a row: %v", missing)
	}
}
