package core_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
)

// TestNames compares with the expressions that the names of containers, volumes and cluster volumes
// were described by.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 128)
	names := []string{"", "a", "0", "A.b", "a_b-c", "-a", "_a", ".", "..", "a/b", "a b", "a\n", "a\x00", "ä", "aä", long, long + "b", strings.Repeat("f", 64), "ab", "abc", "abG", "ABC"}
	for c := range 256 {
		names = append(names, string([]byte{byte(c)}), string([]byte{'a', byte(c)}))
	}
	for _, tt := range []struct {
		also, pattern string
	}{
		{"_.-", `^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`},
		{"_-", `^[0-9A-Za-z][0-9A-Za-z_-]{0,127}$`},
		{"", `^[0-9A-Za-z]{1,128}$`},
	} {
		want := regexp.MustCompile(tt.pattern)
		for _, name := range names {
			if got := core.IsName(name, tt.also, 128); got != want.MatchString(name) {
				t.Errorf("IsName(%q, %q) is %t", name, tt.also, got)
			}
		}
	}
	hex := regexp.MustCompile(`^[0-9a-f]*$`)
	for _, name := range names {
		if got := core.IsHex(name); got != hex.MatchString(name) {
			t.Errorf("IsHex(%q) is %t", name, got)
		}
	}
}
