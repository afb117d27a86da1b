package wasm

import (
	"encoding/binary"
	"slices"
)

// A program makes calls of WASI one after the other and keeps the result of each. It writes these
// numbers, four bytes each, to its standard output, and ends.
type program struct {
	imports []string
	code    []byte
	data    []byte
	calls   int
}

// Where things are in the program's memory.
const (
	atResults = 0
	atVectors = 1024 // of the calls that read and write
	atBuffers = 2048
	atData    = 32 << 10
	vectorLen = 16
	bufferLen = 256
)

// load is a number that is in memory, such as a descriptor that a call returned.
type load int

// signatures are the parameters of WASI's functions, i for 32 bits and l for 64. All but proc_exit return 32 bits.
var signatures = map[string]string{
	"path_open": "iiiiilliI", "fd_read": "iiii", "fd_write": "iiii", "fd_close": "i", "random_get": "ii", "clock_time_get": "ili", "proc_exit": "i",
	"sock_accept": "iii", "sock_recv": "iiiiii", "sock_send": "iiiii", "sock_shutdown": "ii", "path_create_directory": "iii", "path_symlink": "iiiii",
	"path_rename": "iiiiii", "path_unlink_file": "iii", "path_filestat_get": "iiiii", "fd_readdir": "iiili", "environ_sizes_get": "ii",
	"path_link": "iiiiiii", "path_remove_directory": "iii", "path_readlink": "iiiiii", "path_filestat_set_times": "iiiilli",
}

func leb(n int64) []byte {
	var out []byte
	for {
		b := byte(n & 0x7f)
		if n >>= 7; n == 0 && b&0x40 == 0 || n == -1 && b&0x40 != 0 {
			return append(out, b)
		}
		out = append(out, b|0x80)
	}
}

func uleb(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }

func (p *program) function(name string) int {
	i := slices.Index(p.imports, name)
	if i < 0 {
		i = len(p.imports)
		p.imports = append(p.imports, name)
	}
	return i
}

func (p *program) push(arg any) {
	switch a := arg.(type) {
	case int:
		p.code = append(append(p.code, 0x41), leb(int64(int32(a)))...)
	case int64:
		p.code = append(append(p.code, 0x42), leb(a)...)
	case load:
		p.push(int(a))
		p.code = append(p.code, 0x28, 2, 0)
	}
}

// call makes a call; its result is the next of the program's.
func (p *program) call(name string, args ...any) {
	p.push(atResults + 4*p.calls)
	p.calls++
	for _, a := range args {
		p.push(a)
	}
	p.code = append(append(p.code, 0x10), uleb(p.function(name))...)
	p.code = append(p.code, 0x36, 2, 0)
}

// text puts a string into memory.
func (p *program) text(s string) (at, size int) {
	at = atData + len(p.data)
	p.data = append(p.data, s...)
	return at, len(s)
}

// open opens a path below a preopen; the descriptor is at the address that it returns.
func (p *program) open(dir any, path string, oflags int, rights int64) load {
	at, size := p.text(path)
	result := atBuffers - 4 - 4*p.calls
	p.call("path_open", dir, followLinks, at, size, oflags, rights, rights, 0, result)
	return load(result)
}

// Rights and flags of path_open.
const (
	rightRead  = int64(1 << 1)
	rightWrite = int64(1 << 6)
	oCreate    = 1
	oDirectory = 2

	followLinks = 1
)

// store writes a number to memory.
func (p *program) store(at, n int) {
	p.push(at)
	p.push(n)
	p.code = append(p.code, 0x36, 2, 0)
}

// vector makes a list of one buffer.
func (p *program) vector(at, size int) int {
	v := atVectors + vectorLen*p.calls
	p.store(v, at)
	p.store(v+4, size)
	return v
}

func (p *program) write(fd any, s string) {
	at, size := p.text(s)
	v := p.vector(at, size)
	p.call("fd_write", fd, v, 1, v+8)
}

// copyOut reads into a buffer and writes those bytes to the standard output.
func (p *program) copyOut(fd any) {
	buffer := atBuffers + bufferLen*p.calls
	v := p.vector(buffer, bufferLen)
	p.call("fd_read", fd, v, 1, v+8)
	out := p.vector(buffer, 0)
	p.push(out + 4)
	p.push(load(v + 8))
	p.code = append(p.code, 0x36, 2, 0)
	p.call("fd_write", 1, out, 1, out+8)
}

func wasmSection(id byte, body []byte) []byte {
	return append(append([]byte{id}, uleb(len(body))...), body...)
}

func vec(items ...[]byte) []byte {
	out := uleb(len(items))
	for _, i := range items {
		out = append(out, i...)
	}
	return out
}

func name(s string) []byte { return append(uleb(len(s)), s...) }

// finish ends the program with its results on the standard output, and returns the module.
func (p *program) finish() []byte {
	calls := p.calls
	v := p.vector(atResults, 4*calls)
	p.call("fd_write", 1, v, 1, v+8)
	return p.module()
}

func (p *program) module() []byte {
	var types, imports [][]byte
	for i, f := range p.imports {
		t := []byte{0x60}
		t = append(t, uleb(len(signatures[f]))...)
		for _, k := range signatures[f] {
			if k == 'l' {
				t = append(t, 0x7e)
			} else {
				t = append(t, 0x7f)
			}
		}
		if f == "proc_exit" {
			t = append(t, 0)
		} else {
			t = append(t, 1, 0x7f)
		}
		types = append(types, t)
		imports = append(imports, append(append(append(name("wasi_snapshot_preview1"), name(f)...), 0), uleb(i)...))
	}
	types = append(types, []byte{0x60, 0, 0})
	body := append(append([]byte{0}, p.code...), 0x0b)
	out := []byte("\x00asm\x01\x00\x00\x00")
	out = append(out, wasmSection(1, vec(types...))...)
	out = append(out, wasmSection(2, vec(imports...))...)
	out = append(out, wasmSection(3, vec(uleb(len(p.imports))))...)
	out = append(out, wasmSection(5, vec([]byte{0, 1}))...)
	out = append(out, wasmSection(7, vec(append(append(name("_start"), 0), uleb(len(p.imports))...), append(name("memory"), 2, 0)))...)
	out = append(out, wasmSection(10, vec(append(uleb(len(body)), body...)))...)
	segment := append([]byte{0, 0x41}, leb(atData)...)
	segment = append(append(append(segment, 0x0b), uleb(len(p.data))...), p.data...)
	return append(out, wasmSection(11, vec(segment))...)
}
