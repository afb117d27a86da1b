package errtext

import (
	"strings"
	"testing"
)

func TestPlain(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for text, want := range map[string]string{
		"": "",
		"start container " + id + ": start container " + id + `: exec "x": no such file or directory: not found`: `start container: exec "x": no such file or directory: not found`,
		"run sandbox web: create sandbox \"web_default_0_" + id + "\": no address":                               "run sandbox web: create sandbox: no address",
		"remove sandbox " + id + ": runtime: forget " + id + "/main: it runs":                                    "remove sandbox: runtime: forget: it runs",
		id + "/main: it runs": "it runs",
		"open /run/longshore/bundle/" + id + "/rootfs: permission denied":                             "open /run/longshore/bundle/ID/rootfs: permission denied",
		"container " + id + ": not found":                                                             "container " + id + ": not found",
		"claim host port 80: taken by sandbox " + id + ": already exists":                             "claim host port 80: taken by sandbox " + id + ": already exists",
		"image app@sha256:" + id + ": not found":                                                      "image app@sha256:" + id + ": not found",
		"start container web: start container: it is running":                                         "start container web: it is running",
		"create container \"a\\\"b\": create container: spec: root: not found":                        "create container: spec: root: not found",
		"exec in container " + id + ": exec \"a: a\": permission denied":                              "exec in container: exec \"a: a\": permission denied",
		"signal process p of container " + id + ": it has ended":                                      "signal process p of container: it has ended",
		"0123456789abcdef is too short, and " + id + "0 too long":                                     "0123456789abcdef is too short, and " + id + "0 too long",
		"lookup r.example on 192.0.2.53:53: read udp 192.0.2.1:40123->192.0.2.53:53: i/o timeout":     "lookup r.example on 192.0.2.53:53: read udp 192.0.2.53:53: i/o timeout",
		"get x: dial tcp 192.0.2.1:0->192.0.2.2:443: i/o timeout":                                     "get x: dial tcp 192.0.2.2:443: i/o timeout",
		"get x: write tcp [2001:db8::1]:40123->[2001:db8::2]:443: broken pipe":                        "get x: write tcp [2001:db8::2]:443: broken pipe",
		"read tcp 192.0.2.1:1->192.0.2.2:80: reset (tried before: read tcp [::1]:1->[::1]:80: reset)": "read tcp 192.0.2.2:80: reset (tried before: read tcp [::1]:80: reset)",
		"exec \"a->b\": no such file":                                                                 "exec \"a->b\": no such file",
		"container \"" + id + "\": it is exited":                                                      "container \"ID\": it is exited",
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q\nbecame %q,\nwant   %q", text, got, want)
		}
	}
}

func FuzzPlain(f *testing.F) {
	f.Add("start container " + strings.Repeat("a", idLen) + "/main: x: x")
	f.Add(`create container "`)
	f.Add("read udp 192.0.2.1:40123->192.0.2.53:53: i/o timeout")
	f.Fuzz(func(t *testing.T, text string) {
		if got := Plain(text); len(got) > len(text) {
			t.Errorf("%q became %q", text, got)
		}
	})
}
