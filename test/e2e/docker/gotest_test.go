package docker

import (
	"bufio"
	"encoding/json"
	"io"
	"path"
	"strings"
	"testing"
)

// readGoTest reads the stream of go test -json, or of go tool test2json. A test that has begun
// and has no result has failed: the process has ended before it. The names are "PACKAGE TEST",
// with the last element of the package's path. Each failed test's output goes to keep.
func readGoTest(r io.Reader, keep io.Writer) (outcome, error) {
	o, text := outcome{}, map[string]*strings.Builder{}
	s := bufio.NewScanner(r)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var e struct{ Action, Package, Test, Output string }
		if json.Unmarshal(s.Bytes(), &e) != nil {
			if _, err := keep.Write(append(s.Bytes(), '\n')); err != nil { // the compiler's words, or a panic's
				return nil, err
			}
			continue
		}
		name := path.Base(e.Package) + " " + e.Test
		if e.Test == "" {
			if _, err := io.WriteString(keep, e.Output); err != nil {
				return nil, err
			}
			continue
		}
		switch e.Action {
		case "run":
			o[name], text[name] = failed, &strings.Builder{}
		case "output":
			if b := text[name]; b != nil {
				b.WriteString(e.Output)
			}
		case passed, failed, skipped:
			o[name] = e.Action
			if b := text[name]; b != nil && e.Action != passed {
				if _, err := io.WriteString(keep, name+"\n"+b.String()); err != nil {
					return nil, err
				}
			}
			delete(text, name)
		}
	}
	for _, b := range text {
		if _, err := io.WriteString(keep, b.String()); err != nil {
			return nil, err
		}
	}
	return o, s.Err()
}

// TestReadGoTest reads a stream with each result, with lines that are no JSON, and without an end.
func TestReadGoTest(t *testing.T) {
	stream := `# a compiler's warning
{"Action":"run","Package":"x/y/a","Test":"TestOne"}
{"Action":"output","Package":"x/y/a","Test":"TestOne","Output":"=== RUN\n"}
{"Action":"run","Package":"x/y/a","Test":"TestOne/sub"}
{"Action":"fail","Package":"x/y/a","Test":"TestOne/sub"}
{"Action":"fail","Package":"x/y/a","Test":"TestOne"}
{"Action":"run","Package":"b","Test":"TestTwo"}
{"Action":"pass","Package":"b","Test":"TestTwo"}
{"Action":"run","Package":"b","Test":"TestThree"}
{"Action":"skip","Package":"b","Test":"TestThree"}
{"Action":"run","Package":"b","Test":"TestFour"}
{"Action":"output","Package":"b","Test":"TestFour","Output":"panic: no\n"}
{"Action":"fail","Package":"b"}
`
	var kept strings.Builder
	got, err := readGoTest(strings.NewReader(stream), &kept)
	if err != nil {
		t.Fatal(err)
	}
	want := outcome{"a TestOne": failed, "a TestOne/sub": failed, "b TestTwo": passed, "b TestThree": skipped, "b TestFour": failed}
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for name, r := range want {
		if got[name] != r {
			t.Errorf("%s: %q, want %q", name, got[name], r)
		}
	}
	for _, text := range []string{"compiler's warning", "=== RUN", "panic: no"} {
		if !strings.Contains(kept.String(), text) {
			t.Errorf("the report lacks %q: %q", text, kept.String())
		}
	}
}
