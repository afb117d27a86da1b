package translate

import (
	"encoding/json"
	"strings"

	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/swarm"
	"google.golang.org/protobuf/types/known/wrapperspb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/invalid"
)

// container is a container's part of a service.
func container(from *swarm.ContainerSpec) (c *swarmv1.ContainerSpec, err error) {
	if from.Isolation != "" && from.Isolation != api.IsolationDefault {
		return nil, invalid.Errorf("the isolation %.80q is not possible here", from.Isolation)
	}
	c = &swarmv1.ContainerSpec{
		Image: from.Image, Labels: from.Labels, Command: from.Command, Args: from.Args, Hostname: from.Hostname, Env: from.Env, Dir: from.Dir, User: from.User, Groups: from.Groups,
		StopSignal: from.StopSignal, Tty: from.TTY, OpenStdin: from.OpenStdin, ReadOnly: from.ReadOnly, Hosts: from.Hosts, Sysctls: from.Sysctls, CapabilityAdd: from.CapabilityAdd,
		CapabilityDrop: from.CapabilityDrop, OomScoreAdj: from.OomScoreAdj, StopGracePeriod: optional(from.StopGracePeriod),
	}
	if c.GetStopGracePeriod().AsDuration() < 0 {
		return nil, invalid.Errorf("StopGracePeriod: times cannot be negative")
	}
	if from.Init != nil {
		c.Init = wrapperspb.Bool(*from.Init)
	}
	if d := from.DNSConfig; d != nil {
		c.DnsConfig = &swarmv1.ContainerSpec_DNSConfig{Search: d.Search, Options: d.Options}
		for _, ip := range d.Nameservers {
			c.DnsConfig.Nameservers = append(c.GetDnsConfig().GetNameservers(), ip.String())
		}
	}
	for _, u := range from.Ulimits {
		if u != nil {
			c.Ulimits = append(c.GetUlimits(), &swarmv1.ContainerSpec_Ulimit{Name: u.Name, Soft: u.Soft, Hard: u.Hard})
		}
	}
	if c.Privileges, err = privileges(from.Privileges); err != nil {
		return nil, err
	}
	if c.Healthcheck, err = health(from.Healthcheck); err != nil {
		return nil, err
	}
	for _, m := range from.Mounts {
		to, err := mounted(m)
		if err != nil {
			return nil, err
		}
		c.Mounts = append(c.GetMounts(), to)
	}
	return c, references(c, from)
}

// references are a container's secrets and configs.
func references(c *swarmv1.ContainerSpec, from *swarm.ContainerSpec) error {
	for _, r := range from.Secrets {
		if r == nil || r.File == nil {
			return invalid.Errorf("a secret without a target file is not possible here")
		}
		f := &swarmv1.FileTarget{Name: r.File.Name, Uid: r.File.UID, Gid: r.File.GID, Mode: uint32(r.File.Mode)}
		c.Secrets = append(c.GetSecrets(), &swarmv1.SecretReference{SecretId: r.SecretID, SecretName: r.SecretName, Target: &swarmv1.SecretReference_File{File: f}})
	}
	for _, r := range from.Configs {
		if r == nil || r.File == nil || r.Runtime != nil {
			return invalid.Errorf("a config without a target file is not possible here")
		}
		f := &swarmv1.FileTarget{Name: r.File.Name, Uid: r.File.UID, Gid: r.File.GID, Mode: uint32(r.File.Mode)}
		c.Configs = append(c.GetConfigs(), &swarmv1.ConfigReference{ConfigId: r.ConfigID, ConfigName: r.ConfigName, Target: &swarmv1.ConfigReference_File{File: f}})
	}
	return nil
}

func privileges(from *swarm.Privileges) (*swarmv1.Privileges, error) {
	if from == nil {
		return nil, nil
	}
	if from.CredentialSpec != nil {
		return nil, invalid.Errorf("credential specs (Windows) are not possible here")
	}
	p := &swarmv1.Privileges{NoNewPrivileges: from.NoNewPrivileges}
	if x := from.SELinuxContext; x != nil {
		p.SelinuxContext = &swarmv1.Privileges_SELinuxContext{Disable: x.Disable, User: x.User, Role: x.Role, Type: x.Type, Level: x.Level}
	}
	if x := from.Seccomp; x != nil {
		n, err := one("Seccomp.Mode", string(x.Mode), swarmv1.Privileges_SeccompOpts_SeccompMode_value)
		if err != nil {
			return nil, err
		}
		p.Seccomp = &swarmv1.Privileges_SeccompOpts{Mode: swarmv1.Privileges_SeccompOpts_SeccompMode(n), Profile: x.Profile}
	}
	if x := from.AppArmor; x != nil {
		n, err := one("AppArmor.Mode", string(x.Mode), swarmv1.Privileges_AppArmorOpts_AppArmorMode_value)
		if err != nil {
			return nil, err
		}
		p.Apparmor = &swarmv1.Privileges_AppArmorOpts{Mode: swarmv1.Privileges_AppArmorOpts_AppArmorMode(n)}
	}
	return p, nil
}

