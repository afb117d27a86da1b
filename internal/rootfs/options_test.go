package rootfs

import "testing"

// TestLabelsInOptions: the commas of a label's categories must not end the option.
func TestLabelsInOptions(t *testing.T) {
	for want, data := range map[string][]string{
		`context="u:r:t:s0:c1,c2"`:            {"context=u:r:t:s0:c1,c2"},
		`lowerdir=/a:/b,context="u:r:t:s0"`:   {"lowerdir=/a:/b", "context=u:r:t:s0"},
		`context="u:r:t:s0:c1,c2",size=1,a=b`: {`context="u:r:t:s0:c1,c2"`, "size=1", "a=b"},
		"":                                    nil,
	} {
		if got := joined(data); got != want {
			t.Errorf("%q: %s, want %s", data, got, want)
		}
	}
}
