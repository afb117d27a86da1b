package fleet

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Labels that docker's command line gives a service of a stack, and that declarations give as well:
// so that stacks from both are equal.
const stackImage = "com.docker.stack.image"

// label names a service by its stack, and labels it and its containers.
func (d Declaration) label(spec *swarmv1.ServiceSpec) {
	at, c := spec.GetAnnotations(), spec.GetTask().GetContainer()
	at.Name = d.Name + "_" + at.GetName()
	if at.Labels == nil {
		at.Labels = map[string]string{}
	}
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	at.Labels[Stack], at.Labels[stackImage], c.Labels[Stack] = d.Name, c.GetImage(), d.Name
}

// normalize gives a service the one form of all those that mean the same, so that a service is
// the same one by whichever door it came.
func normalize(spec *swarmv1.ServiceSpec) {
	if len(spec.GetEndpoint().GetPorts()) == 0 {
		spec.Endpoint = nil
	} else {
		spec.Endpoint.Mode = swarmv1.EndpointSpec_DNSRR // nothing has an address of its own for all of its tasks
	}
	if spec.Update == nil {
		spec.Update = &swarmv1.UpdateConfig{Parallelism: 1}
	}
	for _, c := range []*swarmv1.UpdateConfig{spec.GetUpdate(), spec.GetRollback()} {
		if c != nil && none(c.GetDelay()) {
			c.Delay = nil
		}
		if c != nil && none(c.GetMonitor()) {
			c.Monitor = nil
		}
	}
	t := spec.GetTask()
	if none(t.GetPlacement()) {
		t.Placement = nil
	}
	if r := t.GetResources(); r != nil {
		if none(r.GetLimits()) {
			r.Limits = nil
		}
		if none(r.GetReservations()) {
			r.Reservations = nil
		}
		if none(r) {
			t.Resources = nil
		}
	}
	if none(t.GetLogDriver()) {
		t.LogDriver = nil
	}
	if c := t.GetContainer(); c != nil {
		normalizeContainer(c)
	}
}

// none reports whether a message says nothing.
func none(m proto.Message) bool { return proto.Size(m) == 0 }

func normalizeContainer(c *swarmv1.ContainerSpec) {
	if named, err := reference.ParseNormalizedNamed(c.GetImage()); err == nil {
		c.Image = reference.FamiliarString(reference.TagNameOnly(named))
	}
	name := func(v string) string { k, _, _ := strings.Cut(v, "="); return k }
	slices.SortStableFunc(c.GetEnv(), func(a, b string) int { return cmp.Compare(name(a), name(b)) })
	host := func(v string) string { _, names, _ := strings.Cut(v, " "); return names }
	slices.SortStableFunc(c.GetHosts(), func(a, b string) int { return cmp.Compare(host(a), host(b)) })
	slices.SortStableFunc(c.GetUlimits(), func(a, b *swarmv1.ContainerSpec_Ulimit) int { return cmp.Compare(a.GetName(), b.GetName()) })
	c.CapabilityAdd, c.CapabilityDrop = capabilities(c.GetCapabilityAdd()), capabilities(c.GetCapabilityDrop())
	if none(c.GetDnsConfig()) {
		c.DnsConfig = nil
	}
	if none(c.GetPullOptions()) {
		c.PullOptions = nil
	}
	if none(c.GetPrivileges()) {
		c.Privileges = nil
	}
	if none(c.GetHealthcheck()) {
		c.Healthcheck = nil
	}
	for _, m := range c.GetMounts() {
		if none(m.GetBindOptions()) {
			m.BindOptions = nil
		}
		if none(m.GetVolumeOptions()) {
			m.VolumeOptions = nil
		}
		if none(m.GetTmpfsOptions()) {
			m.TmpfsOptions = nil
		}
	}
	for _, r := range c.GetConfigs() {
		if f := r.GetFile(); f != nil && !path.IsAbs(f.GetName()) {
			f.Name = "/" + f.GetName()
		}
	}
}

// capabilities are capabilities by their full names, in order.
func capabilities(names []string) (list []string) {
	for _, n := range names {
		n = strings.ToUpper(n)
		if n != "ALL" && !strings.HasPrefix(n, "CAP_") {
			n = "CAP_" + n
		}
		list = append(list, n)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// keep copies the values that a declaration cannot contain from the former spec: the registry's
// credentials, and the counter of forced updates.
func keep(spec, before *swarmv1.ServiceSpec) {
	spec.Task.ForceUpdate = before.GetTask().GetForceUpdate()
	if old := before.GetTask().GetContainer(); domain(old.GetImage()) == domain(spec.GetTask().GetContainer().GetImage()) {
		spec.GetTask().GetContainer().PullOptions = old.GetPullOptions()
	}
}

// domain is the registry of an image.
func domain(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return ""
	}
	return reference.Domain(named)
}
