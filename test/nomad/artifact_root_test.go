package nomad

import (
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestATaskMountsAnArtifact pulls an OCI artifact for a task, mounts it and one of its files, and refuses it as the task's root.
func TestATaskMountsAnArtifact(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		ref := imagetest.NewRegistry(t).Push("team/model", "v1", imagetest.Artifact{Type: "application/vnd.example", Files: []imagetest.ArtifactFile{
			{Title: "a", Body: []byte("a\n")}, {Path: "d/b", Body: []byte("b\n")},
		}}.Build())
		mounts := []any{
			map[string]any{"type": "image", "source": ref, "target": "/model", "readonly": true},
			map[string]any{"type": "image", "source": ref, "target": "/etc/b", "readonly": true, "image_options": map[string]any{"subpath": "d/b"}},
		}
		task := r.given("web", "cat /model/a /model/d/b /etc/b; touch /model/x || echo refused", map[string]any{"mount": mounts})
		if out, end := r.said(task); out != "a\nb\nb\nrefused\n" {
			t.Errorf("%q, %v", out, end)
		}
		if resp, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: r.given("root", "true", map[string]any{"image": ref})}); err == nil {
			t.Errorf("an artifact as the task's root: %v", resp)
		}
		r.nothingLeft()
	})
}
