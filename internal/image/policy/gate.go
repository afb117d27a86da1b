package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/longshore/longshore/internal/core"
)

// signatureTimeout is how long longshore-verify may take: it only computes.
const signatureTimeout = 30 * time.Second

// Gate decides about pulls.
type Gate struct {
	cfg     Config
	program func() (string, error)
	log     *slog.Logger
}

// New makes a gate of a valid config. program finds longshore-verify when a
// signature is to be verified; nil takes it to be where cfg says.
func New(cfg Config, program func() (string, error), log *slog.Logger) *Gate {
	if program == nil {
		program = func() (string, error) {
			if cfg.SignatureProgram == "" {
				return "", errors.New("images.policy.signature_program is not set")
			}
			return cfg.SignatureProgram, nil
		}
	}
	return &Gate{cfg: cfg, program: program, log: log}
}

// Problems are what would keep the gate from deciding now: files and programs
// that the config names and that are not there.
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

// Case is one image before the gate.
type Case struct {
	name string
	rule Rule
	gate *Gate
}

// Open says what is to be done about an image of this name. An error says that it
// is refused whatever it is; see core.ErrImageRefused.
func (g *Gate) Open(named reference.Named) (*Case, error) {
	c := &Case{name: named.String(), rule: Rule{Verdict: g.cfg.Default}, gate: g}
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

// String says which rule it is.
func (r Rule) String() string {
	if len(r.Match) == 0 {
		return "no rule accepts it"
	}
	return fmt.Sprintf("the rule for %s says %s", strings.Join(r.Match, ", "), r.Verdict)
}

// Wants reports whether Admit must be asked before the image is pulled, and
// whether its signatures are then needed.
func (c *Case) Wants() (admission, evidence bool) {
	evidence = c.rule.Verdict == Signed
	return evidence || c.gate.cfg.Verifiers != "", evidence
}

// Admit decides about what the name stands for. An image that is refused has
// core.ErrImageRefused; other errors say why nothing could be decided, which
// refuses as well.
func (c *Case) Admit(ctx context.Context, claim Claim) error {
	if err := claim.Target.Digest.Validate(); err != nil {
		return fmt.Errorf("policy: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if c.rule.Verdict == Signed {
		reason, err := c.signed(ctx, claim)
		if err != nil {
			return err
		}
		c.gate.log.Info("image signature verified", "image", c.name, "digest", claim.Target.Digest, "by", reason)
	}
	return c.askVerifiers(ctx, claim.Target)
}

// signed asks longshore-verify.
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

// refused is a verdict. What programs and registries say goes into it as one
// line of bounded length.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", core.ErrImageRefused, oneLine(fmt.Sprintf(format, args...)), errdefs.ErrFailedPrecondition)
}

// cannot is what keeps the gate from deciding.
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
