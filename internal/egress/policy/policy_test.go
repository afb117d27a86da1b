package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

func TestComplete(t *testing.T) {
	p, err := New(Config{
		Default: []string{"api.example.com"},
		Face: map[string]Rule{
			"cri":   {Ceiling: []string{"internet", "cluster"}, Exempt: []string{"ns=kube-system"}},
			"nomad": {},
			"mesos": {Verify: "sni", Metadata: "open"},
			"swarm": {Ceiling: []string{"*.example.com", "verify=sni"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		owner  core.Owner
		labels map[string]string
		list   []string
		net    core.Namespace
		want   []string
		class  func(error) bool
	}{
		"the default":                   {owner: core.OwnerCLI, net: core.Namespace{Mode: core.Shared}, want: []string{"api.example.com"}},
		"the ceiling is the default":    {owner: core.OwnerCRI, net: core.Namespace{Mode: core.Shared}, want: []string{"internet", "cluster"}},
		"an open face":                  {owner: "nomad", net: core.Namespace{Mode: core.Host}},
		"its own":                       {owner: core.OwnerCRI, list: []string{"API.example.com:443"}, net: core.Namespace{Mode: core.Shared}, want: []string{"api.example.com:443"}},
		"a label":                       {owner: "nomad", labels: map[string]string{core.EgressLabel: "a.example  b.example:80"}, net: core.Namespace{Mode: core.Shared}, want: []string{"a.example", "b.example:80"}},
		"verified":                      {owner: "mesos", list: []string{"a.example"}, net: core.Namespace{Mode: core.Shared}, want: []string{"a.example", "verify=sni"}},
		"verified by its own list":      {owner: "nomad", list: []string{"verify=sni", "a.example"}, net: core.Namespace{Mode: core.Shared}, want: []string{"a.example", "verify=sni"}},
		"under a verified ceiling":      {owner: "swarm", list: []string{"a.example.com"}, net: core.Namespace{Mode: core.Shared}, want: []string{"a.example.com", "verify=sni"}},
		"an empty label":                {owner: "nomad", labels: map[string]string{core.EgressLabel: " "}, net: core.Namespace{Mode: core.Shared}, class: errdefs.IsInvalidArgument},
		"not valid":                     {owner: "nomad", list: []string{"a b"}, net: core.Namespace{Mode: core.Shared}, class: errdefs.IsInvalidArgument},
		"above the ceiling":             {owner: core.OwnerCRI, list: []string{"10.0.0.0/8"}, net: core.Namespace{Mode: core.Shared}, class: errdefs.IsPermissionDenied},
		"learn above a ceiling":         {owner: core.OwnerCRI, list: []string{"learn"}, net: core.Namespace{Mode: core.Shared}, class: errdefs.IsPermissionDenied},
		"learn":                         {owner: core.OwnerCLI, list: []string{"learn"}, net: core.Namespace{Mode: core.Shared}, want: []string{"learn"}},
		"exempt":                        {owner: core.OwnerCRI, labels: map[string]string{"ns": "kube-system"}, net: core.Namespace{Mode: core.Host}},
		"not quite exempt":              {owner: core.OwnerCRI, labels: map[string]string{"ns": "kube-systems"}, net: core.Namespace{Mode: core.Host}, class: errdefs.IsPermissionDenied},
		"the host's network":            {owner: "nomad", list: []string{"none"}, net: core.Namespace{Mode: core.Host}, class: errdefs.IsInvalidArgument},
		"a network of somebody else":    {owner: "nomad", list: []string{"none"}, net: core.Namespace{Mode: core.PerContainer}, class: errdefs.IsInvalidArgument},
		"another one's, with a default": {owner: core.OwnerCLI, net: core.Namespace{Mode: core.Adopted, Path: "/x"}, class: errdefs.IsPermissionDenied},
		"of a sandbox of ours":          {owner: core.OwnerCLI, net: core.Namespace{Mode: core.Joined, Holder: "h"}},
		"of one with a list":            {owner: core.OwnerCLI, list: []string{"b.example"}, net: core.Namespace{Mode: core.Adopted}, want: []string{"b.example"}},
		"a label in another one's":      {owner: core.OwnerCLI, labels: map[string]string{core.EgressLabel: "internet"}, net: core.Namespace{Mode: core.Joined, Holder: "h"}, class: errdefs.IsInvalidArgument},
	} {
		cfg := core.SandboxConfig{Labels: c.labels}
		cfg.Network.Egress, cfg.Namespaces.Net = c.list, c.net
		err := p.Complete(c.owner, &cfg)
		switch {
		case c.class == nil && err != nil, c.class != nil && (err == nil || !c.class(err)):
			t.Errorf("%s: %v", name, err)
		case err == nil && cfg.Network.Metadata != (c.owner == "mesos" || name == "exempt"):
			t.Errorf("%s: the metadata addresses are open: %t", name, cfg.Network.Metadata)
		case err == nil && !slices.Equal(cfg.Network.Egress, c.want):
			t.Errorf("%s: %v, want %v", name, cfg.Network.Egress, c.want)
		}
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	for want, c := range map[string]Config{
		"egress.default":          {Default: []string{"a b"}},
		"egress.ceiling":          {Ceiling: []string{"*"}},
		"egress.exempt":           {Exempt: []string{"x"}},
		"egress.verify":           {Verify: "host"},
		"egress.metadata":         {Metadata: "shut"},
		"egress.face.cri.default": {Face: map[string]Rule{"cri": {Default: []string{"internet"}, Ceiling: []string{"a.example"}}}},
	} {
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) || !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
}

// TestLogServicesOfAuthors: the output of a sandbox with a list goes to no address that the author of the job chose.
func TestLogServicesOfAuthors(t *testing.T) {
	p, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		list    []string
		driver  *core.LogDriver
		refused bool
	}{
		{nil, &core.LogDriver{Name: "fluentd", Foreign: true}, false},
		{[]string{"none"}, &core.LogDriver{Name: "fluentd", Foreign: true}, true},
		{[]string{"none"}, &core.LogDriver{Name: "fluentd"}, false},
		{[]string{"none"}, nil, false},
	} {
		sb, c := &core.Sandbox{}, &core.Container{}
		sb.Config.Network.Egress, c.Config.LogDriver = tt.list, tt.driver
		if err := p.AdjustContainer(t.Context(), sb, c, &specs.Spec{}); errdefs.IsInvalidArgument(err) != tt.refused || (err != nil) != tt.refused {
			t.Errorf("list %v, driver %+v: %v", tt.list, tt.driver, err)
		}
	}
}

func TestCapabilities(t *testing.T) {
	sets := func(caps ...string) *specs.LinuxCapabilities {
		return &specs.LinuxCapabilities{Bounding: slices.Clone(caps), Effective: slices.Clone(caps), Permitted: slices.Clone(caps), Ambient: slices.Clone(caps)}
	}
	p, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	sb := &core.Sandbox{}
	check := func(caps ...string) (*specs.LinuxCapabilities, error) {
		spec := &specs.Spec{Process: &specs.Process{Capabilities: sets(caps...)}}
		err := p.AdjustContainer(t.Context(), sb, &core.Container{}, spec)
		return spec.Process.Capabilities, err
	}
	if caps, err := check("CAP_NET_RAW", "CAP_NET_ADMIN"); err != nil || len(caps.Bounding) != 2 {
		t.Errorf("without a list: %v, %v", caps, err)
	}
	sb.Config.Network.Egress = []string{"none"}
	caps, err := check("CAP_CHOWN", "CAP_NET_RAW")
	if err != nil || !slices.Equal(caps.Bounding, []string{"CAP_CHOWN"}) || !slices.Equal(caps.Effective, []string{"CAP_CHOWN"}) || !slices.Equal(caps.Ambient, []string{"CAP_CHOWN"}) {
		t.Errorf("with a list: %+v, %v", caps, err)
	}
	for _, c := range []string{"CAP_NET_ADMIN", "CAP_BPF", "CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO"} {
		if _, err := check(c); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", c, err)
		}
		process := &specs.Process{Capabilities: &specs.LinuxCapabilities{Inheritable: []string{c}}}
		if err := p.AdjustProcess(t.Context(), sb, &core.Container{}, process); !errdefs.IsInvalidArgument(err) {
			t.Errorf("an exec with %s: %v", c, err)
		}
	}
	if _, err := check("CAP_SYS_PTRACE"); err != nil {
		t.Error(err)
	}
	sb.Config.Namespaces.PID.Mode = core.Host
	if _, err := check("CAP_SYS_PTRACE"); err == nil {
		t.Error("a debugger of the host's processes")
	}
	sb.Config.UIDs = []specs.LinuxIDMapping{{Size: 65536}}
	if _, err := check("CAP_SYS_ADMIN"); err != nil {
		t.Errorf("in a user namespace: %v", err)
	}
	if _, err := check("CAP_NET_ADMIN"); err == nil {
		t.Error("CAP_NET_ADMIN in the user namespace that owns the network")
	}
}
