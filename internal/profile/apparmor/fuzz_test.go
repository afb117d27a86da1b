package apparmor

import (
	"strings"
	"testing"
)

// FuzzListed compares listed with a search for the line of a name.
func FuzzListed(f *testing.F) {
	f.Add("other (enforce)\np (complain)\n", "p")
	f.Add("/usr/sbin/x (y) (enforce)\n", "/usr/sbin/x (y)")
	f.Add("p", "p")
	f.Fuzz(func(t *testing.T, list, name string) {
		if listed(list, name) && !strings.Contains("\n"+list, "\n"+name+" (") {
			t.Errorf("%q is on %q", name, list)
		}
		if strings.ContainsAny(name, "(\n") {
			return
		}
		if !listed(list+"\n"+name+" (enforce)\n", name) {
			t.Errorf("%q is not on a list with it", name)
		}
	})
}

// FuzzDaemonOf generates profiles for labels of the agent. A label adds the two rules of a peer or
// none.
func FuzzDaemonOf(f *testing.F) {
	for _, label := range []string{"unconfined\n", "/usr/bin/longshore (enforce)\n", "a//&b (enforce)", "system_u:system_r:x_t:s0\x00", "x,\n  file,\n", ""} {
		f.Add(label)
	}
	lines := strings.Count(Profile("p", "", all), "\n")
	f.Fuzz(func(t *testing.T, label string) {
		text := Profile("p", daemonOf(label), all)
		if more := strings.Count(text, "\n") - lines; more != 0 && more != 2 {
			t.Errorf("label %q adds %d lines:\n%s", label, more, text)
		}
		for _, c := range "{}()\"" {
			if strings.Count(text, string(c)) != strings.Count(Profile("p", "x", all), string(c)) && strings.Count(text, "signal (receive)") == 4 {
				t.Errorf("label %q changes the number of %q:\n%s", label, c, text)
			}
		}
	})
}

// FuzzMajorOf checks that a version has a digit of the text.
func FuzzMajorOf(f *testing.F) {
	f.Add("AppArmor parser version 3.0.8\nCopyright (C) 1999-2008 Novell Inc.\n")
	f.Add("AppArmor parser version 4.1.0~beta1\n")
	f.Add("version -1.0")
	f.Fuzz(func(t *testing.T, text string) {
		n := majorOf(text)
		if n < 0 || n > 0 && !strings.ContainsAny(text, "123456789") {
			t.Errorf("%d of %q", n, text)
		}
		if !strings.Contains(text, "version ") && majorOf("AppArmor parser version 4.0.1\n"+text) != 4 {
			t.Errorf("4.0.1 is not major version 4 before %q", text)
		}
	})
}
