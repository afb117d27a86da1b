package trust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/turns"
)

// signatureTimeout is how long longshore-verify may take. It only computes.
const signatureTimeout = 30 * time.Second

// How many signatures are verified at once, and how many pulls of one owner wait for that.
const (
	minVerifying = 4
	maxVerifying = 8
	maxWaiting   = 256
)

// Gate decides about pulls.
type Gate struct {
	cfg     Config
	program func() (string, error)
	log     *slog.Logger
	// verifying is shared by owner, registry and repository.
	verifying *turns.Turns
}

// New returns a gate for a valid config. program returns the path of longshore-verify when a
// signature is to be verified; with nil cfg must have it.
func New(cfg Config, program func() (string, error), log *slog.Logger) *Gate {
	if program == nil {
		program = func() (string, error) {
			if cfg.SignatureProgram == "" {
				return "", errors.New("images.policy.signature_program is not set")
			}
			return cfg.SignatureProgram, nil
		}
	}
	slots := min(max(minVerifying, runtime.NumCPU()), maxVerifying)
	return &Gate{cfg: cfg, program: program, log: log, verifying: turns.New(slots, maxWaiting)}
}

// Problems returns obstacles to decisions: files and programs that the config names and that do not
// exist.
func (g *Gate) Problems() (all []string) {
	signed := false
	for _, r := range g.cfg.Rules {
		signed = signed || r.Verdict == Signed
		for _, file := range append(slices.Clone(r.Keys), r.TrustedRoot) {
			if file == "" {
				continue
			}
			if _, err := os.ReadFile(file); err != nil {
				all = append(all, err.Error())
			}
		}
	}
	if !signed {
		return all
	}
	if _, err := g.program(); err != nil {
		all = append(all, err.Error())
	}
	return all
}

// Judges reports whether the policy refuses any image, or requires signatures or verifiers for
// one.
func (g *Gate) Judges() bool {
	return g.cfg.Default == Reject || len(g.cfg.Rules) > 0 || g.cfg.Verifiers != ""
}

// Case is the decision about one image.
type Case struct {
	name string
	by   turns.Path
	rule Rule
	gate *Gate
}

// Open returns the case of an image of this name, which an owner pulls. An error means that it is
// refused, with any content; see core.ErrImageRefused.
func (g *Gate) Open(owner core.Owner, named reference.Named) (*Case, error) {
	by := turns.Path{string(owner), reference.Domain(named), reference.Path(named)}
	c := &Case{name: named.String(), by: by, rule: Rule{Verdict: g.cfg.Default}, gate: g}
	for _, r := range g.cfg.Rules {
		if r.has(named.Name()) {
			c.rule = r
			break
		}
	}
	if c.rule.Verdict == Reject {
		return nil, refused("%s", c.rule)
	}
	return c, nil
}

func (r Rule) has(repository string) bool {
	for _, m := range r.Match {
		if matches(m, repository) {
			return true
		}
	}
	return false
}

// String describes the rule.
func (r Rule) String() string {
	if len(r.Match) == 0 {
		return "no rule accepts it"
	}
	return fmt.Sprintf("the rule for %s says %s", strings.Join(r.Match, ", "), r.Verdict)
}

// Wants reports whether Admit must be called before the image is pulled, and whether it needs the
// image's signatures.
func (c *Case) Wants() (admission, evidence bool) {
	evidence = c.rule.Verdict == Signed
	return evidence || c.gate.cfg.Verifiers != "", evidence
}

// Admit decides about the image that the name refers to. The error of a refused image is
// core.ErrImageRefused. Other errors mean that no decision was possible, which refuses the image as
// well.
func (c *Case) Admit(ctx context.Context, claim Claim) error {
	if err := claim.Target.Digest.Validate(); err != nil {
		return fmt.Errorf("policy: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if c.rule.Verdict == Signed {
		reason, err := c.signed(ctx, claim)
		if err != nil {
			return err
		}
		c.gate.log.InfoContext(ctx, "image signature verified", "image", c.name, "digest", claim.Target.Digest, "by", reason)
	}
	return c.askVerifiers(ctx, claim.Target)
}

// signed runs longshore-verify.
func (c *Case) signed(ctx context.Context, claim Claim) (string, error) {
	q := Question{Digest: claim.Target.Digest, Evidence: claim.Evidence, Identities: c.rule.Identities}
	if len(q.Evidence.Bundles)+len(q.Evidence.Simple) == 0 {
		return "", refused("%s, and it has no signature%s", c.rule, q.Evidence.skipped())
	}
	for _, file := range c.rule.Keys {
		pem, err := os.ReadFile(file)
		if err != nil {
			return "", cannot("read key: %w", err)
		}
		q.Keys = append(q.Keys, pem)
	}
	if f := c.rule.TrustedRoot; f != "" {
		var err error
		if q.TrustedRoot, err = os.ReadFile(f); err != nil {
			return "", cannot("read trusted root: %w", err)
		}
	}
	body, err := json.Marshal(q)
	if err != nil {
		return "", cannot("%w", err)
	}
	path, err := c.gate.program()
	if err != nil {
		return "", cannot("%w", err)
	}
	release, err := c.gate.verifying.Take(ctx, c.by)
	if err != nil {
		return "", fmt.Errorf("policy: wait for the verification of other images: %w: %w", err, errdefs.ErrUnavailable)
	}
	defer release()
	res, err := run{
		path: path, stdin: body, timeout: signatureTimeout, log: c.gate.log, confine: true,
	}.do(ctx)
	if err != nil {
		return "", err
	}
	switch res.code {
	case 0:
		return res.reason, nil
	case 1:
		return "", refused("%s: %s%s", c.rule, res.reason, q.Evidence.skipped())
	default:
		return "", cannot("%s: exit status %d: %s", path, res.code, res.reason)
	}
}

func (e Evidence) skipped() string {
	if e.Skipped == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d more were not read, being too many or too large)", e.Skipped)
}

// refused returns a verdict. Texts of programs and registries go into it as one line of bounded
// length.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", core.ErrImageRefused, oneLine(fmt.Sprintf(format, args...)), errdefs.ErrFailedPrecondition)
}

// cannot returns an error that kept the gate from deciding.
func cannot(format string, args ...any) error {
	return fmt.Errorf("policy: cannot decide: %w: %w", fmt.Errorf(format, args...), errdefs.ErrFailedPrecondition)
}

const maxReason = 2 << 10

func oneLine(s string) string {
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))), " ")
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}
