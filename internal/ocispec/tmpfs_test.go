package ocispec

import (
	"regexp"
	"strings"
	"testing"
)

// TestTmpfsOptions compares the checks with a pattern each.
func TestTmpfsOptions(t *testing.T) {
	patterns := []struct{ name, pattern string }{
		{"size", `^[0-9]{1,19}[kKmMgG%]?$`},
		{"nr_blocks", `^[0-9]{1,19}[kKmMgG]?$`},
		{"nr_inodes", `^[0-9]{1,19}[kKmMgG]?$`},
		{"mode", `^[0-7]{1,5}$`},
		{"uid", `^[0-9]{1,10}$`},
		{"gid", `^[0-9]{1,10}$`},
		{"huge", `^(never|always|within_size|advise)$`},
		{"mpol", `^[a-z0-9=:,-]{1,64}$`},
		{"source", `^$a`},
	}
	values := []string{
		"", "0", "7", "8", "1777", "64m", "64M", "50%", "5%%", "k", "m5", "5km", "-1", "+1", "5é", "5\n", "é", "never", "nevers", "interleave:0-3", "bind=static:1,2", "A", "a/b", "1,size=2", "0x10",
		strings.Repeat("9", 10), strings.Repeat("9", 11), strings.Repeat("9", 19), strings.Repeat("9", 19) + "g", strings.Repeat("9", 20), strings.Repeat("a", 64), strings.Repeat("a", 65), "77777", "777777",
	}
	allowed := 0
	for _, p := range patterns {
		re := regexp.MustCompile(p.pattern)
		for _, v := range values {
			want := re.MatchString(v)
			if got := TmpfsOption(p.name + "=" + v); got != want {
				t.Errorf("%s=%q: %t, want %t", p.name, v, got, want)
			}
			if want {
				allowed++
			}
		}
	}
	if allowed < 20 || !TmpfsOption("noexec") || TmpfsOption("bind") {
		t.Errorf("%d values are allowed", allowed)
	}
}
