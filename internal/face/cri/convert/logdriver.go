package convert

import (
	"slices"
	"strings"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/logs/driver"
)

// LogDriverAnnotation and LogOptionsAnnotation are annotations of a pod with the log driver of its containers and the driver's
// options, a line each as NAME=VALUE. With .NAME at their ends they are those of one container, which are also valid without it among
// the container's own annotations.
const (
	LogDriverAnnotation  = "longshore.io/log-driver"
	LogOptionsAnnotation = "longshore.io/log-options"
)

// LogDriver returns the log driver of a container. One without a name is the node's default.
func LogDriver(pod *v1.PodSandboxConfig, cfg *v1.ContainerConfig) (*core.LogDriver, error) {
	var env []string
	for _, e := range cfg.GetEnvs() {
		env = append(env, e.GetKey()+"="+string(e.GetValue()))
	}
	d := &core.LogDriver{}
	own := "." + cfg.GetMetadata().GetName()
	for _, at := range []struct {
		in     map[string]string
		suffix string
	}{{cfg.GetAnnotations(), ""}, {pod.GetAnnotations(), own}, {pod.GetAnnotations(), ""}} {
		name, named := at.in[LogDriverAnnotation+at.suffix]
		text, listed := at.in[LogOptionsAnnotation+at.suffix]
		if !named && !listed {
			continue
		}
		opts, err := driver.Lines(text)
		if err != nil {
			return nil, invalid.Errorf("annotation %s: %w", LogOptionsAnnotation+at.suffix, err)
		}
		if name == "" {
			return nil, invalid.Errorf("annotation %s names no driver: use one of json-file, %s", LogDriverAnnotation+at.suffix, driver.Services)
		}
		if d, err = driver.Authored(name, opts, cfg.GetLabels(), env); err != nil {
			return nil, invalid.Errorf("annotation %s: %w", LogDriverAnnotation+at.suffix, err)
		}
		break
	}
	d.Image = cfg.GetImage().GetUserSpecifiedImage()
	if d.Image == "" {
		d.Image = cfg.GetImage().GetImage()
	}
	d.Command = strings.Join(slices.Concat(cfg.GetCommand(), cfg.GetArgs()), " ")
	return d, nil
}
