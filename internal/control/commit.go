package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/derive"
	"github.com/longshore/longshore/internal/ocispec"
)

// settings are the user's settings of a container's program. An image of the container gets them as well.
type settings struct {
	Env             []string `json:"env,omitempty"`
	Command         []string `json:"command,omitempty"`
	Entrypoint      string   `json:"entrypoint,omitempty"`
	ClearEntrypoint bool     `json:"clear_entrypoint,omitempty"`
	User            string   `json:"user,omitempty"`
	Workdir         string   `json:"workdir,omitempty"`
	Expose          []string `json:"expose,omitempty"`
	StopSignal      string   `json:"stop_signal,omitempty"`
	// Binds are for containers with --volumes-from. They are not part of an image.
	Binds []bind `json:"binds,omitempty"`
}

// settingsOf returns the settings of a request.
func settingsOf(req *longshorev1.CreateRequest) settings {
	return settings{
		req.GetEnv(), req.GetCommand(), req.GetEntrypoint(), req.GetClearEntrypoint(), req.GetUser(), req.GetWorkdir(), req.GetExpose(), req.GetStopSignal(),
		bindsOf(req.GetMounts()),
	}
}

// addTo adds the settings to those of an image.
func (a settings) addTo(s derive.Settings) error {
	s.Env(a.Env)
	switch {
	case a.Entrypoint != "":
		s.Set("Entrypoint", []string{a.Entrypoint})
	case a.ClearEntrypoint:
		s.Set("Entrypoint", nil)
	}
	if len(a.Command) > 0 {
		s.Set("Cmd", a.Command)
	} else if a.Entrypoint != "" || a.ClearEntrypoint {
		s.Set("Cmd", nil) // the image's command belongs to its own entry point
	}
	for name, v := range map[string]string{"User": a.User, "WorkingDir": a.Workdir, "StopSignal": a.StopSignal} {
		if v != "" {
			s.Set(name, v)
		}
	}
	return s.Expose(a.Expose)
}

// changesInMessage is the number of changes in one message.
const changesInMessage = 500

// Diff lists a container's changes of its image's files.
func (s *containerServer) Diff(req *longshorev1.DiffRequest, stream grpc.ServerStreamingServer[longshorev1.DiffResponse]) error {
	c, err := s.srv.container(stream.Context(), req.GetName())
	if err != nil {
		return err
	}
	use, err := useOf(stream.Context(), s.srv, c)
	if err != nil {
		return err
	}
	out := &longshorev1.DiffResponse{}
	err = s.srv.o.Transfers.Changes(stream.Context(), c.ID, use, func(f core.FileChange) error {
		// A path may be invalid UTF-8.
		out.Changes = append(out.Changes, &longshorev1.Change{Path: strings.ToValidUTF8(f.Path, "\uFFFD"), Kind: f.Kind})
		if len(out.GetChanges()) < changesInMessage {
			return nil
		}
		err := stream.Send(out)
		out = &longshorev1.DiffResponse{}
		return err
	})
	if err == nil && len(out.GetChanges()) > 0 {
		err = stream.Send(out)
	}
	return err
}

// etcFiles are the files that the engine writes into a container's root.
func etcFiles() []string { return []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} }

// useOf returns the id mappings of a container's root and the mounts in it.
func useOf(ctx context.Context, s *Server, c core.Container) (use core.RootUse, err error) {
	sb, err := s.all.Sandbox(ctx, c.Sandbox)
	if err != nil {
		return use, err
	}
	for _, m := range sb.Config.UIDs {
		use.UIDs = append(use.UIDs, core.IDRange{Container: m.ContainerID, Host: m.HostID, Size: m.Size})
	}
	for _, m := range sb.Config.GIDs {
		use.GIDs = append(use.GIDs, core.IDRange{Container: m.ContainerID, Host: m.HostID, Size: m.Size})
	}
	use.Mounts = etcFiles()
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

// Commit makes an image of a container of ours. It is paused meanwhile, unless the request says
// otherwise.
func (s *containerServer) Commit(ctx context.Context, req *longshorev1.CommitRequest) (*longshorev1.CommitResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if c.Owner != core.OwnerCLI {
		return nil, fmt.Errorf("make an image of %s: it belongs to %s: %w", c.ID.Short(), c.Owner, errdefs.ErrPermissionDenied)
	}
	// Refuse invalid requests before the container is paused.
	if _, err := derive.Config([]byte("{}"), derive.Layer{}, settingsFor(c, req)); err != nil {
		return nil, err
	}
	ask := core.CommitRequest{Container: c.ID, Name: req.GetImage()}
	if ask.Use, err = useOf(ctx, s.srv, c); err != nil {
		return nil, err
	}
	ask.Config = func(base []byte, diff digest.Digest) ([]byte, error) {
		l := derive.Layer{DiffID: diff, Created: time.Now().UTC(), Author: req.GetAuthor(), Comment: req.GetMessage(), CreatedBy: strings.Join(c.Main.Args, " ")}
		return derive.Config(base, l, settingsFor(c, req))
	}
	if !req.GetRunning() && c.State == core.ContainerRunning {
		resume, err := pauseForCommit(ctx, s.srv, c)
		if err != nil {
			return nil, err
		}
		defer resume()
	}
	img, err := s.srv.o.Transfers.Commit(ctx, core.OwnerCLI, ask)
	if err == nil {
		err = s.srv.own.Images.Added(core.Image{ID: img.ID})
	}
	if err != nil {
		return nil, err
	}
	return &longshorev1.CommitResponse{Id: img.ID.String()}, nil
}

// settingsFor adds the settings of the container and of the commit to an image's settings.
func settingsFor(c core.Container, req *longshorev1.CommitRequest) func(derive.Settings) error {
	return func(s derive.Settings) error {
		if err := recordOf(c).Settings.addTo(s); err != nil {
			return err
		}
		s.Labels(c.Labels)
		for _, line := range req.GetChanges() {
			if err := s.Instruct(line); err != nil {
				return err
			}
		}
		return nil
	}
}

// pauseForCommit pauses a container of ours and returns the function that resumes it. It does nothing if the container
// has ended.
func pauseForCommit(ctx context.Context, s *Server, c core.Container) (resume func(), err error) {
	if s.o.Paused != nil {
		if err := s.o.Paused.Put(string(c.ID), []byte("1")); err != nil {
			return nil, err
		}
	}
	if err := s.own.PauseContainer(ctx, c.ID); err != nil {
		forgetPause(ctx, s, c.ID)
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
		forgetPause(ctx, s, c.ID)
	}, nil
}

// forgetPause removes the record that a container is paused for a commit.
func forgetPause(ctx context.Context, s *Server, id core.ID) {
	if s.o.Paused == nil {
		return
	}
	if err := s.o.Paused.Delete(string(id)); err != nil {
		s.o.Logger.WarnContext(ctx, "could not remove the record of a container's pause for a commit; the next agent may resume it again", "container", string(id), "error", err)
	}
}

// resumeCommitted resumes the containers that an earlier agent paused for a commit before it died.
func resumeCommitted(ctx context.Context, s *Server) error {
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
		forgetPause(ctx, s, id)
	}
	return errors.Join(errs...)
}
