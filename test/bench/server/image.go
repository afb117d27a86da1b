package server

import (
	"encoding/binary"
	"net"
	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/nodetest"
)

// Images are the names of every server's images.
type Images struct {
	Host    string // the registry
	Busybox string
	Pause   string // of the process that some servers put into each pod

	stop func()
}

// ServeImages serves them from a registry on loopback until Close.
func ServeImages() (Images, error) {
	busybox, err := nodetest.BusyboxImage()
	if err != nil {
		return Images{}, err
	}
	images, r, err := ServeMore()
	if err != nil {
		return Images{}, err
	}
	pause := imagetest.Image{
		Layers: [][]imagetest.File{{{Name: "pause", Body: pauseProgram(), Mode: 0o755}}},
		Config: ocispec.ImageConfig{Entrypoint: []string{"/pause"}},
	}
	images.Busybox, images.Pause = r.Push("busybox", "latest", busybox), r.Push("pause", "latest", pause.Build())
	return images, nil
}

// ServeMore serves a registry for the caller's images, until Close.
func ServeMore() (Images, *imagetest.Registry, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a listener for the program's whole life
	if err != nil {
		return Images{}, nil, err
	}
	r, srv := imagetest.Serve(l)
	return Images{Host: r.Host, stop: func() { _ = srv.Close() }}, r, nil
}

// Close ends the registry.
func (i Images) Close() { i.stop() }

// pauseProgram is the smallest that waits for ever, so that nobody's memory or
// start is charged with more: an ELF file of one page, with ppoll(0, 0, 0, 0) in
// a loop.
func pauseProgram() []byte { return program(waitingCode()) }

// ReadyProgram is as small: it writes "ready" and a newline, and waits for ever.
func ReadyProgram() []byte {
	const text = "ready\n"
	if runtime.GOARCH == "arm64" {
		var code []byte
		for _, word := range []uint32{
			0xd2800020, 0x10000161, 0xd28000c2, // mov x0, 1; adr x1, the text; mov x2, 6
			0xd2800808, 0xd4000001, // mov x8, 64; svc 0
		} {
			code = binary.LittleEndian.AppendUint32(code, word)
		}
		return program(append(append(code, waitingCode()...), text...))
	}
	waiting, before := waitingCode(), 5+5+5+5+2
	code := []byte{0xb8, 1, 0, 0, 0, 0xbf, 1, 0, 0, 0, 0xbe} // mov eax, 1; mov edi, 1; mov esi, the text
	code = binary.LittleEndian.AppendUint32(code, uint32(programBase+programEntry+before+len(waiting)))
	code = append(code, 0xba, 6, 0, 0, 0, 0x0f, 0x05) // mov edx, 6; syscall
	return program(append(append(code, waiting...), text...))
}

// Where a program's file is in its memory, and its code in its file.
const (
	programBase  = 0x400000
	programEntry = 64 + 56
)

func waitingCode() []byte {
	code := []byte{
		0x31, 0xff, // xor edi, edi
		0x31, 0xf6, // xor esi, esi
		0x31, 0xd2, // xor edx, edx
		0x45, 0x31, 0xd2, // xor r10d, r10d
		0xb8, 0x0f, 0x01, 0x00, 0x00, // mov eax, 271
		0x0f, 0x05, // syscall
		0xeb, 0xee, // jmp to the start
	}
	if runtime.GOARCH == "arm64" {
		code = nil
		for _, word := range []uint32{
			0xd2800000, 0xd2800001, 0xd2800002, 0xd2800003, // mov x0 to x3, 0
			0xd2800928, // mov x8, 73
			0xd4000001, // svc 0
			0x17fffffa, // b to the start
		} {
			code = binary.LittleEndian.AppendUint32(code, word)
		}
	}
	return code
}

// program makes an ELF file of a program's code.
func program(code []byte) []byte {
	const base, header, entry = programBase, 64, programEntry
	machine := uint16(62)
	if runtime.GOARCH == "arm64" {
		machine = 183
	}
	le := binary.LittleEndian
	b := append([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, make([]byte, 9)...)
	for _, half := range []uint16{2, machine} { // executable
		b = le.AppendUint16(b, half)
	}
	b = le.AppendUint32(b, 1)
	for _, long := range []uint64{base + entry, header, 0} {
		b = le.AppendUint64(b, long)
	}
	b = le.AppendUint32(b, 0)
	for _, half := range []uint16{header, entry - header, 1, 0, 0, 0} {
		b = le.AppendUint16(b, half)
	}
	b = le.AppendUint32(le.AppendUint32(b, 1), 5) // to load, to read and execute
	size := uint64(entry + len(code))
	for _, long := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, long)
	}
	return append(b, code...)
}
