// Package compose reads a file in the form of Compose as the declaration of a stack. What a hub
// cannot do is refused by its name and line, never left out.
//
// It talks with no hub. Start at Read.
package compose

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/invalid"
)

// Source is a file that declares a stack.
type Source struct {
	Path string // for messages, and for the files that it names
	Data []byte
	// Name is the stack's; "" takes the one that the file says.
	Name string
	// Env are the variables that the file may use.
	Env map[string]string
}

// Read reads a declaration. The notes are lines for the user about what has no effect and what is empty. The error names
// everything that is not possible, each with its line and what to write instead.
func Read(ctx context.Context, s Source) (d fleet.Declaration, notes []string, err error) {
	if len(s.Data) > fleet.MaxBytes {
		return d, nil, invalid.Errorf("%s has %d bytes, at most %d", s.Path, len(s.Data), fleet.MaxBytes)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(s.Data, &doc); err != nil {
		return d, nil, invalid.Errorf("%s: %w", s.Path, err)
	}
	if len(doc.Content) == 0 {
		return d, nil, invalid.Errorf("%s declares nothing", s.Path)
	}
	c := &checker{path: s.Path}
	if err := c.check(doc.Content[0], file(), "", 0); err != nil {
		return d, nil, err
	}
	if err := c.unset(doc.Content[0], s.Env); err != nil {
		return d, nil, err
	}
	d, err = c.declare(ctx, s, doc.Content[0])
	return d, c.notes, err
}

// declare loads a file and makes its declaration, unless something is refused.
func (c *checker) declare(ctx context.Context, s Source, doc *yaml.Node) (d fleet.Declaration, err error) {
	dir, err := filepath.Abs(filepath.Dir(s.Path))
	if err != nil {
		return d, err
	}
	project, err := loader.LoadWithContext(ctx, types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: s.Path, Content: s.Data}}, Environment: s.Env,
	}, func(o *loader.Options) {
		o.SkipExtends, o.SkipInclude, o.SkipNormalization = true, true, true
		o.Interpolate.Substitute = func(text string, variables template.Mapping) (string, error) {
			return template.SubstituteWithOptions(text, variables, template.WithoutLogging)
		}
		if s.Name != "" {
			o.SetProjectName(s.Name, true)
		}
	})
	if err != nil {
		return d, errors.Join(append(c.refused, invalid.Errorf("%s: %w", s.Path, err))...)
	}
	d = fleet.Declaration{Name: project.Name, Secrets: map[string][]byte{}, Configs: map[string][]byte{}}
	if s.Name != "" {
		d.Name = s.Name
	}
	fail := func(err error) {
		if err != nil {
			c.refused = append(c.refused, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(project.Secrets)) {
		fail(keep(types.FileObjectConfig(project.Secrets[name]), fileOf{"secret", name, doc, dir, s}, d.Secrets, &d.ExternalSecrets))
	}
	for _, name := range slices.Sorted(maps.Keys(project.Configs)) {
		fail(keep(types.FileObjectConfig(project.Configs[name]), fileOf{"config", name, doc, dir, s}, d.Configs, &d.ExternalConfigs))
	}
	c.networks(project, doc)
	for _, name := range slices.Sorted(maps.Keys(project.Services)) {
		c.gateways(project.Services[name])
		spec, err := service(d.Name, project.Services[name])
		if err != nil {
			fail(fmt.Errorf("%s: service %s: %w", s.Path, name, err))
			continue
		}
		spec.Task.Networks = c.attached(project, project.Services[name], doc)
		data, err := protojson.Marshal(spec)
		if err != nil {
			fail(fmt.Errorf("%s: service %s: %w", s.Path, name, err))
			continue
		}
		d.Services = append(d.Services, json.RawMessage(data))
	}
	return d, errors.Join(c.refused...)
}

// fileOf says where a secret or config is declared.
type fileOf struct {
	kind, name string
	doc        *yaml.Node
	dir        string
	source     Source
}

// keep keeps what a secret or config holds, or, of one that is external, by which name it is there.
func keep(f types.FileObjectConfig, of fileOf, own map[string][]byte, external *map[string]fleet.External) (err error) {
	at := fmt.Sprintf("%s:%d", of.source.Path, line(of.doc, of.kind+"s", of.name))
	switch {
	case bool(f.External) && f.File+f.Environment+f.Content != "":
		return invalid.Errorf("%s: %ss.%s.external is not possible here: the file also has its content", at, of.kind, of.name)
	case bool(f.External):
		if *external == nil {
			*external = map[string]fleet.External{}
		}
		(*external)[of.name] = fleet.External{Name: cmp.Or(f.Name, of.name), At: at}
		return nil
	case f.Name != "":
		return invalid.Errorf("%s: %ss.%s.name is not possible here: only external ones have a name of their own", at, of.kind, of.name)
	}
	if own[of.name], err = content(f, of.source, of.dir); err != nil {
		return fmt.Errorf("%s: %s %s: %w", of.source.Path, of.kind, of.name, err)
	}
	return nil
}

// content is what a secret or config holds.
func content(f types.FileObjectConfig, s Source, dir string) ([]byte, error) {
	switch {
	case f.Content != "":
		return []byte(f.Content), nil
	case f.Environment != "":
		value, ok := s.Env[f.Environment]
		if !ok {
			return nil, invalid.Errorf("the variable %s is not set", f.Environment)
		}
		return []byte(value), nil
	case f.File != "":
		if !filepath.IsAbs(f.File) {
			f.File = filepath.Join(dir, f.File)
		}
		return os.ReadFile(f.File)
	}
	return nil, invalid.Errorf("file, environment or content is missing")
}

// keys are the keys that may stand in a mapping; nil is anything. "*" is any key, "[]" the
// elements of a list.
type keys map[string]keys

func list(names ...string) keys {
	k := keys{}
	for _, n := range names {
		k[n] = nil
	}
	return k
}

// with adds keys that have some below them.
func (k keys) with(name string, below keys) keys {
	k[name] = below
	return k
}

// file is all that may stand in a file.
func file() keys {
	reference := keys{"[]": list("source", "target", "uid", "gid", "mode")}
	deploy := list("mode", "replicas", "labels").
		with("placement", list("constraints", "max_replicas_per_node")).
		with("resources", keys{"limits": list("cpus", "memory", "pids"), "reservations": list("cpus", "memory")}).
		with("restart_policy", list("condition", "delay", "max_attempts", "window")).
		with("update_config", list("parallelism", "delay", "order", "failure_action", "monitor", "max_failure_ratio")).
		with("rollback_config", list("parallelism", "delay", "order", "failure_action", "monitor", "max_failure_ratio"))
	service := list("image", "command", "entrypoint", "environment", "hostname", "user", "working_dir", "init", "tty", "read_only", "stop_signal", "stop_grace_period", "labels",
		"cap_add", "cap_drop", "sysctls", "ulimits", "extra_hosts", "dns", "dns_search", "dns_opt", "network_mode", "restart", "expose").
		with("env_file", keys{"[]": list("path", "required", "format")}).
		with("networks", keys{"*": list()}).
		with("secrets", reference).with("configs", reference).
		with("ports", keys{"[]": list("target", "published", "protocol", "mode")}).
		with("volumes", keys{"[]": list("type", "source", "target", "read_only").with("bind", list("propagation")).with("volume", list("nocopy", "subpath")).with("tmpfs", list("size", "mode"))}).
		with("healthcheck", list("test", "interval", "timeout", "retries", "start_period", "start_interval", "disable")).
		with("logging", list("driver", "options")).
		with("deploy", deploy)
	return list("version", "name").with("services", keys{"*": service}).with("volumes", keys{"*": list()}).with("networks", keys{"*": list("external", "name")}).
		with("secrets", keys{"*": list("file", "environment", "external", "name")}).with("configs", keys{"*": list("file", "environment", "content", "external", "name")})
}

// service is a service of the file as workers know it.
func service(stack string, s types.ServiceConfig) (*swarmv1.ServiceSpec, error) {
	c := &swarmv1.ContainerSpec{
		Image: s.Image, Labels: s.Labels, Command: s.Entrypoint, Args: s.Command, Hostname: s.Hostname, Dir: s.WorkingDir, User: s.User, Tty: s.Tty, ReadOnly: s.ReadOnly,
		StopSignal: s.StopSignal, Sysctls: s.Sysctls, CapabilityAdd: s.CapAdd, CapabilityDrop: s.CapDrop,
	}
	for _, k := range slices.Sorted(maps.Keys(s.Environment)) {
		if v := s.Environment[k]; v != nil {
			c.Env = append(c.Env, k+"="+*v)
		}
	}
	if s.Init != nil {
		c.Init = wrapperspb.Bool(*s.Init)
	}
	if s.StopGracePeriod != nil {
		c.StopGracePeriod = duration(*s.StopGracePeriod)
	}
	for _, name := range slices.Sorted(maps.Keys(s.ExtraHosts)) {
		for _, ip := range s.ExtraHosts[name] {
			c.Hosts = append(c.Hosts, ip+" "+name)
		}
	}
	if len(s.DNS)+len(s.DNSSearch)+len(s.DNSOpts) > 0 {
		c.DnsConfig = &swarmv1.ContainerSpec_DNSConfig{Nameservers: s.DNS, Search: s.DNSSearch, Options: s.DNSOpts}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Ulimits)) {
		u := s.Ulimits[name]
		if u.Single != 0 {
			u.Soft, u.Hard = u.Single, u.Single
		}
		c.Ulimits = append(c.Ulimits, &swarmv1.ContainerSpec_Ulimit{Name: name, Soft: int64(u.Soft), Hard: int64(u.Hard)})
	}
	for _, r := range s.Secrets {
		c.Secrets = append(c.Secrets, &swarmv1.SecretReference{SecretName: r.Source, Target: &swarmv1.SecretReference_File{File: target(types.FileReferenceConfig(r), r.Source)}})
	}
	for _, r := range s.Configs {
		c.Configs = append(c.Configs, &swarmv1.ConfigReference{ConfigName: r.Source, Target: &swarmv1.ConfigReference_File{File: target(types.FileReferenceConfig(r), "/"+r.Source)}})
	}
	var err error
	if c.Mounts, err = mounts(stack, s.Volumes); err != nil {
		return nil, err
	}
	c.Healthcheck = health(s.HealthCheck)
	spec := &swarmv1.ServiceSpec{Annotations: &swarmv1.Annotations{Name: s.Name}, Task: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: c}}}
	if l := s.Logging; l != nil && l.Driver != "" {
		spec.Task.LogDriver = &swarmv1.Driver{Name: l.Driver, Options: l.Options}
	}
	if spec.Endpoint, err = ports(s.Ports); err != nil {
		return nil, err
	}
	return spec, deploy(spec, s.Deploy)
}

