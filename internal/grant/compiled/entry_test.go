package compiled

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"strings"
	"testing"
)

func testKey() Key { return KeyFor(sha256.Sum256([]byte("module")), "v1") }

// sealed returns an entry with a compiler's output.
func sealed(t interface{ Fatal(args ...any) }, written string) []byte {
	var b bytes.Buffer
	if err := seal(&b, testKey(), strings.NewReader(written), int64(len(written))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const written = `[{"name":"a/one","size":3},{"name":"two","size":4}]` + "\nonetwo2"

func TestAnEntryHasWhatTheCompilerWrote(t *testing.T) {
	files, err := Open(sealed(t, written), testKey())
	if err != nil || len(files) != 2 || files[0].Name != "a/one" || string(files[0].Data) != "one" || string(files[1].Data) != "two2" {
		t.Errorf("%v, %v", files, err)
	}
	if _, err := Open(sealed(t, written), Key{}); err == nil {
		t.Error("it is of every module")
	}
}

// TestWhatTheCompilerWritesIsChecked: it is confined because a module may have taken it over, so its output may be anything.
func TestWhatTheCompilerWritesIsChecked(t *testing.T) {
	long, err := json.Marshal(make([]FileSize, maxHeader))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"nothing": "", "no list": "text", "an empty list": "[]\n", "no end of the list": `[{"name":"a","size":0}]`, "a longer file": `[{"name":"a","size":2}]` + "\n1",
		"a shorter file": `[{"name":"a","size":1}]` + "\n12", "a negative size": `[{"name":"a","size":-1},{"name":"b","size":2}]` + "\n1", "a path that leads out": `[{"name":"../a","size":1}]` + "\n1",
		"an absolute path": `[{"name":"/a","size":1}]` + "\n1", "sizes that overflow": `[{"name":"a","size":9223372036854775807},{"name":"b","size":9223372036854775807},{"name":"c","size":3}]` + "\n1",
		"a long list": string(long) + "\n",
	} {
		var b bytes.Buffer
		if err := seal(&b, testKey(), strings.NewReader(text), int64(len(text))); err == nil {
			t.Errorf("%s was kept", name)
		}
	}
}

// FuzzEntry: both readers accept the same entries, and only those of the key with their own sum.
func FuzzEntry(f *testing.F) {
	right := sealed(f, written)
	for _, seed := range [][]byte{right, right[:len(right)-1], []byte(entryMagic), []byte(entryMagic + "{}\n"), nil} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, data []byte, sum bool) {
		if sum { // else hardly any has a right one
			s := sha256.Sum256(data)
			data = append(bytes.Clone(data), s[:]...)
		}
		files, err := Open(data, testKey())
		if again := check(bytes.NewReader(data), int64(len(data)), testKey()); (err == nil) != (again == nil) {
			t.Errorf("Open says %v, check %v", err, again)
		}
		total := 0
		for _, file := range files {
			total += len(file.Data)
		}
		if total > len(data) {
			t.Errorf("%d bytes of %d", total, len(data))
		}
	})
}
