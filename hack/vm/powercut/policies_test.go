package main

import (
	"strings"
	"testing"
)

func TestLedger(t *testing.T) {
	for _, tc := range []struct{ lines, violation, params string }{
		{"up", "", "settled=0 longshore.stopped= longshore.unsure="},
		{"fact net 1 10.0.0.0/24|working|up|fact net 1 10.0.0.0/24", "", "settled=1 longshore.stopped= longshore.unsure="},
		{"fact net 1|working|up|fact net 2", "net was 1 and is 2", ""},
		{"wrote db 1|wrote db 2|up|found db 2|wrote db 3", "", ""},
		{"wrote db 1|wrote db 2|up|found db 3", "", ""}, // its answer was on the way
		{"wrote db 1|wrote db 2|up|found db 1", "db lost writes: 2 were acknowledged, 1 are there", ""},
		{"wrote db 1|found db 3", "db has 3 writes after 1", ""},
		{"wrote db one", "invalid syntax", ""},
		{"begin stop a|did stop a|begin stop b|begin start c|did start c|begin restart d", "", "stopped=a longshore.unsure=b"},
		{"begin stop a|did stop a|begin start a|did start a", "", "stopped= longshore.unsure="},
	} {
		l := newLedger()
		var err error
		for line := range strings.SplitSeq(tc.lines, "|") {
			if err == nil {
				err = l.observe(line)
			}
		}
		if tc.violation == "" && err != nil || tc.violation != "" && (err == nil || !strings.Contains(err.Error(), tc.violation)) {
			t.Errorf("%s: %v, wanted %q", tc.lines, err, tc.violation)
		}
		if got := l.params(); !strings.HasSuffix(got, tc.params) {
			t.Errorf("%s: %s, wanted %q", tc.lines, got, tc.params)
		}
	}
}

func TestTheAddressChangesTwice(t *testing.T) {
	for n := 1; n <= 40; n++ {
		changes := 0
		for i := range 2 * n {
			if address(i, n) != address(i+1, n) {
				changes++
			}
		}
		if changes != 2 {
			t.Errorf("%d changes with n = %d", changes, n)
		}
	}
}

func TestAfterBoot(t *testing.T) {
	for _, tc := range []struct {
		policy string
		want   [3]fate // by letRun, stopped, unsure
	}{
		{"no", [3]fate{mustRest, mustRest, mustRest}},
		{"on-failure", [3]fate{mustRun, mustRest, mayRun}},
		{"always", [3]fate{mustRun, mustRun, mustRun}},
		{"unless-stopped", [3]fate{mustRun, mustRest, mayRun}},
	} {
		for h, want := range tc.want {
			if got := afterBoot(tc.policy, hand(h)); got != want {
				t.Errorf("%s, %d: %d, wanted %d", tc.policy, h, got, want)
			}
		}
	}
}
