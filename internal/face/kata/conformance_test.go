package kata

import (
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/conformancetest"
)

// TestEveryCallHasARow holds docs/conformance.md against the agent's services, and its
// last column against the tests.
func TestEveryCallHasARow(t *testing.T) {
	doc := conformancetest.Read(t, "../../..")
	_, section, ok := strings.Cut(doc, "\n## Kata\n")
	if !ok {
		t.Fatal("there is no section Kata")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\w+/\w+) \| (?:works|differs|refused) \|[^|]+\| ([^|]+) \|$`).FindAllStringSubmatch(section, -1) {
		rows[row[1]] = true
		for name := range strings.SplitSeq(row[2], ", ") {
			dir, test := path.Split(name)
			if dir == "" {
				dir = "internal/face/kata"
			}
			if out, _ := exec.CommandContext(t.Context(), "grep", "-rlw", "func "+test, path.Join("../../..", dir), "--include=*_test.go").Output(); len(out) == 0 {
				t.Errorf("%s: there is no test %s", row[1], name)
			}
		}
	}
	for _, f := range []protoreflect.FileDescriptor{katav1.File_kata_v1_agent_proto, katav1.File_kata_v1_health_proto} {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				if call := string(s.Name()) + "/" + string(s.Methods().Get(j).Name()); !rows[call] {
					t.Errorf("%s has no row", call)
				}
			}
		}
	}
}
