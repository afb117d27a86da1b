// Package trust decides which images may be pulled, by their names, by signatures on them, and
// by programs of the administrator.
//
// It does not know how images are pulled: callers ask it after resolving a name and before storing
// any part of the image. Signatures are verified in a program of their own (see Question). Start
// reading at Gate.
package trust

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/containerd/errdefs"
)

// The verdicts of a rule.
const (
	Accept = "accept"
	Reject = "reject"
	Signed = "signed"
)

// Config is the section [images.policy].
type Config struct {
	// Default is the verdict on images that no rule matches: accept or reject.
	Default string `toml:"default"`
	// Rules are tried in order; the first that matches the image decides.
	Rules []Rule `toml:"rules"`
	// Verifiers is a directory of programs, with containerd's interface, that are run for every
	// image that the rules accept; "" runs none.
	Verifiers string `toml:"verifiers"`
	// MaxVerifiers is how many of them are run, in the order of their names; negative is all.
	MaxVerifiers int `toml:"max_verifiers"`
	// VerifierTimeout is how long each may take.
	VerifierTimeout Duration `toml:"verifier_timeout"`
	// SignatureProgram is the path of longshore-verify, which verifies signatures; "" is the one
	// beside longshore.
	SignatureProgram string `toml:"signature_program"`
}

// Rule is the verdict on the images of some repositories.
type Rule struct {
	// Match has patterns of full names without tag, registry/repository. Within a part between
	// slashes * matches any text; a part ** matches any number of parts.
	Match []string `toml:"match"`
	// Verdict is accept, reject or signed.
	Verdict string `toml:"verdict"`
	// Keys are PEM files of public keys. A signature by one of them is enough.
	Keys []string `toml:"keys"`
	// TrustedRoot is sigstore's trusted_root.json, the authorities and logs to trust. Identities
	// require it. With keys it may be set to require that signatures are in its transparency log.
	TrustedRoot string `toml:"trusted_root"`
	// Identities are those that a certificate may have; one is enough.
	Identities []Identity `toml:"identities"`
}

// Identity is a certificate's subject and its issuer, each given literally or as a regular
// expression that matches the whole.
type Identity struct {
	Subject       string `toml:"subject" json:"subject,omitempty"`
	SubjectRegexp string `toml:"subject_regexp" json:"subject_regexp,omitempty"`
	Issuer        string `toml:"issuer" json:"issuer,omitempty"`
	IssuerRegexp  string `toml:"issuer_regexp" json:"issuer_regexp,omitempty"`
}

// Duration is a time.Duration that is written "30s" in TOML.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// Default returns a policy that accepts everything.
func Default() Config {
	return Config{Default: Accept, Rules: []Rule{}, MaxVerifiers: 10, VerifierTimeout: Duration(10 * time.Second)}
}

// Validate returns everything that is wrong with c. It does not read the files that c names; they
// are read when an image is pulled. InvalidArgument.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("images.policy.%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument))
	}
	if c.Default != Accept && c.Default != Reject {
		bad("default: %q is neither accept nor reject", c.Default)
	}
	for key, p := range map[string]string{"verifiers": c.Verifiers, "signature_program": c.SignatureProgram} {
		if p != "" && !filepath.IsAbs(p) {
			bad("%s: %q is not an absolute path", key, p)
		}
	}
	if c.VerifierTimeout <= 0 {
		bad("verifier_timeout: %s must be positive", time.Duration(c.VerifierTimeout))
	}
	for i, r := range c.Rules {
		for _, problem := range r.problems() {
			bad("rules: rule %d: %s", i+1, problem)
		}
	}
	return errors.Join(errs...)
}

func (r Rule) problems() (all []string) {
	bad := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if len(r.Match) == 0 {
		bad("match is empty")
	}
	for _, m := range r.Match {
		if err := checkPattern(m); err != nil {
			bad("match %q: %v", m, err)
		}
	}
	given := len(r.Keys) > 0 || len(r.Identities) > 0
	switch r.Verdict {
	case Accept, Reject:
		if given || r.TrustedRoot != "" {
			bad("keys, identities and trusted_root are for the verdict signed only")
		}
	case Signed:
		if !given {
			bad("neither keys nor identities are set: say who must have signed")
		}
	default:
		bad("verdict %q is none of accept, reject, signed", r.Verdict)
	}
	if len(r.Identities) > 0 && r.TrustedRoot == "" {
		bad("identities need a trusted_root")
	}
	for _, p := range append(slices.Clone(r.Keys), r.TrustedRoot) {
		if p != "" && !filepath.IsAbs(p) || p == "" && slices.Contains(r.Keys, p) {
			bad("%q is not an absolute path", p)
		}
	}
	for _, id := range r.Identities {
		all = append(all, id.problems()...)
	}
	return all
}

func (id Identity) problems() (all []string) {
	for _, f := range []struct{ name, value, re string }{{"subject", id.Subject, id.SubjectRegexp}, {"issuer", id.Issuer, id.IssuerRegexp}} {
		if (f.value == "") == (f.re == "") {
			all = append(all, fmt.Sprintf("an identity needs one of %s and %s_regexp", f.name, f.name))
		}
		if _, err := regexp.Compile(f.re); err != nil {
			all = append(all, fmt.Sprintf("%s_regexp: %v", f.name, err))
		}
	}
	return all
}
