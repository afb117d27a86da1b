package swarm_test

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/conformancetest"
)

// section returns the chapter Swarm of docs/conformance.md.
func section(t *testing.T) string {
	t.Helper()
	doc := conformancetest.Read(t, "../../..")
	_, section, ok := strings.Cut(doc, "\n## Swarm\n")
	if !ok {
		t.Fatal("there is no section Swarm")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

// rows compares the rows of the section that have the form of name in the first column with must,
// one each, and checks the tests of the last column.
func rows(t *testing.T, name string, must map[string]bool) {
	t.Helper()
	for _, row := range regexp.MustCompile(`(?m)^\| (`+name+`) \| (works|differs|refused) \| ([^|]+) \| ([^|]+) \|$`).FindAllStringSubmatch(section(t), -1) {
		if done, known := must[row[1]]; !known || done {
			t.Errorf("%s is not known, or has two rows", row[1])
		}
		must[row[1]] = true
		for _, name := range strings.Split(row[4], ", ") {
			testExists(t, row[1], name)
		}
	}
	var missing []string
	for what, row := range must {
		if !row {
			missing = append(missing, what)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("without a row: %v", missing)
	}
}

// testExists asserts that there is a test of this name, with its directory unless it is
// beside this one.
func testExists(t *testing.T, row, name string) {
	t.Helper()
	dir, test := path.Split(name)
	if dir == "" {
		dir = "internal/face/swarm"
	}
	out, _ := exec.CommandContext(t.Context(), "grep", "-rlw", "func "+test, path.Join("../../..", dir), "--include=*_test.go").Output()
	if len(out) == 0 {
		t.Errorf("%s: there is no test %s", row, name)
	}
}

// TestEveryFieldHasARow holds docs/conformance.md against the fields of a task that a service's
// author writes, and those that the managers fill in of its networks; and all tests that are named there
// against the tests.
func TestEveryFieldHasARow(t *testing.T) {
	fields := map[string]bool{}
	for _, m := range []proto.Message{
		&swarmv1.TaskSpec{}, &swarmv1.ContainerSpec{}, &swarmv1.Privileges{}, &swarmv1.Mount{}, &swarmv1.Mount_BindOptions{}, &swarmv1.Mount_VolumeOptions{}, &swarmv1.Mount_TmpfsOptions{},
		&swarmv1.NetworkAttachment{}, &swarmv1.Network{}, &swarmv1.NetworkSpec{}, &swarmv1.Endpoint{}, &swarmv1.EndpointSpec{}, &swarmv1.PortConfig{}, &swarmv1.EncryptionKey{},
	} {
		d := m.ProtoReflect().Descriptor()
		for i := range d.Fields().Len() {
			fields[string(d.Name())+"."+string(d.Fields().Get(i).Name())] = false
		}
	}
	rows(t, `\w+\.\w+`, fields)
	for _, name := range regexp.MustCompile(`[\w/]*\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(section(t), -1) {
		testExists(t, "a row", name)
	}
}

// TestEveryCallHasARow holds docs/conformance.md against the services that a worker may
// call, and its last column against the tests.
func TestEveryCallHasARow(t *testing.T) {
	calls := map[string]bool{} // whether it has a row
	for _, d := range []grpc.ServiceDesc{swarmv1.Dispatcher_ServiceDesc, swarmv1.CA_ServiceDesc, swarmv1.NodeCA_ServiceDesc, swarmv1.LogBroker_ServiceDesc, swarmv1.ResourceAllocator_ServiceDesc} {
		prefix := strings.TrimPrefix(d.ServiceName, "docker.swarmkit.v1.") + "/"
		for _, m := range d.Methods {
			calls[prefix+m.MethodName] = false
		}
		for _, m := range d.Streams {
			calls[prefix+m.StreamName] = false
		}
	}
	rows(t, `\w+/\w+`, calls)
	_, traps, ok := strings.Cut(section(t), "timings and traps")
	if !ok {
		t.Error("the timings and traps are not listed")
	}
	for _, name := range regexp.MustCompile(`[\w/]*\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(traps, -1) {
		testExists(t, "timings and traps", name)
	}
}
