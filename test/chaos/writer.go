// Package chaos kills agent, keeper and nest while containers write and exit, and then compares
// every byte and every exit with the expected ones.
package chaos

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// burst is how many records a writer writes each time it wakes up.
const burst = 4

// record is one write of a writer: its stream and its content.
type record struct {
	stderr bool
	data   []byte
}

// script returns the endless, reproducible list of a writer's records. They are
// numbered, have 1 byte to 64 KiB, some without a newline, and go to both streams.
type script struct {
	rnd *rand.Rand
	id  int
	n   int
}

func newScript(id int) *script {
	//nolint:gosec // it is to be the same every time
	return &script{rnd: rand.New(rand.NewPCG(uint64(id), 1)), id: id}
}

func (s *script) next() record {
	s.n++
	var size int
	switch p := s.rnd.IntN(1000); {
	case p < 900:
		size = 1 + s.rnd.IntN(200)
	case p < 995:
		size = 1 + s.rnd.IntN(4096)
	default:
		size = 1 + s.rnd.IntN(64<<10)
	}
	head := fmt.Sprintf("%d.%d:", s.id, s.n)
	data := make([]byte, 0, size+8)
	data = append(data, head[:min(len(head), size)]...)
	// Eight letters at a time: in an emulated machine the writers would otherwise use
	// the time that the node needs.
	for len(data) < size {
		letters := s.rnd.Uint64()&0x1f1f1f1f1f1f1f1f | 0x4040404040404040
		data = binary.LittleEndian.AppendUint64(data, letters)[:min(len(data)+8, size)]
	}
	if s.rnd.IntN(10) != 0 {
		data = append(data, '\n')
	}
	return record{stderr: s.rnd.IntN(3) == 0, data: data}
}

// writer is the program in the containers. It writes its script until the file "stop"
// appears in its control directory, stores there how many records it has written, and
// exits with the code in that file.
func writer(args []string) int {
	dir := args[0]
	id, err := strconv.Atoi(args[1])
	if err != nil {
		return 120
	}
	rate, err := strconv.Atoi(args[2])
	if err != nil {
		return 120
	}
	tick := time.NewTicker(burst * time.Second / time.Duration(rate))
	defer tick.Stop()
	s := newScript(id)
	for n := 0; ; n++ {
		if n%burst == 0 {
			<-tick.C
			if stop, err := os.ReadFile(filepath.Join(dir, "stop")); err == nil && len(stop) > 0 {
				return finish(dir, n, strings.TrimSpace(string(stop)))
			}
		}
		r := s.next()
		var to io.Writer = os.Stdout
		if r.stderr {
			to = os.Stderr
		}
		if _, err := to.Write(r.data); err != nil {
			_ = os.WriteFile(filepath.Join(dir, "failed"), []byte(err.Error()), 0o600)
			return 121
		}
	}
}

func finish(dir string, n int, stop string) int {
	code, err := strconv.Atoi(stop)
	if err != nil {
		return 122
	}
	tmp := filepath.Join(dir, ".count")
	if err := os.WriteFile(tmp, []byte(strconv.Itoa(n)), 0o600); err != nil {
		return 123
	}
	if err := os.Rename(tmp, filepath.Join(dir, "count")); err != nil {
		return 123
	}
	return code
}

// expected returns the output of the first n records of a writer on each stream.
func expected(id, n int) (stdout, stderr []byte) {
	s := newScript(id)
	for range n {
		r := s.next()
		if r.stderr {
			stderr = append(stderr, r.data...)
		} else {
			stdout = append(stdout, r.data...)
		}
	}
	return stdout, stderr
}

// expectedTTY returns their output on a terminal, with "\r\n" for "\n".
func expectedTTY(id, n int) []byte {
	s := newScript(id)
	var all []byte
	for range n {
		all = append(all, s.next().data...)
	}
	return bytes.ReplaceAll(all, []byte("\n"), []byte("\r\n"))
}

// reassemble splits a log in CRI format into its streams. It fails on a torn or foreign
// line.
func reassemble(log []byte) (stdout, stderr []byte, err error) {
	for line := range bytes.Lines(log) {
		part := bytes.SplitN(line, []byte(" "), 4)
		if len(part) != 4 || !bytes.HasSuffix(line, []byte("\n")) {
			return nil, nil, fmt.Errorf("torn line %.100q", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, string(part[0])); err != nil {
			return nil, nil, fmt.Errorf("line %.100q: %w", line, err)
		}
		text := part[3]
		switch string(part[2]) {
		case "F":
		case "P":
			text = text[:len(text)-1]
		default:
			return nil, nil, fmt.Errorf("line %.100q: no P or F", line)
		}
		switch string(part[1]) {
		case "stdout":
			stdout = append(stdout, text...)
		case "stderr":
			stderr = append(stderr, text...)
		default:
			return nil, nil, fmt.Errorf("line %.100q: no stream", line)
		}
	}
	return stdout, stderr, nil
}

// differ returns where two streams differ, or "".
func differ(got, want []byte) string {
	if bytes.Equal(got, want) {
		return ""
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	return fmt.Sprintf("%d bytes, want %d; they part at %d: got %.60q, want %.60q", len(got), len(want), i, got[i:], want[i:])
}

// differTTY is differ for a terminal, where a keeper's death may repeat the last chunk:
// at a difference it looks for a step back of at most one chunk after which the streams
// agree. It returns the number of such repeats.
func differTTY(got, want []byte) (repeats int, diff string) {
	const chunk = 64 << 10
	g, w := 0, 0
	for g < len(got) {
		if w < len(want) && got[g] == want[w] {
			g, w = g+1, w+1
			continue
		}
		probe := got[g:min(g+64, len(got))]
		back := bytes.LastIndex(want[max(0, w-chunk):min(w+len(probe)-1, len(want))], probe)
		if back < 0 {
			return repeats, differ(got[g:], want[w:])
		}
		w = max(0, w-chunk) + back
		repeats++
	}
	if w != len(want) {
		return repeats, fmt.Sprintf("%d of %d bytes", w, len(want))
	}
	return repeats, ""
}
