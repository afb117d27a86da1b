package translate

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/templates"
)

// templateContext returns the context of the task's templates.
func templateContext(t *swarmv1.Task, n Node) (c templates.Context) {
	c.Service.ID, c.Service.Name, c.Service.Labels = t.GetServiceId(), t.GetServiceAnnotations().GetName(), t.GetServiceAnnotations().GetLabels()
	c.Node.ID, c.Node.Hostname, c.Node.Platform.Architecture, c.Node.Platform.OS = n.ID, n.Hostname, n.Architecture, n.OS
	c.Task.ID, c.Task.Name = t.GetId(), Task{Swarm: t}.Name()
	c.Task.Slot = t.GetNodeId()
	if t.GetSlot() > 0 {
		c.Task.Slot = fmt.Sprint(t.GetSlot())
	}
	return c
}

// expandSpec is the task's container with the templates expanded that its variables,
// its hostname and its mounts may have.
func expandSpec(t *swarmv1.Task, n Node) (*swarmv1.ContainerSpec, error) {
	spec := proto.CloneOf(t.GetSpec().GetContainer())
	c := templateContext(t, n)
	expand := func(what string, text *string) (err error) {
		if *text, err = c.Expand(*text); err != nil {
			return fmt.Errorf("template of %s: %w", what, err)
		}
		return nil
	}
	if err := expand("the hostname", &spec.Hostname); err != nil {
		return nil, err
	}
	for i, env := range spec.GetEnv() {
		name, value, ok := strings.Cut(env, "=")
		if !ok {
			continue
		}
		if err := expand("the variable "+name, &value); err != nil {
			return nil, err
		}
		spec.Env[i] = name + "=" + value
	}
	for _, m := range spec.GetMounts() {
		what := "the mount at " + m.GetTarget()
		for _, text := range []*string{&m.Source, &m.Target} {
			if err := expand(what, text); err != nil {
				return nil, err
			}
		}
		for _, values := range []map[string]string{m.GetVolumeOptions().GetLabels(), m.GetVolumeOptions().GetDriverConfig().GetOptions()} {
			for k, v := range values {
				if err := expand(what, &v); err != nil {
					return nil, err
				}
				values[k] = v
			}
		}
	}
	return spec, nil
}

// Content is a secret or a config as the managers have sent it.
type Content struct {
	Data       []byte
	Templating *swarmv1.Driver // nil if the task sees Data as it is
}

// golang is the only templating driver that there is.
const golang = "golang"

// Expand returns the task's secrets and configs in the order of Files, with templates expanded.
// InvalidArgument.
func (a Task) Expand(contents []Content) ([][]byte, error) {
	seen := make([][]byte, len(contents))
	for i, c := range contents {
		if seen[i] = c.Data; c.Templating == nil {
			continue
		}
		f := a.files[i]
		if name := c.Templating.GetName(); name != golang {
			return nil, fmt.Errorf("%s: %w", f, notServed("the templating driver %q", name))
		}
		out, err := templateContext(a.Swarm, a.Node).Payload(c.Data, a.sources(contents))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		seen[i] = out
	}
	return seen, nil
}

// sources returns the sources for templates of secrets and configs: the task's other secrets and
// configs, unexpanded, and its variables.
func (a Task) sources(contents []Content) templates.Sources {
	find := func(kind, target string, is func(File) bool) (string, error) {
		for i, f := range a.files {
			if is(f) && f.named == target {
				return string(contents[i].Data), nil
			}
		}
		return "", templates.Error("the task has no %s with that target", kind)
	}
	return templates.Sources{
		Secret: func(target string) (string, error) {
			return find("secret", target, func(f File) bool { return f.Secret != "" })
		},
		Config: func(target string) (string, error) {
			return find("config", target, func(f File) bool { return f.Config != "" })
		},
		Env: func(name string) (string, error) {
			for _, env := range a.spec.GetEnv() {
				if n, value, ok := strings.Cut(env, "="); ok && n == name {
					return value, nil
				}
			}
			return "", nil
		},
	}
}
