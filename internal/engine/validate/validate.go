// Package validate checks the configuration of containers. Start at Container.
package validate

import (
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/volumes"
	"github.com/longshore/longshore/internal/ocispec"
)

// Container returns InvalidArgument if cfg is not valid. It sets SleepAfter and Disk from their labels.
func Container(cfg *core.ContainerConfig) error {
	if label, ok := cfg.Labels[core.SleepAfterLabel]; ok && cfg.SleepAfter == 0 {
		var err error
		if cfg.SleepAfter, err = core.SleepAfter(label); err != nil {
			return fmt.Errorf("label %s: %w: %w", core.SleepAfterLabel, err, errdefs.ErrInvalidArgument)
		}
	}
	if label, ok := cfg.Labels[core.DiskLabel]; ok && cfg.Disk == 0 {
		var err error
		if cfg.Disk, err = core.DiskLimit(label); err != nil {
			return fmt.Errorf("label %s: %w: %w", core.DiskLabel, err, errdefs.ErrInvalidArgument)
		}
	}
	set := 0
	for _, is := range []bool{cfg.Root.Image != "", cfg.Root.Dir != "", len(cfg.Root.Mounts) > 0} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return fmt.Errorf("root: one of image, dir and mounts is wanted: %w", errdefs.ErrInvalidArgument)
	case cfg.Disk != 0 && cfg.Root.Image == "":
		return fmt.Errorf("a disk limit is for a root from an image: %w", errdefs.ErrInvalidArgument)
	case cfg.Disk < 0 || cfg.Disk > 0 && cfg.Disk < core.MinDisk:
		return fmt.Errorf("disk limit of %d bytes: it must be at least %d: %w", cfg.Disk, core.MinDisk, errdefs.ErrInvalidArgument)
	case cfg.Spec == nil:
		return fmt.Errorf("no spec: %w", errdefs.ErrInvalidArgument)
	case cfg.Rest != nil && cfg.Run:
		return fmt.Errorf("rest excludes run: %w", errdefs.ErrInvalidArgument)
	case cfg.Durable && cfg.IO.Hold:
		return fmt.Errorf("a durable container cannot hold its output: %w", errdefs.ErrInvalidArgument)
	case cfg.IO.Hold && len(cfg.IO.Sinks) > 0:
		return fmt.Errorf("hold excludes sinks: %w", errdefs.ErrInvalidArgument)
	}
	for _, v := range cfg.Volumes {
		if err := volumes.Check(v); err != nil {
			return err
		}
	}
	if err := owned.Check(cfg.Own, cfg.Join); err != nil {
		return err
	}
	if _, err := StopSignal(cfg.Stop.Signal); err != nil {
		return err
	}
	return nil
}

// StopSignal parses "SIGTERM", "TERM" or a number; "" is SIGTERM.
func StopSignal(s string) (int, error) {
	if s == "" {
		return int(unix.SIGTERM), nil
	}
	return ocispec.Signal(s)
}
