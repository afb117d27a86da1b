package driver

import (
	"bytes"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFluentdsEntries: the bytes of a batch, as MessagePack's and the forward protocol's specifications have them.
func TestFluentdsEntries(t *testing.T) {
	s := sender(t, "fluentd", "tag", "app", "fluentd-sub-second-precision", "true")
	f, ok := s.(*fluentd)
	if !ok {
		t.Fatalf("%T", s)
	}
	f.of = Source{ID: "i", Name: "n", Attributes: map[string]string{"log": "forged", "source": "forged", "team": "x"}}
	at := messages()[0].At
	got := f.encode(nil, []Message{{At: at, Text: []byte("one")}}, "C")
	want := "\x93\xa3app\x91\x92\xd7\x00\x69\x57\x34\xa5\x28\x77\x38\x32" +
		"\x85\xaccontainer_id\xa1i\xaecontainer_name\xa2/n\xa6source\xa6stdout\xa4team\xa1x\xa3log\xa3one" +
		"\x82\xa4size\xcf\x00\x00\x00\x00\x00\x00\x00\x01\xa5chunk\xa1C"
	want = strings.Replace(want, "\x28\x77\x38\x32", string([]byte{678901234 >> 24, 678901234 >> 16 & 0xff, 678901234 >> 8 & 0xff, 678901234 & 0xff}), 1)
	want = strings.Replace(want, "\x69\x57\x34\xa5", string([]byte{byte(at.Unix() >> 24), byte(at.Unix() >> 16), byte(at.Unix() >> 8), byte(at.Unix())}), 1)
	if string(got) != want {
		t.Errorf("%q\n%q", got, want)
	}
}

func TestFluentdWaitsForItsAcknowledgement(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	answers := make(chan []byte, 3)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				b := make([]byte, 64<<10)
				for {
					n, err := conn.Read(b)
					if err != nil {
						return
					}
					_, chunk, _ := bytes.Cut(b[:n], []byte("\xa5chunk"))
					answer := <-answers
					if answer == nil { // the chunk is a text as it is
						answer = append([]byte("\x81\xa3ack"), chunk...)
					}
					for i := range answer { // in pieces
						_, _ = conn.Write(answer[i : i+1])
					}
				}
			}()
		}
	}()
	s := sender(t, "fluentd", "fluentd-address", "unix://"+l.Addr().String(), "fluentd-request-ack", "true")
	for _, tt := range []struct {
		answer []byte
		says   string
	}{{nil, ""}, {[]byte("\x81\xa3ack\xa1x"), "another chunk"}, {nil, ""}, {[]byte("\x93"), "no map"}, {nil, ""}} {
		answers <- tt.answer
		err := s.Send(t.Context(), messages())
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %v", tt.answer, err)
		}
	}
}

func TestFluentdsAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"host": "tcp://host:24224", "host:1": "tcp://host:1", "tcp://host": "tcp://host:24224", "tls://host:2": "tcp://host:2", "unix:///a/b": "unix:///a/b",
	} {
		if got, err := fluentdTarget(text); err != nil || got.String() != want || (got.tls != nil) != strings.HasPrefix(text, "tls") {
			t.Errorf("%s: %s, %v", text, got.String(), err)
		}
	}
	for _, text := range []string{"udp://a", "unix://a", "http://a", "tcp://", "tcp://a/b", "%"} {
		if _, err := fluentdTarget(text); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

// FuzzAck: no answer of a service panics, and a complete one does not depend on the bytes after it.
func FuzzAck(f *testing.F) {
	for _, s := range []string{"\x81\xa3ack\xa1x", "\x82\xa1a\xa1b\xa3ack\xd9\x02xy", "\xde\x00\x01\xc4\x03ack\xc5\x00\x01z", "\x81", "", "\xde\xff\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ack, rest, err := decodeAck(b)
		if err != nil {
			if errors.Is(err, errShort) && len(b) >= maxAck {
				t.Error("an answer without a bound")
			}
			return
		}
		again, left, err := decodeAck(append(bytes.Clone(b[:len(b)-len(rest)]), 0xff))
		if err != nil || again != ack || len(left) != 1 {
			t.Errorf("%q then %q, %q, %v", ack, again, left, err)
		}
	})
}

// journal makes a socket like journald's, and returns a function that receives an entry: a datagram, or a file with a large one.
func journal(t *testing.T) (socket string, receive func() string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return socket, func() string {
		b, oob := make([]byte, 1<<20), make([]byte, 64)
		n, oobn, _, _, err := l.ReadMsgUnix(b, oob)
		if err != nil {
			t.Fatal(err)
		}
		if oobn == 0 {
			return string(b[:n])
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			t.Fatal(err)
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fds[0]) }()
		seals, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GET_SEALS, 0)
		if want := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL; err != nil || seals != want {
			t.Errorf("seals %x, %v", seals, err)
		}
		big := make([]byte, 8<<20)
		if n, err = unix.Pread(fds[0], big, 0); err != nil {
			t.Fatal(err)
		}
		return string(big[:n])
	}
}

func TestJournaldsFields(t *testing.T) {
	socket, receive := journal(t)
	s := sender(t, "journald", "tag", "{{.Name}}")
	j, ok := s.(*journald)
	if !ok {
		t.Fatalf("%T", s)
	}
	from := source()
	from.Attributes = map[string]string{"com.example/team": "x", "_pid": "1", "message": "forged", "container-id": "forged", "lines": "a\nMESSAGE=forged", "1": "y", "PRIORITY": "0"}
	j.to.address, j.head = socket, journalHead(from, "web")
	list := messages()
	list[1].Part = &Part{ID: "p", Ordinal: 2, Last: true}
	if err := s.Send(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	head := "COM_EXAMPLE_TEAM=x\nCONTAINER_ID=0123456789ab\nCONTAINER_ID_FULL=0123456789abcdef\nCONTAINER_NAME=web\nCONTAINER_TAG=web\nIMAGE_NAME=busybox:latest\n" +
		"LINES\n\x10\x00\x00\x00\x00\x00\x00\x00a\nMESSAGE=forged\nPID=1\nSYSLOG_IDENTIFIER=web\n"
	if got, want := receive(), head+"PRIORITY=6\nSYSLOG_TIMESTAMP=2026-01-02T03:04:05.678901234Z\nMESSAGE=one\n"; got != want {
		t.Errorf("%q\n%q", got, want)
	}
	if got, want := receive(), head+"PRIORITY=3\nSYSLOG_TIMESTAMP=2026-01-02T03:04:05.678901234Z\nCONTAINER_PARTIAL_MESSAGE=true\n"+
		"CONTAINER_PARTIAL_ID=p\nCONTAINER_PARTIAL_ORDINAL=2\nCONTAINER_PARTIAL_LAST=true\nMESSAGE=two\n"; got != want {
		t.Errorf("%q\n%q", got, want)
	}
	large := Message{At: list[0].At, Text: []byte(strings.Repeat("x", 4<<20))}
	if err := s.Send(t.Context(), []Message{large}); err != nil {
		t.Fatal(err)
	}
	if got := receive(); !strings.HasSuffix(got, "\nMESSAGE="+string(large.Text)+"\n") {
		t.Errorf("%d bytes", len(got))
	}
}
