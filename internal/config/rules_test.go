package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPolicyRulesOfALaterFileReplaceEarlierOnes, as all lists do, so that the last file shows all
// rules in force.
func TestPolicyRulesOfALaterFileReplaceEarlierOnes(t *testing.T) {
	dir := t.TempDir()
	rule := func(match string) string {
		return "[[images.policy.rules]]\nmatch = [\"" + match + "\"]\nverdict = \"reject\"\n"
	}
	for name, text := range map[string]string{"config.toml": rule("a/*") + rule("b/*"), "conf.d/1.toml": rule("c/*")} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := Load(filepath.Join(dir, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if r := cfg.Images.Policy.Rules; len(r) != 1 || r[0].Match[0] != "c/*" {
		t.Errorf("rules %+v", r)
	}
	for text, want := range map[string]string{
		"[[images.policy.rules]]\nmatch = [\"a\"]\nverdit = \"reject\"\n":                                                  "unknown key",
		"[[images.policy.rules]]\nverdict = \"reject\"\n":                                                                  "match is empty",
		"[[images.policy.rules]]\nmatch = [\"a/**b\"]\nverdict = \"accept\"\n":                                             "a part of its own",
		"[[images.policy.rules]]\nmatch = [\"a/b:v1\"]\nverdict = \"accept\"\n":                                            "tags are not matched",
		"[[images.policy.rules]]\nmatch = [\"a/*\"]\nverdict = \"signed\"\n":                                               "say who must have signed",
		"[[images.policy.rules]]\nmatch = [\"a/*\"]\nverdict = \"signed\"\nkeys = [\"k.pub\"]\n":                           "not an absolute path",
		"[[images.policy.rules]]\nmatch = [\"a/*\"]\nverdict = \"maybe\"\n":                                                "none of accept, reject, signed",
		"[[images.policy.rules]]\nmatch = [\"a/*\"]\nverdict = \"signed\"\nidentities = [{subject=\"x\", issuer=\"y\"}]\n": "need a trusted_root",
		"[images.policy]\ndefault = \"signed\"\n":                                                                          "neither accept nor reject",
	} {
		cfg, err := Parse("f.toml", []byte(text))
		if err == nil {
			err = cfg.Validate()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
