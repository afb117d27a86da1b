package solo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/derive"
	"github.com/longshore/longshore/internal/ocispec"
)

// Changes calls each with the files of a container that differ from its image's.
func (s *Service) Changes(ctx context.Context, c core.Container, each func(core.FileChange) error) error {
	use, err := s.useOf(ctx, c)
	if err != nil {
		return err
	}
	return s.o.Transfers.Changes(ctx, c.ID, use, each)
}

// EtcFiles are the files that the engine writes into a container's root.
func EtcFiles() []string { return []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} }

// useOf returns the id mappings of a container's root and the mounts in it.
func (s *Service) useOf(ctx context.Context, c core.Container) (use core.RootUse, err error) {
	sb, err := s.all.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return use, err
	}
	sb = sb.Of(&c.Config)
	for _, m := range sb.Config.UIDs {
		use.UIDs = append(use.UIDs, core.IDRange{Container: m.ContainerID, Host: m.HostID, Size: m.Size})
	}
	for _, m := range sb.Config.GIDs {
		use.GIDs = append(use.GIDs, core.IDRange{Container: m.ContainerID, Host: m.HostID, Size: m.Size})
	}
	use.Mounts = EtcFiles()
	if c.Bundle == "" {
		return use, nil
	}
	spec, err := ocispec.BundleSpec(c.Bundle)
	if errors.Is(err, fs.ErrNotExist) {
		return use, nil
	}
	if err != nil {
		return use, err
	}
	for _, m := range spec.Mounts {
		use.Mounts = append(use.Mounts, m.Destination)
	}
	return use, nil
}

// Commit is a request for an image made of a container.
type Commit struct {
	Image   string // the name; "": none
	Author  string
	Message string
	Running bool // does not pause the container
	// Changes are instructions of a Dockerfile for the image's configuration.
	Changes []string
	// Settings, if set, changes the configuration after the container's settings and before Changes.
	Settings func(derive.Settings) error
}

// Commit makes an image of a container. It is paused meanwhile, unless the request says otherwise.
func (s *Service) Commit(ctx context.Context, c core.Container, req Commit) (core.Image, error) {
	// Refuse invalid requests before the container is paused.
	if _, err := derive.Config([]byte("{}"), derive.Layer{}, req.settings(c)); err != nil {
		return core.Image{}, err
	}
	ask := core.CommitRequest{Container: c.ID, Name: req.Image}
	var err error
	if ask.Use, err = s.useOf(ctx, c); err != nil {
		return core.Image{}, err
	}
	ask.Config = func(base []byte, diff digest.Digest) ([]byte, error) {
		l := derive.Layer{DiffID: diff, Created: time.Now().UTC(), Author: req.Author, Comment: req.Message, CreatedBy: strings.Join(c.Main.Args, " ")}
		return derive.Config(base, l, req.settings(c))
	}
	if !req.Running && c.State == core.ContainerRunning {
		resume, err := s.pauseForCommit(ctx, c)
		if err != nil {
			return core.Image{}, err
		}
		defer resume()
	}
	img, err := s.o.Transfers.Commit(ctx, s.o.Owner, ask)
	if err == nil {
		err = s.own.Images.Added(core.Image{ID: img.ID})
	}
	return img, err
}

// settings adds the settings of the container and of the commit to an image's settings.
func (req Commit) settings(c core.Container) func(derive.Settings) error {
	return func(s derive.Settings) error {
		if err := RecordOf(c).Settings.addTo(s); err != nil {
			return err
		}
		s.Labels(c.Labels)
		if req.Settings != nil {
			if err := req.Settings(s); err != nil {
				return err
			}
		}
		for _, line := range req.Changes {
			if err := s.Instruct(line); err != nil {
				return err
			}
		}
		return nil
	}
}

// pauseForCommit pauses a container of ours and returns the function that resumes it. It does nothing if the container
// has ended.
func (s *Service) pauseForCommit(ctx context.Context, c core.Container) (resume func(), err error) {
	if s.o.Paused != nil {
		if err := s.o.Paused.Put(string(c.ID), []byte("1")); err != nil {
			return nil, err
		}
	}
	if err := s.own.PauseContainer(ctx, c.ID); err != nil {
		s.forgetPause(ctx, c.ID)
		if now, gerr := s.own.Container(ctx, c.ID); gerr == nil && now.State == core.ContainerExited {
			return func() {}, nil
		}
		return nil, err
	}
	return func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		if err := s.own.ResumeContainer(clean, c.ID); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			s.o.Logger.WarnContext(ctx, "could not resume a container after its commit; use longshore resume", "container", string(c.ID), "error", err)
			return
		}
		s.forgetPause(ctx, c.ID)
	}, nil
}

// forgetPause removes the record that a container is paused for a commit.
func (s *Service) forgetPause(ctx context.Context, id core.ID) {
	if s.o.Paused == nil {
		return
	}
	if err := s.o.Paused.Delete(string(id)); err != nil {
		s.o.Logger.WarnContext(ctx, "could not remove the record of a container's pause for a commit; the next agent may resume it again", "container", string(id), "error", err)
	}
}

// resumeCommitted resumes the containers that an earlier agent paused for a commit before it died.
func (s *Service) resumeCommitted(ctx context.Context) error {
	if s.o.Paused == nil {
		return nil
	}
	var ids []core.ID
	for key := range s.o.Paused.All("") {
		ids = append(ids, core.ID(key))
	}
	var errs []error
	for _, id := range ids {
		if c, err := s.own.Container(ctx, id); err == nil && c.State == core.ContainerPaused {
			s.o.Logger.InfoContext(ctx, "resuming a container that was paused for a commit when the last agent died", "container", string(id))
			if err := s.own.ResumeContainer(ctx, id); err != nil {
				errs = append(errs, fmt.Errorf("resume container %s, paused for a commit: %w", id.Short(), err))
				continue
			}
		}
		s.forgetPause(ctx, id)
	}
	return errors.Join(errs...)
}
