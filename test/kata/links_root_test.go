package kata

import (
	"testing"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestMountsOntoLinksThatLeadNowhere: a guest follows the table of an image's links without
// targets.
func TestMountsOntoLinksThatLeadNowhere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		a := start(t)
		dir := nodetest.DanglingSource(t)
		a.sandbox(t)
		spec := func(list []beneathtest.Dangling, script string) *katav1.Spec {
			s := a.spec(script)
			for _, d := range list {
				if err := d.Make(a.root); err != nil {
					t.Fatal(err)
				}
				s.Mounts = append(s.Mounts, &katav1.Mount{Destination: d.Mount, Type: "bind", Source: d.Source(dir), Options: []string{"rbind", "ro"}})
			}
			return s
		}
		list, script, want := beneathtest.DanglingMounts()
		a.run(t, "all", spec(list, script))
		if out := a.stdout(t, "all", "all"); out != want {
			t.Errorf("%q, want %q; stderr %q", out, want, a.stderr(t, "all", "all"))
		}
		a.wait(t, "all", "all")
		a.remove(t, "all")
		for _, d := range beneathtest.DanglingRefused() {
			if _, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "refused", ExecId: "refused", OCI: spec([]beneathtest.Dangling{d}, "true")}); err == nil {
				t.Errorf("%s was not refused", d.Name)
				a.remove(t, "refused")
			}
		}
	})
}
