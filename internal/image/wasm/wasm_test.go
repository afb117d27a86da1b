package wasm_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
)

func TestImportsAreRead(t *testing.T) {
	for _, c := range []struct {
		name    string
		data    []byte
		want    []string
		refusal string
	}{
		{"a module without imports", imagetest.Module(), nil, ""},
		{"preview 1", imagetest.Module("wasi_snapshot_preview1.fd_write", "wasi_snapshot_preview1.proc_exit", "env.x"), []string{"wasi_snapshot_preview1", "env"}, ""},
		{
			"preview 2 as a module", imagetest.Module("wasi_snapshot_preview1.fd_write", "wasi:cli/exit@0.2.0.exit"),
			[]string{"wasi_snapshot_preview1", "wasi:cli/exit@0.2.0"},
			"it is a module for WASI preview 2 that imports wasi:cli/exit@0.2.0; only core modules",
		},
		{
			"a component", imagetest.Component("wasi:cli/environment@0.2.0", "wasi:io/streams@0.2.0"),
			[]string{"wasi:cli/environment@0.2.0", "wasi:io/streams@0.2.0"},
			"it is a component that imports wasi:cli/environment@0.2.0, wasi:io/streams@0.2.0; only core modules for WASI preview 1 run here: build it for the target wasm32-wasip1",
		},
		{"a component of many imports", imagetest.Component(strings.Split("a:1 a:2 a:3 a:4 a:5 a:6 a:7 a:8 a:9 a:10", " ")...), nil, "a:8 and 2 more"},
		{"a component without imports", imagetest.Component(), nil, "it is a component that imports nothing"},
	} {
		m, err := wasm.Read(bytes.NewReader(c.data))
		if err != nil || c.want != nil && !slices.Equal(m.Imports, c.want) {
			t.Errorf("%s: %+v, %v", c.name, m, err)
		}
		switch err := m.Refusal(); {
		case c.refusal == "" && err != nil, c.refusal != "" && (err == nil || !strings.Contains(err.Error(), c.refusal) || !errdefs.IsNotImplemented(err)):
			t.Errorf("%s: refused by %v, want %q", c.name, err, c.refusal)
		}
	}
}

func TestWhatIsNoModuleIsRefused(t *testing.T) {
	whole := imagetest.Module("wasi_snapshot_preview1.fd_write")
	for name, data := range map[string][]byte{
		"nothing":               nil,
		"a program":             []byte("\x7fELF\x02\x01\x01\x00"),
		"a long name":           append([]byte("\x00asm\x01\x00\x00\x00\x02\x7f\x01\xff\x7f"), make([]byte, 200)...),
		"many imports":          append([]byte("\x00asm\x01\x00\x00\x00\x02\x7f\xff\xff\xff\x7f"), make([]byte, 200)...),
		"a number too long":     []byte("\x00asm\x01\x00\x00\x00\x02\xff\xff\xff\xff\xff\xff\x01"),
		"a number too large":    []byte("\x00asm\x01\x00\x00\x00\x02\xff\xff\xff\xff\x7f"),
		"an unknown kind":       []byte("\x00asm\x01\x00\x00\x00\x02\x06\x01\x01a\x01b\x09"),
		"a section that ends":   []byte("\x00asm\x01\x00\x00\x00\x01\x20\x00"),
		"imports behind theirs": []byte("\x00asm\x01\x00\x00\x00\x02\x02\x01\x01a\x01b\x00\x00"),
	} {
		if m, err := wasm.Read(bytes.NewReader(data)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	if _, err := wasm.Read(strings.NewReader("\x00asm\x02\x00\x00\x00")); !errdefs.IsNotImplemented(err) {
		t.Errorf("another version: %v", err)
	}
	for n := range whole {
		// A module may end between two sections: behind its head, here.
		if _, err := wasm.Read(bytes.NewReader(whole[:n])); err == nil && n != 8 && n < len(whole)-imagetest.ModuleTail && n != bytes.IndexByte(whole[8:], 2)+8 {
			t.Errorf("a module that was cut after %d bytes was read", n)
		}
	}
	broken := errors.New("broken")
	if _, err := wasm.Read(&failing{whole[:10], broken}); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
}

type failing struct {
	data []byte
	err  error
}

func (f *failing) Read(p []byte) (int, error) {
	if len(f.data) == 0 {
		return 0, f.err
	}
	n := copy(p, f.data)
	f.data = f.data[n:]
	return n, nil
}

func TestFormsAreKnown(t *testing.T) {
	if !wasm.IsLayer("application/wasm") || wasm.IsLayer("application/vnd.oci.image.layer.v1.tar+gzip") {
		t.Error("a layer's type is not known")
	}
	variant := func(v string) map[string]string { return map[string]string{"module.wasm.image/variant": v} }
	if !wasm.Compat(variant("compat"), nil) || !wasm.Compat(nil, variant("compat-smart")) || !wasm.Compat(map[string]string{"run.oci.handler": "wasm"}, nil) || wasm.Compat(variant("other"), nil) {
		t.Error("a compat image is not known")
	}
	kept := wasm.Annotations(map[string]string{"module.wasm.image/variant": "compat", wasm.GrantsAnnotation: "!container_log", "org.example": "x"})
	if len(kept) != 2 || kept[wasm.GrantsAnnotation] != "!container_log" {
		t.Errorf("kept %v", kept)
	}
}

func FuzzModule(f *testing.F) {
	f.Add(imagetest.Module("wasi_snapshot_preview1.fd_write", "env.x"))
	f.Add(imagetest.Component("wasi:cli/environment@0.2.0"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := wasm.Read(bytes.NewReader(data))
		if err == nil {
			err = m.Refusal()
		}
		if err != nil && !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) {
			t.Fatalf("an error without its class: %v", err)
		}
		if err != nil && len(err.Error()) > 32<<10 {
			t.Fatalf("an error of %d bytes", len(err.Error()))
		}
	})
}
