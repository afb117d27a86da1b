package nomad_test

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/conformancetest"
)

// TestEveryCallAndCapabilityHasARow holds docs/conformance.md against the services
// and the message of the capabilities, and its last column against the tests.
func TestEveryCallAndCapabilityHasARow(t *testing.T) {
	doc := conformancetest.Read(t, "../../..")
	_, section, ok := strings.Cut(doc, "\n## Nomad\n")
	if !ok {
		t.Fatal("there is no section Nomad")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var want []string
	for _, d := range []grpc.ServiceDesc{nomadbase.BasePlugin_ServiceDesc, nomaddriver.Driver_ServiceDesc} {
		service := d.ServiceName[strings.LastIndexByte(d.ServiceName, '.')+1:]
		for _, m := range d.Methods {
			want = append(want, service+"/"+m.MethodName)
		}
		for _, m := range d.Streams {
			want = append(want, service+"/"+m.StreamName)
		}
	}
	fields := (&nomaddriver.DriverCapabilities{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		want = append(want, string(fields.Get(i).Name()))
	}
	rows := regexp.MustCompile(`(?m)^\| ((?:BasePlugin|Driver)/\w+) \| (works|differs|refused) \|\s*(.*?)\s*\| ([^|]+) \|$`).FindAllStringSubmatch(section, -1)
	var got []string
	for _, r := range rows {
		got = append(got, r[1])
		if r[2] != "works" && strings.TrimSpace(r[3]) == "" {
			t.Errorf("%s %s without a reason", r[1], r[2])
		}
		for test := range strings.SplitSeq(r[4], ", ") {
			dir, fn := path.Split(test)
			if dir == "" {
				dir = "internal/face/nomad/"
			}
			if err := exec.CommandContext(t.Context(), "grep", "-rq", "func "+fn+"(", "../../../"+dir).Run(); err != nil {
				t.Errorf("%s: %s is nowhere", r[1], test)
			}
		}
	}
	for _, r := range regexp.MustCompile(`(?m)^\| ([a-z_]+) \| (?:yes|no|any|IMAGE|HOST)`).FindAllStringSubmatch(section, -1) {
		got = append(got, r[1])
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s has no row", w)
		}
	}
	for _, g := range got {
		if strings.Contains(g, "/") && !slices.Contains(want, g) {
			t.Errorf("%s is no call of this API", g)
		}
	}
}
