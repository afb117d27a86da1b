package docker_test

import (
	"slices"
	"testing"
)

// scenes returns all requests in their order.
func scenes() []scene {
	return slices.Concat(systemScenes, imageScenes, containerScenes, refusalScenes, execScenes, networkScenes, volumeScenes, archiveScenes, rawScenes, eventScenes)
}

// TestScenes checks the tables: their number of requests, and that awaited answers were requested.
func TestScenes(t *testing.T) {
	number := 0
	names := map[string]bool{}
	for _, sc := range scenes() {
		if names[sc.name] {
			t.Errorf("two scenes have the name %q", sc.name)
		}
		names[sc.name] = true
		waiting := map[string]bool{}
		for _, st := range sc.steps {
			if st.await == "" {
				number++
			} else if !waiting[st.await] {
				t.Errorf("%s: nothing has started %q", sc.name, st.await)
			}
			waiting[st.later] = true
		}
	}
	if number < 250 {
		t.Errorf("%d requests, at least 250 are wanted", number)
	}
}
