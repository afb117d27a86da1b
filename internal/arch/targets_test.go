package arch_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	// target is a line of the Makefile that begins a target with a text for make help.
	target = regexp.MustCompile(`(?m)^([a-z0-9-]+):[^=\n]*## \S`)
	// namedTarget is a call of make in a document.
	namedTarget = regexp.MustCompile("`(?:[A-Z_0-9]+=\\S* )*make ([a-z][a-z0-9-]*)")
)

// TestDocumentsNameTargetsOfTheMakefile: every `make NAME` in a document can be called, and docs/testing.md
// describes every test and benchmark that make help lists.
func TestDocumentsNameTargetsOfTheMakefile(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range target.FindAllStringSubmatch(string(makefile), -1) {
		targets[m[1]] = true
	}
	if len(targets) < 50 {
		t.Fatalf("only %d targets were found", len(targets))
	}
	described := map[string]bool{}
	for _, d := range documents(t) {
		for _, m := range namedTarget.FindAllStringSubmatch(d.text, -1) {
			if !targets[m[1]] {
				t.Errorf("%s names make %s, which is no target of the Makefile", d.rel, m[1])
			}
			if d.rel == "docs/testing.md" {
				described[m[1]] = true
			}
		}
	}
	for name := range targets {
		kind, _, _ := strings.Cut(name, "-")
		if (kind == "bench" || kind == "e2e" || kind == "vm" || strings.HasSuffix(name, "test")) && !described[name] {
			t.Errorf("docs/testing.md does not describe make %s", name)
		}
	}
}
