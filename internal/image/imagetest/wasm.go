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

// Module returns a WebAssembly module whose function _start returns at once. It imports functions without parameters,
// each named MODULE.FUNCTION.
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
	Extra       []ocispec.Descriptor // further layers, whose blobs nobody has
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
