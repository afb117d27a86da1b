package translate

import (
	"maps"
	"slices"
	"strings"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockertypes"
)

// Merge completes the configuration by the image's, as dockerd does.
func (c *Create) Merge(img core.Image) {
	i := img.Config.Config
	if c.User == "" {
		c.User = i.User
	}
	if c.WorkingDir == "" {
		c.WorkingDir = i.WorkingDir
	}
	if c.StopSignal == "" {
		c.StopSignal = i.StopSignal
	}
	c.Env = mergeEnv(i.Env, c.Env)
	if len(c.Entrypoint) == 0 {
		if len(c.Cmd) == 0 {
			c.Cmd = i.Cmd
		}
		if c.Entrypoint == nil {
			c.Entrypoint = i.Entrypoint
		}
	}
	for p := range i.ExposedPorts {
		if full, err := portRange(dockertypes.Port(p)); err == nil && !strings.HasPrefix(c.HostConfig.NetworkMode, "container:") {
			for _, one := range full {
				if c.ExposedPorts == nil {
					c.ExposedPorts = map[dockertypes.Port]struct{}{}
				}
				c.ExposedPorts[one] = struct{}{}
			}
		}
	}
	labels := maps.Clone(i.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, c.Labels)
	c.Labels = labels
	for target := range i.Volumes {
		if c.Volumes == nil {
			c.Volumes = map[string]struct{}{}
		}
		c.Volumes[target] = struct{}{}
	}
	if len(c.Shell) == 0 {
		c.Shell = img.Shell
	}
	c.mergeHealth(img.Health)
}

// mergeEnv returns the request's variables, and the image's of other names. One without a value stays in documents and takes the
// place of the image's; the program gets neither.
func mergeEnv(image, own []string) []string {
	out := append([]string{}, own...)
	for _, e := range image {
		name, _, _ := strings.Cut(e, "=")
		if !slices.ContainsFunc(own, func(o string) bool { n, _, _ := strings.Cut(o, "="); return n == name }) {
			out = append(out, e)
		}
	}
	return out
}

func (c *Create) mergeHealth(image *core.HealthCheck) {
	if image == nil {
		return
	}
	if c.Healthcheck == nil {
		c.Healthcheck = &dockertypes.HealthConfig{}
	}
	h := c.Healthcheck
	if len(h.Test) == 0 {
		h.Test = image.Test
	}
	if h.Interval == 0 {
		h.Interval = image.Interval
	}
	if h.Timeout == 0 {
		h.Timeout = image.Timeout
	}
	if h.StartPeriod == 0 {
		h.StartPeriod = image.StartPeriod
	}
	if h.StartInterval == 0 {
		h.StartInterval = image.StartInterval
	}
	if h.Retries == 0 {
		h.Retries = image.Retries
	}
}

// Joined stores the ids of the containers with joined namespaces in place of their names.
func (c *Create) Joined(req *longshorev1.CreateRequest) {
	for _, n := range []struct {
		to   *string
		from string
	}{{&c.HostConfig.NetworkMode, req.GetNetwork()}, {&c.HostConfig.PidMode, req.GetPid()}, {&c.HostConfig.IpcMode, req.GetIpc()}} {
		if strings.HasPrefix(n.from, "container:") {
			*n.to = n.from
		}
	}
}
