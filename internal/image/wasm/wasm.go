// Package wasm knows the forms of a WebAssembly module in an image, and reads a module's kind and imports, which decide
// whether it can run here. It runs in the image worker, on bytes from outside, and knows no registries and no store.
package wasm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// File is the name of the only file in the root of a module's image, and Entrypoint its path.
const (
	File       = "module.wasm"
	Entrypoint = "/" + File
)

// ConfigType is the media type of the config of a wasm artifact as CNCF's TAG Runtime describes it.
const ConfigType = "application/vnd.wasm.config.v0+json"

// IsLayer reports whether a layer of this media type is a module and no archive.
func IsLayer(mediaType string) bool {
	switch mediaType {
	case "application/wasm", // CNCF's artifacts
		"application/vnd.bytecodealliance.component.layer.v0+wasm",
		"application/vnd.bytecodealliance.wasm.component.layer.v0+wasm",
		"application/vnd.module.wasm.content.layer.v1+wasm",
		"application/vnd.wasm.content.layer.v1+wasm":
		return true
	}
	return false
}

// Compat reports whether an image of ordinary layers says that its program is a module: by an annotation of its manifest or a label of its
// config, as crun looks for them.
func Compat(annotations, labels map[string]string) bool {
	for _, m := range []map[string]string{annotations, labels} {
		switch m["module.wasm.image/variant"] {
		case "compat", "compat-smart":
			return true
		}
		if m["run.oci.handler"] == "wasm" {
			return true
		}
	}
	return false
}

// Annotations returns those annotations of a manifest that say how its program is to run.
func Annotations(all map[string]string) map[string]string {
	const most = 256 << 10
	var kept map[string]string
	for _, key := range append([]string{"module.wasm.image/variant", "run.oci.handler", GrantsAnnotation}, core.CheckpointAnnotations()...) {
		if v, ok := all[key]; ok && len(v) <= most {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = v
		}
	}
	return kept
}

// GrantsAnnotation has the document of the grants that an image's program wishes.
const GrantsAnnotation = "longshore.grants"

// Preview1 is the module that a program for WASI preview 1 imports.
const Preview1 = "wasi_snapshot_preview1"

// Module is the result of reading a file.
type Module struct {
	// Component says that the file is a component and no core module.
	Component bool
	// Imports are the names of the modules (of a component: the interfaces) that it imports, each once, in the file's order.
	Imports []string
}

// Limits for reading.
const (
	maxImports = 10_000
	maxName    = 1024
	listed     = 8 // in an error
)

// Refusal returns why m cannot run here, or nil.
func (m Module) Refusal() error {
	var strange []string
	for _, i := range m.Imports {
		if strings.Contains(i, ":") || m.Component {
			strange = append(strange, i)
		}
	}
	if !m.Component && len(strange) == 0 {
		return nil
	}
	kind := "a module for WASI preview 2"
	if m.Component {
		kind = "a component"
	}
	wants := "nothing"
	if len(strange) > 0 {
		wants = strings.Join(strange[:min(len(strange), listed)], ", ")
		if more := len(strange) - listed; more > 0 {
			wants = fmt.Sprintf("%s and %d more", wants, more)
		}
	}
	return fmt.Errorf("it is %s that imports %s; only core modules for WASI preview 1 run here: build it for the target wasm32-wasip1: %w",
		kind, wants, errdefs.ErrNotImplemented)
}

var errMalformed = fmt.Errorf("malformed WebAssembly: %w", errdefs.ErrInvalidArgument)

// Read reads a module's imports. It reads no more than it needs, and keeps no more than some names.
func Read(r io.Reader) (Module, error) {
	in := &input{r: bufio.NewReader(r), left: 1 << 62}
	var head [8]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return Module{}, in.failed("its head", err)
	}
	if string(head[:4]) != "\x00asm" {
		return Module{}, fmt.Errorf("this is no WebAssembly: %w", errdefs.ErrInvalidArgument)
	}
	m := Module{}
	switch version := binary.LittleEndian.Uint32(head[4:]); {
	case version == 1:
	case version>>16 == 1: // the layer of components; their version still changes
		m.Component = true
	default:
		return m, fmt.Errorf("WebAssembly of version %#x is not known: %w", version, errdefs.ErrNotImplemented)
	}
	seen := map[string]bool{}
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			m.Imports = append(m.Imports, name)
		}
	}
	err := in.sections(m.Component, add)
	return m, err
}

// Input counts the rest of a section.
type input struct {
	r    *bufio.Reader
	left int64
}

// Read implements io.Reader; it never reads behind the section's end.
func (i *input) Read(p []byte) (int, error) {
	if i.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := i.r.Read(p[:min(int64(len(p)), i.left)])
	i.left -= int64(n)
	return n, err
}

