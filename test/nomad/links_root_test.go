package nomad

import (
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestATaskMountsOntoLinksThatLeadNowhere: a job's mounts follow the table of an image's links
// without targets.
func TestATaskMountsOntoLinksThatLeadNowhere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, map[string]any{"volumes": map[string]any{"enabled": true}})
		image, dir := nodetest.DanglingImage(t)
		task := func(name string, list []beneathtest.Dangling, script string) *nomaddriver.TaskConfig {
			var mounts []any
			for _, d := range list {
				mounts = append(mounts, map[string]any{"type": "bind", "source": d.Source(dir), "target": d.Mount, "readonly": true})
			}
			return r.given(name, script, map[string]any{"image": image, "mount": mounts})
		}
		list, script, want := beneathtest.DanglingMounts()
		if out, end := r.said(task("all", list, script)); out != want {
			t.Errorf("%q, %v, want %q", out, end, want)
		}
		for _, d := range beneathtest.DanglingRefused() {
			if resp, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task("refused", []beneathtest.Dangling{d}, "true")}); err == nil {
				t.Errorf("%s was not refused: %v", d.Name, resp)
			}
		}
		r.nothingLeft()
	})
}
