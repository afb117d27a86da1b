package grant_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/longshore/longshore/internal/grant"
)

// program is an ELF file of 64 bits with these segments.
func program(kinds ...uint32) []byte {
	b := make([]byte, 64+56*len(kinds))
	copy(b, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(b[16:], 2)
	binary.LittleEndian.PutUint16(b[18:], 62)
	binary.LittleEndian.PutUint32(b[20:], 1)
	binary.LittleEndian.PutUint64(b[32:], 64)
	binary.LittleEndian.PutUint16(b[52:], 64)
	binary.LittleEndian.PutUint16(b[54:], 56)
	binary.LittleEndian.PutUint16(b[56:], uint16(len(kinds)))
	for i, k := range kinds {
		binary.LittleEndian.PutUint32(b[64+56*i:], k)
	}
	return b
}

// TestOnlyStaticProgramsAreTaken: a file that names a loader, is damaged, or is no program is
// refused.
func TestOnlyStaticProgramsAreTaken(t *testing.T) {
	with := func(at int, value ...byte) []byte {
		b := program(1, 1)
		copy(b[at:], value)
		return b
	}
	for name, c := range map[string]struct {
		file   []byte
		static bool
	}{
		"a program":                      {program(1, 4), true},
		"a program of a type for ASLR":   {with(16, 3), true},
		"a program with a loader":        {program(1, 3, 1), false},
		"a script":                       {[]byte("#!/bin/sh\necho"), false},
		"nothing":                        {nil, false},
		"a header alone":                 {program()[:64], false},
		"half of a header":               {program(1)[:60], false},
		"an object":                      {with(16, 1), false},
		"a core":                         {with(16, 4), false},
		"no byte order":                  {with(5, 0), false},
		"a third class":                  {with(4, 3), false},
		"segments beyond the end":        {with(32, 0xff), false},
		"segments at an absurd place":    {with(39, 0xff), false},
		"more segments than are there":   {with(56, 0xff), false},
		"65,535 segments":                {with(56, 0xff, 0xff), false},
		"segments of an unknown size":    {with(54, 57), false},
		"segments of no size":            {with(54, 0), false},
		"what says that it has 32 bits":  {with(4, 1), false},
		"what says that it is the other": {with(5, 2), false},
	} {
		err := grant.CheckStatic(bytes.NewReader(c.file))
		if (err == nil) != c.static {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := grant.CheckStatic(bytes.NewReader(program(1, 3))); !errors.Is(err, grant.ErrStatic) {
		t.Errorf("a loader: %v", err)
	}
}

// counted is a file that counts the bytes read.
type counted struct {
	io.ReaderAt
	read int
}

func (c *counted) ReadAt(b []byte, at int64) (int, error) {
	c.read += len(b)
	return c.ReaderAt.ReadAt(b, at)
}

// FuzzCheckStatic: any bytes are refused or taken without a crash, reading a few kilobytes; a
// program with a loader, by Go's own reader, is never taken.
func FuzzCheckStatic(f *testing.F) {
	for _, b := range [][]byte{program(1), program(1, 3), program(1, 3)[:100], []byte("#!/bin/sh"), append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 60)...)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &counted{ReaderAt: bytes.NewReader(b)}
		err := grant.CheckStatic(c)
		if c.read > 66<<10 {
			t.Errorf("%d bytes were read", c.read)
		}
		parsed, perr := elf.NewFile(bytes.NewReader(b))
		if perr != nil || err != nil {
			return
		}
		for _, p := range parsed.Progs {
			if p.Type == elf.PT_INTERP {
				t.Error("a program with a loader was taken")
			}
		}
	})
}
