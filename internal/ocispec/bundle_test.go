package ocispec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestBundleProcess(t *testing.T) {
	whole, err := json.Marshal(specs.Spec{Version: "1.2.0", Hostname: "h", Process: &specs.Process{Cwd: "/work", Args: []string{"a"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, spec string
		cwd        string // "" means refused
	}{
		{"whole", string(whole), "/work"},
		{"late", `{"root": {"path": "process"}, "mounts": [1, {"process": 2}], "process": {"cwd": "/late"}}`, "/late"},
		{"none", `{"ociVersion": "1.2.0"}`, ""},
		{"null", `{"process": null}`, ""},
		{"list", `[]`, ""},
		{"cut", string(whole[:len(whole)/2]), ""},
		{"of another type", `{"process": 7}`, ""},
		{"empty", ``, ""},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(tc.spec), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := BundleProcess(dir)
		if tc.cwd == "" {
			if !errdefs.IsDataLoss(err) {
				t.Errorf("%s: %v, %v; want data loss", tc.name, p, err)
			}
		} else if err != nil || p.Cwd != tc.cwd {
			t.Errorf("%s: %v, %v; want cwd %s", tc.name, p, err, tc.cwd)
		}
	}
}