// ReadByte implements io.ByteReader.
func (i *input) ReadByte() (byte, error) {
	if i.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	b, err := i.r.ReadByte()
	if err == nil {
		i.left--
	}
	return b, err
}

func (i *input) failed(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errMalformed) {
		return fmt.Errorf("%w: it ends in the middle of %s", errMalformed, what)
	}
	return fmt.Errorf("read %s: %w", what, err)
}

// Uint reads an unsigned LEB128 number of at most 32 bits.
func (i *input) uint() (uint32, error) {
	var n uint64
	for shift := 0; shift < 35; shift += 7 {
		b, err := i.ReadByte()
		if err != nil {
			return 0, err
		}
		n |= uint64(b&0x7f) << shift
		if b&0x80 == 0 {
			if n > 1<<32-1 {
				return 0, errMalformed
			}
			return uint32(n), nil
		}
	}
	return 0, errMalformed
}

func (i *input) name() (string, error) {
	n, err := i.uint()
	if err != nil {
		return "", err
	}
	if n > maxName {
		return "", errMalformed
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(i, buf); err != nil {
		return "", err
	}
	return printable(string(buf)), nil
}

// Printable returns a name in a form for errors.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '�' {
			return '?'
		}
		return r
	}, s)
}

// Sections calls add for each import. In a module the section with the imports is one of the first and occurs once.
func (i *input) sections(component bool, add func(string)) error {
	const moduleImports, componentImports, functions, code = 2, 10, 3, 10
	whole := i.left
	for {
		i.left = whole
		id, err := i.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return i.failed("a section", err)
		}
		size, err := i.uint()
		if err != nil {
			return i.failed("a section", err)
		}
		i.left = int64(size)
		switch {
		case !component && id == moduleImports:
			return i.moduleImports(add)
		case !component && (id == functions || id == code):
			return nil // imports come before both
		case component && id == componentImports:
			if err := i.componentImports(add); err != nil {
				return err
			}
		}
		if n, err := io.CopyN(io.Discard, i.r, i.left); err != nil {
			return i.failed(fmt.Sprintf("a section, after %d bytes", n), err)
		}
	}
}

func (i *input) moduleImports(add func(string)) error {
	n, err := i.uint()
	if err != nil || n > maxImports {
		return i.failed("the imports", errors.Join(err, errMalformed))
	}
	for range n {
		module, err := i.name()
		if err == nil {
			_, err = i.name()
		}
		if err == nil {
			err = i.kind()
		}
		if err != nil {
			return i.failed("the imports", err)
		}
		add(module)
	}
	return nil
}

// Kind skips an import's description: a function's type, a table, a memory, a global or a tag.
func (i *input) kind() error {
	kind, err := i.ReadByte()
	if err != nil {
		return err
	}
	limits := func() error {
		flags, err := i.ReadByte()
		if err == nil {
			err = i.skip64()
		}
		if err == nil && flags&1 != 0 {
			err = i.skip64()
		}
		return err
	}
	switch kind {
	case 0:
		_, err = i.uint()
	case 1:
		if _, err = i.ReadByte(); err == nil {
			err = limits()
		}
	case 2:
		err = limits()
	case 3:
		if _, err = i.ReadByte(); err == nil {
			_, err = i.ReadByte()
		}
	case 4:
		if _, err = i.ReadByte(); err == nil {
			_, err = i.uint()
		}
	default:
		err = errMalformed
	}
	return err
}

// Skip64 skips a LEB128 number of at most 64 bits.
func (i *input) skip64() error {
	for range 10 {
		b, err := i.ReadByte()
		if err != nil || b&0x80 == 0 {
			return err
		}
	}
	return errMalformed
}

// ComponentImports adds the names of a component's imports, as far as this version of the format is supported: they
// appear in an error, and decide nothing.
func (i *input) componentImports(add func(string)) error {
	n, err := i.uint()
	if err != nil || n > maxImports {
		return i.failed("the imports", errors.Join(err, errMalformed))
	}
	for range n {
		if _, err := i.ReadByte(); err != nil {
			return i.failed("the imports", err)
		}
		name, err := i.name()
		if err != nil {
			return i.failed("the imports", err)
		}
		add(name)
		sort, err := i.ReadByte()
		if err != nil {
			return i.failed("the imports", err)
		}
		if sort == 0 || sort == 3 { // a core module's type, or a bound, has a byte more
			if _, err := i.ReadByte(); err != nil {
				return i.failed("the imports", err)
			}
		}
		if err := i.skip64(); err != nil {
			return i.failed("the imports", err)
		}
	}
	return nil
}
