package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestSubIDs(t *testing.T) {
	etc := t.TempDir()
	if list, err := SubIDs(etc, 1000, 10); err != nil || list != nil {
		t.Errorf("without files: %q, %v", list, err)
	}
	const uids = "# ids\nalice:990:10\nbob:991:10\n1003:1009:1\ncarol:1010:5\nlongshore:1000:10\nbad:x:1\nnone:1000:0\nhuge:0:4294967295\nshort:1\n"
	for name, body := range map[string]string{"subuid": uids, "subgid": "dave:900:200\n"} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := SubIDs(etc, 1000, 10)
	if want := []string{"bob (subuid 991 to 1000)", "1003 (subuid 1009 to 1009)", "huge (subuid 0 to 4294967294)", "dave (subgid 900 to 1099)"}; err != nil || !slices.Equal(list, want) {
		t.Errorf("%q, %v", list, err)
	}
	if err := os.Remove(filepath.Join(etc, "subgid")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(etc, "subgid"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := SubIDs(etc, 1000, 10); err == nil {
		t.Error("a file that cannot be read is no finding")
	}
}

// FuzzSubIDs: an entry has a user and ids of 32 bits.
func FuzzSubIDs(f *testing.F) {
	f.Add([]byte("alice:100000:65536\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, e := range subIDs(body) {
			if e.user == "" || e.first > 1<<32-1 || e.count > 1<<32-1 {
				t.Errorf("%+v", e)
			}
		}
	})
}
