package subprocess

import (
	"bytes"
	"io"
	"os"
)

// LastLine returns the last line of a file with a program's messages, which tells why it has ended; "" if there is none.
func LastLine(path string) string {
	const most = 4096
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return ""
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	b = bytes.TrimSpace(b)
	return string(b[bytes.LastIndexByte(b, '\n')+1:])
}
