package native

import "testing"

// TestFeaturesStateTheRelease: the runtime is part of a program, and has its version.
func TestFeaturesStateTheRelease(t *testing.T) {
	r := &Runtime{o: Options{Version: "1.2.3"}}
	if f, err := r.Features(t.Context()); err != nil || f.Version != "1.2.3" {
		t.Errorf("%+v, %v", f, err)
	}
	r.o.Version = ""
	if f, err := r.Features(t.Context()); err != nil || f.Version == "" {
		t.Errorf("without a release: %+v, %v", f, err)
	}
}
