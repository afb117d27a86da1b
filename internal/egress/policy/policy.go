// Package policy decides which egress list a sandbox has: its own, within the ceiling of its owner's face, or that face's
// default. It also takes capabilities away from programs of such sandboxes: those to change or evade the rules.
//
// Start at Policy.
package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/egress"
)

// Rule has the operator's lists for the sandboxes of a face.
type Rule struct {
	// Default is the list of sandboxes that have none of their own; empty: everything is open, or the ceiling if there is one.
	Default []string `toml:"default"`
	// Ceiling is the list that every sandbox's must be within; empty: there is none.
	Ceiling []string `toml:"ceiling"`
	// Exempt has labels, as NAME=VALUE. The rule does not apply to sandboxes with one of them, and metadata is open to them.
	Exempt []string `toml:"exempt"`
	// Verify, if it is "sni", adds egress.VerifySNI to every list.
	Verify string `toml:"verify"`
	// Metadata is "open" if sandboxes without a list may reach the metadata addresses of clouds; "" is "closed".
	Metadata string `toml:"metadata"`
}

// Config is the [egress] section: the rule of all faces, and those of single ones in its place, by the names of their owners.
type Config struct {
	Default  []string        `toml:"default"`
	Ceiling  []string        `toml:"ceiling"`
	Exempt   []string        `toml:"exempt"`
	Verify   string          `toml:"verify"`
	Metadata string          `toml:"metadata"`
	Face     map[string]Rule `toml:"face"`
}

// Check returns InvalidArgument for a list that is not valid, and for a default that is not within its ceiling.
func (c Config) Check() error {
	_, err := New(c)
	return err
}

// Policy implements core.EgressPolicy, and the policy of containers with such a list, which must be the last one.
type Policy struct {
	core.Permit
	all   rule
	faces map[core.Owner]rule
}

var (
	_ core.EgressPolicy = (*Policy)(nil)
	_ core.Policy       = (*Policy)(nil)
)

// rule is a parsed Rule.
type rule struct {
	normal  []string
	ceiling *egress.List
	exempt  []string
	verify  bool
	open    bool // the metadata addresses
}