func health(h *api.HealthConfig) (*swarmv1.HealthConfig, error) {
	if h == nil {
		return nil, nil
	}
	retries, err := bounded("Healthcheck.Retries", int64(h.Retries))
	if err != nil {
		return nil, err
	}
	if h.Interval < 0 || h.Timeout < 0 || h.StartPeriod < 0 || h.StartInterval < 0 || retries < 0 {
		return nil, invalid.Errorf("Healthcheck: times and retries cannot be negative")
	}
	return &swarmv1.HealthConfig{
		Test: h.Test, Interval: duration(h.Interval), Timeout: duration(h.Timeout), StartPeriod: duration(h.StartPeriod), StartInterval: duration(h.StartInterval), Retries: retries,
	}, nil
}

// types are the mounts that there are.
var types = map[mount.Type]swarmv1.Mount_Type{mount.TypeBind: swarmv1.Mount_BIND, mount.TypeVolume: swarmv1.Mount_VOLUME, mount.TypeTmpfs: swarmv1.Mount_TMPFS}

func mounted(m mount.Mount) (*swarmv1.Mount, error) {
	kind, ok := types[m.Type]
	if !ok || m.ClusterOptions != nil || m.ImageOptions != nil {
		return nil, invalid.Errorf("the mount of the type %.80q at %.200q is not possible here: only bind, volume and tmpfs", m.Type, m.Target)
	}
	consistency, err := one("the consistency of a mount", string(m.Consistency), swarmv1.Mount_Consistency_value)
	if err != nil {
		return nil, err
	}
	to := &swarmv1.Mount{Type: kind, Source: m.Source, Target: m.Target, Readonly: m.ReadOnly, Consistency: swarmv1.Mount_Consistency(consistency)}
	if o := m.BindOptions; o != nil {
		n, err := one("the propagation of a mount", string(o.Propagation), swarmv1.Mount_BindOptions_Propagation_value)
		if err != nil {
			return nil, err
		}
		to.BindOptions = &swarmv1.Mount_BindOptions{
			Propagation: swarmv1.Mount_BindOptions_Propagation(n), Nonrecursive: o.NonRecursive, Createmountpoint: o.CreateMountpoint,
			Readonlynonrecursive: o.ReadOnlyNonRecursive, Readonlyforcerecursive: o.ReadOnlyForceRecursive,
		}
	}
	if o := m.VolumeOptions; o != nil {
		to.VolumeOptions = &swarmv1.Mount_VolumeOptions{Nocopy: o.NoCopy, Labels: o.Labels, Subpath: o.Subpath}
		if o.DriverConfig != nil {
			to.VolumeOptions.DriverConfig = &swarmv1.Driver{Name: o.DriverConfig.Name, Options: o.DriverConfig.Options}
		}
	}
	if o := m.TmpfsOptions; o != nil {
		to.TmpfsOptions = &swarmv1.Mount_TmpfsOptions{SizeBytes: o.SizeBytes, Mode: uint32(o.Mode)}
		if len(o.Options) > 0 {
			data, err := json.Marshal(o.Options)
			if err != nil {
				return nil, invalid.Errorf("the options of the mount %.200q: %w", m.Target, err)
			}
			to.TmpfsOptions.Options = string(data)
		}
	}
	return to, nil
}

// resources translates a task's limits and reservations.
func resources(t *swarmv1.TaskSpec, c *swarmv1.ContainerSpec, r *swarm.ResourceRequirements) error {
	if r == nil {
		return nil
	}
	t.Resources = &swarmv1.ResourceRequirements{}
	if l := r.Limits; l != nil {
		t.Resources.Limits = &swarmv1.Resources{NanoCpus: l.NanoCPUs, MemoryBytes: l.MemoryBytes}
		c.PidsLimit = l.Pids
		if l.NanoCPUs < 0 || l.MemoryBytes < 0 {
			return invalid.Errorf("Resources.Limits cannot be negative")
		}
	}
	if v := r.Reservations; v != nil {
		if v.NanoCPUs < 0 || v.MemoryBytes < 0 {
			return invalid.Errorf("Resources.Reservations cannot be negative")
		}
		t.Resources.Reservations = &swarmv1.Resources{NanoCpus: v.NanoCPUs, MemoryBytes: v.MemoryBytes}
		if len(v.GenericResources) > 0 {
			return invalid.Errorf("generic resources (%s) are not possible here: a hub does not count them", strings.Join(kinds(v.GenericResources), ", "))
		}
	}
	if r.SwapBytes != nil {
		t.Resources.SwapBytes = wrapperspb.Int64(*r.SwapBytes)
	}
	if r.MemorySwappiness != nil {
		t.Resources.MemorySwappiness = wrapperspb.Int64(*r.MemorySwappiness)
	}
	return nil
}

func kinds(all []swarm.GenericResource) (list []string) {
	for _, g := range all[:min(len(all), 10)] {
		if g.NamedResourceSpec != nil {
			list = append(list, g.NamedResourceSpec.Kind)
		}
		if g.DiscreteResourceSpec != nil {
			list = append(list, g.DiscreteResourceSpec.Kind)
		}
	}
	return list
}
