package trail

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// journalSocket takes entries in systemd's native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/).
const journalSocket = "/run/systemd/journal/socket"

// Journal returns an Options.Copy that sends lines to systemd's journal. It never waits: if the journal's queue is full, the line is
// not copied.
func Journal() func(line []byte) error { return journal(journalSocket) }

func journal(path string) func(line []byte) error {
	var mu sync.Mutex // guards conn
	var conn *net.UnixConn
	return func(line []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if conn == nil {
			c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				return fmt.Errorf("journal: %w", err)
			}
			conn = c
		}
		raw, err := conn.SyscallConn()
		if err != nil {
			return err
		}
		var sent error
		err = raw.Write(func(fd uintptr) bool {
			sent = unix.Send(int(fd), entry(line), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			return true // also if there is no room
		})
		if err == nil {
			err = sent
		}
		if err != nil { // the journal may have been restarted
			_ = conn.Close()
			conn = nil
			return os.NewSyscallError("send to the journal", err)
		}
		return nil
	}
}

// entry returns a line as an entry of the journal.
func entry(line []byte) []byte {
	var b bytes.Buffer
	b.WriteString("PRIORITY=6\nSYSLOG_IDENTIFIER=longshore-audit\n")
	b.WriteString("MESSAGE\n")
	_ = binary.Write(&b, binary.LittleEndian, uint64(len(line)))
	b.Write(line)
	b.WriteByte('\n')
	return b.Bytes()
}
