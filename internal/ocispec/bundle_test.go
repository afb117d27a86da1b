package ocispec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
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

func TestExecProcess(t *testing.T) {
	dir := t.TempDir()
	own := specs.Process{Cwd: "/work", Args: []string{"a"}, Env: []string{"A=1"}, User: specs.User{UID: 7}, NoNewPrivileges: true, Terminal: true, ConsoleSize: &specs.Box{Height: 1, Width: 1}}
	spec, err := json.Marshal(specs.Spec{Process: &own})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), spec, 0o600); err != nil {
		t.Fatal(err)
	}
	args, size := []string{"b", "c"}, core.Size{Cols: 80, Rows: 25}
	for _, tc := range []struct {
		tty  bool
		size core.Size
		box  *specs.Box
		env  []string
	}{
		{false, size, nil, []string{"A=1"}},
		{true, size, &specs.Box{Width: 80, Height: 25}, []string{"A=1", "TERM=xterm"}},
		{true, core.Size{Cols: 80}, nil, []string{"A=1", "TERM=xterm"}},
	} {
		p, err := ExecProcess(dir, args, tc.tty, tc.size)
		if err != nil {
			t.Fatal(err)
		}
		want := own
		want.Args, want.Terminal, want.ConsoleSize, want.Env = args, tc.tty, tc.box, tc.env
		if !reflect.DeepEqual(*p, want) {
			t.Errorf("terminal %v of %v: %+v, want %+v", tc.tty, tc.size, *p, want)
		}
	}
	own.Env = []string{"TERM=vt100"}
	if spec, err = json.Marshal(specs.Spec{Process: &own}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), spec, 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := ExecProcess(dir, nil, true, size); err != nil || len(p.Env) != 1 {
		t.Errorf("a TERM of its own: %v, %v", p, err)
	}
	if _, err := ExecProcess(t.TempDir(), args, true, size); err == nil {
		t.Error("a process out of nothing")
	}
}