func duration(d types.Duration) *durationpb.Duration {
	return &durationpb.Duration{Seconds: int64(d) / 1e9, Nanos: int32(int64(d) % 1e9)}
}

// target is the file in the container that a secret or config is.
func target(r types.FileReferenceConfig, name string) *swarmv1.FileTarget {
	f := &swarmv1.FileTarget{Name: strings.TrimPrefix(r.Target, "/run/secrets/"), Uid: r.UID, Gid: r.GID, Mode: 0o444}
	if f.Name == "" {
		f.Name = name
	}
	if f.GetUid() == "" {
		f.Uid = "0"
	}
	if f.GetGid() == "" {
		f.Gid = "0"
	}
	if r.Mode != nil {
		f.Mode = uint32(*r.Mode)
	}
	return f
}

func health(h *types.HealthCheckConfig) *swarmv1.HealthConfig {
	if h == nil {
		return nil
	}
	if h.Disable {
		return &swarmv1.HealthConfig{Test: []string{"NONE"}}
	}
	c := &swarmv1.HealthConfig{Test: h.Test}
	for _, d := range []struct {
		from *types.Duration
		to   **durationpb.Duration
	}{{h.Interval, &c.Interval}, {h.Timeout, &c.Timeout}, {h.StartPeriod, &c.StartPeriod}, {h.StartInterval, &c.StartInterval}} {
		if d.from != nil {
			*d.to = duration(*d.from)
		}
	}
	if h.Retries != nil {
		c.Retries = int32(min(*h.Retries, 1000))
	}
	return c
}

