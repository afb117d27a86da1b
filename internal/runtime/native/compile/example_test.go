package compile_test

import (
	"fmt"
	"log"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// A spec becomes a list of system calls, which a child of the keeper's makes one
// after the other; the last executes the program. Nothing runs here.
func ExampleContainer() {
	out, err := compile.Container(compile.Input{
		ID: "c1", Bundle: "/run/longshore/bundles/c1", Root: "/run/longshore/bundles/c1/rootfs",
		Host: compile.Host{LastCap: 40}, // on a node: compile.ReadHost
		Spec: &specs.Spec{
			Version: specs.Version,
			Root:    &specs.Root{Path: "rootfs", Readonly: true},
			Process: &specs.Process{Args: []string{"/bin/true"}, Cwd: "/tmp", NoNewPrivileges: true},
			Mounts:  []specs.Mount{{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"}},
			Linux:   &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.UTSNamespace}}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	_, steps, err := plan.Lines(out.Plan, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, step := range steps {
		title, _, _ := strings.Cut(step, ": ")
		switch words := strings.Fields(title); words[0] {
		case "mount", "device", "pivot_root", "exec":
			fmt.Println(title)
		}
	}
	// Output:
	// mount tmpfs on /tmp
	// device /dev/null
	// device /dev/zero
	// device /dev/full
	// device /dev/random
	// device /dev/urandom
	// device /dev/tty
	// pivot_root
	// exec /bin/true
}
