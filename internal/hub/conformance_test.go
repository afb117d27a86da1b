package hub_test

import (
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/conformancetest"
)

// TestConformance compares the hub's table in docs/conformance.md with the services that workers
// call, and its last column with the tests.
func TestConformance(t *testing.T) {
	const root = "../.."
	doc := conformancetest.Read(t, root)
	_, text, _ := strings.Cut(doc, "\n## Hub\n")
	text, _, _ = strings.Cut(text, "\n## ")
	left := map[string]bool{}
	for _, s := range []grpc.ServiceDesc{swarmv1.CA_ServiceDesc, swarmv1.NodeCA_ServiceDesc, swarmv1.Dispatcher_ServiceDesc, swarmv1.LogBroker_ServiceDesc, swarmv1.ResourceAllocator_ServiceDesc} {
		name := s.ServiceName[strings.LastIndexByte(s.ServiceName, '.')+1:]
		for _, m := range s.Methods {
			left[name+"/"+m.MethodName] = true
		}
		for _, m := range s.Streams {
			left[name+"/"+m.StreamName] = true
		}
	}
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !strings.Contains(cells[1], "/") {
			continue
		}
		call, state := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
		if !left[call] {
			t.Errorf("%s is no call, or has two rows", call)
		}
		delete(left, call)
		if !slices.Contains([]string{"works", "differs", "refused"}, state) {
			t.Errorf("%s is %q", call, state)
		}
		for _, test := range strings.Split(strings.TrimSpace(cells[4]), ", ") {
			dir, name := path.Split(test)
			if dir == "" {
				dir = "internal/hub"
			}
			if exec.CommandContext(t.Context(), "grep", "-rqw", "func "+name, path.Join(root, dir), "--include=*_test.go").Run() != nil {
				t.Errorf("%s: there is no test %s", call, test)
			}
		}
	}
	if len(left) > 0 {
		t.Errorf("without a row: %v", slices.Sorted(maps.Keys(left)))
	}
}