// mounts are a service's. A volume with a name is its stack's, as docker's command line has it.
func mounts(stack string, volumes []types.ServiceVolumeConfig) (list []*swarmv1.Mount, err error) {
	for _, v := range volumes {
		m := &swarmv1.Mount{Source: v.Source, Target: v.Target, Readonly: v.ReadOnly}
		switch v.Type {
		case "bind":
			m.Type = swarmv1.Mount_BIND
			m.BindOptions = &swarmv1.Mount_BindOptions{}
			if v.Bind != nil && v.Bind.Propagation != "" {
				n, ok := swarmv1.Mount_BindOptions_Propagation_value[strings.ToUpper(v.Bind.Propagation)]
				if !ok {
					return nil, invalid.Errorf("the propagation %q of the mount %s is not supported", v.Bind.Propagation, v.Target)
				}
				m.BindOptions.Propagation = swarmv1.Mount_BindOptions_Propagation(n)
			}
		case "volume":
			m.Type, m.VolumeOptions = swarmv1.Mount_VOLUME, &swarmv1.Mount_VolumeOptions{}
			if v.Volume != nil {
				m.VolumeOptions.Nocopy, m.VolumeOptions.Subpath = v.Volume.NoCopy, v.Volume.Subpath
			}
			if v.Source != "" {
				m.Source = stack + "_" + v.Source
				m.VolumeOptions.Labels = map[string]string{fleet.Stack: stack}
			}
		case "tmpfs":
			m.Type = swarmv1.Mount_TMPFS
			if v.Tmpfs != nil {
				m.TmpfsOptions = &swarmv1.Mount_TmpfsOptions{SizeBytes: int64(v.Tmpfs.Size), Mode: v.Tmpfs.Mode}
			}
		default:
			return nil, invalid.Errorf("mounts of the type %q are not possible", v.Type)
		}
		list = append(list, m)
	}
	return list, nil
}