// New returns the policy of a configuration.
func New(c Config) (*Policy, error) {
	p := &Policy{faces: map[core.Owner]rule{}}
	var err error
	if p.all, err = parse("egress", Rule{c.Default, c.Ceiling, c.Exempt, c.Verify, c.Metadata}); err != nil {
		return nil, err
	}
	for face, r := range c.Face {
		if p.faces[core.Owner(face)], err = parse("egress.face."+face, r); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func parse(section string, r Rule) (parsed rule, err error) {
	fail := func(key string, err error) (rule, error) {
		return rule{}, fmt.Errorf("%s.%s: %w: %w", section, key, err, errdefs.ErrInvalidArgument)
	}
	parsed.exempt = r.Exempt
	switch r.Verify {
	case "":
	case "sni":
		parsed.verify = true
	default:
		return fail("verify", fmt.Errorf("%q is not sni", r.Verify))
	}
	for _, label := range r.Exempt {
		if name, _, ok := strings.Cut(label, "="); !ok || name == "" {
			return fail("exempt", fmt.Errorf("%q is no label such as name=value", label))
		}
	}
	switch r.Metadata {
	case "", "closed":
	case "open":
		parsed.open = true
	default:
		return fail("metadata", fmt.Errorf("%q is neither closed nor open", r.Metadata))
	}
	if len(r.Ceiling) > 0 {
		if parsed.ceiling, err = egress.Parse(r.Ceiling); err != nil {
			return fail("ceiling", err)
		}
		parsed.verify = parsed.verify || parsed.ceiling.Verify
		parsed.ceiling.Verify = parsed.verify
		parsed.normal = parsed.ceiling.Strings()
	}
	if len(r.Default) > 0 {
		list, err := egress.Parse(r.Default)
		if err == nil {
			list.Verify = list.Verify || parsed.verify
		}
		if err == nil && parsed.ceiling != nil {
			err = list.Within(parsed.ceiling)
		}
		if err != nil {
			return fail("default", err)
		}
		parsed.normal = list.Strings()
	}
	return parsed, nil
}

// of returns the rule of a sandbox.
func (p *Policy) of(owner core.Owner, labels map[string]string) rule {
	r, ok := p.faces[owner]
	if !ok {
		r = p.all
	}
	for _, label := range r.exempt {
		name, value, _ := strings.Cut(label, "=")
		if have, ok := labels[name]; ok && have == value {
			return rule{open: true}
		}
	}
	return r
}

// Complete implements core.EgressPolicy.
func (p *Policy) Complete(owner core.Owner, cfg *core.SandboxConfig) error {
	label, labelled := cfg.Labels[core.EgressLabel]
	net := cfg.Namespaces.Net
	// A sandbox in another one's network is under that one's list, which it has from the engine.
	if (net.Mode == core.Joined || net.Mode == core.Adopted) && (net.Holder != "" || len(cfg.Network.Egress) > 0) {
		if labelled {
			return fmt.Errorf("label %s: the sandbox uses the network of another one, whose list counts: %w", core.EgressLabel, errdefs.ErrInvalidArgument)
		}
		return nil
	}
	if labelled && len(cfg.Network.Egress) == 0 {
		if cfg.Network.Egress = egress.Split(label); len(cfg.Network.Egress) == 0 {
			return fmt.Errorf("label %s: the list is empty; %q permits nothing: %w", core.EgressLabel, egress.None, errdefs.ErrInvalidArgument)
		}
	}
	cfg.Network.Metadata = p.of(owner, cfg.Labels).open
	own := len(cfg.Network.Egress) > 0
	list, err := p.Narrow(owner, cfg.Labels, cfg.Network.Egress)
	if err != nil {
		return err
	}
	switch {
	case len(list) == 0 || net.Mode == core.Shared:
	case own:
		return fmt.Errorf("an egress list needs a network of the sandbox's own: with the network of the host or of somebody else it cannot be enforced: %w", errdefs.ErrInvalidArgument)
	default:
		return fmt.Errorf("the node's egress list for %s cannot be enforced in the network of the host or of somebody else; egress.exempt has the labels of sandboxes that may have it: %w", owner, errdefs.ErrPermissionDenied)
	}
	cfg.Network.Egress = list
	return nil
}

// Narrow implements core.EgressPolicy.
func (p *Policy) Narrow(owner core.Owner, labels map[string]string, list []string) ([]string, error) {
	r := p.of(owner, labels)
	if len(list) == 0 {
		return slices.Clone(r.normal), nil
	}
	parsed, learn, err := egress.ParseOrLearn(list)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	case learn && r.ceiling != nil:
		return nil, fmt.Errorf("egress: %q permits everything, and the node's list is %s: %w", egress.Learn, strings.Join(r.ceiling.Strings(), " "), errdefs.ErrPermissionDenied)
	case learn:
		return []string{egress.Learn}, nil
	}
	parsed.Verify = parsed.Verify || r.verify
	if r.ceiling != nil {
		if err := parsed.Within(r.ceiling); err != nil {
			return nil, fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
		}
	}
	return parsed.Strings(), nil
}

// AdjustContainer implements core.Policy.
func (p *Policy) AdjustContainer(_ context.Context, sb *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	if d := c.Config.LogDriver; d != nil && d.Foreign && len(sb.Config.Network.Egress) > 0 {
		return fmt.Errorf("log driver %s: the node would send the output to an address that the sandbox's egress list does not bound; the node's operator may name the service in [logs] of the agent's configuration: %w", d.Name, errdefs.ErrInvalidArgument)
	}
	return confine(sb, spec.Process)
}

// AdjustProcess implements core.Policy.
func (p *Policy) AdjustProcess(_ context.Context, sb *core.Sandbox, _ *core.Container, process *specs.Process) error {
	return confine(sb, process)
}

// raw sends packets that the rules do not see. It is among the capabilities that containers have by default, so it is
// taken away without an error.
const raw = "CAP_NET_RAW"

// dangers are the capabilities to change the rules, or to leave their namespace.
var dangers = map[string]bool{"CAP_NET_ADMIN": true, "CAP_BPF": true, "CAP_SYS_MODULE": true, "CAP_SYS_RAWIO": true}

// confine takes CAP_NET_RAW away from a process of a sandbox with a list, and refuses those that could change the rules.
func confine(sb *core.Sandbox, process *specs.Process) error {
	if len(sb.Config.Network.Egress) == 0 || process == nil || process.Capabilities == nil {
		return nil
	}
	caps := process.Capabilities
	for _, set := range []*[]string{&caps.Bounding, &caps.Effective, &caps.Permitted, &caps.Inheritable, &caps.Ambient} {
		for _, c := range *set {
			// In a user namespace of its own CAP_SYS_ADMIN is about that namespace's things only, which have no other network.
			if dangers[c] || len(sb.Config.UIDs) == 0 && (c == "CAP_SYS_ADMIN" || c == "CAP_SYS_PTRACE" && sb.Config.Namespaces.PID.Mode == core.Host) {
				return fmt.Errorf("%s: a program with it could evade the sandbox's egress list; leave one of the two away: %w", c, errdefs.ErrInvalidArgument)
			}
		}
		*set = slices.DeleteFunc(slices.Clone(*set), func(c string) bool { return c == raw })
	}
	return nil
}
