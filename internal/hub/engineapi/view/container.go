package view

import (
	"encoding/json"
	"os"

	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/swarm"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// container shows a container without credentials for its registry.
func container(c *swarmv1.ContainerSpec) *swarm.ContainerSpec {
	v := &swarm.ContainerSpec{
		Image: c.GetImage(), Labels: c.GetLabels(), Command: c.GetCommand(), Args: c.GetArgs(), Hostname: c.GetHostname(), Env: c.GetEnv(), Dir: c.GetDir(), User: c.GetUser(), Groups: c.GetGroups(),
		StopSignal: c.GetStopSignal(), TTY: c.GetTty(), OpenStdin: c.GetOpenStdin(), ReadOnly: c.GetReadOnly(), Hosts: c.GetHosts(), Sysctls: c.GetSysctls(),
		CapabilityAdd: c.GetCapabilityAdd(), CapabilityDrop: c.GetCapabilityDrop(), OomScoreAdj: c.GetOomScoreAdj(), StopGracePeriod: duration(c.GetStopGracePeriod()),
		Isolation: api.IsolationDefault, Privileges: privileges(c.GetPrivileges()),
	}
	if c.GetInit() != nil {
		on := c.GetInit().GetValue()
		v.Init = &on
	}
	if d := c.GetDnsConfig(); d != nil {
		v.DNSConfig = &swarm.DNSConfig{Search: d.GetSearch(), Options: d.GetOptions()}
		for _, text := range d.GetNameservers() {
			if ip, ok := address(text); ok {
				v.DNSConfig.Nameservers = append(v.DNSConfig.Nameservers, ip)
			}
		}
	}
	for _, u := range c.GetUlimits() {
		v.Ulimits = append(v.Ulimits, &api.Ulimit{Name: u.GetName(), Soft: u.GetSoft(), Hard: u.GetHard()})
	}
	if h := c.GetHealthcheck(); h != nil {
		v.Healthcheck = &api.HealthConfig{
			Test: h.GetTest(), Interval: h.GetInterval().AsDuration(), Timeout: h.GetTimeout().AsDuration(), StartPeriod: h.GetStartPeriod().AsDuration(),
			StartInterval: h.GetStartInterval().AsDuration(), Retries: int(h.GetRetries()),
		}
	}
	for _, m := range c.GetMounts() {
		v.Mounts = append(v.Mounts, mounted(m))
	}
	for _, r := range c.GetSecrets() {
		f := r.GetFile()
		v.Secrets = append(v.Secrets, &swarm.SecretReference{
			SecretID: r.GetSecretId(), SecretName: r.GetSecretName(), File: &swarm.SecretReferenceFileTarget{Name: f.GetName(), UID: f.GetUid(), GID: f.GetGid(), Mode: os.FileMode(f.GetMode())},
		})
	}
	for _, r := range c.GetConfigs() {
		f := r.GetFile()
		v.Configs = append(v.Configs, &swarm.ConfigReference{
			ConfigID: r.GetConfigId(), ConfigName: r.GetConfigName(), File: &swarm.ConfigReferenceFileTarget{Name: f.GetName(), UID: f.GetUid(), GID: f.GetGid(), Mode: os.FileMode(f.GetMode())},
		})
	}
	return v
}

func privileges(p *swarmv1.Privileges) *swarm.Privileges {
	if p == nil {
		return nil
	}
	v := &swarm.Privileges{NoNewPrivileges: p.GetNoNewPrivileges()}
	if x := p.GetSelinuxContext(); x != nil {
		v.SELinuxContext = &swarm.SELinuxContext{Disable: x.GetDisable(), User: x.GetUser(), Role: x.GetRole(), Type: x.GetType(), Level: x.GetLevel()}
	}
	if x := p.GetSeccomp(); x != nil {
		v.Seccomp = &swarm.SeccompOpts{Mode: swarm.SeccompMode(word(x.GetMode().String())), Profile: x.GetProfile()}
	}
	if x := p.GetApparmor(); x != nil {
		v.AppArmor = &swarm.AppArmorOpts{Mode: swarm.AppArmorMode(word(x.GetMode().String()))}
	}
	return v
}

func mounted(m *swarmv1.Mount) mount.Mount {
	v := mount.Mount{Type: mount.Type(word(m.GetType().String())), Source: m.GetSource(), Target: m.GetTarget(), ReadOnly: m.GetReadonly()}
	if m.GetConsistency() != swarmv1.Mount_DEFAULT {
		v.Consistency = mount.Consistency(word(m.GetConsistency().String()))
	}
	if o := m.GetBindOptions(); o != nil {
		v.BindOptions = &mount.BindOptions{
			Propagation: mount.Propagation(word(o.GetPropagation().String())), NonRecursive: o.GetNonrecursive(), CreateMountpoint: o.GetCreatemountpoint(),
			ReadOnlyNonRecursive: o.GetReadonlynonrecursive(), ReadOnlyForceRecursive: o.GetReadonlyforcerecursive(),
		}
	}
	if o := m.GetVolumeOptions(); o != nil {
		v.VolumeOptions = &mount.VolumeOptions{NoCopy: o.GetNocopy(), Labels: o.GetLabels(), Subpath: o.GetSubpath()}
		if d := o.GetDriverConfig(); d != nil {
			v.VolumeOptions.DriverConfig = &mount.Driver{Name: d.GetName(), Options: d.GetOptions()}
		}
	}
	if o := m.GetTmpfsOptions(); o != nil {
		v.TmpfsOptions = &mount.TmpfsOptions{SizeBytes: o.GetSizeBytes(), Mode: os.FileMode(o.GetMode())}
		_ = json.Unmarshal([]byte(o.GetOptions()), &v.TmpfsOptions.Options) // another door may have said them otherwise
	}
	return v
}