func ports(all []types.ServicePortConfig) (*swarmv1.EndpointSpec, error) {
	if len(all) == 0 {
		return nil, nil
	}
	e := &swarmv1.EndpointSpec{Mode: swarmv1.EndpointSpec_DNSRR}
	for _, p := range all {
		c := &swarmv1.PortConfig{TargetPort: p.Target, PublishMode: swarmv1.PortConfig_HOST}
		if p.Mode != "host" {
			return nil, invalid.Errorf("port %d: only the mode host is possible, as a hub has no ingress network: write {target: %d, published: \"PORT\", mode: host}", p.Target, p.Target)
		}
		if p.Published != "" {
			n, err := strconv.ParseUint(p.Published, 10, 16)
			if err != nil {
				return nil, invalid.Errorf("the published port %q is not a number below 65536", p.Published)
			}
			c.PublishedPort = uint32(n)
		}
		n, ok := swarmv1.PortConfig_Protocol_value[strings.ToUpper(p.Protocol)]
		if !ok && p.Protocol != "" {
			return nil, invalid.Errorf("the protocol %q of port %d is unknown", p.Protocol, p.Target)
		}
		c.Protocol = swarmv1.PortConfig_Protocol(n)
		e.Ports = append(e.Ports, c)
	}
	return e, nil
}

