package imagetest

import (
	"encoding/binary"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ModuleTail is how many bytes of a Module come behind its imports.
const ModuleTail = 22

// section is one section of a WebAssembly file.
func section(id byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{id}, uint64(len(body))), body...)
}

func wasmName(s string) []byte { return append(binary.AppendUvarint(nil, uint64(len(s))), s...) }

// Module returns a WebAssembly module with a function _start that returns at once. It imports functions without
// parameters, each named MODULE.FUNCTION.
func Module(imports ...string) []byte {
	out := []byte("\x00asm\x01\x00\x00\x00")
	out = append(out, section(1, []byte{1, 0x60, 0, 0})...)
	body := binary.AppendUvarint(nil, uint64(len(imports)))
	for _, i := range imports {
		at := strings.LastIndexByte(i, '.')
		body = append(append(append(body, wasmName(i[:at])...), wasmName(i[at+1:])...), 0, 0)
	}
	out = append(out, section(2, body)...)
	out = append(out, section(3, []byte{1, 0})...)
	export := binary.AppendUvarint(append([]byte{1}, append(wasmName("_start"), 0)...), uint64(len(imports)))
	out = append(out, section(7, export)...)
	return append(out, section(10, []byte{1, 2, 0, 0x0b})...)
}

// Component returns the begin of a component that imports these interfaces.
func Component(imports ...string) []byte {
	out := []byte("\x00asm\x0d\x00\x01\x00")
	for _, i := range imports {
		body := append([]byte{1, 0}, wasmName(i)...)
		out = append(out, section(10, append(body, 5, 0))...)
	}
	return out
}

// Wasm is an image that holds a module and no archives.
type Wasm struct {
	Module      []byte
	LayerType   string
	ConfigType  string
	Config      any
	Platform    *ocispec.Platform
	Annotations map[string]string
	Extra       []ocispec.Descriptor // further layers without blobs
}

// Build makes the image's blobs.
func (w Wasm) Build() Built {
	b := Built{Blobs: map[digest.Digest][]byte{}}
	b.Layers = append([]ocispec.Descriptor{b.add(w.LayerType, w.Module)}, w.Extra...)
	cdesc := b.add(w.ConfigType, encode(w.Config))
	b.ID = cdesc.Digest
	b.Manifest = b.add(ocispec.MediaTypeImageManifest, encode(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: cdesc, Layers: b.Layers, Annotations: w.Annotations,
	}))
	b.Manifest.Platform = w.Platform
	return b
}

// SlowModule returns a module that takes long to compile: each of its functions, of 17 KB, takes about a second, for each of its many
// variables may come from any of its many branches. Modules of other names differ.
func SlowModule(functions int, name string) []byte {
	const variables, branches = 1000, 1000
	number := func(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }
	code := append(append([]byte{1}, number(variables)...), 0x7f, 0x03, 0x40) // a loop
	for i := range branches {
		a, b, c := number(i*7%variables), number((i*13+1)%variables), number((i*31+2)%variables)
		code = append(code, 0x02, 0x40, 0x20)         // begin a block, and get a
		code = append(append(code, a...), 0x0d, 0)    // leave the block unless it is 0
		code = append(append(code, 0x20), a...)       // get a
		code = append(append(code, 0x20), b...)       // get b
		code = append(append(code, 0x6a, 0x21), c...) // add them, and set c
		code = append(code, 0x0b)
	}
	code = append(code, 0x20, 0, 0x0d, 0, 0x0b, 0x0b)
	code = append(number(len(code)), code...)
	out := []byte("\x00asm\x01\x00\x00\x00")
	out = append(out, section(0, append(wasmName("name of the test"), name...))...)
	out = append(out, section(1, []byte{1, 0x60, 0, 0})...)
	types, bodies := number(functions), number(functions)
	for range functions {
		types, bodies = append(types, 0), append(bodies, code...)
	}
	out = append(out, section(3, types)...)
	out = append(out, section(7, append(append([]byte{1}, wasmName("_start")...), 0, 0))...)
	return append(out, section(10, bodies)...)
}
