package solo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/restart"
	"github.com/longshore/longshore/internal/solo/translate"
)

// Rename gives a container another name.
func (s *Service) Rename(ctx context.Context, c core.Container, name string) error {
	if !translate.ValidName(name) {
		return invalid.Errorf("name %q: letters, digits, _ . - only, a letter or digit first, at most 128", name)
	}
	err := s.own.RenameContainer(ctx, c.ID, core.Key(name))
	if errdefs.IsAlreadyExists(err) {
		return NameInUseError{name, "", fmt.Errorf("the name %q is in use: %w", name, errdefs.ErrAlreadyExists)}
	}
	if err != nil {
		return err
	}
	// Publish the new name to the name servers of its networks before the call returns.
	if err := s.node.Publish(ctx); err != nil { // the container is renamed: the next change publishes the name
		s.o.Logger.WarnContext(ctx, "could not report a container's new name to the name servers", "container", c.ID, "error", err)
	}
	return nil
}

// Update changes the limits of a container, now and for its next starts.
func (s *Service) Update(ctx context.Context, c core.Container, req *longshorev1.UpdateRequest) error {
	policy, err := restart.Parse(req.GetRestart())
	if err != nil {
		return err
	}
	if policy.Name != core.RestartNever && (RecordOf(c).AutoRemove || c.Config.IO.Hold) {
		return fmt.Errorf("update %s: it is removed after its end, so it can have no restart policy: %w", c.ID.Short(), errdefs.ErrFailedPrecondition)
	}
	if plain := (&longshorev1.UpdateRequest{Name: req.GetName(), Restart: req.GetRestart()}); req.GetRestart() != "" && proto.Equal(req, plain) {
		return s.own.Restarts.SetPolicy(c.ID, policy)
	}
	now, err := limitsOf(c)
	if err != nil {
		return err
	}
	if err := checkQuota(c, now, req); err != nil {
		return err
	}
	var memory int64
	if now.Memory != nil && now.Memory.Limit != nil {
		memory = *now.Memory.Limit
	}
	res, err := translate.Resources(req, memory)
	if err != nil {
		return err
	}
	if req.GetPids() == -1 {
		none := int64(-1)
		res.Pids = &specs.LinuxPids{Limit: &none}
	}
	if c.State != core.ContainerExited {
		if _, err := s.own.UpdateContainer(ctx, c.ID, res); err != nil {
			return err
		}
	}
	if err := s.own.UpdateNextStart(ctx, c.ID, res); err != nil || req.GetRestart() == "" {
		return err
	}
	return s.own.Restarts.SetPolicy(c.ID, policy)
}

// checkQuota refuses to mix the two forms of a CPU limit, as docker does: a number of CPUs, and a quota with a period.
func checkQuota(c core.Container, now *specs.LinuxResources, req *longshorev1.UpdateRequest) error {
	byQuota, byCPUs := false, false
	if now.CPU != nil && now.CPU.Quota != nil && *now.CPU.Quota > 0 {
		byQuota = now.CPU.Period == nil || *now.CPU.Period != ocispec.CPUPeriod
	}
	made := &longshorev1.CreateRequest{}
	if stored := RecordOf(c).Request; len(stored) > 0 {
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(stored, made); err != nil {
			return fmt.Errorf("update %s: read the stored request: %w", c.ID.Short(), err)
		}
		byQuota, byCPUs = byQuota || made.GetCpuQuota() > 0 || made.GetCpuPeriod() > 0, made.GetCpus() > 0
	}
	switch {
	case req.GetCpus() > 0 && byQuota:
		return fmt.Errorf("update %s: cpus cannot be combined with its CPU quota or period: change these: %w", c.ID.Short(), errdefs.ErrFailedPrecondition)
	case (req.GetCpuQuota() != 0 || req.GetCpuPeriod() != 0) && byCPUs:
		return fmt.Errorf("update %s: a CPU quota or period cannot be combined with its limit of %v CPUs: change that: %w", c.ID.Short(), made.GetCpus(), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// limitsOf returns the limits of a container's last start.
func limitsOf(c core.Container) (*specs.LinuxResources, error) {
	raw, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
	if c.Bundle == "" || errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("update %s: it has no spec: %w", c.ID.Short(), errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, fmt.Errorf("update %s: %w", c.ID.Short(), err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return nil, fmt.Errorf("update %s: read its spec: %w", c.ID.Short(), err)
	}
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return &specs.LinuxResources{}, nil
	}
	return spec.Linux.Resources, nil
}