// deploy says how many there are, where, and what they may use.
func deploy(spec *swarmv1.ServiceSpec, d *types.DeployConfig) error {
	spec.Mode = &swarmv1.ServiceSpec_Replicated{Replicated: &swarmv1.ReplicatedService{Replicas: 1}}
	spec.Update = &swarmv1.UpdateConfig{Parallelism: 1}
	if d == nil {
		return nil
	}
	spec.Annotations.Labels = d.Labels
	switch {
	case d.Mode == "global" && d.Replicas != nil:
		return invalid.Errorf("a global service cannot have replicas")
	case d.Mode == "global":
		spec.Mode = &swarmv1.ServiceSpec_Global{Global: &swarmv1.GlobalService{}}
	case d.Mode != "" && d.Mode != "replicated":
		return invalid.Errorf("the mode %q is not possible", d.Mode)
	case d.Replicas != nil:
		if *d.Replicas < 0 {
			return invalid.Errorf("%d replicas", *d.Replicas)
		}
		spec.GetReplicated().Replicas = uint64(*d.Replicas)
	}
	if len(d.Placement.Constraints) > 0 || d.Placement.MaxReplicas > 0 {
		spec.Task.Placement = &swarmv1.Placement{Constraints: d.Placement.Constraints, MaxReplicas: d.Placement.MaxReplicas}
	}
	if d.UpdateConfig != nil {
		var err error
		if spec.Update, err = update(*d.UpdateConfig); err != nil {
			return fmt.Errorf("update_config: %w", err)
		}
	}
	if d.RollbackConfig != nil {
		var err error
		if spec.Rollback, err = update(*d.RollbackConfig); err != nil {
			return fmt.Errorf("rollback_config: %w", err)
		}
		if spec.GetRollback().GetFailureAction() == swarmv1.UpdateConfig_ROLLBACK {
			return invalid.Errorf("rollback_config: a rollback that fails is not rolled back; failure_action is pause or continue")
		}
	}
	if r := d.RestartPolicy; r != nil {
		p := &swarmv1.RestartPolicy{Condition: swarmv1.RestartPolicy_ANY}
		switch r.Condition {
		case "", "any":
		case "on-failure":
			p.Condition = swarmv1.RestartPolicy_ON_FAILURE
		case "none":
			p.Condition = swarmv1.RestartPolicy_NONE
		default:
			return invalid.Errorf("the condition %q of restarts is unknown", r.Condition)
		}
		if r.Delay != nil {
			p.Delay = duration(*r.Delay)
		}
		if r.Window != nil {
			p.Window = duration(*r.Window)
		}
		if r.MaxAttempts != nil {
			p.MaxAttempts = *r.MaxAttempts
		}
		spec.Task.Restart = p
	}
	return resources(spec, d.Resources)
}

// update says how tasks are replaced.
func update(u types.UpdateConfig) (*swarmv1.UpdateConfig, error) {
	c := &swarmv1.UpdateConfig{Parallelism: 1, MaxFailureRatio: u.MaxFailureRatio}
	if u.Parallelism != nil {
		c.Parallelism = *u.Parallelism
	}
	if u.Delay != 0 {
		c.Delay = duration(u.Delay)
	}
	if u.Monitor != 0 {
		c.Monitor = duration(u.Monitor)
	}
	switch u.Order {
	case "", "stop-first":
	case "start-first":
		c.Order = swarmv1.UpdateConfig_START_FIRST
	default:
		return nil, invalid.Errorf("the order %q is neither stop-first nor start-first", u.Order)
	}
	n, ok := swarmv1.UpdateConfig_FailureAction_value[strings.ToUpper(u.FailureAction)]
	if !ok && u.FailureAction != "" {
		return nil, invalid.Errorf("the failure_action %q is none of pause, continue and rollback", u.FailureAction)
	}
	c.FailureAction = swarmv1.UpdateConfig_FailureAction(n)
	return c, nil
}

func resources(spec *swarmv1.ServiceSpec, r types.Resources) error {
	amount := func(from *types.Resource) *swarmv1.Resources {
		if from == nil || from.NanoCPUs == 0 && from.MemoryBytes == 0 {
			return nil
		}
		return &swarmv1.Resources{NanoCpus: int64(float64(from.NanoCPUs)*1000+0.5) * 1e6, MemoryBytes: int64(from.MemoryBytes)}
	}
	limits, reserved := amount(r.Limits), amount(r.Reservations)
	if limits != nil || reserved != nil {
		spec.Task.Resources = &swarmv1.ResourceRequirements{Limits: limits, Reservations: reserved}
	}
	if r.Limits != nil {
		spec.GetTask().GetContainer().PidsLimit = r.Limits.Pids
	}
	if limits.GetNanoCpus() < 0 || limits.GetMemoryBytes() < 0 || reserved.GetNanoCpus() < 0 || reserved.GetMemoryBytes() < 0 {
		return errors.New("resources below nothing")
	}
	return nil
}
