package cri

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// logWriterArg as the first argument makes the test's program a logWriter.
const logWriterArg = "log-writer"

// appendLine appends the line of a number, without its end: the number, and after
// it so many bytes as are the number's own. Of some lines they are more than fit
// into one record of the CRI's log.
func appendLine(b []byte, n int) []byte {
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, ' ')
	size := 20 + n%177
	if n%4096 == 4095 {
		size = 10_000 + n%90_000
	}
	for range size {
		b = append(b, 'a'+byte(n%26))
	}
	return b
}

// logWriter writes numbered lines for so long, at so many bytes a second, or as
// fast as they are taken when that is slower. The last line tells how many there
// were, and in how long.
func logWriter(args []string) int {
	length, err := time.ParseDuration(args[0])
	if err != nil {
		return 2
	}
	rate, err := strconv.Atoi(args[1])
	if err != nil {
		return 2
	}
	const chunk = 64 << 10
	var b []byte
	var lines, wrote int
	begin := time.Now()
	for {
		passed := time.Since(begin)
		if passed >= length {
			break
		}
		if due := int(passed.Seconds() * float64(rate)); wrote > due {
			pause := time.NewTimer(time.Duration(wrote-due) * time.Second / time.Duration(rate))
			<-pause.C
		}
		for b = b[:0]; len(b) < chunk; lines++ {
			b = append(appendLine(b, lines), '\n')
		}
		if _, err := os.Stdout.Write(b); err != nil {
			return 1
		}
		wrote += len(b)
	}
	if _, err := fmt.Printf("wrote %d lines, %d bytes in %s\n", lines, wrote, time.Since(begin).Round(time.Millisecond)); err != nil {
		return 1
	}
	return 0
}

// logChecker reads a container's log, file after file, and wants every line of a
// logWriter once, in order and whole.
type logChecker struct {
	lines int
	last  string // the writer's text at its end
	begun []byte // of a line in several records
	want  []byte
}

// check reads one file. Its last record must be whole; the last line need not be: the rest is
// in the next file.
func (c *logChecker) check(r io.Reader) error {
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		record, err := in.ReadSlice('\n')
		if err == io.EOF && len(record) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after line %d: a record is torn: %w: %.100q", c.lines, err, record)
		}
		text, last, ok := parseRecord(record)
		if !ok {
			return fmt.Errorf("after line %d: no record: %.100q", c.lines, record)
		}
		if !last || len(c.begun) > 0 {
			if c.begun = append(c.begun, text...); !last {
				continue
			}
			text = c.begun
		}
		if err := c.line(text); err != nil {
			return err
		}
		c.begun = c.begun[:0]
	}
}

// parseRecord returns the text of a line of the CRI's log of stdout, and whether it
// ends a line of the container's.
func parseRecord(record []byte) (text []byte, last, ok bool) {
	at, rest, ok := bytes.Cut(record, []byte{' '})
	if !ok || len(at) < len("2006-01-02T15:04:05Z") || len(at) > len(time.RFC3339Nano) {
		return nil, false, false
	}
	if rest, ok = bytes.CutPrefix(rest, []byte("stdout ")); !ok || len(rest) < len("F \n") || rest[1] != ' ' {
		return nil, false, false
	}
	return rest[2 : len(rest)-1], rest[0] == 'F', rest[0] == 'F' || rest[0] == 'P'
}

func (c *logChecker) line(text []byte) error {
	if c.last != "" {
		return fmt.Errorf("a line after the last one: %.100q", text)
	}
	if bytes.HasPrefix(text, []byte("wrote ")) {
		c.last = string(text)
		return nil
	}
	if c.want = appendLine(c.want[:0], c.lines); !bytes.Equal(text, c.want) {
		return fmt.Errorf("line %d is %.100q (%d bytes), want %.100q (%d bytes)", c.lines, text, len(text), c.want, len(c.want))
	}
	c.lines++
	return nil
}

func TestLogCheckerSeesWhatIsWrong(t *testing.T) {
	record := func(tag, text string) string {
		return "2026-01-02T03:04:05.000000006Z stdout " + tag + " " + text + "\n"
	}
	line := func(n int) string { return string(appendLine(nil, n)) }
	zero := line(0)
	for name, files := range map[string][]string{
		"whole":            {record("F", zero) + record("F", line(1)), record("F", line(2))},
		"in two files":     {record("P", zero[:7]), record("F", zero[7:]) + record("F", line(1))},
		"an empty end":     {record("P", zero), record("F", "")},
		"bad: lost":        {record("F", zero) + record("F", line(2))},
		"bad: doubled":     {record("F", zero) + record("F", zero)},
		"bad: torn":        {record("F", zero), strings.TrimSuffix(record("F", line(1)), "\n")},
		"bad: torn within": {record("F", zero)[:30], record("F", zero)[30:]},
		"bad: cut short":   {record("F", zero[:len(zero)-1])},
		"bad: the end":     {record("F", "wrote 0 lines") + record("F", zero)},
		"bad: stderr":      {strings.Replace(record("F", zero), "stdout", "stderr", 1)},
		"bad: no time":     {"x " + record("F", zero)},
	} {
		var c logChecker
		var err error
		for _, f := range files {
			if err = c.check(strings.NewReader(f)); err != nil {
				break
			}
		}
		if bad := strings.HasPrefix(name, "bad"); (err != nil) != bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}
